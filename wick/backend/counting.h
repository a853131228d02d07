// A backend that computes nothing and counts memory. Models, tapes and optimizers run on it as they are, and its Memory
// then shows how much they take on a device. Nothing can be read from it.
#pragma once

#include <array>
#include <string_view>

#include "wick/backend/backend.h"
#include "wick/backend/decoded_weights.h"
#include "wick/backend/scratch.h"
#include "wick/core/segments.h"

namespace wick {

// What a device does in a second of a step: FLOPs of products in 16 bits, bytes of its memory, bytes from the host; and
// bytes that a few threads of such a device's host copy within its memory. Only their ratios are used.
struct Rates {
  double flops, bytes, fetched, copied_on_host;
};

// Properties of a kind of device that are known without having one. counting.cpp has the constants and their sources.
struct DeviceKind {
  std::string_view name;        // "cpu", "cuda"
  bool is_device;               // its Memory is cut out of segments, and it computes in the dtype of the weights
  size_t workspace;             // an allowance for what is laid out otherwise than it is counted here
  size_t context;               // taken past its Memory: by the driver, libraries and threads
  std::string_view context_of;  // in words
  Rates rates;
  size_t nccl = 0, sums_of_threads = 0;  // taken past its Memory too, in a run on several devices: processes or threads
  bool own_attention = false;  // goes backward by our kernels for tensor cores, which keep no parts (scratch.h)
};

// For "cpu", "cuda" or "cuda:N"; `architecture` is a compute capability ("9.0"), if it is known (architecture_of).
DeviceKind device_kind(std::string_view device, std::string_view architecture = {});

// The cost of a step: FLOPs of products, bytes read and written to decode weights, bytes fetched from the host; and the
// seconds of all that at the device's Rates, transfers beside the computation until something waits for them. Only
// ratios of seconds mean something.
struct StepCost {
  double flops = 0, decoded = 0, fetched = 0, seconds = 0;

  StepCost operator-(const StepCost& b) const {
    return {flops - b.flops, decoded - b.decoded, fetched - b.fetched, seconds - b.seconds};
  }
};

class CountingMemory final : public Memory {
 public:
  explicit CountingMemory(const DeviceKind& kind) : in_segments_(kind.is_device), rates_(kind.rates) {}

  void* allocate(size_t bytes) override;
  void release(void* data, size_t bytes) noexcept override;
  bool on_host() const override { return false; }
  void write(void*, const void*, size_t) override {}
  void read(void*, const void*, size_t) override;                      // throws: there is nothing
  std::unique_ptr<Readback> read_later(const void*, size_t) override;  // and so does its data()
  void trim() override;
  void enter_arena() override { ++arenas_; }
  void leave_arena() override { --arenas_; }
  CountingMemory& host_side() override;
  std::unique_ptr<Transfer> make_transfer(Direction direction) override;
  CountingMemory& staging_side() override;
  std::unique_ptr<Transfer> make_staged_transfer(size_t most) override;

  double fetched() const { return fetched_; }  // bytes from the host side
  double now() const { return now_; }          // seconds of computation so far, and of waiting for transfers
  void compute(double flops, double bytes) { now_ += flops / rates_.flops + bytes / rates_.bytes; }
  // The most that was taken from a device, gaps between tensors among it.
  size_t most_taken() const { return most_taken_; }
  size_t most_beside_weights() const { return most_beside_weights_; }  // in use on the host's side

 private:
  class Travel;
  class StagedTravel;
  // Laid out as a device's are, so that the gaps are those of a device.
  Segments general_, arena_segments_;
  bool in_segments_;
  int arenas_ = 0;                         // that are open
  size_t next_address_ = Segments::kUnit;  // of a new segment; never dereferenced
  size_t most_taken_ = 0, most_beside_weights_ = 0;
  Rates rates_;
  double fetched_ = 0, now_ = 0;
  std::array<double, 2> busy_until_{};                        // transfers in each Direction
  std::unique_ptr<CountingMemory> host_side_, staging_side_;  // once they are asked for
};

class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(const DeviceKind& kind) : kind_(kind), memory_(kind) { memory_.set_backend(*this); }

  std::string_view name() const override { return kind_.name; }
  CountingMemory& memory() override { return memory_; }
  // Of the products and convolutions so far, without adapters' and without convolutions' gradients.
  double flops() const { return flops_; }
  // All that was spent so far.
  StepCost cost() const { return {flops_, decoded_, memory_.fetched(), memory_.now()}; }
  void keep_decoded(bool keep) override { decoded_weights_.keep(keep); }
  DType computes_in(DType weights) const override {
    return kind_.is_device ? Backend::computes_in(weights) : DType::f32;
  }

