// The vocabulary of blocks_int8.cpp, for AVX-512 VNNI and AVX2: vectors of bytes, blocks' numbers as bytes, and dot
// products of four neighbouring bytes, one in each lane of 32 bits. A chunk is one vector of bytes.
#if defined(WICK_BLOCKS_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WICK_BLOCKS_INT8_INL_H_
#undef WICK_BLOCKS_INT8_INL_H_
#else
#define WICK_BLOCKS_INT8_INL_H_
#endif

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "wick/backend/cpu/simd-inl.h"
#include "wick/core/blocks.h"

// Highway 1.0.3 has neither such a product nor a target that allows it.
#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace wick {
namespace HWY_NAMESPACE {

using Ints = hn::RebindToSigned<Floats>;
using IntVec = hn::Vec<Ints>;

#if HWY_TARGET == HWY_AVX3
constexpr int kLanes = 16;
using Bytes = __m512i;
#else
constexpr int kLanes = 8;
using Bytes = __m256i;
#endif

template <class Block>
constexpr bool kHasMinimum = requires(Block b) {
  b.dmin;
};
// Elements that share a scale.
template <class Block>
constexpr int kGroup = std::is_same_v<Block, Q6KBlock> ? 16 : 32;

// The instructions multiply unsigned bytes by signed ones. An offset makes the weight's numbers unsigned; sums start at
// minus the offset's contribution. On AVX2, which adds two products in 16 bits, q8_0 would overflow so: there the
// weight's absolute value is multiplied, and its sign moves to the activation.
template <class Block>
constexpr bool kSigned = kLanes == 8 && std::is_same_v<Block, Q8Block>;
template <class Block>
constexpr int kOffset = kSigned<Block> || kHasMinimum<Block> ? 0
                        : std::is_same_v<Block, Q8Block>     ? 128
                        : std::is_same_v<Block, Q4Block>     ? 8
                                                             : 32;
// The largest number.
template <class Block>
constexpr int kMost = std::is_same_v<Block, Q8Block>    ? 128
                      : std::is_same_v<Block, Q6KBlock> ? 63
                      : std::is_same_v<Block, Q5KBlock> ? 31
                                                        : 15;

HWY_INLINE float f16(uint16_t bits) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))); }
HWY_INLINE __m256i load32(const void* x) { return _mm256_loadu_si256(static_cast<const __m256i*>(x)); }
HWY_INLINE __m256i low_bits(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(char(mask))); }
// Bits that cross into the next byte are for low_bits() to clear.
HWY_INLINE __m256i right(__m256i v, int count) { return _mm256_srli_epi16(v, count); }
// Both nibbles of 16 bytes: first the low ones.
HWY_INLINE __m256i nibbles(const uint8_t* x) {
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  return low_bits(_mm256_srlv_epi64(twice, _mm256_set_epi64x(4, 4, 0, 0)), 15);
}

// The 32 numbers of part p of a block, in the order of their elements.
HWY_INLINE __m256i numbers(const Q8Block& b, int) {
  return kSigned<Q8Block> ? load32(b.q) : _mm256_xor_si256(load32(b.q), _mm256_set1_epi8(-128));
}
HWY_INLINE __m256i numbers(const Q4Block& b, int) { return nibbles(b.q); }
HWY_INLINE __m256i numbers(const Q4KBlock& b, int p) {
  return low_bits(right(load32(b.q + p / 2 * 32), p % 2 * 4), 15);
}
HWY_INLINE __m256i numbers(const Q5KBlock& b, int p) {
  const __m256i low = low_bits(right(load32(b.q + p / 2 * 32), p % 2 * 4), 15);
  return _mm256_or_si256(low, _mm256_slli_epi16(low_bits(right(load32(b.high), p), 1), 4));
}
HWY_INLINE __m256i numbers(const Q6KBlock& b, int p) {
  const int half = p / 4, g = p % 4;
  const __m256i low = low_bits(right(load32(b.low + half * 64 + g % 2 * 32), g / 2 * 4), 15);
  return _mm256_or_si256(low, _mm256_slli_epi16(low_bits(right(load32(b.high + half * 32), 2 * g), 3), 4));
}

