// SIMD building blocks, compiled once for each target. Include inside a foreach_target.h file, after highway.h.
#if defined(WICK_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WICK_SIMD_INL_H_
#undef WICK_SIMD_INL_H_
#else
#define WICK_SIMD_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "wick/backend/cpu/block_loop.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using FloatVec = hn::Vec<Floats>;

HWY_INLINE int64_t lanes() { return int64_t(hn::Lanes(Floats())); }
HWY_INLINE FloatVec set(float value) { return hn::Set(Floats(), value); }
HWY_INLINE FloatVec load(const float* x) { return hn::LoadU(Floats(), x); }
HWY_INLINE void store(FloatVec v, float* y) { hn::StoreU(v, Floats(), y); }

// The first n < lanes() elements, padded with zeros. Touches no memory beyond them.
HWY_INLINE FloatVec load_first(const float* x, int64_t n) {
  const Floats d;
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float padded[hn::MaxLanes(d)] = {};
  std::memcpy(padded, x, size_t(n) * sizeof(float));
  return hn::Load(d, padded);
#else
  return hn::MaskedLoad(hn::FirstN(d, size_t(n)), d, x);
#endif
}

HWY_INLINE void store_first(FloatVec v, float* y, int64_t n) {
  const Floats d;
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN float padded[hn::MaxLanes(d)];
  hn::Store(v, d, padded);
  std::memcpy(y, padded, size_t(n) * sizeof(float));
#else
  hn::BlendedStore(v, hn::FirstN(d, size_t(n)), d, y);
#endif
}

// A vector of columns c, c + 1, ... of rows of floats: a whole one, or the first `count` at a row's end.
struct Columns {
  int64_t first;
  HWY_INLINE FloatVec of(const float* row) const { return load(row + first); }
  HWY_INLINE void put(FloatVec v, float* row) const { store(v, row + first); }
};
struct LastColumns {
  int64_t first, count;
  HWY_INLINE FloatVec of(const float* row) const { return load_first(row + first, count); }
  HWY_INLINE void put(FloatVec v, float* row) const { store_first(v, row + first, count); }
};

template <class F>
HWY_INLINE void for_columns(int64_t n, const F& f) {
  int64_t c = 0;
  for (; c + lanes() <= n; c += lanes()) f(Columns{c});
  if (c < n) f(LastColumns{c, n - c});
}

// y[i] = f(x[i]...). An element's bits depend on its values only, not on its place.
template <class F, class... In>
HWY_INLINE void map(const F& f, float* y, int64_t n, const In*... x) {
  for_columns(n, [&](auto at) HWY_ATTR { at.put(f(at.of(x)...), y); });
}
// The same for views of one shape. y may be one of x.
template <class F, class... X>
void map(const F& f, const View& y, const View& a, const X&... b) {
  BlockLoop({y}, {a, b...}).run([&](const BlockLoop::Pointers& p, int64_t n, int64_t) HWY_ATTR {
    if constexpr (sizeof...(X) == 0)
      map(f, p[0], n, p[1]);
    else
      map(f, p[0], n, p[1], p[2]);
  });
}

using Doubles = hn::ScalableTag<double>;
using DoubleVec = hn::Vec<Doubles>;

// Calls f(first lane, halves...) for the two halves of float vectors, in double precision.
template <class F, class... V>
HWY_INLINE void for_halves(const F& f, V... v) {
  const Doubles wide;
#if HWY_TARGET == HWY_SCALAR
  f(int64_t{0}, hn::PromoteTo(wide, v)...);
#else
  const hn::Half<Floats> half;
  f(int64_t{0}, hn::PromoteTo(wide, hn::LowerHalf(half, v))...);
  f(int64_t(hn::Lanes(wide)), hn::PromoteTo(wide, hn::UpperHalf(half, v))...);
#endif
}

HWY_INLINE void add_to(double* sum, DoubleVec v) {
  const Doubles wide;
  hn::StoreU(hn::Add(hn::LoadU(wide, sum), v), wide, sum);
}

HWY_INLINE void add_to(double* sum, FloatVec v) {
  for_halves([=](int64_t lane, DoubleVec half) HWY_ATTR { add_to(sum + lane, half); }, v);
}

// A running sum of floats in double precision.
struct WideSum {
  DoubleVec sums[2];

  // Not a default initialiser: the compiler's own constructors are built for no target.
  static HWY_INLINE WideSum zero() { return {{hn::Zero(Doubles()), hn::Zero(Doubles())}}; }
  HWY_INLINE void add(FloatVec v) {
    for_halves([this](int64_t lane, DoubleVec half) HWY_ATTR { sums[lane != 0] = hn::Add(sums[lane != 0], half); }, v);
  }
  HWY_INLINE void add(const WideSum& other) {
    sums[0] = hn::Add(sums[0], other.sums[0]);
    sums[1] = hn::Add(sums[1], other.sums[1]);
  }
  HWY_INLINE double total() const { return hn::GetLane(hn::SumOfLanes(Doubles(), hn::Add(sums[0], sums[1]))); }
};

