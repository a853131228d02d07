// AdamW over the factors of `modules` LoRAs of one size. Arguments: modules, width, rank.
#include "ops/op.h"

namespace wick::bench {
namespace {

void adamw(benchmark::State& state) {
  std::vector<OptimizerSlot> slots;
  std::vector<Tensor> tensors;
  const auto filled = [&](float value) {
    tensors.push_back(full({state.range(2), state.range(1)}, value));
    return tensors.back().view();
  };
  for (int64_t i = 0; i < 2 * state.range(0); ++i) slots.push_back({filled(1), filled(0.5f), {filled(0), filled(0)}});
  Backend& backend = tensors.front().backend();
  const Tensor scalars = Tensor::of(std::vector<float>{1e-4f, 1, 1, 0, 0, 1, 0, 0}, {kStepScalars});
  for (auto _ : state) backend.optimizer_step(slots, {}, scalars);
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
