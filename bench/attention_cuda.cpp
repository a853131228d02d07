// Attention on CUDA, forward and backward, by each kernel that takes 16-bit heads, in CUDA graphs. Prints one JSON
// object per row: the products of the mathematics (two forward, five backward) in GFLOP, each kernel's median
// microseconds, and its distance from f32 arithmetic on the same inputs, relative to the norm of the result.
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "arguments.h"
#include "device_clock.h"

namespace wick::bench {
namespace {

struct Problem {
  const char* name;
  int64_t batch, queries, keys, heads, features;
  bool causal = false;
  int64_t shared = 0;  // query heads per head of keys in a language model, whose ranges express causality

  Shape of_queries() const { return {batch, queries, heads, features}; }
  Shape of_keys() const { return {batch, keys, shared ? heads / shared : heads, features}; }
  float scale() const { return 1 / std::sqrt(float(features)); }
  double product() const {  // GFLOP of one product
    return 2e-9 * double(batch * heads * queries * keys * features) * (causal ? 0.5 : 1);
  }
};

class Bench {
 public:
  explicit Bench(bool once) : once_(once) {}

  void attention(const Problem& p, DType t, bool errors) {
    const Tensor q = normal(p.of_queries(), t), k = normal(p.of_keys(), t), v = normal(p.of_keys(), t),
                 dy = normal(p.of_queries(), t);
    ranges_ = p.shared ? causal_ranges(p.queries) : Tensor();
    Outputs reference;
    if (errors) reference = run(p, wide(q), wide(k), wide(v), wide(dy));
    for (const bool backward : {false, true}) {
      std::string row = fmt::format("{{\"row\": \"{} {} {}\", \"GFLOP\": {:.1f}", p.name, name_of(t),
                                    backward ? "backward" : "forward", p.product() * (backward ? 5 : 2));
      for (const char* way : {"cudnn", "wgmma", "mma"}) {
        if (p.shared && way == std::string("cudnn")) continue;  // our own would run instead
        setenv("WICK_CUDA_WAY", fmt::format("attention:{}", way).c_str(), 1);
        const Outputs o = run(p, q, k, v, dy);
        const double us = time([&] { backward ? gradients(p, o, q, k, v, dy) : forward(p, o, q, k, v); });
        row += fmt::format(", \"{}\": {:.1f}", way, us);
        if (!errors) continue;
        if (backward)
          row += fmt::format(", \"{} dq dk dv\": [{:.2e}, {:.2e}, {:.2e}]", way, error(o.dq, reference.dq),
                             error(o.dk, reference.dk), error(o.dv, reference.dv));
        else
          row += fmt::format(", \"{} y\": {:.2e}", way, error(o.y, reference.y));
      }
      unsetenv("WICK_CUDA_WAY");
      fmt::print("{}}}\n", row);
      std::fflush(stdout);
    }
  }

 private:
  struct Outputs {
    Tensor y, lse, dq, dk, dv;
  };

  Tensor empty(const Shape& shape, DType t) { return Tensor::empty(shape, t, device_.memory()); }
  Tensor normal(const Shape& shape, DType t) { return clock_.normal(shape, t); }
  Tensor wide(const Tensor& x) {
    const Tensor y = empty(x.shape(), DType::f32);
    device_.copy(y, x);
    return y;
  }

  Tensor causal_ranges(int64_t queries) {
    std::vector<int32_t> bounds;
    for (int64_t t = 0; t < queries; ++t) bounds.insert(bounds.end(), {0, int32_t(t + 1)});
    const Tensor ranges = empty({1, queries, 2}, DType::i32);
    device_.memory().write(ranges.view().data, bounds.data(), bounds.size() * sizeof(int32_t));
    return ranges.constant();
  }
  void forward(const Problem& p, const Outputs& o, const Tensor& q, const Tensor& k, const Tensor& v) {
    device_.attention(
        {.y = o.y, .lse = o.lse, .q = q, .k = k, .v = v, .scale = p.scale(), .causal = p.causal, .ranges = ranges_});
  }
  void gradients(const Problem& p, const Outputs& o, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& dy) {
    device_.attention_backward(
        {.y = o.y, .lse = o.lse, .q = q, .k = k, .v = v, .scale = p.scale(), .causal = p.causal, .ranges = ranges_},
        {.dq = o.dq, .dk = o.dk, .dv = o.dv, .dy = dy});
  }
  Outputs run(const Problem& p, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dy) {
    const DType t = q.dtype();
    const Outputs o{empty(p.of_queries(), t), empty({p.batch, p.heads, p.queries}, DType::f32),
                    empty(p.of_queries(), t), empty(p.of_keys(), t), empty(p.of_keys(), t)};
    forward(p, o, q, k, v);
    gradients(p, o, q, k, v, dy);
    return o;
  }

