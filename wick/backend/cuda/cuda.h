// The CUDA backend: one device, one stream, one thread. There is one file per op family; wick/backend/backend.h
// documents the methods. A device computes in the threads that have it as their current one: open_backend() sees to
// that.
//
// Activations may be f32, bf16 or f16; arithmetic inside a kernel is f32. Views whose layout a kernel does not take go
// through a dense copy (dense.h). Nothing waits for the device but Memory::read.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "wick/backend/composed.h"
#include "wick/backend/cuda/gpu.h"
#include "wick/backend/cuda/runtime/check.h"
#include "wick/backend/decoded_weights.h"

namespace wick {

class Cublas;  // cublaslt.h
class Cudnn;   // cudnn.h
class Pool;    // pool.h, whose headers take longer to compile than most kernels

// 90 for 9.0, or what WICK_CUDA_CAPABILITY lowers it to, so that the ways of older devices run.
int capability_of(const cudaDeviceProp& properties);

class CudaBackend final : public ComposedBackend, public Gpu {
 public:
  explicit CudaBackend(int device);
  ~CudaBackend() override;

  std::string_view name() const override { return name_; }
  Memory& memory() override;

  cudaStream_t stream() const { return stream_; }
  bool multiplies_fp8() const override;
  void allow_tf32(bool allow) override;
  void warm_up() override;
  void keep_decoded(bool keep) override { decoded_.keep(keep); }
  Tensor decoded(const View& w, DType dtype);  // w in blocks or rows of codes
  Cublas& cublas();                            // loaded on first use
  Cudnn& cudnn();

  // moving and making data
  void copy(View y, View x) override;
  void copy_many(const std::vector<Copied>& all, bool add) override;
  void fill(View y, float value) override;
  void fill_uniform(View y, uint64_t seed, uint32_t stream, uint64_t position) override;
  void fill_normal(View y, uint64_t seed, uint32_t stream, uint64_t position) override;

  // elementwise and reductions
  void unary(Unary op, View y, View x) override;
  void unary_backward(Unary op, View dx, View dy, View x) override;
  void binary(Binary op, View y, View a, View b) override;
  void add(View y, View a, View b, View c);  // y = a + b + c
  void affine(View y, View x, float scale, float shift) override;
  void clamp(View y, View x, float min, float max) override;
  void clamp_backward(View dx, View dy, View x, float min, float max) override;
  void accumulate(View y, View x, float scale) override;
  void sum(View y, View x) override;
  void argmax(View ids, View largest, View x) override;

  // matrix products
  void matmul(View c, View a, View b, float alpha, float beta) override;
  void linear(View y, View x, View w, View bias, View residual) override;
  void gated_linear(View y, View x, View w, View bias, const LoraFactors& lora) override;
  void lora_linear(const LoraArgs& a) override;
  void lora_linear_backward(const LoraArgs& a, const LoraGradients& g) override;
  void lora_backward(const LoraArgs& a, const LoraGradients& g) override;
  void dropout(View y, View x, const Dropout& dropout, bool add) override;

  // convolution
  void conv2d(View y, View x, View w, View bias, View added, Conv2d conv) override;
  void conv2d_backward_input(View dx, View dy, View w, Conv2d conv) override;
  void conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) override;
  void upsample_nearest_backward(View dx, View dy) override;

  // norms
  void group_norm(const GroupNormArgs& a) override;
  void group_norm_backward(const GroupNormArgs& a, const NormGradients& g) override;
  void layer_norm(const NormArgs& a) override;
  void layer_norm_backward(const NormArgs& a, const NormGradients& g) override;
  void rms_norm(const NormArgs& a) override;
  void rms_norm_backward(const NormArgs& a, const NormGradients& g) override;

  // attention, softmax
  void attention(const AttentionArgs& a) override;
  void attention_backward(const AttentionArgs& a, const AttentionGradients& g) override;
  void softmax(View y, View x) override;
  void softmax_backward(View dx, View dy, View y) override;

  // rotary positions
  void rope(View y, View x, View cos, View sin, RopePairs pairs, bool inverse) override;
  void rope_angles(View cos, View sin, View positions, View frequencies) override;
  void rope_into_cache(const RopeIntoCacheArgs& a) override;

  // gated activations
  void geglu(View y, View x) override;
  void geglu_backward(View dx, View dy, View x) override;
  void swiglu(View y, View x) override;
  void swiglu_backward(View dx, View dy, View x) override;

  // transformers of diffusion models
  void gated_add(View y, View x, View gate, View h) override;
  void gated_add_norm(const GatedSum& sum, const NormArgs& norm) override;
  void gated_add_backward(View dh, View dgate, View dy, View gate, View h) override;
  void qk_norm_rope(const QkNormRopeArgs& a) override;
  void qk_norm_rope_backward(const QkNormRopeArgs& a, const QkNormRopeGradients& g) override;

  // tables of embeddings
  void embedding(View y, View table, View ids) override;
  void embedding_backward(View dtable, View dy, View ids) override;
  void timestep_embedding(View y, View t, float max_period) override;
  void scatter_rows(View y, View x, View rows) override;

  // losses
  void cross_entropy(View loss, View dlogits, View logits, View targets) override;
  void mse(View loss, View a, View b) override;
  void mse_backward(View da, View dloss, View a, View b) override;

  // optimizer
  void optimizer_step(const std::vector<OptimizerSlot>& slots, const OptimizerStep& step, View scalars) override;
  void sum_of_squares(View total, const std::vector<View>& tensors) override;

  std::unique_ptr<Replay> capture(const std::function<void()>& work) override;  // as a CUDA graph

  // several devices: by copy engines or NCCL
  std::string collective_id(CollectiveUse use) override;
  std::unique_ptr<Collective> join_collective(const std::string& id, int rank, int count,
                                              const std::function<void()>& check_others) override;

 private:
  int device_;
  bool tf32_ = false;
  std::string name_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Cublas> cublas_;
  std::unique_ptr<Cudnn> cudnn_;
  DecodedWeights decoded_;
};

}  // namespace wick
