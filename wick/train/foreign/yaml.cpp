#include "wick/train/foreign/yaml.h"

#include <yaml.h>

#include <algorithm>
#include <charconv>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/tree.h"

namespace wick {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 100;

template <class T>
bool is_one_of(const T& words, std::string_view word) {
  return std::ranges::find(words, word) != std::end(words);
}

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

Json plain_scalar(const std::string& text) {
  static constexpr std::string_view kNull[] = {"", "~", "null", "Null", "NULL"};
  static constexpr std::string_view kTrue[] = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"};
  static constexpr std::string_view kFalse[] = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"};
  if (is_one_of(kNull, text)) return nullptr;
  if (is_one_of(kTrue, text)) return true;
  if (is_one_of(kFalse, text)) return false;
  if (text.find_first_not_of("0123456789+-._eE") != text.npos) return text;
  std::string digits = text;
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  int64_t whole{};
  double number{};
  const bool is_octal = digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of("01234567") == digits.npos;
  if (!is_octal && parse_number(digits, whole)) return whole;
  if (digits.find_first_of(".eE") != digits.npos && parse_number(digits, number)) return number;
  return text;
}

class YamlReader {
 public:
  YamlReader(std::string_view text, const std::string& source) : source_(source) {
    check(yaml_parser_initialize(&parser_) == 1, "{}: libyaml has no memory", source);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~YamlReader() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }
  YamlReader(const YamlReader&) = delete;
  YamlReader& operator=(const YamlReader&) = delete;

  Json operator()() {
    next();  // the stream begins
    next();
    if (event_.type != YAML_DOCUMENT_START_EVENT) refuse("expected a mapping of options, found nothing");
    next();
    if (event_.type != YAML_MAPPING_START_EVENT) refuse("expected a mapping of options");
    Json tree = value(0);
    next();  // the document ends
    next();
    if (event_.type != YAML_STREAM_END_EVENT) refuse("expected one document, found a second");
    return tree;
  }

 private:
  void next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 1) return;
    event_ = {};
    fail_usage("{}: line {}: {}", source_, parser_.problem_mark.line + 1,
               parser_.problem ? printable(parser_.problem) : "not YAML");
  }

  [[noreturn]] void refuse(const std::string& what) const {
    fail_usage("{}: line {}: {}", source_, event_.start_mark.line + 1, what);
  }

  void refuse_tag(const yaml_char_t* tag) const {
    if (tag) refuse("expected no tags, found " + quote(reinterpret_cast<const char*>(tag)));
  }

  // Of the event that was read; ends with its last one.
  Json value(int depth) {
    if (depth > kMaxDepth) refuse(fmt::format("expected at most {} levels", kMaxDepth));
    switch (event_.type) {
      case YAML_SCALAR_EVENT:
        return scalar();
      case YAML_SEQUENCE_START_EVENT:
        return list(depth);
      case YAML_MAPPING_START_EVENT:
        return mapping(depth);
      default:
        refuse("expected no aliases; write the value there too");
    }
  }

  Json scalar() const {
    const auto& found = event_.data.scalar;
    const std::string text(reinterpret_cast<const char*>(found.value), found.length);
    refuse_tag(found.tag);
    return found.style == YAML_PLAIN_SCALAR_STYLE ? plain_scalar(text) : Json(text);
  }

  Json list(int depth) {
    refuse_tag(event_.data.sequence_start.tag);
    Json all = Json::array();
    for (next(); event_.type != YAML_SEQUENCE_END_EVENT; next()) all.push_back(value(depth + 1));
    return all;
  }

  Json mapping(int depth) {
    refuse_tag(event_.data.mapping_start.tag);
    Json all = Json::object();
    for (next(); event_.type != YAML_MAPPING_END_EVENT; next()) {
      if (event_.type != YAML_SCALAR_EVENT) refuse("expected a name as a key");
      const auto& found = event_.data.scalar;
      const std::string key(reinterpret_cast<const char*>(found.value), found.length);
      if (all.size() >= kMaxOptions) refuse(fmt::format("expected at most {} options", kMaxOptions));
      if (all.contains(key)) refuse(fmt::format("{}: expected it once", printable(key)));
      next();
      all[key] = value(depth + 1);
    }
    return all;
  }

  std::string source_;
  yaml_parser_t parser_ = {};
  yaml_event_t event_ = {};
};

}  // namespace

Json parse_yaml(std::string_view text, const std::string& source) { return YamlReader(text, source)(); }

}  // namespace wick
