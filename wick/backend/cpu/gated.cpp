// Gated activations: one half of a row times a function of the other.
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
void gated_backward(const View& dvalue, const View& dgate, const View& dy, const View& value, const View& gate) {
  BlockLoop({dvalue, dgate}, {dy, value, gate}).run([](const BlockLoop::Pointers& p, int64_t n, int64_t) HWY_ATTR {
    for_columns(n, [&](auto at) HWY_ATTR {
      FloatVec y, slope;
      Gate().with_slope(at.of(p[4]), y, slope);
      const FloatVec g = at.of(p[2]), g_value = hn::Mul(g, at.of(p[3]));
      at.put(hn::Mul(g, y), p[0]);
      at.put(hn::Mul(g_value, slope), p[1]);
    });
  });
}

// y = value * act(gate), act silu or gelu.
void MapGated(Unary act, const View& y, const View& value, const View& gate) {
  act == Unary::gelu ? map(Gated<Gelu>(), y, value, gate) : map(Gated<Silu>(), y, value, gate);
}
void MapGatedBackward(Unary act, const View& dvalue, const View& dgate, const View& dy, const View& value,
                      const View& gate) {
  act == Unary::gelu ? gated_backward<Gelu>(dvalue, dgate, dy, value, gate)
                     : gated_backward<Silu>(dvalue, dgate, dy, value, gate);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(MapGated);
HWY_EXPORT(MapGatedBackward);

void CpuBackend::geglu(View y, View x) { HWY_DYNAMIC_DISPATCH(MapGated)(Unary::gelu, y, half_of(x, 0), half_of(x, 1)); }
void CpuBackend::geglu_backward(View dx, View dy, View x) {
  HWY_DYNAMIC_DISPATCH(MapGatedBackward)(Unary::gelu, half_of(dx, 0), half_of(dx, 1), dy, half_of(x, 0), half_of(x, 1));
}

void CpuBackend::swiglu(View y, View x) {
  HWY_DYNAMIC_DISPATCH(MapGated)(Unary::silu, y, half_of(x, 1), half_of(x, 0));
}
void CpuBackend::swiglu_backward(View dx, View dy, View x) {
  HWY_DYNAMIC_DISPATCH(MapGatedBackward)(Unary::silu, half_of(dx, 1), half_of(dx, 0), dy, half_of(x, 1), half_of(x, 0));
}

}  // namespace wick
#endif  // HWY_ONCE
