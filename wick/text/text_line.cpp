#include "wick/text/text_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "wick/io/json.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

using OrderedJson = nlohmann::ordered_json;

void check_form(const OrderedJson& object, const std::string& where) {
  check(object.is_object(), "{}: expected an object with {}, found {}", where, kTextLineForms, object.type_name());
  const bool chat = object.contains("messages"), text = object.contains("text");
  const bool completion = object.contains("prompt") || object.contains("completion");
  if (int(chat) + int(text) + int(completion) == 1) return;
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items())
    if (keys.size() < 5) keys.push_back(quote(key));
  fail("{}: expected one of {}, found the keys {}", where, kTextLineForms,
       keys.empty() ? "of none" : fmt::format("{}", fmt::join(keys, ", ")));
}

// Keys with which a text would be another one.
void check_plain(const OrderedJson& object, const std::string& where) {
  check_no_foreign_keys(object, where);
  for (const char* key : {"tools", "documents", "chat_template_kwargs"}) {
    const auto found = object.find(key);
    check(found == object.end() || found->is_null() || found->empty(),
          "{}: found the key \"{}\", which is for a chat template; write \"messages\", or take it out", where, key);
  }
}

std::string text_at(const OrderedJson& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  check(found != object.end() && !found->is_null(), "{}: the key \"{}\" is missing", where, key);
  if (!found->is_string()) fail_json(fmt::format("{}: {}", where, key), "a string", nlohmann::json(*found));
  return found->get<std::string>();
}

// A prompt and its completion as messages: those of the prompt do not count.
Conversation conversation_of_parts(const OrderedJson& object, const std::string& where) {
  OrderedJson line = object;
  line.erase("prompt"), line.erase("completion");
  line["messages"] = OrderedJson::array();
  for (const char* key : {"prompt", "completion"})
    for (const OrderedJson& message : object.at(key)) line["messages"].push_back(message);
  Conversation made = conversation_of(line, where);
  for (size_t i = 0; i < object.at("prompt").size(); ++i) made.learns[i] = false;
  return made;
}

}  // namespace

TextLine parse_text_line(std::string_view line, const std::string& where) {
  const OrderedJson object = parse_json_in_order(line, where);
  check_form(object, where);
  if (object.contains("messages")) return conversation_of(object, where);
  const auto is_list = [&](const char* key) { return object.contains(key) && object.at(key).is_array(); };
  if (is_list("prompt") && is_list("completion")) return conversation_of_parts(object, where);
  check_plain(object, where);
  if (object.contains("text")) return text_at(object, "text", where);
  return TextCompletion{text_at(object, "prompt", where), text_at(object, "completion", where)};
}

}  // namespace wick
