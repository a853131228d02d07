// The functions that templates know without being given them.
#include <algorithm>
#include <array>
#include <ctime>

#include "wick/io/quote.h"
#include "wick/text/jinja/arguments.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/objects.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {
namespace {

Value make_range(Machine& machine, Arguments arguments) {
  const Bound given(std::move(arguments), "range", "start stop? step?");
  const int64_t first = given.integer(0);
  return ObjectRef(given.has(1) ? std::make_shared<Range>(machine.budget, first, given.integer(1), given.integer(2, 1))
                                : std::make_shared<Range>(machine.budget, 0, first, 1));
}

// dict(mapping or pairs, name=value …)
Dict::Pairs pairs_of(Machine& machine, Arguments arguments, std::string_view function) {
  require(arguments.positional.size() <= 1, "expected at most 1 argument of {}, found {}", function,
          arguments.positional.size());
  Dict::Pairs pairs;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const auto* dict = source.get_if<Mapping>()) {
      machine.budget.room((*dict)->pairs.size() * 2 * sizeof(Value));
      pairs = (*dict)->pairs;
    } else {
      Iteration items(machine, source);
      for (Value item; items.next(item);) {
        const auto pair = all_items(machine, item);
        require(pair.size() == 2, "expected pairs for {}, found {} values", function, pair.size());
        put(machine, pairs, pair[0], pair[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.named) put(machine, pairs, machine.string(std::move(name)), std::move(value));
  return pairs;
}

Value make_dict(Machine& machine, Arguments arguments) {
  return machine.dict(pairs_of(machine, std::move(arguments), "dict"));
}

Value make_namespace(Machine& machine, Arguments arguments) {
  auto made = std::make_shared<Namespace>(machine.budget);
  for (const auto& [key, value] : pairs_of(machine, std::move(arguments), "namespace")) {
    if (key.is_string()) made->set(machine, key.bytes(), value);
  }
  machine.keep(made);
  return ObjectRef(made);
}

Value make_cycler(Machine& machine, Arguments arguments) {
  require(!arguments.positional.empty() && arguments.named.empty(), "expected items for cycler, found none");
  return ObjectRef(std::make_shared<Cycler>(machine.budget, machine.tuple(std::move(arguments.positional))));
}

Value make_joiner(Machine& machine, Arguments arguments) {
  const Bound given(std::move(arguments), "joiner", "sep?");
  return ObjectRef(
      std::make_shared<Joiner>(machine.budget, given.has(0) ? str(machine, given[0]) : machine.string(", ")));
}

// What the template's author tells the caller.
Value raise_exception(Machine& machine, Arguments arguments) {
  const Bound given(std::move(arguments), "raise_exception", "message");
  refuse("the template refuses this: {}", excerpt(str(machine, given[0])->bytes));
}

// One conversion of strftime: an optional flag of glibc's and a letter. Widths would write texts of any length.
void add_time(Text& out, const std::tm& time, std::string_view conversion) {
  constexpr std::string_view letters = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%";
  const char letter = conversion.back();
  require(letters.find(letter) != letters.npos, "expected a conversion of strftime, found {}", quote(conversion));
  if (letter == 'z' || letter == 'Z') return;  // the time is without a zone, as Python's datetime.now()
  std::array<char, 256> buffer;
  const size_t bytes = std::strftime(buffer.data(), buffer.size(), std::string(conversion).c_str(), &time);
  out += std::string_view(buffer.data(), bytes);
}

Value strftime_now(Machine& machine, Arguments arguments) {
  const Bound given(std::move(arguments), "strftime_now", "format");
  const Str& text = given.string(0);
  const std::string_view format = text.bytes;
  Text out(machine);
  for (size_t at = 0; at < format.size();) {
    const size_t percent = std::min(format.find('%', at), format.size());
    out.add(text, format.substr(at, percent - at));
    at = percent;
    if (at == format.size()) break;
    size_t end = at + 1;
    if (end < format.size() && std::string_view("-_0^#EO").find(format[end]) != std::string_view::npos) ++end;
    require(end < format.size(), "expected a conversion behind %, found the end of the format");
    if (format[end] == 'f' && end == at + 1)
      out += "000000";  // the time is given in seconds
    else
      add_time(out, machine.now(), format.substr(at, end + 1 - at));
    at = end + 1;
  }
  return out.value();
}

struct Global {
  std::string_view name;
  Value (*run)(Machine&, Arguments);
};
constexpr std::array<Global, 7> kGlobals{{{"range", make_range},
                                          {"dict", make_dict},
                                          {"namespace", make_namespace},
                                          {"cycler", make_cycler},
                                          {"joiner", make_joiner},
                                          {"raise_exception", raise_exception},
                                          {"strftime_now", strftime_now}}};

}  // namespace

std::optional<Value> global(Machine& machine, std::string_view name) {
  for (const Global& each : kGlobals)
    if (each.name == name) return ObjectRef(std::make_shared<Function>(machine.budget, std::string(name), each.run));
  return std::nullopt;
}

}  // namespace wick::jinja
