// The tokens of a template, as Jinja's lexer cuts them with trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace wick::jinja {

enum class TokenKind { data, print_begin, print_end, block_begin, block_end, name, string, integer, real, symbol, end };

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // of strings and data the content

  bool is_symbol(std::string_view symbol) const { return kind == TokenKind::symbol && text == symbol; }
  bool is_name(std::string_view name) const { return kind == TokenKind::name && text == name; }
  std::string describe() const;
};

// The last token is the end. Throws SyntaxProblem. `source` is valid UTF-8.
std::vector<Token> tokens_of(std::string_view source);

struct SyntaxProblem {
  int line;
  std::string message;
};

}  // namespace wick::jinja
