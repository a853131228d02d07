// The LoRA products at few rows, where a launch costs more than its work: each is one launch. Needs 9.0.
#pragma once

#include "wick/backend/cuda/runtime/matrix.h"

namespace wick {

// y [M, N] += s up^T with s [M, R] = scale * x [M, K] down^T. s is rounded to x's dtype, as everywhere.
struct AdapterProduct {
  DeviceMatrix y, x, down, up;
  DeviceMatrix saved;  // x down^T, if wanted
  float scale = 1;
};

// dup [N, R] = scale * dy^T s and ddown [R, K] = ds^T x, in f32, with s = x down^T and ds = scale * dy up. Either may
// be unwanted; both may be transposed.
struct AdapterGradients {
  DeviceMatrix ddown, dup, dy, x, down, up;
  float scale = 1;
};

// Activations as factors_fit() wants them (lora_factors.h), factors of one dtype, f32 or theirs, with 16-byte aligned
// rows.
bool few_rows_fit(const Gpu& gpu, const AdapterProduct& p, int64_t rank);  // without the factors
bool few_rows_fit(const Gpu& gpu, int64_t rows, int64_t rank);             // for the gradients
void few_rows_product(CudaBackend& cuda, const AdapterProduct& p);
// False, and nothing done, where the device has no room for all blocks at once, which wait for each other.
bool few_rows_gradients(CudaBackend& cuda, const AdapterGradients& g);

}  // namespace wick
