#include <fmt/core.h>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

LoraFactors factors(const Tensor& down, const Tensor& up, float scale) { return {down, {{up, 0, 0, scale}}}; }

struct Extents {
  int64_t m, k, n, r;
};

// A linear with LoRA in double precision: x [m, k], dy [m, n], w [n, k] and bias, which may be empty, down [r, k], up
// [n, r].
struct Results {
  Doubles y, s, dx, ddown, dup;

  Results(const Extents& extents, const Tensor& x, const Tensor& dy, const Tensor& w, const Tensor& bias,
          const Tensor& down, const Tensor& up, double scale) {
    const auto [m, k, n, r] = extents;
    const Doubles xs = doubles(x), dys = doubles(dy), downs = doubles(down), ups = doubles(up);
    const Matrix a = by_rows(xs, m, k), da = by_rows(dys, m, n), d = by_rows(downs, r, k), u = by_rows(ups, n, r);
    s = times(a, d.transposed());
    const Doubles ds = times(da, u, scale);
    y = times(by_rows(s, m, r), u.transposed(), scale);
    dx = times(by_rows(ds, m, r), d);
    ddown = times(by_rows(ds, m, r).transposed(), a);
    dup = times(da.transposed(), by_rows(s, m, r), scale);
    if (w) {
      const Doubles ws = doubles(w);
      add_product(y.data(), n, a, by_rows(ws, n, k).transposed());
      add_product(dx.data(), k, da, by_rows(ws, n, k));
    }
    const Doubles shift = bias ? doubles(bias) : Doubles(size_t(n), 0.0);
    for (size_t i = 0; i < y.size(); ++i) y[i] += shift[i % size_t(n)];
  }
};

struct Case {
  int64_t batch, tokens, n, k, rank;
  Layout layout;
  DType weights;
  float scale = 0.75f;

  Tensor x = random({batch, tokens, k}, layout), dy = random({batch, tokens, n}, layout);
  Tensor w = random({n, k}, Layout::packed, weights), bias = random({n});
  Tensor down = random({rank, k}, layout), up = random({n, rank}, layout);
  int64_t m = batch * tokens;
  LoraFactors lora() const { return factors(down, up, scale); }

  Results results() const { return {{m, k, n, rank}, x, dy, w, bias, down, up, scale}; }
  // Two products in a row, the inner one of a length L: its error grows into the outer sum of length O.
  double tolerance(int64_t inner, int64_t outer) const {
    return kEps * double(inner + outer + 8) * std::sqrt(double(inner + outer));
  }
};

Case random_case(DType weights = DType::f32) {
  return {between(1, 3),  between(1, 40),           between(1, 90), between(1, 120),
          between(1, 20), kLayouts[rng().below(4)], weights};
}

Doubles sum_of(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST(LoraLinear, Forward) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int round = 0; round < 6; ++round) {
      const Case c = random_case(dtype);
      const Tensor y = poisoned({c.batch, c.tokens, c.n}, c.layout),
                   s = poisoned({c.batch, c.tokens, c.rank}, c.layout);
      const Results want = c.results();
      backend().lora_linear({.y = y, .s = s, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora()});
      expect_close(y, want.y, c.tolerance(c.k, c.rank), "y");
      expect_close(s, want.s, c.tolerance(c.k, 0), "s");
      const Tensor unsaved = poisoned({c.batch, c.tokens, c.n});
      backend().lora_linear({.y = unsaved, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora()});
      expect_close(unsaved, want.y, c.tolerance(c.k, c.rank), "y without s");
      const Tensor residual = random({c.batch, c.tokens, c.n}, c.layout);
      backend().lora_linear({.y = unsaved, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora(), .residual = residual});
      expect_close(unsaved, sum_of(want.y, doubles(residual)), c.tolerance(c.k, c.rank), "y with a residual");
    }
}

TEST(LoraLinear, BackwardAndEachOutputUnwanted) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (int wanted = 0; wanted < 8; ++wanted) {
      const Case c = random_case(dtype);
      const Tensor s = poisoned({c.batch, c.tokens, c.rank}), y = poisoned({c.batch, c.tokens, c.n});
      backend().lora_linear({.y = y, .s = s, .x = c.x, .w = c.w, .lora = c.lora()});
      const Tensor dx = wanted & 1 ? poisoned({c.batch, c.tokens, c.k}, c.layout) : Tensor();
      const Tensor ddown = wanted & 2 ? poisoned({c.rank, c.k}, c.layout) : Tensor();
      const Tensor dup = wanted & 4 ? poisoned({c.n, c.rank}, c.layout) : Tensor();
      backend().lora_linear_backward({.s = s, .x = c.x, .w = c.w, .lora = c.lora()},
                                     {.dx = dx, .ddown = ddown, .dups = {dup}, .dy = c.dy});
      const Results want = c.results();
      if (dx) expect_close(dx, want.dx, c.tolerance(c.n, c.rank), "dx");
      if (ddown) expect_close(ddown, want.ddown, c.tolerance(c.n, c.m), "ddown");
      if (dup) expect_close(dup, want.dup, c.tolerance(c.k, c.m), "dup");
    }
}

