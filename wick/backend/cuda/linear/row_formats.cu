// Quantised rows decoded to floats, and floats quantised, to the bits of core/row_formats.cpp.
#include "wick/core/row_formats.h"

#include "wick/backend/cuda/device/fp8.cuh"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/linear/blocks.h"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"
#include "wick/core/dynamic_map.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

static __constant__ Nf4Map kNf4 = kNf4Map;

// Where the parts of rows lie.
struct RowCodes {
  int64_t stride;  // bytes from row to row
  int64_t scales, nested;
  Divisor run;  // elements that share a scale
};

RowCodes row_codes(DType dtype, const Rows& rows) {
  const RowLayout layout = row_layout(dtype, rows.cols);
  const int64_t run = row_format(dtype).run;
  return {row_bytes(dtype, rows.stride), layout.scales, layout.nested,
          Divisor(std::max<int64_t>(run == 0 ? rows.cols : run, 1))};
}

template <DType kFormat>
constexpr int kBits = kFormat == DType::nf4 || kFormat == DType::nf4_double ? 4 : 8;

static __device__ const DynamicMap kMap = kSignedMap;

// The scale of run `run` of a row.
template <DType kFormat>
__device__ __forceinline__ float scale_of_run(const char* row, const RowCodes& c, uint32_t run) {
  if constexpr (kFormat == DType::nf4_double) {
    const auto& shared = *reinterpret_cast<const NestedScales*>(row + c.nested);
    const float* const scales = reinterpret_cast<const float*>(&shared + 1);
    const float away = __fmul_rn(kMap.values[uint8_t(row[c.scales + run])], scales[(shared.first + run) / kNestedRun]);
    return __fadd_rn(away, shared.mean);
  } else {
    return reinterpret_cast<const float*>(row + c.scales)[run];
  }
}

// Eight elements a thread. Rows end with scales and lie at multiples of 16 bytes, so that words may be read beyond the
// last code.
template <DType kFormat, class T>
__global__ void __launch_bounds__(kThreads)
    decode_codes(T* y, int64_t y_row, bool in_packs, const char* x, const RowCodes c, int cols, const Divisor eights,
                 uint32_t items) {
  // A warp reads one place of constant memory at a time, but 16 of shared memory at once.
  __shared__ float nf4[16];
  if constexpr (kBits<kFormat> == 4) {
    if (threadIdx.x < 16) nf4[threadIdx.x] = kNf4.values[threadIdx.x];
    __syncthreads();
  }
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= items) return;
  const uint32_t index = eights.divide(item), column = (item - index * eights.divisor) * 8;
  const char* const row = x + index * c.stride;
  const float scale = scale_of_run<kFormat>(row, c, c.run.divide(column));
  const auto* const words = reinterpret_cast<const uint32_t*>(row + column * kBits<kFormat> / 8);
  Pack<T, 8> out;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int byte = k * kBits<kFormat> / 8;
    const uint32_t code = words[byte / 4] >> byte % 4 * 8 & 255;
    float value;
    if constexpr (kFormat == DType::int8)
      value = __fmul_rn(__fmul_rn(float(int8_t(code)), scale), 1 / 127.0f);
    else if constexpr (kBits<kFormat> == 8)
      value = scale * e4m3_value(code);
    else
      value = scale * nf4[k % 2 == 0 ? code >> 4 : code & 15];
    out.value[k] = from_float<T>(value);
  }
  T* const to = y + index * y_row + column;
  if (in_packs) {
    constexpr int kStores = int(sizeof out / 16);
#pragma unroll
    for (int s = 0; s < kStores; ++s) reinterpret_cast<uint4*>(to)[s] = reinterpret_cast<const uint4*>(&out)[s];
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k)
      if (column + k < cols) to[k] = out.value[k];
  }
}

__device__ __forceinline__ uint32_t nf4_code(float x) {
  uint32_t code = 0;
#pragma unroll
  for (const float threshold : kNf4.thresholds) code += x > threshold;
  return code;
}

