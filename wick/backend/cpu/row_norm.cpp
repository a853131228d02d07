// Norms of rows, layer_norm and rms_norm, forward and backward. A modulation makes another weight and bias for each
// image: w * (1 + scale) and b * (1 + scale) + shift.
#include "wick/backend/cpu/channel_sums.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/row_norm.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

// (x - mean)^2, with the mean in two floats.
struct SquaredDistance {
  FloatVec mean, rest;
  HWY_INLINE FloatVec operator()(FloatVec x) const {
    const FloatVec d = hn::Sub(hn::Sub(x, mean), rest);
    return hn::Mul(d, d);
  }
};

// Without `centred` the mean counts as 0.
void NormaliseRow(float* y, float* mean, float* rstd, const float* x, const float* w, const float* b, int64_t n,
                  float eps, bool centred) {
  const double m = centred ? sum_of(Same(), n, x) / double(n) : 0;
  const float high = float(m), low = float(m - double(high));
  const int64_t whole = n / lanes() * lanes();  // the last vector's padding is not at a distance of 0
  double variance = sum_of(SquaredDistance{set(high), set(low)}, whole, x);
  for (int64_t i = whole; i < n; ++i) variance += (double(x[i]) - m) * (double(x[i]) - m);
  const float r = float(1 / __builtin_sqrt(variance / double(n) + double(eps)));
  if (mean) *mean = high;
  if (rstd) *rstd = r;
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec d = hn::Sub(hn::Sub(at.of(x), set(high)), set(low));
    at.put(hn::MulAdd(hn::Mul(d, set(r)), at.of(w), at.of(b)), y);
  });
}

// dx = rstd * (dy w - mean(dy w) - x_hat mean(dy w x_hat)) + residual, which may be null; without a mean of x the term
// mean(dy w) is absent.
void NormaliseRowBackward(float* dx, const float* dy, const float* x, const float* w, const float* residual, float mean,
                          float rstd, int64_t n, bool centred) {
  FloatVec first = set(0), second = first;
  for_columns(n, [&](auto at) HWY_ATTR {  // lanes past the row's end hold dz = 0, and add nothing
    const FloatVec dz = hn::Mul(at.of(dy), at.of(w));
    first = hn::Add(first, dz);
    second = hn::MulAdd(dz, hn::Sub(at.of(x), set(mean)), second);
  });
  WideSum a = WideSum::zero(), b = a;
  a.add(first);
  b.add(second);
  const double r = double(rstd);
  const FloatVec offset = set(centred ? float(a.total() / double(n) * r) : 0);
  const FloatVec slope = set(float(b.total() / double(n) * r * r * r));
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec dz = hn::Mul(at.of(dy), at.of(w)), d = hn::Sub(at.of(x), set(mean));
    const FloatVec more = residual ? at.of(residual) : set(0);
    at.put(hn::Add(hn::NegMulAdd(d, slope, hn::MulSub(dz, set(rstd), offset)), more), dx);
  });
}

