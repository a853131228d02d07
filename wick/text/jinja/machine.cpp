// Statements: what a template does.
#include "wick/text/jinja/machine.h"

#include <algorithm>

#include "wick/io/quote.h"
#include "wick/text/jinja/deeper.h"
#include "wick/text/jinja/filters.h"
#include "wick/text/jinja/loop.h"
#include "wick/text/jinja/objects.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {

Value* Scope::find(std::string_view name) {
  for (auto& [other, value] : variables)
    if (other == name) return &value;
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* held = find(name))
    *held = std::move(value);
  else
    variables.emplace_back(name, std::move(value));
}

Machine::Machine(const Limits& limits, const std::tm& now) : budget(limits), now_(now), out_(&root_) {}

Machine::~Machine() {
  for (const ObjectRef& object : kept_) object->clear();
}

void Machine::keep(ObjectRef object) {
  budget.hold(sizeof(ObjectRef));
  kept_.push_back(std::move(object));
}

String Machine::string(std::string text, bool is_markup) { return string(Marked{std::move(text)}, is_markup); }

String Machine::string(Marked text, bool is_markup) {
  budget.room(text.memory());
  return std::make_shared<const Str>(std::move(text), is_markup, &budget);
}

String Machine::part(const Marked& text, std::string_view part, bool is_markup) {
  Text out(*this);
  out.add(text, part);
  return out.value(is_markup);
}

Value Machine::list(std::vector<Value> values) {
  budget.room(values.size() * sizeof(Value));
  return List(std::make_shared<const Items>(std::move(values), &budget));
}

Value Machine::tuple(std::vector<Value> values) {
  budget.room(values.size() * sizeof(Value));
  return Tuple(std::make_shared<const Items>(std::move(values), &budget));
}

Value Machine::dict(Dict::Pairs pairs) {
  budget.room(pairs.size() * 2 * sizeof(Value));
  return std::make_shared<const Dict>(std::move(pairs), &budget);
}

Marked Machine::render(const Block& template_, std::vector<std::pair<std::string_view, Value>> variables) {
  scope_ = std::make_shared<Scope>(Scope{nullptr, std::move(variables)});
  run(template_);
  return std::move(root_);
}

Machine::Flow Machine::run(const Block& block) {
  const Deeper deeper(*this);
  for (const auto& statement : block)
    if (const Flow flow = run(*statement); flow != Flow::on) return flow;
  return Flow::on;
}

Machine::Flow Machine::run(const Statement& statement) {
  using Kind = Statement::Kind;
  budget.step();
  line_ = statement.line;
  switch (statement.kind) {
    case Kind::text:
      write(statement.text);
      return Flow::on;
    case Kind::print:
      for (const auto& expression : statement.expressions) print(evaluate(*expression));
      return Flow::on;
    case Kind::set:
      assign(*statement.target, evaluate(*statement.expressions[0]));
      return Flow::on;
    case Kind::set_block:
      return run_set_block(statement);
    case Kind::loop:
      return run_loop(statement);
    case Kind::condition:
      return run_condition(statement);
    case Kind::with:
      return run_with(statement);
    case Kind::macro:
      budget.hold(512);  // macros may be called when their block has ended
      captured_scopes_.push_back(scope_);
      scope_->set(statement.macro->name, macro_value(statement.macro));
      return Flow::on;
    case Kind::call_block:
      run_call_block(statement);
      return Flow::on;
    case Kind::filter_block:
      return run_filter_block(statement);
    case Kind::generation:
      run_generation(statement);
      return Flow::on;
    case Kind::break_loop:
      return Flow::end;
    case Kind::continue_loop:
      return Flow::next;
  }
  return Flow::on;
}

Machine::Flow Machine::run_condition(const Statement& statement) {
  for (size_t i = 0; i < statement.bodies.size(); ++i)
    if (truth(evaluate(*statement.expressions[i]))) return run(statement.bodies[i]);
  return run(statement.other);
}

// Runs a block in a scope of its own.
template <class Body>
auto Machine::within(std::shared_ptr<Scope> outer, const Body& body) {
  auto before = std::exchange(scope_, std::make_shared<Scope>(Scope{std::move(outer)}));
  auto result = body();
  scope_ = std::move(before);
  return result;
}

// Runs what writes, and takes what it wrote.
template <class Body>
Marked Machine::capture(const Body& body) {
  Marked text;
  Marked* before = std::exchange(out_, &text);
  body();
  out_ = before;
  buffered_ -= text.memory();
  return text;
}

