// The layout of weights in memory, chunk by chunk, for products with 16-bit activations on tensor cores: 16 rows of a
// weight are operand a of mma.sync (device/mma.cuh), 16 elements of each at a time.
//
// Numbers of blocks become 16-bit floats exactly, and the scale of a group of 32 multiplies the product of its numbers
// with the activations in f32, so only sums are rounded. Lane q of four takes elements 4q to 4q + 3 of each 16, as two
// pairs, or 8q to 8q + 7 of each 32, or 16q to 16q + 15 of each 64: as activations lie in memory. An element's place in
// a sum makes no difference as long as both operands agree.
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
// Zero, which the compiler does not know: a constant plus this stays in a register.
__device__ __forceinline__ uint32_t unknown_zero() { return gridDim.y - 1; }
// Two numbers of up to 7 bits (10 in f16), the low `kBits` of 16 each, to floats less `kOffset`.
template <class T, int kBits, int kOffset>
__device__ __forceinline__ uint32_t floats_of(uint32_t numbers) {
  constexpr uint32_t kMask = (1u << kBits) - 1, kBoth = uint32_t{kOffset} << 16 | kOffset;
  static_assert(kBits <= 7 && kOffset < 128);
  return difference<T>(and_or(numbers, kMask << 16 | kMask, kOnesCount<T>), kOnesCount<T> | kBoth);
}

// Bytes 0 and 2, signed. In bf16 a byte is a bit too long to lie below the leading one: the sign bit, which counts
// -128, makes 256 of the 128 that is subtracted.
template <class T>
__device__ __forceinline__ uint32_t of_signed_bytes(uint32_t word) {
  if constexpr (std::is_same_v<T, bf16>)
    return difference<T>(and_or(word, 0x007f007f, 0x43004300), and_or(word, 0x00800080, 0x43004300));
  else
    return difference<T>(and_or(word ^ 0x00800080, 0x00ff00ff, 0x64006400), 0x64806480);
}

// What chunks have unless they say otherwise: 256 elements, of which four lanes take 4 neighbours at a time each, and
// 16 bytes of a row; multiples of 16 bytes from the row's start, which is one too; no scales that lie elsewhere in the
// row; no table in shared memory; rows of whole chunks.
struct WholeChunks {
  static constexpr int kElements = 256, kNeighbours = 4, kTaken = 16, kScaleBytes = 0, kTableBytes = 0;
  static constexpr bool kAligned = true, kRagged = false, kNeedsSums = false;
};

// Chunks as they lie in a row: kBytes of them. For group j of 32, floats() gives a lane's two fours, each as two pairs;
// scale() their factor, in the units of step j * 2 + i. kStages: of a ring, each with a chunk of 16 rows for every
// warp.
template <class Block>
struct Chunk;

template <>
struct Chunk<Q8Block> : WholeChunks {
  static constexpr int kBytes = 272, kStages = 2;
  static constexpr bool kScaleOfStep = false;
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
};

template <>
struct Chunk<Q4Block> : WholeChunks {
  static constexpr int kBytes = 144, kStages = 3;
  static constexpr bool kScaleOfStep = false;
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

// q4_k and q5_k: one block is a chunk. Its numbers n become kBase + n, which is exact too: they lie below a leading
// one, in bf16 where its last bit counts one, which saves shifts, and in f16, whose base would be 1024 there, as high
// as they can. So a group's product has kBase times the sum of its activations too much; sums of groups (GroupSums)
// take that away together with the minima.
template <class Block>
struct ChunkOfGroups : WholeChunks {
  static constexpr int kBytes = int(sizeof(Block)), kStages = 2;
  static constexpr int kNeighbours = 8, kTaken = 32;
  static constexpr bool kNeedsSums = true;
  static constexpr int kBits = std::is_same_v<Block, Q5KBlock> ? 5 : 4;
  template <class T>
  static constexpr int kPlace = std::is_same_v<T, bf16> ? 0 : 10 - kBits;  // bits below the numbers
  template <class T>
  static constexpr float kBase = std::is_same_v<T, bf16> ? 128 : 1 << kBits;
  template <class T>
  static constexpr uint32_t kBaseTwice = std::is_same_v<T, bf16> ? 0x43004300
                                         : kBits == 4            ? 0x4c004c00
                                                                 : 0x50005000;

