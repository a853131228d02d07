// SIGINT, SIGTERM and SIGHUP as a wish that the run looks at between steps.
#pragma once

#include <csignal>

namespace wick {

// While one is alive the first such signal is remembered, and a second one ends the program as usual, but for those of
// the same moment: `timeout` and terminals may send two. SIGHUP comes from several sides when a connection drops, and
// is never that second one; where it was ignored when the program started (nohup) it stays so. Writes beyond a file
// size limit fail with an error instead of a signal. Made by the main thread, which is where the system delivers
// signals.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool requested() const;

 private:
  struct sigaction hangup_;  // as it was before
};

}  // namespace wick
