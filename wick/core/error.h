// One exception type for everything a user or a file can cause.
//
// A message is one line: the input (file, flag, tensor), the expected value, the value found, the way out.
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

// An error of a command line, or of a file of settings that stands for one, whatever the files, models and devices.
// `wick` ends with 2 instead of 1.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Memory ran out. Advice on needing less is left to the code that knows the run.
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
