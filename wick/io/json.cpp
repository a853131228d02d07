#include "wick/io/json.h"

#include <fmt/format.h>

#include <vector>

#include "wick/io/file.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Python's words for numbers that JSON lacks. The library does not read such words, but reports how a fraction was
// spelt: so each is replaced by a spelling that no file has.
struct PythonNumber {
  std::string_view word, spelt;
  double value;
};
constexpr PythonNumber kPythonNumbers[] = {
    {"NaN", "0.6710886400000000e-7001", std::numeric_limits<double>::quiet_NaN()},
    {"Infinity", "0.6710886400000000e-7002", kInfinity},
    {"-Infinity", "-0.6710886400000000e-7002", -kInfinity}};

const PythonNumber* python_number_at(std::string_view text, size_t at) {
  const auto stands_alone = [&](size_t end) {
    const auto among = [](char c, std::string_view all) { return all.find(c) != all.npos; };
    return (at == 0 || among(text[at - 1], " \t\r\n,:[")) && (end == text.size() || among(text[end], " \t\r\n,]}"));
  };
  for (const PythonNumber& number : kPythonNumbers)
    if (text.substr(at).starts_with(number.word) && stands_alone(at + number.word.size())) return &number;
  return nullptr;
}

std::string with_python_numbers_spelt(std::string_view text) {
  std::string spelt;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted && c == '\\' && at + 1 < text.size()) {
      spelt += c, spelt += text[++at];
      continue;
    }
    if (c == '"') quoted = !quoted;
    const PythonNumber* number = quoted || (c != 'N' && c != 'I' && c != '-') ? nullptr : python_number_at(text, at);
    if (!number) {
      spelt += c;
      continue;
    }
    spelt += number->spelt;
    at += number->word.size() - 1;
  }
  return spelt;
}

// Builds the tree, and refuses a duplicate key in an object, which the library would pass over: some parsers take the
// first, some the last. Nesting is bounded because trees are copied by recursion.
template <class Json>
class TreeBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(const std::string& source) : source_(source) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr), true; }
  bool boolean(bool value) override { return put(value), true; }
  bool number_integer(int64_t value) override { return put(value), true; }
  bool number_unsigned(uint64_t value) override { return put(value), true; }
  bool number_float(double value, const std::string& spelt) override {
    for (const PythonNumber& number : kPythonNumbers)
      if (spelt == number.spelt) value = number.value;
    return put(value), true;
  }
  bool string(std::string& value) override { return put(std::move(value)), true; }
  bool binary(typename Json::binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json::object()), true; }
  bool end_object() override { return open_.pop_back(), true; }
  bool start_array(size_t) override { return open(Json::array()), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool key(std::string& name) override {
    const auto [at, fresh] = open_.back()->template get_ref<typename Json::object_t&>().emplace(name, nullptr);
    check(fresh, "{}: the key {} stands twice in one object", source_, quote(name));
    place_ = &at->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& problem) override {
    fail("{}: not valid JSON: {}", source_, describe(problem));
  }

 private:
  Json* put(Json value) {
    Json& place = open_.empty() ? root_ : open_.back()->is_array() ? open_.back()->emplace_back() : *place_;
    place = std::move(value);
    return &place;
  }
  void open(Json empty) {
    constexpr size_t kDeepest = 100;
    check(open_.size() < kDeepest, "{}: not valid JSON for Wick: it is nested more than {} deep", source_, kDeepest);
    open_.push_back(put(std::move(empty)));
  }

  const std::string& source_;
  Json root_;
  std::vector<Json*> open_;  // the lists and objects that have begun, the innermost last
  Json* place_ = nullptr;    // for the value behind a key
};

template <class Json>
Json parsed(std::string_view text, const std::string& source, JsonNumbers numbers) {
  // The library takes a NUL for the end of its input and would ignore the rest.
  check(text.find('\0') == text.npos, "{}: not valid JSON: it contains a NUL byte", source);
  const bool spelt =
      numbers == JsonNumbers::python && (text.find("NaN") != text.npos || text.find("Infinity") != text.npos);
  TreeBuilder<Json> tree(source);
  const std::string in_json = spelt ? with_python_numbers_spelt(text) : "";
  Json::sax_parse(spelt ? std::string_view(in_json) : text, &tree);
  return tree.take();
}

std::string_view python_word(double value) { return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity"; }

bool is_python_number(const json& value) { return value.is_number_float() && !std::isfinite(value.get<double>()); }

void spell_python_numbers(json& value) {
  if (is_python_number(value)) value = fmt::format("{}{}", kPythonNumbers[0].spelt, python_word(value.get<double>()));
  if (value.is_structured())
    for (json& part : value) spell_python_numbers(part);
}

}  // namespace

std::string describe(const nlohmann::json::exception& problem) {
  const std::string_view text = problem.what();
  const size_t start = text.find("] ");  // after "[json.exception.parse_error.101] "
  std::string_view rest = start == text.npos ? text : text.substr(start + 2);
  for (std::string_view prefix : {"parse error at ", "parse error "})
    if (rest.starts_with(prefix)) rest.remove_prefix(prefix.size());
  return excerpt(rest);
}

json parse_json(std::string_view text, const std::string& source, JsonNumbers numbers) {
  return parsed<json>(text, source, numbers);
}

nlohmann::ordered_json parse_json_in_order(std::string_view text, const std::string& source) {
  return parsed<nlohmann::ordered_json>(text, source, JsonNumbers::finite);
}

json read_json(const std::filesystem::path& path, size_t max_bytes) {
  return parse_json(read_file(path, max_bytes), path.string(), JsonNumbers::python);
}

std::string to_text(json value) {
  spell_python_numbers(value);
  std::string text = value.dump(2);
  for (const PythonNumber& number : kPythonNumbers) {
    const std::string spelt = fmt::format("\"{}{}\"", kPythonNumbers[0].spelt, number.word);
    for (size_t at; (at = text.find(spelt)) != text.npos;) text.replace(at, spelt.size(), number.word);
  }
  return text + "\n";
}

const json* find_member(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const json& member(const json& object, const std::string& key, const std::string& source) {
  check(object.is_object(), "{}: expected a JSON object with the key {}, found {}", source, quote(key),
        object.type_name());
  const json* found = find_member(object, key);
  check(found, "{}: the key {} is missing", source, quote(key));
  return *found;
}

const json& as_list(const json& value, const std::string& where, std::string_view expected) {
  if (!value.is_array()) fail_json(where, expected, value);
  return value;
}

const json& as_object(const json& value, const std::string& where, std::string_view expected) {
  if (!value.is_object()) fail_json(where, expected, value);
  return value;
}

void fail_json(const std::string& where, std::string_view expected, const json& found) {
  fail("{}: expected {}, found {}", where, expected,
       found.is_array()          ? "a list"
       : found.is_object()       ? "an object"
       : is_python_number(found) ? std::string(python_word(found.get<double>()))
                                 : found.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 100));
}

}  // namespace wick
