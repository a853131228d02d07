#include "wick/train/toml_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"
#include "wick/train/dataset_file.h"
#include "wick/train/presets.h"

namespace wick {
namespace {

// The value as a flag would have it, of the setting's type.
std::string text_of(const TrainOption& option, const toml::node& item, const std::string& where) {
  const std::string_view type = option.type();
  const bool wants_integer = type.starts_with("INT");
  const bool wants_number = wants_integer || type.starts_with("NUMBER") || type == kStepsOrShare;
  const bool wants_either = type == kAutoOrNumber || type == kAutoOrInteger || type == kResolutions;
  const bool wants_text = !wants_number && !option.is_bool();  // auto is a text too
  const auto text = item.value_exact<std::string>();
  const auto integer = item.value_exact<int64_t>();
  const auto number = item.value_exact<double>();
  const auto truth = item.value_exact<bool>();
  if (text && (wants_text || (option.is_by_pattern() && text->find('=') != text->npos))) return *text;
  if (integer && (wants_number || wants_either)) return fmt::format("{}", *integer);
  if (number && (wants_number || wants_either)) return fmt::format("{}", *number);
  if (truth && option.is_bool()) return *truth ? "true" : "false";
  fail_usage("{}: expected {}, found {}", where,
             type == kResolutions     ? "a side or \"WIDTHxHEIGHT\""
             : type == kAutoOrInteger ? "an integer or \"auto\""
             : type == kAutoOrNumber  ? "a number or \"auto\""
             : wants_text             ? "a string"
             : wants_integer          ? "an integer"
             : wants_number           ? "a number"
                                      : "true or false",
             told(item));
}

// [general] and [[datasets]] of a file of settings, as TOML. Their folders become absolute.
std::string dataset_tables(const toml::table& table, const std::string& source) {
  toml::table tables;
  for (const char* key : {"general", "datasets"})
    if (const toml::node* node = table.get(key)) tables.insert(key, *node);
  if (toml::array* datasets = tables["datasets"].as_array())
    datasets->for_each([](toml::table& dataset) {
      if (toml::array* subsets = dataset["subsets"].as_array())
        subsets->for_each([](toml::table& subset) {
          for (const char* key : {"image_dir", "conditioning_data_dir"})
            if (const auto folder = subset[key].value_exact<std::string>(); folder && !folder->empty())
              subset.insert_or_assign(key, std::filesystem::absolute(*folder).lexically_normal().string());
        });
    });
  std::ostringstream text;
  text << toml::toml_formatter(tables) << "\n";
  dataset_folders(text.str(), source);  // are understood
  return text.str();
}

constexpr size_t kMaxKeyParts = 8;

// Behind the string, of one line or more, that begins at a quotation mark.
size_t end_of_string(std::string_view text, size_t at) {
  const char mark = text[at];
  const size_t marks = text.substr(at).starts_with(std::string(3, mark)) ? 3 : 1;
  const std::string fence(marks, mark);
  for (at += marks; at < text.size() && !text.substr(at).starts_with(fence); ++at) {
    if (marks == 1 && text[at] == '\n') break;
    if (mark == '"' && text[at] == '\\') ++at;
  }
  return std::min(at + marks, text.size());
}

// toml++ nests a table for each part of a dotted key and takes tables down by recursion: too many parts would exhaust
// the stack.
void check_keys(std::string_view text, const std::string& source) {
  size_t dots = 0, line = 1;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    const char c = text[at];
    end = c == '"' || c == '\'' ? end_of_string(text, at)
          : c == '#'            ? std::min(text.find('\n', at), text.size())
                                : at + 1;
    if (c == '.') ++dots;
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) dots = 0;
    check_usage(dots < kMaxKeyParts, "{}: line {}: expected a key of at most {} parts with dots between", source, line,
                kMaxKeyParts);
    line += size_t(std::ranges::count(text.substr(at, end - at), '\n'));
  }
}

}  // namespace

toml::table parse_toml(const std::filesystem::path& file) {
  return parse_toml(read_file(file, size_t{1} << 20), file.string());
}

toml::table parse_toml(const std::string& text, const std::string& source) {
  check_keys(text, source);
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& e) {
    fail_usage("{}: line {}: {}", source, e.source().begin.line, printable(e.description()));
  }
}

std::string told(const toml::node& item) {
  if (const auto text = item.value_exact<std::string>()) return "the string " + quote(*text);
  if (const auto integer = item.value_exact<int64_t>()) return fmt::format("the integer {}", *integer);
  if (const auto number = item.value_exact<double>()) return fmt::format("the number {}", *number);
  if (const auto truth = item.value_exact<bool>()) return *truth ? "true" : "false";
  return item.is_table() ? "a table" : item.is_array() ? "a list" : "a date or a time";
}

void set_from_toml(TrainConfig& config, const TrainOption& option, const toml::node& node, const std::string& where) {
  std::vector<std::string> words;
  static constexpr std::string_view kOneOrMore[] = {"dataset", "val", "resolution", "eps"};
  const bool is_one_or_more = std::ranges::find(kOneOrMore, option.key) != std::end(kOneOrMore);
  check_usage(!option.is_list() || node.is_array() || is_one_or_more, "{}: expected a list of {}, found {}", where,
              option.type().starts_with("NUMBER") ? "numbers" : "strings", told(node));
  if ((option.is_list() || option.is_by_pattern()) && node.is_array())
    for (const toml::node& item : *node.as_array()) words.push_back(text_of(option, item, where));
  else
    words.push_back(text_of(option, node, where));
  option.set(config, words, where);
}

void read_toml(TrainConfig& config, const std::filesystem::path& file) {
  std::vector<std::string> known;
  for (const TrainOption& option : train_options()) known.emplace_back(option.key);
  std::map<std::string_view, std::string> given;  // by the setting's key, as the file spells it
  const toml::table table = parse_toml(file);
  if (const auto preset = table["preset"].value_exact<std::string>(); preset && config.preset.empty())
    apply_preset(config, *preset);
  for (const auto& [key, node] : table) {
    if (key == "general" || key == "datasets") continue;
    const std::string spelling(key.str()), where = fmt::format("{}: {}", file.string(), printable(spelling));
    const TrainOption* option = find_option(spelling);
    check_usage(option, "{}: no such setting{} (`wick train --help` lists them, with _ for -)", where,
                did_you_mean(spelling, known));
    const auto [before, is_new] = given.emplace(option->key, spelling);
    check_usage(is_new, "{}: expected it once, found it as {} too", where, before->second);
    set_from_toml(config, *option, node, where);
  }
  if (!table.contains("general") && !table.contains("datasets")) return;
  check_usage(config.dataset.empty(), "{}: expected dataset or [[datasets]], found both", file.string());
  config.datasets = dataset_tables(table, file.string());
}

std::string to_toml(const TrainConfig& config) {
  const auto is_said = [&](const TrainOption& option) {
    if (option.key == "steps") return config.steps > 0 && config.epochs == 0;
    if (option.key == "lr") return config.lr.value > 0;
    if (option.key == "rank") return config.rank.value > 0;
    if (option.key == "conv_alpha") return config.conv_alpha > 0;
    if (option.key == "validation_seed") return config.validation_seed >= 0;
    if (option.key == "state_every_minutes") return config.state_every_minutes >= 0;
    return option.key != "resume" && option.toml(config) != "\"\"";
  };
  std::string text;
  for (const TrainOption& option : train_options())
    if (is_said(option)) text += fmt::format("{} = {}\n", option.key, option.toml(config));
  return config.datasets.empty() ? text : text + "\n" + config.datasets;
}

}  // namespace wick
