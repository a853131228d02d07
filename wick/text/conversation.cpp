#include "wick/text/conversation.h"

#include <array>
#include <optional>

#include "wick/io/json.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

using OrderedJson = nlohmann::ordered_json;

[[noreturn]] void fail_value(const std::string& where, std::string_view expected, const OrderedJson& found) {
  fail_json(where, expected, nlohmann::json(found));
}

bool is_nothing(const OrderedJson& value) { return value.is_null() || (value.is_structured() && value.empty()); }

// Takes the keys that say whether an answer is learnt out of a message. None where there is no such key.
std::optional<bool> take_learns(OrderedJson& message, const std::string& where) {
  std::optional<bool> learns;
  if (const auto found = message.find("weight"); found != message.end()) {
    if (*found != 0 && *found != 1) fail_value(where + ": \"weight\"", "0 or 1", *found);
    learns = *found == 1;
    message.erase("weight");
  }
  for (const char* key : {"train", "training"}) {
    const auto found = message.find(key);
    if (found == message.end()) continue;
    if (!found->is_boolean()) fail_value(fmt::format("{}: \"{}\"", where, key), "true or false", *found);
    const bool value = found->get<bool>();
    check(!learns || *learns == value, "{}: \"{}\" says another thing than the keys before it", where, key);
    learns = value;
    message.erase(key);
  }
  return learns;
}

void check_content(const OrderedJson& content, const std::string& where) {
  if (content.is_string()) return;
  if (!content.is_array()) fail_value(where, "a text, null or a list of parts", content);
  for (const OrderedJson& part : content)
    if (!part.is_string() && !(part.is_object() && part.contains("type")))
      fail_value(where, "parts of the form {\"type\": \"text\", \"text\": \"...\"}", part);
}

// As transformers fills the names of thoughts from each other (utils/chat_template_utils.py, _alias_reasoning_fields).
void fill_thoughts(OrderedJson& message) {
  const OrderedJson* thought = nullptr;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"})
    if (const auto found = message.find(key); !thought && found != message.end()) thought = &*found;
  if (!thought) return;
  const OrderedJson value = *thought;
  OrderedJson filled = OrderedJson::object();
  filled["thinking"] = value;
  for (const auto& [key, each] : message.items()) filled[key] = each;
  filled["reasoning_content"] = value;
  message = std::move(filled);
}

OrderedJson message_of(const OrderedJson& item, const std::string& where) {
  if (!item.is_object()) fail_value(where, "an object with \"role\" and \"content\"", item);
  OrderedJson message = OrderedJson::object();
  for (const auto& [key, value] : item.items())
    if (!value.is_null()) message[key] = value;
  check(message.contains("role"), "{}: the key \"role\" is missing", where);
  if (!message["role"].is_string()) fail_value(where + ": \"role\"", "a string", message["role"]);
  if (message.contains("content")) check_content(message["content"], where + ": \"content\"");
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && !calls->is_array()) fail_value(where + ": \"tool_calls\"", "a list", *calls);
  check(message.contains("content") || !is_nothing(message.value("tool_calls", OrderedJson())) ||
            item.contains("content"),
        "{}: the key \"content\" is missing", where);
  fill_thoughts(message);
  return message;
}

// Keys beside "messages" that say how to learn or what else to write, and that Wick has another place for.
struct ForeignKey {
  const char *key, *advice;
};
constexpr std::array kForeign{
    ForeignKey{"system", "make it a message of the role system"},
    ForeignKey{"system_prompt", "make it a message of the role system"},
    ForeignKey{"functions", "write them as \"tools\""},
    ForeignKey{"loss_mask", "write \"train\": false into the messages that are not learnt"},
    ForeignKey{"labels", "write \"train\": false into the messages that are not learnt"},
    ForeignKey{"weight", "write it into the messages"},
    ForeignKey{"train", "write it into the messages"},
    ForeignKey{"enable_thinking", "write it into \"chat_template_kwargs\""},
    ForeignKey{"chosen", "Wick learns from one answer: write it as the last message"},
    ForeignKey{"rejected", "Wick learns from one answer: write it as the last message"},
    ForeignKey{"images", "a language model reads text alone"},
    ForeignKey{"videos", "a language model reads text alone"},
    ForeignKey{"audios", "a language model reads text alone"},
};

OrderedJson list_at(const OrderedJson& line, const char* key, const std::string& where) {
  const auto found = line.find(key);
  if (found == line.end() || found->is_null()) return {};
  if (!found->is_array()) fail_value(fmt::format("{}: \"{}\"", where, key), "a list", *found);
  return *found;
}

}  // namespace

void check_no_foreign_keys(const OrderedJson& line, const std::string& where) {
  for (const ForeignKey& foreign : kForeign)
    if (const auto found = line.find(foreign.key); found != line.end() && !is_nothing(*found))
      fail("{}: found the key \"{}\": {}", where, foreign.key, foreign.advice);
}

OrderedJson tools_of(const OrderedJson& list, const std::string& where) {
  if (!list.is_array()) fail_value(where, "a list of tools", list);
  for (const OrderedJson& tool : list) {
    const OrderedJson* function = tool.is_object() && tool.contains("function") ? &tool.at("function") : &tool;
    if (!function->is_object() || !function->contains("name") || !function->at("name").is_string())
      fail_value(where, "tools of the form {\"type\": \"function\", \"function\": {\"name\": \"...\"}}", tool);
  }
  return list;
}

Conversation conversation_of(const OrderedJson& line, const std::string& where) {
  check_no_foreign_keys(line, where);
  const auto messages = line.find("messages");
  if (messages == line.end() || !messages->is_array())
    fail_value(where + ": \"messages\"", "a list", messages == line.end() ? OrderedJson() : *messages);
  Conversation made;
  for (const OrderedJson& item : *messages) {
    const std::string which = fmt::format("{}: message {}", where, made.messages.size() + 1);
    OrderedJson message = message_of(item, which);
    made.learns.push_back(take_learns(message, which).value_or(true));
    made.messages.push_back(std::move(message));
  }
  check(!made.messages.empty(), "{}: \"messages\": expected at least one, found none", where);
  if (OrderedJson tools = list_at(line, "tools", where); !tools.is_null())
    made.tools = tools_of(tools, where + ": \"tools\"");
  made.documents = list_at(line, "documents", where);
  for (const OrderedJson& document : made.documents)
    if (!document.is_object()) fail_value(where + ": \"documents\"", "objects with \"title\" and \"text\"", document);
  if (const auto found = line.find("chat_template_kwargs"); found != line.end() && !found->is_null()) {
    if (!found->is_object()) fail_value(where + ": \"chat_template_kwargs\"", "an object", *found);
    made.variables = *found;
  }
  for (const auto& [key, value] : line.items())
    if (key != "messages" && key != "tools" && key != "documents" && key != "chat_template_kwargs" &&
        !is_nothing(value))
      made.others.push_back(key);
  return made;
}

}  // namespace wick
