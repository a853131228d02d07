// Characters as Python's str knows them, over utf8proc. Texts are valid UTF-8, positions are bytes unless said
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace wick::jinja {

struct CodePoint {
  int32_t value;
  size_t bytes;
};
CodePoint code_point_at(std::string_view text, size_t at);
void append_code_point(std::string& out, int32_t value);   // a Unicode scalar value
size_t byte_of(std::string_view text, size_t code_point);  // the size of the text if it has no such character
size_t start_before(std::string_view text, size_t at);     // where the character ends that `at` follows, `at` > 0

bool is_python_space(int32_t c);  // str.isspace
bool is_line_end(int32_t c);      // str.splitlines
bool is_letter(int32_t c);        // str.isalpha
bool is_decimal(int32_t c);       // str.isdecimal
bool is_digit(int32_t c);         // str.isdigit
bool is_numeric(int32_t c);       // str.isnumeric
bool is_upper(int32_t c);
bool is_lower(int32_t c);
bool is_titlecase(int32_t c);
bool is_printable(int32_t c);  // str.isprintable: repr shows it as itself
bool is_word(int32_t c);       // \w
bool is_name_start(int32_t c);

// Whether there are letters with case, all of it this one: str.isupper, str.islower.
bool is_all_upper(std::string_view text);
bool is_all_lower(std::string_view text);

// Full case mappings, which may change the number of characters.
std::string upper_case(std::string_view text);
std::string python_lower_case(std::string_view text);
std::string capitalize(std::string_view text);  // the first character in title case, the rest in lower case
std::string title_case(std::string_view text);  // str.title
std::string swap_case(std::string_view text);

}  // namespace wick::jinja
