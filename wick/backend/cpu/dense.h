// Views as rows of contiguous f32: in place where they already are that, else through a copy.
#pragma once

#include "wick/backend/backend.h"

namespace wick {

inline bool is_dense(const View& view) { return view.dtype == DType::f32 && view.contiguous(); }

class Dense {
 protected:
  explicit Dense(const View& view) : view_(view), data_(view.as<float>()) {
    if (!view || is_dense(view)) return;
    copy_ = Tensor::empty(view.shape);
    data_ = copy_.data<float>();
  }

  View view_;
  Tensor copy_;
  float* data_;
};

class DenseInput : Dense {
 public:
  explicit DenseInput(const View& view) : Dense(view) {
    if (copy_) cpu_backend().copy(copy_, view);
  }
  const float* data() const { return data_; }  // null for an empty view
};

class DenseOutput : Dense {
 public:
  explicit DenseOutput(const View& view) : Dense(view) {}
  float* data() const { return data_; }  // null for an empty view
  // Call once the data are written.
  void finish() const {
    if (copy_) cpu_backend().copy(view_, copy_);
  }
};

}  // namespace wick