  // A lane's numbers of groups 2i and 2i + 1 in one row, with neighbours as pairs.
  struct Numbers {
    uint32_t low[2], high[2];

    __device__ __forceinline__ Numbers(const char* row, int i, int q) {
      load(low, row + offsetof(Block, q) + 32 * i + 8 * q);
      if constexpr (kBits == 5) load(high, row + offsetof(Q5KBlock, high) + 8 * q);
    }
    // Step `i` of group g: two pairs.
    template <class T>
    __device__ __forceinline__ void floats(uint32_t (&n)[2], int g, int i) const {
      constexpr uint32_t kMask = (((1u << kBits) - 1) << kPlace<T>)*0x10001;
      uint32_t bytes = low[i];
      int first = g % 2 * 4;
      if constexpr (kBits == 5) {
        bytes = (bytes >> first & 0x0f0f0f0f) | (high[i] >> g & 0x01010101) << 4;
        first = 0;
      }
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int right = first + 8 * p - kPlace<T>;
        n[p] = and_or(right < 0 ? bytes << -right : bytes >> right, kMask, kBaseTwice<T>);
      }
    }

   private:
    static __device__ __forceinline__ void load(uint32_t (&to)[2], const char* from) {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      to[0] = paired(both.x);
      to[1] = paired(both.y);
    }
  };

  // Scales and minima of one row. The block begins with two halves, d and dmin, and twelve bytes of GroupScales: word 0
  // has the scales of groups 0 to 3, word 1 the minima, word 2 low bits of groups 4 to 7.
  struct Scales {
    float d, dmin;
    uint32_t scales[2], minima[2];  // of four groups each

    __device__ __forceinline__ explicit Scales(const char* row) {
      const uint4 header = *reinterpret_cast<const uint4*>(row);
      d = scale_of(uint16_t(header.x));
      dmin = scale_of(uint16_t(header.x >> 16));
      scales[0] = header.y & 0x3f3f3f3f;
      scales[1] = (header.w & 0x0f0f0f0f) | (header.y >> 2 & 0x30303030);
      minima[0] = header.z & 0x3f3f3f3f;
      minima[1] = (header.w >> 4 & 0x0f0f0f0f) | (header.z >> 2 & 0x30303030);
    }
  };
};

// Two of four small bytes, numbers 0 and 1 or 2 and 3, as bf16.
__device__ __forceinline__ uint32_t two_bytes(uint32_t bytes, bool last) {
  return difference<bf16>(__byte_perm(bytes, 0x43, last ? 0x4342 : 0x4140), 0x43004300);
}
// 2^23 and a byte above it, whose product with a half less that with 2^23 is exact.
__device__ __forceinline__ float above_ones(uint32_t bytes, int i) {
  return __uint_as_float(__byte_perm(bytes, 0x4b000000 + unknown_zero(), 0x7540 + i));
}

// Sums of activations over groups of 32, as three bf16 numbers each, which add up to it: for a chunk and a token four
// lanes' operands b of mma_of_eight(), in shared memory.
struct GroupSums {
  uint32_t high, middle, low, unused;
};
// Of two neighbouring groups.
__device__ __forceinline__ GroupSums sums_of_groups(float first, float second) {
  GroupSums s{};
  for (uint32_t* const part : {&s.high, &s.middle, &s.low}) {
    *part = pack<bf16>(first, second);
    first -= __uint_as_float(*part << 16);
    second -= __uint_as_float(*part & 0xffff0000);
  }
  return s;
}
template <>
struct Chunk<Q4KBlock> : ChunkOfGroups<Q4KBlock> {};
template <>
struct Chunk<Q5KBlock> : ChunkOfGroups<Q5KBlock> {};

template <>
struct Chunk<Q6KBlock> : WholeChunks {  // lies at any even address, and in shared memory as far from a multiple of 16
  static constexpr int kBytes = 210, kStages = 2;
  static constexpr bool kAligned = false, kScaleOfStep = true;
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

// Rows of 16-bit floats: 128 elements a chunk.
template <class T>
struct FloatChunk : WholeChunks {
  static constexpr int kElements = 128, kBytes = 256, kStages = 2, kTaken = 32;
};

}  // namespace wick
