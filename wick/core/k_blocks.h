// How floats become blocks of the k types (blocks.h), for the host and for devices, with the same bits where no product
// is fused with a sum. V is a float, or a vector of floats whose lanes are neighbouring groups.
//
// Each group tries a few steps. A step gives codes, and the codes a scale and a minimum by weighted least squares; the
// fit of the least error stays. An element weighs its magnitude plus the group's mean one: large weights matter more to
// a product than small ones, and near zero a group is still fitted. Then scales are rounded to the block's units,
// minima are fitted again to the rounded scales, and each element takes the nearest code.
#pragma once

#include <cstdint>
#include <cstring>

#include "wick/core/blocks.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define WICK_K_BLOCKS __device__ __forceinline__
#else
#define WICK_K_BLOCKS inline
#endif

namespace wick::k_blocks {

inline constexpr uint16_t kNanInF16 = 0x7e00;
#ifdef __CUDACC__
WICK_K_BLOCKS uint16_t to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
WICK_K_BLOCKS float from_f16(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
#else
WICK_K_BLOCKS uint16_t to_f16(float x) { return f32_to_f16(x); }
WICK_K_BLOCKS float from_f16(uint16_t bits) { return f16_to_f32(bits); }
#endif

// More candidates, or closer ones, take less than 1 % off the error of normal numbers.
inline constexpr int kCandidates = 12;

template <class Block>
struct Type {  // q4_k and q5_k
  static constexpr int kLength = 32, kGroups = 8;
  static constexpr int kLeast = 0, kTop = sizeof(Block) == sizeof(Q4KBlock) ? 15 : 31;  // codes
  static constexpr int kLeastScale = 1, kTopScale = 63;  // a step of 0 is never better than one of 1
  static constexpr bool kHasMinimum = true;
};
template <>
struct Type<Q6KBlock> {
  static constexpr int kLength = 16, kGroups = 16;
  static constexpr int kLeast = -32, kTop = 31;
  static constexpr int kLeastScale = -128, kTopScale = 127;
  static constexpr bool kHasMinimum = false;
};

// What is NaN becomes the second.
template <class V>
WICK_K_BLOCKS V greater(V a, V b) {
  return a > b ? a : b;
}
template <class V>
WICK_K_BLOCKS V lesser(V a, V b) {
  return a < b ? a : b;
}
template <class V>
WICK_K_BLOCKS V magnitude(V x) {
  return greater(x, -x);
}
// The nearest integer from `least` to `most`, of halves the even one; `least` for NaN.
template <class V>
WICK_K_BLOCKS V whole_between(V x, int least, int most) {
  constexpr float kNoFraction = 0x1.8p23f;  // floats of its size are integers
  const V within = lesser(greater(x, V{} + float(least)), V{} + float(most));
  return within + kNoFraction - kNoFraction;
}

template <class V, int kLength>
struct Groups {
  V x[kLength], weight[kLength];
  V weights, sum;  // of weights, and of weighted elements
};

// Groups of a block that lie one after the other, a lane each.
template <class V, int kLength>
WICK_K_BLOCKS void load(Groups<V, kLength>& g, const float* x) {
  constexpr int kLanes = int(sizeof(V) / sizeof(float));
  V magnitudes{};
  for (int i = 0; i < kLength; ++i) {
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = x[lane * kLength + i];
    std::memcpy(&g.x[i], lanes, sizeof lanes);
    magnitudes += magnitude(g.x[i]);
  }
  const V mean = magnitudes * (1.0f / kLength);
  g.weights = g.sum = V{};
  for (int i = 0; i < kLength; ++i) {
    g.weight[i] = mean + magnitude(g.x[i]);
    g.weights += g.weight[i];
    g.sum += g.weight[i] * g.x[i];
  }
}

// Weighted sums over a group whose elements have the codes n.
template <class V>
struct Sums {
  V n, nn, nx;
};
template <class V, int kLength>
WICK_K_BLOCKS Sums<V> sums_of(const Groups<V, kLength>& g, V minimum, V inverse, int least, int most) {
  Sums<V> s{};
  for (int i = 0; i < kLength; ++i) {
    const V n = whole_between((g.x[i] + minimum) * inverse, least, most), weighted = g.weight[i] * n;
    s.n += weighted;
    s.nn += weighted * n;
    s.nx += weighted * g.x[i];
  }
  return s;
}

// A group's elements are about scale * n - minimum.
template <class V>
struct Fit {
  V scale, minimum;
};

// The least squares' fit to codes. A minimum is not negative; one code alone tells nothing of it, but for rounding.
template <class V, int kLength>
WICK_K_BLOCKS Fit<V> fit_to(const Groups<V, kLength>& g, const Sums<V>& s) {
  const V squares = g.weights * s.nn, spread = squares - s.n * s.n;
  const V scale = (g.weights * s.nx - s.n * g.sum) / spread, minimum = (s.n * s.nx - s.nn * g.sum) / spread;
  const auto both = (spread > squares * 0x1p-16f) & (minimum >= V{});
  return {both ? scale : s.nx / s.nn, both ? minimum : V{}};
}

// The best of the candidates' fits. Its error is that of zeros less `gain`, which is NaN where all codes are 0: then
// the first stays.
template <class Block, class V, int kLength>
WICK_K_BLOCKS Fit<V> fit_with_minimum(const Groups<V, kLength>& g) {
  constexpr int kTop = Type<Block>::kTop;
  V low{}, high = g.x[0];
  for (int i = 0; i < kLength; ++i) {
    low = lesser(g.x[i], low);
    high = greater(g.x[i], high);
  }
  const V span = high - low, inverse = span > V{} ? 1 / span : V{};
  Fit<V> best{span / float(kTop), -low};
  V most = V{} - 1;
  for (int c = 0; c < kCandidates; ++c) {
    const Sums<V> s = sums_of(g, -low, inverse * (float(kTop - 3) + 0.3f * float(c)), 0, kTop);
    const Fit<V> fit = fit_to(g, s);
    const V gain = fit.scale * s.nx - fit.minimum * g.sum;
    const auto better = gain > most;
    most = better ? gain : most;
    best = {better ? fit.scale : best.scale, better ? fit.minimum : best.minimum};
  }
  return best;
}

// The best scale of a group without a minimum. The element of the largest magnitude has a negative code, of which there
// is one more.
template <class V, int kLength>
WICK_K_BLOCKS Fit<V> fit_scale(const Groups<V, kLength>& g) {
  V largest{}, best{}, most = V{} - 1;
  for (int i = 0; i < kLength; ++i) largest = magnitude(g.x[i]) > magnitude(largest) ? g.x[i] : largest;
  const V inverse = largest != V{} ? -1 / largest : V{};
  for (int c = 0; c < kCandidates; ++c) {
    const Sums<V> s = sums_of(g, V{}, inverse * (26 + 0.6f * float(c)), -32, 31);
    const V scale = s.nx / s.nn, gain = scale * s.nx;
    const auto better = gain > most;
    most = better ? gain : most;
    best = better ? scale : best;
  }
  return {best, V{}};
}

template <class Block, class V, int kLength>
WICK_K_BLOCKS Fit<V> fit(const Groups<V, kLength>& g) {
  if constexpr (Type<Block>::kHasMinimum)
    return fit_with_minimum<Block>(g);
  else
    return fit_scale(g);
}

// The fits of a block's groups, and the sums of their weights.
template <class Block>
struct Fits {
  float scale[Type<Block>::kGroups], minimum[Type<Block>::kGroups], weights[Type<Block>::kGroups];
};

// f16's rounding of `largest` / `count`. What is not 0 stays so: groups then count few of a unit that is large for
// them.
WICK_K_BLOCKS float unit(float largest, float count) {
  constexpr float kLeast = 0x1p-24f;
  const float exact = largest / count;
  return exact != 0 && magnitude(exact) < kLeast ? (exact < 0 ? -kLeast : kLeast) : exact;
}

// Sets the units of scales and minima. Where an element is not finite, or too large for f16, the block becomes one of
// NaN: false.
template <class Block>
WICK_K_BLOCKS bool set_units(Block& b, const Fits<Block>& fits) {
  float scale = 0, minimum = 0, weights = 0;
  for (int g = 0; g < Type<Block>::kGroups; ++g) {
    scale = magnitude(fits.scale[g]) > magnitude(scale) ? fits.scale[g] : scale;
    minimum = greater(fits.minimum[g], minimum);
    weights += fits.weights[g];
  }
  constexpr float kInfiniteInF16 = 65520;
  const float d = unit(scale, Type<Block>::kHasMinimum ? 63 : -128), dmin = unit(minimum, 63);
  const bool finite = weights - weights == 0 && magnitude(d) < kInfiniteInF16 && dmin < kInfiniteInF16;
  b.d = finite ? to_f16(d) : kNanInF16;
  if constexpr (Type<Block>::kHasMinimum) b.dmin = finite ? to_f16(dmin) : 0;
  return finite;
}

// What a block holds but its units; elements' codes less the least one.
template <class Block>
struct Codes {
  uint8_t element[256];
  int8_t scale[Type<Block>::kGroups], minimum[Type<Block>::kGroups];
};

template <class V>
WICK_K_BLOCKS float lane_of(const V& v, int lane) {
  float value;
  std::memcpy(&value, reinterpret_cast<const char*>(&v) + sizeof(float) * size_t(lane), sizeof value);
  return value;
}

// The codes of groups `first` and on, a lane each, in the units of the block.
template <class Block, class V, int kLength>
WICK_K_BLOCKS void choose_codes(Codes<Block>& codes, int first, const Groups<V, kLength>& g, const Fit<V>& fit,
                                const Block& b) {
  using T = Type<Block>;
  const float d = from_f16(b.d);
  constexpr int kLanes = int(sizeof(V) / sizeof(float));
  V scale = whole_between(fit.scale * (d != 0 ? 1 / d : 0), T::kLeastScale, T::kTopScale), minimum{}, shift{};
  scale = scale == V{} ? V{} + 1 : scale;
  const V step = scale * d, inverse = step != V{} ? 1 / step : V{};
  if constexpr (T::kHasMinimum) {
    const float dmin = from_f16(b.dmin);
    shift = (step * sums_of(g, fit.minimum, inverse, 0, T::kTop).n - g.sum) / g.weights;
    minimum = whole_between(shift * (dmin != 0 ? 1 / dmin : 0), 0, 63);
    shift = minimum * dmin;
  }
  for (int i = 0; i < kLength; ++i) {
    const V n = whole_between((g.x[i] + shift) * inverse, T::kLeast, T::kTop);
    for (int lane = 0; lane < kLanes; ++lane)
      codes.element[(first + lane) * kLength + i] = uint8_t(int(lane_of(n, lane)) - T::kLeast);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    codes.scale[first + lane] = int8_t(lane_of(scale, lane));
    codes.minimum[first + lane] = int8_t(lane_of(minimum, lane));
  }
}

// The inverse of GroupScales::scale and minimum.
template <class Block>
WICK_K_BLOCKS void pack_scales(GroupScales& to, const Codes<Block>& codes) {
  for (int g = 0; g < 4; ++g) {
    const int scale = codes.scale[g + 4], minimum = codes.minimum[g + 4];
    to.bytes[g] = uint8_t(codes.scale[g] | scale >> 4 << 6);
    to.bytes[g + 4] = uint8_t(codes.minimum[g] | minimum >> 4 << 6);
    to.bytes[g + 8] = uint8_t((scale & 15) | (minimum & 15) << 4);
  }
}

WICK_K_BLOCKS void pack(Q4KBlock& b, const Codes<Q4KBlock>& codes) {
  pack_scales(b.groups, codes);
  for (int i = 0; i < 128; ++i) {
    const uint8_t* const n = codes.element + i / 32 * 64 + i % 32;
    b.q[i] = uint8_t(n[0] | n[32] << 4);
  }
}

WICK_K_BLOCKS void pack(Q5KBlock& b, const Codes<Q5KBlock>& codes) {
  pack_scales(b.groups, codes);
  for (int i = 0; i < 128; ++i) {
    const uint8_t* const n = codes.element + i / 32 * 64 + i % 32;
    b.q[i] = uint8_t((n[0] & 15) | (n[32] & 15) << 4);
  }
  for (int i = 0; i < 32; ++i) {
    int bits = 0;
    for (int g = 0; g < 8; ++g) bits |= codes.element[g * 32 + i] >> 4 << g;
    b.high[i] = uint8_t(bits);
  }
}

WICK_K_BLOCKS void pack(Q6KBlock& b, const Codes<Q6KBlock>& codes) {
  for (int g = 0; g < 16; ++g) b.scale[g] = codes.scale[g];
  for (int i = 0; i < 64; ++i) {  // i % 32 of half i / 32
    const uint8_t* const n = codes.element + i / 32 * 128 + i % 32;
    uint8_t* const low = b.low + i / 32 * 64 + i % 32;
    low[0] = uint8_t((n[0] & 15) | (n[64] & 15) << 4);
    low[32] = uint8_t((n[32] & 15) | (n[96] & 15) << 4);
    b.high[i] = uint8_t(n[0] >> 4 | n[32] >> 4 << 2 | n[64] >> 4 << 4 | n[96] >> 4 << 6);
  }
}

}  // namespace wick::k_blocks

#undef WICK_K_BLOCKS
