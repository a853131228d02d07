// Norms. Arguments: batch, positions, channels.
#include "ops/op.h"

namespace wick::bench {
namespace {

struct Layer {
  Tensor x, w, b;

  explicit Layer(const benchmark::State& s)
      : x(trainable({s.range(0), s.range(1), s.range(2)})), w(normal({s.range(2)})), b(normal({s.range(2)})) {}
};

void group_norm_silu_forward(benchmark::State& state) {
  const Layer l(state);
  forward(state, [&] { return group_norm(l.x, l.w, l.b, 32, 1e-5f, true); });
}

void group_norm_silu_both(benchmark::State& state) {
  const Layer l(state);
  both(state, [&] { return group_norm(l.x, l.w, l.b, 32, 1e-5f, true); });
}

void layer_norm_forward(benchmark::State& state) {
  const Layer l(state);
  forward(state, [&] { return layer_norm(l.x, l.w, l.b, 1e-5f); });
}

void layer_norm_both(benchmark::State& state) {
  const Layer l(state);
  both(state, [&] { return layer_norm(l.x, l.w, l.b, 1e-5f); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"batch", "positions", "channels"});
  b->Args({1, 1024, 160})->Args({1, 256, 320})->Args({1, 64, 640})->Args({1, 4096, 320})->Args({4, 256, 32});
  b->Unit(benchmark::kMicrosecond)->UseRealTime()->MinWarmUpTime(0.05);
}

BENCHMARK(group_norm_silu_forward)->Apply(shapes);
BENCHMARK(group_norm_silu_both)->Apply(shapes);
BENCHMARK(layer_norm_forward)->Apply(shapes);
BENCHMARK(layer_norm_both)->Apply(shapes);

}  // namespace
}  // namespace wick::bench
