// Formats of numbers and texts: printf's by %, and those of str.format.
// Sources: Python's documentation, "printf-style String Formatting" and "Format Specification Mini-Language".
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "wick/io/quote.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/operations.h"
#include "wick/text/jinja/print.h"
#include "wick/text/jinja/strings.h"

namespace wick::jinja {
namespace {

constexpr int64_t kMaxPrecision = 300, kMaxWidth = 1'000'000;

struct Spec {
  Marked fill{" "};
  char align = 0, sign = '-', grouping = 0, type = 0;
  bool alternate = false;
  int64_t width = 0, precision = -1;
};

// The number at the start of a text, which it goes from.
int64_t take_number(std::string_view& text, int64_t most) {
  int64_t value = 0;
  for (; !text.empty() && text[0] >= '0' && text[0] <= '9'; text.remove_prefix(1)) {
    value = value * 10 + (text[0] - '0');
    require(value <= most, "expected at most {} in a format, found more", most);
  }
  return value;
}

Marked padded(Machine& machine, std::string_view sign, const Marked& body, const Spec& spec, char align) {
  if (spec.align) align = spec.align;
  const int64_t pad = std::max<int64_t>(spec.width - int64_t(code_points(sign) + code_points(body.bytes)), 0);
  const int64_t left = align == '<' || align == '=' ? 0 : align == '^' ? pad / 2 : pad;
  Text out(machine);
  out.repeat(spec.fill, size_t(left));
  out += sign;
  if (align == '=') out.repeat(spec.fill, size_t(pad));
  out += body;
  if (align != '=') out.repeat(spec.fill, size_t(pad - left));
  return out.take();
}

std::string grouped(std::string digits, char separator, size_t each) {
  size_t whole = digits.find_first_not_of("0123456789abcdefABCDEF");
  if (each == 3) whole = digits.find_first_not_of("0123456789");
  for (size_t at = std::min(whole, digits.size()); at > each;) digits.insert(at -= each, 1, separator);
  return digits;
}

std::string sign_of(bool is_negative, const Spec& spec) {
  return is_negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
}

std::string digits_of(uint64_t value, char type) {
  switch (type) {
    case 'x':
      return fmt::format("{:x}", value);
    case 'X':
      return fmt::format("{:X}", value);
    case 'o':
      return fmt::format("{:o}", value);
    case 'b':
      return fmt::format("{:b}", value);
    default:
      return fmt::format("{}", value);
  }
}

Marked format_integer(Machine& machine, int64_t value, const Spec& spec) {
  const uint64_t size = value < 0 ? uint64_t(0) - uint64_t(value) : uint64_t(value);
  std::string digits = digits_of(size, spec.type);
  const bool is_based = spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b';
  if (spec.precision > int64_t(digits.size())) digits.insert(0, size_t(spec.precision) - digits.size(), '0');
  if (spec.grouping) digits = grouped(std::move(digits), spec.grouping, is_based ? 4 : 3);
  std::string sign = sign_of(value < 0, spec);
  if (spec.alternate && is_based) (sign += '0') += spec.type;
  return padded(machine, sign, {std::move(digits)}, spec, '>');
}

std::string real_digits(double size, const Spec& spec) {
  const bool upper = spec.type == 'F' || spec.type == 'E' || spec.type == 'G';
  if (std::isinf(size)) return upper ? "INF" : "inf";
  if (std::isnan(size)) return upper ? "NAN" : "nan";
  if (spec.type == 0 && spec.precision < 0) return repr_of_float(size);
  std::array<char, 8> pattern{'%', '.', '*', spec.type ? spec.type : 'g', 0};
  if (spec.alternate) pattern = {'%', '#', '.', '*', spec.type ? spec.type : 'g', 0};
  if (spec.type == '%') pattern[size_t(spec.alternate ? 4 : 3)] = 'f', size *= 100;
  std::array<char, 700> buffer;
  const int precision = int(spec.precision < 0 ? 6 : spec.precision);
  std::snprintf(buffer.data(), buffer.size(), pattern.data(), precision, size);  // NOLINT: the pattern is one of ours
  std::string digits = buffer.data();
  if (spec.type == '%') digits += '%';
  if (spec.type == 0 && digits.find_first_of(".e") == digits.npos) digits += ".0";
  return digits;
}

Marked format_real(Machine& machine, double value, const Spec& spec) {
  std::string digits = real_digits(std::abs(value), spec);
  if (spec.grouping) digits = grouped(std::move(digits), spec.grouping, 3);
  return padded(machine, sign_of(std::signbit(value) && !std::isnan(value), spec), {std::move(digits)}, spec, '>');
}

Marked format_text(Machine& machine, const Marked& text, const Spec& spec, char align) {
  if (spec.precision < 0) return padded(machine, "", text, spec, align);
  const auto kept = std::string_view(text.bytes).substr(0, byte_of(text.bytes, size_t(spec.precision)));
  return padded(machine, "", *machine.part(text, kept), spec, align);
}

// Printf's formats.
class Percent {
 public:
  Percent(Machine& machine, const Value& arguments) : machine_(machine), arguments_(arguments), out_(machine) {}