// Distance of a whole tensor from the reference, relative to the norm of the terms of its sums, whose squares add up to
// `squares`: a sum may cancel, the errors of its terms do not. NaN is far away.
void expect_near(const Tensor& got, const Doubles& want, const Doubles& squares, double tolerance, const char* what) {
  const std::vector<float> values = got.to_vector();
  ASSERT_EQ(values.size(), want.size()) << what;
  double error = 0, spread = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (values[i] - want[i]) * (values[i] - want[i]);
    spread += squares[i];
  }
  EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(spread)) << what << " " << to_string(got.shape());
}

// Element by element; of no tensor, none.
Tensor squared(const Tensor& t) {
  if (!t) return t;
  std::vector<float> values = t.to_vector();
  for (float& v : values) v *= v;
  return Tensor::of(values, t.shape());
}

// All calls of one linear, in the activations' dtype.
void check_linear(const Extents& extents, Layout layout, DType factor_dtype, bool biased) {
  const DType dtype = activations();
  const double tolerance = std::max(2 * unit_roundoff(dtype), 3e-6);
  const auto [m, k, n, r] = extents;
  const float scale = 0.75f;
  SCOPED_TRACE(::testing::Message() << "m " << m << " k " << k << " n " << n << " rank " << r);
  const Tensor x = input({m, k}, layout), dy = input({m, n}, layout), w = random({n, k}, Layout::packed, dtype);
  const Tensor down = random({r, k}, Layout::packed, factor_dtype), up = random({n, r}, Layout::packed, factor_dtype);
  const Tensor bias = biased ? random({n}) : Tensor();
  const Results want(extents, x, dy, w, bias, down, up, scale),
      squares(extents, squared(x), squared(dy), squared(w), squared(bias), squared(down), squared(up), scale * scale);
  const Tensor y = poisoned({m, n}, layout, dtype), s = poisoned({m, r}, Layout::packed, dtype);
  backend().lora_linear({.y = y, .s = s, .x = x, .w = w, .bias = bias, .lora = factors(down, up, scale)});
  expect_near(y, want.y, squares.y, tolerance, "y");
  expect_near(s, want.s, squares.s, tolerance, "s");
  const Tensor y_again = poisoned({m, n}, layout, dtype);
  backend().lora_linear({.y = y_again, .s = s, .x = x, .w = w, .bias = bias, .lora = factors(down, up, scale)});
  expect_same_bits(y_again, y, "y");
  const Tensor residual = input({m, n}, layout);
  backend().lora_linear(
      {.y = y_again, .x = x, .w = w, .bias = bias, .lora = factors(down, up, scale), .residual = residual});
  expect_near(y_again, sum_of(want.y, doubles(residual)), sum_of(squares.y, doubles(squared(residual))), tolerance,
              "y with a residual");
  const Tensor dx = poisoned({m, k}, layout, dtype), ddown = poisoned({r, k}), dup = poisoned({n, r});
  backend().lora_linear_backward({.s = s, .x = x, .w = w, .lora = factors(down, up, scale)},
                                 {.dx = dx, .ddown = ddown, .dups = {dup}, .dy = dy});
  expect_near(dx, want.dx, squares.dx, tolerance, "dx");
  expect_near(ddown, want.ddown, squares.ddown, tolerance, "ddown");
  expect_near(dup, want.dup, squares.dup, tolerance, "dup");
  const Tensor again = poisoned({m, k}, layout, dtype), ddown_again = poisoned({r, k}), dup_again = poisoned({n, r});
  backend().lora_linear_backward({.s = s, .x = x, .w = w, .lora = factors(down, up, scale)},
                                 {.dx = again, .ddown = ddown_again, .dups = {dup_again}, .dy = dy});
  expect_same_bits(again, dx, "dx");
  expect_same_bits(ddown_again, ddown, "ddown");
  expect_same_bits(dup_again, dup, "dup");
  // Fewer outputs may choose another kernel for the same numbers.
  backend().lora_linear_backward({.s = s, .x = x, .w = w, .lora = factors(down, up, scale)}, {.dx = again, .dy = dy});
  expect_near(again, want.dx, squares.dx, tolerance, "dx alone");
  const Tensor alone_ddown = poisoned({r, k}), alone_dup = poisoned({n, r});
  backend().lora_linear_backward({.s = s, .x = x, .w = w, .lora = factors(down, up, scale)},
                                 {.ddown = alone_ddown, .dups = {alone_dup}, .dy = dy});
  expect_near(alone_ddown, want.ddown, squares.ddown, tolerance, "ddown without dx");
  expect_near(alone_dup, want.dup, squares.dup, tolerance, "dup without dx");
  backend().lora_backward({.x = x, .lora = factors(down, up, scale)},
                          {.ddown = alone_ddown, .dups = {alone_dup}, .dy = dy});
  expect_near(alone_ddown, want.ddown, squares.ddown, tolerance, "ddown, from x");
  expect_near(alone_dup, want.dup, squares.dup, tolerance, "dup, from x");
}

