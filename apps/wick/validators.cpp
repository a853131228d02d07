#include "validators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>
#include <system_error>
#include <utility>

#include "picture_output.h"
#include "wick/core/dtype_names.h"
#include "wick/core/error.h"
#include "wick/io/image.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"

namespace wick::cli {
namespace {

namespace fs = std::filesystem;

template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end) return {};
  return value;
}

// `validate` returns the complaint, empty if there is none.
CLI::Validator validator(std::function<std::string(std::string&)> validate) {
  return CLI::Validator(std::move(validate), "");
}

// It rewrites its input, so it goes to Option::transform: the canonical form keeps CLI11's own conversion from reading
// 010 as eight.
template <class Accepts>
CLI::Validator number(const std::string& expected, Accepts accepts) {
  return validator([=](std::string& text) -> std::string {
    const std::optional<double> value = parse<double>(text);
    if (!value || !accepts(*value)) return fmt::format("expected {}, found '{}'", expected, text);
    text = fmt::format("{}", *value);
    return {};
  });
}

constexpr std::array kWritten = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0,
                                 DType::q6_k, DType::q5_k, DType::q4_k, DType::q4_0};

bool is_one_of(const fs::path& path, const fs::path& input) {
  std::error_code ignored;
  if (!fs::is_directory(input, ignored)) return fs::equivalent(path, input, ignored);
  for (fs::recursive_directory_iterator entry(input, ignored), end; entry != end; entry.increment(ignored))
    if (std::error_code none; !entry->is_directory(none) && fs::equivalent(path, entry->path(), none)) return true;
  return false;
}

// For a path that exists.
void check_may_go(const Output& o) {
  check(o.overwrite, "{} {}: the file exists; choose another name, or write over it with --overwrite", o.flag,
        o.path.string());
  for (const fs::path& input : o.inputs)
    check(!is_one_of(o.path, input), "{} {}: is {}, which the command reads and never writes over; choose another name",
          o.flag, o.path.string(),
          fs::is_directory(input) ? "a file of the folder " + input.string() : "the file " + input.string());
}

// A file, or a folder of PEFT's or diffusers'.
void check_lora(const fs::path& path) {
  std::error_code ignored;
  check(fs::exists(path, ignored), "--lora {}: no such file or folder", path.string());
  if (!fs::is_directory(path, ignored) || fs::exists(lora_weights(path), ignored)) return;
  fail(
      "--lora {}: expected a LoRA's file or folder, found a folder without adapter_model.safetensors or "
      "pytorch_lora_weights.safetensors{}",
      path.string(), fs::exists(lora_weights(path / "lora"), ignored) ? "; its folder `lora` has one" : "");
}

// A number, perhaps with the name of a part before it, "unet=0.8".
std::pair<std::string, float> parse_strength(const std::string& argument, const std::string& text) {
  constexpr float kStrongest = 100;
  const size_t equals = text.find('=');
  const std::string number = equals == text.npos ? text : text.substr(equals + 1);
  const std::optional<float> value = parse<float>(number);
  check_usage(value && std::abs(*value) <= kStrongest && equals != 0,
              "--lora {}: expected FILE:STRENGTH or FILE:PART=STRENGTH,... with finite numbers from -{} to {}, found "
              "'{}'",
              argument, kStrongest, kStrongest, text);
  return {equals == text.npos ? "" : text.substr(0, equals), *value};
}

// FILE, FILE:STRENGTH or FILE:STRENGTH,PART=STRENGTH,...; a file whose own name ends so is found first.
LoraFile parse_lora(const std::string& argument) {
  std::error_code ignored;
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos || fs::exists(argument, ignored)) {
    check_lora(argument);
    return {.path = argument};
  }
  LoraFile lora{.path = argument.substr(0, colon)};
  check_lora(lora.path);
  for (size_t begin = colon + 1, end = 0; end != argument.npos; begin = end + 1) {
    end = argument.find(',', begin);
    const auto [part, strength] = parse_strength(argument, argument.substr(begin, end - begin));
    if (!part.empty()) {
      check_usage(lora.parts.emplace(part, strength).second, "--lora {}: has two strengths of {}", argument, part);
      continue;
    }
    check_usage(begin == colon + 1, "--lora {}: expected the strength of all parts first, and found another one",
                argument);
    lora.strength = strength;
  }
  return lora;
}

void check_parts(const LoraFile& lora, const std::vector<std::string>& parts) {
  for (const auto& [part, strength] : lora.parts) {
    check_usage(!parts.empty(), "--lora {}: a language model has no part {}; expected one strength", lora.path.string(),
                quote(part));
    check_usage(std::ranges::find(parts, part) != parts.end(), "--lora {}: this model has no part {}; expected {}{}",
                lora.path.string(), quote(part), fmt::join(parts, ", "), did_you_mean(part, parts));
  }
}

}  // namespace

CLI::Validator integer_in(int64_t min, int64_t max) {
  return validator([=](std::string& text) -> std::string {
    const std::optional<int64_t> value = parse<int64_t>(text);
    if (value && min <= *value && *value <= max) {
      text = fmt::format("{}", *value);
      return {};
    }
    // The message names a very large bound only if the number exceeds it.
    const bool bounded =
        max < std::numeric_limits<int32_t>::max() || parse<double>(text).value_or(double(min)) >= double(max);
    return fmt::format("expected an integer {}, found '{}'",
                       bounded ? fmt::format("from {} to {}", min, max) : fmt::format("of at least {}", min), text);
  });
}

