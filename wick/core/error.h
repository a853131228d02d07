// One exception type for everything a user or a file can cause.
//
// A message is one line: what was read (file, flag, tensor), what was expected, what was found, what to do.
// Our own invariants are asserts. Header-only, so that a backend module throws the type its host catches.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace wick {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What is wrong in itself: a command line, or a file of settings that stands for one. No file, model or device has a
// part in it; `wick` ends with 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

// No room where it was asked for. What would need less is left to whoever knows what is run.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) {
  throw Error(fmt::format(message, std::forward<Args>(args)...));
}

template <class... Args>
void check(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    fail(message, std::forward<Args>(args)...);
}

template <class... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> message, Args&&... args) {
  throw UsageError(fmt::format(message, std::forward<Args>(args)...));
}

template <class... Args>
void check_usage(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    fail_usage(message, std::forward<Args>(args)...);
}

}  // namespace wick