// The inputs of 16-bit activations: extents with and without TMA's alignment, each rank, rows apart, factors in f32 and
// in the dtype of the activations.
void check_every_shape(int count) {
  for (int round = 0; round < count; ++round) {
    const int64_t step = round % 3 == 0 ? 1 : round % 3 == 1 ? 8 : 64;
    const auto extent = [&](int64_t most) { return (between(1, most) + step - 1) / step * step; };
    const bool many = !on_cpu() && round % 15 == 7;  // kernels that pass over large operands once
    const int64_t m = many ? between(2048, 2400) : between(1, round % 10 == 9 ? 600 : 150);
    const int64_t k = extent(many ? 800 : 200), n = extent(many ? 800 : 200);
    const int64_t r = round % 7 == 6 ? between(65, 256) : round % 3 ? (between(1, 64) + 7) / 8 * 8 : between(1, 64);
    check_linear({m, k, n, r}, round % 4 == 3 ? Layout::gapped : Layout::packed, round % 2 ? activations() : DType::f32,
                 round % 5 == 0);
  }
}

// WICK_CUDA_CAPABILITY=80 and 75 select the kernels of older devices.
TEST(LoraLinear, EveryShapeInTheDtypeOfActivations) { check_every_shape(rounds(on_cpu() ? 10 : 150)); }

// The ways of the large products, and the tiles of those on mma.sync.
constexpr const char* kProductWays[] = {"lora:wgmma",
                                        "lora:composed",
                                        "lora:mma",
                                        "lora:mma,sm80:128x256",
                                        "lora:mma,sm80:128x128",
                                        "lora:mma,sm80:64x128",
                                        "lora:mma,sm80:64x64",
                                        "lora:mma,sm80:32x64"};

// One kernel, whatever the device would choose.
TEST(LoraLinear, EveryWayOfTheProduct) {
  if (on_cpu()) GTEST_SKIP() << "for devices";
  for (const char* way : kProductWays) {
    SCOPED_TRACE(way);
    setenv("WICK_CUDA_WAY", way, 1);
    check_every_shape(rounds(30));
    for (const Extents& many_tiles : {Extents{300, 264, 520, 20}, {1500, 72, 600, 100}})
      check_linear(many_tiles, Layout::packed, activations(), true);
  }
  unsetenv("WICK_CUDA_WAY");
}

// Rows within one launch and beyond, reductions long enough for split-K, columns that do not fill a tile.
TEST(LoraBackward, AtTheWidthsOfModels) {
  const DType dtype = activations();
  const double tolerance = std::max(2 * unit_roundoff(dtype), 3e-6);
  std::vector<Extents> cases = {{77, 768, 768, 16}, {1, 1024, 320, 8}};
  if (!on_cpu()) {
    for (const Extents& more : std::vector<Extents>{{256, 1536, 1536, 32},
                                                    {256, 3072, 3072, 64},
                                                    {193, 2048, 264, 40},
                                                    {600, 640, 640, 24},
                                                    {2500, 328, 320, 12},
                                                    {4096, 640, 1280, 32},
                                                    {33, 4096, 4096, 4},
                                                    {2048, 1024, 1024, 64}})
      cases.push_back(more);
    for (int round = 0; round < rounds(12); ++round)
      cases.push_back({between(1, 700), between(1, 200) * 8, between(1, 200) * 8, between(1, 64)});
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto [m, k, n, r] = cases[i];
    SCOPED_TRACE(::testing::Message() << "m " << m << " k " << k << " n " << n << " rank " << r);
    const DType stored = i % 2 ? dtype : DType::f32;
    const float scale = 0.75f;
    const Layout layout = i % 3 == 2 ? Layout::gapped : Layout::packed;
    const Tensor x = input({m, k}, layout), dy = input({m, n}, layout);
    const Tensor down = random({r, k}, Layout::packed, stored), up = random({n, r}, Layout::packed, stored);
    const Results want(cases[i], x, dy, {}, {}, down, up, scale),
        squares(cases[i], squared(x), squared(dy), {}, {}, squared(down), squared(up), scale * scale);
    const Tensor ddown = poisoned({r, k}), dup = poisoned({n, r});
    backend().lora_backward({.x = x, .lora = factors(down, up, scale)}, {.ddown = ddown, .dups = {dup}, .dy = dy});
    expect_near(ddown, want.ddown, squares.ddown, tolerance, "ddown");
    expect_near(dup, want.dup, squares.dup, tolerance, "dup");
    for (int again = 0; again < 3; ++again) {
      const Tensor ddown_again = poisoned({r, k}), dup_again = poisoned({n, r});
      backend().lora_backward({.x = x, .lora = factors(down, up, scale)},
                              {.ddown = ddown_again, .dups = {dup_again}, .dy = dy});
      expect_same_bits(ddown_again, ddown, "ddown");
      expect_same_bits(dup_again, dup, "dup");
    }
    const Tensor one = poisoned({r, k});
    backend().lora_backward({.x = x, .lora = factors(down, up, scale)}, {.ddown = one, .dups = {View()}, .dy = dy});
    expect_near(one, want.ddown, squares.ddown, tolerance, "ddown alone");
  }
}

