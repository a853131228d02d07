#include "wick/backend/cuda/linear/fp8_codes.h"

#include "wick/backend/cuda/device/fp8.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"
#include "wick/core/row_formats.h"

namespace wick {
namespace {

constexpr int kThreads = 1024;  // at most, of a block that encodes rows
constexpr int kHeld = 4;        // packs of a row that a thread has in registers
constexpr int kPassThreads = 256;

// The scales of rows of fp8_product, which lie behind their codes, and a bias.
struct RowScales {
  const char* first;
  int64_t stride;
  int rows;
  float* to;
  BiasCopy bias;
};

template <class T>
__device__ __forceinline__ void gather(const RowScales& s, int row) {
  if (row >= s.rows) return;
  s.to[row] = *reinterpret_cast<const float*>(s.first + row * s.stride);
  if (s.bias.bias) static_cast<T*>(s.bias.narrow)[row] = from_float<T>(s.bias.bias[row]);
}

struct Encoding {
  uint8_t* codes;
  float* scales;
  int64_t stride, x_stride;  // bytes of codes, elements of x
  int rows, cols;
  const float* column_scales;
};

__device__ __forceinline__ Fp8Scale scale_of(float largest) {
  return {__fdiv_rn(largest, kFp8Largest), largest > kFp8Zero ? __fdiv_rn(kFp8Largest, largest) : 0};
}

// Eight elements of a row from `pack` on.
template <class T>
__device__ __forceinline__ Pack<T, 8> load_eight(const T* row, int pack) {
  Pack<T, 8> eight;
  const auto* const from = reinterpret_cast<const uint4*>(row + pack * 8);
#pragma unroll
  for (int i = 0; i < int(sizeof eight / 16); ++i) reinterpret_cast<uint4*>(&eight)[i] = __ldg(from + i);
  return eight;
}

template <bool kScaled, class T>
__device__ __forceinline__ float scaled(T x, float by) {
  return kScaled ? __fmul_rn(to_float(x), by) : to_float(x);
}

// A block has kRows rows, in registers between finding the largest magnitude of each and encoding them; several share
// what is read of column_scales. The blocks behind gather the scales of w.
template <class T, int kRows, bool kScaled>
__global__ void __launch_bounds__(kThreads)
    encode_packs(const Encoding e, const T* x, int row_blocks, const RowScales w) {
  const int threads = int(blockDim.x), thread = int(threadIdx.x), packs = e.cols / 8;
  if (int(blockIdx.x) >= row_blocks) return gather<T>(w, (int(blockIdx.x) - row_blocks) * threads + thread);
  const int first = int(blockIdx.x) * kRows;
  Pack<T, 8> held[kRows][kHeld] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (thread + h * threads < packs && first + r < e.rows)
        held[r][h] = load_eight(x + (first + r) * e.x_stride, thread + h * threads);
  const auto scales_at = [&](int pack, float(&by)[8]) {
    if constexpr (kScaled) {
      const auto* const from = reinterpret_cast<const float4*>(e.column_scales + pack * 8);
      reinterpret_cast<float4*>(by)[0] = __ldg(from);
      reinterpret_cast<float4*>(by)[1] = __ldg(from + 1);
    }
  };
  float largest[kRows] = {};
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (thread + h * threads >= packs) continue;
    alignas(16) float by[8] = {};
    scales_at(thread + h * threads, by);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int k = 0; k < 8; ++k)
        largest[r] = MaxOrNan::of(fabsf(scaled<kScaled>(held[r][h].value[k], by[k])), largest[r]);
  }
  block_reduce<MaxOrNan>(largest);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int pack = thread + h * threads;
    if (pack >= packs) continue;
    alignas(16) float by[8] = {};
    scales_at(pack, by);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= e.rows) continue;
      const float inverse = scale_of(largest[r]).inverse;
      const auto code = [&](int k) { return __fmul_rn(scaled<kScaled>(held[r][h].value[k], by[k]), inverse); };
      *reinterpret_cast<uint2*>(e.codes + (first + r) * e.stride + pack * 8) = {
          e4m3_codes(code(0), code(1), code(2), code(3)), e4m3_codes(code(4), code(5), code(6), code(7))};
    }
  }
  if (thread < kRows && first + thread < e.rows) {
    float own = largest[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) own = thread == r ? largest[r] : own;
    e.scales[first + thread] = scale_of(own).scale;
  }
}

