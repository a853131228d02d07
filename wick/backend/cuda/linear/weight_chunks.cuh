// The layout of weights in memory, chunk by chunk, for products with 16-bit activations on tensor cores: 16 rows of a
// weight are operand a of mma.sync (device/mma.cuh), 16 elements of each at a time.
//
// Numbers of blocks become 16-bit floats exactly, and the scale of a group of 32 multiplies the product of its numbers
// with the activations in f32, so only sums are rounded. Lane q of four takes elements 4q to 4q + 3 of a group's first
// 16, and 16 + 4q to 16 + 4q + 3 of its last 16, as two pairs: as activations lie in memory. An element's place in a
// sum makes no difference as long as both operands agree.
#pragma once

#include "wick/backend/cuda/device/mma.cuh"
#include "wick/backend/cuda/linear/blocks.cuh"

namespace wick {

// 4 bytes from an even address in shared memory. (A difference, so that the compiler still sees shared memory.)
__device__ __forceinline__ uint32_t even_word(const char* at) {
  const uint32_t beyond = shared_address(at) & 2;
  const auto* const words = reinterpret_cast<const uint32_t*>(at - beyond);
  return __funnelshift_r(words[0], words[1], beyond * 8);
}
__device__ __forceinline__ uint32_t word_at(const char* at) { return *reinterpret_cast<const uint32_t*>(at); }

// Bytes 0, 2, 1, 3 of a word: masks then leave neighbours as a pair.
__device__ __forceinline__ uint32_t paired(uint32_t word) { return __byte_perm(word, 0, 0x3120); }
// For a word at an address that is a multiple of 4 (kAligned) or two bytes beyond one.
template <bool kAligned>
__device__ __forceinline__ uint32_t paired_at(const char* at) {
  return kAligned ? paired(word_at(at)) : __byte_perm(word_at(at - 2), word_at(at + 2), 0x5342);
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
// (a & b) | c. For two constants the compiler would make two instructions.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Two numbers of up to 7 bits (10 in f16), the low `kBits` of 16 each, to floats less `kOffset`.
template <class T, int kBits, int kOffset>
__device__ __forceinline__ uint32_t floats_of(uint32_t numbers) {
  constexpr uint32_t kMask = (1u << kBits) - 1, kBoth = uint32_t{kOffset} << 16 | kOffset;
  static_assert(kBits <= 7 && kOffset < 128);
  return difference<T>(and_or(numbers, kMask << 16 | kMask, kOnesCount<T>), kOnesCount<T> | kBoth);
}

// Chunks of 256 elements as they lie in a row: kBytes of them. For group j, floats() gives a lane's two fours, each as
// two pairs; scale() their factor, in the units of step j * 2 + i. kAligned: chunks begin at multiples of 16 bytes.
// kStages: of a ring, each with a chunk of 16 rows for every warp.
template <class Block>
struct Chunk;

template <>
struct Chunk<Q8Block> {
  static constexpr int kBytes = 272, kStages = 2;
  static constexpr bool kAligned = true, kFloats = false, kMinimum = false, kScaleOfStep = false;
  template <int j, class T>
  static __device__ __forceinline__ void floats(uint32_t (&n)[2][2], const char* row, int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = paired_at<j % 2 == 1>(row + 34 * j + 2 + 16 * i + 4 * q);
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
      return difference<T>(and_or(word, 0x007f007f, 0x43004300), and_or(word, 0x00800080, 0x43004300));
    else
      return difference<T>(and_or(word ^ 0x00800080, 0x00ff00ff, 0x64006400), 0x64806480);
  }
};

template <>
struct Chunk<Q4Block> {
  static constexpr int kBytes = 144, kStages = 3;
  static constexpr bool kAligned = true, kFloats = false, kMinimum = false, kScaleOfStep = false;
  template <int j, class T>
  static __device__ __forceinline__ void floats(uint32_t (&n)[2][2], const char* row, int q) {
    const uint32_t word = paired_at<j % 2 == 1>(row + 18 * j + 2 + 4 * q);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int p = 0; p < 2; ++p) n[i][p] = floats_of<T, 4, 8>(word >> (4 * i + 8 * p));
  }
  template <int j>
  static __device__ __forceinline__ float scale(const char* row, int) {
    return f16_at(row + 18 * j);
  }
};

// q4_k and q5_k: one block is a chunk.
template <class Block>
struct ChunkOfGroups {
  static constexpr int kBytes = int(sizeof(Block)), kStages = 3;
  static constexpr bool kAligned = true, kFloats = false, kMinimum = true, kScaleOfStep = false;
  template <int j, class T>
  static __device__ __forceinline__ void floats(uint32_t (&n)[2][2], const char* row, int q) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const at = row + 16 * i + 4 * q;
      uint32_t bytes = word_at(at + offsetof(Block, q) + j / 2 * 32) >> j % 2 * 4 & 0x0f0f0f0f;
      if constexpr (std::is_same_v<Block, Q5KBlock>)
        bytes |= (word_at(at + offsetof(Q5KBlock, high)) >> j & 0x01010101) << 4;
#pragma unroll
      for (int p = 0; p < 2; ++p) n[i][p] = floats_of<T, 5, 0>(paired(bytes) >> 8 * p);
    }
  }
  // Word 0 of the twelve bytes of GroupScales has the scales of groups 0 to 3, word 1 the minima, word 2 low bits of
  // groups 4 to 7.
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
    const uint32_t first = word_at(row + 4 + 4 * kWhich);
    if constexpr (j < 4) {
      return first >> 8 * j & 63;
    } else {
      const uint32_t rest = word_at(row + 12);
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
  static constexpr int kBytes = 210, kStages = 2;
  static constexpr bool kAligned = false, kFloats = false, kMinimum = false, kScaleOfStep = true;
  template <int j, class T>
  static __device__ __forceinline__ void floats(uint32_t (&n)[2][2], const char* row, int q) {
    constexpr int kHalf = j / 4, kGroup = j % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const at = row + 16 * i + 4 * q;
      const uint32_t bytes = (even_word(at + kHalf * 64 + kGroup % 2 * 32) >> kGroup / 2 * 4 & 0x0f0f0f0f) |
                             (even_word(at + offsetof(Q6KBlock, high) + kHalf * 32) >> 2 * kGroup & 0x03030303) << 4;
#pragma unroll
      for (int p = 0; p < 2; ++p) n[i][p] = floats_of<T, 6, 32>(paired(bytes) >> 8 * p);
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
  static constexpr int kBytes = 256, kStages = 2;
  static constexpr bool kAligned = true, kFloats = true;
};

}  // namespace wick
