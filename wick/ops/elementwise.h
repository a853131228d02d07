// Elementwise operations. Operands broadcast as in NumPy; gradients are summed back over broadcast axes.
#pragma once

#include "wick/autograd/tape.h"

namespace wick {

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor affine(const Tensor& x, float scale, float shift);  // scale * x + shift
Tensor clamp(const Tensor& x, float min, float max);       // no gradient outside

Tensor silu(const Tensor& x);        // x * sigmoid(x)
Tensor gelu(const Tensor& x);        // x * Phi(x), with erf
Tensor gelu_tanh(const Tensor& x);   // the tanh approximation
Tensor quick_gelu(const Tensor& x);  // x * sigmoid(1.702 x), CLIP-L's
Tensor exp(const Tensor& x);
Tensor square(const Tensor& x);
Tensor rsqrt(const Tensor& x);  // 1 / sqrt(x)

Tensor sum(const Tensor& x);                         // all elements, to shape [1]
Tensor sum_to(const Tensor& x, const Shape& shape);  // the inverse of broadcasting to x's shape
Tensor mean(const Tensor& x);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, float b) { return affine(a, b, 0); }
inline Tensor operator*(float a, const Tensor& b) { return affine(b, a, 0); }
inline Tensor operator+(const Tensor& a, float b) { return affine(a, 1, b); }

}  // namespace wick
