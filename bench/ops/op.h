// How one operation is timed: its forward alone, and forward and backward on a tape. Shapes are those of the UNet of
// bench/peers/make_half_sdxl.py (32 x 32 latents: 1024, 256 and 64 positions of 160, 320 and 640 channels) and SDXL's.
#pragma once

#include <benchmark/benchmark.h>

#include "wick/ops/ops.h"

namespace wick::bench {

inline Tensor normal(const Shape& shape) {
  static Rng rng(0);
  return random_normal(shape, rng);
}

inline Tensor trainable(const Shape& shape) { return normal(shape).trainable(); }

// Times f() -> Tensor without a tape.
template <class F>
void forward(benchmark::State& state, const F& f, double flops = 0) {
  for (auto _ : state) benchmark::DoNotOptimize(f());
  if (flops > 0) state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

// Times f() on a tape and its backward.
template <class F>
void both(benchmark::State& state, const F& f, double flops = 0) {
  const Tensor dy = normal(f().shape());
  for (auto _ : state) {
    Tape tape;
    const Tensor y = f();
    Grads grads;
    tape.backward(y, dy, grads);
  }
  if (flops > 0) state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace wick::bench
