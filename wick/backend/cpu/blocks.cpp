#include "wick/backend/cpu/blocks.h"

#include <cassert>

#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/targets.h"
#include "wick/core/blocks.h"
#include "wick/core/row_formats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/blocks.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

using Ints = hn::RebindToSigned<Floats>;
using IntVec = hn::Vec<Ints>;

HWY_INLINE FloatVec f16(uint16_t bits) {
  const hn::Rebind<uint16_t, Floats> d;
  return hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), hn::Set(d, bits)));
}
HWY_INLINE IntVec bytes(const uint8_t* x) { return hn::PromoteTo(Ints(), hn::LoadU(hn::Rebind<uint8_t, Floats>(), x)); }
HWY_INLINE IntVec bytes(const int8_t* x) { return hn::PromoteTo(Ints(), hn::LoadU(hn::Rebind<int8_t, Floats>(), x)); }
HWY_INLINE IntVec low_bits(IntVec v, int count) { return hn::And(v, hn::Set(Ints(), (1 << count) - 1)); }
HWY_INLINE FloatVec floats(IntVec v) { return hn::ConvertTo(Floats(), v); }
HWY_INLINE FloatVec floats_less(IntVec v, int offset) { return floats(hn::Sub(v, hn::Set(Ints(), offset))); }

// Rows of floats, cut alike.
template <DType kDType>
struct FloatBlock {
  static constexpr int kElements = 32;
  std::conditional_t<kDType == DType::f32, float, uint16_t> x[32];
};

// decode(block, f) calls f(i, the vector of elements from i on) for all of a block; i counts no further than the block.
template <DType kDType>
HWY_INLINE void decode(const FloatBlock<kDType>& b, const auto& f) {
  for (int i = 0; i < 32; i += int(lanes())) {
    if constexpr (kDType == DType::f32) {
      f(i, load(b.x + i));
    } else {
      const auto bits = hn::LoadU(hn::Rebind<uint16_t, Floats>(), b.x + i);
      if constexpr (kDType == DType::bf16)
        f(i, hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<Floats>(), bits))));
      else
        f(i, hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), bits)));
    }
  }
}

HWY_INLINE void decode(const Q8Block& b, const auto& f) {
  const FloatVec d = f16(b.d);
  for (int i = 0; i < 32; i += int(lanes())) f(i, hn::Mul(d, floats(bytes(b.q + i))));
}

HWY_INLINE void decode(const Q4Block& b, const auto& f) {
  const FloatVec d = f16(b.d);
  for (int i = 0; i < 16; i += int(lanes())) {
    const IntVec both = bytes(b.q + i);
    f(i, hn::Mul(d, floats_less(low_bits(both, 4), 8)));
    f(i + 16, hn::Mul(d, floats_less(hn::ShiftRight<4>(both), 8)));
  }
}

// The fifth bits of a group's elements, where they belong.
HWY_INLINE IntVec fifth_bits(const uint8_t* high, int group) {
  return hn::ShiftLeft<4>(low_bits(hn::ShiftRightSame(bytes(high), group), 1));
}

template <class Block>
HWY_INLINE void decode_groups(const Block& b, const auto& f) {
  const FloatVec d = f16(b.d), dmin = f16(b.dmin);
  for (int g = 0; g < 8; g += 2) {
    const FloatVec scale = hn::Mul(d, set(float(b.groups.scale(g))));
    const FloatVec next_scale = hn::Mul(d, set(float(b.groups.scale(g + 1))));
    const FloatVec minimum = hn::Mul(dmin, set(float(b.groups.minimum(g))));
    const FloatVec next_minimum = hn::Mul(dmin, set(float(b.groups.minimum(g + 1))));
    for (int i = 0; i < 32; i += int(lanes())) {
      const IntVec both = bytes(b.q + g * 16 + i);
      IntVec low = low_bits(both, 4), next = hn::ShiftRight<4>(both);
      if constexpr (requires { b.high; }) {
        low = hn::Or(low, fifth_bits(b.high + i, g));
        next = hn::Or(next, fifth_bits(b.high + i, g + 1));
      }
      f(g * 32 + i, hn::MulSub(scale, floats(low), minimum));
      f(g * 32 + 32 + i, hn::MulSub(next_scale, floats(next), next_minimum));
    }
  }
}