// y += scale * (x down^T) up^T.
TEST(LoraLinear, AdapterAlone) {
  const DType dtype = activations();
  const double tolerance = std::max(3 * unit_roundoff(dtype), 3e-6);
  for (int round = 0; round < rounds(on_cpu() ? 6 : 40); ++round) {
    const int64_t step = round % 4 == 3 ? 1 : 8;
    const auto extent = [&](int64_t most) { return (between(1, most) + step - 1) / step * step; };
    const int64_t m = round % 3 == 0 ? 1 : between(1, round % 8 == 7 ? 100 : 32);
    const int64_t k = extent(4096), n = extent(round % 5 == 4 ? 9000 : 4096);
    const int64_t r = round % 7 == 6 ? between(65, 128) : round % 2 ? 8 : between(1, 64);
    const Layout layout = round % 4 == 2 ? Layout::gapped : Layout::packed;
    const DType stored = round % 3 ? dtype : DType::f32;
    SCOPED_TRACE(::testing::Message() << "m " << m << " k " << k << " n " << n << " rank " << r);
    const float scale = 0.75f;
    const Tensor x = input({m, k}, layout), before = input({m, n});
    const Tensor down = random({r, k}, Layout::packed, stored), up = random({n, r}, Layout::packed, stored);
    const Tensor y = poisoned({m, n}, layout, dtype), s = poisoned({m, r}, Layout::packed, dtype);
    const Extents extents{m, k, n, r};
    const Results added(extents, x, before, {}, {}, down, up, scale),
        squares(extents, squared(x), before, {}, {}, squared(down), squared(up), scale * scale);
    const Doubles want = sum_of(doubles(before), added.y), terms = sum_of(doubles(squared(before)), squares.y);
    backend().copy(y, before);
    backend().lora_linear({.y = y, .s = s, .x = x, .lora = factors(down, up, scale)});
    expect_near(y, want, terms, tolerance, "y");
    expect_near(s, added.s, squares.s, tolerance, "s");
    backend().copy(y, before);
    backend().lora_linear({.y = y, .x = x, .lora = factors(down, up, scale)});
    expect_near(y, want, terms, tolerance, "y without s");
  }
}

// By the definition of the mask: the four words of a Philox block belong to four elements of a sample.
Doubles with_mask(Doubles x, float p, uint64_t seed, const std::vector<int64_t>& draws) {
  const size_t stretch = x.size() / draws.size();
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t at = i % stretch;
    if (at % 4 == 0) words = philox(seed, uint32_t(Stream::dropout), uint64_t(draws[i / stretch]) << 32 | at / 4);
    x[i] = words[at % 4] >= uint64_t(double(p) * 0x1p32) ? x[i] / (1 - double(p)) : 0;
  }
  return x;
}

std::vector<int64_t> random_draws(int64_t samples) {
  std::vector<int64_t> draws(static_cast<size_t>(samples));
  for (int64_t& draw : draws) draw = between(0, (int64_t{1} << 32) - 1);
  return draws;
}

void check_dropout(const Shape& shape, float p, int64_t samples) {
  SCOPED_TRACE(testing::Message() << to_string(shape) << " p " << p << " samples " << samples);
  const std::vector<int64_t> draws = random_draws(samples);
  const uint64_t seed = uint64_t(rng().below(uint64_t{1} << 62)) << 2;
  const Tensor counters = Tensor::of(draws, {samples});
  const Dropout dropout{p, seed, counters};
  const Tensor x = input(shape, kLayouts[rng().below(4)]), y = output(shape, kLayouts[rng().below(4)]);
  const Doubles want = with_mask(doubles(x), p, seed, draws);
  backend().dropout(y, x, dropout, false);
  expect_close(y, want, 4 * kEps / (1 - double(p)), "y");
  const Tensor sum = input(shape);
  Doubles total = doubles(sum);
  for (size_t i = 0; i < total.size(); ++i) total[i] += want[i];
  backend().dropout(sum, x, dropout, true);
  expect_close(sum, total, 4 * kEps / (1 - double(p)), "sum");
  const Tensor place = input(shape);
  const Doubles in_place = with_mask(doubles(place), p, seed, draws);
  backend().dropout(place, place, dropout, false);
  expect_close(place, in_place, 4 * kEps / (1 - double(p)), "in place");
}

