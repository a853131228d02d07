#include "wick/backend/cpu/cpu.h"

#include <omp.h>

#include <cstdlib>

#include "wick/core/cpus.h"

namespace wick {

Backend& cpu_backend() {
  static CpuBackend* backend = [] {
    // OpenMP knows nothing of quotas, and its threads wait by spinning: too many of them stand in each other's way.
    if (!std::getenv("OMP_NUM_THREADS")) omp_set_num_threads(usable_cpus());
    auto* created = new CpuBackend;  // outlives every static tensor
    host_memory().backend = created;
    return created;
  }();
  return *backend;
}

}  // namespace wick
