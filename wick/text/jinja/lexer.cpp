#include "wick/text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "wick/io/quote.h"
#include "wick/text/jinja/characters.h"

namespace wick::jinja {
namespace {

constexpr std::array<std::string_view, 26> kSymbols{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                    "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                    ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

// Newlines of any kind become \n, and one at the end goes (keep_trailing_newline is off).
std::string with_unix_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      out += '\n';
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// The text that a string literal stands for: Python's escapes.
class Unescape {
 public:
  Unescape(std::string_view literal, int line) : text_(literal), line_(line) {}

  std::string all() {
    while (at_ < text_.size()) {
      if (text_[at_] != '\\')
        out_ += text_[at_++];
      else
        escape();
    }
    return std::move(out_);
  }

 private:
  void escape() {
    const char kind = text_[++at_];  // the lexer leaves no backslash at the end
    ++at_;
    constexpr std::string_view letters = "\\'\"abfnrtv", meanings = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t known = letters.find(kind); known != letters.npos)
      out_ += meanings[known];
    else if (kind >= '0' && kind <= '7')
      --at_, code(digits(8, 1, 3));
    else if (kind == 'x' || kind == 'u' || kind == 'U')
      code(digits(16, kind == 'x' ? 2 : kind == 'u' ? 4 : 8, kind == 'x' ? 2 : kind == 'u' ? 4 : 8));
    else if (kind == 'N')
      throw SyntaxProblem{line_, "expected no \\N in a string, found one"};
    else if (kind != '\n')
      (out_ += '\\') += kind;
  }

  uint32_t digits(uint32_t base, size_t least, size_t most) {
    uint32_t value = 0;
    size_t count = 0;
    for (; count < most && at_ < text_.size(); ++count, ++at_) {
      const char c = char(text_[at_] | 0x20);
      const uint32_t digit = is_ascii_digit(text_[at_]) ? uint32_t(text_[at_] - '0')
                             : c >= 'a' && c <= 'f'     ? uint32_t(c - 'a' + 10)
                                                        : base;
      if (digit >= base) break;
      value = value * base + digit;
    }
    if (count < least)
      throw SyntaxProblem{line_, fmt::format("expected {} digits in an escape, found {}", least, count)};
    return value;
  }

  void code(uint32_t value) {
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      throw SyntaxProblem{line_, fmt::format("expected a character in an escape, found U+{:04X}", value)};
    append_code_point(out_, int32_t(value));
  }

  std::string_view text_;
  int line_;
  size_t at_ = 0;
  std::string out_;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> all() {
    while (at_ < source_.size()) data();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  bool has(std::string_view text) const { return source_.substr(at_).starts_with(text); }

  void add(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text)}); }

  void advance(size_t bytes) {
    line_ += int(std::count(source_.begin() + at_, source_.begin() + at_ + bytes, '\n'));
    if (bytes > 0) line_starts_ = source_[at_ + bytes - 1] == '\n';
    at_ += bytes;
  }

  void skip_spaces() { advance(spaces_at(at_) - at_); }

  size_t spaces_at(size_t at) const {
    while (at < source_.size()) {
      const auto [value, bytes] = code_point_at(source_, at);
      if (!is_python_space(value)) break;
      at += bytes;
    }
    return at;
  }

  // The bytes of text that stay before a tag that has this sign behind its opening.
  size_t kept(std::string_view text, char sign, bool is_print) const {
    if (sign == '-') {
      while (!text.empty()) {
        const size_t last = start_before(text, text.size());
        if (!is_python_space(code_point_at(text, last).value)) break;
        text = text.substr(0, last);
      }
      return text.size();
    }
    if (sign == '+' || is_print) return text.size();
    const size_t line = text.rfind('\n') + 1;
    if (line == 0 && !line_starts_) return text.size();
    return spaces_at(size_t(text.data() - source_.data()) + line) >= size_t(text.data() - source_.data()) + text.size()
               ? line
               : text.size();
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : ' ';
  }

