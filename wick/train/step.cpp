#include "wick/train/step.h"

#include <cmath>

#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {

StepOutcome StepReport::wait() const {
  const float* values = static_cast<const float*>(bytes_->data());
  const float* scalars = values + 1 + parts_;
  const bool has_estimate = optimizer_ == OptimizerKind::prodigy;
  StepOutcome outcome{.loss = values[0],
                      .grad_norm = scalars[kGradNorm],
                      .loss_scale = scalars[kLossScale],
                      .halted = scalars[kHalted] != 0,
                      .estimate = has_estimate ? std::optional(scalars[kProdigyD]) : std::nullopt};
  const float all = scalars[kSumOfSquares];
  for (size_t i = 0; i < parts_; ++i)
    outcome.norms_by_part.push_back(all > 0 ? outcome.grad_norm * std::sqrt(values[1 + i] / all) : 0);
  return outcome;
}

TrainStep::TrainStep(Task& task, Optimizer& optimizer, const StepOrder& order, bool graph, RankSums* ranks)
    : task_(task),
      optimizer_(optimizer),
      order_(order),
      ranks_(ranks),
      backend_(optimizer.parameters().front().value.backend()),
      recorder_(backend_, graph) {
  Memory& memory = backend_.memory();
  const MemoryScope scope(Purpose::optimizer);
  report_ = zeros({1 + optimizer.sums_by_part().numel() + optimizer.scalars().numel()}, DType::f32, memory);
  if (order_.batches > 1) sums_.emplace(optimizer.parameters(), ranks);
  loss_ = sums_ ? sums_->loss() : zeros({1}, DType::f32, memory);
}

StepReport TrainStep::operator()(TrainRng& rng, float lr) {
  optimizer_.set(lr, 1 / float(order_.batches));
  using Place = GradientBuffer::Place;
  if (order_.count > 1) sums_->clear();
  for (int64_t i = 1; i <= order_.count; ++i) {
    const Place place = order_.count == 1 ? Place::alone : i < order_.count ? Place::before_others : Place::last;
    constexpr const char* kNames[] = {"step", "batch", "last batch"};
    recorder_.run(kNames[size_t(place)], task_.next_batch(rng),
                  [=, this](const NamedTensors& batch) { add(batch, place); });
  }
  return {backend_.memory().read_later(report_.view().data, size_t(report_.numel()) * sizeof(float)), optimizer_.kind(),
          optimizer_.part_names().size()};
}

// A batch of a step, and behind the last one the update.
void TrainStep::add(const NamedTensors& batch, GradientBuffer::Place place) {
  Grads grads;
  if (place == GradientBuffer::Place::alone) backend_.fill(loss_, 0);
  if (sums_) sums_->begin(grads, shapes_of(batch), place);
  backward(batch, grads);
  if (sums_) sums_->end(grads);
  if (place != GradientBuffer::Place::before_others) finish(sums_ ? sums_->sums() : grads);
}

void TrainStep::backward(const NamedTensors& batch, Grads& grads) {
  Tape tape;
  const Tensor loss = task_.loss(batch);
  backend_.accumulate(loss_, loss.detached(), 1 / float(order_.batches));
  // 0 unless the loss is not finite: then no gradient is either, and the optimizer stands still.
  const Tensor zero = loss.detached() * 0.0f;
  tape.backward(loss, zero + optimizer_.loss_scale(), grads);
}

void TrainStep::finish(const Grads& grads) {
  optimizer_.update(grads);
  share_parameters();
  if (task_.limit_parameters()) optimizer_.refresh_copies();
  backend_.copy(report_.window({1}, {1}), loss_);
  int64_t at = 1;
  for (const Tensor& values : {optimizer_.sums_by_part(), optimizer_.scalars()}) {
    backend_.copy(report_.window(values.shape(), {1}, at), values);
    at += values.numel();
  }
}

void TrainStep::swap_averages() {
  optimizer_.swap_averages();
  if (optimizer_.has_averages()) share_parameters();
}

// Where their states are sharded. The gradients are no longer needed: what they took is room enough.
void TrainStep::share_parameters() {
  if (ranks_ && optimizer_.is_sharded())
    share_values(optimizer_.parameters(), optimizer_.owners(), sums_->room(), *ranks_);
}

}  // namespace wick
