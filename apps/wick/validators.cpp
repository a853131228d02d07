#include "validators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>

#include "wick/core/error.h"

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

// A validator may rewrite its input: the canonical form keeps CLI11's own conversion from reading it otherwise.
template <class T, class Accepts>
CLI::Validator number(const std::string& expected, const std::string& type, Accepts accepts) {
  const auto validate = [=](std::string& text) -> std::string {
    const std::optional<T> value = parse<T>(text);
    if (!value || !accepts(*value)) return fmt::format("expected {}, found '{}'", expected, text);
    text = fmt::format("{}", *value);
    return {};
  };
  return CLI::Validator(validate, type);
}

}  // namespace

CLI::Validator integer_in(int64_t min, int64_t max) {
  const std::string expected = max >= std::numeric_limits<int32_t>::max()
                                   ? fmt::format("an integer of at least {}", min)
                                   : fmt::format("an integer from {} to {}", min, max);
  return number<int64_t>(expected, "", [=](int64_t value) { return min <= value && value <= max; });
}

CLI::Validator number_in(double min, double max) {
  return number<double>(fmt::format("a number from {} to {}", min, max), "",
                        [=](double value) { return std::isfinite(value) && min <= value && value <= max; });
}

CLI::Validator number_above(double min, double max) {
  const std::string limit = max == std::numeric_limits<double>::max() ? "" : fmt::format(" and at most {}", max);
  return number<double>(fmt::format("a finite number greater than {}{}", min, limit), "",
                        [=](double value) { return std::isfinite(value) && min < value && value <= max; });
}

CLI::Validator not_empty() {
  const auto validate = [](std::string& text) -> std::string {
    return text.empty() ? "expected a text, found none" : "";
  };
  return CLI::Validator(validate, "");
}

CLI::Validator one_of(const std::vector<std::string>& names) {
  const auto validate = [=](std::string& text) -> std::string {
    if (std::find(names.begin(), names.end(), text) != names.end()) return {};
    return fmt::format("expected {}, found '{}'", fmt::join(names, ", "), text);
  };
  return CLI::Validator(validate, "");
}

namespace {

constexpr std::array kWritten = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0};

}  // namespace

CLI::Validator written_dtype() {
  std::vector<std::string> names;
  for (const DType dtype : kWritten) names.emplace_back(name_of(dtype));
  return one_of(names);
}

std::optional<DType> parse_dtype(const std::string& name) {
  const auto found =
      std::find_if(kWritten.begin(), kWritten.end(), [&](DType dtype) { return name_of(dtype) == name; });
  return found == kWritten.end() ? std::nullopt : std::optional(*found);
}

void check_output_file(const fs::path& path, const char* flag) {
  std::error_code ignored;
  check(!path.filename().empty() && !fs::is_directory(path, ignored), "{} {}: expected a file, found a directory", flag,
        path.string());
  check(!fs::exists(path, ignored) || fs::is_regular_file(path, ignored),
        "{} {}: expected a file, found what is not a regular one", flag, path.string());
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  check(fs::exists(folder, ignored), "{} {}: the folder {} does not exist", flag, path.string(), folder.string());
  check(fs::is_directory(folder, ignored), "{} {}: expected a folder, found the file {}", flag, path.string(),
        folder.string());
  check(access(folder.c_str(), W_OK) == 0, "{} {}: the folder {} is not writable", flag, path.string(),
        folder.string());
}

void check_new_file(const fs::path& path, const char* flag) {
  check_output_file(path, flag);
  check_new_path(path, flag);
}

void check_new_path(const fs::path& path, const char* flag) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  check(!fs::exists(path, ignored) || (folder && fs::is_empty(path, ignored)),
        "{} {}: the {} exists; choose another name, or remove it", flag, path.string(), folder ? "folder" : "file");
}

void check_input_file(const fs::path& path, const char* flag) {
  std::error_code ignored;
  check(fs::exists(path, ignored), "{} {}: no such file", flag, path.string());
  check(!fs::is_directory(path, ignored), "{} {}: expected a file, found a directory", flag, path.string());
}

namespace {

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

}  // namespace

LoraFile parse_lora(const std::string& argument) {
  std::error_code ignored;
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos || fs::exists(argument, ignored)) {
    check_lora(argument);
    return {.path = argument};
  }
  const std::string file = argument.substr(0, colon), strength = argument.substr(colon + 1);
  check_lora(file);
  const std::optional<float> value = parse<float>(strength);
  check(value && std::isfinite(*value), "--lora {}: expected FILE:STRENGTH with a finite number, found '{}'", argument,
        strength);
  return {.path = file, .strength = *value};
}

std::vector<LoraFile> parse_loras(const std::vector<std::string>& arguments) {
  std::vector<LoraFile> files;
  for (const std::string& argument : arguments) files.push_back(parse_lora(argument));
  for (const LoraFile& file : files)
    for (const std::string& note : Adapter::notes_on(file)) fmt::print(stderr, "wick: {}\n", note);
  return files;
}

}  // namespace wick::cli
