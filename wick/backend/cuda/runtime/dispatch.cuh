// From a dtype, which a tensor has at run time, to the element type that a kernel is compiled for.
#pragma once

#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/core/dtype.h"
#include "wick/core/error.h"

namespace wick {

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the element type of a 16-bit float dtype.
template <class F>
decltype(auto) dispatch_16bit(DType dtype, F&& f) {
  return dtype == DType::bf16 ? f(Type<bf16>{}) : f(Type<f16>{});
}

// Calls f(Type<T>{}) with the element type of a float dtype.
template <class F>
void dispatch_float(DType dtype, F&& f) {
  check(is_float(dtype), "CUDA: expected a float tensor, found {}", name_of(dtype));
  dtype == DType::f32 ? f(Type<float>{}) : dispatch_16bit(dtype, f);
}

}  // namespace wick