// A warp for each run of a row. The magnitudes of nf4_double go to `magnitudes`, one after the other.
template <DType kFormat, class T>
__global__ void __launch_bounds__(kThreads) encode_codes(char* y, const RowCodes c, const T* x, int64_t cols,
                                                         int64_t row_runs, int64_t runs, float* magnitudes) {
  const int64_t index = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (index >= runs) return;
  const int64_t row = index / row_runs, run = index % row_runs, length = c.run.divisor;
  const T* const from = x + row * cols + run * length;
  float largest = 0;
  for (int64_t i = lane; i < length; i += 32) largest = MaxOrNan::of(fabsf(to_float(from[i])), largest);
  largest = warp_reduce<MaxOrNan>(largest);
  char* const to = y + row * c.stride;
  auto* const codes = reinterpret_cast<uint8_t*>(to) + run * length * kBits<kFormat> / 8;
  float scale = largest;
  if constexpr (kBits<kFormat> == 4) {
    const float inverse = largest > 0 ? __fdiv_rn(1, largest) : 0;
    for (int64_t i = 2 * lane; i < length; i += 64)
      codes[i / 2] = uint8_t(nf4_code(__fmul_rn(to_float(from[i]), inverse)) << 4 |
                             nf4_code(__fmul_rn(to_float(from[i + 1]), inverse)));
  } else if constexpr (kFormat == DType::int8) {
    const float inverse = largest > 0 ? __fmul_rn(__fdiv_rn(1, largest), 127) : 0;
    for (int64_t i = lane; i < length; i += 32) {
      const float code = rintf(__fmul_rn(to_float(from[i]), inverse));
      codes[i] = uint8_t(isfinite(code) ? int8_t(code) : 0);
    }
  } else {
    scale = largest == 0 ? 1 : __fdiv_rn(largest, 448);
    for (int64_t i = lane; i < length; i += 32) codes[i] = e4m3_code(__fdiv_rn(to_float(from[i]), scale));
  }
  if (lane > 0) return;
  if constexpr (kFormat == DType::nf4_double)
    magnitudes[index] = scale;
  else
    reinterpret_cast<float*>(to + c.scales)[run] = scale;
}

// The mean of all magnitudes, in one block, so that its order is fixed.
__global__ void __launch_bounds__(1024) mean_of(float* mean, const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += 1024) sum += double(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) *mean = float(sum / double(n));
}

// A warp for each 256 magnitudes.
__global__ void __launch_bounds__(kThreads)
    largest_away(float* largest, const float* magnitudes, const float* mean, int64_t n) {
  const int64_t index = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / 32, begin = index * kNestedRun;
  if (begin >= n) return;
  float most = 0;
  for (int64_t i = begin + threadIdx.x % 32; i < min(n, begin + kNestedRun); i += 32)
    most = MaxOrNan::of(fabsf(__fsub_rn(magnitudes[i], *mean)), most);
  most = warp_reduce<MaxOrNan>(most);
  if (threadIdx.x % 32 == 0) largest[index] = most;
}

// The number of thresholds below x.
__device__ __forceinline__ uint8_t nearest_code(float x) {
  int code = 0;
#pragma unroll
  for (int step = 128; step > 0; step /= 2)
    if (x > kMap.thresholds[code + step - 1]) code += step;
  return uint8_t(code);
}

// A magnitude a thread; the first of a row writes what they share.
__global__ void __launch_bounds__(kThreads)
    nest_scales(char* y, const RowCodes c, const float* magnitudes, const float* mean, const float* largest,
                int64_t row_runs, int64_t runs) {
  const int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= runs) return;
  const int64_t row = index / row_runs, run = index % row_runs;
  char* const to = y + row * c.stride;
  const float scale = largest[index / kNestedRun], away = __fsub_rn(magnitudes[index], *mean);
  to[c.scales + run] = char(nearest_code(scale > 0 ? __fmul_rn(away, __fdiv_rn(1, scale)) : 0));
  if (run > 0) return;
  auto* const shared = reinterpret_cast<NestedScales*>(to + c.nested);
  *shared = {*mean, uint32_t(index % kNestedRun)};
  const int64_t begin = index / kNestedRun, end = (index + row_runs + kNestedRun - 1) / kNestedRun;
  for (int64_t i = begin; i < end; ++i) reinterpret_cast<float*>(shared + 1)[i - begin] = largest[i];
}

