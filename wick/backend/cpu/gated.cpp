// Gated activations: one half of a row times a function of the other.
#include "wick/backend/cpu/block_loop.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/targets.h"
#include "wick/backend/views.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/gated.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

// Each gate's function, and both that and its derivative.
struct Gelu {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return gelu(x); }
  HWY_INLINE void with_slope(FloatVec x, FloatVec& y, FloatVec& slope) const {
    const Normal normal = normal_distribution(x);
    y = hn::Mul(x, normal.cdf);
    slope = hn::MulAdd(x, normal.pdf, normal.cdf);
  }
};

struct Silu {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return silu(x); }
  HWY_INLINE void with_slope(FloatVec x, FloatVec& y, FloatVec& slope) const {
    const FloatVec s = sigmoid(x);
    y = hn::Mul(x, s);
    slope = gated_slope(x, s, set(1));
  }
};

template <class Gate>
struct Gated {
  HWY_INLINE FloatVec operator()(FloatVec value, FloatVec gate) const { return hn::Mul(value, Gate()(gate)); }
};

template <class Gate>
HWY_INLINE void slopes(FloatVec dy, FloatVec value, FloatVec gate, FloatVec& dvalue, FloatVec& dgate) {
  FloatVec y, slope;
  Gate().with_slope(gate, y, slope);
  dvalue = hn::Mul(dy, y);
  dgate = hn::Mul(hn::Mul(dy, value), slope);
}

template <class Gate>
HWY_INLINE void backward(float* dvalue, float* dgate, const float* dy, const float* value, const float* gate,
                         int64_t n) {
  for_columns(n, [&](auto at) HWY_ATTR {
    FloatVec a, b;
    slopes<Gate>(at.of(dy), at.of(value), at.of(gate), a, b);
    at.put(a, dvalue);
    at.put(b, dgate);
  });
}

void GegluBlock(float* y, const float* value, const float* gate, int64_t n) { map(Gated<Gelu>(), y, n, value, gate); }
void SwigluBlock(float* y, const float* value, const float* gate, int64_t n) { map(Gated<Silu>(), y, n, value, gate); }
void GegluBackwardBlock(float* dvalue, float* dgate, const float* dy, const float* value, const float* gate,
                        int64_t n) {
  backward<Gelu>(dvalue, dgate, dy, value, gate, n);
}
void SwigluBackwardBlock(float* dvalue, float* dgate, const float* dy, const float* value, const float* gate,
                         int64_t n) {
  backward<Silu>(dvalue, dgate, dy, value, gate, n);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(GegluBlock);
HWY_EXPORT(SwigluBlock);
HWY_EXPORT(GegluBackwardBlock);
HWY_EXPORT(SwigluBackwardBlock);

using Pointers = BlockLoop::Pointers;

namespace {

View half(const View& x, int index) { return part_of(x, -1, index * x.dim(-1) / 2, x.dim(-1) / 2); }

}  // namespace

void CpuBackend::geglu(View y, View x) {
  BlockLoop({y}, {half(x, 0), half(x, 1)}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(GegluBlock)(p[0], p[1], p[2], n);
  });
}

void CpuBackend::geglu_backward(View dx, View dy, View x) {
  BlockLoop({half(dx, 0), half(dx, 1)}, {dy, half(x, 0), half(x, 1)}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(GegluBackwardBlock)(p[0], p[1], p[2], p[3], p[4], n);
  });
}

void CpuBackend::swiglu(View y, View x) {
  BlockLoop({y}, {half(x, 1), half(x, 0)}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(SwigluBlock)(p[0], p[1], p[2], n);
  });
}

void CpuBackend::swiglu_backward(View dx, View dy, View x) {
  BlockLoop({half(dx, 1), half(dx, 0)}, {dy, half(x, 1), half(x, 0)}).run([=](const Pointers& p, int64_t n, int64_t) {
    HWY_DYNAMIC_DISPATCH(SwigluBackwardBlock)(p[0], p[1], p[2], p[3], p[4], n);
  });
}

}  // namespace wick
#endif  // HWY_ONCE
