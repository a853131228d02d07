// The adapter's gradients alone: bench/peers/lora_backward.py's shapes in Wick, one JSON line each.
#include <fmt/core.h>
#include <omp.h>

#include <CLI/CLI.hpp>

#include "timing.h"
#include "wick/ops/ops.h"

int main(int argc, char** argv) {
  using namespace wick;
  int runs = 2000;
  CLI::App app;
  app.add_option("--runs", runs);
  CLI11_PARSE(app, argc, argv);

  struct {
    int64_t tokens, width, rank;
  } const shapes[] = {{77, 768, 16}, {256, 1536, 32}, {256, 3072, 64}};
  for (const auto& [tokens, width, rank] : shapes) {
    Rng rng(0);
    const Tensor x = random_normal({tokens, width}, rng), dy = random_normal({tokens, width}, rng);
    const Tensor down = random_normal({rank, width}, rng), up = random_normal({width, rank}, rng);
    const auto times = bench::measure([&] { lora_backward(dy, x, down, up, 0.5f); }, std::max(20, runs / 10), runs);
    fmt::print(
        R"({{"bench": "lora_backward", "peer": "wick", "tokens": {}, "width": {}, "rank": {}, "threads": {}, "runs": {}, )"
        R"("median_us": {:.2f}, "min_us": {:.2f}}})"
        "\n",
        tokens, width, rank, omp_get_max_threads(), runs, times.median * 1e6, times.min * 1e6);
  }
}
