// Every plan of the extended product on 9.0 (WICK_CUDA_WAY=sm90:...) and its composition (lora:composed), fastest
// first, beside the chosen one and the frozen product, which is cuBLASLt's: the constants of plan_gemm_sm90 are fitted
// to these. Microseconds, medians of graph replays. Without arguments some shapes of SDXL and of language models; else
// those given, TOKENSxIN:OUT:RANK.
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "device_clock.h"

namespace wick::bench {
namespace {

class Sweep {
 public:
  // `layers` linears that share x [tokens, in], each `width` wide.
  void shape(int64_t tokens, int64_t in, int64_t width, int64_t rank, int64_t layers = 1) {
    const DType t = DType::bf16;
    const int64_t out = width * layers, ranks = rank * layers;
    const Tensor x = normal({tokens, in}, t), dy = normal({tokens, out}, t), w = normal({out, in}, t);
    const Tensor down = normal({ranks, in}, t), y = normal({tokens, out}, t), s = normal({tokens, ranks}, t);
    const Tensor dx = normal({tokens, in}, t);
    LoraFactors factors{down, {}};
    std::vector<Tensor> ups;
    for (int64_t i = 0; i < layers; ++i) {
      ups.push_back(normal({width, rank}, t));
      factors.blocks.push_back({ups.back(), width * i, rank * i, 0.5f});
    }
    calls_ = double(tokens) * double(in) * double(out) > 5e9 ? 4 : 20;
    const std::string name = fmt::format("{}x{}->{}x{} r{}", tokens, in, layers, width, rank);
    const Tensor bias = normal({out}, DType::f32);
    plans("forward " + name, out, rank, time([&] { device_.linear(y, x, w, bias); }),
          [&] { device_.lora_linear({.y = y, .x = x, .w = w, .bias = bias, .lora = factors}); });
    plans("dx " + name, in, rank, time([&] { device_.matmul(dx, dy, w, 1, 0); }),
          [&] { device_.lora_linear_backward({.s = s, .x = x, .w = w, .lora = factors}, {.dx = dx, .dy = dy}); });
  }

 private:
  Tensor normal(const Shape& shape, DType dtype) { return clock_.normal(shape, dtype); }

  double time(const std::function<void()>& f) {
    f();  // first-use work
    return clock_.time([&](int) { f(); }, {.calls = calls_, .replays = 3, .runs = 5, .warm_up = 2});
  }

  // An impossible plan is replaced by the chosen one.
  void plans(const std::string& what, int64_t cols, int64_t rank, double frozen, const std::function<void()>& f) {
    fmt::print("{}: {:.2f} us, frozen {:.2f}", what, time(f), frozen);
    std::vector<std::pair<double, std::string>> rows;
    const auto add = [&](int slice, int parts, int consumers, int wide) {
      const auto plan = fmt::format("lora:wgmma,sm90:{}/{}/{}/{}/{}/{}", slice, parts, consumers, wide,
                                    (cols + wide - 1) / wide, wide);
      setenv("WICK_CUDA_WAY", plan.c_str(), 1);
      rows.push_back({time(f), plan});
    };
    const auto add_way = [&](const char* way) {
      setenv("WICK_CUDA_WAY", way, 1);
      rows.push_back({time(f), way});
    };
    add_way("lora:composed");
    const int own = rank <= 16 ? 16 : rank <= 32 ? 32 : 64;
    for (int wide = 64; wide <= 256; wide += 32) {
      add(0, 1, 2, wide);
      if (wide == 128 || wide == 192) add(0, 1, 3, wide);
      for (int parts = 1; parts <= 4 && wide <= 192; parts *= 2)
        if (parts == 1 || wide % (16 * parts) == 0) add(own, parts, 2, wide);
    }
    unsetenv("WICK_CUDA_WAY");
    std::sort(rows.begin(), rows.end());
    for (const auto& [us, plan] : rows) fmt::print(" | {} {:.2f}", plan, us);
    fmt::print("\n");
    std::fflush(stdout);
  }

  DeviceClock clock_;
  Backend& device_ = clock_.device;
  int calls_ = 20;
};

void run(int argc, char** argv) {
  Sweep sweep;
  for (int i = 1; i < argc; ++i) {
    int64_t tokens, in, out, rank;
    check(std::sscanf(argv[i], "%ldx%ld:%ld:%ld", &tokens, &in, &out, &rank) == 4, "{}: expected TOKENSxIN:OUT:RANK",
          argv[i]);
    sweep.shape(tokens, in, out, rank);
  }
  if (argc > 1) return;
  sweep.shape(77, 768, 768, 16);
  sweep.shape(256, 1536, 1536, 32);
  sweep.shape(256, 3072, 3072, 64);
  sweep.shape(77, 2048, 1280, 32, 2);
  sweep.shape(1024, 1280, 1280, 32);
  sweep.shape(1024, 1280, 1280, 32, 3);
  sweep.shape(1024, 1280, 10240, 32);
  sweep.shape(1024, 5120, 1280, 32);
  sweep.shape(4096, 640, 640, 32);
  sweep.shape(4096, 640, 640, 32, 3);
  sweep.shape(4096, 640, 5120, 32);
  sweep.shape(4096, 2560, 640, 32);
  sweep.shape(4096, 1280, 1280, 32);
  sweep.shape(4096, 1280, 1280, 32, 3);
  sweep.shape(4608, 3072, 3072, 16);
  sweep.shape(4096, 4096, 4096, 16);
}

}  // namespace
}  // namespace wick::bench

int main(int argc, char** argv) {
  try {
    wick::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
