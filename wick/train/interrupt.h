// SIGINT, SIGTERM and SIGHUP as a request that the run checks between steps.
#pragma once

#include <csignal>

namespace wick {

// While one is alive the first such signal is remembered, and a second one ends the program as usual, unless both come
// at the same moment: `timeout` and terminals may send two. SIGHUP comes from several sides when a connection drops,
// and never counts as the second; where it was ignored when the program started (nohup) it stays so. Writes beyond a
// file size limit fail with an error instead of a signal. Construct it on the main thread, to which the system delivers
// signals. What they did before they do again afterwards.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool requested() const;

 private:
  struct sigaction interrupt_, terminate_, hangup_;  // the handlers before
};

}  // namespace wick
