// Optimizer steps: the part that all rules share (clipping, loss scale, halting, averages, copies), and the norm that
// clipping needs.
#include "wick/backend/cpu/block_loop.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/optimizer/rules.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/optimizer/optimizer.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

// In doubles from the start, so that gradients near the ends of f32's range count.
double SumOfSquaresBlock(const float* x, int64_t n) {
  const Doubles wide;
  const hn::Rebind<float, Doubles> narrow;
  const int64_t step = int64_t(hn::Lanes(wide));
  auto even = hn::Zero(wide), odd = even;
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    const auto a = hn::PromoteTo(wide, hn::LoadU(narrow, x + i));
    const auto b = hn::PromoteTo(wide, hn::LoadU(narrow, x + i + step));
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  double sum = hn::GetLane(hn::SumOfLanes(wide, hn::Add(even, odd)));
  for (; i < n; ++i) sum += double(x[i]) * double(x[i]);
  return sum;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace wick {

HWY_EXPORT(SumOfSquaresBlock);

namespace {

// Whether there is to be an update; moves the scalars on.
bool begin_step(const OptimizerStep& step, float* scalars) {
  if (scalars[kHalted] != 0) return false;
  const float norm = scalars[kGradScale] / scalars[kLossScale] * std::sqrt(scalars[kSumOfSquares]);
  scalars[kGradNorm] = norm;
  if (!std::isfinite(norm)) {
    scalars[kGoodSteps] = 0;
    if (step.scales_loss && scalars[kLossScale] > 1)
      scalars[kLossScale] /= 2;
    else
      scalars[kHalted] = 1;
    return false;
  }
  scalars[kSteps] += 1;
  return true;
}

// After the update, which still needed the old scale.
void end_step(const OptimizerStep& step, float* scalars) {
  constexpr float kPatience = 2000, kLargest = 65536;
  if (!step.scales_loss || ++scalars[kGoodSteps] < kPatience) return;
  scalars[kGoodSteps] = 0;
  scalars[kLossScale] = std::min(2 * scalars[kLossScale], kLargest);
}

// The factor of the gradients, clipped as PyTorch's clip_grad_norm_ does.
float clipped_scale(const OptimizerStep& step, const float* scalars) {
  const float scale = scalars[kGradScale] / scalars[kLossScale], norm = scalars[kGradNorm], most = step.max_grad_norm;
  return most > 0 && norm > most ? scale * (most / (norm + 1e-6f)) : scale;
}

void update(const RuleStep& step) {
  switch (step.rule.kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::adamw8bit:
      return adamw(step);
    case OptimizerKind::lion:
    case OptimizerKind::lion8bit:
      return lion(step);
    case OptimizerKind::adafactor:
      return adafactor(step);
    case OptimizerKind::prodigy:
      return prodigy(step);
    case OptimizerKind::schedule_free:
    case OptimizerKind::radam_schedule_free:
      return schedule_free(step);
  }
}

// By which the averages decay in this step.
float average_decay(const OptimizerStep& step, float t) {
  switch (step.average_warmup) {
    case AverageWarmup::updates:
      return std::min(step.average_decay, (1 + t) / (10 + t));
    case AverageWarmup::power:
      return std::min(step.average_decay, 1 - std::pow(t, -2.0f / 3));
    case AverageWarmup::none:
      return step.average_decay;
  }
  return step.average_decay;
}

void move_towards(Backend& cpu, const View& average, const View& value, float share) {
  const Tensor away = Tensor::empty(value.shape);
  cpu.binary(Binary::sub, away, value, average);
  cpu.accumulate(average, away, share);
}

}  // namespace

void CpuBackend::optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalar_view) {
  float* scalars = scalar_view.as<float>();
  if (!begin_step(step, scalars)) return;
  update({slots, step.rule, scalars, clipped_scale(step, scalars)});
  const float decay = average_decay(step, scalars[kSteps]);
  for (const OptimizerSlot& slot : slots) {
    if (slot.average) move_towards(*this, slot.average, slot.param, 1 - decay);
    if (slot.copy) copy(slot.copy, slot.param);
  }
  end_step(step, scalars);
}

void CpuBackend::sum_of_squares(View total, const std::vector<View>& tensors) {
  double sum = 0;
  for (const View& tensor : tensors) {
    const BlockLoop loop({}, {tensor});
    std::vector<double> partial(size_t(loop.blocks()));
    loop.run([&](const BlockLoop::Pointers& p, int64_t n, int64_t block) {
      partial[size_t(block)] = HWY_DYNAMIC_DISPATCH(SumOfSquaresBlock)(p[0], n);
    });
    sum = std::accumulate(partial.begin(), partial.end(), sum);
  }
  *total.as<float>() = float(sum);
}

}  // namespace wick
#endif  // HWY_ONCE
