// How weights lie in memory, chunk by chunk, for products with 16-bit activations on tensor cores: 16 rows of a weight
// are operand a of mma.sync (device/mma.cuh), 16 elements of each at a time.
//
// Numbers of blocks become 16-bit floats exactly, and the scale of a group of 32 multiplies the product of its numbers
// with the activations in f32, so nothing is rounded but sums. Of a group, lane q of four takes elements 4q to 4q + 3
// for the first 16 and 16 + 4q to 16 + 4q + 3 for the others; pairs of an operand are elements 0, 2 and 1, 3 of them,
// as masks leave them. Which place an element has in a sum makes no difference as long as both operands agree.
#pragma once

#include "wick/backend/cuda/device/blocks.cuh"
#include "wick/backend/cuda/device/mma.cuh"

namespace wick {

// 4 bytes from an even address in shared memory. (A difference, so that the compiler still sees shared memory.)
__device__ __forceinline__ uint32_t even_word(const char* at) {
  const uint32_t beyond = shared_address(at) & 2;
  const auto* const words = reinterpret_cast<const uint32_t*>(at - beyond);
  return __funnelshift_r(words[0], words[1], beyond * 8);
}
// The same where it is known whether the address is a multiple of 4.
template <bool kAligned>
__device__ __forceinline__ uint32_t word_at(const char* at) {
  if constexpr (kAligned) {
    return *reinterpret_cast<const uint32_t*>(at);
  } else {
    const auto* const words = reinterpret_cast<const uint32_t*>(at - 2);
    return __funnelshift_r(words[0], words[1], 16);
  }
}
__device__ __forceinline__ float f16_at(const char* at) { return scale_of(*reinterpret_cast<const uint16_t*>(at)); }

// Four numbers, a byte each, to 16-bit floats less `kOffset`: the pairs 0, 2 and 1, 3.
template <class T, int kOffset>
__device__ __forceinline__ void floats_of(uint32_t (&pairs)[2], uint32_t bytes) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, f16> || kOffset < 128) {
    // Below the leading one of a float whose last bit counts one.
    constexpr uint32_t kBits = std::is_same_v<T, f16> ? 0x64006400 : 0x43004300;
    constexpr float kLeading = std::is_same_v<T, f16> ? 1024 : 128;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t both = (bytes >> 8 * i & 0x00ff00ff) | kBits;
      if constexpr (std::is_same_v<T, f16>) {
        const __half2 less = __hsub2(reinterpret_cast<const __half2&>(both), __float2half2_rn(kLeading + kOffset));
        pairs[i] = reinterpret_cast<const uint32_t&>(less);
      } else {
        const __nv_bfloat162 less =
            __hsub2(reinterpret_cast<const __nv_bfloat162&>(both), __float2bfloat162_rn(kLeading + kOffset));
        pairs[i] = reinterpret_cast<const uint32_t&>(less);
      }
    }
  } else {  // eight bits are one too many for that in bf16: through f32, whose upper half holds them
    float f[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f[i] = __uint_as_float(__byte_perm(bytes, 0x4b000000, 0x7440 + i)) - (8388608.0f + kOffset);
#pragma unroll
    for (int i = 0; i < 2; ++i) pairs[i] = __byte_perm(__float_as_uint(f[i]), __float_as_uint(f[i + 2]), 0x7632);
  }
#endif
}

// Chunks of 256 elements as they lie in a row: kBytes of them, in shared memory kPitch from row to row (an odd multiple
// of 16, so that the rows of a fragment lie in different banks). Of group j, bytes() gives numbers of a lane's two
// fours; scale() what they count for, in the units of step j * 2 + i. kAligned: chunks begin at multiples of 16 bytes.
template <class Block>
struct Chunk;

template <>
struct Chunk<Q8Block> {
  static constexpr int kBytes = 272, kPitch = 272, kStages = 2, kOffset = 128;
  static constexpr bool kAligned = true, kMinimum = false, kScaleOfStep = false;
  template <int j>
  static __device__ __forceinline__ void bytes(uint32_t (&n)[2], const char* row, int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) n[i] = word_at<j % 2 == 1>(row + 34 * j + 2 + 16 * i + 4 * q) ^ 0x80808080;
  }
  template <int j>
  static __device__ __forceinline__ float scale(const char* row, int) {
    return f16_at(row + 34 * j);
  }
};

