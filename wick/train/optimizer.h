// An optimizer over any set of parameters, and gradients summed over micro-batches. The rule (OptimizerRule in
// backend.h) says how gradients become updates and which states that needs; clipping, loss scaling, halting, averages
// and copies are the same for all rules.
#pragma once

#include <vector>

#include "wick/autograd/tape.h"
#include "wick/nn/weights.h"
#include "wick/train/config.h"
#include "wick/train/model_parts.h"
#include "wick/train/shards.h"

namespace wick {

struct OptimizerOptions {
  OptimizerRule rule = {};  // of() has the settings of the other rules
  float lr = 1e-4f;
  float max_grad_norm = 0;  // clips the norm over all gradients together; 0 does not
  float average = 0;        // decay of a moving average of the parameters (Polyak averaging); 0: none
  AverageWarmup average_warmup = AverageWarmup::updates;
  bool scale_loss = false;  // dynamic loss scaling, which gradients in f16 need

  static OptimizerOptions of(OptimizerKind kind);         // its defaults: docs/defaults.md
  static OptimizerOptions of(const TrainConfig& config);  // without loss scaling: that depends on the device
};

double default_lr(OptimizerKind kind);
double default_lr(const TrainConfig& config);  // of its optimizer; of Adafactor with relative steps their largest

// The factor of the base learning rate at optimizer step `step`, counted from 0, as diffusers' get_scheduler() computes
// it for the settings' schedule, cycles, power, warm-up and steps. It climbs from 0 to 1 over the warm-up, then stays
// (constant), or falls: to 0 along a line, half a cosine or several, each from 1; or as a power to a rate of 1e-7.
double lr_factor(const TrainConfig& config, int64_t step);
// The learning rate of a run's step, counted from 0. Schedule-free has a warm-up of its own, in which step k has
// (k + 1) / warmup of the rate. Adafactor's relative step t, counted from 1, is min(rate, 1 / sqrt(t)), and with
// warmup_init at most t / 1e6, as transformers' Adafactor has it at a rate of 0.01; radam_schedule_free rectifies the
// rate in its update.
double learning_rate(const TrainConfig& config, int64_t step);

class Optimizer {
 public:
  // Keeps the states and averages of the parameters that the shard owns, and updates those alone; the norm is of all
  // gradients. share_values() is the caller's.
  Optimizer(std::vector<Parameter> parameters, OptimizerOptions options, Shard shard = {});

  // One update with `scale` times the gradients; a parameter without a gradient stays as it is. Returns the norm of the
  // scaled gradients before clipping. If that is not finite nothing has been changed.
  float step(const Grads& grads, float scale = 1);

  // The same in two parts, neither of which waits for a device: the values that change from step to step are written,
  // and the update is enqueued. The second may be captured and replayed.
  void set(float lr, float scale = 1);
  void update(const Grads& grads);
  // The scalars after an update: f32 [scalars_of(rule)], beside the parameters.
  const Tensor& scalars() const { return scalars_; }
  // The sums of squares of the gradients as they are, by part of the model: f32 [parts].
  const Tensor& sums_by_part() const { return sums_by_part_; }
  const std::vector<std::string>& part_names() const { return parts_.names; }
  // The gradient with which backward starts, one f32: 1 unless the loss is scaled.
  Tensor loss_scale() const { return scalar(kLossScale); }

  OptimizerKind kind() const { return options_.rule.kind; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  bool is_sharded() const { return shard_.count > 1; }
  const std::vector<int>& owners() const { return owners_; }  // of the parameters
  // Brings the parameters' copies up to date; update() and swap_averages() have done so themselves.
  void refresh_copies() const;
  void go_on();  // after a norm that was not finite: updates count again
  // Exchanges the averages for the parameters' values, and back when called again: those of `average`, or the ones that
  // are schedule-free's result. Between the two nothing is to be updated or saved as a state. Of owned parameters
  // alone.
  void swap_averages();
  bool has_averages() const { return options_.average > 0 || is_schedule_free(kind()); }

  // Everything that a resumed run needs, as state files name it: of each parameter "param.NAME", the rule's states
  // ("m.NAME", "v.NAME"; in 8 bits "m.NAME", "m_absmax.NAME") and, with averages, "ema.NAME"; and the scalars,
  // "optimizer". All ranks have the same list.
  struct State {
    std::string name;
    Tensor value;  // empty where another rank keeps it
    Shape shape;
    DType dtype;
    int owner = 0;  // the rank that keeps it; 0 where all do
  };
  static constexpr const char* kScalarsName = "optimizer";
  std::vector<State> states() const;

 private:
  bool owns(size_t parameter) const { return owners_[parameter] == shard_.rank; }
  Tensor scalar(int which) const;
  void write_scalar(int which, float value);
  void swap_schedule_free();

  std::vector<Parameter> parameters_;
  OptimizerOptions options_;
  Shard shard_;
  std::vector<int> owners_;

  std::vector<std::vector<State>> rule_states_;  // one list a parameter
  std::vector<Tensor> averages_;                 // one a parameter, if there are any; empty where not owned
  std::vector<Tensor> put_aside_;  // on the host, while schedule-free's averages are in the parameters' place
  Tensor scalars_;
  ModelParts parts_;
  Tensor sums_by_part_;
};

// Sums gradients over micro-batches, in the order of the calls. It takes what a tape gives, or tensors made without one
// (lora_backward); dividing by their number is left to Optimizer::step's scale.
class GradientAccumulator {
 public:
  void add(const std::vector<Parameter>& parameters, const Grads& grads);
  void add(const Tensor& parameter, const Tensor& grad);  // `parameter` is trainable(): its identity is the key

  Tensor operator[](const Tensor& parameter) const { return sums_[parameter]; }
  Grads take();  // the sums; the accumulator starts over

 private:
  Grads sums_;
};

}  // namespace wick