  void copy(View, View) override {}
  void fill(View, float) override {}
  void fill_uniform(View, uint64_t, uint32_t, uint64_t) override {}
  void fill_normal(View, uint64_t, uint32_t, uint64_t) override {}
  void unary(Unary, View, View) override {}
  void unary_backward(Unary, View, View, View) override {}
  void binary(Binary, View, View, View) override {}
  void affine(View, View, float, float) override {}
  void clamp(View, View, float, float) override {}
  void clamp_backward(View, View, View, float, float) override {}
  void accumulate(View, View, float) override {}
  void sum(View, View) override {}
  void matmul(View c, View a, View b, float, float) override { multiplies_back(c, a, b, has_row_format(b.dtype)); }
  void linear(View y, View x, View w, View, View) override { multiplies(w, x, y, has_row_format(w.dtype)); }
  void gated_linear(View y, View x, View w, View bias, const LoraFactors& lora) override;
  void lora_linear(const LoraArgs& a) override {
    if (a.w) multiplies(a.w, a.x, a.y, is_quantized(a.w.dtype));
  }
  void lora_linear_backward(const LoraArgs& a, const LoraGradients& g) override {
    if (g.dx && a.w) multiplies_back(g.dx, g.dy, a.w, is_quantized(a.w.dtype));
  }
  void lora_backward(const LoraArgs&, const LoraGradients&) override {}
  void dropout(View, View, const Dropout&, bool) override {}
  void conv2d(View y, View x, View w, View, View, Conv2d conv) override;
  void conv2d_backward_input(View dx, View dy, View w, Conv2d conv) override;
  void conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) override;
  void upsample_nearest(View, View) override {}
  void upsample_nearest_backward(View, View) override {}
  void group_norm(const GroupNormArgs&) override {}
  void group_norm_backward(const GroupNormArgs&, const NormGradients&) override {}
  void layer_norm(const NormArgs&) override {}
  void layer_norm_backward(const NormArgs&, const NormGradients&) override {}
  void rms_norm(const NormArgs&) override {}
  void rms_norm_backward(const NormArgs&, const NormGradients&) override {}
  void rope(View, View, View, View, RopePairs, bool) override {}
  void rope_angles(View, View, View, View) override {}
  void attention(const AttentionArgs& a) override;
  void attention_backward(const AttentionArgs& a, const AttentionGradients&) override;
  void softmax(View, View) override {}
  void softmax_backward(View, View, View) override {}
  void geglu(View, View) override {}
  void geglu_backward(View, View, View) override {}
  void swiglu(View, View) override {}
  void swiglu_backward(View, View, View) override {}
  void embedding(View, View, View) override {}
  void embedding_backward(View, View, View) override {}
  void timestep_embedding(View, View, float) override {}
  void scatter_rows(View, View, View) override {}
  void gated_add(View, View, View, View) override {}
  void gated_add_norm(const GatedSum&, const NormArgs&) override {}
  void gated_add_backward(View, View, View, View, View) override {}
  void qk_norm_rope(const QkNormRopeArgs&) override {}
  void qk_norm_rope_backward(const QkNormRopeArgs&, const QkNormRopeGradients&) override {}
  void rope_into_cache(const RopeIntoCacheArgs& a) override;
  void cross_entropy(View, View, View, View) override {}
  void mse(View, View, View) override {}
  void copy_many(const std::vector<Copied>&, bool) override {}
  void mse_backward(View, View, View, View) override {}
  void optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View) override;
  void sum_of_squares(View, const std::vector<View>&) override {}
  void argmax(View, View, View) override {}

 private:
  void computes(double flops, double decoded = 0);
  void scratch(size_t bytes);  // of a kernel: taken and given back
  // Products, for which a device may decode w as a whole: y = x w^T, and y = x w.
  void multiplies(const View& w, const View& x, const View& y, bool whole);
  void multiplies_back(const View& y, const View& x, const View& w, bool whole);
  void reads(const View& w, const View& x, const View& y, bool whole);
  // What a device copies for a convolution.
  std::vector<Tensor> padded(const View& x, const View& y, const View& w, const Conv2d& conv, DType dtype);
  void multiplies_codes(const View& w, const View& x, const View& y, const Fp8Scratch& work);

  DeviceKind kind_;
  CountingMemory memory_;
  DecodedWeights decoded_weights_;
  double flops_ = 0, decoded_ = 0;
};

}  // namespace wick
