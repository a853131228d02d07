#include "wick/train/interrupt.h"

#include <cstddef>
#include <ctime>
#include <initializer_list>

namespace wick {
namespace {

// Seconds within which signals count as one.
constexpr double kSameMoment = 0.2;

volatile std::sig_atomic_t signalled = 0;
double first;  // when, by `now`

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void remember(int number) {
  if (signalled == 0) {
    signalled = 1;
    first = now();
  } else if (number != SIGHUP && now() - first > kSameMoment) {
    std::signal(number, SIG_DFL);
    std::raise(number);  // delivered when this handler returns
  }
}

// The handler's stack. oneDNN's generated code may use the stack pointer's register for something else: a signal frame
// there, with 2.5 KiB of vector registers, would overwrite a matrix or the memory before it.
alignas(64) std::byte stack[size_t{64} << 10];

}  // namespace

Interrupt::Interrupt() {
  signalled = 0;
  stack_t own{};
  own.ss_sp = stack;
  own.ss_size = sizeof stack;
  sigaltstack(&own, nullptr);
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&action.sa_mask, number);
  sigaction(SIGINT, &action, &interrupt_);
  sigaction(SIGTERM, &action, &terminate_);
  sigaction(SIGHUP, nullptr, &hangup_);
  if (hangup_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
  sigaction(SIGHUP, &hangup_, nullptr);
}

bool Interrupt::requested() const { return signalled != 0; }

}  // namespace wick
