// SIGINT and SIGTERM as a wish that the run looks at between steps.
#pragma once

namespace wick {

// While one is alive the first such signal is remembered, and a second one ends the program as usual, but for those of
// the same moment: `timeout` and terminals may send two. Writes beyond a file size limit fail with an error instead of
// a signal. Made by the main thread, which is where the system delivers signals.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool requested() const;
};

}  // namespace wick
