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

}  // namespace wick
