// Rotary positions: pairs of features turned by given angles.
#include <cmath>
#include <utility>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/rope.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE void turn(FloatVec a, FloatVec b, FloatVec cos, FloatVec sin, FloatVec& first, FloatVec& second) {
  first = hn::NegMulAdd(b, sin, hn::Mul(a, cos));
  second = hn::MulAdd(a, sin, hn::Mul(b, cos));
}

// `half` pairs; direction is 1 or -1.
HWY_INLINE void turn_halves(float* y, const float* x, const float* cos, const float* sin, int64_t half,
                            float direction) {
  for_columns(half, [&](auto at) HWY_ATTR {
    FloatVec first, second;
    turn(at.of(x), at.of(x + half), at.of(cos), hn::Mul(at.of(sin), set(direction)), first, second);
    at.put(first, y);
    at.put(second, y + half);
  });
}

HWY_INLINE void turn_neighbours(float* y, const float* x, const float* cos, const float* sin, int64_t half,
                                float direction) {
  const Floats d;
  int64_t i = 0;
  for (; i + lanes() <= half; i += lanes()) {
    FloatVec a, b, first, second;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    turn(a, b, load(cos + i), hn::Mul(load(sin + i), set(direction)), first, second);
    hn::StoreInterleaved2(first, second, d, y + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], s = sin[i] * direction;
    y[2 * i] = a * cos[i] - b * s;
    y[2 * i + 1] = a * s + b * cos[i];
  }
}

// All heads of a token.
void TurnToken(RopePairs pairs, float* y, const float* x, const float* cos, const float* sin, int64_t heads,
               int64_t half, float direction) {
  for (int64_t head = 0; head < heads; ++head, y += 2 * half, x += 2 * half)
    pairs == RopePairs::halves ? turn_halves(y, x, cos, sin, half, direction)
                               : turn_neighbours(y, x, cos, sin, half, direction);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(TurnToken);

namespace {

// The tokens of a view [B, T, H, D], each one row of f32: in place where they are that, else through a copy.
template <class Dense>
class Tokens {
 public:
  explicit Tokens(const View& v)
      : in_place_(v.dtype == DType::f32 && v.stride[3] == 1 && v.stride[2] == v.shape[3]),
        dense_(in_place_ ? View{} : v),
        data_(in_place_ ? v.as<float>() : dense_.data()),
        tokens_(v.shape[1]),
        token_(in_place_ ? v.stride[1] : v.shape[2] * v.shape[3]),
        image_(in_place_ ? v.stride[0] : tokens_ * token_) {}
  auto operator[](int64_t i) const { return data_ + i / tokens_ * image_ + i % tokens_ * token_; }
  void finish() const { dense_.finish(); }

 private:
  bool in_place_;
  Dense dense_;
  decltype(std::declval<const Dense&>().data()) data_;
  int64_t tokens_, token_, image_;  // strides, the last two
};

}  // namespace

void CpuBackend::rope(View y, View x, View cos, View sin, RopePairs pairs, bool inverse) {
  if (x.numel() == 0) return;
  const Tokens<DenseInput> input(x);
  const Tokens<DenseOutput> output(y);
  const DenseInput cosines(cos), sines(sin);
  const int64_t tokens = x.dim(1), heads = x.dim(2), half = x.dim(3) / 2;
  const float direction = inverse ? -1 : 1;
  parallel_each(x.dim(0) * tokens, x.numel(), [&](int64_t token) {
    const int64_t angle = (cos.rank() == 3 ? token : token % tokens) * half;
    HWY_DYNAMIC_DISPATCH(TurnToken)
    (pairs, output[token], input[token], cosines.data() + angle, sines.data() + angle, heads, half, direction);
  });
  output.finish();
}

void CpuBackend::rope_angles(View cos, View sin, View positions, View frequencies) {
  const int64_t pairs = frequencies.numel();
  const int32_t* const position = positions.as<const int32_t>();
  const float* const frequency = frequencies.as<const float>();
  constexpr int64_t kWork = 8;  // of an angle, in elements of simpler operations
  parallel_each(positions.numel(), kWork * cos.numel(), [&](int64_t i) {
    for (int64_t j = 0; j < pairs; ++j) {
      const float angle = float(position[i]) * frequency[j];
      cos.as<float>()[i * pairs + j] = std::cos(angle);
      sin.as<float>()[i * pairs + j] = std::sin(angle);
    }
  });
}

}  // namespace wick
#endif  // HWY_ONCE
