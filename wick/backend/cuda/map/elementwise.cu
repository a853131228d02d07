// Elementwise kernels. y may be x (or a, b) in unary, binary, affine and accumulate.
#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/map/map.cuh"

namespace wick {
namespace {

// Each function of Unary with its derivative.
struct Silu {
  __device__ float operator()(float x) const { return __fdividef(x, 1 + expf(-x)); }
  __device__ float slope(float x) const { return gated_slope(x, sigmoid(x), 1); }
};

struct Gelu {
  __device__ float operator()(float x) const { return x * normal_distribution(x).cdf; }
  __device__ float slope(float x) const {
    const Normal normal = normal_distribution(x);
    return fmaf(x, normal.pdf, normal.cdf);
  }
};

// 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3). For results in 16 bits instructions would
// take as long as bytes with the exact sigmoid.
template <bool kIn16Bits>
struct GeluTanh {
  static constexpr float kLinear = 1.5957691216f, kCubic = 0.0713548163f;
  __device__ float gate(float x) const {
    const float v = x * fmaf(x * x, kCubic, kLinear);
    return kIn16Bits ? fast_sigmoid(v) : sigmoid(v);
  }
  __device__ float operator()(float x) const { return x * gate(x); }
  __device__ float slope(float x) const { return gated_slope(x, gate(x), fmaf(x * x, 3 * kCubic, kLinear)); }
};

struct QuickGelu {
  __device__ float gate(float x) const { return sigmoid(1.702f * x); }
  __device__ float operator()(float x) const { return x * gate(x); }
  __device__ float slope(float x) const { return gated_slope(x, gate(x), 1.702f); }
};

struct Exp {
  __device__ float operator()(float x) const { return expf(x); }
  __device__ float slope(float x) const { return expf(x); }
};

struct Square {
  __device__ float operator()(float x) const { return x * x; }
  __device__ float slope(float x) const { return x + x; }
};

struct Rsqrt {
  __device__ float operator()(float x) const { return 1 / sqrtf(x); }
  __device__ float slope(float x) const { return -0.5f * (*this)(x) / x; }
};

template <class F>
struct Backward {
  __device__ float operator()(float dy, float x) const { return dy * F().slope(x); }
};

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct AddThree {
  __device__ float operator()(float a, float b, float c) const { return a + b + c; }
};
struct Sub {
  __device__ float operator()(float a, float b) const { return a - b; }
};
struct Mul {
  __device__ float operator()(float a, float b) const { return a * b; }
};

struct Affine {
  float scale, shift;
  __device__ float operator()(float x) const { return fmaf(scale, x, shift); }
};

// By comparisons, which leave a NaN as it is.
struct Clamp {
  float min, max;
  __device__ float operator()(float x) const { return x < min ? min : x > max ? max : x; }
};

struct ClampBackward {
  float min, max;
  __device__ float operator()(float dy, float x) const { return min <= x && x <= max ? dy : 0; }
};

struct Accumulate {
  float scale;
  __device__ float operator()(float y, float x) const { return fmaf(scale, x, y); }
};

// For results of a dtype.
template <class F>
void with_function(Unary op, DType dtype, F&& f) {
  switch (op) {
    case Unary::silu:
      return f(Silu());
    case Unary::gelu:
      return f(Gelu());
    case Unary::gelu_tanh:
      return dtype == DType::f32 ? f(GeluTanh<false>()) : f(GeluTanh<true>());
    case Unary::quick_gelu:
      return f(QuickGelu());
    case Unary::exp:
      return f(Exp());
    case Unary::square:
      return f(Square());
    case Unary::rsqrt:
      return f(Rsqrt());
  }
}

template <size_t N>
using Views = std::array<View, N>;

}  // namespace

void CudaBackend::unary(Unary op, View y, View x) {
  with_function(op, y.dtype, [&](auto f) { map(*this, "unary", f, Views<2>{y, x}); });
}

void CudaBackend::unary_backward(Unary op, View dx, View dy, View x) {
  with_function(op, dx.dtype, [&](auto f) {
    map(*this, "unary_backward", Backward<decltype(f)>(), Views<3>{dx, dy, x});
  });
}

void CudaBackend::binary(Binary op, View y, View a, View b) {
  switch (op) {
    case Binary::add:
      return map(*this, "add", Add(), Views<3>{y, a, b});
    case Binary::sub:
      return map(*this, "sub", Sub(), Views<3>{y, a, b});
    case Binary::mul:
      return map(*this, "mul", Mul(), Views<3>{y, a, b});
  }
}

void CudaBackend::add(View y, View a, View b, View c) { map(*this, "add", AddThree(), Views<4>{y, a, b, c}); }

void CudaBackend::affine(View y, View x, float scale, float shift) {
  map(*this, "affine", Affine{scale, shift}, Views<2>{y, x});
}

void CudaBackend::clamp(View y, View x, float min, float max) { map(*this, "clamp", Clamp{min, max}, Views<2>{y, x}); }

void CudaBackend::clamp_backward(View dx, View dy, View x, float min, float max) {
  map(*this, "clamp_backward", ClampBackward{min, max}, Views<3>{dx, dy, x});
}

void CudaBackend::accumulate(View y, View x, float scale) {
  map(*this, "accumulate", Accumulate{scale}, Views<3>{y, y, x});
}

}  // namespace wick
