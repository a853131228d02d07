// Filters on text.
#include <algorithm>
#include <array>

#include "wick/io/quote.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/filter_tables.h"
#include "wick/text/jinja/filters.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"
#include "wick/text/jinja/strings.h"

namespace wick::jinja {
namespace {

// A filter that maps a text to a text.
template <std::string (*map)(std::string_view)>
Value mapped_text(Machine& machine, const Value& subject, const Bound&) {
  return machine.string(mapped(machine, *soft_text(machine, subject), map), is_markup(subject));
}

Value center_filter(Machine& machine, const Value& subject, const Bound& given) {
  return machine.string(centered(machine, *soft_text(machine, subject), given.integer(0, 80)), is_markup(subject));
}

Value default_filter(Machine& machine, const Value& subject, const Bound& given) {
  const bool is_missing = subject.is_undefined() || (given.flag(1) && !truth(subject));
  return is_missing ? given.get(0, machine.string("")) : subject;
}

Value escaped(Machine& machine, const Str& text) {
  return machine.string(marked(escape_html(text.bytes), text.has_given()), true);
}

Value escape_filter(Machine& machine, const Value& subject, const Bound&) {
  if (is_markup(subject)) return subject;
  machine.budget.room(subject.is_string() ? 6 * subject.bytes().size() : 0);
  return escaped(machine, *str(machine, subject));
}

Value force_escape(Machine& machine, const Value& subject, const Bound&) {
  const String text = soft_text(machine, subject);
  machine.budget.room(6 * text->bytes.size());
  return escaped(machine, *text);
}

Value format_filter(Machine& machine, const Value& subject, Arguments arguments) {
  require(arguments.positional.empty() || arguments.named.empty(),
          "expected arguments of format by position or by name, found both");
  Dict::Pairs pairs;
  for (auto& [name, value] : arguments.named) pairs.emplace_back(machine.string(std::move(name)), std::move(value));
  const String text = soft_text(machine, subject), format = machine.part(*text, text->bytes);  // which is no markup
  return format_percent(
      machine, *format,
      pairs.empty() ? machine.tuple(std::move(arguments.positional)) : machine.dict(std::move(pairs)));
}

Value indent_filter(Machine& machine, const Value& subject, const Bound& given) {
  require_defined(subject);
  require(subject.is_string(), "expected a string for indent, found {}", type_name(subject));
  Text margin(machine), closed(machine);
  if (given.has(0) && given[0].is_string())
    margin += given.string(0);
  else
    margin.repeat({" "}, size_t(std::max<int64_t>(given.integer(0, 4), 0)));
  (closed += *subject.get<String>()) += "\n";
  const Marked space = margin.take(), text = closed.take();
  const auto lines = lines_of(machine, text.bytes, false);
  Text out(machine);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.add_made("\n", text, {lines[i].data() - 1, 1});  // the end of the line before
    if (i == 0 ? given.flag(1) : given.flag(2) || !lines[i].empty()) out += space;
    out.add(text, lines[i]);
  }
  return out.value();
}

Value replace_filter(Machine& machine, const Value& subject, const Bound& given) {
  const String old = str(machine, given[0]), by = str(machine, given[1]);
  return replaced(machine, *soft_text(machine, subject), old->bytes, *by, given.is_given(2) ? given.integer(2) : -1);
}

Value safe(Machine& machine, const Value& subject, const Bound&) {
  const String text = soft_text(machine, subject);
  return machine.part(*text, text->bytes, true);
}

Value string_filter(Machine& machine, const Value& subject, const Bound&) { return str(machine, subject); }

// Words begin behind white space, - and opening brackets.
std::string title_words(std::string_view text) {
  const auto separates = [&](size_t at) {
    const int32_t c = code_point_at(text, at).value;
    return is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string out;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    const bool is_separator = separates(at);
    while (end < text.size() && separates(end) == is_separator) end += code_point_at(text, end).bytes;
    const std::string_view word = text.substr(at, end - at);
    const size_t first = code_point_at(word, 0).bytes;
    out += upper_case(word.substr(0, first)) + python_lower_case(word.substr(first));
  }
  return out;
}

Value title_filter(Machine& machine, const Value& subject, const Bound&) {
  return machine.string(mapped(machine, *soft_text(machine, subject), title_words));
}

Value trim(Machine& machine, const Value& subject, const Bound& given) {
  const String text = soft_text(machine, subject);
  const auto characters = given.is_given(0) ? std::optional(given.text(0)) : std::nullopt;
  return machine.part(*text, strip(machine, text->bytes, Side::both, characters), is_markup(subject));
}

Value truncate(Machine& machine, const Value& subject, const Bound& given) {
  const int64_t length_limit = given.integer(0, 255), leeway = given.is_given(3) ? given.integer(3) : 5;
  const Marked dots{"..."}, &end = given.string(2, dots);
  const auto end_length = int64_t(code_points(end.bytes));
  require(length_limit >= end_length && leeway >= 0, "expected a length of at least {} for truncate, found {}",
          end_length, length_limit);
  if (int64_t(length(machine, subject)) - leeway <= length_limit) return subject;
  require(subject.is_string(), "expected a string for truncate, found {}", type_name(subject));
  const std::string_view text = subject.bytes();
  std::string_view kept = text.substr(0, byte_of(text, size_t(length_limit - end_length)));
  if (!given.flag(1)) kept = kept.substr(0, kept.rfind(' '));
  Text out(machine);
  out.add(*subject.get<String>(), kept) += end;
  return out.value();
}

void add_quoted(Text& out, const Marked& text, bool is_query) {
  for (const char& c : text.bytes) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                          c == '.' || c == '-' || c == '~' || (c == '/' && !is_query);
    const std::string_view part(&c, 1);
    if (is_plain)
      out.add(text, part);
    else
      out.add_made(is_query && c == ' ' ? "+" : fmt::format("%{:02X}", uint8_t(c)), text, part);
  }
}

