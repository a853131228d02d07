// Group norm against double precision, with and without the fused SiLU.
#include <cmath>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

struct NormReference {
  std::vector<double> y, mean, rstd, dx, dw, db;
};

// Rows of x [B, P, C] are normalised together over all P positions and each of the groups of channels.
struct NormProblem {
  int64_t batch, positions, channels;
  int groups;
  double eps;
  bool silu;
};

NormReference reference(const NormProblem& p, const Tensor& x_tensor, const Tensor& w_tensor, const Tensor& b_tensor,
                        const Tensor& dy_tensor) {
  const std::vector<double> x = doubles(x_tensor), w = doubles(w_tensor), b = doubles(b_tensor),
                            dy = doubles(dy_tensor);
  NormReference r{x, {}, {}, x, std::vector<double>(w.size()), std::vector<double>(w.size())};
  const int64_t width = p.channels / p.groups;
  const double n = double(p.positions * width);
  std::vector<double> dz(x.size());
  for (int64_t i = 0; i < p.batch; ++i)
    for (int g = 0; g < p.groups; ++g) {
      const auto each = [&](auto f) {
        for (int64_t k = 0; k < p.positions; ++k)
          for (int64_t c = g * width; c < (g + 1) * width; ++c)
            f(size_t((i * p.positions + k) * p.channels + c), size_t(c));
      };
      double mean = 0, variance = 0, sum_dz = 0, sum_dzx = 0;
      each([&](size_t j, size_t) { mean += x[j] / n; });
      each([&](size_t j, size_t) { variance += (x[j] - mean) * (x[j] - mean) / n; });
      const double rstd = 1 / std::sqrt(variance + p.eps);
      each([&](size_t j, size_t c) {
        const double x_hat = (x[j] - mean) * rstd, z = x_hat * w[c] + b[c], s = sigmoid(z);
        r.y[j] = p.silu ? z * s : z;
        dz[j] = dy[j] * (p.silu ? s * (1 + z * (1 - s)) : 1);
        r.dw[c] += dz[j] * x_hat;
        r.db[c] += dz[j];
        sum_dz += dz[j] * w[c] / n;
        sum_dzx += dz[j] * w[c] * x_hat / n;
      });
      each([&](size_t j, size_t c) { r.dx[j] = rstd * (dz[j] * w[c] - sum_dz - (x[j] - mean) * rstd * sum_dzx); });
      r.mean.push_back(mean);
      r.rstd.push_back(rstd);
    }
  return r;
}

TEST(GroupNorm, forward_and_backward) {
  for (Layout layout : kLayouts)
    for (bool silu : {false, true})
      for (int64_t width : {1, 2, 3, 10}) {
        const int groups = int(between(1, 32));
        const NormProblem p{between(1, 3), between(1, 7) * between(1, 40), groups * width, groups, 1e-5, silu};
        const Shape shape{p.batch, p.positions, p.channels};
        const Tensor x = input(shape, layout), dy = input(shape, layout), w = random({p.channels}, layout);
        const Tensor b = random({p.channels}, layout), y = output(shape, layout), dx = output(shape, layout);
        const Tensor mean = poisoned({p.batch, groups}, layout), rstd = poisoned({p.batch, groups}, layout);
        const Tensor dw = poisoned({p.channels}, layout), db = poisoned({p.channels}, layout);
        backend().group_norm({.y = y,
                              .mean = mean,
                              .rstd = rstd,
                              .x = x,
                              .w = w,
                              .b = b,
                              .groups = groups,
                              .eps = float(p.eps),
                              .silu = silu});
        backend().group_norm_backward(
            {.mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = groups, .silu = silu},
            {.dx = dx, .dw = dw, .db = db, .dy = dy});
        const NormReference r = reference(p, x, w, b, dy);
        // A group of few elements can have a tiny deviation: errors of x grow by rstd, those of gradients by its
        // square.
        double worst = 1;
        for (double v : r.rstd) worst = std::max(worst, v);
        const double terms = double(p.batch * p.positions);
        expect_close(y, r.y, 16 * kEps * worst, "y");
        // A tree of sums may lose half a bit of elements about 1 at each of its levels.
        expect_close(mean, r.mean, kEps * (2 + std::log2(double(p.positions * width)) / 2), "mean");
        expect_close(rstd, r.rstd, 8 * kEps * worst, "rstd");
        expect_close(dx, r.dx, 32 * kEps * worst * worst * worst, "dx");
        expect_close(dw, r.dw, 16 * kEps * worst * worst * terms, "dw");
        expect_close(db, r.db, 16 * kEps * worst * worst * terms, "db");
      }
}