template <>
struct Chunk<Q4Block> {
  static constexpr int kBytes = 144, kPitch = 144, kStages = 3, kOffset = 8;
  static constexpr bool kAligned = true, kMinimum = false, kScaleOfStep = false;
  template <int j>
  static __device__ __forceinline__ void bytes(uint32_t (&n)[2], const char* row, int q) {
    const uint32_t both = word_at<j % 2 == 1>(row + 18 * j + 2 + 4 * q);
    n[0] = both & 0x0f0f0f0f;
    n[1] = both >> 4 & 0x0f0f0f0f;
  }
  template <int j>
  static __device__ __forceinline__ float scale(const char* row, int) {
    return f16_at(row + 18 * j);
  }
};

// q4_k and q5_k: one block is a chunk.
template <class Block>
struct ChunkOfGroups {
  static constexpr int kBytes = int(sizeof(Block)), kPitch = kBytes, kStages = 3, kOffset = 0;
  static constexpr bool kAligned = true, kMinimum = true, kScaleOfStep = false;
  static_assert(kPitch % 32 == 16);
  template <int j>
  static __device__ __forceinline__ void bytes(uint32_t (&n)[2], const char* row, int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const at = row + 16 * i + 4 * q;
      n[i] = word_at<true>(at + offsetof(Block, q) + j / 2 * 32) >> j % 2 * 4 & 0x0f0f0f0f;
      if constexpr (std::is_same_v<Block, Q5KBlock>)
        n[i] |= (word_at<true>(at + offsetof(Q5KBlock, high)) >> j & 0x01010101) << 4;
    }
  }
  // Word 0 of the twelve bytes of GroupScales has the scales of groups 0 to 3, word 1 the minima, word 2 low bits of
  // the others.
  template <int j>
  static __device__ __forceinline__ float scale(const char* row, int) {
    return f16_at(row) * float(six_bits<j, 0>(row));
  }
  template <int j>
  static __device__ __forceinline__ float minimum(const char* row) {
    return f16_at(row + 2) * float(six_bits<j, 1>(row));
  }

 private:
  template <int j, int kWhich>
  static __device__ __forceinline__ uint32_t six_bits(const char* row) {
    const uint32_t first = word_at<true>(row + 4 + 4 * kWhich);
    if constexpr (j < 4) {
      return first >> 8 * j & 63;
    } else {
      const uint32_t rest = word_at<true>(row + 12);
      return (rest >> (8 * (j - 4) + 4 * kWhich) & 15) | (first >> (8 * (j - 4) + 6) & 3) << 4;
    }
  }
};
template <>
struct Chunk<Q4KBlock> : ChunkOfGroups<Q4KBlock> {};
template <>
struct Chunk<Q5KBlock> : ChunkOfGroups<Q5KBlock> {};

template <>
struct Chunk<Q6KBlock> {  // lies at any even address, and lies in shared memory as far from a multiple of 16
  static constexpr int kBytes = 210, kPitch = 240, kStages = 2, kOffset = 32;
  static constexpr bool kAligned = false, kMinimum = false, kScaleOfStep = true;
  template <int j>
  static __device__ __forceinline__ void bytes(uint32_t (&n)[2], const char* row, int q) {
    constexpr int kHalf = j / 4, kGroup = j % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const at = row + 16 * i + 4 * q;
      n[i] = (even_word(at + kHalf * 64 + kGroup % 2 * 32) >> kGroup / 2 * 4 & 0x0f0f0f0f) |
             (even_word(at + offsetof(Q6KBlock, high) + kHalf * 32) >> 2 * kGroup & 0x03030303) << 4;
    }
  }
  template <int j>
  static __device__ __forceinline__ float scale(const char* row, int i) {
    return f16_at(row + offsetof(Q6KBlock, d)) *
           float(*reinterpret_cast<const int8_t*>(row + offsetof(Q6KBlock, scale) + 2 * j + i));
  }
};

// Rows of 16-bit floats: 128 elements a chunk. A lane takes 8 bytes of a row, and four rows lie side by side in banks.
template <class T>
struct FloatChunk {
  static constexpr int kBytes = 256, kPitch = 288, kStages = 2;
  static constexpr bool kAligned = true;
};

}  // namespace wick