Machine::Flow Machine::run_with(const Statement& statement) {
  const auto outer = scope_;
  return within(outer, [&] {
    for (size_t i = 0; i < statement.targets.size(); ++i) {
      const auto inner = std::exchange(scope_, outer);
      Value value = evaluate(*statement.expressions[i]);
      scope_ = inner;
      assign(*statement.targets[i], value);
    }
    return run(statement.bodies[0]);
  });
}

Machine::Flow Machine::run_set_block(const Statement& statement) {
  Flow flow = Flow::on;
  Marked text = capture([&] { flow = within(scope_, [&] { return run(statement.bodies[0]); }); });
  if (flow != Flow::on) return flow;
  Value value = string(std::move(text));
  if (!statement.expressions.empty()) value = evaluate_filter(*statement.expressions[0], &value);
  assign(*statement.target, value);
  return flow;
}

Machine::Flow Machine::run_filter_block(const Statement& statement) {
  Flow flow = Flow::on;
  Marked text = capture([&] { flow = within(scope_, [&] { return run(statement.bodies[0]); }); });
  if (flow != Flow::on) return flow;
  const Value value = string(std::move(text));
  print(evaluate_filter(*statement.expressions[0], &value));
  return flow;
}

void Machine::run_call_block(const Statement& statement) {
  const Expression& syntax = *statement.expressions[0];
  const Value callee = evaluate(*syntax.parts[0]);
  Arguments arguments = evaluate_arguments(syntax.call);
  arguments.named.emplace_back(Marked{"caller"}, macro_value(statement.macro));
  print(call(callee, std::move(arguments)));
}

// As in transformers, the text is taken to stand behind all that the template has written so far, even where the block
// writes into a macro's text, which comes later.
void Machine::run_generation(const Statement& statement) {
  const Value text = call_macro(*statement.macro, scope_, {});
  generated_.emplace_back(root_length_, root_length_ + text.get<String>()->length);
  print(text);
}

Machine::Flow Machine::run_loop(const Statement& statement) {
  const bool has_run = iterate(statement, scope_, evaluate(*statement.expressions[0]), 0);
  if (has_run || statement.other.empty()) return Flow::on;
  return within(scope_, [&] { return run(statement.other); });
}

// The items that the loop's condition lets pass, each as it is come to.
std::function<bool(Value&)> Machine::puller(const Statement& statement, const std::shared_ptr<Scope>& outer,
                                            const Value& items) {
  auto iteration = std::make_shared<Iteration>(*this, items);
  const Expression* condition = statement.expressions[1].get();
  if (!condition) return [iteration](Value& item) { return iteration->next(item); };
  return [this, iteration, condition, &statement, outer](Value& item) {
    while (iteration->next(item)) {
      const bool passes = within(outer, [&] {
        assign(*statement.target, item);
        return truth(evaluate(*condition));
      });
      if (passes) return true;
    }
    return false;
  };
}

// Whether a turn came to the end of the body: else Jinja runs the block behind `else`.
bool Machine::iterate(const Statement& statement, const std::shared_ptr<Scope>& outer, const Value& items, int depth) {
  const auto known = statement.expressions[1] ? std::nullopt : length_if_any(items);
  const auto loop = std::make_shared<LoopObject>(*this, puller(statement, outer, items), known, depth);
  if (statement.recursive) {
    loop->set_recurse([this, &statement, outer](const Value& inner, int inner_depth) {
      const Deeper deeper(*this);
      return string(capture([&] { iterate(statement, outer, inner, inner_depth); }));
    });
  }
  // At the end, behind an error too, the loop lets go of its values, which may lead back to it.
  const struct AtEnd {
    LoopObject& loop;
    ~AtEnd() { loop.clear(); }
  } at_end{*loop};
  bool has_run = false;
  Flow flow = Flow::on;
  while (flow != Flow::end && loop->advance()) {
    budget.step();
    flow = within(outer, [&] {
      assign(*statement.target, loop->current());
      if (statement.uses_loop) scope_->set("loop", ObjectRef(loop));
      return run(statement.bodies[0]);
    });
    has_run |= flow == Flow::on;
  }
  return has_run;
}

void Machine::print(const Value& value) {
  const String text = str(*this, value);
  write(text->bytes, text->given);
}

