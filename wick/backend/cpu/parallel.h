// Work shared among OpenMP's threads.
#pragma once

#include <omp.h>

#include <cstdint>

namespace wick {

inline constexpr int64_t kParallelElements = 1 << 15;  // with fewer, waking a second thread costs more than it brings

// Calls body(begin, end) on consecutive parts of [0, tasks), one part a thread. `elements` is the work in all of them.
template <class Body>
void parallel_for(int64_t tasks, int64_t elements, const Body& body) {
  if (tasks < 2 || elements < kParallelElements) {
    if (tasks > 0) body(int64_t{0}, tasks);
    return;
  }
#pragma omp parallel
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    body(tasks * thread / threads, tasks * (thread + 1) / threads);
  }
}

}  // namespace wick
