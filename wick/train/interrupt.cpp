#include "wick/train/interrupt.h"

#include <csignal>

namespace wick {
namespace {

volatile std::sig_atomic_t signalled = 0;

void remember(int) { signalled = 1; }

}  // namespace

Interrupt::Interrupt() {
  signalled = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool Interrupt::requested() const { return signalled != 0; }

}  // namespace wick
