// Elementwise kernels. y may be x (or a, b) in unary, binary, affine and accumulate.
#include "wick/backend/cpu/block_loop.h"
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

template <class F>
struct Backward {
  HWY_INLINE FloatVec operator()(FloatVec dy, FloatVec x) const { return hn::Mul(dy, F().slope(x)); }
};

struct Add {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Add(a, b); }
};
struct Sub {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Sub(a, b); }
};
struct Mul {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Mul(a, b); }
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

void UnaryBlock(Unary op, float* y, const float* x, int64_t n) {
  switch (op) {
    case Unary::silu:
      return map(Silu(), y, n, x);
    case Unary::gelu:
      return map(Gelu(), y, n, x);
    case Unary::gelu_tanh:
      return map(GeluTanh(), y, n, x);
    case Unary::quick_gelu:
      return map(QuickGelu(), y, n, x);
    case Unary::exp:
      return map(Exp(), y, n, x);
    case Unary::square:
      return map(Square(), y, n, x);
  }
}

void UnaryBackwardBlock(Unary op, float* dx, const float* dy, const float* x, int64_t n) {
  switch (op) {
    case Unary::silu:
      return map(Backward<Silu>(), dx, n, dy, x);
    case Unary::gelu:
      return map(Backward<Gelu>(), dx, n, dy, x);
    case Unary::gelu_tanh:
      return map(Backward<GeluTanh>(), dx, n, dy, x);
    case Unary::quick_gelu:
      return map(Backward<QuickGelu>(), dx, n, dy, x);
    case Unary::exp:
      return map(Backward<Exp>(), dx, n, dy, x);
    case Unary::square:
      return map(Backward<Square>(), dx, n, dy, x);
  }
}

void BinaryBlock(Binary op, float* y, const float* a, const float* b, int64_t n) {
  switch (op) {
    case Binary::add:
      return map(Add(), y, n, a, b);
    case Binary::sub:
      return map(Sub(), y, n, a, b);
    case Binary::mul:
      return map(Mul(), y, n, a, b);
  }
}

void AffineBlock(float* y, const float* x, float scale, float shift, int64_t n) {
  map(Affine{set(scale), set(shift)}, y, n, x);
}

void ClampBlock(float* y, const float* x, float min, float max, int64_t n) { map(Clamp{set(min), set(max)}, y, n, x); }

void ClampBackwardBlock(float* dx, const float* dy, const float* x, float min, float max, int64_t n) {
  map(ClampBackward{set(min), set(max)}, dx, n, dy, x);
}

void AccumulateBlock(float* sum, const float* y, const float* x, float scale, int64_t n) {
  map(Accumulate{set(scale)}, sum, n, y, x);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(UnaryBlock);
HWY_EXPORT(UnaryBackwardBlock);
HWY_EXPORT(BinaryBlock);
HWY_EXPORT(AffineBlock);
HWY_EXPORT(ClampBlock);
HWY_EXPORT(ClampBackwardBlock);
HWY_EXPORT(AccumulateBlock);

using Pointers = BlockLoop::Pointers;

void CpuBackend::unary(Unary op, View y, View x) {
  BlockLoop({y}, {x}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(UnaryBlock)(op, p[0], p[1], n);
  });
}

void CpuBackend::unary_backward(Unary op, View dx, View dy, View x) {
  BlockLoop({dx}, {dy, x}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(UnaryBackwardBlock)(op, p[0], p[1], p[2], n);
  });
}

void CpuBackend::binary(Binary op, View y, View a, View b) {
  BlockLoop({y}, {a, b}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(BinaryBlock)(op, p[0], p[1], p[2], n);
  });
}

void CpuBackend::affine(View y, View x, float scale, float shift) {
  BlockLoop({y}, {x}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(AffineBlock)(p[0], p[1], scale, shift, n);
  });
}

void CpuBackend::clamp(View y, View x, float min, float max) {
  BlockLoop({y}, {x}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(ClampBlock)(p[0], p[1], min, max, n);
  });
}

void CpuBackend::clamp_backward(View dx, View dy, View x, float min, float max) {
  BlockLoop({dx}, {dy, x}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(ClampBackwardBlock)(p[0], p[1], p[2], min, max, n);
  });
}

void CpuBackend::accumulate(View y, View x, float scale) {
  BlockLoop({y}, {y, x}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(AccumulateBlock)(p[0], p[1], p[2], scale, n);
  });
}

}  // namespace wick
#endif  // HWY_ONCE
