// "1 row", "2 rows": a count with its noun, for messages.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace wick {

inline std::string noun_of(uint64_t count, std::string_view noun) {
  return std::string(noun) + (count == 1 ? "" : "s");
}

struct Count {  // formatted only with its message, so that a check that holds costs nothing
  uint64_t count;
  std::string_view noun;
};

template <class Integer>
Count count_of(Integer count, std::string_view noun) {
  return {uint64_t(count), noun};
}

}  // namespace wick

// Not by way of format_to(), which would compile all of fmt into each file.
template <>
struct fmt::formatter<wick::Count> : fmt::formatter<std::string> {
  template <class Context>
  auto format(const wick::Count& c, Context& context) const {
    return fmt::formatter<std::string>::format(std::to_string(c.count) + " " + wick::noun_of(c.count, c.noun), context);
  }
};
