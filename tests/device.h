// The device under test: the CPU, or the one in WICK_TEST_DEVICE. The same rows run on both.
#pragma once

#include <cstdlib>

#include "wick/backend/registry.h"

namespace wick::test {

inline Backend& backend() {
  static Backend& tested = []() -> Backend& {
    const char* device = std::getenv("WICK_TEST_DEVICE");
    return open_backend(device ? device : "cpu");
  }();
  return tested;
}

inline Memory& memory() { return backend().memory(); }

}  // namespace wick::test
