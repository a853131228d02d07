#include "wick/text/text_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "wick/io/json.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

using nlohmann::json;

// Keys that would change the training are refused, not ignored.
std::vector<ChatMessage> messages_of(const json& list, const std::string& where) {
  std::vector<ChatMessage> messages;
  for (const json& item : as_list(list, where + ": \"messages\"")) {
    const std::string which = fmt::format("{}: message {}", where, messages.size() + 1);
    messages.push_back({get<std::string>(item, "role", which), get<std::string>(item, "content", which)});
    for (const auto& [key, value] : item.items())
      check(key == "role" || key == "content" || value.empty(), "{}: expected \"role\" and \"content\", found {} too",
            which, quote(key));
  }
  return messages;
}

void check_form(const json& object, const std::string& where) {
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

}  // namespace

TextLine parse_text_line(std::string_view line, const std::string& where) {
  const json object = parse_json(line, where);
  check_form(object, where);
  const auto text_at = [&](const char* key) { return get<std::string>(object, key, where); };
  if (object.contains("messages")) return messages_of(object.at("messages"), where);
  if (object.contains("text")) return text_at("text");
  return TextCompletion{text_at("prompt"), text_at("completion")};
}

}  // namespace wick