#if HWY_TARGET == HWY_AVX3

HWY_INLINE Bytes joined(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }

// Chunk c of a row, two parts.
HWY_INLINE Bytes chunk(const Q8Block* row, int64_t c) {
  const Bytes both = joined(load32(row[2 * c].q), load32(row[2 * c + 1].q));
  return _mm512_xor_si512(both, _mm512_set1_epi8(-128));
}
HWY_INLINE Bytes chunk(const Q4Block* row, int64_t c) {
  const auto twice = [](const uint8_t* x) __attribute__((always_inline)) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  };
  const Bytes all = joined(twice(row[2 * c].q), twice(row[2 * c + 1].q));
  return _mm512_and_si512(_mm512_mask_srli_epi16(all, 0xff00ff00u, all, 4), _mm512_set1_epi8(15));
}
// Two groups of q4_k, and the low bits of q5_k's.
HWY_INLINE Bytes two_groups(const uint8_t* q) {
  const Bytes twice = _mm512_broadcast_i64x4(load32(q));
  return _mm512_and_si512(_mm512_mask_srli_epi16(twice, 0xffff0000u, twice, 4), _mm512_set1_epi8(15));
}
HWY_INLINE Bytes chunk(const Q4KBlock* row, int64_t c) { return two_groups(row[c / 4].q + c % 4 * 32); }
HWY_INLINE Bytes chunk(const Q5KBlock* row, int64_t c) {
  const Bytes low = two_groups(row[c / 4].q + c % 4 * 32), high = _mm512_broadcast_i64x4(load32(row[c / 4].high));
  const int bit = 1 << c % 4 * 2;
  const Bytes bits = joined(_mm256_set1_epi8(char(bit)), _mm256_set1_epi8(char(2 * bit)));
  return _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(high, bits), low, _mm512_set1_epi8(16));
}
HWY_INLINE Bytes chunk(const Q6KBlock* row, int64_t c) {
  const Q6KBlock& b = row[c / 4];
  const int half = int(c % 4 / 2), from = int(c % 2) * 4;
  const Bytes both = _mm512_loadu_si512(b.low + half * 64);
  const Bytes low = _mm512_and_si512(_mm512_srl_epi16(both, _mm_cvtsi32_si128(from)), _mm512_set1_epi8(15));
  const Bytes counts = joined(_mm256_set1_epi64x(from), _mm256_set1_epi64x(from + 2));
  const Bytes high = _mm512_srlv_epi64(_mm512_broadcast_i64x4(load32(b.high + half * 32)), counts);
  return _mm512_or_si512(low, _mm512_slli_epi16(_mm512_and_si512(high, _mm512_set1_epi8(3)), 4));
}

// The scales of a chunk's blocks, times those of the activations.
template <class Block>
HWY_INLINE FloatVec chunk_scales(const Block* row, const float* with) {
  const __m128 scales = _mm_mul_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(int(row[0].d | uint32_t{row[1].d} << 16))),
                                   _mm_castpd_ps(_mm_load_sd(reinterpret_cast<const double*>(with))));
  const __m512i halves = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  return {_mm512_permutexvar_ps(halves, _mm512_castps128_ps512(scales))};
}

HWY_INLINE Bytes load_bytes(const int8_t* x) { return _mm512_loadu_si512(x); }

template <class Block>
HWY_INLINE IntVec add_dots(IntVec sum, Bytes w, Bytes x) {
  return {_mm512_dpbusd_epi32(sum.raw, w, x)};
}

// Adds to the sums of rows of activations, which are `step` bytes apart, the products of `quads` times four with those
// of the weight, one of its rows in each lane.
template <class Block, int kQuads, int kRows>
HWY_INLINE void add_quads(IntVec (&sums)[kRows], const Bytes* w, const int8_t* x, int64_t step) {
  for (int quad = 0; quad < kQuads; ++quad)
    for (int i = 0; i < kRows; ++i) {
      int32_t four;
      std::memcpy(&four, x + i * step + quad * 4, sizeof four);
      sums[i].raw = _mm512_dpbusd_epi32(sums[i].raw, w[quad], _mm512_set1_epi32(four));
    }
}