  // Text up to the next tag, and the tag.
  void data() {
    size_t tag = source_.find('{', at_);
    while (tag != source_.npos &&
           (tag + 1 == source_.size() || std::string_view("{%#").find(source_[tag + 1]) == std::string_view::npos))
      tag = source_.find('{', tag + 1);
    if (tag == source_.npos) {
      add(TokenKind::data, source_.substr(at_));
      return advance(source_.size() - at_);
    }
    const char kind = source_[tag + 1], sign = sign_at(tag + 2);
    text_before(tag, sign, kind == '{');
    if (kind == '#') return comment(sign);
    if (kind == '%' && raw()) return;
    add(kind == '{' ? TokenKind::print_begin : TokenKind::block_begin, "");
    advance(sign == ' ' ? 2 : 3);
    tag_content(kind == '{');
  }

  void text_before(size_t tag, char sign, bool is_print) {
    const std::string_view text = source_.substr(at_, tag - at_);
    if (const size_t bytes = kept(text, sign, is_print)) add(TokenKind::data, text.substr(0, bytes));
    advance(text.size());
  }

  void comment(char sign) {
    advance(sign == ' ' ? 2 : 3);
    const size_t end = source_.find("#}", at_);
    if (end == source_.npos) throw SyntaxProblem{line_, "expected #} at the end of a comment, found none"};
    const char last = end > at_ ? source_[end - 1] : ' ';
    advance(end - at_);
    close(2, last);
  }

  // Behind a tag that ends in `bytes` characters; `sign` stood before them.
  void close(size_t bytes, char sign) {
    advance(bytes);
    if (sign == '-')
      skip_spaces();
    else if (sign != '+' && has("\n"))
      advance(1);
  }

  // `{% word %}` at a place: where it ends, and the sign before its end.
  struct Tag {
    size_t end;
    char sign;
  };
  std::optional<Tag> tag_of(size_t at, std::string_view word, bool may_plus) const {
    at = spaces_at(at + (sign_at(at + 2) == ' ' ? 2 : 3));
    if (!source_.substr(at).starts_with(word)) return std::nullopt;
    at = spaces_at(at + word.size());
    const char sign = sign_at(at);
    if (sign == '+' && !may_plus) return std::nullopt;
    if (sign != ' ') ++at;
    if (!source_.substr(at).starts_with("%}")) return std::nullopt;
    return Tag{at, sign};
  }

  // {% raw %}, whose content is all text up to {% endraw %}.
  bool raw() {
    const auto begin = tag_of(at_, "raw", false);
    if (!begin) return false;
    advance(begin->end + 2 - at_);
    if (begin->sign == '-') skip_spaces();
    for (size_t tag = source_.find("{%", at_); tag != source_.npos; tag = source_.find("{%", tag + 1)) {
      const auto end = tag_of(tag, "endraw", true);
      if (!end) continue;
      text_before(tag, sign_at(tag + 2), false);
      advance(end->end - at_);
      close(2, end->sign);
      return true;
    }
    throw SyntaxProblem{line_, "expected {% endraw %}, found none"};
  }

  // Tokens up to the end of the tag.
  void tag_content(bool is_print) {
    const std::string_view end = is_print ? "}}" : "%}";
    while (at_ < source_.size()) {
      skip_spaces();
      if (at_ == source_.size()) break;
      if (open_.empty()) {
        const char sign = has("-") || (has("+") && !is_print) ? source_[at_] : ' ';
        if (source_.substr(at_ + (sign == ' ' ? 0 : 1)).starts_with(end)) {
          add(is_print ? TokenKind::print_end : TokenKind::block_end, "");
          if (!is_print) return close(sign == ' ' ? 2 : 3, sign);
          return close(sign == ' ' ? 2 : 3, sign == ' ' ? '+' : sign);  // no newline goes behind a print
        }
      }
      token();
    }
  }

  void token() {
    const char c = source_[at_];
    if (is_ascii_digit(c)) return number();
    if (c == '\'' || c == '"') return string();
    if (is_name_start(code_point_at(source_, at_).value)) return name();
    for (const std::string_view symbol : kSymbols) {
      if (!has(symbol)) continue;
      balance(symbol[0]);
      add(TokenKind::symbol, symbol);
      return advance(symbol.size());
    }
    const size_t bytes = code_point_at(source_, at_).bytes;
    throw SyntaxProblem{line_, fmt::format("expected an expression, found {}", quote(source_.substr(at_, bytes)))};
  }

