// Floats whose dtype is known at run time only: for tensors that are small, rare or laid out so that packs do not fit.
#pragma once

#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/core/tensor.h"

namespace wick {

struct AnyFloats {
  void* data;
  DType dtype;

  explicit AnyFloats(const View& view) : data(view.data), dtype(view.dtype) {
    check(is_float(dtype), "CUDA: expected a float tensor, found {}", name_of(dtype));
  }
  AnyFloats() = default;

  __device__ __forceinline__ float load(int64_t i) const {
    if (dtype == DType::f32) return static_cast<const float*>(data)[i];
    if (dtype == DType::bf16) return to_float(static_cast<const bf16*>(data)[i]);
    return to_float(static_cast<const f16*>(data)[i]);
  }
  __device__ __forceinline__ void store(int64_t i, float value) const {
    if (dtype == DType::f32)
      static_cast<float*>(data)[i] = value;
    else if (dtype == DType::bf16)
      static_cast<bf16*>(data)[i] = from_float<bf16>(value);
    else
      static_cast<f16*>(data)[i] = from_float<f16>(value);
  }
};

}  // namespace wick
