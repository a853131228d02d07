#include "wick/io/byte_size.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace wick {

std::optional<size_t> parse_byte_size(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                                                            {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return {};
  std::string_view unit = text.substr(size_t(end - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, bytes] : kUnits)
    if (unit == name && number > 0 && number * bytes < 0x1p60) return size_t(std::llround(number * bytes));
  return {};
}

}  // namespace wick
