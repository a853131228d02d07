// The methods of strings, dicts, lists and tuples that change nothing: the sandbox has no others.
#include <algorithm>
#include <array>

#include "wick/text/jinja/arguments.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/objects.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"
#include "wick/text/jinja/strings.h"

namespace wick::jinja {
namespace {

struct Method {
  std::string_view name, parameters;
  Value (*run)(Machine& machine, const Value& self, const Bound& given);
};

std::optional<std::string_view> characters_of(const Bound& given) {
  return given.is_given(0) ? std::optional(given.text(0)) : std::nullopt;
}

template <Side side>
Value strip_method(Machine& machine, const Value& self, const Bound& given) {
  const Str& text = *self.get<String>();
  return machine.part(text, strip(machine, text.bytes, side, characters_of(given)), text.is_markup);
}

template <std::string (*map)(std::string_view)>
Value map_method(Machine& machine, const Value& self, const Bound&) {
  machine.budget.room(4 * self.bytes().size());
  machine.budget.characters(self.bytes().size());
  const Str& text = *self.get<String>();
  return machine.string(mapped(machine, text, map), text.is_markup);
}

// Whether there are characters, all of this kind.
template <bool (*is_kind)(int32_t)>
Value all_method(Machine& machine, const Value& self, const Bound&) {
  const std::string_view text = self.bytes();
  machine.budget.characters(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [c, bytes] = code_point_at(text, at);
    if (!is_kind(c)) return false;
    at += bytes;
  }
  return !text.empty();
}

bool is_alphanumeric(int32_t c) { return is_letter(c) || is_numeric(c) || is_digit(c); }
bool is_ascii_character(int32_t c) { return c < 0x80; }

template <bool (*has_case)(std::string_view)>
Value case_method(Machine& machine, const Value& self, const Bound&) {
  machine.budget.characters(self.bytes().size());
  return has_case(self.bytes());
}

// The part of a text between two indices, as Python takes them.
struct Part {
  std::string_view text;
  int64_t start = 0;   // code points before it
  bool exists = true;  // not if it would start behind the end
};

Part part_of(Machine& machine, const Str& text, const Bound& given, size_t first) {
  machine.budget.work(text.bytes.size());
  const auto length = int64_t(text.length);
  const auto index = [&](size_t i, int64_t otherwise) {
    const int64_t at = given.is_given(i) ? given.integer(i) : otherwise;
    return at < 0 ? std::max<int64_t>(at + length, 0) : at;
  };
  const int64_t start = index(first, 0), end = std::min(index(first + 1, length), length);
  if (start > length || end < start) return {"", start, false};
  const size_t from = byte_of(text.bytes, size_t(start));
  const std::string_view rest = std::string_view(text.bytes).substr(from);
  return {rest.substr(0, byte_of(rest, size_t(end - start))), start, true};
}

template <bool at_start>
Value affix_method(Machine& machine, const Value& self, const Bound& given) {
  const Part part = part_of(machine, *self.get<String>(), given, 1);
  const auto fits = [&](const Value& affix) {
    require(affix.is_string(), "expected a string to look for, found {}", type_name(affix));
    machine.budget.work(affix.bytes().size());
    return part.exists && (at_start ? part.text.starts_with(affix.bytes()) : part.text.ends_with(affix.bytes()));
  };
  if (!given[0].is<Tuple>()) return fits(given[0]);
  const auto& affixes = given[0].items()->values;
  return std::any_of(affixes.begin(), affixes.end(), fits);
}

int64_t position(Machine& machine, const Value& self, const Bound& given, bool from_end) {
  const std::string_view wanted = given.text(0);
  const Part part = part_of(machine, *self.get<String>(), given, 1);
  if (!part.exists) return -1;
  const size_t at = find_text(machine, part.text, wanted, from_end);
  return at == part.text.npos ? -1 : part.start + int64_t(code_points(part.text.substr(0, at)));
}

template <bool from_end, bool must_be>
Value find_method(Machine& machine, const Value& self, const Bound& given) {
  const int64_t at = position(machine, self, given, from_end);
  require(at >= 0 || !must_be, "expected a string that has the other one, found one without");
  return at;
}

Value count_method(Machine& machine, const Value& self, const Bound& given) {
  const std::string_view wanted = given.text(0);
  const Part part = part_of(machine, *self.get<String>(), given, 1);
  if (!part.exists) return int64_t(0);
  if (wanted.empty()) return int64_t(code_points(part.text)) + 1;
  int64_t count = 0;
  std::string_view rest = part.text;
  for (size_t at = 0; (at = find_text(machine, rest, wanted)) != rest.npos; ++count)
    rest.remove_prefix(at + wanted.size());
  return count;
}

// At runs of spaces, so that no piece is empty.
std::vector<std::string_view> words_of(Machine& machine, std::string_view text, int64_t limit, bool from_end) {
  std::vector<std::string_view> words;
  const Side near = from_end ? Side::right : Side::left;
  for (text = strip(machine, text, near, std::nullopt); !text.empty();
       text = strip(machine, text, near, std::nullopt)) {
    if (words.size() == words.capacity()) machine.budget.room((2 * words.size() + 1) * sizeof(text));
    if (limit-- == 0) {
      words.push_back(text);  // with the spaces at its far side
      break;
    }
    size_t edge = from_end ? text.size() : 0;
    while (from_end ? edge > 0 : edge < text.size()) {
      const size_t at = from_end ? start_before(text, edge) : edge;
      const auto [c, bytes] = code_point_at(text, at);
      if (is_python_space(c)) break;
      edge = from_end ? at : at + bytes;
    }
    words.push_back(from_end ? text.substr(edge) : text.substr(0, edge));
    machine.budget.work(words.back().size());
    text = from_end ? text.substr(0, edge) : text.substr(edge);
  }
  return words;
}

std::vector<std::string_view> pieces_of(Machine& machine, std::string_view text, std::string_view separator,
                                        int64_t limit, bool from_end) {
  std::vector<std::string_view> pieces;
  while (limit-- != 0) {
    const size_t at = find_text(machine, text, separator, from_end);
    if (at == text.npos) break;
    if (pieces.size() == pieces.capacity()) machine.budget.room((2 * pieces.size() + 1) * sizeof(text));
    const std::string_view before = text.substr(0, at), behind = text.substr(at + separator.size());
    pieces.push_back(from_end ? behind : before);
    text = from_end ? before : behind;
  }
  pieces.push_back(text);
  return pieces;
}

template <bool from_end>
Value split_method(Machine& machine, const Value& self, const Bound& given) {
  const int64_t limit = std::max<int64_t>(given.integer(1, -1), -1);
  require(!given.is_given(0) || !given.text(0).empty(), "expected a separator of split that is not empty, found \"\"");
  auto pieces = given.is_given(0) ? pieces_of(machine, self.bytes(), given.text(0), limit, from_end)
                                  : words_of(machine, self.bytes(), limit, from_end);
  if (from_end) std::reverse(pieces.begin(), pieces.end());
  return list_of(machine, *self.get<String>(), pieces);
}

Value splitlines(Machine& machine, const Value& self, const Bound& given) {
  return list_of(machine, *self.get<String>(), lines_of(machine, self.bytes(), given.flag(0)));
}

template <bool from_end>
Value partition_method(Machine& machine, const Value& self, const Bound& given) {
  require(!given.text(0).empty(), "expected a separator of partition that is not empty, found \"\"");
  const Str& whole = *self.get<String>();
  const std::string_view text = whole.bytes, separator = given.text(0);
  machine.budget.room(text.size());
  const size_t at = find_text(machine, text, separator, from_end);
  const Value none = machine.string("");
  if (at == text.npos) return from_end ? machine.tuple({none, none, self}) : machine.tuple({self, none, none});
  return machine.tuple({machine.part(whole, text.substr(0, at)), machine.part(whole, text.substr(at, separator.size())),
                        machine.part(whole, text.substr(at + separator.size()))});
}

Value replace_method(Machine& machine, const Value& self, const Bound& given) {
  return replaced(machine, *self.get<String>(), given.text(0), given.string(1), given.integer(2, -1));
}

Value join_method(Machine& machine, const Value& self, const Bound& given) {
  require_defined(given[0]);
  Text out(machine);
  Iteration items(machine, given[0]);
  bool is_first = true;
  for (Value item; items.next(item); is_first = false) {
    require(item.is_string(), "expected strings to join, found {}", type_name(item));
    if (!is_first) out += *self.get<String>();
    out += *item.get<String>();
  }
  return out.value();
}

template <bool at_start>
Value remove_affix(Machine& machine, const Value& self, const Bound& given) {
  std::string_view text = self.bytes();
  const std::string_view affix = given.text(0);
  if (at_start && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!at_start && text.ends_with(affix)) text.remove_suffix(affix.size());
  return machine.part(*self.get<String>(), text);
}

// The characters that a text lacks of a width.
int64_t missing_width(const Value& self, const Bound& given) {
  const auto length = int64_t(self.get<String>()->length);
  return std::max(given.integer(0), length) - length;
}

template <char align>
Value justify(Machine& machine, const Value& self, const Bound& given) {
  const Marked space{" "}, &fill = given.string(1, space);
  const Str& text = *self.get<String>();
  const size_t length = code_points(fill.bytes);
  require(length == 1, "expected one character to fill with, found {}", length);
  if (align == '^') return machine.string(centered(machine, text, given.integer(0), fill));
  const int64_t pad = missing_width(self, given);
  Text out(machine);
  if (align == '>') out.repeat(fill, size_t(pad));
  out += text;
  if (align == '<') out.repeat(fill, size_t(pad));
  return out.value();
}

Value zfill(Machine& machine, const Value& self, const Bound& given) {
  const Str& whole = *self.get<String>();
  std::string_view text = whole.bytes;
  const int64_t pad = missing_width(self, given);
  Text out(machine);
  if (text.starts_with('-') || text.starts_with('+')) {
    out.add(whole, text.substr(0, 1));
    text.remove_prefix(1);
  }
  out.repeat({"0"}, size_t(pad));
  return out.add(whole, text).value();
}

Value expandtabs(Machine& machine, const Value& self, const Bound& given) {
  const int64_t size = given.integer(0, 8);
  const Str& text = *self.get<String>();
  Text out(machine);
  int64_t column = 0;
  for (size_t at = 0; at < text.bytes.size();) {
    const auto [c, bytes] = code_point_at(text.bytes, at);
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      out.repeat({" "}, size_t(spaces));
      column += spaces;
    } else {
      out.add(text, std::string_view(text.bytes).substr(at, bytes));
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
    at += bytes;
  }
  return out.value();
}

Value is_identifier(Machine&, const Value& self, const Bound&) {
  const std::string_view text = self.bytes();
  if (text.empty() || !is_name_start(code_point_at(text, 0).value)) return false;
  for (size_t at = 0; at < text.size(); at += code_point_at(text, at).bytes)
    if (!is_word(code_point_at(text, at).value)) return false;
  return true;
}

constexpr std::array<Method, 41> kStringMethods{
    {{"capitalize", "", map_method<capitalize>},
     {"casefold", "", map_method<python_lower_case>},
     {"center", "width fillchar?", justify<'^'>},
     {"count", "sub start? end?", count_method},
     {"endswith", "suffix start? end?", affix_method<false>},
     {"expandtabs", "tabsize?", expandtabs},
     {"find", "sub start? end?", find_method<false, false>},
     {"index", "sub start? end?", find_method<false, true>},
     {"isalnum", "", all_method<is_alphanumeric>},
     {"isalpha", "", all_method<is_letter>},
     {"isascii", "",
      [](Machine& m, const Value& s, const Bound& g) -> Value {
        return s.bytes().empty() ? Value(true) : all_method<is_ascii_character>(m, s, g);
      }},
     {"isdecimal", "", all_method<is_decimal>},
     {"isdigit", "", all_method<is_digit>},
     {"isidentifier", "", is_identifier},
     {"islower", "", case_method<is_all_lower>},
     {"isnumeric", "", all_method<is_numeric>},
     {"isprintable", "",
      [](Machine& m, const Value& s, const Bound& g) -> Value {
        return s.bytes().empty() ? Value(true) : all_method<is_printable>(m, s, g);
      }},
     {"isspace", "", all_method<is_python_space>},
     {"isupper", "", case_method<is_all_upper>},
     {"join", "iterable", join_method},
     {"ljust", "width fillchar?", justify<'<'>},
     {"lower", "", map_method<python_lower_case>},
     {"lstrip", "chars?", strip_method<Side::left>},
     {"partition", "sep", partition_method<false>},
     {"removeprefix", "prefix", remove_affix<true>},
     {"removesuffix", "suffix", remove_affix<false>},
     {"replace", "old new count?", replace_method},
     {"rfind", "sub start? end?", find_method<true, false>},
     {"rindex", "sub start? end?", find_method<true, true>},
     {"rjust", "width fillchar?", justify<'>'>},
     {"rpartition", "sep", partition_method<true>},
     {"rsplit", "sep? maxsplit?", split_method<true>},
     {"rstrip", "chars?", strip_method<Side::right>},
     {"split", "sep? maxsplit?", split_method<false>},
     {"splitlines", "keepends?", splitlines},
     {"startswith", "prefix start? end?", affix_method<true>},
     {"strip", "chars?", strip_method<Side::both>},
     {"swapcase", "", map_method<swap_case>},
     {"title", "", map_method<title_case>},
     {"upper", "", map_method<upper_case>},
     {"zfill", "width", zfill}}};

template <DictView::Part part>
Value view(Machine& machine, const Value& self, const Bound&) {
  return ObjectRef(std::make_shared<DictView>(machine.budget, self.get<Mapping>(), part));
}

Value get(Machine& machine, const Value& self, const Bound& given) {
  const Value* found = find(machine, *self.get<Mapping>(), given[0]);
  return found ? *found : given.get(1);
}

Value copy(Machine&, const Value& self, const Bound&) { return self; }

constexpr std::array<Method, 5> kDictMethods{{{"copy", "", copy},
                                              {"get", "key default?", get},
                                              {"items", "", view<DictView::Part::items>},
                                              {"keys", "", view<DictView::Part::keys>},
                                              {"values", "", view<DictView::Part::values>}}};

Value index_in_list(Machine& machine, const Value& self, const Bound& given) {
  const auto& values = self.items()->values;
  const auto length = int64_t(values.size());
  const auto bound = [&](size_t i, int64_t otherwise) {
    const int64_t at = given.integer(i, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + length : at, 0, length);
  };
  const int64_t end = bound(2, length);
  for (int64_t i = bound(1, 0); i < end; ++i)
    if (equal(machine, values[size_t(i)], given[0])) return i;
  refuse("expected a list that has the value, found one without");
}

Value count_in_list(Machine& machine, const Value& self, const Bound& given) {
  int64_t count = 0;
  for (const Value& value : self.items()->values) count += equal(machine, value, given[0]) ? 1 : 0;
  return count;
}

constexpr std::array<Method, 3> kListMethods{
    {{"copy", "", copy}, {"count", "value", count_in_list}, {"index", "value start? stop?", index_in_list}}};

template <class Table>
const Method* find_method_in(const Table& table, std::string_view name) {
  const auto at = std::find_if(table.begin(), table.end(), [&](const Method& method) { return method.name == name; });
  return at == table.end() ? nullptr : &*at;
}

const Method* method_of(const Value& value, std::string_view name) {
  if (value.is_string()) return find_method_in(kStringMethods, name);
  if (value.is<Mapping>()) return find_method_in(kDictMethods, name);
  if (value.is<Tuple>() && name == "copy") return nullptr;
  return value.items() ? find_method_in(kListMethods, name) : nullptr;
}

Value function(Machine& machine, const Value& self, std::string_view name, Function::Run run) {
  return ObjectRef(std::make_shared<Function>(machine.budget, std::string(name), std::move(run), self.depth()));
}

// str.format and str.format_map.
Value format_of(Machine& machine, const Value& self, std::string_view name) {
  if (name == "format")
    return function(machine, self, name, [self](Machine& inner, Arguments arguments) {
      return format_braces(inner, *self.get<String>(), arguments);
    });
  return function(machine, self, name, [self](Machine& inner, Arguments arguments) {
    const Bound given(std::move(arguments), "format_map", "mapping");
    require(given[0].is<Mapping>(), "expected a dict for format_map, found {}", type_name(given[0]));
    Arguments named;
    for (const auto& [key, value] : given[0].get<Mapping>()->pairs)
      if (key.is_string()) named.named.emplace_back(*key.get<String>(), value);
    return format_braces(inner, *self.get<String>(), named);
  });
}

}  // namespace

// The method of that name, bound to the value; none if there is none.
Value methods_of(Machine& machine, const Value& value, std::string_view name) {
  if (value.is_string() && (name == "format" || name == "format_map")) return format_of(machine, value, name);
  const Method* method = method_of(value, name);
  if (!method) return {};
  return function(machine, value, name, [value, method](Machine& inner, Arguments arguments) {
    return method->run(inner, value, Bound(std::move(arguments), method->name, method->parameters));
  });
}

}  // namespace wick::jinja
