// Linear layers and the LoRA linear. Arguments: tokens, inputs, outputs, rank.
#include "ops/op.h"

namespace wick::bench {
namespace {

struct Layer {
  int64_t m, k, n, r;
  Tensor x = trainable({m, k}), w = normal({n, k}), bias = normal({n});
  Tensor down = trainable({r, k}), up = trainable({n, r});

  explicit Layer(const benchmark::State& s) : m(s.range(0)), k(s.range(1)), n(s.range(2)), r(s.range(3)) {}
  double product() const { return 2.0 * double(m) * double(k) * double(n); }
  double factors() const { return 2.0 * double(m) * double(k + n) * double(r); }
};

void linear_forward(benchmark::State& state) {
  const Layer l(state);
  forward(
      state, [&] { return linear(l.x, l.w, l.bias); }, l.product());
}

void linear_both(benchmark::State& state) {
  const Layer l(state);
  both(
      state, [&] { return linear(l.x, l.w, l.bias); }, 2 * l.product());
}

void lora_linear_forward(benchmark::State& state) {
  const Layer l(state);
  forward(
      state, [&] { return lora_linear(l.x, l.w, l.bias, Lora::of(l.down, l.up, 1)); }, l.product() + l.factors());
}

void lora_linear_both(benchmark::State& state) {
  const Layer l(state);
  both(
      state, [&] { return lora_linear(l.x, l.w, l.bias, Lora::of(l.down, l.up, 1)); },
      2 * l.product() + 3 * l.factors());
}

void lora_backward_alone(benchmark::State& state) {
  const Layer l(state);
  const Tensor dy = normal({l.m, l.n});
  for (auto _ : state) benchmark::DoNotOptimize(lora_backward(dy, l.x, l.down, l.up, 1));
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "in", "out", "rank"});
  b->Args({256, 320, 320, 32})->Args({256, 320, 2560, 32})->Args({256, 1280, 320, 32})->Args({77, 1024, 320, 32});
  b->Args({64, 640, 640, 32})->Args({64, 640, 5120, 32})->Args({64, 2560, 640, 32})->Args({77, 1024, 640, 32});
  b->Args({4096, 640, 640, 32})->Args({1024, 1280, 1280, 32})->Args({256, 48, 48, 32})->Args({1, 160, 640, 32});
  b->Unit(benchmark::kMicrosecond)->UseRealTime()->MinWarmUpTime(0.05);
}

BENCHMARK(linear_forward)->Apply(shapes);
BENCHMARK(linear_both)->Apply(shapes);
BENCHMARK(lora_linear_forward)->Apply(shapes);
BENCHMARK(lora_linear_both)->Apply(shapes);
BENCHMARK(lora_backward_alone)
    ->ArgNames({"tokens", "in", "out", "rank"})
    ->Args({77, 768, 768, 16})
    ->Args({256, 1536, 1536, 32})
    ->Args({256, 3072, 3072, 64})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->MinWarmUpTime(0.05);

}  // namespace
}  // namespace wick::bench
