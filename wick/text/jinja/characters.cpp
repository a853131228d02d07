#include "wick/text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "wick/text/jinja/special_casing.h"

namespace wick::jinja {
namespace {

bool has_one_case(std::string_view text, bool (*is_wanted)(int32_t), bool (*is_other)(int32_t)) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const auto [c, bytes] = code_point_at(text, at);
    if (is_other(c) || is_titlecase(c)) return false;
    found |= is_wanted(c);
    at += bytes;
  }
  return found;
}

utf8proc_category_t category(int32_t c) { return utf8proc_category(c); }

// Whether a character has a case, and whether it is passed over where the context of a capital sigma is looked at
// (Unicode's Cased and Case_Ignorable).
bool is_cased(int32_t c) { return is_upper(c) || is_lower(c) || is_titlecase(c); }

bool is_case_ignorable(int32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027;
  }
}

// The small sigma at the end of a word has a form of its own.
bool is_final_sigma(std::string_view text, size_t at) {
  size_t before = at;
  int32_t c = 0;
  do {
    if (before == 0) return false;
    before = start_before(text, before);
    c = code_point_at(text, before).value;
  } while (is_case_ignorable(c));
  if (!is_cased(c)) return false;
  for (size_t next = at + 2; next < text.size();) {
    const auto [value, bytes] = code_point_at(text, next);
    if (!is_case_ignorable(value)) return !is_cased(value);
    next += bytes;
  }
  return true;
}

void append_upper(std::string& out, int32_t c, bool title) {
  if (const SpecialCasing* row = special_casing(c)) {
    for (const char32_t each : title ? row->title : row->upper)
      if (each) append_code_point(out, int32_t(each));
  } else {
    append_code_point(out, title ? utf8proc_totitle(c) : utf8proc_toupper(c));
  }
}

void append_lower(std::string& out, std::string_view text, size_t at, int32_t c) {
  if (c == 0x130)
    out += "i\u0307";
  else if (c == 0x3a3)
    out += is_final_sigma(text, at) ? "\u03c2" : "\u03c3";
  else
    append_code_point(out, utf8proc_tolower(c));
}

template <class Append>
std::string mapped(std::string_view text, const Append& append) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [value, bytes] = code_point_at(text, at);
    append(out, at, value);
    at += bytes;
  }
  return out;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto lead = uint8_t(text[at]);
  if (lead < 0x80) return {lead, 1};
  utf8proc_int32_t value = 0;
  const auto* start = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  const auto bytes = utf8proc_iterate(start, utf8proc_ssize_t(text.size() - at), &value);
  return bytes > 0 ? CodePoint{value, size_t(bytes)} : CodePoint{0xfffd, 1};
}

void append_code_point(std::string& out, int32_t value) {
  utf8proc_uint8_t encoded[4];
  const auto length = utf8proc_encode_char(value, encoded);
  out.append(reinterpret_cast<const char*>(encoded), size_t(length));
}

size_t byte_of(std::string_view text, size_t code_point) {
  size_t at = 0;
  for (; code_point > 0 && at < text.size(); --code_point) at += code_point_at(text, at).bytes;
  return at;
}

size_t start_before(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (uint8_t(text[at]) & 0xc0) == 0x80);
  return at;
}

bool is_python_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_line_end(int32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_letter(int32_t c) { return category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_LO; }

bool is_decimal(int32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_digit(int32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  constexpr std::array<std::pair<int32_t, int32_t>, 21> digits{
      {{0xb2, 0xb3},      {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
       {0x2074, 0x2079},  {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
       {0x24ea, 0x24ea},  {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
       {0x278a, 0x2792},  {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a},
       {0x1f10b, 0x1f10c}}};
  return is_decimal(c) || std::any_of(digits.begin(), digits.end(),
                                      [&](const auto& range) { return c >= range.first && c <= range.second; });
}

bool is_numeric(int32_t c) {
  constexpr std::u32string_view ideographs = U"一二三四五六七八九十百千万亿兆零〇壹贰叁肆伍陆柒捌玖拾両两億萬";
  return (category(c) >= UTF8PROC_CATEGORY_ND && category(c) <= UTF8PROC_CATEGORY_NO) ||
         ideographs.find(char32_t(c)) != ideographs.npos;
}

bool is_upper(int32_t c) { return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216f); }

bool is_lower(int32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba || (c >= 0x2170 && c <= 0x217f);
}

bool is_titlecase(int32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_printable(int32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool is_word(int32_t c) { return c == '_' || is_letter(c) || is_numeric(c); }

bool is_name_start(int32_t c) { return c == '_' || is_letter(c) || category(c) == UTF8PROC_CATEGORY_NL; }

std::string upper_case(std::string_view text) {
  return mapped(text, [](std::string& out, size_t, int32_t c) { append_upper(out, c, false); });
}

std::string python_lower_case(std::string_view text) {
  return mapped(text, [&](std::string& out, size_t at, int32_t c) { append_lower(out, text, at, c); });
}

std::string capitalize(std::string_view text) {
  return mapped(text, [&](std::string& out, size_t at, int32_t c) {
    at == 0 ? append_upper(out, c, true) : append_lower(out, text, at, c);
  });
}

std::string title_case(std::string_view text) {
  bool inside = false;
  return mapped(text, [&](std::string& out, size_t at, int32_t c) {
    inside ? append_lower(out, text, at, c) : append_upper(out, c, true);
    inside = is_cased(c);
  });
}

std::string swap_case(std::string_view text) {
  return mapped(text, [&](std::string& out, size_t at, int32_t c) {
    if (is_upper(c)) return append_lower(out, text, at, c);
    is_lower(c) ? append_upper(out, c, false) : append_code_point(out, c);
  });
}

bool is_all_upper(std::string_view text) { return has_one_case(text, is_upper, is_lower); }
bool is_all_lower(std::string_view text) { return has_one_case(text, is_lower, is_upper); }

}  // namespace wick::jinja