TEST(Dropout, HasTheMaskOfItsDefinition) {
  for (const float p : {0.0f, 0.1f, 0.5f, 0.9f})
    for (const int64_t width : {1, 7, 8, 64}) check_dropout({between(1, 4), between(1, 30), width}, p, 1);
}

// A sample is some rows, a row, or a part of one.
TEST(Dropout, HasAMaskForEachSample) {
  for (const int64_t width : {1, 3, 7, 8, 12, 64})
    for (int round = 0; round < rounds(4); ++round) {
      const Shape shape{between(2, 5), between(1, 30), width};
      const int64_t rows = shape[0] * shape[1];
      for (const int64_t samples : {shape[0], rows, 2 * rows, rows * width})
        if (rows * width % samples == 0) check_dropout(shape, 0.4f, samples);
    }
}

TEST(Dropout, RefusesSamplesOfUnlikeSize) {
  const Tensor x = input({3, 5}), draws = Tensor::of(std::vector<int64_t>{1, 2}, {2});
  EXPECT_THROW(backend().dropout(x, x, {0.5f, 1, draws}, false), Error);
}

// A group's results, in double precision.
struct GroupResults {
  Doubles y, dx, s, ddown, adapter, dadapter;  // y and dx with w; and LoRA's contribution alone
  std::vector<Doubles> dups;
};

// Linears side by side: blocks of their own width, rank and scale with padding between their ranks, outputs that have
// no LoRA, and dropout or none.
struct Group {
  int64_t m, k = between(1, 100), n = 0, rank = 0;
  DType dtype = activations(), factors = between(0, 1) ? dtype : DType::f32;
  std::vector<Tensor> ups;
  LoraFactors lora;
  Tensor x, dy, w, bias, down, draw;

  // `alike`: LoRAs of one rank and scale on all outputs, as those of q, k and v.
  Group(int64_t rows, float p, int64_t step, bool alike) : m(rows) {
    k = (k + step - 1) / step * step;
    const int64_t common_rank = step * between(1, 9);
    for (int64_t count = between(1, 4); count > 0; --count) {
      const int64_t width = (between(1, alike ? 300 : 60) + step - 1) / step * step;
      const int64_t r = alike ? common_rank : between(1, 20);
      if (alike || count == 1 || between(0, 3)) {
        add_block(width, r, alike ? 0.5f : 0.25f * float(between(1, 4)));
        rank += (r + step - 1) / step * step - r;
      }
      n += width;
    }
    fill();
    if (p == 0) return;
    const int64_t samples = between(0, 1) ? 1 : m;
    draw = Tensor::of(random_draws(samples), {samples});
    lora.dropout = {p, rng().below(1 << 30) << 20, draw};
  }
  // LoRAs of one rank on outputs of these widths.
  Group(int64_t rows, int64_t inputs, const std::vector<int64_t>& widths, int64_t r) : m(rows), k(inputs) {
    for (const int64_t width : widths) {
      add_block(width, r, 0.5f);
      n += width;
    }
    fill();
    x = input({m, k});
  }

  // A group of few rows with any weights. Its blocks' ranks are padded to multiples of eight, as those of an Adapter's
  // copies, or of four.
  Group(int64_t rows, int64_t inputs, DType weights, const std::vector<int64_t>& widths) : m(rows), k(inputs) {
    const int64_t unit = between(0, 1) ? 8 : 4;
    for (size_t i = 0; i < widths.size(); ++i) {
      if (i == 0 || between(0, 3)) {
        const int64_t r = std::array<int64_t, 4>{between(1, 20), 16, between(65, 140), 128}[rng().below(4)];
        add_block(widths[i], r, 0.25f * float(between(1, 4)));
        rank += (r + unit - 1) / unit * unit - r;
      }
      n += widths[i];
    }
    fill();
    if (!is_quantized(weights)) return;
    const Tensor values = random({n, k});
    w = Tensor::empty({n, k}, weights);
    cpu_backend().copy(w, values);
  }

  void add_block(int64_t width, int64_t r, float scale) {
    ups.push_back(random({width, r}, Layout::packed, factors));
    lora.blocks.push_back({ups.back(), n, rank, scale});
    rank += r;
  }
  void fill() {
    x = input({m, k}, between(0, 1) ? Layout::packed : Layout::gapped);
    dy = input({m, n}), w = random({n, k}, Layout::packed, dtype), bias = random({n});
    down = poisoned({rank, k}, Layout::packed, factors);
    cpu_backend().fill(down, 0);
    for (const LoraBlock& b : lora.blocks) {
      const Tensor rows = down.window({b.up.shape[1], k}, {k, 1}, b.row * k);
      cpu_backend().copy(rows, random(rows.shape(), Layout::packed, factors));
    }
    lora.down = down;
  }

  // Each number squared: its results are the sums of squares of the terms in this one's sums.
  Group squares() const {
    Group g = *this;
    for (Tensor* t : {&g.x, &g.dy, &g.w, &g.bias, &g.down}) *t = squared(*t);
    for (Tensor& up : g.ups) up = squared(up);
    for (LoraBlock& b : g.lora.blocks) b.scale *= b.scale;
    return g;
  }

