// One optimizer step of a task: enqueued on the task's device without waiting for it.
#pragma once

#include <memory>
#include <optional>

#include "wick/ops/recorder.h"
#include "wick/train/gradient_buffer.h"
#include "wick/train/optimizer.h"
#include "wick/train/task.h"

namespace wick {

// A step's report once the device has come to its end.
struct StepOutcome {
  float loss, grad_norm, loss_scale;
  bool halted;  // the loss or the norm was not finite: neither this step nor a later one changed anything
  std::optional<float> estimate = {};     // Prodigy's d behind the step
  std::vector<float> norms_by_part = {};  // of grad_norm, as Optimizer::part_names()
};

class StepReport {
 public:
  StepReport(std::unique_ptr<Readback> bytes, OptimizerKind optimizer, size_t parts)
      : bytes_(std::move(bytes)), optimizer_(optimizer), parts_(parts) {}
  StepOutcome wait() const;

 private:
  std::unique_ptr<Readback> bytes_;
  OptimizerKind optimizer_;
  size_t parts_;
};

class TrainStep {
 public:
  // Gradients are summed over the batches of a step, of other ranks too if there is `ranks`; `graph`: steps are
  // recorded (ops/recorder.h).
  TrainStep(Task& task, Optimizer& optimizer, const StepOrder& order, bool graph, RankSums* ranks = nullptr);

  // The next step, on the task's next batches.
  StepReport operator()(TrainRng& rng, float lr);
  // Optimizer::swap_averages() between steps, on all ranks together.
  void swap_averages();

 private:
  void add(const NamedTensors& batch, GradientBuffer::Place place);
  void backward(const NamedTensors& batch, Grads& grads);
  void finish(const Grads& grads);
  void share_parameters();

  Task& task_;
  Optimizer& optimizer_;
  StepOrder order_;
  RankSums* ranks_;
  Backend& backend_;
  Tensor loss_;                         // [1], the mean over the batches of a step
  Tensor report_;                       // [1 + parts + scalars]: the loss, and the optimizer's
  std::optional<GradientBuffer> sums_;  // none where a step is one batch
  Recorder recorder_;
};

}  // namespace wick
