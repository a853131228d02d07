// The parts of a language model's decoding step on a GPU: one line of JSON per row, microseconds (medians of graph
// replays), and the rate at which bytes move relative to a copy of 128 MiB. Shapes are Mistral 7B's. Several weights
// and caches take turns, so that the L2 cache does not hold them from call to call. Arguments name the rows wanted, or
// parts of names; one that is in no row's name is an error.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "arguments.h"
#include "device_clock.h"

namespace wick::bench {
namespace {

constexpr DType kHalf = DType::bf16;

class Bench {
 public:
  explicit Bench(std::vector<std::string> names) : names_(std::move(names)) {
    const Shape half{int64_t{1} << 25};  // 64 MiB
    const Tensor x = normal(half), y = normal(half);
    constexpr double kBytes = 2 << 26;
    copy_rate_ = kBytes / time(1, [&](size_t) { device_.copy(y, x); });
    fmt::print("{{\"row\": \"copy 128 MiB\", \"TB/s\": {:.3f}}}\n", copy_rate_ * 1e-6);
  }

  void linear(int64_t outputs, int64_t inputs, DType dtype, int64_t tokens) {
    const double bytes = double(outputs * row_bytes(dtype, inputs));
    row(fmt::format("linear {} {}x{}, {} tokens", name_of(dtype), outputs, inputs, tokens), bytes, [&] {
      const Tensor x = normal({tokens, inputs}), y = normal({tokens, outputs});
      const auto w = several(bytes, [&] { return normal({outputs, inputs}, dtype).constant(); });
      return time(w.size(), [&](size_t i) { device_.linear(y, x, w[i], {}); });
    });
  }

  void gated_linear(int64_t outputs, int64_t inputs, int64_t tokens) {
    const double bytes = 2.0 * double(outputs * inputs);
    row(fmt::format("gated_linear {}x{}, {} tokens", outputs, inputs, tokens), bytes, [&] {
      const Tensor x = normal({tokens, inputs}), y = normal({tokens, outputs / 2});
      const auto w = several(bytes, [&] { return normal({outputs, inputs}).constant(); });
      return time(w.size(), [&](size_t i) { device_.gated_linear(y, x, w[i], {}); });
    });
  }

  // One layer's attention, with `filled` keys in a cache of `capacity`.
  void attention(int64_t queries, int64_t heads, int64_t key_heads, int64_t filled, int64_t capacity) {
    const double bytes = 4.0 * double(filled * key_heads * 128);
    row(fmt::format("attention {} queries, {} heads over {}, {} of {} keys", queries, heads, key_heads, filled,
                    capacity),
        bytes, [&] {
          const Tensor q = normal({1, queries, heads, 128}), y = normal(q.shape());
          const Tensor lse = Tensor::empty({1, heads, queries}, DType::f32, device_.memory());
          const Tensor ranges = causal(queries, filled);
          const Shape cache{1, capacity, key_heads, 128};
          const auto k = several(2 * bytes, [&] { return normal(cache); });
          const auto v = several(2 * bytes, [&] { return normal(cache); });
          return time(k.size(), [&](size_t i) {
            device_.attention({.y = y, .lse = lse, .q = q, .k = k[i], .v = v[i], .scale = 0.088f, .ranges = ranges});
          });
        });
  }

  void rms_norm(int64_t tokens, int64_t width) {
    row(fmt::format("rms_norm {} x {}", tokens, width), 4.0 * double(tokens * width), [&] {
      const Tensor x = normal({tokens, width}), y = normal({tokens, width});
      const Tensor rstd = Tensor::empty({tokens}, DType::f32, device_.memory());
      const auto w = several(4.0 * double(width), [&] { return normal({width}, DType::f32).constant(); });
      return time(w.size(),
                  [&](size_t i) { device_.rms_norm({.y = y, .rstd = rstd, .x = x, .w = w[i], .eps = 1e-5f}); });
    });
  }

  void rope_into_cache(int64_t tokens, int64_t heads, int64_t key_heads) {
    row(fmt::format("rope_into_cache {} tokens, {} heads over {}", tokens, heads, key_heads),
        4.0 * 128 * double(tokens * (heads + 2 * key_heads)), [&] {
          const Tensor q = normal({1, tokens, heads, 128}), k = normal({1, tokens, key_heads, 128}),
                       v = normal(k.shape());
          const Tensor turned = normal(q.shape()), cos = normal({1, tokens, 64}, DType::f32).constant();
          const Tensor keys = normal({1, tokens, key_heads, 128}), values = normal(keys.shape());
          const Tensor rows = Tensor::empty({1, tokens}, DType::i32);
          for (int64_t t = 0; t < tokens; ++t) rows.data<int32_t>()[t] = int32_t(t);
          const Tensor there = rows.to(device_.memory()).constant();
          return time(1, [&](size_t) {
            device_.rope_into_cache({.turned = turned,
                                     .keys = keys,
                                     .values = values,
                                     .q = q,
                                     .k = k,
                                     .v = v,
                                     .cos = cos,
                                     .sin = cos,
                                     .rows = there});
          });
        });
  }

