// Products with matrices in fp8_product (core/row_formats.h): the other factor is rounded to codes of 8 bits by rows,
// and tensor cores multiply codes (docs/kernels/fp8.md).
#pragma once

#include <string_view>

#include "wick/backend/cuda/linear/extended_gemm.h"

namespace wick {

enum class Fp8Way {
  scaled,   // cuBLASLt multiplies codes and applies the scales of rows and columns: 9.0
  codes,    // it multiplies codes alone, and a pass over y applies the scales: 8.9 and from 9.0 on
  decoded,  // as codes, of the codes as numbers of y's dtype: any device and any size
};
inline constexpr std::string_view kFp8Ways[] = {"scaled", "codes", "decoded"};
inline std::string_view to_string(Fp8Way way) { return kFp8Ways[size_t(way)]; }

inline bool multiplies_fp8(const Gpu& gpu) { return gpu.capability() >= 89; }
// For y [M, N], by rows, from codes of `depth`: by the device and by how y lies. WICK_CUDA_WAY=fp8:WAY takes that way
// wherever it can go.
Fp8Way plan_fp8(const Gpu& gpu, const DeviceMatrix& y, int64_t depth);

// y = x w^T + bias + residual, and dx = dy w.
void fp8_linear(CudaBackend& cuda, const View& y, const View& x, const View& w, const View& bias, const View& residual);
void fp8_dx(CudaBackend& cuda, const View& dx, const View& dy, const View& w);
// The extended product for g.w in fp8_product; y, x and residual lie by rows. Not where g.low is to be made.
void fp8_extended(CudaBackend& cuda, const ExtendedGemm& g);

}  // namespace wick