  // ||x - reference|| / ||reference||
  double error(const Tensor& x, const Tensor& reference) {
    const Tensor difference = wide(x), sums = empty({2}, DType::f32);
    device_.binary(Binary::sub, difference, difference, reference);
    const auto one = [&](int64_t i) { return sums.window({1}, {1}, i); };
    device_.sum_of_squares(one(0), {difference});
    device_.sum_of_squares(one(1), {reference});
    return std::sqrt(double(one(0).item()) / double(one(1).item()));
  }

  double time(const std::function<void()>& call) {
    return once_ ? 0 : clock_.time([&](int) { call(); }, {.calls = 8, .replays = 2, .runs = 9, .warm_up = 2});
  }

  const bool once_;
  DeviceClock clock_;
  Backend& device_ = clock_.device;
  Tensor ranges_;
};

void run(bool once) {
  Bench bench(once);
  constexpr DType kHalf = DType::bf16;
  bench.attention({"SDXL 10 x 4096 x 4096 of 64", 1, 4096, 4096, 10, 64}, kHalf, true);
  bench.attention({"SDXL 20 x 1024 x 1024 of 64", 1, 1024, 1024, 20, 64}, kHalf, true);
  bench.attention({"SDXL 10 x 4096 x 77 of 64", 1, 4096, 77, 10, 64}, kHalf, true);
  bench.attention({"SDXL 20 x 1024 x 77 of 64", 1, 1024, 77, 20, 64}, kHalf, true);
  bench.attention({"SDXL, batch 4, 20 x 1024 x 1024 of 64", 4, 1024, 1024, 20, 64}, kHalf, false);
  bench.attention({"SDXL, batch 4, 20 x 1024 x 77 of 64", 4, 1024, 77, 20, 64}, kHalf, false);
  bench.attention({"SD3.5 large 38 x 4429 x 4429 of 64", 1, 4429, 4429, 38, 64}, kHalf, true);
  bench.attention({"SD3.5 medium 24 x 4429 x 4429 of 64", 1, 4429, 4429, 24, 64}, kHalf, false);
  bench.attention({"SD 1.5 8 x 4096 x 4096 of 40", 1, 4096, 4096, 8, 40}, kHalf, false);
  bench.attention({"FLUX 24 x 4608 x 4608 of 128", 1, 4608, 4608, 24, 128}, kHalf, false);
  bench.attention({"LLM 32 x 2048 x 2048 of 128, causal", 1, 2048, 2048, 32, 128, true}, kHalf, true);
  bench.attention({"LLM 32 over 8 x 512 x 512 of 128, causal", 1, 512, 512, 32, 128, true, 4}, kHalf, true);
  bench.attention({"LLM 32 over 8 x 2048 x 2048 of 128, causal", 1, 2048, 2048, 32, 128, true, 4}, kHalf, false);
  bench.attention({"LLM 32 over 8 x 4096 x 4096 of 128, causal", 1, 4096, 4096, 32, 128, true, 4}, kHalf, false);
  bench.attention({"SDXL 20 x 1024 x 1024 of 64", 1, 1024, 1024, 20, 64}, DType::f16, true);
}

}  // namespace
}  // namespace wick::bench

int main(int count, char** arguments) {
  try {
    wick::bench::run(wick::bench::has_flag(count, arguments, "--once"));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
