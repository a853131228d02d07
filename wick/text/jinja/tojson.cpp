// Python's json.dumps.
#include <algorithm>
#include <cmath>

#include "wick/io/quote.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"
#include "wick/text/jinja/strings.h"

namespace wick::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Machine& machine, const JsonStyle& style) : machine_(machine), style_(style), out_(machine) {}

  Marked take() {
    Marked text = out_.take();
    return marked(std::move(text.bytes), text.has_given());
  }

  void write(const Value& value, size_t depth) {
    machine_.budget.step();
    if (value.is_string())
      write_string(*value.get<String>());
    else if (const Items* items = value.items())
      write_list(items->values, depth);
    else if (value.is<Mapping>())
      write_dict(*value.get<Mapping>(), depth);
    else
      out_ += scalar(value);
  }

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is<bool>()) return value.get<bool>() ? "true" : "false";
    if (value.is<int64_t>()) return fmt::format("{}", value.get<int64_t>());
    if (value.is<double>()) return real(value.get<double>());
    require_defined(value);
    refuse("expected values that JSON has, found {}", type_name(value));
  }

  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_of_float(value);
  }

  void write_string(const Marked& string) {
    const std::string_view text = string.bytes;
    out_ += "\"";
    size_t plain = 0;  // the start of what is written as it is
    for (size_t at = 0; at < text.size();) {
      const auto [c, bytes] = code_point_at(text, at);
      const std::string escaped = escape(c);
      if (!escaped.empty()) {
        out_.add(string, text.substr(plain, at - plain));
        out_.add_made(escaped, string, text.substr(at, bytes));
        plain = at + bytes;
      }
      at += bytes;
    }
    out_.add(string, text.substr(plain)) += "\"";
  }

  std::string escape(int32_t c) const {
    constexpr std::string_view special = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
    if (const size_t at = c < 0x80 ? special.find(char(c)) : special.npos; at != special.npos)
      return {'\\', letters[at]};
    if (c >= 0x20 && (c < 0x7f || !style_.ensure_ascii)) return "";
    if (c < 0x10000) return fmt::format("\\u{:04x}", c);
    return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
  }

  void new_line(size_t depth) {
    if (!style_.indent) return;
    out_ += "\n";
    out_.repeat(*style_.indent, depth);
  }

  void write_list(const std::vector<Value>& values, size_t depth) {
    if (values.empty()) return void(out_ += "[]");
    out_ += "[";
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) out_ += style_.comma;
      new_line(depth + 1);
      write(values[i], depth + 1);
    }
    new_line(depth);
    out_ += "]";
  }

  void write_dict(const Dict& dict, size_t depth) {
    if (dict.pairs.empty()) return void(out_ += "{}");
    machine_.budget.room(dict.pairs.size() * 3 * sizeof(void*));
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& pair : dict.pairs) order.push_back(&pair);
    if (style_.sort_keys)
      std::stable_sort(order.begin(), order.end(),
                       [&](const auto* a, const auto* b) { return ordered(machine_, "<", a->first, b->first); });
    out_ += "{";
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) out_ += style_.comma;
      new_line(depth + 1);
      const Value& key = order[i]->first;
      require(!key.items(), "expected keys that JSON has, found {}", type_name(key));
      key.is_string() ? write_string(*key.get<String>()) : write_string({scalar(key)});
      out_ += style_.colon;
      write(order[i]->second, depth + 1);
    }
    new_line(depth);
    out_ += "}";
  }

  Machine& machine_;
  const JsonStyle& style_;
  Text out_;
};

}  // namespace

Marked to_json(Machine& machine, const Value& value, const JsonStyle& style) {
  JsonWriter writer(machine, style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace wick::jinja
