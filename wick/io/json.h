// JSON files by way of nlohmann::json, for the .cpp files of rooms that link it; public headers use io/config.h.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/config.h"

namespace wick {

// Python's json writes NaN, Infinity and -Infinity, and reads them; JSON has no such numbers.
enum class JsonNumbers { finite, python };

inline constexpr size_t kMaxConfigBytes = size_t{16} << 20;

// Throws Error naming the file and the line if the text is not JSON, if parsers would read it in different ways (a
// duplicate key in an object, a NUL byte), or if it nests more than 100 deep.
nlohmann::json parse_json(std::string_view text, const std::string& source, JsonNumbers numbers = JsonNumbers::finite);
// The same; objects keep the order of their keys.
nlohmann::ordered_json parse_json_in_order(std::string_view text, const std::string& source);
// A file that Python wrote: a config, an index. Throws Error too if it is longer than `max_bytes`.
nlohmann::json read_json(const std::filesystem::path& path, size_t max_bytes = kMaxConfigBytes);
// The indented text of such a file.
std::string to_text(nlohmann::json value);

// The part of nlohmann's message that helps a user: "at line 2, column 5: ...". One short line.
std::string describe(const nlohmann::json::exception& problem);

// The member of an object; none if it has no such member, or null there.
const nlohmann::json* find_member(const nlohmann::json& object, const std::string& key);
// The same, where it has to be there; throws Error too if `object` is none.
const nlohmann::json& member(const nlohmann::json& object, const std::string& key, const std::string& source);

// Throws Error: "`where` should be `expected`, found ...". `where` names the file and the key.
[[noreturn]] void fail_json(const std::string& where, std::string_view expected, const nlohmann::json& found);

// The value if it is a list, or an object; else throws fail_json().
const nlohmann::json& as_list(const nlohmann::json& value, const std::string& where,
                              std::string_view expected = "a list");
const nlohmann::json& as_object(const nlohmann::json& value, const std::string& where,
                                std::string_view expected = "an object");

// The value as bool, an integer type that holds it, a finite floating-point number, or std::string.
template <class T>
T as(const nlohmann::json& value, const std::string& where) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) fail_json(where, "true or false", value);
    return value.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!value.is_number_integer()) fail_json(where, "an integer", value);
    const bool fits =
        value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>()) : std::in_range<T>(value.get<int64_t>());
    if (!fits)
      fail_json(where,
                fmt::format("an integer from {} to {}", std::numeric_limits<T>::min(), std::numeric_limits<T>::max()),
                value);
    return value.get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number() || !(std::abs(value.get<double>()) <= std::numeric_limits<T>::max()))
      fail_json(where, "a finite number", value);
    return value.get<T>();
  } else {
    static_assert(std::is_same_v<T, std::string>, "as<T>: bool, integers, floating-point numbers and std::string");
    if (!value.is_string()) fail_json(where, "a string", value);
    return value.get<std::string>();
  }
}

template <class T>
T get(const nlohmann::json& object, const std::string& key, const std::string& source) {
  return as<T>(member(object, key, source), source + ": " + key);
}

}  // namespace wick