// Rows of any length and alignment, a block each.
template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_any(const Encoding e, const T* x, int row_blocks, const RowScales w) {
  if (int(blockIdx.x) >= row_blocks) return gather<T>(w, (int(blockIdx.x) - row_blocks) * kThreads + int(threadIdx.x));
  const T* const row = x + blockIdx.x * e.x_stride;
  const auto value = [&](int i) {
    const float v = to_float(row[i]);
    return e.column_scales ? __fmul_rn(v, e.column_scales[i]) : v;
  };
  float largest = 0;
  for (int i = int(threadIdx.x); i < e.cols; i += kThreads) largest = MaxOrNan::of(fabsf(value(i)), largest);
  const Fp8Scale s = scale_of(block_reduce<MaxOrNan>(largest));
  for (int i = int(threadIdx.x); i < e.cols; i += kThreads)
    e.codes[blockIdx.x * e.stride + i] = e4m3_code(__fmul_rn(value(i), s.inverse));
  if (threadIdx.x == 0) e.scales[blockIdx.x] = s.scale;
}

// A tile of 128 x 128 codes through shared memory: threads turn squares of four by four in registers.
constexpr int kTile = 128, kPitch = kTile / 4 + 1;  // words
__global__ void __launch_bounds__(kPassThreads)
    transpose_tiles(uint8_t* to, int64_t to_stride, float* ones, const char* w, const RowScales s, int cols) {
  __shared__ uint32_t turned[kTile * kPitch];
  const int first_row = int(blockIdx.y) * kTile, first_col = int(blockIdx.x) * kTile;
  if (blockIdx.x == 0 && threadIdx.x < kTile) gather<float>(s, first_row + int(threadIdx.x));
  if (blockIdx.y == 0 && threadIdx.x < kTile && first_col + int(threadIdx.x) < cols) ones[first_col + threadIdx.x] = 1;
  // Eight squares side by side, whose rows are 32 bytes, and four below each other in a warp.
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at_col = (i * 8 + lane % 8) * 4, at_row = (warp * 4 + lane / 8) * 4;
    uint32_t in[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool inside = first_row + at_row + k < s.rows && first_col + at_col < cols;
      in[k] =
          inside ? *reinterpret_cast<const uint32_t*>(w + (first_row + at_row + k) * s.stride + first_col + at_col) : 0;
    }
    const uint32_t low01 = __byte_perm(in[0], in[1], 0x5140), low23 = __byte_perm(in[2], in[3], 0x5140);
    const uint32_t high01 = __byte_perm(in[0], in[1], 0x7362), high23 = __byte_perm(in[2], in[3], 0x7362);
    uint32_t* const out = turned + at_col * kPitch + at_row / 4;
    out[0] = __byte_perm(low01, low23, 0x5410);
    out[kPitch] = __byte_perm(low01, low23, 0x7632);
    out[2 * kPitch] = __byte_perm(high01, high23, 0x5410);
    out[3 * kPitch] = __byte_perm(high01, high23, 0x7632);
  }
  __syncthreads();
  if (first_row + lane * 4 >= s.rows) return;
#pragma unroll
  for (int i = 0; i < kTile / 8; ++i) {
    const int col = i * 8 + warp;
    if (first_col + col < cols)
      *reinterpret_cast<uint32_t*>(to + (first_col + col) * to_stride + first_row + lane * 4) =
          turned[col * kPitch + lane];
  }
}

template <class T>
__global__ void __launch_bounds__(kPassThreads)
    scale_rows(T* y, int64_t stride, int cols, const Fp8Scaling by, const T* residual, int64_t residual_stride) {
  const int col = int(blockIdx.y) * kPassThreads + int(threadIdx.x);
  const int64_t row = blockIdx.x;
  if (col >= cols) return;
  T& out = y[row * stride + col];
  float value = to_float(out) * (by.scale * by.rows[row]) * by.cols[col];
  if (by.bias) value += to_float(static_cast<const T*>(by.bias)[col]);
  if (residual) value += to_float(residual[row * residual_stride + col]);
  out = from_float<T>(value);
}

