// Elementwise operations. Arguments: rows, columns.
#include "ops/op.h"

namespace wick::bench {
namespace {

Shape shape_of(const benchmark::State& s) { return {s.range(0), s.range(1)}; }

void geglu_forward(benchmark::State& state) {
  const Tensor x = normal(shape_of(state));
  forward(state, [&] { return geglu(x); });
}

void geglu_both(benchmark::State& state) {
  const Tensor x = trainable(shape_of(state));
  both(state, [&] { return geglu(x); });
}

void silu_both(benchmark::State& state) {
  const Tensor x = trainable(shape_of(state));
  both(state, [&] { return silu(x); });
}

void add_both(benchmark::State& state) {
  const Tensor a = trainable(shape_of(state)), b = trainable(shape_of(state));
  both(state, [&] { return a + b; });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "columns"});
  b->Args({256, 2560})->Args({64, 5120})->Args({4096, 5120})->Args({256, 384});
  b->Unit(benchmark::kMicrosecond)->UseRealTime()->MinWarmUpTime(0.05);
}

BENCHMARK(geglu_forward)->Apply(shapes);
BENCHMARK(geglu_both)->Apply(shapes);
BENCHMARK(silu_both)->Apply(shapes);
BENCHMARK(add_both)->Apply(shapes);

}  // namespace
}  // namespace wick::bench