  Value all(const Str& text) {
    std::string_view format = text.bytes;
    while (true) {
      const size_t percent = format.find('%');
      out_.add(text, format.substr(0, percent));
      if (percent == format.npos) break;
      format.remove_prefix(percent + 1);
      conversion(format);
    }
    const bool may_be_left = arguments_.is<Mapping>() || arguments_.is<List>();
    const size_t count = arguments_.is<Tuple>() ? arguments_.items()->values.size() : 1;
    require(may_be_left || used_ >= count, "expected a conversion for each of {} values, found {}", count, used_);
    return out_.value(text.is_markup);
  }

 private:
  Value take() {
    if (!arguments_.is<Tuple>()) {
      require(used_++ == 0, "expected as many values as conversions, found fewer");
      return arguments_;
    }
    const auto& values = arguments_.items()->values;
    require(used_ < values.size(), "expected as many values as conversions, found fewer");
    return values[used_++];
  }

  Value named(std::string_view& format) {
    const size_t end = format.find(')');
    require(end != format.npos && arguments_.is<Mapping>(), "expected a dict for %(name), found {}",
            type_name(arguments_));
    const Value* value = find(*arguments_.get<Mapping>(), format.substr(1, end - 1));
    require(value != nullptr, "expected a key {}, found none", quote(format.substr(1, end - 1)));
    format.remove_prefix(end + 1);
    return *value;
  }

  int64_t number(std::string_view& format, int64_t most) {
    if (!format.starts_with('*')) return take_number(format, most);
    format.remove_prefix(1);
    const Value value = take();
    require(value.is_integer() && value.integer() >= 0 && value.integer() <= most,
            "expected at most {} for * in a format, found another value", most);
    return value.integer();
  }

  void conversion(std::string_view& format) {
    std::optional<Value> value;
    if (format.starts_with('(')) value = named(format);
    Spec spec;
    for (; !format.empty() && std::string_view("-+ #0").find(format[0]) != std::string_view::npos;
         format.remove_prefix(1))
      flag(spec, format[0]);
    spec.width = number(format, kMaxWidth);
    if (format.starts_with('.')) {
      format.remove_prefix(1);
      spec.precision = number(format, kMaxPrecision);
    }
    while (!format.empty() && std::string_view("hlL").find(format[0]) != std::string_view::npos)
      format.remove_prefix(1);
    require(!format.empty(), "expected a conversion behind %, found the end of the format");
    spec.type = format[0];
    format.remove_prefix(1);
    if (spec.type == '%') return void(out_ += "%");
    out_ += converted(value ? *value : take(), spec);
  }

  static void flag(Spec& spec, char flag) {
    if (flag == '-') spec.align = '<', spec.fill = {" "};
    if (flag == '0' && spec.align != '<') spec.align = '=', spec.fill = {"0"};
    if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    if (flag == '#') spec.alternate = true;
  }

