// What a running template needs: its budget, its variables, and the operations that values, filters and tests share.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/text/jinja/syntax.h"
#include "wick/text/jinja/value.h"

namespace wick::jinja {

// The variables of a block. Blocks see those around them and set their own.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::vector<std::pair<std::string_view, Value>>
      variables{};  // names of the syntax trees or of the render's variables

  Value* find(std::string_view name);  // here alone
  void set(std::string_view name, Value value);
};

class Machine {
 public:
  Machine(const Limits& limits, const std::tm& now);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Budget budget;

  // Values that count. All throw Problem where there is no room for them.
  String string(std::string text, bool is_markup = false);  // nothing of which is given
  String string(Marked text, bool is_markup = false);
  String part(const Marked& text, std::string_view part, bool is_markup = false);  // of the text's own bytes
  Value list(std::vector<Value> values);
  Value tuple(std::vector<Value> values);
  Value dict(Dict::Pairs pairs);
  // Lets go of what the object holds at the end: it may come to hold itself.
  void keep(ObjectRef object);

  Value call(const Value& callee, Arguments arguments);
  Value call_macro(const MacroSyntax& macro, std::shared_ptr<Scope> scope, Arguments arguments);
  const std::tm& now() const { return now_; }

  // The whole template's text, and what its generation blocks wrote, in code points of it.
  Marked render(const Block& template_, std::vector<std::pair<std::string_view, Value>> variables);
  const std::vector<std::pair<size_t, size_t>>& generated() const { return generated_; }
  int line() const { return line_; }
  // The variables that the template asked for and was not given, in the order of the alphabet.
  const std::set<std::string, std::less<>>& missing() const { return missing_; }

 private:
  enum class Flow { on, next, end };

  Flow run(const Block& block);
  Flow run(const Statement& statement);
  Flow run_condition(const Statement& statement);
  Flow run_with(const Statement& statement);
  Flow run_set_block(const Statement& statement);
  Flow run_filter_block(const Statement& statement);
  void run_call_block(const Statement& statement);
  void run_generation(const Statement& statement);
  Flow run_loop(const Statement& statement);
  std::function<bool(Value&)> puller(const Statement& statement, const std::shared_ptr<Scope>& outer,
                                     const Value& items);
  bool iterate(const Statement& statement, const std::shared_ptr<Scope>& outer, const Value& items, int depth);
  template <class Body>
  auto within(std::shared_ptr<Scope> outer, const Body& body);
  template <class Body>
  Marked capture(const Body& body);
  void print(const Value& value);
  void write(std::string_view text, const Runs& given = {});
  void assign(const Expression& target, const Value& value);
  Value lookup(std::string_view name);
  Value macro_value(const std::shared_ptr<MacroSyntax>& macro);
  void bind(const MacroSyntax& macro, Arguments arguments);
  Value default_of(const MacroSyntax& macro, size_t parameter);

  Value evaluate(const Expression& expression);
  Value evaluate_list(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_item(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_filter(const Expression& expression, const Value* subject);
  Value evaluate_test(const Expression& expression);
  Value evaluate_unary(const Expression& expression);
  Value evaluate_concat(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_logical(const Expression& expression);
  Value evaluate_choice(const Expression& expression);
  Arguments evaluate_arguments(const CallSyntax& call);
  friend class Deeper;

  std::tm now_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> captured_scopes_;  // by macros, which do not hold them
  std::vector<ObjectRef> kept_;
  Marked* out_ = nullptr;
  Marked root_;
  size_t root_length_ = 0;  // code points of root_
  size_t buffered_ = 0;     // the memory of what is written and not in root_
  std::vector<std::pair<size_t, size_t>> generated_;
  std::set<std::string, std::less<>> missing_;
  int depth_ = 0, line_ = 0;
};

}  // namespace wick::jinja
