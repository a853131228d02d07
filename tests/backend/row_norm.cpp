// Norms of rows against double precision, with and without weights and modulation.
#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;
struct Problem {
  int64_t batch, tokens, width;
  double eps;
  bool centred;
  Tensor x, dy, w, b, scale, shift;  // the last four may be empty
  Tensor residual = {};              // and this, which is added to dx
};

struct Reference {
  Doubles y, mean, rstd, dx, dw, db, dscale, dshift;
  double worst = 1;  // the largest rstd: rows of few elements can have a tiny deviation
};

Doubles doubles_or(const Tensor& t, int64_t count, double otherwise) {
  return t ? doubles(t) : Doubles(size_t(count), otherwise);
}

Reference reference(const Problem& p) {
  const size_t n = size_t(p.width);
  const Doubles x = doubles(p.x), dy = doubles(p.dy);
  const Doubles w = doubles_or(p.w, p.width, 1), b = doubles_or(p.b, p.width, 0);
  const Doubles scale = doubles_or(p.scale, p.batch * p.width, 0), shift = doubles_or(p.shift, p.batch * p.width, 0);
  const Doubles residual = doubles_or(p.residual, int64_t(x.size()), 0);
  Reference r{x, {}, {}, x, Doubles(n), Doubles(n), Doubles(scale.size()), Doubles(scale.size())};
  for (size_t row = 0; row < x.size() / n; ++row) {
    const size_t first = row * n, image = row / size_t(p.tokens) * n;
    double mean = 0, square = 0, sum_g = 0, sum_gx = 0;
    for (size_t i = 0; i < n && p.centred; ++i) mean += x[first + i] / double(n);
    for (size_t i = 0; i < n; ++i) square += (x[first + i] - mean) * (x[first + i] - mean) / double(n);
    const double rstd = 1 / std::sqrt(square + p.eps);
    for (size_t i = 0; i < n; ++i) {
      const double x_hat = (x[first + i] - mean) * rstd, normed = x_hat * w[i] + b[i], m = 1 + scale[image + i];
      const double g = dy[first + i] * m;
      r.y[first + i] = normed * m + shift[image + i];
      r.dw[i] += g * x_hat;
      r.db[i] += g;
      r.dscale[image + i] += dy[first + i] * normed;
      r.dshift[image + i] += dy[first + i];
      sum_g += g * w[i] / double(n);
      sum_gx += g * w[i] * x_hat / double(n);
    }
    for (size_t i = 0; i < n; ++i)
      r.dx[first + i] = rstd * (dy[first + i] * (1 + scale[image + i]) * w[i] - (p.centred ? sum_g : 0) -
                                (x[first + i] - mean) * rstd * sum_gx) +
                        residual[first + i];
    r.mean.push_back(mean);
    r.rstd.push_back(rstd);
    r.worst = std::max(r.worst, rstd);
  }
  return r;
}

struct Outputs {
  Tensor y, mean, rstd, dx, dw, db, dscale, dshift;
};

Outputs run(const Problem& p, Layout layout) {
  const Shape shape{p.batch, p.tokens, p.width}, rows{p.batch, p.tokens}, vector{p.width}, images{p.batch, p.width};
  const auto like = [&](const Tensor& t) { return t ? poisoned(t.shape(), layout, t.dtype()) : Tensor(); };
  Outputs o{output(shape, layout),
            p.centred ? poisoned(rows, layout) : Tensor(),
            poisoned(rows, layout),
            output(shape, layout),
            like(p.w),
            like(p.b),
            like(p.scale),
            like(p.shift)};
  const Modulation m{p.scale, p.shift}, dm{o.dscale, o.dshift};
  if (p.centred) {
    backend().layer_norm(
        {.y = o.y, .mean = o.mean, .rstd = o.rstd, .x = p.x, .w = p.w, .b = p.b, .m = m, .eps = float(p.eps)});
    backend().layer_norm_backward({.mean = o.mean, .rstd = o.rstd, .x = p.x, .w = p.w, .b = p.b, .m = m},
                                  {.dx = o.dx, .dw = o.dw, .db = o.db, .dm = dm, .dy = p.dy, .residual = p.residual});
  } else {
    backend().rms_norm({.y = o.y, .rstd = o.rstd, .x = p.x, .w = p.w, .m = m, .eps = float(p.eps)});
    backend().rms_norm_backward({.rstd = o.rstd, .x = p.x, .w = p.w, .m = m},
                                {.dx = o.dx, .dw = o.dw, .dm = dm, .dy = p.dy, .residual = p.residual});
  }
  return o;
}

void expect_right(const Problem& p, const Outputs& o) {
  const Reference r = reference(p);
  const double worst = r.worst, terms = std::sqrt(double(p.batch * p.tokens));
  expect_close(o.y, r.y, 32 * kEps * worst, "y");
  if (o.mean) expect_close(o.mean, r.mean, 2 * kEps, "mean");
  expect_close(o.rstd, r.rstd, 8 * kEps * worst * worst, "rstd");
  expect_close(o.dx, r.dx, 64 * kEps * worst * worst * worst, "dx");
  if (o.dw) expect_close(o.dw, r.dw, 64 * kEps * worst * worst * terms, "dw");
  if (o.db) expect_close(o.db, r.db, 64 * kEps * terms, "db");
  if (o.dscale) expect_close(o.dscale, r.dscale, 64 * kEps * worst * worst * terms, "dscale");
  if (o.dshift) expect_close(o.dshift, r.dshift, 64 * kEps * terms, "dshift");
}

