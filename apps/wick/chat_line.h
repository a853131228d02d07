// A line of `wick chat`: a message, or a command that begins with a slash.
#pragma once

#include <string>

namespace wick::cli {

enum class ChatAction { say, help, reset, save, exit };

struct ChatLine {
  ChatAction action;
  std::string text;  // the message, or what stands behind the command
};

// A message that begins with a slash is written with a second one, or a space, before it. Throws Error, with a
// suggestion, for a command that there is not, and for one that lacks its argument or has too much.
ChatLine parse_chat_line(const std::string& line);

// The help of the commands, a line each.
std::string chat_help();

}  // namespace wick::cli
