// Wick's side of bench/quantised_linear: for each line "RUNS TYPE M K N COPIES" on stdin, prints the milliseconds of a
// product y [M, N] = x [M, K] w[N, K]^T as a list, one entry per run. A run goes through COPIES weights, which together
// exceed the caches, as a model's do.
#include <fmt/ranges.h>

#include "timing.h"
#include "wick/core/blocks.h"
#include "wick/ops/ops.h"

namespace {

using namespace wick;

DType dtype_named(const std::string& name) {
  for (const DType dtype :
       {DType::q8_0, DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k, DType::bf16, DType::f16, DType::f32})
    if (name_of(dtype) == name) return dtype;
  fail("expected a type of blocks, bf16, f16 or f32, found {}", name);
}

void run() {
  cpu_backend();
  fmt::print("{}\n", bench::libraries());
  std::fflush(stdout);
  std::string type;
  for (int64_t runs, m, k, n, copies; std::cin >> runs >> type >> m >> k >> n >> copies;) {
    Rng rng(1);
    const Tensor x = random_normal({m, k}, rng), values = random_normal({n, k}, rng);
    std::vector<Tensor> weights;
    for (int64_t i = 0; i < copies; ++i) {
      const MemoryScope scope(Purpose::weights);
      weights.push_back(Tensor::empty({n, k}, dtype_named(type)));
      cpu_backend().copy(weights.back(), values);
    }
    std::vector<double> ms;
    for (int64_t i = -1; i < runs; ++i) {  // the first warms up
      const double start = bench::now();
      for (const Tensor& w : weights) linear(x, w, {});
      if (i >= 0) ms.push_back((bench::now() - start) / double(copies));
    }
    fmt::print("[{:.6f}]\n", fmt::join(ms, ", "));
    std::fflush(stdout);
  }
}

}  // namespace

int main() {
  try {
    run();
  } catch (const Error& e) {
    fmt::print(stderr, "bench_quantised_linear: {}\n", e.what());
    return 1;
  }
}
