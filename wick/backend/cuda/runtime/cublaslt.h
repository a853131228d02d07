// Matrix products by cuBLASLt, which is opened when the first one is asked for.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// How often a product is made, and the elements from one matrix to the next; 0 shares it.
struct GemmBatch {
  int64_t count = 1, c = 0, a = 0, b = 0;
};

class Cublas {
 public:
  // `capability` as 90 for 9.0. The first product takes its workspace from the driver, so not while a graph is
  // captured.
  Cublas(cudaStream_t stream, int capability);
  ~Cublas();

  static void open_early();             // ahead of its use, on another thread: it is large
  static void warm_up(int capability);  // its first choice of a kernel reads its tables, which takes 80 ms
  static std::string describe();        // "cuBLASLt 13.1.0", or why there is none
  // TF32 for f32 products; off unless the user asks.
  void allow_tf32(bool allow) { tf32_ = allow; }

  // c = alpha * a b + beta * c, accumulated in f32. a and b have one dtype; c has it too, or f32. No side is 0.
  void gemm(const DeviceMatrix& c, const DeviceMatrix& a, const DeviceMatrix& b, float alpha = 1, float beta = 0,
            const GemmBatch& batch = {});
  // y = x w + bias [y.cols] + residual [y.rows, y.cols], in one sum. The last two have y's dtype and may be missing.
  // False if cuBLASLt cannot, and then nothing was done.
  bool linear(const DeviceMatrix& y, const DeviceMatrix& x, const DeviceMatrix& w, const void* bias,
              const DeviceMatrix& residual);
  // y = factor * x w^T + bias + residual of codes (DType::fp8) x [M, K] and w [N, K], as linear() otherwise. With
  // scales each row of x and of w has its own (on 9.0 alone). K, N and all rows' bytes are multiples of 16.
  struct CodeScales {
    const float *x = nullptr, *w = nullptr;
  };
  bool multiply_codes(const DeviceMatrix& y, const DeviceMatrix& x, const DeviceMatrix& w, const CodeScales& scales,
                      const void* bias, const DeviceMatrix& residual, float factor = 1);

 private:
  struct Plan;
  // Everything that the choice of an algorithm depends on.
  using Key = std::tuple<DType, DType, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool,
                         int64_t, int64_t, int64_t, int64_t, uint64_t, bool, bool, bool, bool>;
  // d = alpha * a b + beta * c + bias; neither d nor c is transposed.
  struct Product {
    const DeviceMatrix &d, &a, &b, &c;
    float alpha, beta;
    const void* bias;
    const GemmBatch& batch;
    CodeScales scales = {};  // of the rows of a, and of the columns of b
  };
  bool run(const Product& p);
  std::unique_ptr<Plan> make_plan(const Product& p) const;

  cudaStream_t stream_;
  int capability_;
  void* handle_ = nullptr;
  void* workspace_ = nullptr;
  size_t workspace_bytes_;
  bool tf32_ = false;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace wick
