#include "wick/io/quote.h"

#include <fmt/core.h>

namespace wick {

std::string quote(std::string_view text) {
  constexpr size_t kLongest = 200;
  std::string quoted = "\"";
  for (char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      quoted += fmt::format("\\x{:02x}", byte);
    else
      quoted += c;
  }
  return quoted + (text.size() > kLongest ? "...\"" : "\"");
}

}  // namespace wick
