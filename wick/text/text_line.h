// A line of training text: a JSON object of one of these forms; other keys are ignored.
//
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//   {"prompt": "...", "completion": "..."}
//   {"text": "..."}
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "wick/text/chat.h"

namespace wick {

struct TextCompletion {
  std::string prompt, completion;
};
using TextLine = std::variant<std::vector<ChatMessage>, TextCompletion, std::string>;

inline constexpr const char* kTextLineForms = "\"messages\", \"prompt\" and \"completion\", or \"text\"";

// Throws Error: "`where`: expected …, found …".
TextLine parse_text_line(std::string_view line, const std::string& where);

}  // namespace wick
