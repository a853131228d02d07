// Parts of a chat's conversation that the user does not type: tools and documents from files, and the model's answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "answer_printer.h"
#include "wick/text/chat.h"

namespace wick::cli {

// The list in a JSON file: the file's value, or that of the key "tools" or "documents" of its object. Throws Error,
// which begins with the file, if there is none, and where its items are of another form.
nlohmann::ordered_json tools_in_file(const std::string& file);      // as tools_of (text/conversation.h) has it
nlohmann::ordered_json documents_in_file(const std::string& file);  // objects, with the keys that the template names

// "add, get_weather", or "none".
std::string names_of_tools(const nlohmann::ordered_json& tools);

// The assistant's message. Its thought has a key of its own where the template knows one; else it stays in the content,
// between its marks, and the template says what later turns show of it.
nlohmann::ordered_json assistant_message(const AnswerPrinter& answer, const ChatTemplate& chat_template);

}  // namespace wick::cli
