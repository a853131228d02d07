// Activation functions in f32, to a few ulp. NaN gives NaN.
#pragma once

#include <cmath>

namespace wick {

// The fast division is good to 2 ulp, and gives 0 where 1 + exp(-x) is beyond 2^126.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1, 1 + expf(-x)); }

// To 2^-20, where |x| < 20; half of the instructions.
__device__ __forceinline__ float fast_sigmoid(float x) {
  constexpr float kLog2E = 1.44269504f;
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -kLog2E));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + power));
  return inverse;
}

// The derivative of x sigmoid(v(x)), given s = sigmoid(v) and v's derivative.
__device__ __forceinline__ float gated_slope(float x, float s, float v_slope) {
  return fmaf(x * v_slope * s, 1 - s, s);
}

struct Normal {
  float cdf, pdf;
};

// The standard normal distribution, as on the CPU (cpu/simd-inl.h): the tail is pdf * t P(t) with
// t = 1 / (1 + 0.35 |x|), and its relative error 6e-7 on both sides, where 1 + erf(x) would lose all digits on one.
__device__ __forceinline__ Normal normal_distribution(float x) {
  const float t = __fdividef(1, fmaf(0.35f, fabsf(x), 1));  // to 2^-23; rounded exactly it takes as long as the rest
  const float e = expf(x * x * -0.5f);
  float p = fmaf(-0.029679522f, t, 0.14654583f);
  p = fmaf(p, t, -0.260961228f);
  p = fmaf(p, t, 0.165050996f);
  p = fmaf(p, t, -0.0270466082f);
  p = fmaf(p, t, 0.107114588f);
  p = fmaf(p, t, 0.119444917f);
  p = fmaf(p, t, 0.139912298f);
  p = fmaf(p, t, 0.139618713f);
  const float tail = p * t * e;
  return {x > 0 ? 1 - tail : tail, e * 0.398942280f};
}

}  // namespace wick
