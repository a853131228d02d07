// One more evaluation inside another, for as long as it lives.
#pragma once

#include "wick/text/jinja/machine.h"

namespace wick::jinja {

class Deeper {
 public:
  explicit Deeper(Machine& machine) : machine_(machine) {
    require(++machine.depth_ <= kMaxCallDepth, "expected evaluations at most {} deep, found more", kMaxCallDepth);
  }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  ~Deeper() { --machine_.depth_; }

 private:
  Machine& machine_;
};

}  // namespace wick::jinja
