// Forward, and forward with backward, of an op on random inputs.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <vector>

#include "wick/ops/ops.h"

namespace wick::bench {

using OpFunction = std::function<Tensor(const std::vector<Tensor>&)>;

// Registers NAME/forward and NAME/step. `tracked` tells which inputs get a gradient; `flops` of the forward, if given,
// appear as a rate.
inline void add_op(const std::string& name, std::vector<Shape> shapes, std::vector<bool> tracked, OpFunction f,
                   double flops = 0) {
  const auto inputs = [=](bool track) {
    Rng rng(0);
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Tensor x = random_normal(shapes[i], rng);
      tensors.push_back(track && tracked[i] ? x.trainable() : x);
    }
    return tensors;
  };
  const auto rate = [=](benchmark::State& state) {
    if (flops > 0) state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  };
  benchmark::RegisterBenchmark((name + "/forward").c_str(),
                               [=](benchmark::State& state) {
                                 const std::vector<Tensor> x = inputs(false);
                                 for (auto _ : state) benchmark::DoNotOptimize(f(x));
                                 rate(state);
                               })
      ->MinWarmUpTime(0.05)
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
  benchmark::RegisterBenchmark((name + "/step").c_str(),
                               [=](benchmark::State& state) {
                                 const std::vector<Tensor> x = inputs(true);
                                 for (auto _ : state) {
                                   Tape tape;
                                   const Tensor y = f(x);
                                   Grads grads;
                                   tape.backward(y, y, grads);
                                   benchmark::DoNotOptimize(grads);
                                 }
                               })
      ->MinWarmUpTime(0.05)
      ->Unit(benchmark::kMicrosecond)
      ->UseRealTime();
}

}  // namespace wick::bench
