// Group normalisation, forward and backward.
//
// It sees an image [B, ..., C] as positions x channels and never gathers a group: all sums are taken per
// channel, along the rows as they lie in memory, and channels are joined into groups afterwards.
#include "wick/backend/cpu/channel_sums.h"
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/targets.h"

#ifndef WICK_BACKEND_CPU_NORM_TYPES
#define WICK_BACKEND_CPU_NORM_TYPES
namespace wick {
namespace {

// y = act((x - mean) * scale + shift), per channel.
struct ChannelAffine {
  const float *mean, *scale, *shift;
  bool silu;
};

// dx = dz * gain - (x - mean) * slope - offset, per channel; dz is dy's gradient at z = (x - mean) * rstd * w + b.
struct ChannelGradient {
  const float *mean, *rstd, *w, *b;
  const float *gain, *slope, *offset;
  bool silu;
};

}  // namespace
}  // namespace wick
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/norm.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

// Adds the rows' sums of x and x^2. The f32 sums are of distances from the block's own mean, so they lose nothing when
// the mean is large against the deviation; the rest is done in double precision.
void GroupStatistics(const ChannelSums& sums, const float* x, int64_t rows, int64_t channels) {
  const FloatVec inverse_rows = set(1 / float(rows));
  const DoubleVec n = hn::Set(Doubles(), double(rows)), two = hn::Set(Doubles(), 2.0);
  for_columns(channels, [&](auto at) HWY_ATTR {
    FloatVec sum = set(0);
    for (int64_t r = 0; r < rows; ++r) {
      prefetch(x + (rows + r) * channels + at.first);
      sum = hn::Add(sum, at.of(x + r * channels));
    }
    const FloatVec pivot = hn::Mul(sum, inverse_rows);
    FloatVec distance = set(0), square = distance;
    for (int64_t r = 0; r < rows; ++r) {
      const FloatVec d = hn::Sub(at.of(x + r * channels), pivot);
      distance = hn::Add(distance, d);
      square = hn::MulAdd(d, d, square);
    }
    const auto join = [&](int64_t lane, DoubleVec p, DoubleVec d, DoubleVec s) HWY_ATTR {
      const DoubleVec np = hn::Mul(n, p);
      add_to(sums.first + at.first + lane, hn::Add(np, d));
      add_to(sums.second + at.first + lane, hn::MulAdd(p, hn::MulAdd(two, d, np), s));
    };
    for_halves(join, pivot, distance, square);
  });
}

template <bool kSilu>
HWY_INLINE void normalise(float* y, const float* x, int64_t rows, int64_t channels, const ChannelAffine& a) {
  for (int64_t r = 0; r < rows; ++r, x += channels, y += channels)
    for_columns(channels, [&](auto at) HWY_ATTR {
      const FloatVec z = hn::MulAdd(hn::Sub(at.of(x), at.of(a.mean)), at.of(a.scale), at.of(a.shift));
      at.put(kSilu ? silu(z) : z, y);
    });
}

void GroupNormalise(float* y, const float* x, int64_t rows, int64_t channels, const ChannelAffine& a) {
  a.silu ? normalise<true>(y, x, rows, channels, a) : normalise<false>(y, x, rows, channels, a);
}

// Adds the rows' sums of dz and dz * x_hat, and keeps dz if it is wanted and is not dy itself.
template <bool kSilu>
HWY_INLINE void gradient_sums(const ChannelSums& sums, float* dz, const float* dy, const float* x, int64_t rows,
                              int64_t channels, const ChannelGradient& n) {
  for_columns(channels, [&](auto at) HWY_ATTR {
    const FloatVec mean = at.of(n.mean), rstd = at.of(n.rstd), w = at.of(n.w), b = at.of(n.b);
    FloatVec first = set(0), second = first;
    for (int64_t r = 0; r < rows; ++r) {
      prefetch(x + (rows + r) * channels + at.first);
      prefetch(dy + (rows + r) * channels + at.first);
      const FloatVec x_hat = hn::Mul(hn::Sub(at.of(x + r * channels), mean), rstd);
      FloatVec g = at.of(dy + r * channels);
      if (kSilu) {
        g = hn::Mul(g, silu_slope(hn::MulAdd(x_hat, w, b)));
        if (dz) at.put(g, dz + r * channels);
      }
      first = hn::Add(first, g);
      second = hn::MulAdd(g, x_hat, second);
    }
    add_to(sums.first + at.first, first);
    add_to(sums.second + at.first, second);
  });
}

