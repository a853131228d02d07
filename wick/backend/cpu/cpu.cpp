#include "wick/backend/cpu/cpu.h"

namespace wick {

Backend& cpu_backend() {
  static CpuBackend* backend = [] {
    auto* created = new CpuBackend;  // outlives every static tensor
    host_memory().backend = created;
    return created;
  }();
  return *backend;
}

namespace {
// Host tensors find their backend from the first line of main on.
[[maybe_unused]] const Backend& created_before_main = cpu_backend();
}  // namespace

}  // namespace wick
