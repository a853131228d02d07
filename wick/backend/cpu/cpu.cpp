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

}  // namespace wick
