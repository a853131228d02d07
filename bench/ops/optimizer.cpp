// AdamW over the factors of `modules` LoRAs of one size. Arguments: modules, width, rank.
#include "ops/op.h"

namespace wick::bench {
namespace {

void adamw(benchmark::State& state) {
  std::vector<AdamWSlot> slots;
  std::vector<Tensor> tensors;
  const auto filled = [&](float value) {
    tensors.push_back(full({state.range(2), state.range(1)}, value));
    return tensors.back().view();
  };
  for (int64_t i = 0; i < 2 * state.range(0); ++i) slots.push_back({filled(1), filled(0.5f), filled(0), filled(0)});
  Backend& backend = tensors.front().backend();
  AdamWStep step{1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, 0, 1};
  for (auto _ : state) {
    ++step.step;
    backend.adamw(slots, step);
  }
  const int64_t numel = 2 * state.range(0) * state.range(1) * state.range(2);
  state.SetBytesProcessed(state.iterations() * numel * 7 * int64_t(sizeof(float)));
}

BENCHMARK(adamw)
    ->ArgNames({"modules", "width", "rank"})
    ->Args({722, 640, 32})
    ->Args({100, 64, 32})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->MinWarmUpTime(0.05);

}  // namespace
}  // namespace wick::bench
