// Expressions.
#include <algorithm>

#include "wick/io/quote.h"
#include "wick/text/jinja/deeper.h"
#include "wick/text/jinja/filters.h"
#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {

Value Machine::evaluate(const Expression& expression) {
  using Kind = Expression::Kind;
  const Deeper deeper(*this);
  budget.step();
  line_ = expression.line;
  switch (expression.kind) {
    case Kind::constant:
      return expression.constant;
    case Kind::name:
      return lookup(expression.text);
    case Kind::list:
    case Kind::tuple:
      return evaluate_list(expression);
    case Kind::dict:
      return evaluate_dict(expression);
    case Kind::attribute:
      return attribute_or_item(*this, evaluate(*expression.parts[0]), expression.text);
    case Kind::item:
      return evaluate_item(expression);
    case Kind::call:
      return evaluate_call(expression);
    case Kind::filter:
      return evaluate_filter(expression, nullptr);
    case Kind::test:
      return evaluate_test(expression);
    case Kind::unary:
      return evaluate_unary(expression);
    case Kind::binary: {
      const Value left = evaluate(*expression.parts[0]);
      return binary(*this, expression.text, left, evaluate(*expression.parts[1]));
    }
    case Kind::concat:
      return evaluate_concat(expression);
    case Kind::compare:
      return evaluate_compare(expression);
    case Kind::logical:
      return evaluate_logical(expression);
    case Kind::choice:
      return evaluate_choice(expression);
    case Kind::slice:
    case Kind::namespace_ref:
      break;
  }
  refuse("expected an index, found a slice among several");
}

Value Machine::evaluate_list(const Expression& expression) {
  std::vector<Value> values;
  values.reserve(expression.parts.size());
  for (const auto& part : expression.parts) values.push_back(evaluate(*part));
  return expression.kind == Expression::Kind::list ? list(std::move(values)) : tuple(std::move(values));
}

Value Machine::evaluate_dict(const Expression& expression) {
  Dict::Pairs pairs;
  for (size_t i = 0; i < expression.parts.size(); i += 2) {
    const Value key = evaluate(*expression.parts[i]);
    put(*this, pairs, key, evaluate(*expression.parts[i + 1]));
  }
  return dict(std::move(pairs));
}

Value Machine::evaluate_item(const Expression& expression) {
  const Value value = evaluate(*expression.parts[0]);
  const Expression& key = *expression.parts[1];
  if (key.kind != Expression::Kind::slice) return item_or_attribute(*this, value, evaluate(key));
  const auto part = [&](size_t i) { return key.parts[i] ? evaluate(*key.parts[i]) : Value(); };
  const Value start = part(0), stop = part(1);
  return slice(*this, value, start, stop, part(2));
}

Arguments Machine::evaluate_arguments(const CallSyntax& call) {
  Arguments arguments;
  for (const auto& argument : call.positional) arguments.positional.push_back(evaluate(*argument));
  for (const auto& [name, argument] : call.named) arguments.named.emplace_back(Marked{name}, evaluate(*argument));
  if (call.list) {
    Iteration items(*this, evaluate(*call.list));
    for (Value item; items.next(item);) {
      budget.room(2 * arguments.positional.size() * sizeof(Value));
      arguments.positional.push_back(std::move(item));
    }
  }
  if (call.dict) {
    const Value more = evaluate(*call.dict);
    require_defined(more);
    require(more.is<Mapping>(), "expected a dict behind **, found {}", type_name(more));
    require(more.get<Mapping>()->pairs.size() <= kMaxArguments, "expected at most {} arguments behind **, found {}",
            kMaxArguments, more.get<Mapping>()->pairs.size());
    for (const auto& [key, value] : more.get<Mapping>()->pairs) {
      require(key.is_string(), "expected names behind **, found {}", type_name(key));
      for (const auto& [name, other] : arguments.named)
        require(name.bytes != key.bytes(), "expected each argument once, found {} again", quote(name.bytes));
      budget.room(2 * key.get<String>()->memory());
      arguments.named.emplace_back(*key.get<String>(), value);
    }
  }
  return arguments;
}

Value Machine::evaluate_call(const Expression& expression) {
  const Value callee = evaluate(*expression.parts[0]);
  Arguments arguments = evaluate_arguments(expression.call);
  line_ = expression.line;
  return call(callee, std::move(arguments));
}

// `subject` is given where the expression is the filter of a block.
Value Machine::evaluate_filter(const Expression& expression, const Value* subject) {
  const Expression* inner = expression.parts[0].get();
  Value value = !inner ? *subject : subject ? evaluate_filter(*inner, subject) : evaluate(*inner);
  Arguments arguments = evaluate_arguments(expression.call);
  line_ = expression.line;
  return apply_filter(*this, expression.text, std::move(value), std::move(arguments));
}

Value Machine::evaluate_test(const Expression& expression) {
  const Value value = evaluate(*expression.parts[0]);
  Arguments arguments = evaluate_arguments(expression.call);
  line_ = expression.line;
  return apply_test(*this, expression.text, value, std::move(arguments));
}

Value Machine::evaluate_unary(const Expression& expression) {
  const Value value = evaluate(*expression.parts[0]);
  if (expression.text == "not") return !truth(value);
  return expression.text == "-" ? negative(value) : positive(value);
}

Value Machine::evaluate_concat(const Expression& expression) {
  Text out(*this);
  for (const auto& part : expression.parts) add_str(*this, out, evaluate(*part));
  return out.value();
}

Value Machine::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.parts[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1]);
    if (!compare(*this, expression.operators[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Machine::evaluate_logical(const Expression& expression) {
  Value left = evaluate(*expression.parts[0]);
  const bool decides = truth(left) == (expression.text == "or");
  return decides ? left : evaluate(*expression.parts[1]);
}

Value Machine::evaluate_choice(const Expression& expression) {
  if (truth(evaluate(*expression.parts[0]))) return evaluate(*expression.parts[1]);
  if (expression.parts[2]) return evaluate(*expression.parts[2]);
  return undefined(budget, "expected the condition of an if without else to hold, found that it does not");
}

}  // namespace wick::jinja
