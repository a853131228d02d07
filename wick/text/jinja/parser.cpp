#include "wick/text/jinja/parser.h"

#include "wick/io/quote.h"
#include "wick/text/jinja/parser_state.h"

namespace wick::jinja {

Block Parser::body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Block block;
  while (now().kind != TokenKind::end) {
    if (now().kind == TokenKind::data) {
      block.push_back(make(Statement::Kind::text));
      block.back()->text = take().text;
    } else if (now().kind == TokenKind::print_begin) {
      take();
      block.push_back(make(Statement::Kind::print));
      block.back()->expressions.push_back(tuple(true));
      want(TokenKind::print_end, "}}");
    } else {
      want(TokenKind::block_begin, "{%");
      if (now().kind == TokenKind::name && std::find(ends.begin(), ends.end(), now().text) != ends.end()) return block;
      block.push_back(statement());
      want(TokenKind::block_end, "%}");
    }
  }
  if (ends.size() > 0) fail_expected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
  return block;
}

// A body behind the head of a statement, up to a tag that it leaves to be read.
Block Parser::statements(std::initializer_list<std::string_view> ends) {
  skip_symbol(":");
  want(TokenKind::block_end, "%}");
  return body(ends);
}

Block Parser::closed_body(std::string_view end) {
  Block block = statements({end});
  take();
  return block;
}

std::unique_ptr<Statement> Parser::make(Statement::Kind kind) const {
  return std::make_unique<Statement>(Statement{.kind = kind, .line = now().line});
}

std::unique_ptr<Statement> Parser::statement() {
  if (now().kind != TokenKind::name) fail_expected("the name of a tag");
  const std::string& tag = now().text;
  if (tag == "set") return parse_set();
  if (tag == "for") return parse_for();
  if (tag == "if") return parse_if();
  if (tag == "with") return parse_with();
  if (tag == "print") return parse_print();
  if (tag == "macro") return parse_macro();
  if (tag == "call") return parse_call_block();
  if (tag == "filter") return parse_filter_block();
  if (tag == "generation") return parse_generation();
  if (tag == "break") return parse_loop_control(Statement::Kind::break_loop);
  if (tag == "continue") return parse_loop_control(Statement::Kind::continue_loop);
  fail_expected(
      "a tag of chat templates (set, for, if, with, print, macro, call, filter, generation, break, continue)");
}

std::unique_ptr<Statement> Parser::parse_set() {
  auto made = make(Statement::Kind::set);
  take();
  made->target = target(true);
  if (skip_symbol("=")) {
    made->expressions.push_back(tuple(true));
    return made;
  }
  made->kind = Statement::Kind::set_block;
  if (now().is_symbol("|")) made->expressions.push_back(filters(nullptr, false));
  made->bodies.push_back(closed_body("endset"));
  return made;
}

std::unique_ptr<Statement> Parser::parse_for() {
  auto made = make(Statement::Kind::loop);
  take();
  made->target = loop_target();
  if (!skip_name("in")) fail_expected("'in'");
  made->expressions.push_back(tuple(false, "recursive"));
  made->expressions.push_back(skip_name("if") ? expression() : nullptr);
  made->recursive = skip_name("recursive");
  {
    const Saved loops(loops_, loops_ + 1);
    const bool outer = std::exchange(uses_loop_, false);
    made->bodies.push_back(statements({"else", "endfor"}));
    made->uses_loop = uses_loop_ || made->recursive;
    uses_loop_ |= outer;
  }
  if (take().text == "else") made->other = closed_body("endfor");
  return made;
}

std::unique_ptr<Statement> Parser::parse_if() {
  auto made = make(Statement::Kind::condition);
  std::string tag;
  do {
    take();
    made->expressions.push_back(tuple(false));
    made->bodies.push_back(statements({"elif", "else", "endif"}));
  } while (now().is_name("elif"));
  if (take().text == "else") made->other = closed_body("endif");
  return made;
}

std::unique_ptr<Statement> Parser::parse_with() {
  auto made = make(Statement::Kind::with);
  take();
  while (now().kind != TokenKind::block_end) {
    if (!made->targets.empty()) want_symbol(",");
    made->targets.push_back(target(false));
    want_symbol("=");
    made->expressions.push_back(expression());
  }
  made->bodies.push_back(closed_body("endwith"));
  return made;
}

std::unique_ptr<Statement> Parser::parse_print() {
  auto made = make(Statement::Kind::print);
  take();
  while (now().kind != TokenKind::block_end) {
    if (!made->expressions.empty()) want_symbol(",");
    made->expressions.push_back(expression());
  }
  return made;
}

void Parser::parameters(MacroSyntax& macro) {
  want_symbol("(");
  while (!now().is_symbol(")")) {
    if (!macro.parameters.empty()) want_symbol(",");
    macro.parameters.push_back(want_name("a parameter"));
    if (macro.parameters.size() > kMaxArguments) fail_expected(fmt::format("at most {} parameters", kMaxArguments));
    if (skip_symbol("="))
      macro.defaults.push_back(expression());
    else if (!macro.defaults.empty())
      fail_expected("a default as the parameter before has one");
  }
  want_symbol(")");
}

void Parser::macro_body(MacroSyntax& macro, std::string_view end) {
  const Saved loops(loops_, 0);
  const Saved caller(uses_caller_, false), kwargs(uses_kwargs_, false), varargs(uses_varargs_, false);
  macro.body = closed_body(end);
  const auto is_parameter = [&](std::string_view name) {
    return std::find(macro.parameters.begin(), macro.parameters.end(), name) != macro.parameters.end();
  };
  macro.uses_caller = uses_caller_;
  macro.uses_kwargs = uses_kwargs_ && !is_parameter("kwargs");
  macro.uses_varargs = uses_varargs_ && !is_parameter("varargs");
}

std::unique_ptr<Statement> Parser::parse_macro() {
  auto made = make(Statement::Kind::macro);
  take();
  made->macro = std::make_shared<MacroSyntax>();
  made->macro->name = want_name("a macro's name");
  parameters(*made->macro);
  macro_body(*made->macro, "endmacro");
  return made;
}

std::unique_ptr<Statement> Parser::parse_call_block() {
  auto made = make(Statement::Kind::call_block);
  take();
  made->macro = std::make_shared<MacroSyntax>();
  if (now().is_symbol("(")) parameters(*made->macro);
  made->expressions.push_back(expression());
  if (made->expressions[0]->kind != Expression::Kind::call) fail_at(made->line, "a call", "another expression");
  macro_body(*made->macro, "endcall");
  return made;
}

std::unique_ptr<Statement> Parser::parse_generation() {
  auto made = make(Statement::Kind::generation);
  take();
  made->macro = std::make_shared<MacroSyntax>();
  macro_body(*made->macro, "endgeneration");
  return made;
}

std::unique_ptr<Statement> Parser::parse_filter_block() {
  auto made = make(Statement::Kind::filter_block);
  take();
  made->expressions.push_back(filters(nullptr, true));
  made->bodies.push_back(closed_body("endfilter"));
  return made;
}

std::unique_ptr<Statement> Parser::parse_loop_control(Statement::Kind kind) {
  auto made = make(kind);
  if (loops_ == 0) fail_expected("a loop around it");
  take();
  return made;
}

Block parse(std::string_view source) { return Parser(tokens_of(source)).all(); }

}  // namespace wick::jinja
