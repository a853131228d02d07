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

// Two 16-bit floats a - b, as bits.
template <class T>
__device__ __forceinline__ uint32_t difference(uint32_t a, uint32_t b) {
  using Two = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat162, __half2>;
  const Two less = __hsub2(reinterpret_cast<const Two&>(a), reinterpret_cast<const Two&>(b));
  return reinterpret_cast<const uint32_t&>(less);
}
// The float whose last bit counts one, twice: small numbers lie below its leading one.
template <class T>
constexpr uint32_t kOnesCount = std::is_same_v<T, bf16> ? 0x43004300 : 0x64006400;  // 128, 1024
// Two numbers of 7 bits (10 in f16), each in 16, to floats less `kOffset`.
template <class T, int kOffset>
__device__ __forceinline__ uint32_t floats_of(uint32_t numbers) {
  constexpr uint32_t kBoth = uint32_t{kOffset} << 16 | kOffset;
  static_assert(kOffset < 128);
  return difference<T>(numbers | kOnesCount<T>, kOnesCount<T> | kBoth);
}

// Chunks of 256 elements as they lie in a row: kBytes of them, in shared memory kPitch from row to row (an odd multiple
// of 16, so that the rows of a fragment lie in different banks). Of group j, floats() gives a lane's two fours, each as
// the pairs 0, 2 and 1, 3; scale() what they count for, in the units of step j * 2 + i. kAligned: chunks begin at
// multiples of 16 bytes.
template <class Block>
struct Chunk;

template <>
struct Chunk<Q8Block> {
  static constexpr int kBytes = 272, kPitch = 272, kStages = 2;
  static constexpr bool kAligned = true, kMinimum = false, kScaleOfStep = false;
  template <int j, class T>
  static __device__ __forceinline__ void floats(uint32_t (&n)[2][2], const char* row, int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = word_at<j % 2 == 1>(row + 34 * j + 2 + 16 * i + 4 * q);
#pragma unroll
      for (int p = 0; p < 2; ++p) n[i][p] = of_signed_bytes<T>(word >> 8 * p);
    }
  }
  template <int j>
  static __device__ __forceinline__ float scale(const char* row, int) {
    return f16_at(row + 34 * j);
  }

 private:
  // Bytes 0 and 2. In bf16 a byte is a bit too long to lie below the leading one: the sign bit, which counts -128,
  // makes 256 of the 128 that is subtracted.
  template <class T>
  static __device__ __forceinline__ uint32_t of_signed_bytes(uint32_t word) {
    if constexpr (std::is_same_v<T, bf16>)
      return difference<T>((word & 0x007f007f) | 0x43004300, (word & 0x00800080) | 0x43004300);
    else
      return difference<T>((word & 0x00ff00ff) ^ 0x64806480, 0x64806480);
  }
};

template <>
struct Chunk<Q4Block> {
  static constexpr int kBytes = 144, kPitch = 144, kStages = 3;
  static constexpr bool kAligned = true, kMinimum = false, kScaleOfStep = false;
  template <int j, class T>
  static __device__ __forceinline__ void floats(uint32_t (&n)[2][2], const char* row, int q) {
    const uint32_t word = word_at<j % 2 == 1>(row + 18 * j + 2 + 4 * q);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int p = 0; p < 2; ++p) n[i][p] = floats_of<T, 8>(word >> (4 * i + 8 * p) & 0x000f000f);
  }
  template <int j>
  static __device__ __forceinline__ float scale(const char* row, int) {
    return f16_at(row + 18 * j);
  }
};

// q4_k and q5_k: one block is a chunk.
template <class Block>
struct ChunkOfGroups {
  static constexpr int kBytes = int(sizeof(Block)), kPitch = kBytes, kStages = 3;
  static constexpr bool kAligned = true, kMinimum = true, kScaleOfStep = false;
  static_assert(kPitch % 32 == 16);
  template <int j, class T>
  static __device__ __forceinline__ void floats(uint32_t (&n)[2][2], const char* row, int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const at = row + 16 * i + 4 * q;
      uint32_t bytes = word_at<true>(at + offsetof(Block, q) + j / 2 * 32) >> j % 2 * 4 & 0x0f0f0f0f;
      if constexpr (std::is_same_v<Block, Q5KBlock>)
        bytes |= (word_at<true>(at + offsetof(Q5KBlock, high)) >> j & 0x01010101) << 4;
#pragma unroll
      for (int p = 0; p < 2; ++p) n[i][p] = floats_of<T, 0>(bytes >> 8 * p & 0x00ff00ff);
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
  static constexpr int kBytes = 210, kPitch = 240, kStages = 2;
  static constexpr bool kAligned = false, kMinimum = false, kScaleOfStep = true;
  template <int j, class T>
  static __device__ __forceinline__ void floats(uint32_t (&n)[2][2], const char* row, int q) {
    constexpr int kHalf = j / 4, kGroup = j % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const at = row + 16 * i + 4 * q;
      const uint32_t bytes = (even_word(at + kHalf * 64 + kGroup % 2 * 32) >> kGroup / 2 * 4 & 0x0f0f0f0f) |
                             (even_word(at + offsetof(Q6KBlock, high) + kHalf * 32) >> 2 * kGroup & 0x03030303) << 4;
#pragma unroll
      for (int p = 0; p < 2; ++p) n[i][p] = floats_of<T, 32>(bytes >> 8 * p & 0x00ff00ff);
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