// Adds the rows' sums of dy and of dy x_hat.
void RowGradientSums(const ChannelSums& sums, const float* dy, const float* x, const float* mean, const float* rstd,
                     int64_t rows, int64_t n) {
  for_columns(n, [&](auto at) HWY_ATTR {
    FloatVec first = set(0), second = first;
    for (int64_t r = 0; r < rows; ++r) {
      prefetch(x + (rows + r) * n + at.first);
      prefetch(dy + (rows + r) * n + at.first);
      const FloatVec g = at.of(dy + r * n), m = set(mean ? mean[r] : 0);
      first = hn::Add(first, g);
      second = hn::MulAdd(g, hn::Mul(hn::Sub(at.of(x + r * n), m), set(rstd[r])), second);
    }
    add_to(sums.first + at.first, first);
    add_to(sums.second + at.first, second);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(NormaliseRow);
HWY_EXPORT(NormaliseRowBackward);
HWY_EXPORT(RowGradientSums);

namespace {

// Weight and bias of each image; without a modulation all rows are one image.
struct RowAffine {
  int64_t width, images, image_rows;
  std::vector<float> weight, bias, factor;  // factor = 1 + scale, [images, width]
  ChannelTable gain, offset;

  explicit RowAffine(const NormArgs& a)
      : width(a.x.dim(-1)),
        images(a.m.scale || a.m.shift ? a.x.dim(0) : 1),
        image_rows(a.x.numel() / std::max<int64_t>(1, width * images)),
        weight(floats_of(a.w, width, 1)),
        bias(floats_of(a.b, width, 0)),
        factor(floats_of(a.m.scale, images * width, 0)),
        gain(images, width),
        offset(images, width) {
    const std::vector<float> shift = floats_of(a.m.shift, images * width, 0);
    for (size_t i = 0; i < factor.size(); ++i) {
      const size_t c = i % size_t(width);
      factor[i] += 1;
      gain.values[i] = weight[c] * factor[i];
      offset.values[i] = bias[c] * factor[i] + shift[i];
    }
  }
};

void forward(const NormArgs& a, bool centred) {
  if (a.x.numel() == 0) return;
  const RowAffine affine(a);
  const DenseInput input(a.x);
  const DenseOutput output(a.y), means(a.mean), rstds(a.rstd);
  const int64_t n = affine.width;
  parallel_each(affine.images * affine.image_rows, a.x.numel(), [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(NormaliseRow)
    (output.data() + row * n, means.data() ? means.data() + row : nullptr, rstds.data() ? rstds.data() + row : nullptr,
     input.data() + row * n, affine.gain.image(row / affine.image_rows), affine.offset.image(row / affine.image_rows),
     n, a.eps, centred);
  });
  output.finish();
  means.finish();
  rstds.finish();
}

// From the sums of dy and dy x_hat over each image's rows.
void store_affine_gradients(const NormGradients& g, const RowAffine& a, PartialSums& sums) {
  std::vector<double> dweight(size_t(a.width), 0.0), dbias = dweight;
  std::vector<double> dscale(a.factor.size()), dshift = dscale;
  for (int64_t i = 0; i < a.images; ++i) {
    const ChannelSums total = sums.image(i);
    for (int64_t c = 0; c < a.width; ++c) {
      const size_t to = size_t(c), at = size_t(i * a.width + c);
      dweight[to] += total.second[c] * double(a.factor[at]);
      dbias[to] += total.first[c] * double(a.factor[at]);
      dscale[at] = total.second[c] * double(a.weight[to]) + total.first[c] * double(a.bias[to]);
      dshift[at] = total.first[c];
    }
  }
  store_sums(g.dw, dweight);
  store_sums(g.db, dbias);
  store_sums(g.dm.scale, dscale);
  store_sums(g.dm.shift, dshift);
}

// Without a mean x was not centred.
void backward(const NormArgs& a, const NormGradients& g) {
  const RowAffine affine(a);
  const DenseInput input(a.x), gradient(g.dy), means(a.mean), rstds(a.rstd), more(g.residual);
  const int64_t n = affine.width;
  if (g.dx) {
    const DenseOutput output(g.dx);
    parallel_each(affine.images * affine.image_rows, a.x.numel(), [&](int64_t row) {
      HWY_DYNAMIC_DISPATCH(NormaliseRowBackward)
      (output.data() + row * n, gradient.data() + row * n, input.data() + row * n,
       affine.gain.image(row / affine.image_rows), g.residual ? more.data() + row * n : nullptr,
       a.mean ? means.data()[row] : 0, rstds.data()[row], n, bool(a.mean));
    });
    output.finish();
  }
  if (!g.dw && !g.db && !g.dm.scale && !g.dm.shift) return;
  const RowBlocks blocks(affine.images, affine.image_rows, n);
  PartialSums sums(blocks);
  blocks.run([&](int64_t image, int64_t first, int64_t rows, int64_t part) {
    const int64_t row = image * affine.image_rows + first;
    HWY_DYNAMIC_DISPATCH(RowGradientSums)
    (sums.part(part), gradient.data() + row * n, input.data() + row * n, a.mean ? means.data() + row : nullptr,
     rstds.data() + row, rows, n);
  });
  store_affine_gradients(g, affine, sums);
}

}  // namespace

void CpuBackend::layer_norm(const NormArgs& a) { forward(a, true); }
void CpuBackend::layer_norm_backward(const NormArgs& a, const NormGradients& g) { backward(a, g); }
void CpuBackend::rms_norm(const NormArgs& a) { forward(a, false); }
void CpuBackend::rms_norm_backward(const NormArgs& a, const NormGradients& g) { backward(a, g); }

}  // namespace wick
#endif  // HWY_ONCE