Problem problem(int64_t width, bool centred, int with, Layout layout) {
  Problem p{between(1, 3), between(1, 90), width, double(1e-5f), centred, {}, {}, {}, {}, {}, {}};
  const Shape shape{p.batch, p.tokens, width}, images{p.batch, width};
  p.x = input(shape, layout);
  p.dy = input(shape, layout);
  if (with & 1) p.w = random({width}, layout);
  if (with & 2 && centred) p.b = random({width}, layout);
  const DType modulation = between(0, 1) ? activations() : DType::f32;
  if (with & 4) p.scale = random(images, layout, modulation);
  if (with & 8) p.shift = random(images, layout, modulation);
  if (with & 16) p.residual = input(shape, layout);
  return p;
}

TEST(RowNorm, every_combination_and_layout) {
  for (bool centred : {true, false})
    for (Layout layout : kLayouts)
      for (int with = 0; with < 32; ++with) {
        const Problem p = problem(with % 3 ? between(3, 70) : 8 * between(1, 60), centred, with, layout);
        expect_right(p, run(p, layout));
      }
}

TEST(RowNorm, widths) {
  for (bool centred : {true, false})
    for (int64_t width : {int64_t{2}, int64_t{640}, int64_t{1280}, between(500, 1300), int64_t{3072}, int64_t{8192}}) {
      Problem p = problem(width, centred, width > 2000 ? 29 : 3, Layout::packed);
      expect_right(p, run(p, Layout::packed));
    }
}

// The modulations of MMDiT: columns of a wider row, in the activations' dtype or in f32.
TEST(RowNorm, ModulatedByPartsOfARow) {
  for (const DType modulation : {activations(), DType::f32})
    for (const int64_t width : {1536, 2432, 3072}) {
      Problem p{between(1, 2), between(1, 90), width, double(1e-6f), true, {}, {}, {}, {}, {}, {}};
      const Tensor wide = random({p.batch, 6 * width}, Layout::packed, modulation);
      const auto part = [&](int64_t which) { return wide.window({p.batch, width}, {6 * width, 1}, which * width); };
      p.x = input({p.batch, p.tokens, width});
      p.dy = input(p.x.shape());
      p.scale = part(1);
      p.shift = part(3);
      expect_right(p, run(p, Layout::packed));
    }
}

// The norms of a decoding step, which are all latency.
TEST(RowNorm, of_few_rows_with_a_constant_weight) {
  for (int64_t width : {1296, 2048, 4096, 5120, 8192, 4104})
    for (bool constant : {false, true}) {
      const int64_t rows = between(1, 8);
      const Tensor x = input({1, rows, width}), y = output(x.shape()), rstd = poisoned({1, rows});
      const Tensor w = random({width});
      backend().rms_norm({.y = y, .rstd = rstd, .x = x, .w = constant ? w.constant() : w, .eps = 1e-5f});
      const Reference r = reference({1, rows, width, double(1e-5f), false, x, input(x.shape()), w, {}, {}, {}});
      expect_close(y, r.y, 32 * kEps * r.worst, "y");
      expect_close(rstd, r.rstd, 8 * kEps * r.worst * r.worst, "rstd");
      const Tensor bare = output(x.shape());
      backend().rms_norm({.y = bare, .x = x, .eps = 1e-5f});
      expect_close(bare, reference({1, rows, width, double(1e-5f), false, x, input(x.shape()), {}, {}, {}, {}}).y,
                   32 * kEps * r.worst, "y without a weight");
    }
}

// Rows longer than any block can keep.
TEST(RowNorm, one_very_long_row) {
  for (int64_t width : {40000, 9001}) {
    Problem p{1, 1, width, double(1e-6f), true, input({1, 1, width}), input({1, 1, width}), {}, {}, {}, {}};
    expect_right(p, run(p, Layout::packed));
  }
}

TEST(RowNorm, unwanted_outputs_and_the_same_bits) {
  const Problem p = problem(between(100, 200), true, 15, Layout::packed);
  const Outputs all = run(p, Layout::packed), again = run(p, Layout::packed);
  expect_same_bits(all.dx, again.dx, "dx");
  expect_same_bits(all.dw, again.dw, "dw");
  expect_same_bits(all.dscale, again.dscale, "dscale");
  const Modulation m{p.scale, p.shift};
  const Tensor y = output(p.x.shape()), dx = output(p.x.shape()),
               dshift = poisoned(p.shift.shape(), Layout::packed, p.shift.dtype());
  backend().layer_norm({.y = y, .x = p.x, .w = p.w, .b = p.b, .m = m, .eps = float(p.eps)});
  backend().layer_norm_backward({.mean = all.mean, .rstd = all.rstd, .x = p.x, .w = p.w, .b = p.b, .m = m},
                                {.dx = dx, .dy = p.dy});
  backend().layer_norm_backward({.mean = all.mean, .rstd = all.rstd, .x = p.x, .w = p.w, .b = p.b, .m = m},
                                {.dm = {{}, dshift}, .dy = p.dy});
  expect_same_bits(y, all.y, "y");
  expect_same_bits(dx, all.dx, "dx");
  expect_same_bits(dshift, all.dshift, "dshift");
}

TEST(RowNorm, large_mean) {
  const int64_t width = between(600, 700);
  Problem p{1, 50, width, double(1e-6f), true, input({1, 50, width}), input({1, 50, width}), {}, {}, {}, {}};
  backend().affine(p.x, p.x, std::sqrt(3.0f), 1000);
  p.w = random({width});
  p.b = random({width});
  const Outputs o = run(p, Layout::packed);
  const Reference r = reference(p);
  expect_close(o.y, r.y, 1e-6, "y");
  for (size_t i = 0; i < 50; ++i) EXPECT_NEAR(o.rstd.data<float>()[i], r.rstd[i], 1e-6 * r.rstd[i]);
}

}  // namespace
}  // namespace wick