void GroupGradientSums(const ChannelSums& sums, float* dz, const float* dy, const float* x, int64_t rows,
                       int64_t channels, const ChannelGradient& n) {
  n.silu ? gradient_sums<true>(sums, dz, dy, x, rows, channels, n)
         : gradient_sums<false>(sums, dz, dy, x, rows, channels, n);
}

void GroupInputGradient(float* dx, const float* dz, const float* x, int64_t rows, int64_t channels,
                        const ChannelGradient& n) {
  for (int64_t r = 0; r < rows; ++r, x += channels, dz += channels, dx += channels)
    for_columns(channels, [&](auto at) HWY_ATTR {
      const FloatVec d = hn::Sub(at.of(x), at.of(n.mean));
      at.put(hn::NegMulAdd(d, at.of(n.slope), hn::MulSub(at.of(dz), at.of(n.gain), at.of(n.offset))), dx);
    });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cassert>
#include <cmath>

namespace wick {

HWY_EXPORT(GroupStatistics);
HWY_EXPORT(GroupNormalise);
HWY_EXPORT(GroupGradientSums);
HWY_EXPORT(GroupInputGradient);

namespace {

float& at(const View& v, int64_t i, int64_t j) { return v.as<float>()[i * v.stride[0] + j * v.stride[1]]; }

RowBlocks image_rows(const View& x) {
  const int64_t batch = x.dim(0), channels = x.dim(-1);
  return {batch, x.numel() / std::max<int64_t>(1, batch * channels), channels};
}

struct GradientTables {
  ChannelTable mean, rstd, gain, slope, offset;

  // From one value per group [B, groups] to one per channel.
  GradientTables(const View& means, const View& rstds, const ChannelTable& zeros)
      : mean(zeros), rstd(zeros), gain(zeros), slope(zeros), offset(zeros) {
    const int64_t width = zeros.channels / means.dim(1);
    for (int64_t i = 0; i < means.dim(0); ++i)
      for (int64_t c = 0; c < zeros.channels; ++c) {
        mean.image(i)[c] = at(means, i, c / width);
        rstd.image(i)[c] = at(rstds, i, c / width);
      }
  }

  // dx = rstd * (dz w - mean(dz w) - x_hat mean(dz w x_hat)), the means over the n elements of a group.
  void join_group(int64_t i, int64_t begin, int64_t end, const ChannelSums& sums, const std::vector<float>& w,
                  double n) {
    double first = 0, second = 0;
    for (int64_t c = begin; c < end; ++c) {
      first += sums.first[c] * double(w[size_t(c)]);
      second += sums.second[c] * double(w[size_t(c)]);
    }
    const double r = double(rstd.image(i)[begin]);
    for (int64_t c = begin; c < end; ++c) {
      gain.image(i)[c] = float(r * double(w[size_t(c)]));
      slope.image(i)[c] = float(r * r * second / n);
      offset.image(i)[c] = float(r * first / n);
    }
  }

  ChannelGradient image(int64_t i, const std::vector<float>& w, const std::vector<float>& b, bool silu) const {
    return {mean.image(i), rstd.image(i), w.data(), b.data(), gain.image(i), slope.image(i), offset.image(i), silu};
  }
};

}  // namespace

void CpuBackend::group_norm(const GroupNormArgs& a) {
  const RowBlocks blocks = image_rows(a.x);
  if (a.x.numel() == 0) return;
  const int64_t channels = blocks.channels, width = channels / a.groups, image = blocks.rows * channels;
  assert(channels % a.groups == 0);
  const DenseInput input(a.x);
  const DenseOutput output(a.y);
  PartialSums sums(blocks);
  blocks.run([&](int64_t i, int64_t row, int64_t rows, int64_t part) {
    HWY_DYNAMIC_DISPATCH(GroupStatistics)(sums.part(part), input.data() + i * image + row * channels, rows, channels);
  });

  const std::vector<float> weight = floats_of(a.w, channels, 1), bias = floats_of(a.b, channels, 0);
  ChannelTable means(blocks.batch, channels), scales(blocks.batch, channels), shifts(blocks.batch, channels);
  for (int64_t i = 0; i < blocks.batch; ++i) {
    const ChannelSums total = sums.image(i);
    for (int64_t g = 0; g < a.groups; ++g) {
      double first = 0, second = 0;
      for (int64_t c = g * width; c < (g + 1) * width; ++c) first += total.first[c], second += total.second[c];
      const double n = double(blocks.rows * width), m = first / n, variance = std::max(0.0, second / n - m * m);
      const double r = 1 / std::sqrt(variance + double(a.eps));
      if (a.mean) at(a.mean, i, g) = float(m);
      if (a.rstd) at(a.rstd, i, g) = float(r);
      for (int64_t c = g * width; c < (g + 1) * width; ++c) {
        const double scale = r * double(weight[size_t(c)]);
        means.image(i)[c] = float(m);
        scales.image(i)[c] = float(scale);
        shifts.image(i)[c] = float(double(bias[size_t(c)]) - (m - double(float(m))) * scale);
      }
    }
  }
  blocks.run([&](int64_t i, int64_t row, int64_t rows, int64_t) {
    const int64_t offset = i * image + row * channels;
    HWY_DYNAMIC_DISPATCH(GroupNormalise)
    (output.data() + offset, input.data() + offset, rows, channels,
     {means.image(i), scales.image(i), shifts.image(i), a.silu});
  });
  output.finish();
}

void CpuBackend::group_norm_backward(const GroupNormArgs& a, const NormGradients& grads) {
  const RowBlocks blocks = image_rows(a.x);
  const int64_t channels = blocks.channels, width = channels / a.groups, image = blocks.rows * channels;
  const DenseInput input(a.x), gradient(grads.dy);
  const DenseOutput output(grads.dx);
  const std::vector<float> weight = floats_of(a.w, channels, 1), bias = floats_of(a.b, channels, 0);
  GradientTables tables(a.mean, a.rstd, ChannelTable(blocks.batch, channels));
  PartialSums sums(blocks);
  blocks.run([&](int64_t i, int64_t row, int64_t rows, int64_t part) {
    const int64_t offset = i * image + row * channels;
    float* dz = output.data() ? output.data() + offset : nullptr;
    HWY_DYNAMIC_DISPATCH(GroupGradientSums)
    (sums.part(part), dz, gradient.data() + offset, input.data() + offset, rows, channels,
     tables.image(i, weight, bias, a.silu));
  });

  std::vector<double> dweight(size_t(channels), 0.0), dbias(size_t(channels), 0.0);
  for (int64_t i = 0; i < blocks.batch; ++i) {
    const ChannelSums total = sums.image(i);
    for (int64_t c = 0; c < channels; ++c) dbias[size_t(c)] += total.first[c], dweight[size_t(c)] += total.second[c];
    for (int64_t g = 0; g < a.groups; ++g)
      tables.join_group(i, g * width, (g + 1) * width, total, weight, double(blocks.rows * width));
  }
  store_sums(grads.dw, dweight);
  store_sums(grads.db, dbias);
  if (!grads.dx) return;
  const float* dz = a.silu ? output.data() : gradient.data();
  blocks.run([&](int64_t i, int64_t row, int64_t rows, int64_t) {
    const int64_t offset = i * image + row * channels;
    HWY_DYNAMIC_DISPATCH(GroupInputGradient)
    (output.data() + offset, dz + offset, input.data() + offset, rows, channels, tables.image(i, weight, bias, a.silu));
  });
  output.finish();
}

}  // namespace wick
#endif  // HWY_ONCE