CLI::Validator number_in(double min, double max) {
  return number(fmt::format("a number from {} to {}", min, max),
                [=](double value) { return std::isfinite(value) && min <= value && value <= max; });
}

CLI::Validator number_above(double min, double max) {
  const std::string limit = max == std::numeric_limits<double>::max() ? "" : fmt::format(" and at most {}", max);
  return number(fmt::format("a finite number greater than {}{}", min, limit),
                [=](double value) { return std::isfinite(value) && min < value && value <= max; });
}

CLI::Validator not_empty() {
  return validator([](const std::string& text) { return text.empty() ? "expected a text, found none" : ""; });
}

CLI::Validator image_file_or_folder() {
  return validator([](const std::string& text) -> std::string {
    if (is_image_name(text) || is_folder(text)) return {};
    return fmt::format("expected a name that ends in {}, or a folder (one that ends in / is made), found '{}'",
                       kWrittenImages, text);
  });
}

CLI::Validator one_of(const std::vector<std::string>& names) {
  return validator([=](const std::string& text) -> std::string {
    if (std::find(names.begin(), names.end(), text) != names.end()) return {};
    return fmt::format("expected {}, found '{}'{}", fmt::join(names, ", "), text, did_you_mean(text, names));
  });
}

void set_choices(CLI::Option* option, const std::vector<std::string>& names) {
  option->type_name(fmt::format("{}", fmt::join(names, "|")))->check(one_of(names));
}

void set_dtypes(CLI::Option* option, const std::vector<std::string>& names) {
  const auto rename = [](std::string& text) -> std::string {
    text = own_dtype_name(text);
    return {};
  };
  // CLI11 runs the transformation before the check.
  option->type_name(fmt::format("{}", fmt::join(names, "|")))->check(one_of(names))->transform(validator(rename));
}

std::vector<std::string> written_dtypes() {
  std::vector<std::string> names;
  for (const DType dtype : kWritten) names.emplace_back(name_of(dtype));
  return names;
}

std::optional<DType> parse_dtype(const std::string& name) {
  const auto found =
      std::find_if(kWritten.begin(), kWritten.end(), [&](DType dtype) { return name_of(dtype) == name; });
  return found == kWritten.end() ? std::nullopt : std::optional(*found);
}

void check_output_file(const Output& o) {
  std::error_code ignored;
  const std::string name = o.path.string();
  check_usage(!name.empty(), "{}: expected the name of a file, found ''", o.flag);
  check(o.path.has_filename() && !fs::is_directory(o.path, ignored), "{} {}: expected a file, found a directory",
        o.flag, name);
  const bool exists = fs::exists(o.path, ignored);
  check(!exists || fs::is_regular_file(o.path, ignored), "{} {}: expected a file, found what is not a regular one",
        o.flag, name);
  const fs::path folder = o.path.has_parent_path() ? o.path.parent_path() : fs::path(".");
  check(fs::exists(folder, ignored), "{} {}: the folder {} does not exist", o.flag, name, folder.string());
  check(fs::is_directory(folder, ignored), "{} {}: expected a folder, found the file {}", o.flag, name,
        folder.string());
  check(access(folder.c_str(), W_OK) == 0, "{} {}: the folder {} is not writable", o.flag, name, folder.string());
  if (exists) check_may_go(o);
}

void check_output_path(const Output& o) {
  std::error_code ignored;
  check_usage(!o.path.empty(), "{}: expected the name of a folder or file, found ''", o.flag);
  if (!fs::is_directory(o.path, ignored)) {
    if (fs::exists(o.path, ignored)) check_output_file(o);
    return;
  }
  check(fs::is_empty(o.path, ignored), "{} {}: the folder exists; choose another name, or remove it", o.flag,
        o.path.string());
}

void check_input_file(const fs::path& path, const char* flag) {
  std::error_code ignored;
  check(fs::exists(path, ignored), "{} {}: no such file", flag, path.string());
  check(!fs::is_directory(path, ignored), "{} {}: expected a file, found a directory", flag, path.string());
}

std::vector<LoraFile> parse_loras(const std::vector<std::string>& arguments,
                                  const std::optional<std::vector<std::string>>& parts) {
  std::vector<LoraFile> files;
  for (const std::string& argument : arguments) {
    files.push_back(parse_lora(argument));
    if (parts) check_parts(files.back(), *parts);
  }
  static std::set<std::string> told;  // a file may be named again, in another column
  for (const LoraFile& file : files)
    for (const std::string& note : Adapter::notes_on(file))
      if (told.insert(note).second) fmt::print(stderr, "wick: {}\n", note);
  return files;
}

std::vector<LoraFile> parse_lora_set(const std::string& argument, const std::vector<std::string>& parts) {
  if (argument == "none") return {};
  std::error_code ignored;
  std::vector<std::string> words = {argument};
  for (size_t plus; !fs::exists(words.back(), ignored) && (plus = words.back().find('+')) != std::string::npos;) {
    const std::string rest = words.back().substr(plus + 1);
    words.back().resize(plus);
    words.push_back(rest);
  }
  return parse_loras(words, parts);
}

std::vector<fs::path> inputs_of(const std::vector<LoraFile>& loras, std::vector<fs::path> inputs) {
  for (const LoraFile& lora : loras) inputs.push_back(lora.path);
  return inputs;
}

}  // namespace wick::cli
