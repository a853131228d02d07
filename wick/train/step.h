// One optimizer step of a task: enqueued on the task's device without waiting for it.
//
// Where the backend can, steps are captured. The first time that batches of some shapes come, the step is computed call
// by call; the second time it is recorded; from then on its record is replayed on fixed buffers. The bits are the same.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "wick/train/optimizer.h"
#include "wick/train/task.h"

namespace wick {

// A step's report once the device has come to its end.
struct StepOutcome {
  float loss, grad_norm, loss_scale;
  bool halted;  // the loss or the norm was not finite: neither this step nor a later one changed anything
};

class StepReport {
 public:
  explicit StepReport(std::unique_ptr<Readback> bytes) : bytes_(std::move(bytes)) {}
  StepOutcome wait() const;

 private:
  std::unique_ptr<Readback> bytes_;
};

class TrainStep {
 public:
  // Gradients are summed over `accumulate` batches; `graph` allows capturing.
  TrainStep(Task& task, Optimizer& optimizer, int64_t accumulate, bool graph);

  // The next step, on the task's next batches.
  StepReport operator()(TrainRng& rng, float lr);

 private:
  using Body = std::function<void(const NamedTensors& batch)>;
  struct Recorded {
    int64_t seen = 0, last_used = 0;
    NamedTensors buffers;
    std::unique_ptr<Replay> replay;
  };

  void run(const std::string& what, const NamedTensors& batch, const Body& body);
  Recorded& recorded(const std::string& key);
  Grads backward(const NamedTensors& batch);
  void add_to_sums(const Grads& grads);
  Grads sums() const;
  void begin();
  void finish(const Grads& grads);

  Task& task_;
  Optimizer& optimizer_;
  int64_t accumulate_;
  bool graph_;
  Backend& backend_;
  Tensor loss_;    // [1], the mean over the batches of a step
  Tensor report_;  // [1 + kStepScalars]
  Tensor sums_;    // of gradients, all parameters concatenated; empty where a step is one batch
  std::map<std::string, Recorded> recorded_;
  int64_t runs_ = 0;
};

}  // namespace wick
