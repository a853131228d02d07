#include "wick/backend/cpu/convert.h"

#include <cassert>
#include <cstring>

#include "wick/backend/cpu/blocks.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/convert.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

using Words = hn::RebindToUnsigned<Floats>;
using HalfWords = hn::Rebind<uint16_t, Floats>;
using WordVec = hn::Vec<Words>;

HWY_INLINE WordVec word(uint32_t value) { return hn::Set(Words(), value); }

struct FromBf16 {
  HWY_INLINE FloatVec operator()(WordVec bits) const { return hn::BitCast(Floats(), hn::ShiftLeft<16>(bits)); }
};

struct ToBf16 {
  HWY_INLINE WordVec operator()(FloatVec x) const {
    const WordVec bits = hn::BitCast(Words(), x);
    const WordVec high = hn::ShiftRight<16>(bits);
    const WordVec even = hn::And(high, word(1));
    const WordVec rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(even, word(0x7fff))));
    return hn::IfThenElse(hn::RebindMask(Words(), hn::IsNaN(x)), hn::Or(high, word(0x40)), rounded);
  }
};

// A product with 2^112 moves the exponent from f16's bias to f32's, and is exact for subnormals too.
struct FromF16 {
  HWY_INLINE FloatVec operator()(WordVec bits) const {
    const Words d;
    const WordVec magnitude = hn::And(bits, word(0x7fff)), sign = hn::ShiftLeft<16>(hn::And(bits, word(0x8000)));
    const FloatVec scaled = hn::Mul(hn::BitCast(Floats(), hn::ShiftLeft<13>(magnitude)), set(0x1p112f));
    const WordVec top = hn::IfThenElseZero(hn::Gt(magnitude, word(0x7bff)), word(0x7f800000));
    return hn::BitCast(Floats(), hn::Or(hn::Or(hn::BitCast(d, scaled), top), sign));
  }
};

// The cases of f32_to_f16 in core/dtype.cpp, side by side.
struct ToF16 {
  HWY_INLINE WordVec operator()(FloatVec x) const {
    const Words d;
    const WordVec bits = hn::BitCast(d, x);
    const WordVec sign = hn::And(hn::ShiftRight<16>(bits), word(0x8000)), magnitude = hn::And(bits, word(0x7fffffff));
    const WordVec odd = hn::And(hn::ShiftRight<13>(magnitude), word(1));
    const WordVec rounded = hn::Add(magnitude, hn::Add(odd, word(0xfff - 0x38000000u)));
    const FloatVec shifted = hn::Add(hn::BitCast(Floats(), magnitude), set(0.5f));
    const WordVec subnormal = hn::Sub(hn::BitCast(d, shifted), word(0x3f000000));
    WordVec result = hn::IfThenElse(hn::Lt(magnitude, word(0x38800000)), subnormal, hn::ShiftRight<13>(rounded));
    result = hn::IfThenElse(hn::Gt(magnitude, word(0x477fefff)), word(0x7c00), result);
    result = hn::IfThenElse(hn::Gt(magnitude, word(0x7f800000)), word(0x7e00), result);
    return hn::Or(sign, result);
  }
};

template <class F>
HWY_INLINE void widen(const F& f, float* y, const uint16_t* x, int64_t n) {
  const HalfWords d;
  const int64_t step = lanes();
  int64_t i = 0;
  for (; i + step <= n; i += step) store(f(hn::PromoteTo(Words(), hn::LoadU(d, x + i))), y + i);
  if (i == n) return;
  HWY_ALIGN uint16_t padded[hn::MaxLanes(d)] = {};
  std::memcpy(padded, x + i, size_t(n - i) * sizeof(uint16_t));
  store_first(f(hn::PromoteTo(Words(), hn::Load(d, padded))), y + i, n - i);
}

template <class F>
HWY_INLINE void narrow(const F& f, uint16_t* y, const float* x, int64_t n) {
  const HalfWords d;
  const int64_t step = lanes();
  const auto convert = [&](FloatVec v)
                           HWY_ATTR { return hn::DemoteTo(d, hn::BitCast(hn::RebindToSigned<Words>(), f(v))); };
  int64_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(convert(load(x + i)), d, y + i);
  if (i == n) return;
  HWY_ALIGN uint16_t padded[hn::MaxLanes(d)];
  hn::Store(convert(load_first(x + i, n - i)), d, padded);
  std::memcpy(y + i, padded, size_t(n - i) * sizeof(uint16_t));
}

void WidenFloats(float* y, const uint16_t* x, DType dtype, int64_t n) {
  dtype == DType::bf16 ? widen(FromBf16(), y, x, n) : widen(FromF16(), y, x, n);
}

void NarrowFloats(uint16_t* y, DType dtype, const float* x, int64_t n) {
  dtype == DType::bf16 ? narrow(ToBf16(), y, x, n) : narrow(ToF16(), y, x, n);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(WidenFloats);
HWY_EXPORT(NarrowFloats);

void load_floats(float* y, const void* x, DType dtype, int64_t n) {
  if (is_quantized(dtype)) return decode_blocks(y, x, dtype, n);
  assert(is_float(dtype));
  if (dtype == DType::f32)
    std::memcpy(y, x, size_t(n) * sizeof(float));
  else
    HWY_DYNAMIC_DISPATCH(WidenFloats)(y, static_cast<const uint16_t*>(x), dtype, n);
}

void store_floats(void* y, DType dtype, const float* x, int64_t n) {
  assert(is_float(dtype));
  if (dtype == DType::f32)
    std::memcpy(y, x, size_t(n) * sizeof(float));
  else
    HWY_DYNAMIC_DISPATCH(NarrowFloats)(static_cast<uint16_t*>(y), dtype, x, n);
}

}  // namespace wick
#endif  // HWY_ONCE
