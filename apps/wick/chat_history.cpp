#include "chat_history.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <system_error>

#include "wick/core/error.h"
#include "wick/io/file.h"

namespace wick::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongest = 4096, kLargest = size_t{64} << 20;

fs::path folder_in(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value == '/' ? fs::path(value) : fs::path();  // XDG: relative paths are to be ignored
}

}  // namespace

fs::path ChatHistory::file() {
  fs::path state = folder_in("XDG_STATE_HOME");
  if (const fs::path home = folder_in("HOME"); state.empty() && !home.empty()) state = home / ".local/state";
  return state.empty() ? state : state / "wick/chat_history";
}

ChatHistory::ChatHistory(fs::path file) : file_(std::move(file)) {
  std::error_code ignored;
  if (!fs::exists(file_, ignored)) return;
  try {
    std::istringstream text(read_file(file_, kLargest));
    for (std::string line; std::getline(text, line);) lines_.push_back(line);
    if (lines_.size() <= kLines) return;
    lines_.erase(lines_.begin(), lines_.end() - ptrdiff_t(kLines));
    std::string newest;
    for (const std::string& line : lines_) newest += line + "\n";
    write_file_atomically(file_, newest);
  } catch (const Error&) {  // there is no history, or it stays longer than it should
  }
}

void ChatHistory::add(const std::string& line) {
  if (line.empty() || line.size() > kLongest || (!lines_.empty() && line == lines_.back()) || file_.empty()) return;
  lines_.push_back(line);
  std::error_code ignored;
  fs::create_directories(file_.parent_path(), ignored);
  // A pipe is not waited for.
  const int fd = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return;
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
  ::close(fd);
}

}  // namespace wick::cli
