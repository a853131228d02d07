// Shared by Wick's sides of bench/run: a stopwatch, and the protocol of --on-request.
#pragma once

#include <dnnl.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "wick/backend/cpu/parallel.h"

namespace wick::bench {

// Milliseconds: of the clock, or a lone thread's CPU time, which other processes do not slow down.
inline double now() {
  timespec time{};
  clock_gettime(thread_count() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) * 1e3 + double(time.tv_nsec) * 1e-6;
}

// Milliseconds that f() takes.
template <class F>
double time_ms(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct Row {  // times of one measured thing
  std::string name;
  std::vector<double> ms;
};

inline std::string libraries() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("wick, oneDNN {}.{}.{}, g++ {}, {} threads", v->major, v->minor, v->patch, __VERSION__,
                     thread_count());
}

// Prints a description; then, for each line "N" on stdin, {"name": [ms, ...], ...}, measured anew with N runs. So
// bench/run alternates between two programs that are both warm.
template <class Measure>
void serve(const Measure& measure) {
  fmt::print("{}\n", libraries());
  std::fflush(stdout);
  for (int64_t runs; std::cin >> runs;) {
    std::string line;
    for (const Row& row : measure(runs))
      line += fmt::format("{}\"{}\": [{:.6f}]", line.empty() ? "" : ", ", row.name, fmt::join(row.ms, ", "));
    fmt::print("{{{}}}\n", line);
    std::fflush(stdout);
  }
}

}  // namespace wick::bench