  void balance(char symbol) {
    constexpr std::string_view openings = "([{", closings = ")]}";
    if (const size_t which = openings.find(symbol); which != openings.npos) open_ += closings[which];
    if (closings.find(symbol) == closings.npos) return;
    if (open_.empty()) throw SyntaxProblem{line_, fmt::format("expected the end of the tag, found '{}'", symbol)};
    if (open_.back() != symbol)
      throw SyntaxProblem{line_, fmt::format("expected '{}', found '{}'", open_.back(), symbol)};
    open_.pop_back();
  }

  void name() {
    size_t end = at_;
    while (end < source_.size()) {
      const auto [value, bytes] = code_point_at(source_, end);
      if (!is_word(value)) break;
      end += bytes;
    }
    add(TokenKind::name, source_.substr(at_, end - at_));
    advance(end - at_);
  }

  void string() {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != source_[at_]) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) throw SyntaxProblem{line_, "expected the end of a string, found none"};
    add(TokenKind::string, Unescape(source_.substr(at_ + 1, end - at_ - 1), line_).all());
    advance(end + 1 - at_);
  }

  // The end of digits with single underscores between them.
  template <class IsDigit>
  size_t digits_at(size_t at, const IsDigit& is_digit_of_base) const {
    while (at < source_.size()) {
      const size_t next = at + (source_[at] == '_' ? 1 : 0);
      if (next == source_.size() || !is_digit_of_base(source_[next])) break;
      at = next + 1;
    }
    return at;
  }

  void number() {
    const auto based = [&](std::string_view digits) {
      const size_t end = digits_at(at_ + 2, [&](char c) { return digits.find(c) != digits.npos; });
      return end > at_ + 2 ? end : 0;
    };
    const char prefix = source_[at_] == '0' && at_ + 1 < source_.size() ? char(source_[at_ + 1] | 0x20) : ' ';
    size_t end = prefix == 'x'   ? based("0123456789abcdefABCDEF")
                 : prefix == 'o' ? based("01234567")
                 : prefix == 'b' ? based("01")
                                 : 0;
    TokenKind kind = TokenKind::integer;
    if (end == 0) {
      end = digits_at(at_, is_ascii_digit);
      if (const size_t real = real_end(end); real > 0)
        end = real, kind = TokenKind::real;
      else if (source_[at_] == '0')
        end = digits_at(at_, [](char c) { return c == '0'; });
    }
    std::string text(source_.substr(at_, end - at_));
    std::erase(text, '_');
    add(kind, text);
    advance(end - at_);
  }

  // The end of a float whose integer part ends at `at`; 0 if there is no fraction and no exponent.
  size_t real_end(size_t at) const {
    if (at_ > 0 && source_[at_ - 1] == '.') return 0;
    size_t end = 0;
    if (at + 1 < source_.size() && source_[at] == '.' && is_ascii_digit(source_[at + 1]))
      end = at = digits_at(at + 1, is_ascii_digit);
    if (at < source_.size() && (source_[at] | 0x20) == 'e') {
      const size_t digits = at + (sign_at(at + 1) == ' ' ? 1 : 2);
      if (digits < source_.size() && is_ascii_digit(source_[digits])) end = digits_at(digits, is_ascii_digit);
    }
    return end;
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // the last piece ended in a newline
  std::string open_;         // the closings of brackets that are open
  std::vector<Token> tokens_;
};

}  // namespace

std::string Token::describe() const {
  switch (kind) {
    case TokenKind::data:
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::print_begin:
      return "{{";
    case TokenKind::print_end:
      return "}}";
    case TokenKind::block_begin:
      return "{%";
    case TokenKind::block_end:
      return "%}";
    default:
      return quote(text);
  }
}

std::vector<Token> tokens_of(std::string_view source) { return Lexer(with_unix_newlines(source)).all(); }

}  // namespace wick::jinja
