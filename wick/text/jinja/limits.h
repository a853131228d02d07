// What a template may use. Templates come with models from anywhere, so all that they do is counted before it is done.
#pragma once

#include <cstddef>

#include "wick/core/error.h"

namespace wick::jinja {

inline constexpr size_t kMaxSourceBytes = size_t{1} << 20;
inline constexpr size_t kMaxSteps = 40'000'000;               // a few seconds
inline constexpr size_t kMaxMemoryBytes = size_t{256} << 20;  // values that live at one time
inline constexpr size_t kMaxOutputBytes = size_t{64} << 20;
inline constexpr int kMaxSyntaxDepth = 100;   // expressions and blocks in each other
inline constexpr int kMaxChain = 400;         // operators, calls and filters in a row
inline constexpr int kMaxCallDepth = 1000;    // evaluations in each other, macros' included
inline constexpr int kMaxValueDepth = 100;    // lists and dicts in each other
inline constexpr size_t kMaxRange = 100'000;  // Jinja's sandbox: MAX_RANGE
inline constexpr size_t kMaxArguments = 250;  // by name, of a macro or a call
inline constexpr size_t kBytesOfAStep = 32;   // copied, compared or looked at

struct Limits {
  size_t steps = kMaxSteps, memory = kMaxMemoryBytes, output = kMaxOutputBytes;
};

// Why a template cannot go on; the interpreter adds the template's name and the line.
struct Problem {
  std::string message;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> message, Args&&... args) {
  throw Problem{fmt::format(message, std::forward<Args>(args)...)};
}

template <class... Args>
void require(bool ok, fmt::format_string<Args...> message, Args&&... args) {
  if (!ok) [[unlikely]]
    refuse(message, std::forward<Args>(args)...);
}

// Counts steps and the bytes of living values. Throws Problem where a limit is passed.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  void step(size_t count = 1) {
    steps_ += count;
    require(steps_ <= limits_.steps, "expected at most {} steps, found more", limits_.steps);
  }
  // The work on so many bytes or items.
  void work(size_t bytes) { step(1 + bytes / kBytesOfAStep); }
  // The work on a text that is looked at character by character.
  void characters(size_t bytes) { work(4 * bytes); }
  // Checks that so many bytes would fit, before they are allocated; it is also work.
  void room(size_t bytes) {
    require(bytes <= limits_.memory && bytes_ <= limits_.memory - bytes,
            "expected at most {} bytes of values, found more", limits_.memory);
    work(bytes);
  }
  // Bytes that stay allocated to the end.
  void hold(size_t bytes) {
    room(bytes);
    bytes_ += bytes;
  }
  void output(size_t bytes) const {
    require(bytes <= limits_.output, "expected at most {} bytes of text, found more", limits_.output);
  }
  size_t steps() const { return steps_; }

 private:
  friend class Charge;
  Limits limits_;
  size_t steps_ = 0, bytes_ = 0;
};

// The bytes of a value, for as long as it lives. Constants of a template have no budget.
class Charge {
 public:
  Charge() = default;
  Charge(Budget* budget, size_t bytes) : budget_(budget), bytes_(bytes) {
    if (budget_) budget_->bytes_ += bytes_;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  ~Charge() {
    if (budget_) budget_->bytes_ -= bytes_;
  }

 private:
  Budget* budget_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace wick::jinja