template <class T>
__global__ void __launch_bounds__(kPassThreads) decode_rows(T* y, const uint8_t* codes, int64_t stride, int cols) {
  const int col = int(blockIdx.y) * kPassThreads + int(threadIdx.x);
  const int64_t row = blockIdx.x;
  if (col < cols) y[row * cols + col] = from_float<T>(e4m3_value(codes[row * stride + col]));
}

RowScales scales_of(const View& w, float* to, const BiasCopy& bias = {}) {
  const auto rows = rows_of(w);
  check(rows.has_value(), "{} of shape {} can be read along its rows only", name_of(w.dtype), to_string(w.shape));
  return {w.as<const char>() + row_layout(w.dtype, rows->cols).scales, row_bytes(w.dtype, rows->stride),
          int(rows->rows), to, bias};
}

template <bool kScaled>
void encode(CudaBackend& cuda, const Fp8Codes& to, const DeviceMatrix& x, const float* column_scales,
            const RowScales& w) {
  constexpr int kRows = kScaled ? 2 : 1;
  const Encoding e{to.codes, to.scales, to.stride, x.ld, int(x.rows), int(x.cols), column_scales};
  const int64_t warps = ceil_div(x.cols / 8, int64_t{kHeld * 32});
  const bool in_packs = x.cols % 8 == 0 && aligned(x.data) && x.ld * int64_t(size_of(x.dtype)) % 16 == 0;
  dispatch_float(x.dtype, [&]<class T>(Type<T>) {
    const auto go = [&](auto kernel, int row_blocks, int threads) {
      const int blocks = row_blocks + ceil_div(w.rows, threads);
      launch("encode_rows", cuda.stream(), {dim3(unsigned(blocks)), dim3(unsigned(threads))}, kernel, e,
             static_cast<const T*>(x.data), row_blocks, w);
    };
    if (in_packs && warps * 32 <= kThreads)
      go(encode_packs<T, kRows, kScaled>, ceil_div(e.rows, kRows), int(warps) * 32);
    else
      go(encode_any<T>, e.rows, kThreads);
  });
}

}  // namespace

void encode_rows(CudaBackend& cuda, const Fp8Codes& to, const DeviceMatrix& x, const View& w, float* w_scales,
                 const BiasCopy& bias) {
  encode<false>(cuda, to, x, nullptr, scales_of(w, w_scales, bias));
}

void encode_scaled_rows(CudaBackend& cuda, const Fp8Codes& to, const DeviceMatrix& x, const float* column_scales) {
  encode<true>(cuda, to, x, column_scales, {});
}

void transpose_codes(CudaBackend& cuda, const Fp8Codes& to, const View& w, float* w_scales) {
  const RowScales scales = scales_of(w, w_scales);
  const dim3 tiles(unsigned(ceil_div(to.rows, int64_t{kTile})), unsigned(ceil_div(scales.rows, kTile)));
  launch("transpose_codes", cuda.stream(), {tiles, dim3(kPassThreads)}, transpose_tiles, to.codes, to.stride, to.scales,
         w.as<const char>(), scales, int(to.rows));
}

void scale_product(CudaBackend& cuda, const DeviceMatrix& y, const Fp8Scaling& by) {
  const dim3 grid(unsigned(y.rows), unsigned(ceil_div(y.cols, int64_t{kPassThreads})));
  dispatch_float(y.dtype, [&]<class T>(Type<T>) {
    launch("scale_product", cuda.stream(), {grid, dim3(kPassThreads)}, scale_rows<T>, static_cast<T*>(y.data), y.ld,
           int(y.cols), by, static_cast<const T*>(by.residual.data), by.residual.ld);
  });
}

void decode_codes(CudaBackend& cuda, const DeviceMatrix& y, const Fp8Codes& x) {
  const dim3 grid(unsigned(y.rows), unsigned(ceil_div(y.cols, int64_t{kPassThreads})));
  dispatch_float(y.dtype, [&]<class T>(Type<T>) {
    launch("decode_codes", cuda.stream(), {grid, dim3(kPassThreads)}, decode_rows<T>, static_cast<T*>(y.data), x.codes,
           x.stride, int(y.cols));
  });
}

}  // namespace wick
