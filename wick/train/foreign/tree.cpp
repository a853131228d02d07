#include "wick/train/foreign/tree.h"

#include <algorithm>
#include <sstream>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/train/foreign/command.h"
#include "wick/train/foreign/yaml.h"
#include "wick/train/toml_settings.h"

namespace wick {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxBytes = size_t{1} << 20;

Json tree_of(const toml::node& node, const std::string& source) {
  if (const toml::table* table = node.as_table()) {
    check_usage(table->size() <= kMaxOptions, "{}: expected at most {} options in a table, found {}", source,
                kMaxOptions, table->size());
    Json object = Json::object();
    for (const auto& [key, value] : *table) object[std::string(key.str())] = tree_of(value, source);
    return object;
  }
  if (const toml::array* list = node.as_array()) {
    Json array = Json::array();
    for (const toml::node& item : *list) array.push_back(tree_of(item, source));
    return array;
  }
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto truth = node.value_exact<bool>()) return *truth;
  if (const auto whole = node.value_exact<int64_t>()) return *whole;
  if (const auto number = node.value_exact<double>()) return *number;
  std::ostringstream date;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_chronological<decltype(value)>) date << value.get();
  });
  return date.str();
}

Json tree_of_script(const std::string& text, const std::string& source) {
  const std::vector<std::string> words = words_of_script(text, source);
  Json tree = tree_of_words(std::span(words).subspan(1), source);
  tree[kScriptKey] = words.front().substr(words.front().find_last_of("/\\") + 1);
  return tree;
}

}  // namespace

OptionSyntax syntax_of(const std::filesystem::path& file) {
  const std::string ending = file.extension().string();
  if (ending == ".yaml" || ending == ".yml") return OptionSyntax::yaml;
  static constexpr std::string_view kShellEndings[] = {".sh", ".bat", ".cmd", ".ps1"};
  if (std::ranges::find(kShellEndings, ending) != std::end(kShellEndings)) return OptionSyntax::script;
  return ending == ".json" ? OptionSyntax::json : OptionSyntax::toml;
}

Json read_option_tree(const std::filesystem::path& file) {
  const OptionSyntax syntax = syntax_of(file);
  if (syntax == OptionSyntax::toml) return tree_of(parse_toml(file), file.string());
  const std::string source = file.string(), text = read_file(file, kMaxBytes);
  if (syntax == OptionSyntax::yaml) return parse_yaml(text, source);
  if (syntax == OptionSyntax::script) return tree_of_script(text, source);
  Json tree = parse_json_in_order(text, source);
  check_usage(tree.is_object(), "{}: expected an object of options", source);
  return tree;
}

std::vector<std::string> words_of(const Json& value) {
  if (value.is_null()) return {};
  if (value.is_string()) return {value.get<std::string>()};
  if (value.is_boolean()) return {value.get<bool>() ? "true" : "false"};
  if (value.is_number_unsigned()) return {fmt::format("{}", value.get<uint64_t>())};
  if (value.is_number_integer()) return {fmt::format("{}", value.get<int64_t>())};
  if (value.is_number()) return {fmt::format("{}", value.get<double>())};
  std::vector<std::string> all;
  for (const Json& item : value)
    for (std::string& word : words_of(item)) all.push_back(std::move(word));
  return all;
}

}  // namespace wick
