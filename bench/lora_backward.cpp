// The LoRA half of a frozen linear's backward, f32: dA and dB from dY and X, as in bench/peers/lora_backward.py, whose
// way `recompute` is lora_backward's: s = x down^T is computed anew.

#include <CLI/CLI.hpp>

#include "timing.h"
#include "wick/ops/ops.h"

namespace {

using namespace wick;

class Case {
 public:
  Case(int64_t tokens, int64_t width, int64_t rank)
      : name(fmt::format("{}x{} r{}", tokens, width, rank)),
        x_(random_normal({tokens, width}, rng_)),
        dy_(random_normal({tokens, width}, rng_)),
        down_(random_normal({rank, width}, rng_)),
        up_(random_normal({width, rank}, rng_)) {}

  bench::Row measure(int64_t runs) const {
    bench::Row row{name, {}};
    for (int64_t i = 0; i < runs; ++i)
      row.ms.push_back(bench::time_ms([&] { lora_backward(dy_, x_, down_, up_, 0.5f); }));
    return row;
  }

  std::string name;

 private:
  Rng rng_{0};
  Tensor x_, dy_, down_, up_;
};

}  // namespace

int main(int argc, char** argv) {
  int64_t runs = 2000;
  bool on_request = false;
  CLI::App app{"Times lora_backward."};
  CLI::Option* const all_runs = app.add_option("--runs", runs);
  app.add_flag("--on-request", on_request, "for each number on stdin, print the times of so many runs")
      ->excludes(all_runs);
  CLI11_PARSE(app, argc, argv);

  const Case cases[] = {{77, 768, 16}, {256, 1536, 32}, {256, 3072, 64}};
  const auto measure = [&](int64_t count) {
    std::vector<bench::Row> rows;
    for (const Case& c : cases) {
      c.measure(std::max<int64_t>(20, count / 10));
      rows.push_back(c.measure(count));
    }
    return rows;
  };
  if (on_request) return bench::serve(measure), 0;
  for (const bench::Row& row : measure(runs))
    fmt::print(
        "{{\"bench\": \"lora_backward\", \"peer\": \"wick\", \"case\": \"{}\", \"threads\": {}, \"runs\": {}, "
        "\"median_us\": {:.2f}, \"min_us\": {:.2f}}}\n",
        row.name, thread_count(), runs, bench::median(row.ms) * 1e3,
        *std::min_element(row.ms.begin(), row.ms.end()) * 1e3);
}
