// Elementwise kernels. y may be x (or a, b) in unary, binary, affine and accumulate.
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/elementwise.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

// Each function of Unary with its derivative.
struct Silu {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return silu(x); }
  HWY_INLINE FloatVec slope(FloatVec x) const { return silu_slope(x); }
};

struct Gelu {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return gelu(x); }
  HWY_INLINE FloatVec slope(FloatVec x) const { return gelu_slope(x); }
};

// 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr float kLinear = 1.5957691216f, kCubic = 0.0713548163f;
  HWY_INLINE FloatVec gate(FloatVec x) const {
    return sigmoid(hn::Mul(x, hn::MulAdd(hn::Mul(x, x), set(kCubic), set(kLinear))));
  }
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Mul(x, gate(x)); }
  HWY_INLINE FloatVec slope(FloatVec x) const {
    return gated_slope(x, gate(x), hn::MulAdd(hn::Mul(x, x), set(3 * kCubic), set(kLinear)));
  }
};

struct QuickGelu {
  HWY_INLINE FloatVec gate(FloatVec x) const { return sigmoid(hn::Mul(x, set(1.702f))); }
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Mul(x, gate(x)); }
  HWY_INLINE FloatVec slope(FloatVec x) const { return gated_slope(x, gate(x), set(1.702f)); }
};

struct Exp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return exp(x); }
  HWY_INLINE FloatVec slope(FloatVec x) const { return exp(x); }
};

struct Square {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Mul(x, x); }
  HWY_INLINE FloatVec slope(FloatVec x) const { return hn::Add(x, x); }
};

struct Rsqrt {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Div(set(1), hn::Sqrt(x)); }
  HWY_INLINE FloatVec slope(FloatVec x) const { return hn::Div(hn::Mul(set(-0.5f), (*this)(x)), x); }
};

template <class F>
struct Backward {
  HWY_INLINE FloatVec operator()(FloatVec dy, FloatVec x) const { return hn::Mul(dy, F().slope(x)); }
};

struct Sub {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Sub(a, b); }
};

struct Affine {
  FloatVec scale, shift;
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::MulAdd(scale, x, shift); }
};

// By comparisons, which leave a NaN as it is.
struct Clamp {
  FloatVec min, max;
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    return hn::IfThenElse(hn::Lt(x, min), min, hn::IfThenElse(hn::Gt(x, max), max, x));
  }
};

struct ClampBackward {
  FloatVec min, max;
  HWY_INLINE FloatVec operator()(FloatVec dy, FloatVec x) const {
    return hn::IfThenElseZero(hn::And(hn::Ge(x, min), hn::Le(x, max)), dy);
  }
};

struct Accumulate {
  FloatVec scale;
  HWY_INLINE FloatVec operator()(FloatVec y, FloatVec x) const { return hn::MulAdd(scale, x, y); }
};

// Calls use(function) with the function that a Unary names.
template <class Use>
void with_function(Unary op, const Use& use) {
  switch (op) {
    case Unary::silu:
      return use(Silu());
    case Unary::gelu:
      return use(Gelu());
    case Unary::gelu_tanh:
      return use(GeluTanh());
    case Unary::quick_gelu:
      return use(QuickGelu());
    case Unary::exp:
      return use(Exp());
    case Unary::square:
      return use(Square());
    case Unary::rsqrt:
      return use(Rsqrt());
  }
}

void MapUnary(Unary op, const View& y, const View& x) {
  with_function(op, [&](auto f) HWY_ATTR { map(f, y, x); });
}

void MapUnaryBackward(Unary op, const View& dx, const View& dy, const View& x) {
  with_function(op, [&](auto f) HWY_ATTR { map(Backward<decltype(f)>(), dx, dy, x); });
}

void MapBinary(Binary op, const View& y, const View& a, const View& b) {
  switch (op) {
    case Binary::add:
      return map(Add(), y, a, b);
    case Binary::sub:
      return map(Sub(), y, a, b);
    case Binary::mul:
      return map(Mul(), y, a, b);
  }
}

void MapAffine(const View& y, const View& x, float scale, float shift) { map(Affine{set(scale), set(shift)}, y, x); }

void MapClamp(const View& y, const View& x, float min, float max) { map(Clamp{set(min), set(max)}, y, x); }

void MapClampBackward(const View& dx, const View& dy, const View& x, float min, float max) {
  map(ClampBackward{set(min), set(max)}, dx, dy, x);
}

void MapAccumulate(const View& y, const View& x, float scale) { map(Accumulate{set(scale)}, y, y, x); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(MapUnary);
HWY_EXPORT(MapUnaryBackward);
HWY_EXPORT(MapBinary);
HWY_EXPORT(MapAffine);
HWY_EXPORT(MapClamp);
HWY_EXPORT(MapClampBackward);
HWY_EXPORT(MapAccumulate);

void CpuBackend::unary(Unary op, View y, View x) { HWY_DYNAMIC_DISPATCH(MapUnary)(op, y, x); }
void CpuBackend::unary_backward(Unary op, View dx, View dy, View x) {
  HWY_DYNAMIC_DISPATCH(MapUnaryBackward)(op, dx, dy, x);
}

void CpuBackend::binary(Binary op, View y, View a, View b) { HWY_DYNAMIC_DISPATCH(MapBinary)(op, y, a, b); }

void CpuBackend::affine(View y, View x, float scale, float shift) {
  HWY_DYNAMIC_DISPATCH(MapAffine)(y, x, scale, shift);
}

void CpuBackend::clamp(View y, View x, float min, float max) { HWY_DYNAMIC_DISPATCH(MapClamp)(y, x, min, max); }
void CpuBackend::clamp_backward(View dx, View dy, View x, float min, float max) {
  HWY_DYNAMIC_DISPATCH(MapClampBackward)(dx, dy, x, min, max);
}

void CpuBackend::accumulate(View y, View x, float scale) { HWY_DYNAMIC_DISPATCH(MapAccumulate)(y, x, scale); }

}  // namespace wick
#endif  // HWY_ONCE
