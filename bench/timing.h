// Times of repeated runs, reduced as bench/peers reduces them.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace wick::bench {

struct Times {
  double median, min, max;  // seconds
};

template <class F>
Times measure(const F& f, int warmup, int runs) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < warmup; ++i) f();
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto start = Clock::now();
    f();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const size_t n = seconds.size();
  return {(seconds[(n - 1) / 2] + seconds[n / 2]) / 2, seconds.front(), seconds.back()};
}

}  // namespace wick::bench