  Marked converted(const Value& value, Spec spec) {
    constexpr std::string_view integers = "diuoxX", reals = "eEfFgG";
    if (spec.type == 's' || spec.type == 'r') {
      if (spec.fill.bytes == "0") spec.align = 0, spec.fill = {" "};
      return format_text(machine_, *(spec.type == 's' ? str(machine_, value) : repr(machine_, value)), spec, '>');
    }
    require_defined(value);
    if (spec.type == 'c') {
      const auto* character = value.get_if<String>();
      if (character && (*character)->length == 1) return format_text(machine_, **character, spec, '>');
      require(value.is_integer() && value.integer() >= 0 && value.integer() < 0xd800,
              "expected a character for %c, found {}", type_name(value));
      std::string text;
      append_code_point(text, int32_t(value.integer()));
      return format_text(machine_, {std::move(text)}, spec, '>');
    }
    require(value.is_number(), "expected a number for the conversion {}, found {}", quote(std::string(1, spec.type)),
            type_name(value));
    if (reals.find(spec.type) != reals.npos) return format_real(machine_, value.real(), spec);
    require(integers.find(spec.type) != integers.npos, "expected a conversion of Python's, found {}",
            quote(std::string(1, spec.type)));
    require(value.is_integer() || (spec.type != 'x' && spec.type != 'X' && spec.type != 'o'),
            "expected an integer, found a float");
    require(std::abs(value.real()) < 0x1p63 || value.is_integer(), "expected an integer of 64 bits, found {}",
            repr_of_float(value.real()));
    return format_integer(machine_, value.is_integer() ? value.integer() : int64_t(value.real()), spec);
  }

  Machine& machine_;
  const Value& arguments_;
  Text out_;
  size_t used_ = 0;
};

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

// [[fill]align][sign][#][0][width][grouping][.precision][type]
Spec parse_spec(const Marked& format) {
  Spec spec;
  std::string_view text = format.bytes;
  const auto skip = [&](std::string_view any) {
    if (text.empty() || any.find(text[0]) == any.npos) return char(0);
    const char found = text[0];
    text.remove_prefix(1);
    return found;
  };
  const size_t fill = text.empty() ? 0 : code_point_at(text, 0).bytes;
  if (fill > 0 && fill < text.size() && is_align(text[fill])) {
    spec.fill = marked(std::string(text.substr(0, fill)), format.has_given());
    text.remove_prefix(fill);
  }
  spec.align = skip("<>^=");
  if (const char sign = skip("+- ")) spec.sign = sign;
  spec.alternate = skip("#") != 0;
  if (skip("0") && !spec.align) spec.align = '=', spec.fill = {"0"};
  spec.width = take_number(text, kMaxWidth);
  spec.grouping = skip(",_");
  if (skip(".")) spec.precision = take_number(text, kMaxPrecision);
  spec.type = skip("bcdeEfFgGnosxX%");
  require(text.empty(), "expected a format of Python's, found {} at its end", quote(text));
  return spec;
}

// The fields of str.format.
class Braces {
 public:
  Braces(Machine& machine, const Marked& whole, const Arguments& arguments)
      : machine_(machine), whole_(whole), arguments_(arguments) {}

  Marked all() { return all(whole_.bytes, 0); }

 private:
  // A part of the whole format.
  Marked all(std::string_view format, int depth) {
    require(depth < 2, "expected fields in fields at most once, found more");
    Text out(machine_);
    while (!format.empty()) {
      const size_t at = std::min(format.find_first_of("{}"), format.size());
      out.add(whole_, format.substr(0, at));
      format.remove_prefix(at);
      if (format.empty()) break;
      if (format.size() > 1 && format[0] == format[1]) {
        out.add(whole_, format.substr(0, 1));
        format.remove_prefix(2);
        continue;
      }
      require(format[0] == '{', "expected a {{ in front of a }}, found none");
      const size_t end = end_of_field(format);
      out += field(format.substr(1, end - 1), depth);
      format.remove_prefix(end + 1);
    }
    return out.take();
  }

  static size_t end_of_field(std::string_view format) {
    int open = 0;
    for (size_t i = 0; i < format.size(); ++i) {
      if (format[i] == '{') ++open;
      if (format[i] == '}' && --open == 0) return i;
    }
    refuse("expected a }} behind a {{, found none");
  }

