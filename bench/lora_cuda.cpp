// Wick's side of the LoRA linear on a GPU, every row of issue 3's table: one line of JSON per row, microseconds,
// medians of graph replays; --once runs each row once, for a profiler. bench/peers/lora_cuda.py prints the same rows
// for PyTorch; frozen layers are cuBLASLt's in both.
#include <fmt/core.h>

#include <functional>

#include "arguments.h"
#include "device_clock.h"

namespace wick::bench {
namespace {

LoraFactors factors(const Tensor& down, const Tensor& up) { return {down, {{up, 0, 0, 0.5f}}}; }

class Bench {
 public:
  explicit Bench(bool once) : once_(once) {}

  Tensor normal(const Shape& shape, DType dtype) { return clock_.normal(shape, dtype); }

  // Median microseconds of f(), of which a graph holds `calls`.
  double time(const std::function<void()>& f, int calls = 20) {
    f();  // first-use work
    return once_ ? 0 : clock_.time([&](int) { f(); }, {.calls = calls, .replays = 10, .runs = 25, .warm_up = 3});
  }

  // The gradients of both factors, which are f32, from dy and x.
  void gradients(int64_t tokens, int64_t width, int64_t rank) {
    const Tensor x = normal({tokens, width}, DType::bf16), dy = normal({tokens, width}, DType::bf16);
    const Tensor ddown = normal({rank, width}, DType::f32), dup = normal({width, rank}, DType::f32);
    const auto with_factors = [&](DType dtype) {
      const Tensor down = normal({rank, width}, dtype), up = normal({width, rank}, dtype);
      return time([&] {
        device_.lora_backward({.x = x, .lora = factors(down, up)}, {.ddown = ddown, .dups = {dup}, .dy = dy});
      });
    };
    fmt::print("{{\"row\": \"gradients {}x{} r{}\", \"us\": {:.2f}, \"us_16_bit_factors\": {:.2f}}}\n", tokens, width,
               rank, with_factors(DType::f32), with_factors(DType::bf16));
  }

  // The adapter alone, added to a layer's output: an LLM's decode step with an unmerged adapter.
  void adapter(int64_t tokens, int64_t width, int64_t rank) {
    const DType t = DType::bf16;
    const Tensor x = normal({tokens, width}, t), y = normal({tokens, width}, t);
    const Tensor down = normal({rank, width}, t), up = normal({width, rank}, t);
    const double us = time([&] { device_.lora_linear({.y = y, .x = x, .lora = {down, {{up, 0, 0, 1e-6f}}}}); });
    fmt::print("{{\"row\": \"adapter {}x{} r{}\", \"us\": {:.2f}}}\n", tokens, width, rank, us);
  }

  // The LoRA linear beside the frozen one, or `layers` of them that share their input. The kernels get the copies of
  // the factors that the optimizer refreshes.
  void tax(int64_t tokens, int64_t in, int64_t width, int64_t rank, int64_t layers = 1) {
    const DType t = DType::bf16;
    const int64_t out = width * layers, ranks = rank * layers;
    const Tensor x = normal({tokens, in}, t), dy = normal({tokens, out}, t), w = normal({out, in}, t);
    const Tensor down = normal({ranks, in}, t), ddown = normal({ranks, in}, DType::f32);
    const Tensor y = normal({tokens, out}, t), s = normal({tokens, ranks}, t), dx = normal({tokens, in}, t);
    LoraFactors factors{down, {}};
    std::vector<Tensor> ups, dups;
    for (int64_t i = 0; i < layers; ++i) {
      ups.push_back(normal({width, rank}, t));
      dups.push_back(normal({width, rank}, DType::f32));
      factors.blocks.push_back({ups.back(), width * i, rank * i, 0.5f});
    }
    const std::vector<View> dup_views(dups.begin(), dups.end());
    const int calls = double(tokens) * double(in) * double(out) > 1e10 ? 4 : 20;
    const auto frozen = [&] { device_.linear(y, x, w, {}); };
    const auto frozen_both = [&] {
      device_.linear(y, x, w, {});
      device_.matmul(dx, dy, w, 1, 0);
    };
    const auto lora = [&] { device_.lora_linear({.y = y, .s = s, .x = x, .w = w, .lora = factors}); };
    const auto lora_both = [&] {
      device_.lora_linear({.y = y, .s = s, .x = x, .w = w, .lora = factors});
      device_.lora_linear_backward({.s = s, .x = x, .w = w, .lora = factors},
                                   {.dx = dx, .ddown = ddown, .dups = dup_views, .dy = dy});
    };
    fmt::print(
        "{{\"row\": \"linear {}x{}->{}{} r{}\", \"frozen\": {:.2f}, \"frozen_both\": {:.2f}, \"lora\": {:.2f}, "
        "\"lora_both\": {:.2f}}}\n",
        tokens, in, layers > 1 ? fmt::format("{}x", layers) : "", width, rank, time(frozen, calls),
        time(frozen_both, calls), time(lora, calls), time(lora_both, calls));
  }

 private:
  DeviceClock clock_;
  Backend& device_ = clock_.device;
  bool once_;
};

void run(bool once) {
  Bench bench(once);
  bench.gradients(77, 768, 16);
  bench.gradients(256, 1536, 32);
  bench.gradients(256, 3072, 64);
  bench.gradients(4096, 1280, 32);
  bench.gradients(4608, 3072, 64);
  for (const int64_t tokens : {1, 32})
    for (const int64_t width : {512, 1024, 2048, 4096}) bench.adapter(tokens, width, 8);
  bench.tax(77, 768, 768, 16);
  bench.tax(256, 1536, 1536, 32);
  bench.tax(256, 3072, 3072, 64);
  bench.tax(4096, 640, 640, 32);
  bench.tax(4096, 640, 640, 32, 3);
  bench.tax(1024, 1280, 1280, 32);
  bench.tax(1024, 1280, 1280, 32, 3);
  bench.tax(1024, 1280, 10240, 32);
  bench.tax(1024, 5120, 1280, 32);
  bench.tax(4608, 3072, 3072, 16);
  bench.tax(4096, 4096, 4096, 16);
  bench.tax(4608, 3072, 9216, 16);
  bench.tax(4096, 4096, 14336, 16);
  bench.tax(4096, 14336, 4096, 16);
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