// Part p of each row of a panel, so that transpose() finds them.
template <class Block>
HWY_INLINE Bytes panel_part(const Block* const* rows, int64_t block, int part, int i) {
  const int r = i < 4 ? i : i + 4;
  return joined(numbers(rows[r][block], part), numbers(rows[r + 4][block], part));
}
HWY_INLINE void store_eights(Bytes* to, int i, Bytes a, Bytes b) {
  _mm512_store_si512(to + i, _mm512_shuffle_i32x4(a, b, 0x88));
  _mm512_store_si512(to + i + 4, _mm512_shuffle_i32x4(a, b, 0xdd));
}

#else

HWY_INLINE Bytes load_bytes(const int8_t* x) { return load32(x); }

template <class Block>
HWY_INLINE Bytes chunk(const Block* row, int64_t c) {
  constexpr int kParts = Block::kElements / 32;
  return numbers(row[c / kParts], int(c % kParts));
}

template <class Block>
HWY_INLINE FloatVec chunk_scales(const Block* row, const float* with) {
  return set(f16(row->d) * *with);
}

// Sums of two products, in 16 bits.
template <class Block>
HWY_INLINE __m256i pairs(Bytes w, Bytes x) {
  return kSigned<Block> ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
}
HWY_INLINE IntVec add_pairs(IntVec sum, __m256i pairs) {
  return {_mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}

template <class Block>
HWY_INLINE IntVec add_dots(IntVec sum, Bytes w, Bytes x) {
  return add_pairs(sum, pairs<Block>(w, x));
}

// The same. This many sums of two products stay within 16 bits.
template <class Block, int kQuads, int kRows>
HWY_INLINE void add_quads(IntVec (&sums)[kRows], const Bytes* w, const int8_t* x, int64_t step) {
  constexpr int kTogether = std::min(kQuads, 32767 / (2 * 127 * kMost<Block>) / 2 * 2 + (kMost < Block >> 63));
  for (int quad = 0; quad < kQuads; quad += kTogether) {
    __m256i together[kRows];
    for (int t = quad; t < quad + kTogether; ++t)
      for (int i = 0; i < kRows; ++i) {
        int32_t four;
        std::memcpy(&four, x + i * step + t * 4, sizeof four);
        const __m256i of_pairs = pairs<Block>(w[t], _mm256_set1_epi32(four));
        together[i] = t == quad ? of_pairs : _mm256_add_epi16(together[i], of_pairs);
      }
    for (int i = 0; i < kRows; ++i) sums[i] = add_pairs(sums[i], together[i]);
  }
}

template <class Block>
HWY_INLINE Bytes panel_part(const Block* const* rows, int64_t block, int part, int i) {
  return numbers(rows[i][block], part);
}
HWY_INLINE void store_eights(Bytes* to, int i, Bytes a, Bytes b) {
  _mm256_store_si256(to + i, _mm256_permute2x128_si256(a, b, 0x20));
  _mm256_store_si256(to + i + 4, _mm256_permute2x128_si256(a, b, 0x31));
}

#endif

// The factors of a k block's numbers: q6_k's scales; for q4_k and q5_k eight scales, then the negated minima.
constexpr int kFactors = 16;
using Factors = FloatVec[kFactors / kLanes];

HWY_INLINE __m128i factor_bytes(const Q6KBlock& b) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.scale));
}
template <class Block>
HWY_INLINE __m128i factor_bytes(const Block& b) {
  uint32_t scales, minima, others;
  std::memcpy(&scales, b.groups.bytes, 4);
  std::memcpy(&minima, b.groups.bytes + 4, 4);
  std::memcpy(&others, b.groups.bytes + 8, 4);
  const uint32_t last_scales = (others & 0x0f0f0f0f) | (scales >> 2 & 0x30303030);
  const uint32_t last_minima = (others >> 4 & 0x0f0f0f0f) | (minima >> 2 & 0x30303030);
  return _mm_set_epi32(int(last_minima), int(minima & 0x3f3f3f3f), int(last_scales), int(scales & 0x3f3f3f3f));
}

