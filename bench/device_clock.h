// Shared by the benchmarks on a device: random tensors there, and times of calls that a CUDA graph replays.
#pragma once

#include <functional>
#include <vector>

#include "timing.h"
#include "wick/backend/registry.h"

namespace wick::bench {

class DeviceClock {
 public:
  // A graph holds `calls`; a run is some replays of it and the wait for their end, which counts too.
  struct Protocol {
    int calls, replays, runs, warm_up;
  };

  Backend& device = open_backend("cuda");

  Tensor normal(const Shape& shape, DType dtype) {
    const Tensor x = Tensor::empty(shape, DType::f32, device.memory()),
                 y = Tensor::empty(shape, dtype, device.memory());
    device.fill_normal(x, 1, ++streams_, 0);
    device.copy(y, x);
    return y;
  }

  // Median microseconds of call(i), with i from 0 to calls - 1. First-use work must be done before.
  double time(const std::function<void(int)>& call, const Protocol& p) {
    const auto graph = device.capture([&] {
      for (int i = 0; i < p.calls; ++i) call(i);
    });
    std::vector<double> times;
    for (int run = 0; run < p.warm_up + p.runs; ++run) {
      const double ms = time_ms([&] {
        for (int i = 0; i < p.replays; ++i) graph->run();
        flag_.item();
      });
      if (run >= p.warm_up) times.push_back(ms * 1000 / (p.calls * p.replays));
    }
    return median(times);
  }

 private:
  uint32_t streams_ = 0;
  Tensor flag_ = normal({1}, DType::f32);  // reading it waits for the device
};

}  // namespace wick::bench