  Doubles dropped(Doubles v) const {
    const Dropout& d = lora.dropout;
    return d.p > 0 ? with_mask(std::move(v), d.p, d.seed, {draw.data<int64_t>(), draw.data<int64_t>() + draw.numel()})
                   : v;
  }
  GroupResults results() const {
    const Doubles seen = doubles(x), dys = doubles(dy), ws = doubles(w), shift = doubles(bias), downs = doubles(down),
                  dropped_x = dropped(seen);
    GroupResults r;
    Doubles ds(size_t(m * rank));
    r.s = times(by_rows(dropped_x, m, k), by_rows(downs, rank, k).transposed());
    r.adapter.resize(size_t(m * n));
    for (size_t g = 0; g < ups.size(); ++g) {
      const LoraBlock& b = lora.blocks[g];
      const int64_t width = ups[g].dim(0), rows = ups[g].dim(1);
      const Doubles up = doubles(ups[g]);
      const Matrix block_up = by_rows(up, width, rows), block_dy{dys.data() + b.column, m, width, n, 1},
                   block_s{r.s.data() + b.row, m, rows, rank, 1};
      add_product(ds.data() + b.row, rank, block_dy, block_up, b.scale);
      add_product(r.adapter.data() + b.column, n, block_s, block_up.transposed(), b.scale);
      r.dups.push_back(times(block_dy.transposed(), block_s, b.scale));
    }
    r.ddown = times(by_rows(ds, m, rank).transposed(), by_rows(dropped_x, m, k));
    r.dadapter = dropped(times(by_rows(ds, m, rank), by_rows(downs, rank, k)));
    r.y = r.adapter, r.dx = r.dadapter;
    for (size_t i = 0; i < r.y.size(); ++i) r.y[i] += shift[i % size_t(n)];
    add_product(r.y.data(), n, by_rows(seen, m, k), by_rows(ws, n, k).transposed());
    add_product(r.dx.data(), k, by_rows(dys, m, n), by_rows(ws, n, k));
    return r;
  }
};

// A group's results beside the reference.
class GroupCheck {
 public:
  explicit GroupCheck(const Group& group) : c(group) {
    for (const Tensor& up : c.ups) dups.push_back(poisoned(up.shape()));
  }

  const Group& c;
  const GroupResults want = c.results(), squares = c.squares().results();
  const double tolerance = std::max(2 * unit_roundoff(activations()), 3e-6);
  Tensor y = output({c.m, c.n}), s = output({c.m, c.rank}), dx = output({c.m, c.k}), ddown = poisoned({c.rank, c.k});
  std::vector<Tensor> dups;
  std::vector<View> dup_views() const { return {dups.begin(), dups.end()}; }

  void expect(const Tensor& got, const char* what, Doubles GroupResults::*result) const {
    expect_near(got, want.*result, squares.*result, tolerance, what);
  }
  // LoRA's contribution, added to `before`.
  void expect_added(const Tensor& got, const Tensor& before, const char* what, Doubles GroupResults::*added) const {
    expect_near(got, sum_of(doubles(before), want.*added), sum_of(doubles(squared(before)), squares.*added), tolerance,
                what);
  }
  void expect_gradients() const {
    expect(ddown, "ddown", &GroupResults::ddown);
    for (size_t i = 0; i < dups.size(); ++i) expect_near(dups[i], want.dups[i], squares.dups[i], tolerance, "dup");
  }
  void forward_and_backward() const {
    backend().lora_linear({.y = y, .s = s, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora});
    expect(y, "y", &GroupResults::y);
    expect(s, "s", &GroupResults::s);
    backend().lora_linear_backward({.s = s, .x = c.x, .w = c.w, .lora = c.lora},
                                   {.dx = dx, .ddown = ddown, .dups = dup_views(), .dy = c.dy});
    expect(dx, "dx", &GroupResults::dx);
    expect_gradients();
  }
};

void check_groups(float dropout, int count) {
  for (int round = 0; round < count; ++round) {
    const int64_t rows = !on_cpu() && round % 16 == 7 ? between(2048, 2200) : between(1, 70);
    const Group c(rows, dropout, round % 2 ? 8 : 1, round % 4 > 1);
    SCOPED_TRACE(testing::Message() << "m " << c.m << " k " << c.k << " n " << c.n << " rank " << c.rank << " blocks "
                                    << c.ups.size());
    const GroupCheck check(c);
    check.forward_and_backward();
    backend().lora_backward({.x = c.x, .lora = c.lora}, {.ddown = check.ddown, .dups = check.dup_views(), .dy = c.dy});
    check.expect_gradients();

    // The adapter alone, added to an existing output.
    const Tensor before = input({c.m, c.n}), dbefore = input({c.m, c.k}), sum = output({c.m, c.n}),
                 dsum = output({c.m, c.k});
    backend().copy(sum, before);
    backend().copy(dsum, dbefore);
    backend().lora_linear({.y = sum, .s = check.s, .x = c.x, .lora = c.lora});
    check.expect_added(sum, before, "y without w", &GroupResults::adapter);
    backend().lora_linear_backward({.s = check.s, .x = c.x, .lora = c.lora},
                                   {.dx = dsum, .ddown = check.ddown, .dups = check.dup_views(), .dy = c.dy});
    check.expect_added(dsum, dbefore, "dx without w", &GroupResults::dadapter);
    check.expect_gradients();
  }
}

