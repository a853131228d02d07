// The lines that were typed in chats, kept for the next one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace wick::cli {

// A file of lines that the user alone may read. Where it cannot be read or written there is no history, which is no
// error.
class ChatHistory {
 public:
  static constexpr size_t kLines = 1000;  // that are kept, the newest

  // wick/chat_history in $XDG_STATE_HOME, or in ~/.local/state; empty where neither is known.
  static std::filesystem::path file();

  explicit ChatHistory(std::filesystem::path file);
  const std::vector<std::string>& lines() const { return lines_; }  // the oldest first
  void add(const std::string& line);  // unless it repeats the last one, is empty or longer than 4 KiB

 private:
  std::filesystem::path file_;
  std::vector<std::string> lines_;
};

}  // namespace wick::cli