TEST(GroupNorm, large_images_and_the_same_bits) {
  const NormProblem p{2, between(1500, 2000), 96, 32, 1e-6, true};
  const Shape shape{p.batch, p.positions, p.channels};
  const Tensor x = input(shape), dy = input(shape), w = random({p.channels}), b = random({p.channels});
  std::vector<Tensor> runs[2];
  for (auto& run : runs) {
    const Tensor y = output(shape), dx = output(shape), mean = poisoned({2, 32}), rstd = poisoned({2, 32});
    const Tensor dw = poisoned({p.channels}), db = poisoned({p.channels});
    backend().group_norm({.y = y,
                          .mean = mean,
                          .rstd = rstd,
                          .x = x,
                          .w = w,
                          .b = b,
                          .groups = p.groups,
                          .eps = float(p.eps),
                          .silu = p.silu});
    backend().group_norm_backward(
        {.mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = p.groups, .silu = p.silu},
        {.dx = dx, .dw = dw, .db = db, .dy = dy});
    run = {y, mean, rstd, dx, dw, db};
  }
  const NormReference r = reference(p, x, w, b, dy);
  expect_close(runs[0][0], r.y, 8 * kEps, "y");
  expect_close(runs[0][3], r.dx, 16 * kEps, "dx");
  expect_close(runs[0][4], r.dw, 32 * kEps * std::sqrt(double(p.positions)), "dw");
  expect_close(runs[0][5], r.db, 32 * kEps * std::sqrt(double(p.positions)), "db");
  for (size_t i = 0; i < 6; ++i) expect_same_bits(runs[0][i], runs[1][i], "group_norm");
}

// Groups that lie across packs and tiles, and images that are cut into many chunks.
TEST(GroupNorm, shapes_of_models) {
  for (const auto& [channels, groups] : {std::pair{320, 32}, {960, 32}, {2560, 32}, {128, 32}, {1280, 1}, {37, 37}}) {
    const NormProblem p{2, between(300, 600), channels, groups, 1e-5, true};
    const Shape shape{p.batch, p.positions, p.channels}, statistics{p.batch, groups};
    const Tensor x = input(shape), dy = input(shape), w = random({channels}), b = random({channels});
    const Tensor y = output(shape), dx = output(shape), mean = poisoned(statistics), rstd = poisoned(statistics);
    const Tensor dw = poisoned({channels}), db = poisoned({channels});
    backend().group_norm({.y = y,
                          .mean = mean,
                          .rstd = rstd,
                          .x = x,
                          .w = w,
                          .b = b,
                          .groups = groups,
                          .eps = float(p.eps),
                          .silu = p.silu});
    backend().group_norm_backward(
        {.mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = groups, .silu = p.silu},
        {.dx = dx, .dw = dw, .db = db, .dy = dy});
    const NormReference r = reference(p, x, w, b, dy);
    expect_close(y, r.y, 16 * kEps, "y");
    expect_close(rstd, r.rstd, 8 * kEps, "rstd");
    expect_close(dx, r.dx, 32 * kEps, "dx");
    expect_close(dw, r.dw, 32 * kEps * std::sqrt(double(p.batch * p.positions)), "dw");
    expect_close(db, r.db, 32 * kEps * std::sqrt(double(p.batch * p.positions)), "db");
  }
}

// Images that fit a large device's shared memory, whole or in part: forward, backward, or both.
TEST(GroupNorm, images_of_many_megabytes) {
  for (const NormProblem& p : {NormProblem{1, between(29000, 31000), 320, 32, 1e-5, true},
                               NormProblem{2, between(2400, 2600), 960, 32, 1e-5, true},
                               NormProblem{1, between(3900, 4300), 1280, 1, 1e-5, false}}) {
    const Shape shape{p.batch, p.positions, p.channels}, statistics{p.batch, p.groups};
    const Tensor x = input(shape), dy = input(shape), w = random({p.channels}), b = random({p.channels});
    const Tensor y = output(shape), dx = output(shape), dx_again = output(shape);
    const Tensor mean = poisoned(statistics), rstd = poisoned(statistics);
    const Tensor dw = poisoned({p.channels}), db = poisoned({p.channels});
    backend().group_norm({.y = y,
                          .mean = mean,
                          .rstd = rstd,
                          .x = x,
                          .w = w,
                          .b = b,
                          .groups = p.groups,
                          .eps = float(p.eps),
                          .silu = p.silu});
    backend().group_norm_backward(
        {.mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = p.groups, .silu = p.silu},
        {.dx = dx, .dw = dw, .db = db, .dy = dy});
    backend().group_norm_backward(
        {.mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = p.groups, .silu = p.silu},
        {.dx = dx_again, .dy = dy});
    const NormReference r = reference(p, x, w, b, dy);
    expect_close(y, r.y, 16 * kEps, "y");
    expect_close(rstd, r.rstd, 8 * kEps, "rstd");
    expect_close(dx, r.dx, 32 * kEps, "dx");
    expect_close(dw, r.dw, 32 * kEps * std::sqrt(double(p.batch * p.positions)), "dw");
    expect_close(db, r.db, 32 * kEps * std::sqrt(double(p.batch * p.positions)), "db");
    expect_same_bits(dx, dx_again, "dx");
  }
}

