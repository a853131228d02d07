// The timing of one operation: its forward alone, and forward and backward on a tape. Shapes are those of the UNet of
// bench/peers/make_half_sdxl.py (32 x 32 latents: 1024, 256 and 64 positions of 160, 320 and 640 channels) and SDXL's.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "wick/backend/registry.h"
#include "wick/ops/ops.h"

namespace wick::bench {

// The timed device: the CPU, or that in WICK_BENCH_DEVICE; there WICK_BENCH_DTYPE may be bf16 or f16.
inline Backend& device() {
  static Backend& chosen = [&]() -> Backend& {
    const char* name = std::getenv("WICK_BENCH_DEVICE");
    return open_backend(name ? name : "cpu");
  }();
  return chosen;
}
inline DType activations() {
  const char* name = std::getenv("WICK_BENCH_DTYPE");
  const std::string dtype = name ? name : "f32";
  return dtype == "bf16" ? DType::bf16 : dtype == "f16" ? DType::f16 : DType::f32;
}

inline Tensor normal(const Shape& shape) {
  static Rng rng(0);
  return random_normal(shape, rng, device().memory());
}

// Like normal(), in the dtype of activations.
inline Tensor activation(const Shape& shape) {
  const Tensor x = normal(shape), y = Tensor::empty(shape, activations(), device().memory());
  device().copy(y, x);
  return y;
}

// Times f(). A device works while the CPU goes on, so there many calls share one wait.
template <class F>
void repeat(benchmark::State& state, const F& f) {
  const bool waits = !device().memory().on_host();
  const Tensor last = normal({1});
  const int64_t calls = waits ? 50 : 1;
  const auto wait = [&] {
    float value;
    if (waits) last.memory().read(&value, last.view().data, sizeof value);
  };
  f();  // plans are made and memory is taken on the first call
  wait();
  while (state.KeepRunningBatch(calls)) {
    for (int64_t i = 0; i < calls; ++i) f();
    wait();
  }
}

inline Tensor trainable(const Shape& shape) { return normal(shape).trainable(); }

// Times f() -> Tensor without a tape.
template <class F>
void forward(benchmark::State& state, const F& f, double flops = 0) {
  repeat(state, [&] { benchmark::DoNotOptimize(f()); });
  if (flops > 0) state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

// Times f() on a tape and its backward.
template <class F>
void both(benchmark::State& state, const F& f, double flops = 0) {
  const Tensor example = f(), dy = Tensor::empty(example.shape(), example.dtype(), device().memory());
  device().copy(dy, normal(example.shape()));
  repeat(state, [&] {
    Tape tape;
    const Tensor y = f();
    Grads grads;
    tape.backward(y, dy, grads);
  });
  if (flops > 0) state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace wick::bench