HWY_INLINE void decode(const Q4KBlock& b, const auto& f) { decode_groups(b, f); }
HWY_INLINE void decode(const Q5KBlock& b, const auto& f) { decode_groups(b, f); }

HWY_INLINE void decode(const Q6KBlock& b, const auto& f) {
  const FloatVec d = f16(b.d);
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < 32; i += int(lanes())) {
      const IntVec high = bytes(b.high + half * 32 + i);
      for (int g = 0; g < 4; ++g) {
        const IntVec both = bytes(b.low + half * 64 + g % 2 * 32 + i);
        const IntVec low = g < 2 ? low_bits(both, 4) : hn::ShiftRight<4>(both);
        const IntVec top = hn::ShiftLeft<4>(low_bits(hn::ShiftRightSame(high, 2 * g), 2));
        const int at = half * 128 + g * 32 + i;
        f(at, hn::Mul(hn::Mul(d, set(float(b.scale[at / 16]))), floats_less(hn::Or(low, top), 32)));
      }
    }
}

template <class Block>
void DecodeAll(float* y, const Block* x, int64_t blocks) {
  for (int64_t i = 0; i < blocks; ++i, y += Block::kElements)
    decode(
        x[i], [y](int at, FloatVec v) HWY_ATTR __attribute__((always_inline)) { store(v, y + at); });
}

void DecodeBlocks(float* y, const void* x, DType dtype, int64_t n) {
  for_block_type(
      dtype, [&]<class Block>(Block*) HWY_ATTR { DecodeAll(y, static_cast<const Block*>(x), n / Block::kElements); });
}

// One row of the weight after the other, as memory likes it, in two sums that do not wait for each other.
template <class Block>
void RowTimesBlocks(const Matrix& y, const Matrix& x, const View& w, const float* bias, Block*) {
  const int64_t blocks = x.cols / Block::kElements, row_blocks = w.stride[0] / Block::kElements;
  parallel_for(w.shape[0], w.numel(), [&](int64_t begin, int64_t end) HWY_ATTR {
    for (int64_t n = begin; n < end; ++n) {
      const Block* row = w.as<const Block>() + n * row_blocks;
      FloatVec sums[2] = {hn::Zero(Floats()), hn::Zero(Floats())};
      for (int64_t b = 0; b < blocks; ++b)
        decode(
            row[b],
            [&, from = x.data + b * Block::kElements ](int at, FloatVec v) HWY_ATTR __attribute__((always_inline)) {
              FloatVec& sum = sums[at / lanes() % 2];
              sum = hn::MulAdd(v, load(from + at), sum);
            });
      y.at(0, n) = hn::GetLane(hn::SumOfLanes(Floats(), hn::Add(sums[0], sums[1]))) + (bias ? bias[n] : 0);
    }
  });
}

void OneRow(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  const auto multiply = [&](auto* block) HWY_ATTR { RowTimesBlocks(y, x, w, bias, block); };
  switch (w.dtype) {
    case DType::f32:
      return multiply(static_cast<FloatBlock<DType::f32>*>(nullptr));
    case DType::bf16:
      return multiply(static_cast<FloatBlock<DType::bf16>*>(nullptr));
    case DType::f16:
      return multiply(static_cast<FloatBlock<DType::f16>*>(nullptr));
    default:
      return for_block_type(w.dtype, multiply);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(DecodeBlocks);
HWY_EXPORT(OneRow);

void decode_blocks(float* y, const void* x, DType dtype, int64_t n) {
  if (has_row_format(dtype)) return decode_row(y, x, dtype, n);
  assert(n % block_of(dtype).elements == 0);
  HWY_DYNAMIC_DISPATCH(DecodeBlocks)(y, x, dtype, n);
}

bool linear_one_row(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  if (x.rows != 1 || x.transposed || has_row_format(w.dtype) || w.stride[1] != 1 || w.shape[1] % 32 != 0 ||
      w.stride[0] % 32 != 0)
    return false;
  HWY_DYNAMIC_DISPATCH(OneRow)(y, x, w, bias);
  return true;
}

}  // namespace wick
#endif  // HWY_ONCE
