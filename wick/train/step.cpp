#include "wick/train/step.h"

#include <fmt/format.h>

#include <algorithm>

#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

// More shapes of batches than this, and the one that was not used for longest is forgotten.
constexpr size_t kMostRecorded = 32;

int64_t numel(const std::vector<Parameter>& parameters) {
  int64_t sum = 0;
  for (const Parameter& p : parameters) sum += p.value.numel();
  return sum;
}

bool all_in(const Memory& memory, const NamedTensors& batch) {
  return std::all_of(batch.begin(), batch.end(), [&](const NamedTensor& t) { return &t.value.memory() == &memory; });
}

std::string key_of(std::string key, const NamedTensors& batch) {
  for (const auto& [name, value] : batch) key += fmt::format(" {} {}", name, value.shape());
  return key;
}

}  // namespace

StepOutcome StepReport::wait() const {
  const float* values = static_cast<const float*>(bytes_->data());
  const float* scalars = values + 1;
  return {.loss = values[0],
          .grad_norm = scalars[kGradNorm],
          .loss_scale = scalars[kLossScale],
          .halted = scalars[kHalted] != 0};
}

TrainStep::TrainStep(Task& task, Optimizer& optimizer, int64_t accumulate, bool graph)
    : task_(task),
      optimizer_(optimizer),
      accumulate_(accumulate),
      graph_(graph),
      backend_(optimizer.parameters().front().value.backend()) {
  Memory& memory = backend_.memory();
  const MemoryScope scope(Purpose::optimizer);
  loss_ = zeros({1}, DType::f32, memory);
  report_ = zeros({1 + kStepScalars}, DType::f32, memory);
  if (accumulate > 1) sums_ = zeros({numel(optimizer.parameters())}, DType::f32, memory);
}

StepReport TrainStep::operator()(TrainRng& rng, float lr) {
  optimizer_.set(lr, 1 / float(accumulate_));
  if (accumulate_ == 1) {
    run("step", task_.next_batch(rng), [this](const NamedTensors& batch) {
      begin();
      finish(backward(batch));
    });
  } else {
    begin();
    for (int64_t i = 0; i < accumulate_; ++i)
      run("batch", task_.next_batch(rng), [this](const NamedTensors& batch) { add_to_sums(backward(batch)); });
    run("update", {}, [this](const NamedTensors&) { finish(sums()); });
  }
  return StepReport(backend_.memory().read_later(report_.view().data, size_t(report_.numel()) * sizeof(float)));
}

void TrainStep::run(const std::string& what, const NamedTensors& batch, const Body& body) {
  const auto compute = [&](const NamedTensors& on) {
    const Arena arena(backend_.memory());  // a step's allocations lie apart from tensors that outlive it
    body(on);
  };
  if (!graph_ || !all_in(backend_.memory(), batch)) return compute(batch);
  Recorded& step = recorded(key_of(what, batch));
  if (step.seen++ == 0) return compute(batch);  // kernels are chosen and libraries set up before anything is recorded
  if (!step.replay) {
    for (const auto& [name, value] : batch) step.buffers.add(name, clone(value));
    step.replay = backend_.capture([&] { compute(step.buffers); });
    graph_ = step.replay != nullptr;
    if (!graph_) {  // this backend never will
      recorded_.clear();
      return compute(batch);
    }
  } else {
    for (const auto& [name, value] : batch) backend_.copy(step.buffers[name], value);
  }
  step.replay->run();
}

TrainStep::Recorded& TrainStep::recorded(const std::string& key) {
  if (recorded_.size() >= kMostRecorded && !recorded_.contains(key))
    recorded_.erase(std::min_element(recorded_.begin(), recorded_.end(), [](const auto& a, const auto& b) {
      return a.second.last_used < b.second.last_used;
    }));
  Recorded& step = recorded_[key];
  step.last_used = ++runs_;
  return step;
}

void TrainStep::begin() {
  backend_.fill(loss_, 0);
  if (sums_) backend_.fill(sums_, 0);
}

Grads TrainStep::backward(const NamedTensors& batch) {
  Tape tape;
  const Tensor loss = task_.loss(batch);
  backend_.accumulate(loss_, loss.detached(), 1 / float(accumulate_));
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
  backend_.copy(report_.window({1}, {1}), loss_);
  backend_.copy(report_.window({kStepScalars}, {1}, 1), optimizer_.scalars());
}

}  // namespace wick