// A step of decoding: each weight that it may have, and as many tokens as its kernels take, or some more.
Group any_few_rows(DType weights, int64_t m, const std::vector<int64_t>& widths) {
  return Group(m, 256 * between(1, 9), weights, widths);
}
std::vector<DType> weights_of_few_rows() {
  if (on_cpu()) return {DType::f32};
  return {activations(), DType::q8_0, DType::q4_0, DType::q4_k,      DType::q5_k,
          DType::int8,   DType::fp8,  DType::nf4,  DType::nf4_double};
}

TEST(LoraLinear, OfFewRows) {
  for (const DType weights : weights_of_few_rows())
    for (const int64_t m : {1, 1, 2, 5, 8, 9, 32, 33}) {
      std::vector<int64_t> widths(size_t(between(1, 4)));
      for (int64_t& width : widths) width = 8 * between(1, 50);
      const Group c = any_few_rows(weights, m, widths);
      SCOPED_TRACE(testing::Message() << name_of(weights) << " m " << m << " k " << c.k << " n " << c.n << " rank "
                                      << c.rank << " blocks " << c.ups.size());
      const GroupCheck check(c);
      backend().lora_linear({.y = check.y, .s = check.s, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora});
      check.expect(check.y, "y", &GroupResults::y);
      check.expect(check.s, "s", &GroupResults::s);
      const Tensor again = output({c.m, c.n}), before = input({c.m, c.n});
      backend().lora_linear({.y = again, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora});
      // On 8.x cuBLASLt makes s of more than 8 rows, and its kernel depends on the alignment of s.
      if (m <= 8)
        expect_same_bits(again, check.y, "y without s");
      else
        check.expect(again, "y without s", &GroupResults::y);
      backend().lora_linear(
          {.y = again, .s = check.s, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora, .residual = before});
      check.expect_added(again, before, "y with a residual", &GroupResults::y);
    }
}

TEST(LoraLinear, OneTokenOfFewShowsNowhereElse) {
  if (on_cpu() || activations() == DType::f32) GTEST_SKIP() << "for the kernels of few rows";
  for (const DType weights : weights_of_few_rows()) {
    const Group c = any_few_rows(weights, between(2, 8), {64, 128});
    const int64_t bad = between(0, c.m - 1);
    c.x.data<uint16_t>()[bad * c.x.stride()[0] + 77] = 0x7fff;
    const Tensor y = output({c.m, c.n});
    backend().lora_linear({.y = y, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora});
    const std::vector<float> got = y.to_vector();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), int64_t(i) / c.n == bad) << "at " << i;
  }
}

// In one operation or in two: gates and values with LoRAs of their own, or one LoRA of both.
TEST(GatedLinear, WithALoraHasTheBitsOfItsParts) {
  for (const DType weights : weights_of_few_rows())
    for (const int64_t m : {1, 1, 2, 7, 12, 40}) {
      const int64_t f = between(0, 3) ? 8 * between(1, 60) : between(1, 400);
      const Group c = any_few_rows(weights, m, between(0, 1) ? std::vector{f, f} : std::vector{2 * f});
      SCOPED_TRACE(testing::Message() << name_of(weights) << " m " << m << " k " << c.k << " f " << f << " blocks "
                                      << c.ups.size());
      const Tensor wide = output({m, 2 * f}), want = output({m, f}), y = output({m, f}, Layout::gapped);
      backend().lora_linear({.y = wide, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora});
      backend().swiglu(want, wide);
      backend().gated_linear(y, c.x, c.w, c.bias, c.lora);
      expect_same_bits(y, want, "gated");
    }
}

class LoraGroup : public testing::TestWithParam<float> {};

TEST_P(LoraGroup, ForwardAndBackward) { check_groups(GetParam(), rounds(on_cpu() ? 12 : 40)); }

TEST(LoraGroups, EveryWayOfTheProduct) {
  if (on_cpu()) GTEST_SKIP() << "for devices";
  for (const char* way : kProductWays) {
    SCOPED_TRACE(way);
    setenv("WICK_CUDA_WAY", way, 1);
    check_groups(0, rounds(12));
  }
  unsetenv("WICK_CUDA_WAY");
}

