// A line of `wick chat`: a message, or a command that begins with a slash.
#pragma once

#include <string>

namespace wick::cli {

enum class ChatAction { say, help, reset, tools, documents, result, save, exit };

struct ChatLine {
  ChatAction action;
  std::string text;  // the message, or the command's argument; empty if there is none
};

// A message that begins with a slash is written with a second one, or a space, before it. Throws Error, with a
// suggestion, for a command that there is not, and for one that lacks its argument or has too much.
ChatLine parse_chat_line(const std::string& line);

// The help of the commands, a line each.
std::string chat_help();

}  // namespace wick::cli
