#include <charconv>
#include <cstdlib>

#include "wick/io/quote.h"
#include "wick/text/jinja/parser_state.h"

namespace wick::jinja {

using Kind = Expression::Kind;

ExpressionPtr Parser::make(Kind kind, int line, std::string text) const {
  return std::make_unique<Expression>(Expression{.kind = kind, .line = line, .text = std::move(text)});
}

// Operators in a row make deep trees, though the parser does not recurse for them.
ExpressionPtr Parser::deepened(ExpressionPtr made) const {
  int deepest = 0;
  const auto look = [&](const ExpressionPtr& part) {
    if (part) deepest = std::max(deepest, part->depth);
  };
  for (const auto& part : made->parts) look(part);
  for (const auto& part : made->call.positional) look(part);
  for (const auto& [name, part] : made->call.named) look(part);
  look(made->call.list), look(made->call.dict);
  made->depth = deepest + 1;
  if (made->depth > kMaxChain) fail_at(made->line, fmt::format("at most {} operators in a row", kMaxChain), "more");
  return made;
}

ExpressionPtr Parser::joined(Kind kind, int line, std::string text, ExpressionPtr left, ExpressionPtr right) const {
  auto made = make(kind, line, std::move(text));
  made->parts.push_back(std::move(left));
  made->parts.push_back(std::move(right));
  return deepened(std::move(made));
}

// One expression, or a tuple of several without parentheses; `end` is a name that may follow.
ExpressionPtr Parser::tuple(bool with_choice, std::string_view end, bool in_parentheses, bool targets,
                            bool with_namespace) {
  const auto is_end = [&] {
    return now().kind == TokenKind::print_end || now().kind == TokenKind::block_end || now().is_symbol(")") ||
           (!end.empty() && now().is_name(end));
  };
  auto made = make(Kind::tuple, now().line);
  bool is_tuple = false;
  while (!is_end()) {
    made->parts.push_back(targets ? primary(with_namespace) : expression(with_choice));
    if (!skip_symbol(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !made->parts.empty()) return std::move(made->parts[0]);
  if (!is_tuple && !in_parentheses) fail_expected("an expression");
  return deepened(std::move(made));
}

ExpressionPtr Parser::target(bool with_namespace, std::string_view end) {
  auto made = tuple(false, end, false, true, with_namespace);
  check_target(*made);
  return made;
}

ExpressionPtr Parser::loop_target() {
  const Saved loops(loops_, loops_ + 1);
  return target(false, "in");
}

void Parser::check_target(const Expression& made) const {
  if (made.kind == Kind::name && made.text == "loop" && loops_ > 0) fail_at(made.line, "a name to assign to", "loop");
  if (made.kind == Kind::name || made.kind == Kind::namespace_ref) return;
  if (made.kind != Kind::tuple) fail_at(made.line, "a name to assign to", "another expression");
  for (const auto& part : made.parts) check_target(*part);
}

ExpressionPtr Parser::expression(bool with_choice) {
  const Nesting nesting(*this);
  return with_choice ? choice() : logical("or");
}

// A choice without `else` may be the value of another one: the loop takes those from left to right.
ExpressionPtr Parser::choice() {
  int line = now().line;
  auto value = logical("or");
  while (skip_name("if")) {
    auto made = make(Kind::choice, line);
    made->parts.push_back(logical("or"));
    made->parts.push_back(std::move(value));
    made->parts.push_back(skip_name("else") ? expression() : nullptr);
    value = deepened(std::move(made));
    line = now().line;
  }
  return value;
}

ExpressionPtr Parser::logical(std::string_view word) {
  const bool is_or = word == "or";
  int line = now().line;
  auto left = is_or ? logical("and") : negation();
  while (skip_name(word)) {
    auto right = is_or ? logical("and") : negation();
    left = joined(Kind::logical, line, std::string(word), std::move(left), std::move(right));
    line = now().line;
  }
  return left;
}

ExpressionPtr Parser::negation() {
  if (!now().is_name("not")) return comparison();
  const Nesting nesting(*this);
  auto made = make(Kind::unary, take().line, "not");
  made->parts.push_back(negation());
  return deepened(std::move(made));
}

std::string Parser::comparison_operator() {
  if (now().is_name("not") && ahead().is_name("in")) {
    take(), take();
    return "not in";
  }
  const bool is_operator = now().kind == TokenKind::symbol ? now().text == "==" || now().text == "!=" ||
                                                                 now().text[0] == '<' || now().text[0] == '>'
                                                           : now().is_name("in");
  return is_operator ? take().text : "";
}

ExpressionPtr Parser::comparison() {
  const int line = now().line;
  auto left = sum();
  std::string symbol = comparison_operator();
  if (symbol.empty()) return left;
  auto made = make(Kind::compare, line);
  made->parts.push_back(std::move(left));
  for (; !symbol.empty(); symbol = comparison_operator()) {
    made->operators.push_back(symbol);
    made->parts.push_back(sum());
  }
  return deepened(std::move(made));
}

ExpressionPtr Parser::chain(std::initializer_list<std::string_view> symbols, ExpressionPtr (Parser::*operand)()) {
  int line = now().line;
  auto left = (this->*operand)();
  while (now().kind == TokenKind::symbol && std::find(symbols.begin(), symbols.end(), now().text) != symbols.end()) {
    std::string symbol = take().text;
    auto right = (this->*operand)();
    left = joined(Kind::binary, line, std::move(symbol), std::move(left), std::move(right));
    line = now().line;
  }
  return left;
}

ExpressionPtr Parser::concatenation() {
  auto made = make(Kind::concat, now().line);
  do made->parts.push_back(product());
  while (skip_symbol("~"));
  return made->parts.size() == 1 ? std::move(made->parts[0]) : deepened(std::move(made));
}

ExpressionPtr Parser::unary(bool with_filters) {
  ExpressionPtr made;
  if (now().is_symbol("-") || now().is_symbol("+")) {
    const Nesting nesting(*this);
    const int line = now().line;
    made = make(Kind::unary, line, take().text);
    made->parts.push_back(unary(false));
    made = deepened(std::move(made));
  } else {
    made = primary();
  }
  made = postfix(std::move(made));
  return with_filters ? filters_and_tests(std::move(made)) : std::move(made);
}

ExpressionPtr Parser::postfix(ExpressionPtr made) {
  while (true) {
    if (now().is_symbol(".") || now().is_symbol("["))
      made = subscript(std::move(made));
    else if (now().is_symbol("("))
      made = call(std::move(made));
    else
      return made;
  }
}

ExpressionPtr Parser::filters_and_tests(ExpressionPtr made) {
  while (true) {
    if (now().is_symbol("|"))
      made = filters(std::move(made), false);
    else if (now().is_name("is"))
      made = test(std::move(made));
    else if (now().is_symbol("("))
      made = call(std::move(made));
    else
      return made;
  }
}

ExpressionPtr Parser::primary(bool with_namespace) {
  switch (now().kind) {
    case TokenKind::name:
      return name(with_namespace);
    case TokenKind::string:
      return strings();
    case TokenKind::integer:
    case TokenKind::real:
      return number();
    default:
      break;
  }
  if (now().is_symbol("[")) return list();
  if (now().is_symbol("{")) return dict();
  if (!skip_symbol("(")) fail_expected("an expression");
  auto made = tuple(true, {}, true);
  want_symbol(")");
  return made;
}

ExpressionPtr Parser::name(bool with_namespace) {
  const Token& token = take();
  const std::string& text = token.text;
  if (text == "true" || text == "True") return constant(true, token.line);
  if (text == "false" || text == "False") return constant(false, token.line);
  if (text == "none" || text == "None") return constant({}, token.line);
  if (with_namespace && skip_symbol(".")) {
    auto made = make(Kind::namespace_ref, token.line, text);
    made->constant = std::make_shared<const Str>(Marked{want_name("an attribute")}, false, nullptr);
    return made;
  }
  uses_loop_ |= text == "loop";
  uses_caller_ |= text == "caller";
  uses_kwargs_ |= text == "kwargs";
  uses_varargs_ |= text == "varargs";
  return make(Kind::name, token.line, text);
}

ExpressionPtr Parser::constant(Value value, int line) const {
  auto made = make(Kind::constant, line);
  made->constant = std::move(value);
  return made;
}

ExpressionPtr Parser::number() {
  const Token& token = take();
  if (token.kind == TokenKind::real) return constant(std::strtod(token.text.c_str(), nullptr), token.line);
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && (digits[1] | 0x20) > '9') {
    base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
    digits.remove_prefix(2);
  }
  int64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (code != std::errc()) fail_at(token.line, "an integer of 64 bits", quote(token.text));
  return constant(value, token.line);
}

// Strings side by side are one.
ExpressionPtr Parser::strings() {
  const int line = now().line;
  std::string text;
  while (now().kind == TokenKind::string) text += take().text;
  return constant(std::make_shared<const Str>(Marked{std::move(text)}, false, nullptr), line);
}

ExpressionPtr Parser::list() {
  auto made = make(Kind::list, take().line);
  while (!now().is_symbol("]")) {
    made->parts.push_back(expression());
    if (!now().is_symbol("]")) want_symbol(",");
  }
  take();
  return deepened(std::move(made));
}

ExpressionPtr Parser::dict() {
  auto made = make(Kind::dict, take().line);
  while (!now().is_symbol("}")) {
    made->parts.push_back(expression());
    want_symbol(":");
    made->parts.push_back(expression());
    if (!now().is_symbol("}")) want_symbol(",");
  }
  take();
  return deepened(std::move(made));
}

ExpressionPtr Parser::subscript(ExpressionPtr subject) {
  const Token& token = take();
  if (token.text == ".") {
    if (now().kind == TokenKind::integer) return joined(Kind::item, token.line, "", std::move(subject), number());
    auto made = make(Kind::attribute, token.line, want_name("a name or a number"));
    made->parts.push_back(std::move(subject));
    return deepened(std::move(made));
  }
  std::vector<ExpressionPtr> indices;
  while (!now().is_symbol("]")) {
    if (!indices.empty()) want_symbol(",");
    indices.push_back(index());
  }
  take();
  if (indices.size() == 1) return joined(Kind::item, token.line, "", std::move(subject), std::move(indices[0]));
  auto several = make(Kind::tuple, token.line);
  several->parts = std::move(indices);
  return joined(Kind::item, token.line, "", std::move(subject), deepened(std::move(several)));
}

// An index or a slice.
ExpressionPtr Parser::index() {
  auto made = make(Kind::slice, now().line);
  const auto is_part = [&] { return !now().is_symbol(":") && !now().is_symbol("]") && !now().is_symbol(","); };
  if (!now().is_symbol(":")) {
    made->parts.push_back(expression());
    if (!now().is_symbol(":")) return std::move(made->parts[0]);
  } else {
    made->parts.push_back(nullptr);
  }
  take();
  made->parts.push_back(is_part() ? expression() : nullptr);
  made->parts.push_back(skip_symbol(":") && is_part() ? expression() : nullptr);
  return deepened(std::move(made));
}

CallSyntax Parser::arguments() {
  CallSyntax call;
  const int line = now().line;
  const auto ensure = [&](bool ok) {
    if (!ok) fail_at(line, "arguments by position, then by name", "another order");
  };
  want_symbol("(");
  while (!now().is_symbol(")")) {
    if (skip_symbol("*")) {
      ensure(!call.list && !call.dict);
      call.list = expression();
    } else if (skip_symbol("**")) {
      ensure(!call.dict);
      call.dict = expression();
    } else if (now().kind == TokenKind::name && ahead().is_symbol("=")) {
      ensure(!call.dict);
      std::string key = take().text;
      take();
      for (const auto& [other, value] : call.named)
        if (other == key) fail_at(line, "each argument once", quote(key) + " again");
      call.named.emplace_back(std::move(key), expression());
      if (call.named.size() > kMaxArguments) fail_expected(fmt::format("at most {} arguments by name", kMaxArguments));
    } else {
      ensure(!call.list && !call.dict && call.named.empty());
      call.positional.push_back(expression());
    }
    if (!now().is_symbol(")")) want_symbol(",");
  }
  take();
  return call;
}

ExpressionPtr Parser::call(ExpressionPtr callee) {
  auto made = make(Kind::call, now().line);
  made->parts.push_back(std::move(callee));
  made->call = arguments();
  return deepened(std::move(made));
}

std::string Parser::dotted_name() {
  std::string text = want_name();
  while (skip_symbol(".")) text += "." + want_name();
  return text;
}

ExpressionPtr Parser::filters(ExpressionPtr subject, bool at_name) {
  while (at_name || skip_symbol("|")) {
    at_name = false;
    auto made = make(Kind::filter, now().line);
    made->text = dotted_name();
    if (now().is_symbol("(")) made->call = arguments();
    made->parts.push_back(std::move(subject));
    subject = deepened(std::move(made));
  }
  return subject;
}

ExpressionPtr Parser::test(ExpressionPtr subject) {
  const int line = take().line;
  const bool negated = skip_name("not");
  auto made = make(Kind::test, line);
  made->text = dotted_name();
  const auto is_operand = [&] {
    if (now().kind == TokenKind::name) return !now().is_name("else") && !now().is_name("or") && !now().is_name("and");
    return now().kind == TokenKind::string || now().kind == TokenKind::integer || now().kind == TokenKind::real ||
           now().is_symbol("[") || now().is_symbol("{");
  };
  if (now().is_symbol("(")) {
    made->call = arguments();
  } else if (is_operand()) {
    if (now().is_name("is")) fail_expected("one test");
    made->call.positional.push_back(postfix(primary()));
  }
  made->parts.push_back(std::move(subject));
  made = deepened(std::move(made));
  if (!negated) return made;
  auto negative = make(Kind::unary, line, "not");
  negative->parts.push_back(std::move(made));
  return deepened(std::move(negative));
}

}  // namespace wick::jinja