// For softmax: skips NaN, which the exponentials then bring back.
HWY_INLINE float maximum_of(const float* x, int64_t n) {
  const float lowest = -std::numeric_limits<float>::infinity();
  FloatVec maximum = set(lowest);
  int64_t i = 0;
  for (; i + lanes() <= n; i += lanes()) maximum = hn::Max(load(x + i), maximum);
  float result = hn::GetLane(hn::MaxOfLanes(Floats(), maximum));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// Sums f(x[i]...), which must be zero where all x are.
template <class F, class... In>
HWY_INLINE double sum_of(const F& f, int64_t n, const In*... x) {
  const int64_t step = lanes();
  WideSum even = WideSum::zero(), odd = even;
  int64_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    even.add(f(load(x + i)...));
    odd.add(f(load(x + i + step)...));
  }
  for (; i + step <= n; i += step) even.add(f(load(x + i)...));
  if (i < n) odd.add(f(load_first(x + i, n - i)...));
  even.add(odd);
  return even.total();
}

// Sums over rows read down the columns, which the hardware prefetcher does not predict.
HWY_INLINE void prefetch(const float* x) { __builtin_prefetch(x, 0, 2); }

// Highway's Exp is good to 1 ulp but only up to 104; this one overflows to infinity. NaN gives an arbitrary number.
HWY_INLINE FloatVec exp_of_number(FloatVec x) { return hn::Exp(Floats(), hn::Min(x, set(104.0f))); }
HWY_INLINE FloatVec exp(FloatVec x) { return hn::IfThenElse(hn::IsNaN(x), x, exp_of_number(x)); }

HWY_INLINE FloatVec sigmoid(FloatVec x) { return hn::Div(set(1), hn::Add(set(1), exp_of_number(hn::Neg(x)))); }

struct Normal {
  FloatVec cdf, pdf;
};

// The standard normal distribution. The tail is pdf * t P(t) with t = 1 / (1 + 0.35 |x|), P fitted to erfcx at
// Chebyshev nodes over |x| <= 14: relative error 4e-7 on both tails, rounding included.
HWY_INLINE Normal normal_distribution(FloatVec x) {
  const FloatVec t = hn::Div(set(1), hn::MulAdd(set(0.35f), hn::Abs(x), set(1)));
  const FloatVec e = exp_of_number(hn::Mul(hn::Mul(x, x), set(-0.5f)));
  FloatVec p = hn::MulAdd(set(-0.029679522f), t, set(0.14654583f));
  p = hn::MulAdd(p, t, set(-0.260961228f));
  p = hn::MulAdd(p, t, set(0.165050996f));
  p = hn::MulAdd(p, t, set(-0.0270466082f));
  p = hn::MulAdd(p, t, set(0.107114588f));
  p = hn::MulAdd(p, t, set(0.119444917f));
  p = hn::MulAdd(p, t, set(0.139912298f));
  p = hn::MulAdd(p, t, set(0.139618713f));
  const FloatVec tail = hn::Mul(hn::Mul(p, t), e);
  const FloatVec cdf = hn::IfThenElse(hn::Gt(x, set(0)), hn::Sub(set(1), tail), tail);
  return {cdf, hn::Mul(e, set(0.398942280f))};
}

// x Phi(x), and its derivative Phi(x) + x phi(x).
HWY_INLINE FloatVec gelu(FloatVec x) { return hn::Mul(x, normal_distribution(x).cdf); }
HWY_INLINE FloatVec gelu_slope(FloatVec x) {
  const Normal normal = normal_distribution(x);
  return hn::MulAdd(x, normal.pdf, normal.cdf);
}

// The derivative of x sigmoid(v(x)), given s = sigmoid(v) and v's derivative.
HWY_INLINE FloatVec gated_slope(FloatVec x, FloatVec s, FloatVec v_slope) {
  return hn::MulAdd(hn::Mul(hn::Mul(x, v_slope), s), hn::Sub(set(1), s), s);
}
HWY_INLINE FloatVec silu(FloatVec x) { return hn::Mul(x, sigmoid(x)); }
HWY_INLINE FloatVec silu_slope(FloatVec x) { return gated_slope(x, sigmoid(x), set(1)); }

// Functions for map() and sum_of().
struct Same {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return x; }
};
struct Add {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Add(a, b); }
};
struct Mul {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Mul(a, b); }
};
struct Scaled {
  FloatVec scale;
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Mul(x, scale); }
};
struct ExpShifted {
  FloatVec shift;
  HWY_INLINE FloatVec operator()(FloatVec x) const { return exp(hn::Sub(x, shift)); }
};

}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#endif  // WICK_SIMD_INL_H_