  Marked field(std::string_view text, int depth) {
    const size_t name_end = std::min(text.find_first_of("!:"), text.size());
    Value value = argument(text.substr(0, name_end));
    text.remove_prefix(name_end);
    if (text.starts_with('!')) {
      require(text.size() >= 2 && (text[1] == 'r' || text[1] == 's') && (text.size() == 2 || text[2] == ':'),
              "expected !r or !s in a field, found {}", quote(text));
      value = text[1] == 'r' ? repr(machine_, value) : str(machine_, value);
      text.remove_prefix(2);
    }
    if (text.starts_with(':')) text.remove_prefix(1);
    if (text.find('{') != text.npos) return formatted(machine_, value, all(text, depth + 1));
    return formatted(machine_, value, *machine_.part(whole_, text));
  }

  // "0", "name", "name.attribute[key]" or nothing for the next one.
  Value argument(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = first(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      if (path[0] == '.') {
        const size_t next = std::min(path.find_first_of(".[", 1), path.size());
        value = attribute_or_item(machine_, value, path.substr(1, next - 1));
        path.remove_prefix(next);
        continue;
      }
      const size_t close = path.find(']');
      require(path[0] == '[' && close != path.npos, "expected a ] in a field, found none");
      value = item_or_attribute(machine_, value, key(path.substr(1, close - 1)));
      path.remove_prefix(close + 1);
    }
    return value;
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == text.npos;
  }

  Value key(std::string_view text) {
    return is_number(text) ? Value(take_number(text, kMaxWidth * 1000)) : machine_.string(std::string(text));
  }

  Value first(std::string_view name) {
    if (name.empty() || is_number(name)) {
      const size_t index = name.empty() ? next_++ : size_t(take_number(name, kMaxWidth * 1000));
      require(index < arguments_.positional.size(), "expected an argument {} of format, found {}", index,
              arguments_.positional.size());
      return arguments_.positional[index];
    }
    for (const auto& [other, value] : arguments_.named)
      if (other.bytes == name) return value;
    refuse("expected an argument {} of format, found none", quote(name));
  }

  Machine& machine_;
  const Marked& whole_;
  const Arguments& arguments_;
  size_t next_ = 0;
};

}  // namespace

Value format_percent(Machine& machine, const Str& format, const Value& arguments) {
  machine.budget.work(format.bytes.size());
  return Percent(machine, arguments).all(format);
}

Value format_braces(Machine& machine, const Str& format, const Arguments& arguments) {
  machine.budget.work(format.bytes.size());
  return machine.string(Braces(machine, format, arguments).all());
}

Marked formatted(Machine& machine, const Value& value, const Marked& format) {
  if (format.bytes.empty()) {
    const String text = str(machine, value);
    machine.budget.room(text->memory());
    return *text;
  }
  Spec spec = parse_spec(format);
  if (value.is_string()) {
    require((spec.type == 0 || spec.type == 's') && spec.align != '=', "expected a format of strings, found {}",
            quote(format.bytes));
    return format_text(machine, *value.get<String>(), spec, '<');
  }
  require(value.is_number(), "expected a number or a string for {}, found {}", quote(format.bytes), type_name(value));
  constexpr std::string_view reals = "eEfFgG%";
  if (spec.type == 'n') spec.type = 0;
  if (value.is<double>() || reals.find(spec.type) != reals.npos) {
    require(spec.type == 0 || reals.find(spec.type) != reals.npos, "expected a format of floats, found {}",
            quote(format.bytes));
    return format_real(machine, value.real(), spec);
  }
  require(spec.type != 's' && spec.precision < 0, "expected a format of integers, found {}", quote(format.bytes));
  if (spec.type != 'c') return format_integer(machine, value.integer(), spec);
  require(value.integer() >= 0 && value.integer() < 0xd800, "expected a character, found {}", value.integer());
  std::string text;
  append_code_point(text, int32_t(value.integer()));
  return format_text(machine, {std::move(text)}, spec, '<');
}

}  // namespace wick::jinja
