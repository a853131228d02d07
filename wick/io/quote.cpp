#include "wick/io/quote.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

namespace wick {
namespace {

bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0); }

// Hidden characters beside the control characters, by Unicode 15.
bool is_hidden(char32_t c) {
  struct Range {
    char32_t first, last;
  };
  static constexpr Range kHidden[] = {
      {0xad, 0xad},       {0x34f, 0x34f},     {0x600, 0x605},     {0x61c, 0x61c},     {0x6dd, 0x6dd},
      {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x115f, 0x1160},   {0x17b4, 0x17b5},
      {0x180b, 0x180f},   {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0x3164, 0x3164},
      {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},   {0xfff0, 0xfffb},   {0x110bd, 0x110bd},
      {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}};
  const Range* range = std::lower_bound(std::begin(kHidden), std::end(kHidden), c,
                                        [](const Range& each, char32_t value) { return each.last < value; });
  return range != std::end(kHidden) && c >= range->first;
}

template <class Shown>
std::string escaped(std::string_view text, Shown is_shown) {
  std::string result;
  while (true) {
    const auto plain = std::ranges::find_if_not(text, [](char c) { return c >= 0x20 && c < 0x7f; });
    result.append(text.begin(), plain);
    text.remove_prefix(size_t(plain - text.begin()));
    if (text.empty()) return result;
    utf8proc_int32_t character;
    const auto* start = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto bytes = utf8proc_iterate(start, utf8proc_ssize_t(text.size()), &character);  // negative: not UTF-8
    const auto taken = size_t(std::max<utf8proc_ssize_t>(bytes, 1));
    if (bytes > 0 && is_shown(char32_t(character)))
      result += text.substr(0, taken);
    else if (bytes > 1)
      result += fmt::format("\\u{{{:04x}}}", uint32_t(character));
    else
      result += fmt::format("\\x{:02x}", uint8_t(text[0]));
    text.remove_prefix(taken);
  }
}

}  // namespace

std::string printable(std::string_view name) {
  return escaped(name, [](char32_t c) { return !is_control(c) && !is_hidden(c); });
}

std::string printable_text(std::string_view text) {
  return escaped(text, [](char32_t c) { return !is_control(c) || c == '\n' || c == '\t'; });
}

std::string excerpt(std::string_view text) {
  constexpr size_t kLongest = 200;
  size_t length = std::min(text.size(), kLongest);
  while (length > 0 && length < text.size() && (uint8_t(text[length]) & 0xc0) == 0x80) --length;  // whole characters
  return printable(text.substr(0, length)) + (text.size() > length ? "..." : "");
}

std::string quote(std::string_view text) { return '"' + excerpt(text) + '"'; }

std::string first_few(const std::vector<std::string>& names, size_t few) {
  const size_t shown = std::min(names.size(), few);
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + ptrdiff_t(shown), ", "),
                     shown < names.size() ? ", …" : "");
}

}  // namespace wick
