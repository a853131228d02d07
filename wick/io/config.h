// A model's config.json: an object whose values are asked for by name and type.
//
// Every getter throws one Error that names the file and the key, the value expected and the one found. A null counts as
// absent, as in the configs of diffusers and transformers. Keys that are not asked for are ignored, and may hold the
// NaN and Infinity that Python's json writes; a duplicate key is an Error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

// Bounds that an integer must keep, both inclusive.
struct IntegerRange {
  int64_t min = std::numeric_limits<int64_t>::min(), max = std::numeric_limits<int64_t>::max();
};
inline constexpr IntegerRange kPositive{1, std::numeric_limits<int32_t>::max()};
// Bounds of models' sizes, far above those of any model and so that no product or sum of them overflows: an extent of a
// tensor, and a number of parts that are made one after the other (blocks of a network).
inline constexpr IntegerRange kExtent{1, 1 << 21}, kPartCount{1, 4096}, kPartCountOrNone{0, 4096};
struct NumberRange {
  double min = std::numeric_limits<double>::lowest(), max = std::numeric_limits<double>::max();
};
inline constexpr NumberRange kEpsilon{0, 1};  // the constant that norms add to a variance

class Config {
 public:
  static Config read(const std::filesystem::path& path);
  static Config parse(std::string_view json, const std::string& source);  // `source` names the file in errors

  const std::string& source() const { return source_; }
  bool has(const std::string& key) const;       // present and not null
  bool mentions(const std::string& key) const;  // present, possibly null
  bool empty() const;                           // without any key

  int64_t integer(const std::string& key, IntegerRange range = {}) const;
  int64_t integer_or(const std::string& key, int64_t fallback, IntegerRange range = {}) const;
  double number(const std::string& key, NumberRange range = {}) const;  // finite; integers count as numbers
  double number_or(const std::string& key, double fallback, NumberRange range = {}) const;
  bool boolean(const std::string& key) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;

  std::vector<int64_t> integers(const std::string& key, IntegerRange range = {}) const;
  // A list of integers, or one alone (the `eos_token_id` of transformers).
  std::vector<int64_t> integer_or_list(const std::string& key, IntegerRange range = {}) const;
  std::vector<std::string> texts(const std::string& key) const;
  // A list of `count` integers, or one integer that stands for all of them (diffusers' `attention_head_dim`).
  std::vector<int64_t> integers_or_repeated(const std::string& key, size_t count, IntegerRange range = {}) const;

  Config section(const std::string& key) const;  // a nested object

 private:
  struct Value;
  Config(std::string source, std::string prefix, std::shared_ptr<const Value> value);
  std::string where(const std::string& key) const;

  std::string source_, prefix_;  // prefix: "" or "text_config."
  std::shared_ptr<const Value> value_;
};

}  // namespace wick
