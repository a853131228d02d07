#include "wick/backend/cpu/blocks.h"

#include <cassert>

#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/targets.h"
#include "wick/core/blocks.h"

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

// decode(block, f) calls f(i, the vector of elements from i on) for all of a block; i counts no further than the block.
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
    decode(x[i], [y](int at, FloatVec v) HWY_ATTR { store(v, y + at); });
}

void DecodeBlocks(float* y, const void* x, DType dtype, int64_t n) {
  for_block_type(
      dtype, [&]<class Block>(Block*) HWY_ATTR { DecodeAll(y, static_cast<const Block*>(x), n / Block::kElements); });
}

// kRows rows of the weight times kInputs of the activations. The weight is decoded once for all inputs.
template <int kRows, int kInputs, class Block>
HWY_INLINE void product(const Matrix& y, const Matrix& x, int64_t first, const Block* w, int64_t row_blocks,
                        const float* bias) {
  FloatVec sums[kRows][kInputs];
  for (auto& row : sums)
    for (FloatVec& sum : row) sum = hn::Zero(Floats());
  const int64_t blocks = x.cols / Block::kElements;
  for (int64_t b = 0; b < blocks; ++b)
    for (int r = 0; r < kRows; ++r)
      decode(w[r * row_blocks + b], [&, from = x.data + b * Block::kElements](int at, FloatVec v) HWY_ATTR {
        for (int m = 0; m < kInputs; ++m) sums[r][m] = hn::MulAdd(v, load(from + m * x.ld + at), sums[r][m]);
      });
  for (int r = 0; r < kRows; ++r)
    for (int m = 0; m < kInputs; ++m)
      y.at(m, first + r) = hn::GetLane(hn::SumOfLanes(Floats(), sums[r][m])) + (bias ? bias[first + r] : 0);
}

template <int kInputs, class Block>
void RowsTimesBlocks(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  constexpr int kRows = kInputs == 1 ? 4 : 2;
  const int64_t row_blocks = w.stride[0] / Block::kElements;
  parallel_for(w.shape[0], w.numel(), [&](int64_t begin, int64_t end) HWY_ATTR {
    int64_t n = begin;
    const auto* rows = w.as<const Block>() + begin * row_blocks;
    for (; n + kRows <= end; n += kRows, rows += kRows * row_blocks)
      product<kRows, kInputs>(y, x, n, rows, row_blocks, bias);
    for (; n < end; ++n, rows += row_blocks) product<1, kInputs>(y, x, n, rows, row_blocks, bias);
  });
}

template <int kInputs = kFewRowsOfBlocks, class Block>
void ChooseInputs(const Matrix& y, const Matrix& x, const View& w, const float* bias, Block* block) {
  if constexpr (kInputs > 1)
    if (x.rows < kInputs) return ChooseInputs<kInputs - 1>(y, x, w, bias, block);
  RowsTimesBlocks<kInputs, Block>(y, x, w, bias);
}

void FewRowsTimesBlocks(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  for_block_type(w.dtype, [&](auto* block) HWY_ATTR { ChooseInputs(y, x, w, bias, block); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(DecodeBlocks);
HWY_EXPORT(FewRowsTimesBlocks);

void decode_blocks(float* y, const void* x, DType dtype, int64_t n) {
  assert(n % block_of(dtype).elements == 0);
  HWY_DYNAMIC_DISPATCH(DecodeBlocks)(y, x, dtype, n);
}

void few_rows_times_blocks(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  assert(!x.transposed && x.rows <= kFewRowsOfBlocks && w.stride[1] == 1);
  if (x.rows > 0) HWY_DYNAMIC_DISPATCH(FewRowsTimesBlocks)(y, x, w, bias);
}

}  // namespace wick
#endif  // HWY_ONCE
