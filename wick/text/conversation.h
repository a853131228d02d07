// Conversations as people have them: the arguments of transformers' apply_chat_template.
//
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "...", "tool_calls": [...]}],
//    "tools": [...], "documents": [...], "chat_template_kwargs": {"enable_thinking": false}}
//
// Messages keep every key and the order of keys, because a template may print them. What transformers 5 does before it
// renders is done here too: keys whose value is null are dropped, and the names of thoughts ("reasoning_content",
// "thinking", "reasoning") are filled from each other.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace wick {

struct Conversation {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // objects, each with a "role"
  nlohmann::ordered_json tools, documents;                            // lists; null where there are none
  nlohmann::ordered_json variables;  // chat_template_kwargs: an object; null where there are none
  std::vector<bool> learns;          // for each message: false leaves an assistant's out of the loss; empty: none
  std::vector<std::string> others;   // keys beside these; a template must not ask for variables of their names

  void say(std::string_view role, std::string_view content) {
    messages.push_back({{"role", role}, {"content", content}});
  }
};

// Reads a line's object with "messages". The key "weight" (0 or 1) or "train" (true or false) of a message becomes
// `learns`. Throws Error: "`where`: expected …, found …", also for keys beside "messages" that no template is given.
Conversation conversation_of(const nlohmann::ordered_json& line, const std::string& where);

// Throws Error for a key of a line that says how to learn, or what else to write, and has no meaning here.
void check_no_foreign_keys(const nlohmann::ordered_json& line, const std::string& where);

// A list of tools as a file has it: JSON schemas of functions, {"type": "function", "function": {...}} each.
nlohmann::ordered_json tools_of(const nlohmann::ordered_json& list, const std::string& where);

}  // namespace wick
