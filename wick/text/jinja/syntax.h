// What a template says, as trees. Built once by the parser, read by the Machine.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "wick/text/jinja/value.h"

namespace wick::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Block = std::vector<std::unique_ptr<Statement>>;

struct CallSyntax {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr list, dict;  // *list, **dict
};

struct Expression {
  enum class Kind {
    constant,
    name,           // text
    namespace_ref,  // text.constant, in assignments
    list,
    tuple,
    dict,       // keys and values in turn
    attribute,  // parts[0].text
    item,       // parts[0][parts[1]]
    slice,      // start, stop, step, each may be null
    call,       // parts[0](call)
    filter,     // parts[0] | text(call); parts[0] is null at the head of a filter block
    test,       // parts[0] is text(call)
    unary,      // text: not, -, +
    binary,     // text: + - * / // % **
    concat,     // ~
    compare,    // parts[0], then for each of `operators` an operand
    logical,    // text: and, or
    choice,     // parts[1] if parts[0] else parts[2], which may be null
  };

  Kind kind;
  int line = 0;
  std::string text{};
  Value constant{};
  std::vector<ExpressionPtr> parts{};
  std::vector<std::string> operators{};
  CallSyntax call{};
  int depth = 1;  // of this tree
};

// The parameters and body of a macro or of a call block.
struct MacroSyntax {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Block body;
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
};

struct Statement {
  enum class Kind {
    text,          // text
    print,         // expressions
    set,           // target = expressions[0]
    set_block,     // target = body, through the filters expressions[0] if there are any
    loop,          // for target in expressions[0] if expressions[1]: body, else: other
    condition,     // for each of expressions a body, and other
    with,          // names[i] = expressions[i]: body
    macro,         // macro
    call_block,    // expressions[0] is a call that gets `macro` as its caller
    filter_block,  // expressions[0] applied to body
    generation,    // macro
    break_loop,
    continue_loop,
  };

  Kind kind;
  int line = 0;
  std::string text{};
  ExpressionPtr target{};
  std::vector<ExpressionPtr> targets{}, expressions{};
  std::vector<Block> bodies{};
  Block other{};
  std::shared_ptr<MacroSyntax> macro{};
  bool uses_loop = false, recursive = false;
};

}  // namespace wick::jinja
