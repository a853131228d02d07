// The faults of a data set's files: all of them are found before they are reported, in one line.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "wick/core/error.h"

namespace wick {

class Faults {
 public:
  // Runs the action and returns whether it succeeded; an Error is kept for check().
  template <class Action>
  bool collect(Action&& action) {
    try {
      std::forward<Action>(action)();
      return true;
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error& e) {
      add(e.what());
      return false;
    }
  }
  bool empty() const { return count_ == 0; }
  // Throws Error if there was a fault: it alone, or "`source`: 12 faults: (1) a.png: … (2) b.txt: … and 10 others". The
  // prefix `source` is left out of them.
  void check(const std::string& source) const;

 private:
  void add(std::string fault);

  std::vector<std::string> first_;
  size_t count_ = 0;
};

}  // namespace wick
