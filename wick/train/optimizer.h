// AdamW (Loshchilov & Hutter, 2019) over any set of parameters, and gradients summed over micro-batches.
#pragma once

#include <unordered_map>
#include <vector>

#include "wick/autograd/tape.h"
#include "wick/nn/weights.h"

namespace wick {

struct AdamWOptions {
  float lr = 1e-4f;
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  float weight_decay = 0.01f;
  float max_grad_norm = 0;  // clips the norm over all gradients together; 0 does not
  float average = 0;        // decay of a moving average of the parameters (Polyak averaging); 0: none
  bool scale_loss = false;  // dynamic loss scaling, which gradients in f16 need
};

class AdamW {
 public:
  AdamW(std::vector<Parameter> parameters, AdamWOptions options);

  // One update with `scale` times the gradients; a parameter without a gradient stays as it is. Returns the norm of the
  // scaled gradients before clipping. If that is not finite nothing has been changed.
  float step(const Grads& grads, float scale = 1);

  // The same in two parts, neither of which waits for a device: what changes from step to step is written, and the
  // update is enqueued. The second may be captured and replayed.
  void set(float lr, float scale = 1);
  void update(const Grads& grads);
  // What an update leaves: [kAdamWScalars] f32, beside the parameters.
  const Tensor& scalars() const { return scalars_; }
  // What backward starts with, one f32: 1 unless the loss is scaled.
  Tensor loss_scale() const { return scalar(kLossScale); }

  void set_lr(float lr) { options_.lr = lr; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Averages of the parameters, in their order; empty without AdamWOptions::average.
  const std::vector<Tensor>& averages() const { return averages_; }
  // Brings the parameters' copies up to date; update() and swap_averages() have done so themselves.
  void refresh_copies() const;
  void go_on();          // after a norm that was not finite: updates count again
  void swap_averages();  // exchanges them for the parameters' values, and back when called again

  // What a resumed run needs beside the parameters; the order is that of the parameters.
  const std::vector<Tensor>& first_moments() const { return m_; }
  const std::vector<Tensor>& second_moments() const { return v_; }

 private:
  Tensor scalar(AdamWScalar which) const;
  void write_scalar(AdamWScalar which, float value);

  std::vector<Parameter> parameters_;
  AdamWOptions options_;

  std::vector<Tensor> m_, v_, averages_;
  Tensor scalars_;  // [kAdamWScalars], beside the parameters
};

// Sums gradients over micro-batches, in the order of the calls. It takes what a tape gives, or tensors made without one
// (lora_backward); dividing by their number is left to AdamW::step's scale.
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
