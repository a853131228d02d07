// Products with frozen matrices of models, in bf16 and in fp8 (docs/kernels/fp8.md): a line of JSON a shape, in
// microseconds. Forward and dx alone, and a linear with a LoRA of rank 16, forward and back. A product of 16 outputs
// shows what encoding x takes, and dx of 16 rows what transposing a weight takes.
//
//   bench_fp8_cuda [M]
#include <fmt/core.h>

#include <cstdlib>

#include "device_clock.h"

namespace wick::bench {
namespace {

constexpr int64_t kRank = 16;

struct Shapes {
  int64_t k, n;
};
// The first six are FLUX.1's: four linears of a double block, two of a single one. The next four are a 7B model's. The
// last two are products that fp8 hardly pays for.
constexpr Shapes kShapes[] = {{3072, 9216}, {3072, 3072}, {3072, 12288}, {12288, 3072}, {3072, 21504}, {15360, 3072},
                              {4096, 6144}, {4096, 4096}, {4096, 28672}, {14336, 4096}, {3072, 16},    {12288, 16}};

class Layer {
 public:
  Layer(DeviceClock& clock, int64_t m, const Shapes& s)
      : clock_(clock),
        x_(clock_.normal({m, s.k}, DType::bf16)),
        dy_(clock_.normal({m, s.n}, DType::bf16)),
        y_(clock_.normal({m, s.n}, DType::bf16)),
        dx_(clock_.normal({m, s.k}, DType::bf16)),
        s_(clock_.normal({m, kRank}, DType::bf16)),
        down_(clock_.normal({kRank, s.k}, DType::bf16)),
        up_(clock_.normal({s.n, kRank}, DType::bf16)),
        ddown_(clock_.normal({kRank, s.k}, DType::f32)),
        dup_(clock_.normal({s.n, kRank}, DType::f32)) {
    for (int i = 0; i < 2; ++i) {
      plain_.push_back(clock_.normal({s.n, s.k}, DType::bf16));
      codes_.push_back(Tensor::empty({s.n, s.k}, DType::fp8_product, clock_.device.memory()));
      clock_.device.copy(codes_.back(), plain_.back());
    }
  }

  std::string times() {
    std::string text;
    for (const auto* weights : {&plain_, &codes_}) {
      const auto w = [&](int i) { return (*weights)[size_t(i % 2)].view(); };
      const LoraFactors lora{down_, {{up_, 0, 0, 1}}};
      const char* const name = weights == &plain_ ? "bf16" : "fp8";
      const auto row = [&](const char* what, const std::function<void(int)>& call) {
        call(0);
        text += fmt::format(", \"{} {}\": {:.1f}", what, name,
                            clock_.time(call, {.calls = 8, .replays = 2, .runs = 5, .warm_up = 1}));
      };
      row("forward", [&](int i) { clock_.device.linear(y_, x_, w(i), {}); });
      row("dx", [&](int i) { clock_.device.matmul(dx_, dy_, w(i), 1, 0); });
      row("lora", [&](int i) { clock_.device.lora_linear({.y = y_, .s = s_, .x = x_, .w = w(i), .lora = lora}); });
      row("lora back", [&](int i) {
        clock_.device.lora_linear_backward({.s = s_, .x = x_, .w = w(i), .lora = lora},
                                           {.dx = dx_, .ddown = ddown_, .dups = {dup_}, .dy = dy_});
      });
    }
    return text;
  }

 private:
  DeviceClock& clock_;
  Tensor x_, dy_, y_, dx_, s_, down_, up_, ddown_, dup_;
  std::vector<Tensor> plain_, codes_;
};

}  // namespace
}  // namespace wick::bench

int main(int argc, char** argv) {
  using namespace wick::bench;
  const int64_t m = argc > 1 ? std::atoll(argv[1]) : 4608;
  if (argc > 2 || m < 1) {
    fmt::print(stderr, "bench_fp8_cuda: expected one number of rows, at least 1, or none\n");
    return 2;
  }
  DeviceClock clock;
  for (const Shapes& s : kShapes) {
    fmt::print("{{\"row\": \"{} x {} -> {}\"{}}}\n", m, s.k, s.n, Layer(clock, m, s).times());
    std::fflush(stdout);
  }
}
