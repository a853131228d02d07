#include "wick/train/step.h"

#include <cmath>

#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

int64_t numel(const std::vector<Parameter>& parameters) {
  int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.value.numel();
  return sum;
}

}  // namespace

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
  if (order_.batches > 1) {
    const int64_t count = numel(optimizer.parameters());
    sums_ = zeros({count + 1}, DType::f32, memory);
    loss_ = sums_.window({1}, {1}, count);
  } else {
    loss_ = zeros({1}, DType::f32, memory);
  }
}

StepReport TrainStep::operator()(TrainRng& rng, float lr) {
  optimizer_.set(lr, 1 / float(order_.batches));
  if (order_.count == 1) {
    recorder_.run("step", task_.next_batch(rng), [this](const NamedTensors& batch) {
      begin();
      if (!sums_) return finish(backward(batch));
      add_to_sums(backward(batch));
      finish(sums_of_all());
    });
  } else {
    begin();
    for (int64_t i = 0; i < order_.count; ++i)
      recorder_.run("batch", task_.next_batch(rng),
                    [this](const NamedTensors& batch) { add_to_sums(backward(batch)); });
    recorder_.run("update", {}, [this](const NamedTensors&) { finish(sums_of_all()); });
  }
  return {backend_.memory().read_later(report_.view().data, size_t(report_.numel()) * sizeof(float)), optimizer_.kind(),
          optimizer_.part_names().size()};
}

void TrainStep::begin() { backend_.fill(sums_ ? sums_ : loss_, 0); }

Grads TrainStep::backward(const NamedTensors& batch) {
  Tape tape;
  const Tensor loss = task_.loss(batch);
  backend_.accumulate(loss_, loss.detached(), 1 / float(order_.batches));
  // 0 unless the loss is not finite: then no gradient is either, and the optimizer stands still.
  const Tensor zero = loss.detached() * 0.0f;
  Grads grads;
  tape.backward(loss, zero + optimizer_.loss_scale(), grads);
  return grads;
}

void TrainStep::add_to_sums(const Grads& grads) {
  const Grads all = sums();
  for (const Parameter& p : optimizer_.parameters())
    if (const Tensor grad = grads[p.value]) backend_.accumulate(all[p.value], grad, 1);
}

Grads TrainStep::sums_of_all() {
  if (ranks_) {
    ranks_->add(sums_);
    ranks_->join();
  }
  return sums();
}

// Windows of sums_, each under its parameter's identity.
Grads TrainStep::sums() const {
  Grads grads;
  int64_t begin = 0;
  for (const Parameter& p : optimizer_.parameters()) {
    grads.add(p.value, sums_.window(p.value.shape(), contiguous_strides(p.value.shape()), begin));
    begin += p.value.numel();
  }
  return grads;
}

void TrainStep::finish(const Grads& grads) {
  optimizer_.update(grads);
  if (task_.limit_parameters()) optimizer_.refresh_copies();
  backend_.copy(report_.window({1}, {1}), loss_);
  int64_t at = 1;
  for (const Tensor& values : {optimizer_.sums_by_part(), optimizer_.scalars()}) {
    backend_.copy(report_.window(values.shape(), {1}, at), values);
    at += values.numel();
  }
}

}  // namespace wick
