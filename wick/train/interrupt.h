// SIGINT and SIGTERM as a wish that the run looks at between steps.
#pragma once

namespace wick {

// While one is alive the first such signal is remembered, and the second ends the program as usual. Writes beyond a
// file size limit fail with an error instead of a signal.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool requested() const;
};

}  // namespace wick
