// Elements of quantised blocks (core/blocks.h) in device code, eight at a time, to the bits of block_element(). Blocks
// lie at even addresses, so bytes come in pairs.
#pragma once

#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/core/blocks.h"

namespace wick {

__device__ __forceinline__ float scale_of(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

struct EightBytes {
  uint32_t words[2];
  __device__ __forceinline__ explicit EightBytes(const void* from) {
    const auto* const pairs = static_cast<const uint16_t*>(from);
    words[0] = pairs[0] | uint32_t{pairs[1]} << 16;
    words[1] = pairs[2] | uint32_t{pairs[3]} << 16;
  }
  __device__ __forceinline__ int operator[](int i) const { return int(words[i / 4] >> i % 4 * 8 & 255); }
};

struct GroupScale {
  float scale, minimum;
};
// Scale and minimum of group g, in the block's units.
__device__ __forceinline__ GroupScale group_scale(const GroupScales& of, int g) {
  const uint8_t* const b = of.bytes;
  if (g < 4) return {float(b[g] & 63), float(b[g + 4] & 63)};
  return {float((b[g + 4] & 15) | b[g - 4] >> 6 << 4), float(b[g + 4] >> 4 | b[g] >> 6 << 4)};
}

// Elements i to i + 7 of a block; i is a multiple of 8.
__device__ __forceinline__ void decode_eight(float (&y)[8], const Q8Block& b, int i) {
  const EightBytes q(b.q + i);
  const float d = scale_of(b.d);
#pragma unroll
  for (int k = 0; k < 8; ++k) y[k] = d * float(int8_t(q[k]));
}
__device__ __forceinline__ void decode_eight(float (&y)[8], const Q4Block& b, int i) {
  const EightBytes q(b.q + i % 16);
  const float d = scale_of(b.d);
  const int shift = i / 16 * 4;
#pragma unroll
  for (int k = 0; k < 8; ++k) y[k] = d * float((q[k] >> shift & 15) - 8);
}
template <class Block>  // Q4KBlock or Q5KBlock
__device__ __forceinline__ void decode_eight(float (&y)[8], const Block& b, int i) {
  const int g = i / 32;
  const EightBytes q(b.q + g / 2 * 32 + i % 32);
  const GroupScale group = group_scale(b.groups, g);
  const float scale = scale_of(b.d) * group.scale, minimum = scale_of(b.dmin) * group.minimum;
  uint32_t high[2] = {0, 0};
  if constexpr (std::is_same_v<Block, Q5KBlock>) {
    const EightBytes bits(b.high + i % 32);
#pragma unroll
    for (int w = 0; w < 2; ++w) high[w] = (bits.words[w] >> g & 0x01010101u) << 4;
  }
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int n = (q[k] >> g % 2 * 4 & 15) | int(high[k / 4] >> k % 4 * 8 & 255);
    y[k] = scale * float(n) - minimum;
  }
}
__device__ __forceinline__ void decode_eight(float (&y)[8], const Q6KBlock& b, int i) {
  const int half = i / 128, g = i / 32 % 4;
  const EightBytes low(b.low + half * 64 + g % 2 * 32 + i % 32), high(b.high + half * 32 + i % 32);
  const float scale = scale_of(b.d) * float(b.scale[i / 16]);
#pragma unroll
  for (int k = 0; k < 8; ++k) y[k] = scale * float(((low[k] >> g / 2 * 4 & 15) | (high[k] >> 2 * g & 3) << 4) - 32);
}

}  // namespace wick