  void attention_backward(int64_t tokens, int64_t heads, int64_t key_heads) {
    const Shape wide{1, tokens, heads, 128}, narrow{1, tokens, key_heads, 128};
    row(fmt::format("attention_backward {} tokens, {} heads over {}", tokens, heads, key_heads),
        2.0 * 128 * double(tokens * (4 * heads + 4 * key_heads)), [&] {
          const Tensor q = normal(wide), k = normal(narrow), v = normal(narrow), y = normal(wide), dy = normal(wide);
          const Tensor dq = normal(wide), dk = normal(narrow), dv = normal(narrow), ranges = causal(tokens, tokens);
          const Tensor lse = Tensor::empty({1, heads, tokens}, DType::f32, device_.memory());
          device_.attention({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = 0.088f, .ranges = ranges});
          return time(1, [&](size_t) {
            device_.attention_backward({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = 0.088f, .ranges = ranges},
                                       {.dq = dq, .dk = dk, .dv = dv, .dy = dy});
          });
        });
  }

  void end() const { names_.check_all_found(); }

  void cross_entropy(int64_t tokens, int64_t vocabulary) {
    row(fmt::format("cross_entropy {} x {}", tokens, vocabulary), 4.0 * double(tokens * vocabulary), [&] {
      const Tensor loss = Tensor::empty({tokens}, DType::f32, device_.memory());
      const Tensor ids = Tensor::of(std::vector<int64_t>(size_t(tokens), 7), {tokens}, device_.memory());
      const auto logits = several(2.0 * double(tokens * vocabulary), [&] { return normal({tokens, vocabulary}); });
      return time(logits.size(), [&](size_t i) { device_.cross_entropy(loss, logits[i], logits[i], ids); });
    });
  }

 private:
  Tensor normal(const Shape& shape, DType dtype = kHalf) { return clock_.normal(shape, dtype); }
  Tensor causal(int64_t queries, int64_t keys) {
    const Tensor ranges = Tensor::empty({1, queries, 2}, DType::i32);
    for (int64_t t = 0; t < queries; ++t) {
      ranges.data<int32_t>()[2 * t] = 0;
      ranges.data<int32_t>()[2 * t + 1] = int32_t(keys - queries + t + 1);
    }
    return ranges.to(device_.memory()).constant();
  }
  // As many as move 150 MB before the first comes again.
  static std::vector<Tensor> several(double bytes, const std::function<Tensor()>& make) {
    std::vector<Tensor> all(size_t(std::clamp(150e6 / bytes + 1, 2.0, 16.0)));
    for (Tensor& x : all) x = make();
    return all;
  }

  // Median microseconds of call(i) with i going round `sets`.
  double time(size_t sets, const std::function<void(size_t)>& call) {
    for (size_t i = 0; i < sets; ++i) call(i);  // first-use work
    return clock_.time([&](int i) { call(size_t(i) % sets); }, {.calls = 24, .replays = 4, .runs = 9, .warm_up = 2});
  }

  void row(const std::string& name, double bytes, const std::function<double()>& measure) {
    if (!names_.wanted(name)) return;
    const double us = measure();
    fmt::print("{{\"row\": \"{}\", \"MB\": {:.1f}, \"us\": {:.2f}, \"of_copy\": {:.3f}}}\n", name, bytes * 1e-6, us,
               bytes / us / copy_rate_);
  }

  DeviceClock clock_;
  Backend& device_ = clock_.device;
  RowNames names_;
  double copy_rate_ = 0;  // bytes a microsecond
};

void run(std::vector<std::string> names) {
  Bench bench(std::move(names));
  const DType types[] = {DType::bf16, DType::q8_0, DType::q4_0,      DType::q4_k, DType::q5_k,      DType::q6_k,
                         DType::int8, DType::fp8,  DType::fp8_block, DType::nf4,  DType::nf4_double};
  for (const DType dtype : types) {
    for (const auto& [outputs, inputs] : {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}})
      bench.linear(outputs, inputs, dtype, 1);
    bench.linear(32000, 4096, dtype, 1);
    for (const int64_t tokens : {2, 4, 8, 16, 32, 512}) bench.linear(28672, 4096, dtype, tokens);
    bench.linear(37888, 3584, dtype, 1);  // Qwen 2.5 7B
  }
  for (const int64_t tokens : {1, 512, 4096}) bench.gated_linear(28672, 4096, tokens);
  for (const int64_t filled : {512, 4096, 32768}) bench.attention(1, 32, 8, filled, filled + 512);
  bench.attention(1, 32, 32, 512, 1024);
  bench.attention(1, 32, 8, 512, 32768);
  for (const int64_t tokens : {1, 8, 512}) bench.rms_norm(tokens, 4096);
  for (const int64_t tokens : {1, 8, 512}) bench.rope_into_cache(tokens, 32, 8);
  for (const int64_t tokens : {512, 2048, 4096}) bench.attention(tokens, 32, 8, tokens, tokens);
  bench.attention_backward(2048, 32, 8);
  bench.cross_entropy(512, 32000);
  bench.cross_entropy(256, 152064);
  bench.end();
}

}  // namespace
}  // namespace wick::bench

int main(int count, char** arguments) {
  try {
    wick::bench::run({arguments + 1, arguments + count});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