void Machine::write(std::string_view text, const Runs& given) {
  const size_t before = out_->memory(), at = out_->bytes.size();
  if (out_ == &root_) {
    budget.output(at + text.size());
    root_length_ += size_t(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
  }
  budget.work(text.size());
  if (at + text.size() > out_->bytes.capacity()) budget.room(2 * (buffered_ + root_.memory() + text.size()));
  out_->bytes += text;
  add_runs(budget, out_->given, at, given, 0, text.size());
  if (out_ != &root_) buffered_ += out_->memory() - before;
}

void Machine::assign(const Expression& target, const Value& value) {
  budget.work(scope_->variables.size() * sizeof(std::string_view));
  if (target.kind == Expression::Kind::name) return scope_->set(target.text, value);
  if (target.kind == Expression::Kind::namespace_ref) {
    const auto object = lookup(target.text).object<Namespace>();
    require(object != nullptr, "expected a namespace to set an attribute of, found {}", quote(target.text));
    return object->set(*this, target.constant.bytes(), value);
  }
  const auto values = all_items(*this, value);
  require(values.size() == target.parts.size(), "expected {} values to unpack, found {}", target.parts.size(),
          values.size());
  for (size_t i = 0; i < values.size(); ++i) assign(*target.parts[i], values[i]);
}

Value Machine::lookup(std::string_view name) {
  for (Scope* scope = scope_.get(); scope; scope = scope->outer.get()) {
    budget.work(scope->variables.size() * sizeof(name));
    if (const Value* value = scope->find(name)) return *value;
  }
  if (auto value = global(*this, name)) return *value;
  if (!missing_.contains(name)) {
    budget.hold(name.size() + sizeof(std::string));
    missing_.emplace(name);
  }
  return undefined(budget, fmt::format("expected a variable {}, found none", quote(name)));
}

Value Machine::macro_value(const std::shared_ptr<MacroSyntax>& macro) {
  return ObjectRef(std::make_shared<Macro>(budget, macro, scope_));
}

Value Machine::call(const Value& callee, Arguments arguments) {
  require_defined(callee);
  const auto* object = callee.get_if<ObjectRef>();
  require(object && (*object)->is_callable(), "expected something to call, found {}", type_name(callee));
  const Deeper deeper(*this);
  return (*object)->call(*this, std::move(arguments));
}

Value Machine::call_macro(const MacroSyntax& macro, std::shared_ptr<Scope> scope, Arguments arguments) {
  const Deeper deeper(*this);
  return string(capture([&] {
    within(std::move(scope), [&] {
      bind(macro, std::move(arguments));
      return run(macro.body);
    });
  }));
}

// Sets the parameters of a macro in its scope.
void Machine::bind(const MacroSyntax& macro, Arguments arguments) {
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    auto& named = arguments.named;
    const auto at =
        std::find_if(named.begin(), named.end(), [&](const auto& each) { return each.first.bytes == name; });
    if (at == named.end()) return std::nullopt;
    Value value = std::move(at->second);
    named.erase(at);
    return value;
  };
  const size_t count = macro.parameters.size();
  std::vector<size_t> missing;
  for (size_t i = 0; i < count; ++i) {
    if (i < arguments.positional.size())
      scope_->set(macro.parameters[i], arguments.positional[i]);
    else if (auto value = take_named(macro.parameters[i]))
      scope_->set(macro.parameters[i], std::move(*value));
    else
      missing.push_back(i);
  }
  for (const size_t i : missing) scope_->set(macro.parameters[i], default_of(macro, i));
  const bool names_caller =
      std::find(macro.parameters.begin(), macro.parameters.end(), "caller") != macro.parameters.end();
  if (macro.uses_caller && !names_caller)
    scope_->set("caller", take_named("caller").value_or(undefined(budget, "expected a caller, found none")));
  if (macro.uses_kwargs) {
    Dict::Pairs pairs;
    for (auto& [name, value] : arguments.named) pairs.emplace_back(string(std::move(name)), std::move(value));
    scope_->set("kwargs", dict(std::move(pairs)));
  } else {
    require(arguments.named.empty(), "expected no argument {} of macro {}, found one",
            arguments.named.empty() ? "" : quote(arguments.named[0].first.bytes), quote(macro.name));
  }
  if (macro.uses_varargs) {
    const auto rest = arguments.positional.begin() + ptrdiff_t(std::min(count, arguments.positional.size()));
    scope_->set("varargs", tuple(std::vector<Value>(rest, arguments.positional.end())));
  } else {
    require(arguments.positional.size() <= count, "expected at most {} arguments of macro {}, found {}", count,
            quote(macro.name), arguments.positional.size());
  }
}

Value Machine::default_of(const MacroSyntax& macro, size_t parameter) {
  const size_t without = macro.parameters.size() - macro.defaults.size();
  if (parameter >= without) return evaluate(*macro.defaults[parameter - without]);
  return undefined(budget, fmt::format("expected an argument {} of macro {}, found none",
                                       quote(macro.parameters[parameter]), quote(macro.name)));
}

}  // namespace wick::jinja
