// Quantised blocks decoded to floats, and floats quantised, to the bits of core/blocks.cpp.
#include "wick/backend/cuda/linear/blocks.h"

#include "wick/backend/cuda/linear/blocks.cuh"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

// Eight elements a thread; `eights` of a row. Strides count elements of y and blocks of x.
template <class Block, class T>
__global__ void __launch_bounds__(kThreads)
    decode_rows(T* y, int64_t y_row, const Block* x, int64_t x_row, const Divisor eights, uint32_t items) {
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= items) return;
  const uint32_t row = eights.divide(item);
  const int column = int(item - row * eights.divisor) * 8;
  float values[8];
  decode_eight(values, x[row * x_row + column / Block::kElements], column % Block::kElements);
  Pack<T, 8> out;
#pragma unroll
  for (int k = 0; k < 8; ++k) out.value[k] = from_float<T>(values[k]);
  constexpr int kStores = int(sizeof out / 16);  // 16 bytes at a time
#pragma unroll
  for (int s = 0; s < kStores; ++s)
    reinterpret_cast<uint4*>(y + row * y_row + column)[s] = reinterpret_cast<const uint4*>(&out)[s];
}

// The encoders of core/blocks.cpp; no product is fused with a sum.
__device__ __forceinline__ void encode(Q8Block& b, const float* x) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = largest < fabsf(x[i]) ? fabsf(x[i]) : largest;
  const float d = __fdiv_rn(largest, 127), inverse = d != 0 ? __fdiv_rn(1, d) : 0;
  b.d = __half_as_ushort(__float2half_rn(d));
  for (int i = 0; i < 32; ++i) {
    const float product = __fmul_rn(x[i], inverse);
    const float scaled = product < -127 ? -127 : product > 127 ? 127 : product, magnitude = fabsf(scaled);
    const int whole = isnan(scaled) ? 0 : int(magnitude);
    const int rounded = whole + (__fsub_rn(magnitude, float(whole)) >= 0.5f);  // halves away from zero
    b.q[i] = int8_t(isnan(scaled) ? 0 : scaled < 0 ? -rounded : rounded);
  }
}
__device__ __forceinline__ void encode(Q4Block& b, const float* x) {
  float largest = 0, magnitude = 0;  // with its sign; the first of equals
  for (int i = 0; i < 32; ++i)
    if (fabsf(x[i]) > magnitude) magnitude = fabsf(largest = x[i]);
  const float d = largest / -8, inverse = d != 0 ? __fdiv_rn(1, d) : 0;
  b.d = __half_as_ushort(__float2half_rn(d));
  const auto number = [&](int i) {
    const float scaled = __fadd_rn(__fmul_rn(x[i], inverse), 8.5f);
    return scaled > 0 ? uint32_t(scaled < 15 ? scaled : 15) : 0;  // NaN too
  };
  for (int i = 0; i < 16; ++i) b.q[i] = uint8_t(number(i) | number(i + 16) << 4);
}

// A block a thread; x is dense.
template <class Block>
__global__ void __launch_bounds__(kThreads)
    encode_rows(Block* y, int64_t y_row, const float* x, const Divisor row_blocks, uint32_t blocks) {
  const uint32_t block = blockIdx.x * kThreads + threadIdx.x;
  if (block >= blocks) return;
  const uint32_t row = row_blocks.divide(block);
  encode(y[row * y_row + (block - row * row_blocks.divisor)], x + int64_t(block) * Block::kElements);
}

Rows rows_of_blocks(const View& v) {
  const auto rows = rows_of(v);
  check(rows.has_value(), "{} of shape {} can be read and written along its rows only", name_of(v.dtype),
        to_string(v.shape));
  return *rows;
}

void decode(CudaBackend& cuda, const View& y, const View& x) {
  const Rows from = rows_of_blocks(x);
  const auto to = rows_of(y);
  const bool direct = to && aligned(y.data) && (to->rows == 1 || to->stride * int64_t(size_of(y.dtype)) % 16 == 0);
  std::optional<Scratch> scratch;
  if (!direct) scratch.emplace(cuda, size_t(y.numel()) * size_of(y.dtype));
  const View out = direct ? y : contiguous_view(scratch->as<void>(), y.dtype, y.shape);
  const int64_t items = x.numel() / 8;
  check(items < int64_t{1} << 31, "CUDA: {} of shape {} is too large to decode at once", name_of(x.dtype),
        to_string(x.shape));
  for_block_type(x.dtype, [&]<class Block>(Block*) {
    dispatch_float(y.dtype, [&]<class T>(Type<T>) {
      launch("decode_blocks", cuda.stream(), {dim3(blocks_for(uint32_t(items), kThreads)), dim3(kThreads)},
             decode_rows<Block, T>, out.as<T>(), rows_of(out)->stride, x.as<const Block>(),
             from.stride / Block::kElements, Divisor(from.cols / 8), uint32_t(items));
    });
  });
  if (!direct) cuda.copy(y, out);
}

template <class Block>
void encode(CudaBackend& cuda, const View& y, const float* x) {
  const Rows to = rows_of_blocks(y);
  const auto blocks = uint32_t(y.numel() / Block::kElements);
  launch("encode_blocks", cuda.stream(), {dim3(blocks_for(blocks, kThreads)), dim3(kThreads)}, encode_rows<Block>,
         y.as<Block>(), to.stride / Block::kElements, x, Divisor(to.cols / Block::kElements), blocks);
}

// The same bytes as pairs of them.
View as_pairs(const View& v) {
  const Rows rows = rows_of_blocks(v);
  return {v.data, DType::f16, {rows.rows, row_bytes(v.dtype, rows.cols) / 2}, {row_bytes(v.dtype, rows.stride) / 2, 1}};
}

}  // namespace

void copy_quantized(CudaBackend& cuda, const View& y, const View& x) {
  if (x.numel() == 0) return;
  if (y.dtype == x.dtype) return cuda.copy(as_pairs(y), as_pairs(x));
  if (!is_quantized(y.dtype)) return has_row_format(x.dtype) ? decode_row_format(cuda, y, x) : decode(cuda, y, x);
  check(!is_quantized(x.dtype), "{} is not quantised anew to {}", name_of(x.dtype), name_of(y.dtype));
  if (has_row_format(y.dtype)) return encode_row_format(cuda, y, x);
  const DenseInput dense(cuda, x, DType::f32);
  const Rows rows = rows_of_blocks(y);
  if (block_of(y.dtype).elements == 256) return encode_k_blocks(cuda, y, rows.cols, rows.stride, dense.as<float>());
  y.dtype == DType::q8_0 ? encode<Q8Block>(cuda, y, dense.as<float>()) : encode<Q4Block>(cuda, y, dense.as<float>());
}

}  // namespace wick
