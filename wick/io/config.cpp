#include "wick/io/config.h"

#include <fmt/format.h>

#include <utility>

#include "wick/io/file.h"
#include "wick/io/json.h"

namespace wick {

using nlohmann::json;

struct Config::Value {
  json object;

  const json& at(const std::string& key, const std::string& where) const {
    const json* found = find_member(object, key);
    check(found, "{}: the key is missing", where);
    return *found;
  }
};

namespace {

int64_t checked_integer(const json& value, const std::string& where, IntegerRange range) {
  const auto integer = as<int64_t>(value, where);
  if (integer < range.min || integer > range.max)
    fail_json(where, fmt::format("an integer from {} to {}", range.min, range.max), value);
  return integer;
}

std::vector<int64_t> checked_integers(const json& list, const std::string& where, IntegerRange range) {
  std::vector<int64_t> values;
  for (size_t i = 0; i < list.size(); ++i)
    values.push_back(checked_integer(list[i], fmt::format("{}[{}]", where, i), range));
  return values;
}

}  // namespace

Config::Config(std::string source, std::string prefix, std::shared_ptr<const Value> value)
    : source_(std::move(source)), prefix_(std::move(prefix)), value_(std::move(value)) {}

Config Config::parse(std::string_view text, const std::string& source) {
  json value = parse_json(text, source, JsonNumbers::python);
  as_object(value, source, "a JSON object");
  return Config(source, "", std::make_shared<Value>(Value{std::move(value)}));
}

Config Config::read(const std::filesystem::path& path) {
  return parse(read_file(path, kMaxConfigBytes), path.string());
}

bool Config::has(const std::string& key) const { return find_member(value_->object, key); }
bool Config::mentions(const std::string& key) const { return value_->object.contains(key); }
bool Config::empty() const { return value_->object.empty(); }

int64_t Config::integer(const std::string& key, IntegerRange range) const {
  return checked_integer(value_->at(key, where(key)), where(key), range);
}

double Config::number(const std::string& key, NumberRange range) const {
  const auto number = as<double>(value_->at(key, where(key)), where(key));
  if (number < range.min || number > range.max)
    fail_json(where(key), fmt::format("a number from {} to {}", range.min, range.max), value_->at(key, where(key)));
  return number;
}
bool Config::boolean(const std::string& key) const { return as<bool>(value_->at(key, where(key)), where(key)); }
std::string Config::text(const std::string& key) const {
  return as<std::string>(value_->at(key, where(key)), where(key));
}

int64_t Config::integer_or(const std::string& key, int64_t fallback, IntegerRange range) const {
  return has(key) ? integer(key, range) : fallback;
}
double Config::number_or(const std::string& key, double fallback, NumberRange range) const {
  return has(key) ? number(key, range) : fallback;
}
bool Config::boolean_or(const std::string& key, bool fallback) const { return has(key) ? boolean(key) : fallback; }
std::string Config::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<int64_t> Config::integers(const std::string& key, IntegerRange range) const {
  return checked_integers(as_list(value_->at(key, where(key)), where(key), "a list of integers"), where(key), range);
}

std::vector<int64_t> Config::integer_or_list(const std::string& key, IntegerRange range) const {
  return value_->at(key, where(key)).is_array() ? integers(key, range) : std::vector<int64_t>{integer(key, range)};
}

std::vector<std::string> Config::texts(const std::string& key) const {
  const json& list = as_list(value_->at(key, where(key)), where(key), "a list of strings");
  std::vector<std::string> values;
  for (size_t i = 0; i < list.size(); ++i)
    values.push_back(as<std::string>(list[i], fmt::format("{}[{}]", where(key), i)));
  return values;
}

std::vector<int64_t> Config::integers_or_repeated(const std::string& key, size_t count, IntegerRange range) const {
  if (value_->at(key, where(key)).is_number()) return std::vector<int64_t>(count, integer(key, range));
  const std::string expected = fmt::format("an integer or a list of {}", count);
  const json& list = as_list(value_->at(key, where(key)), where(key), expected);
  check(list.size() == count, "{}: expected {}, found a list of {}", where(key), expected, list.size());
  return checked_integers(list, where(key), range);
}

Config Config::section(const std::string& key) const {
  return Config(source_, prefix_ + key + ".",
                std::make_shared<Value>(Value{as_object(value_->at(key, where(key)), where(key))}));
}

std::string Config::where(const std::string& key) const { return source_ + ": " + prefix_ + key; }

}  // namespace wick
