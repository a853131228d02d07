#include "wick/text/jinja_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "wick/io/quote.h"
#include "wick/text/jinja/characters.h"
#include "wick/text/jinja/lexer.h"
#include "wick/text/jinja/machine.h"
#include "wick/text/jinja/parser.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

using nlohmann::ordered_json;

std::string checked_text(const std::string& text) {
  jinja::require(invalid_utf8(text) == text.npos, "expected texts in UTF-8, found other bytes");
  return text;
}

// What is given of a variable: no string, each, or each but for the roles of messages.
enum class Given { nothing, all, messages };

Given given_of(Given given, int depth, const std::string& key, const ordered_json& value) {
  const bool is_role = given == Given::messages && depth == 1 && key == "role" && value.is_string();
  return is_role ? Given::nothing : given;
}

// Variables are the caller's, so they need no steps, but memory.
jinja::Value value_of(jinja::Machine& machine, const ordered_json& json, int depth, Given given) {
  using Type = ordered_json::value_t;
  const auto string = [&](const std::string& text) {
    return machine.string(jinja::marked(checked_text(text), given != Given::nothing));
  };
  jinja::require(depth < jinja::kMaxValueDepth, "expected variables at most {} deep, found more",
                 jinja::kMaxValueDepth);
  switch (json.type()) {
    case Type::boolean:
      return json.get<bool>();
    case Type::number_unsigned:
      jinja::require(json.get<uint64_t>() <= uint64_t(INT64_MAX), "expected integers of 64 bits, found {}",
                     json.get<uint64_t>());
      return json.get<int64_t>();
    case Type::number_integer:
      return json.get<int64_t>();
    case Type::number_float:
      return json.get<double>();
    case Type::string:
      return string(json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<jinja::Value> values;
      for (const ordered_json& each : json) values.push_back(value_of(machine, each, depth + 1, given));
      return machine.list(std::move(values));
    }
    case Type::object: {
      jinja::Dict::Pairs pairs;
      for (const auto& [key, each] : json.items())
        pairs.emplace_back(string(key), value_of(machine, each, depth + 1, given_of(given, depth, key, each)));
      return machine.dict(std::move(pairs));
    }
    default:
      return {};
  }
}

// The messages, of which one alone is given.
jinja::Value with_one_given(jinja::Machine& machine, const ordered_json& messages, size_t message) {
  std::vector<jinja::Value> values;
  for (const ordered_json& each : messages)
    values.push_back(value_of(machine, each, 1, values.size() == message ? Given::messages : Given::nothing));
  return machine.list(std::move(values));
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

// Ranges of characters as ranges of bytes; a range may reach past the end.
std::vector<std::pair<size_t, size_t>> byte_ranges(const std::string& text,
                                                   const std::vector<std::pair<size_t, size_t>>& ranges) {
  std::vector<std::pair<size_t, size_t>> made;
  size_t from = 0, byte = 0;  // a place that is known: most ranges are in order
  const auto byte_at = [&](size_t character) {
    if (character < from) from = byte = 0;
    byte += jinja::byte_of(std::string_view(text).substr(byte), character - from);
    from = character;
    return byte;
  };
  for (const auto& [start, end] : ranges) {
    const size_t first = byte_at(start);
    made.emplace_back(first, byte_at(end));
  }
  return made;
}

}  // namespace

struct JinjaTemplate::Parsed {
  std::string name;
  jinja::Block block;
};

JinjaTemplate JinjaTemplate::parse(const std::string& source, std::string name) {
  check(source.size() <= jinja::kMaxSourceBytes, "{}: expected a chat template of at most {} bytes, found {}", name,
        jinja::kMaxSourceBytes, source.size());
  check(invalid_utf8(source) == source.npos, "{}: expected a chat template in UTF-8, found other bytes", name);
  JinjaTemplate made;
  try {
    jinja::Block block = jinja::parse(source);
    made.parsed_ = std::make_shared<const Parsed>(Parsed{std::move(name), std::move(block)});
  } catch (const jinja::SyntaxProblem& problem) {
    fail("{}: line {} of the chat template: {}", name, problem.line, problem.message);
  }
  return made;
}

JinjaText JinjaTemplate::render(const ordered_json& variables, const JinjaOptions& options) const {
  jinja::Machine machine(options.limits, options.now ? *options.now : local_time());
  std::vector<std::pair<std::string_view, jinja::Value>> values;
  for (const auto& [name, value] : variables.items()) {
    const bool is_messages = name == "messages";
    const bool is_given = std::find(options.given.begin(), options.given.end(), name) != options.given.end() &&
                          !options.message.has_value();
    const Given given = !is_given ? Given::nothing : is_messages ? Given::messages : Given::all;
    try {
      values.emplace_back(name, is_messages && options.message ? with_one_given(machine, value, *options.message)
                                                               : value_of(machine, value, 0, given));
    } catch (const jinja::Problem& problem) {
      fail("{}: the chat template's variable {}: {}", parsed_->name, quote(name), problem.message);
    }
  }
  JinjaText rendered;
  try {
    jinja::Marked text = machine.render(parsed_->block, std::move(values));
    rendered.text = std::move(text.bytes), rendered.given = std::move(text.given);
  } catch (const jinja::Problem& problem) {
    fail("{}: line {} of the chat template: {}", parsed_->name, machine.line(), problem.message);
  }
  rendered.generated = byte_ranges(rendered.text, machine.generated());
  rendered.missing.assign(machine.missing().begin(), machine.missing().end());
  rendered.steps = machine.budget.steps();
  return rendered;
}

}  // namespace wick