// Statistics to 1e-6 although the mean is a thousand deviations from zero.
TEST(GroupNorm, large_mean) {
  const NormProblem p{2, 1111, 64, 8, 1e-6, false};
  const Shape shape{p.batch, p.positions, p.channels};
  const Tensor x = input(shape), ones = random({p.channels}), y = output(shape);
  backend().affine(x, x, std::sqrt(3.0f), 1000);
  const Tensor mean = poisoned({2, 8}), rstd = poisoned({2, 8});
  backend().group_norm(
      {.y = y, .mean = mean, .rstd = rstd, .x = x, .w = ones, .b = ones, .groups = p.groups, .eps = float(p.eps)});
  const NormReference r = reference(p, x, ones, ones, x);
  expect_close(y, r.y, 1e-6, "y");
  for (size_t i = 0; i < r.rstd.size(); ++i) {
    EXPECT_NEAR(mean.data<float>()[i], r.mean[i], 6e-8 * 1000);
    EXPECT_NEAR(rstd.data<float>()[i], r.rstd[i], 1e-6 * r.rstd[i]);
  }
}

TEST(GroupNorm, unwanted_outputs) {
  const Shape shape{1, 5, 7, 12};
  const Tensor x = input(shape), w = random({12}), b = random({12}), y = output(shape), whole = output(shape);
  const Tensor mean = poisoned({1, 4}), rstd = poisoned({1, 4}), dw = poisoned({12}), dw_alone = poisoned({12});
  const Tensor dx = output(shape), dx_alone = output(shape), db = poisoned({12});
  backend().group_norm(
      {.y = whole, .mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = 4, .eps = 1e-5f, .silu = true});
  backend().group_norm({.y = y, .x = x, .w = w, .b = b, .groups = 4, .eps = 1e-5f, .silu = true});
  expect_same_bits(y, whole, "y");
  backend().group_norm_backward({.mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = 4, .silu = true},
                                {.dx = dx, .dw = dw, .db = db, .dy = y});
  backend().group_norm_backward({.mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = 4, .silu = true},
                                {.dx = dx_alone, .dy = y});
  backend().group_norm_backward({.mean = mean, .rstd = rstd, .x = x, .w = w, .b = b, .groups = 4, .silu = true},
                                {.dw = dw_alone, .dy = y});
  expect_same_bits(dx, dx_alone, "dx");
  expect_same_bits(dw, dw_alone, "dw");
}

// Programmatic dependent launch (PDL): kernels start beside the end of the one before, and still read all of its
// output. First with a read of the device between any two calls, then without.
TEST(GroupNorm, chains_of_norms_of_all_kinds) {
  const int64_t positions = between(2500, 3500), channels = 640;
  const Shape shape{2, positions, channels}, rows{2, positions}, groups{2, 32}, width{channels};
  Memory& memory = test::memory();
  const auto on_device = [&](const Tensor& t) { return t.to(memory); };
  const Tensor x = on_device(input(shape)), w = on_device(random(width)), b = on_device(random(width));
  std::vector<Tensor> t, g, s;
  for (int i = 0; i < 7; ++i) t.push_back(on_device(output(shape)));
  for (int i = 0; i < 4; ++i) g.push_back(on_device(poisoned(width)));
  for (const Shape& of : {rows, rows, rows, groups, groups}) s.push_back(on_device(poisoned(of)));
  bool apart = true;
  Backend& device = test::backend();
  const auto work = [&] {
    const std::function<void()> calls[] = {
        [&] { device.copy(t[0], x); },
        [&] { device.layer_norm({.y = t[1], .mean = s[0], .rstd = s[1], .x = t[0], .w = w, .b = b, .eps = 1e-5f}); },
        [&] { device.rms_norm({.y = t[2], .rstd = s[2], .x = t[1], .w = w, .eps = 1e-5f}); },
        [&] {
          device.group_norm({.y = t[3],
                             .mean = s[3],
                             .rstd = s[4],
                             .x = t[2],
                             .w = w,
                             .b = b,
                             .groups = 32,
                             .eps = 1e-5f,
                             .silu = true});
        },
        [&] {
          device.group_norm_backward(
              {.mean = s[3], .rstd = s[4], .x = t[2], .w = w, .b = b, .groups = 32, .silu = true},
              {.dx = t[4], .dw = g[0], .db = g[1], .dy = t[3]});
        },
        [&] { device.rms_norm_backward({.rstd = s[2], .x = t[1], .w = w}, {.dx = t[5], .dy = t[4]}); },
        [&] {
          device.layer_norm_backward({.mean = s[0], .rstd = s[1], .x = t[0], .w = w, .b = b},
                                     {.dx = t[6], .dw = g[2], .db = g[3], .dy = t[5]});
        },
        [&] {
          device.group_norm({.y = t[5],
                             .mean = s[3],
                             .rstd = s[4],
                             .x = t[6],
                             .w = w,
                             .b = b,
                             .groups = 32,
                             .eps = 1e-5f,
                             .silu = true});
        },
        [&] { device.layer_norm({.y = t[4], .mean = s[0], .rstd = s[1], .x = t[5], .w = w, .b = b, .eps = 1e-5f}); }};
    for (const auto& call : calls) {
      call();
      if (apart) s[0].to(host_memory());
    }
    apart = false;
  };
  std::vector<Tensor> outputs = t;
  outputs.insert(outputs.end(), g.begin(), g.end());
  outputs.insert(outputs.end(), s.begin(), s.end());
  expect_replay(work, outputs);
}

}  // namespace
}  // namespace wick
