// Runs `wick` at a terminal, as a user does who types.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "cli/program.h"

namespace wick {

class Terminal {
 public:
  // Both are shell text; with `job` it is a job of the shell, which goes on with what stands behind the arguments.
  Terminal(const std::string& arguments, const std::string& variables, bool job = false) {
    const std::string command = "export OMP_NUM_THREADS=1 TERM=xterm " + variables + (job ? "; set -m; " : "; exec ") +
                                "'" + wick_binary() + "' " + arguments;
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = forkpty(&fd_, nullptr, nullptr, &size);
    if (child_ == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
  }
  ~Terminal() {
    close(fd_);
    if (child_ > 0 && !is_over_) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) {
    for (size_t at = 0; at < keys.size();) {  // what is echoed is read meanwhile: a terminal holds a few KiB
      const ssize_t written = write(fd_, keys.data() + at, std::min<size_t>(keys.size() - at, 512));
      ASSERT_GT(written, 0);
      at += size_t(written);
      if (at < keys.size()) read_for(0);
    }
  }

  // Waits until this is shown, behind what was waited for before.
  void await(const std::string& text) {
    while (shown_.find(text, seen_) == shown_.npos)
      if (!read_for(20'000)) FAIL() << "expected '" << text << "' behind:\n" << shown_.substr(seen_);
    seen_ = shown_.find(text, seen_) + text.size();
  }
  // Waits for a prompt, and until keys go to the program: the terminal edits lines itself before that.
  void await_prompt() {
    await("> ");
    for (int times = 0; times < 10'000; ++times) {
      termios modes{};
      if (tcgetattr(fd_, &modes) == 0 && (modes.c_lflag & ICANON) == 0) return;
      usleep(1000);
    }
    FAIL() << "no line is edited";
  }
  // Types Ctrl-C as soon as anything more is shown.
  void interrupt_when_shown() {
    if (shown_.size() == seen_) read_for(20'000);
    type("\x03");
  }
  const std::string& shown() const { return shown_; }

  int code() {  // of the end, as a shell tells it; a program that says nothing for long and does not end is killed
    while (read_for(20'000)) continue;
    pollfd terminal{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&terminal, 1, 0) == 0) kill(child_, SIGKILL);
    int status = 0;
    is_over_ = waitpid(child_, &status, 0) == child_;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  // False where nothing comes in so many milliseconds, or no more.
  bool read_for(int milliseconds) {
    pollfd terminal{.fd = fd_, .events = POLLIN, .revents = 0};
    char bytes[4096];
    if (poll(&terminal, 1, milliseconds) <= 0) return false;
    const ssize_t read = ::read(fd_, bytes, sizeof bytes);
    if (read > 0) shown_.append(bytes, size_t(read));
    return read > 0;
  }

  pid_t child_ = -1;
  int fd_ = -1;
  std::string shown_;
  size_t seen_ = 0;
  bool is_over_ = false;
};

}  // namespace wick