// Calls f with a format as a compile-time constant.
template <class F>
void dispatch_format(DType dtype, const F& f) {
  switch (dtype) {
    case DType::fp8:
    case DType::fp8_product:
      return f(std::integral_constant<DType, DType::fp8>());
    case DType::fp8_block:
      return f(std::integral_constant<DType, DType::fp8_block>());
    case DType::int8:
      return f(std::integral_constant<DType, DType::int8>());
    case DType::nf4:
      return f(std::integral_constant<DType, DType::nf4>());
    default:
      return f(std::integral_constant<DType, DType::nf4_double>());
  }
}

Rows whole_rows(const View& v) {
  const auto rows = rows_of(v);
  check(rows.has_value(), "{} of shape {} can be read and written along its rows only", name_of(v.dtype),
        to_string(v.shape));
  return *rows;
}

unsigned blocks_of_warps(int64_t warps) { return unsigned(ceil_div(warps, kThreads / 32)); }

}  // namespace

void decode_row_format(CudaBackend& cuda, const View& y, const View& x) {
  const Rows from = whole_rows(x);
  const DenseOutput out(cuda, rows_of(y) ? View() : y);
  const View& target = rows_of(y) ? y : out.view();
  const int64_t y_row = rows_of(target)->stride, items = from.rows * ceil_div(from.cols, int64_t{8});
  check(items < int64_t{1} << 31, "CUDA: {} of shape {} is too large to decode at once", name_of(x.dtype),
        to_string(x.shape));
  const bool in_packs = from.cols % 8 == 0 && aligned(target.data) && y_row * int64_t(size_of(y.dtype)) % 16 == 0;
  dispatch_format(x.dtype, [&](auto format) {
    dispatch_float(y.dtype, [&]<class T>(Type<T>) {
      launch("decode_codes", cuda.stream(), {dim3(blocks_for(uint32_t(items), kThreads)), dim3(kThreads)},
             decode_codes<format(), T>, target.as<T>(), y_row, in_packs, x.as<const char>(), row_codes(x.dtype, from),
             int(from.cols), Divisor(ceil_div(from.cols, int64_t{8})), uint32_t(items));
    });
  });
  out.finish();
}

void encode_row_format(CudaBackend& cuda, const View& y, const View& x) {
  const Rows to = whole_rows(y);
  const DenseInput dense(cuda, x);
  const RowCodes codes = row_codes(y.dtype, to);
  const int64_t row_runs = row_layout(y.dtype, to.cols).count, runs = to.rows * row_runs;
  const int64_t groups = ceil_div(runs, kNestedRun);
  const bool nested = row_format(y.dtype).nested;
  const Scratch numbers(cuda, nested ? size_t(runs + groups + 1) * sizeof(float) : 0);
  float *const magnitudes = numbers.as<float>(), *const largest = magnitudes + runs, *const mean = largest + groups;
  dispatch_format(y.dtype, [&](auto format) {
    dispatch_float(x.dtype, [&]<class T>(Type<T>) {
      launch("encode_codes", cuda.stream(), {dim3(blocks_of_warps(runs)), dim3(kThreads)}, encode_codes<format(), T>,
             y.as<char>(), codes, dense.as<T>(), to.cols, row_runs, runs, magnitudes);
    });
  });
  if (!nested) return;
  launch("mean_of", cuda.stream(), {dim3(1), dim3(1024)}, mean_of, mean, magnitudes, runs);
  launch("largest_away", cuda.stream(), {dim3(blocks_of_warps(groups)), dim3(kThreads)}, largest_away, largest,
         magnitudes, mean, runs);
  launch("nest_scales", cuda.stream(), {dim3(unsigned(ceil_div(runs, int64_t{kThreads}))), dim3(kThreads)}, nest_scales,
         y.as<char>(), codes, magnitudes, mean, largest, row_runs, runs);
}

}  // namespace wick
