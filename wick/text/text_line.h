// A line of training text: a JSON object of one of these forms.
//
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}   (text/conversation.h)
//   {"prompt": "...", "completion": "..."}
//   {"prompt": [messages], "completion": [messages]}      a conversation, of which the completion counts
//   {"text": "..."}
//
// Other keys are ignored, but for those that say how to learn or what else to write.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "wick/text/conversation.h"

namespace wick {

struct TextCompletion {
  std::string prompt, completion;
};
using TextLine = std::variant<Conversation, TextCompletion, std::string>;

inline constexpr const char* kTextLineForms = "\"messages\", \"prompt\" and \"completion\", or \"text\"";

// Throws Error: "`where`: expected …, found …".
TextLine parse_text_line(std::string_view line, const std::string& where);

}  // namespace wick
