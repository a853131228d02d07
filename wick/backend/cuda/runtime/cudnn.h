// cuDNN 9 for convolution and attention, through its graph API. The library is opened on first use and may be missing.
//
// Every method enqueues one operation and returns true, or does nothing and returns false: where there is no cuDNN, or
// it has no kernel for the case that keeps Wick's promises (the same bits twice, f32 as f32). The answer depends on
// shapes, strides and dtypes only. For each such combination a plan is built once, on the first call; later calls only
// launch kernels, so that they can be captured.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "wick/backend/backend.h"

namespace wick {

class CudaBackend;

class Cudnn {
 public:
  explicit Cudnn(cudaStream_t stream);  // of the current device
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  bool available() const { return handle_ != nullptr; }
  static bool found();
  static std::string describe();  // for `wick doctor`: the version, or why there is none

  static void warm_up();  // the first plans of a convolution and of attention load parts of the library: 150 ms

  void allow_tf32(bool allow) { tf32_ = allow; }  // for convolutions of f32; off unless the user asks

  // Contiguous, 16-byte aligned views of one dtype; padding is the same on opposite sides. In 16 bits the numbers of
  // channels are multiples of 8. There is no bias: with one cuDNN compiles a kernel for each shape, 50 ms each time
  // that a program runs and 150 the first time, where a pass over y takes microseconds.
  bool convolution(CudaBackend& cuda, View y, View x, View w, Conv2d conv);
  bool convolution_backward_input(CudaBackend& cuda, View dx, View dy, View w, Conv2d conv);
  bool convolution_backward_weight(CudaBackend& cuda, View dw, View dy, View x, Conv2d conv);  // dw may be f32

  // [B, T, H, D] views of one 16-bit dtype, 16-byte aligned, any strides with D contiguous; lse [B, H, T] contiguous.
  // All are there, but no ranges.
  bool attention(CudaBackend& cuda, const AttentionArgs& a);
  bool attention_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& grads);

 private:
  struct Plan;
  using Key = std::vector<int64_t>;

  template <class Build>
  Plan* plan(Key key, DType dtype, const Build& build);  // null where cuDNN has none
  template <class Make>
  Plan* convolution_plan(int64_t operation, const View& y, const View& a, const View& b, const Conv2d& conv,
                         const Make& make);
  Plan* convolution_plan(const View& y, const View& x, const View& w, const Conv2d& conv);
  Plan* attention_plan(const AttentionArgs& a);
  bool finish(Plan& plan, DType dtype);
  void execute(CudaBackend& cuda, Plan& plan, const std::vector<void*>& tensors);

  void* handle_ = nullptr;
  int capability_ = 0;
  bool tf32_ = false;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace wick