// Each tiling of CUDA's extended product (linear/extended_gemm.h), at extents that allow it.
TEST(LoraLinear, EveryPlanOfTheProduct) {
  if (on_cpu() || activations() == DType::f32) GTEST_SKIP() << "no plans";
  const auto check = [](int slice, int parts, int consumers, int wide) {
    if (between(0, 99) >= rounds(100)) return;
    const int narrow = consumers == 3 ? 128 : std::min(wide, int(between(1, 3)) * 64);
    const int64_t layers = slice && between(0, 1) ? between(2, 4) : 1, most = slice ? slice : 256;
    const int64_t wide_tiles = layers == 1 ? between(0, 2) : 0;
    const int64_t rank = layers == 1 && between(0, 3) == 0 ? between(1, most) : between(1, most / 8) * 8;
    const auto extent = [&] { return wide * wide_tiles + narrow * between(wide_tiles ? 0 : 1, 2) - 8 * between(0, 3); };
    // Groups end where tiles and steps of the reduction do.
    const std::vector<int64_t> widths(size_t(layers), layers == 1 ? extent() : narrow % 64 ? 2 * narrow : narrow);
    const std::string plan =
        fmt::format("lora:wgmma,sm90:{}/{}/{}/{}/{}/{}", slice, parts, consumers, wide, wide_tiles, narrow);
    setenv("WICK_CUDA_WAY", plan.c_str(), 1);
    const int64_t k = extent(), n = layers * widths[0];
    const Group c(between(1, std::clamp<int64_t>(12'000'000 / (k * n), 16, 400)), k, widths, rank);
    SCOPED_TRACE(testing::Message() << "plan " << plan << " m " << c.m << " k " << c.k << " n " << c.n << " rank "
                                    << rank << " layers " << layers);
    const GroupCheck results(c);
    results.forward_and_backward();
    const Tensor y = output({c.m, c.n}), dx = output({c.m, c.k});
    backend().lora_linear({.y = y, .x = c.x, .w = c.w, .bias = c.bias, .lora = c.lora});
    results.expect(y, "y without s", &GroupResults::y);
    backend().lora_linear_backward({.x = c.x, .w = c.w, .lora = c.lora}, {.dx = dx, .dy = c.dy});
    results.expect(dx, "dx alone", &GroupResults::dx);
  };
  for (const int wide : {64, 96, 128, 160, 192, 224, 256}) check(0, 1, 2, wide);
  for (const int wide : {128, 192}) check(0, 1, 3, wide);
  for (const int slice : {16, 32, 64})
    for (const int wide : {64, 96, 128, 160, 192})
      for (const int parts : {1, 2, 4})
        if (wide % (16 * parts) == 0) check(slice, parts, 2, wide);
  unsetenv("WICK_CUDA_WAY");
}

INSTANTIATE_TEST_SUITE_P(Dropout, LoraGroup, testing::Values(0.0f, 0.25f),
                         [](const auto& instance) { return instance.param > 0 ? "on" : "off"; });

TEST(LoraBackward, AnyBatchAndStride) {
  for (int round = 0; round < 16; ++round) {
    const Case c = random_case();
    const Tensor ddown = poisoned({c.rank, c.k}), dup = poisoned({c.n, c.rank}, c.layout);
    backend().lora_backward({.x = c.x, .lora = c.lora()}, {.ddown = ddown, .dups = {dup}, .dy = c.dy});
    const Results want = c.results();
    expect_close(ddown, want.ddown, c.tolerance(c.n, c.m), "ddown");
    expect_close(dup, want.dup, c.tolerance(c.k, c.m), "dup");
    const Tensor alone = poisoned({c.rank, c.k});
    backend().lora_backward({.x = c.x, .lora = c.lora()}, {.ddown = alone, .dy = c.dy});
    expect_same_bits(alone, ddown, "ddown alone");
  }
}

TEST(LoraBackward, NoTokensGiveZeroGradients) {
  const Tensor ddown = poisoned({4, 9}), dup = poisoned({7, 4});
  backend().lora_backward({.x = Tensor::empty({0, 9}), .lora = factors(random({4, 9}), random({7, 4}), 1)},
                          {.ddown = ddown, .dups = {dup}, .dy = Tensor::empty({0, 7})});
  expect_close(ddown, Doubles(36, 0.0), 0, "ddown");
  expect_close(dup, Doubles(28, 0.0), 0, "dup");
}

TEST(LoraBackward, SameBitsTwice) {
  const Case c{1, 256, 320, 768, 32, Layout::packed, DType::f32};
  Tensor ddown[2], dup[2];
  for (int i = 0; i < 2; ++i) {
    ddown[i] = poisoned({32, 768});
    dup[i] = poisoned({320, 32});
    backend().lora_backward({.x = c.x, .lora = c.lora()}, {.ddown = ddown[i], .dups = {dup[i]}, .dy = c.dy});
  }
  expect_same_bits(ddown[0], ddown[1], "ddown");
  expect_same_bits(dup[0], dup[1], "dup");
}

}  // namespace
}  // namespace wick