Value urlencode(Machine& machine, const Value& subject, const Bound&) {
  Text out(machine);
  if (subject.is_string() || !is_iterable(subject)) {
    add_quoted(out, *str(machine, subject), false);
    return out.value();
  }
  const Value pairs = subject.is<Mapping>() ? apply_filter(machine, "items", subject, {}) : subject;
  Iteration items(machine, pairs);
  for (Value item; items.next(item);) {
    const auto pair = all_items(machine, item);
    require(pair.size() == 2, "expected pairs for urlencode, found {} values", pair.size());
    if (out.size() > 0) out += "&";
    add_quoted(out, *str(machine, pair[0]), true);
    out += "=";
    add_quoted(out, *str(machine, pair[1]), true);
  }
  return out.value();
}

Value wordcount(Machine& machine, const Value& subject, const Bound&) {
  const String subject_text = soft_text(machine, subject);
  const std::string_view text = subject_text->bytes;
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const auto [value, bytes] = code_point_at(text, at);
    if (is_word(value) && !inside) ++words;
    inside = is_word(value);
    at += bytes;
  }
  return words;
}

// The separators are a list or tuple of two texts; without them an indented text has no space behind commas.
Value tojson(Machine& machine, const Value& subject, const Bound& given) {
  JsonStyle style;
  style.ensure_ascii = given.flag(0), style.sort_keys = given.flag(3);
  if (given.is_given(1)) {
    Text margin(machine);
    if (given[1].is_string())
      margin += given.string(1);
    else
      margin.repeat({" "}, size_t(std::max<int64_t>(given.integer(1), 0)));
    style.indent = margin.take(), style.comma = {","};
  }
  if (given.is_given(2)) {
    const auto parts = all_items(machine, given[2]);
    require(parts.size() == 2 && parts[0].is_string() && parts[1].is_string(),
            "expected two strings as separators of tojson, found {}", excerpt(repr(machine, given[2])->bytes));
    machine.budget.room(parts[0].get<String>()->memory() + parts[1].get<String>()->memory());
    style.comma = *parts[0].get<String>(), style.colon = *parts[1].get<String>();
  }
  return machine.string(to_json(machine, subject, style));
}

constexpr std::array<Filter, 20> kTextFilters{{{"capitalize", "", mapped_text<capitalize>},
                                               {"center", "width?", center_filter},
                                               {"d", "default_value? boolean?", default_filter},
                                               {"default", "default_value? boolean?", default_filter},
                                               {"e", "", escape_filter},
                                               {"escape", "", escape_filter},
                                               {"forceescape", "", force_escape},
                                               {"format", "", nullptr, format_filter},
                                               {"indent", "width? first? blank?", indent_filter},
                                               {"lower", "", mapped_text<python_lower_case>},
                                               {"replace", "old new count?", replace_filter},
                                               {"safe", "", safe},
                                               {"string", "", string_filter},
                                               {"title", "", title_filter},
                                               {"tojson", "ensure_ascii? indent? separators? sort_keys?", tojson},
                                               {"trim", "chars?", trim},
                                               {"truncate", "length? killwords? end? leeway?", truncate},
                                               {"upper", "", mapped_text<upper_case>},
                                               {"urlencode", "", urlencode},
                                               {"wordcount", "", wordcount}}};

}  // namespace

std::span<const Filter> text_filters() { return kTextFilters; }

}  // namespace wick::jinja
