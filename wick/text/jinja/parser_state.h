// The parser's state, shared by statements (parser.cpp) and expressions (parse_expressions.cpp).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/text/jinja/lexer.h"
#include "wick/text/jinja/syntax.h"

namespace wick::jinja {

// Sets a member for as long as it lives.
template <class T>
class Saved {
 public:
  Saved(T& member, T value) : member_(member), before_(member) { member = value; }
  ~Saved() { member_ = before_; }

 private:
  T& member_;
  T before_;
};

// Reads tokens from left to right, by one function for each rule of the grammar.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block all() { return body({}); }

 private:
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }

  [[noreturn]] void fail_expected(std::string_view expected) const { fail_at(now().line, expected, now().describe()); }
  [[noreturn]] void fail_at(int line, std::string_view expected, std::string_view found) const {
    throw SyntaxProblem{line, fmt::format("expected {}, found {}", expected, found)};
  }

  bool skip_name(std::string_view name) { return now().is_name(name) && (take(), true); }
  bool skip_symbol(std::string_view symbol) { return now().is_symbol(symbol) && (take(), true); }
  void want_symbol(std::string_view symbol) {
    if (!skip_symbol(symbol)) fail_expected(fmt::format("'{}'", symbol));
  }
  void want(TokenKind kind, std::string_view description) {
    if (now().kind != kind) fail_expected(description);
    take();
  }
  std::string want_name(std::string_view description = "a name") {
    if (now().kind != TokenKind::name) fail_expected(description);
    return take().text;
  }

  // Counts expressions and blocks in each other.
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser.nesting_ > kMaxSyntaxDepth)
        parser.fail_at(parser.now().line, fmt::format("expressions and blocks at most {} deep", kMaxSyntaxDepth),
                       "more");
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  // Statements.
  Block body(std::initializer_list<std::string_view> ends);
  std::unique_ptr<Statement> statement();
  Block statements(std::initializer_list<std::string_view> ends);
  std::unique_ptr<Statement> make(Statement::Kind kind) const;
  Block closed_body(std::string_view end);
  std::unique_ptr<Statement> parse_set();
  std::unique_ptr<Statement> parse_for();
  std::unique_ptr<Statement> parse_if();
  std::unique_ptr<Statement> parse_with();
  std::unique_ptr<Statement> parse_print();
  std::unique_ptr<Statement> parse_macro();
  std::unique_ptr<Statement> parse_call_block();
  std::unique_ptr<Statement> parse_generation();
  std::unique_ptr<Statement> parse_filter_block();
  std::unique_ptr<Statement> parse_loop_control(Statement::Kind kind);
  void parameters(MacroSyntax& macro);
  void macro_body(MacroSyntax& macro, std::string_view end);

  // Expressions.
  ExpressionPtr make(Expression::Kind kind, int line, std::string text = {}) const;
  ExpressionPtr deepened(ExpressionPtr expression) const;
  ExpressionPtr joined(Expression::Kind kind, int line, std::string text, ExpressionPtr left,
                       ExpressionPtr right) const;
  ExpressionPtr tuple(bool with_choice, std::string_view end = {}, bool in_parentheses = false, bool targets = false,
                      bool with_namespace = false);
  ExpressionPtr target(bool with_namespace, std::string_view end = {});
  ExpressionPtr loop_target();
  void check_target(const Expression& expression) const;
  ExpressionPtr expression(bool with_choice = true);
  ExpressionPtr choice();
  ExpressionPtr logical(std::string_view word);
  ExpressionPtr negation();
  ExpressionPtr comparison();
  std::string comparison_operator();
  ExpressionPtr chain(std::initializer_list<std::string_view> symbols, ExpressionPtr (Parser::*operand)());
  ExpressionPtr sum() { return chain({"+", "-"}, &Parser::concatenation); }
  ExpressionPtr concatenation();
  ExpressionPtr product() { return chain({"*", "/", "//", "%"}, &Parser::power); }
  ExpressionPtr power() { return chain({"**"}, &Parser::filtered_unary); }
  ExpressionPtr filtered_unary() { return unary(true); }
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr postfix(ExpressionPtr expression);
  ExpressionPtr filters_and_tests(ExpressionPtr expression);
  ExpressionPtr primary(bool with_namespace = false);
  ExpressionPtr name(bool with_namespace);
  ExpressionPtr constant(Value value, int line) const;
  ExpressionPtr number();
  ExpressionPtr strings();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr subscript(ExpressionPtr expression);
  ExpressionPtr index();
  CallSyntax arguments();
  ExpressionPtr call(ExpressionPtr callee);
  ExpressionPtr filters(ExpressionPtr subject, bool at_name);
  ExpressionPtr test(ExpressionPtr subject);
  std::string dotted_name();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // that `break` may end
  bool uses_loop_ = false, uses_caller_ = false, uses_kwargs_ = false, uses_varargs_ = false;
};

}  // namespace wick::jinja
