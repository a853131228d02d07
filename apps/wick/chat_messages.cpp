#include "chat_messages.h"

#include <fmt/format.h>

#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/text/conversation.h"

namespace wick::cli {
namespace {

using Json = nlohmann::ordered_json;

Json list_in_file(const std::string& file, const char* key) {
  Json value = parse_json_in_order(read_file(file, kMaxConfigBytes), file);
  if (value.is_object() && value.contains(key)) value = Json(value.at(key));
  if (!value.is_array())
    fail_json(file, fmt::format("a list of {}, or an object with \"{}\"", key, key), nlohmann::json(value));
  return value;
}

// The template's name for a thought that is apart from the content; null if it has none.
const char* thought_key(const ChatTemplate& chat_template) {
  if (chat_template.mentions("reasoning_content")) return "reasoning_content";
  for (const char* form : {".thinking", "'thinking'", "\"thinking\""})
    if (chat_template.mentions(form)) return "thinking";
  return nullptr;
}

}  // namespace

Json tools_in_file(const std::string& file) { return tools_of(list_in_file(file, "tools"), file); }

Json documents_in_file(const std::string& file) {
  Json documents = list_in_file(file, "documents");
  for (const Json& document : documents)
    if (!document.is_object()) fail_json(file, "documents that are objects", nlohmann::json(document));
  return documents;
}

std::string names_of_tools(const Json& tools) {
  std::string names;
  for (const Json& tool : tools) {
    const Json& function = tool.contains("function") ? tool.at("function") : tool;
    names += (names.empty() ? "" : ", ") + function.at("name").get<std::string>();
  }
  return names.empty() ? "none" : names;
}

Json assistant_message(const AnswerPrinter& answer, const ChatTemplate& chat_template) {
  const char* const key = thought_key(chat_template);
  Json message{{"role", "assistant"}, {"content", key ? answer.answer() : answer.whole()}};
  if (key && !answer.thought().empty()) message[key] = answer.thought();
  return message;
}

}  // namespace wick::cli
