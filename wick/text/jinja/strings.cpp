#include "wick/text/jinja/strings.h"

#include <algorithm>

#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/print.h"

namespace wick::jinja {

namespace {

// Knuth, Morris and Pratt: how much of `wanted` lies at the end of what has been read.
template <class Iterator>
Iterator find_long(Iterator text, Iterator text_end, Iterator wanted, size_t length) {
  std::vector<size_t> borders(length, 0);
  const auto longer = [&](size_t fits, char next) {
    while (fits > 0 && wanted[ptrdiff_t(fits)] != next) fits = borders[fits - 1];
    return fits + (wanted[ptrdiff_t(fits)] == next ? 1 : 0);
  };
  for (size_t i = 1; i < length; ++i) borders[i] = longer(borders[i - 1], wanted[ptrdiff_t(i)]);
  for (size_t fits = 0; text != text_end; ++text)
    if ((fits = longer(fits, *text)) == length) return text - ptrdiff_t(length - 1);
  return text_end;
}

}  // namespace

size_t find_text(Machine& machine, std::string_view text, std::string_view wanted, bool from_end) {
  constexpr size_t kShort = 16;  // the library's search takes the product of both lengths at worst
  if (wanted.size() > text.size()) return text.npos;
  const size_t at = wanted.size() <= kShort ? from_end ? text.rfind(wanted) : text.find(wanted) : [&] {
    machine.budget.room(wanted.size() * sizeof(size_t));
    if (from_end) {
      const auto found = find_long(text.rbegin(), text.rend(), wanted.rbegin(), wanted.size());
      return found == text.rend() ? text.npos : size_t(text.rend() - found) - wanted.size();
    }
    const auto found = find_long(text.begin(), text.end(), wanted.begin(), wanted.size());
    return found == text.end() ? text.npos : size_t(found - text.begin());
  }();
  const size_t passed = at == text.npos ? text.size() : from_end ? text.size() - at : at;
  machine.budget.work(passed * (wanted.size() <= kShort ? 1 + wanted.size() / 4 : 4));
  return at;
}

std::string_view strip(Machine& machine, std::string_view text, Side side, std::optional<std::string_view> characters) {
  const size_t before = text.size();
  const auto goes = [&](size_t at) {
    if (!characters) return is_python_space(code_point_at(text, at).value);
    machine.budget.work(characters->size());
    const std::string_view character = text.substr(at, code_point_at(text, at).bytes);
    return characters->find(character) != characters->npos;
  };
  while (side != Side::right && !text.empty() && goes(0)) text.remove_prefix(code_point_at(text, 0).bytes);
  while (side != Side::left && !text.empty() && goes(start_before(text, text.size())))
    text = text.substr(0, start_before(text, text.size()));
  machine.budget.work(before - text.size());
  return text;
}

std::vector<std::string_view> lines_of(Machine& machine, std::string_view text, bool keeps_ends) {
  machine.budget.work(text.size());
  std::vector<std::string_view> lines;
  for (size_t start = 0, at = 0; at < text.size();) {
    const auto [value, bytes] = code_point_at(text, at);
    const size_t end = at;
    at += bytes;
    if (!is_line_end(value) && at < text.size()) continue;
    if (value == '\r' && at < text.size() && text[at] == '\n') ++at;
    if (lines.size() == lines.capacity()) machine.budget.room((2 * lines.size() + 1) * sizeof(text));
    lines.push_back(text.substr(start, (keeps_ends || !is_line_end(value) ? at : end) - start));
    start = at;
  }
  return lines;
}

String replaced(Machine& machine, const Marked& source, std::string_view old, const Marked& by, int64_t count) {
  std::string_view text = source.bytes;
  Text out(machine);
  size_t left = count < 0 ? std::string_view::npos : size_t(count);
  if (old.empty()) {  // in front of each character and at the end
    while (left-- > 0) {
      out += by;
      if (text.empty()) break;
      const size_t bytes = code_point_at(text, 0).bytes;
      out.add(source, text.substr(0, bytes));
      text.remove_prefix(bytes);
    }
    return out.add(source, text).value();
  }
  while (left-- > 0) {
    const size_t at = find_text(machine, text, old);
    if (at == text.npos) break;
    out.add(source, text.substr(0, at)) += by;
    text.remove_prefix(at + old.size());
  }
  return out.add(source, text).value();
}

Marked centered(Machine& machine, const Marked& text, int64_t width, const Marked& fill) {
  const auto length = int64_t(code_points(text.bytes));
  const int64_t pad = std::max(width, length) - length;
  const int64_t left = pad / 2 + (pad & width & 1);
  Text out(machine);
  out.repeat(fill, size_t(left));
  out += text;
  out.repeat(fill, size_t(pad - left));
  return out.take();
}

Marked mapped(Machine& machine, const Str& text, std::string (*map)(std::string_view)) {
  std::string made = map(text.bytes);
  if (!text.is_ascii()) return marked(std::move(made), text.has_given());
  machine.budget.room(text.memory());
  return {std::move(made), text.given};
}

Value list_of(Machine& machine, const Marked& text, const std::vector<std::string_view>& pieces) {
  machine.budget.room(pieces.size() * sizeof(Value));
  std::vector<Value> values;
  values.reserve(pieces.size());
  for (const std::string_view piece : pieces) values.push_back(machine.part(text, piece));
  return machine.list(std::move(values));
}

size_t code_points(std::string_view text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

}  // namespace wick::jinja