#if HWY_TARGET == HWY_AVX3

HWY_INLINE FloatVec eights(float first, float second) {
  return hn::IfThenElse(hn::FirstN(Floats(), 8), set(first), set(second));
}
template <class Block>
HWY_INLINE void set_factors(Factors& to, const Block& b) {
  const FloatVec numbers{_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(factor_bytes(b)))};
  if constexpr (kHasMinimum<Block>)
    to[0] = hn::Mul(numbers, eights(f16(b.d), -f16(b.dmin)));
  else
    to[0] = hn::Mul(numbers, set(f16(b.d)));
}
// By the scales of eight blocks of activations; minima by the blocks' sums.
template <class Block>
HWY_INLINE void multiply_factors(Factors& factors, const float* d, const float* sums) {
  const __m512 scales = _mm512_castps256_ps512(_mm256_loadu_ps(d));
  if constexpr (kHasMinimum<Block>) {
    factors[0] = hn::Mul(factors[0], {_mm512_insertf32x8(scales, _mm256_loadu_ps(sums), 1)});
  } else {
    const auto each_twice = hn::IndicesFromVec(Floats(), hn::ShiftRight<1>(hn::Iota(Ints(), 0)));
    factors[0] = hn::Mul(factors[0], hn::TableLookupLanes(FloatVec{scales}, each_twice));
  }
}
HWY_INLINE FloatVec last_eight(const Factors& factors) {
  return hn::IfThenZeroElse(hn::FirstN(Floats(), 8), factors[0]);
}

#else

template <class Block>
HWY_INLINE void set_factors(Factors& to, const Block& b) {
  const __m128i numbers = factor_bytes(b);
  to[0] = {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers))};
  to[1] = {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(numbers, 8)))};
  to[0] = hn::Mul(to[0], set(f16(b.d)));
  if constexpr (kHasMinimum<Block>)
    to[1] = hn::Mul(to[1], set(-f16(b.dmin)));
  else
    to[1] = hn::Mul(to[1], set(f16(b.d)));
}
// By the scales of eight blocks of activations; minima by the blocks' sums.
template <class Block>
HWY_INLINE void multiply_factors(Factors& factors, const float* d, const float* sums) {
  const FloatVec scales = load(d);
  if constexpr (kHasMinimum<Block>) {
    factors[0] = hn::Mul(factors[0], scales);
    factors[1] = hn::Mul(factors[1], load(sums));
  } else {
    const FloatVec first{_mm256_permutevar8x32_ps(scales.raw, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0))};
    const FloatVec second{_mm256_permutevar8x32_ps(scales.raw, _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4))};
    factors[0] = hn::Mul(factors[0], first);
    factors[1] = hn::Mul(factors[1], second);
  }
}
HWY_INLINE FloatVec last_eight(const Factors& factors) { return factors[1]; }

#endif

// Eight vectors of 32 bytes, or twice that: the dwords of one row go to one lane of each.
HWY_INLINE void transpose(Bytes* to, const Bytes* rows) {
  const hn::Repartition<int64_t, Ints> wide;
  IntVec two[8];
  for (int i = 0; i < 8; i += 2) {
    two[i] = hn::InterleaveLower(Ints(), IntVec{rows[i]}, IntVec{rows[i + 1]});
    two[i + 1] = hn::InterleaveUpper(Ints(), IntVec{rows[i]}, IntVec{rows[i + 1]});
  }
  Bytes four[8];
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      const auto a = hn::BitCast(wide, two[i + j]), b = hn::BitCast(wide, two[i + 2 + j]);
      four[i + 2 * j] = hn::InterleaveLower(wide, a, b).raw;
      four[i + 2 * j + 1] = hn::InterleaveUpper(wide, a, b).raw;
    }
  for (int i = 0; i < 4; ++i) store_eights(to, i, four[i], four[i + 4]);
}

}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#endif  // WICK_BLOCKS_INT8_INL_H_
