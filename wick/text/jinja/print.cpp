#include "wick/text/jinja/print.h"

#include <charconv>
#include <cmath>

#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/deeper.h"

namespace wick::jinja {
namespace {

void add_items(Machine& machine, Text& out, const std::vector<Value>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ", ";
    add_repr(machine, out, values[i]);
  }
}

void add_dict(Machine& machine, Text& out, const Dict& dict) {
  out += "{";
  for (size_t i = 0; i < dict.pairs.size(); ++i) {
    if (i > 0) out += ", ";
    add_repr(machine, out, dict.pairs[i].first);
    out += ": ";
    add_repr(machine, out, dict.pairs[i].second);
  }
  out += "}";
}

}  // namespace

Text& Text::operator+=(std::string_view text) {
  machine_.budget.work(text.size());
  std::string& bytes = text_.bytes;
  if (bytes.size() + text.size() > bytes.capacity()) machine_.budget.room(2 * (text_.memory() + text.size()));
  bytes += text;
  return *this;
}

Text& Text::add(const Marked& text, std::string_view part) {
  const size_t at = size();
  *this += part;
  if (text.has_given() && !part.empty())
    add_runs(machine_.budget, text_.given, at, text.given, size_t(part.data() - text.bytes.data()), part.size());
  return *this;
}

void Text::add_made(std::string_view made, const Marked& text, std::string_view part) {
  const size_t at = size();
  *this += made;
  if (part.empty() || runs_in(text.given, size_t(part.data() - text.bytes.data()), part.size()).empty()) return;
  add_runs(machine_.budget, text_.given, at, {{0, made.size()}}, 0, made.size());
}

void Text::repeat(const Marked& text, size_t count) {
  if (text.bytes.empty() || count == 0) return;
  require(count <= kMaxMemoryBytes / text.bytes.size(), "expected a shorter text, found {} times {} bytes", count,
          text.bytes.size());
  machine_.budget.room(2 * text_.memory() + text.bytes.size() * count);
  text_.bytes.reserve(size() + text.bytes.size() * count);
  for (size_t i = 0; i < count; ++i) {
    add_runs(machine_.budget, text_.given, size(), text.given, 0, text.bytes.size());
    text_.bytes += text.bytes;
  }
}

void add_str(Machine& machine, Text& out, const Value& value) {
  if (const auto* text = value.get_if<String>())
    out += **text;
  else if (!value.is_undefined())
    add_repr(machine, out, value);
}

void add_repr(Machine& machine, Text& out, const Value& value) {
  machine.budget.step();
  if (value.is_none()) {
    out += "None";
  } else if (const auto* flag = value.get_if<bool>()) {
    out += *flag ? "True" : "False";
  } else if (const auto* integer = value.get_if<int64_t>()) {
    out += fmt::format("{}", *integer);
  } else if (const auto* real = value.get_if<double>()) {
    out += repr_of_float(*real);
  } else if (const auto* text = value.get_if<String>()) {
    machine.budget.room(4 * (*text)->bytes.size());
    const std::string quoted = repr_of_string((*text)->bytes);
    out.add_made((*text)->is_markup ? "Markup(" + quoted + ")" : quoted, **text, (*text)->bytes);
  } else if (value.is<List>()) {
    out += "[";
    add_items(machine, out, value.items()->values);
    out += "]";
  } else if (value.is<Tuple>()) {
    out += "(";
    add_items(machine, out, value.items()->values);
    out += value.items()->values.size() == 1 ? ",)" : ")";
  } else if (const auto* dict = value.get_if<Mapping>()) {
    add_dict(machine, out, **dict);
  } else if (const auto* object = value.get_if<ObjectRef>()) {
    const Deeper deeper(machine);  // a namespace may hold itself
    (*object)->print(machine, out);
  } else {
    out += "Undefined";
  }
}

String str(Machine& machine, const Value& value) {
  if (const auto* text = value.get_if<String>()) return *text;
  Text out(machine);
  add_str(machine, out, value);
  return out.value();
}

String repr(Machine& machine, const Value& value) {
  Text out(machine);
  add_repr(machine, out, value);
  return out.value();
}

// The shortest digits that read as the same number; an exponent below 1e-4 and from 1e16 on.
std::string repr_of_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[64];
  const auto [end, code] = std::to_chars(buffer, buffer + sizeof buffer, value,
                                         plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

std::string repr_of_string(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos, has_double = text.find('"') != text.npos;
  const char mark = has_single && !has_double ? '"' : '\'';
  std::string out(1, mark);
  for (size_t at = 0; at < text.size();) {
    const auto [c, bytes] = code_point_at(text, at);
    if (c == mark || c == '\\')
      (out += '\\') += char(c);
    else if (c == '\n' || c == '\r' || c == '\t')
      (out += '\\') += c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
    else if (is_printable(c))
      out += text.substr(at, bytes);
    else
      out += c < 0x100     ? fmt::format("\\x{:02x}", c)
             : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                           : fmt::format("\\U{:08x}", c);
    at += bytes;
  }
  return out += mark;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace wick::jinja
