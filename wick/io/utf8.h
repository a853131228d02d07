// Whether bytes are UTF-8, for texts of files that are read and written.
#pragma once

#include <utf8proc.h>

#include <string_view>

namespace wick {

inline bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    utf8proc_int32_t character;
    const auto* start = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const utf8proc_ssize_t bytes = utf8proc_iterate(start, utf8proc_ssize_t(text.size()), &character);
    if (bytes <= 0) return false;
    text.remove_prefix(size_t(bytes));
  }
  return true;
}

}  // namespace wick
