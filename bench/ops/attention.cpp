// Attention to the image itself and to the text. Arguments: batch, queries, keys, heads, features of a head.
#include "ops/op.h"

namespace wick::bench {
namespace {

struct Layer {
  int64_t batch, queries, keys, heads, features;
  Tensor q = activation({batch, queries, heads, features}).trainable(),
         k = activation({batch, keys, heads, features}).trainable(),
         v = activation({batch, keys, heads, features}).trainable();

  explicit Layer(const benchmark::State& s)
      : batch(s.range(0)), queries(s.range(1)), keys(s.range(2)), heads(s.range(3)), features(s.range(4)) {}
  double product() const {
    return 2.0 * double(batch) * double(heads) * double(queries) * double(keys) * double(features);
  }
};

void attention_forward(benchmark::State& state) {
  const Layer l(state);
  forward(
      state, [&] { return attention(l.q, l.k, l.v); }, 2 * l.product());
}

void attention_both(benchmark::State& state) {
  const Layer l(state);
  both(
      state, [&] { return attention(l.q, l.k, l.v); }, 7 * l.product());
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"batch", "queries", "keys", "heads", "features"});
  b->Args({1, 256, 256, 5, 64})->Args({1, 256, 77, 5, 64})->Args({1, 64, 64, 10, 64})->Args({1, 64, 77, 10, 64});
  b->Args({1, 4096, 4096, 10, 64})->Args({1, 4096, 77, 10, 64})->Args({4, 64, 64, 3, 16})->Args({4, 64, 77, 3, 16});
  b->Args({1, 1024, 1024, 20, 64})->Args({1, 1024, 77, 20, 64})->Args({1, 4096, 4096, 1, 512});
  b->Unit(benchmark::kMicrosecond)->UseRealTime()->MinWarmUpTime(0.05);
}

BENCHMARK(attention_forward)->Apply(shapes);
BENCHMARK(attention_both)->Apply(shapes);

}  // namespace
}  // namespace wick::bench
