#include <cstdlib>
#include <numeric>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

// One random call, in any layout that keeps D contiguous.
struct Case {
  int64_t batch, queries, keys, heads, features;
  bool causal;
  float scale = 0.3f;
  int64_t shared = 1;                // query heads that share one head of keys (GQA)
  std::vector<int64_t> bounds = {};  // of the keys that each query sees, [batch, queries, 2]

  Shape q_shape() const { return {batch, queries, heads, features}; }
  Shape k_shape() const { return {batch, keys, heads / shared, features}; }
  std::pair<int64_t, int64_t> range(int64_t b, int64_t t) const {
    if (bounds.empty()) return {0, causal ? std::min(t + 1, keys) : keys};
    const size_t at = size_t(2 * (b * queries + t));
    return {bounds[at], bounds[at + 1]};
  }
  // The range of keys, from first to last, that some of these queries see.
  std::pair<int64_t, int64_t> seen(int64_t b, int64_t t, int64_t count) const {
    int64_t first = keys, last = 0;
    for (int64_t i = t; i < t + count; ++i) {
      const auto [begin, end] = range(b, i);
      if (begin < end) first = std::min(first, begin), last = std::max(last, end);
    }
    return {std::min(first, last), last};
  }
  Tensor ranges() const {
    if (bounds.empty()) return {};
    const Tensor narrow = Tensor::empty({batch, queries, 2}, DType::i32);
    cpu_backend().copy(narrow, Tensor::of(bounds, narrow.shape()));
    return narrow;
  }
};

// [B, T, H, D] windows: packed; a slice of a wider projection; stored by head.
Tensor make(const Shape& s, bool filled) {
  const auto create = [&](const Shape& shape) { return filled ? input(shape) : output(shape); };
  switch (rng().below(3)) {
    case 0:
      return create(s);
    case 1: {
      const int64_t width = 3 * s[2] * s[3];
      return create({s[0], s[1], width}).window(s, {s[1] * width, width, s[3], 1}, s[2] * s[3]);
    }
    default: {
      const Tensor by_head = create({s[0], s[2], s[1], s[3]});
      return by_head.window(s, {s[2] * s[1] * s[3], s[3], s[1] * s[3], 1});
    }
  }
}

struct Reference {
  Doubles y, lse, dq, dk, dv;
  // The squares of those terms of the sums of dq and dk that hold dy y^T, which is subtracted: of 16-bit y it has the
  // rounding, also where little is left.
  Doubles dq_squares, dk_squares;
};

Doubles squared(Doubles x) {
  for (double& value : x) value *= value;
  return x;
}

// `dy` may be empty. Works on a block of queries at a time, with the keys that one of them sees.
Reference reference(const Case& c, const Doubles& q, const Doubles& k, const Doubles& v, const Doubles& dy) {
  Reference r{.y = Doubles(q.size()),
              .lse = Doubles(size_t(c.batch * c.heads * c.queries)),
              .dq = Doubles(dy.size()),
              .dq_squares = Doubles(dy.size())};
  if (!dy.empty())
    for (Doubles* of_keys : {&r.dk, &r.dv, &r.dk_squares}) of_keys->resize(k.size());
  const Doubles q_squares = squared(q), k_squares = squared(k), dy_squares = squared(dy);
  const int64_t block = 64, groups = c.heads / c.shared, q_stride = c.heads * c.features,
                k_stride = groups * c.features;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t t = 0; t < c.queries; t += block) {
        const int64_t rows = std::min(block, c.queries - t);
        const int64_t first = c.seen(b, t, rows).first, keys = c.seen(b, t, rows).second - first;
        const int64_t qi = ((b * c.queries + t) * c.heads + h) * c.features,
                      ki = ((b * c.keys + first) * groups + h / c.shared) * c.features;
        const auto queries_of = [&](const Doubles& x) { return Matrix{x.data() + qi, rows, c.features, q_stride, 1}; };
        const auto keys_of = [&](const Doubles& x) { return Matrix{x.data() + ki, keys, c.features, k_stride, 1}; };
        Doubles p = times(queries_of(q), keys_of(k).transposed(), c.scale);
        for (int64_t i = 0; i < rows; ++i) {
          const auto [begin, end] = c.range(b, t + i);
          double* const row = p.data() + i * keys;
          double total = 0;
          for (int64_t s = 0; s < keys; ++s)
            total += row[s] = first + s < begin || first + s >= end ? 0 : std::exp(row[s]);
          for (int64_t s = 0; s < keys && total > 0; ++s) row[s] /= total;
          r.lse[size_t((b * c.heads + h) * c.queries + t + i)] = std::log(total);
        }
        add_product(r.y.data() + qi, q_stride, by_rows(p, rows, keys), keys_of(v));
        if (dy.empty()) continue;
        Doubles ds = times(queries_of(dy), keys_of(v).transposed()), squares = squared(p);
        for (int64_t i = 0; i < rows; ++i) {
          double* const slope = ds.data() + i * keys;
          const double* const row = p.data() + i * keys;
          const double mean = std::inner_product(row, row + keys, slope, 0.0);
          for (int64_t s = 0; s < keys; ++s) slope[s] = c.scale * row[s] * (slope[s] - mean);
          const size_t at = size_t(qi + i * q_stride);
          double mean_squares = 0;
          for (size_t d = at; d < at + size_t(c.features); ++d) mean_squares += dy_squares[d] * r.y[d] * r.y[d];
          for (int64_t s = 0; s < keys; ++s) squares[size_t(i * keys + s)] *= c.scale * c.scale * mean_squares;
        }
        add_product(r.dq.data() + qi, q_stride, by_rows(ds, rows, keys), keys_of(k));
        add_product(r.dk.data() + ki, k_stride, by_rows(ds, rows, keys).transposed(), queries_of(q));
        add_product(r.dv.data() + ki, k_stride, by_rows(p, rows, keys).transposed(), queries_of(dy));
        add_product(r.dq_squares.data() + qi, q_stride, by_rows(squares, rows, keys), keys_of(k_squares));
        add_product(r.dk_squares.data() + ki, k_stride, by_rows(squares, rows, keys).transposed(),
                    queries_of(q_squares));
      }
  return r;
}

std::vector<Case> cases() {
  const int64_t t = between(1, 90);
  return {{between(1, 2), between(1, 90), between(1, 90), between(1, 3), between(1, 70), false},
          {between(1, 2), t, t, between(1, 3), between(1, 40), true},
          {1, 300, 77, 2, 16, false},
          {1, 300, 300, 1, 8, true},
          {2, 150, 77, 1, 64, false},
          {1, 40, 30, 1, 520, false},
          {1, 1, 1, 1, 1, true}};
}

// Shapes that need other kernels than small ones: many tiles, long rows, wide heads.
std::vector<Case> large_cases() {
  std::vector<Case> all{{1, 300, 290, 27, 8, false}, {1, 320, 320, 27, 24, true}, {1, 450, 400, 2, 64, false},
                        {2, 260, 260, 2, 40, true},  {1, 260, 77, 3, 160, false}, {1, 260, 270, 1, 256, false},
                        {1, 300, 300, 2, 96, true},  {1, 16, 2000, 1, 64, false}};
  if (!test::memory().on_host()) all.push_back({1, 16500, 2100, 1, 2, false});  // more scores than fit at a time
  return all;
}

// Every edge of tiles: of queries, keys and features, and keys so few that blocks share a tile of them.
std::vector<Case> tensor_core_cases() {
  return {{2, 130, 77, 3, 64, false},
          {1, 257, 300, 2, 128, false},
          {1, 200, 200, 2, 72, true},
          {1, 100, 300, 1, 128, true},
          {1, 300, 100, 2, 64, true},
          {1, 5, 7, 2, 64, false},
          {1, 1500, 77, 2, 64, false},
          {1, 1500, 90, 1, 120, false},
          {1, 1, 400, 1, 8, false},
          {2, 97, 129, 2, 40, false},
          {1, 64, 64, 2, 64, true},
          {1, 700, 700, 3, 64, true},
          {1, 128, 96, 1, 128, false},
          {1, 384, 384, 2, 64, false},
          {2, 55, 1, 2, 64, false},
          {2, between(1, 300), between(1, 300), 2, 64, false},
          {1, between(1, 300), between(1, 300), 2, 8 * between(1, 16), true}};
}

double tolerance(const Case& c, int64_t terms) { return kEps * double(terms + c.features + 16); }

// With 16-bit activations the probabilities and their gradients are rounded too, so errors are relative to the whole,
// and to terms of its sums whose squares add up to `squares`.
void expect_near(const Tensor& got, const Doubles& want, double tolerance, const char* what,
                 const Doubles& squares = {}) {
  if (got.dtype() == DType::f32) return expect_close(got, want, tolerance, what);
  const Doubles values = doubles(got);
  double error = 0, norm = std::accumulate(squares.begin(), squares.end(), 0.0);
  size_t worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (values[i] - want[i]) * (values[i] - want[i]);
    norm += want[i] * want[i];
    if (!(std::abs(values[i] - want[i]) <= std::abs(values[worst] - want[worst]))) worst = i;
  }
  const double rounding = got.dtype() == DType::f16 ? 0x1p-24 : 0;  // for subnormal numbers
  EXPECT_LE(std::sqrt(error),
            3 * unit_roundoff(got.dtype()) * std::sqrt(norm) + (tolerance + rounding) * std::sqrt(double(want.size())))
      << what << " " << to_string(got.shape()) << ", worst at element " << worst << ": " << values[worst] << ", not "
      << want[worst];
}

// Keys or values; those in no query's range hold NaN, as the unfilled part of a cache may.
Tensor make_keys(const Case& c) {
  const Tensor x = make(c.k_shape(), true);
  if (c.bounds.empty()) return x;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t s = 0; s < c.keys; ++s) {
      if (c.range(b, 0).first <= s && s < c.range(b, c.queries - 1).second) continue;
      const Tensor row = x.window({c.heads / c.shared, c.features}, {x.stride()[2], x.stride()[3]},
                                  b * x.stride()[0] + s * x.stride()[1]);
      cpu_backend().fill(row, std::numeric_limits<float>::quiet_NaN());
    }
  return x;
}

// Zeroes the statistics of queries that see nothing: any value is right there.
template <class T>
void forget_blind(const Case& c, T* lse) {
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t t = 0; t < c.queries; ++t)
        if (c.range(b, t).first == c.range(b, t).second) lse[(b * c.heads + h) * c.queries + t] = 0;
}

void check_forward(const Case& c) {
  const Tensor q = make(c.q_shape(), true), k = make_keys(c), v = make_keys(c), ranges = c.ranges();
  const Tensor y = make(c.q_shape(), false), lse = poisoned({c.batch, c.heads, c.queries});
  Reference want = reference(c, doubles(q), doubles(k), doubles(v), {});
  backend().attention(
      {.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = c.scale, .causal = c.causal, .ranges = ranges});
  expect_near(y, want.y, tolerance(c, c.keys), "y");
  forget_blind(c, want.lse.data());
  forget_blind(c, lse.data<float>());
  expect_close(lse, want.lse, tolerance(c, c.keys), "lse");
  const Tensor alone = output(c.q_shape());
  backend().attention({.y = alone,
                       .q = q,
                       .k = k,
                       .v = v,
                       .scale = c.scale,
                       .causal = c.causal,
                       .ranges = ranges ? ranges.constant() : ranges});
  if (alone.stride() == y.stride()) expect_same_bits(alone, y, "y without lse");
  expect_near(alone, want.y, tolerance(c, c.keys), "y without lse");
}

void check_backward(const Case& c, int wanted) {
  const Tensor q = make(c.q_shape(), true), k = make_keys(c), v = make_keys(c), ranges = c.ranges();
  const Tensor dy = make(c.q_shape(), true), y = output(c.q_shape()), lse = poisoned({c.batch, c.heads, c.queries});
  backend().attention(
      {.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = c.scale, .causal = c.causal, .ranges = ranges});
  const Tensor dq = wanted & 1 ? make(c.q_shape(), false) : Tensor();
  const Tensor dk = wanted & 2 ? make(c.k_shape(), false) : Tensor();
  const Tensor dv = wanted & 4 ? make(c.k_shape(), false) : Tensor();
  backend().attention_backward(
      {.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = c.scale, .causal = c.causal, .ranges = ranges},
      {.dq = dq, .dk = dk, .dv = dv, .dy = dy});
  const Reference want = reference(c, doubles(q), doubles(k), doubles(v), doubles(dy));
  if (dq) expect_near(dq, want.dq, tolerance(c, c.keys), "dq", want.dq_squares);
  if (dk) expect_near(dk, want.dk, tolerance(c, c.queries), "dk", want.dk_squares);
  if (dv) expect_near(dv, want.dv, tolerance(c, c.queries), "dv");
}

TEST(Attention, ForwardInEveryLayout) {
  for (int round = 0; round < 3; ++round)
    for (const Case& c : cases()) check_forward(c);
}

// Attention as language models use it. `first` and `last` are functions of entry and query.
template <class First, class Last>
Case ranged(Case c, int64_t shared, First first, Last last) {
  c.shared = shared;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t t = 0; t < c.queries; ++t) {
      c.bounds.push_back(first(b, t));
      c.bounds.push_back(last(b, t));
    }
  return c;
}

std::vector<Case> language_cases() {
  const auto zero = [](int64_t, int64_t) { return int64_t{0}; };
  const auto next = [](int64_t, int64_t t) { return t + 1; };
  const auto window = [](int64_t w) { return [w](int64_t, int64_t t) { return std::max<int64_t>(t + 1 - w, 0); }; };
  const auto document = [](int64_t, int64_t t) { return t < 37 ? 0 : t < 150 ? 37 : 150; };
  const auto padded = [](int64_t b, int64_t t) { return std::min(t + 1, 40 + 100 * b); };
  const auto cached = [](int64_t b, int64_t t) { return 30 + 9 * b + t + 1; };
  std::vector<Case> all{
      ranged({1, 77, 77, 4, 16, false}, 1, zero, next),         ranged({1, 300, 300, 6, 8, false}, 3, zero, next),
      ranged({1, 310, 310, 4, 24, false}, 4, window(50), next), ranged({1, 300, 300, 4, 16, false}, 2, document, next),
      ranged({2, 290, 290, 2, 16, false}, 2, zero, padded),     ranged({2, 150, 260, 4, 16, false}, 2, zero, cached),
      ranged({3, 1, 90, 6, 16, false}, 3, zero, cached),        ranged({3, 1, 90, 4, 16, false}, 1, window(0), cached)};
  Case blind{1, 5, 9, 2, 4, false};  // queries that see nothing: the first, the last and one between
  blind.bounds = {0, 0, 0, 2, 2, 2, 2, 5, 7, 7};
  all.push_back(blind);
  Case random{between(1, 2), between(1, 90), between(1, 90), 4, between(1, 40), false};
  random.shared = 2;
  for (int64_t b = 0; b < random.batch; ++b)
    for (int64_t t = 0, first = 0, last = 0; t < random.queries; ++t) {
      last = std::min(last + between(0, 3), random.keys);
      first = std::min(first + between(0, 3), last);
      random.bounds.insert(random.bounds.end(), {first, last});
    }
  all.push_back(random);
  Case shared{1, 130, 130, 4, 64, true};  // without ranges
  shared.shared = 2;
  all.push_back(shared);
  if (on_cpu()) return all;
  // The edges at which kernels and tiles change: wide heads, long caches, queries that see nothing first.
  const auto later = [](int64_t, int64_t t) { return t < 70 ? 0 : t - 60; };
  const auto cache = [](int64_t b, int64_t t) { return 2900 + 47 * b + t + 1; };
  for (const int64_t width : {64, 72, 128}) {
    for (const int64_t group : {1, 3, 4})  // clusters of every size, full and not
      all.push_back(ranged({between(1, 4), between(1, 8), between(40, 700), group * between(1, 9), width, false}, group,
                           zero, [=](int64_t b, int64_t t) { return 20 + b + t + 1; }));
    all.push_back(ranged({1, 400, 400, 8, width, false}, 4, zero, next));
    all.push_back(ranged({1, 330, 330, 4, width, false}, 2, window(70), next));
    all.push_back(ranged({2, 200, 200, 2, width, false}, 1, zero, later));
    all.push_back(ranged({2, 4, 3000, 8, width, false}, 4, zero, cache));
    all.push_back(ranged({1, 1, 3000, 4, width, false}, 1, zero, cache));
    all.push_back(ranged(
        {1, 8, 3000, 16, width, false}, 8, [=](int64_t b, int64_t t) { return cache(b, t) - 75; }, cache));
    all.push_back(ranged({1, 1600, 1600, 2, width, false}, 2, document, next));
    all.push_back(ranged({1, 150, 150, 80, width, false}, 4, zero, next));  // more tiles than SMs
  }
  return all;
}

TEST(Attention, SharedHeadsAndRangesOfKeys) {
  for (const Case& c : language_cases()) {
    SCOPED_TRACE(
        fmt::format("{} x {} queries, {} keys, {} heads of {}", c.batch, c.queries, c.keys, c.heads, c.features));
    check_forward(c);
    for (const int wanted : {7, int(between(1, 6))}) check_backward(c, wanted);
  }
}

TEST(Attention, BackwardAndEachOutputUnwanted) {
  for (int wanted = 1; wanted < 8; ++wanted)
    for (const Case& c : cases()) check_backward(c, wanted);
}

TEST(Attention, Large) {
  for (const Case& c : large_cases()) {
    check_forward(c);
    check_backward(c, 7);
  }
}

// One way wherever it can go, whatever the device would choose.
TEST(Attention, EveryWayOnTensorCores) {
  if (test::memory().on_host()) GTEST_SKIP() << "for devices";
  for (const char* way : {"attention:cudnn", "attention:wgmma", "attention:mma", "attention:tiles", "attention:rows"}) {
    SCOPED_TRACE(way);
    setenv("WICK_CUDA_WAY", way, 1);
    for (const Case& c : tensor_core_cases()) {
      SCOPED_TRACE(fmt::format("{} x {} queries, {} keys, {} heads of {}{}", c.batch, c.queries, c.keys, c.heads,
                               c.features, c.causal ? ", causal" : ""));
      check_forward(c);
      for (const int wanted : {7, int(between(1, 6))}) check_backward(c, wanted);
    }
  }
  unsetenv("WICK_CUDA_WAY");
}

// Some rows at SDXL's sizes for 1024 x 1024 pixels, where the device chooses other kernels than for short rows.
TEST(Attention, SampledAtFullSize) {
  if (test::memory().on_host()) GTEST_SKIP() << "for devices";
  for (const Case& c : {Case{1, 4096, 4096, 10, 64, false, 0.125f}, Case{1, 4096, 77, 10, 64, false, 0.125f},
                        Case{1, 1024, 1024, 20, 64, true, 0.125f}, Case{1, 4096, 4096, 1, 512, false, 0.044f}}) {
    const Tensor q = input(c.q_shape()), k = input(c.k_shape()), v = input(c.k_shape()), dy = input(c.q_shape());
    const Tensor y = output(c.q_shape()), lse = poisoned({c.batch, c.heads, c.queries});
    const Tensor dq = output(c.q_shape()), dk = output(c.k_shape()), dv = output(c.k_shape());
    backend().attention({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = c.scale, .causal = c.causal});
    backend().attention_backward({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = c.scale, .causal = c.causal},
                                 {.dq = dq, .dk = dk, .dv = dv, .dy = dy});
    for (int sample = 0; sample < 6; ++sample) {
      const int64_t h = between(0, c.heads - 1), t = between(0, c.queries - 1), s = between(0, c.keys - 1);
      const auto head = [&](const Tensor& x, int64_t first, int64_t tokens) {
        return doubles(x.window({tokens, c.features}, {c.heads * c.features, 1}, (first * c.heads + h) * c.features));
      };
      const auto dot = [&](const Doubles& a, int64_t i, const Doubles& b, int64_t j) {
        double sum = 0;
        for (int64_t d = 0; d < c.features; ++d) sum += a[size_t(i * c.features + d)] * b[size_t(j * c.features + d)];
        return sum;
      };
      const Doubles all_q = head(q, 0, c.queries), all_k = head(k, 0, c.keys), all_v = head(v, 0, c.keys),
                    all_dy = head(dy, 0, c.queries);
      const size_t width = size_t(c.features);
      Doubles p(size_t(c.causal ? t + 1 : c.keys)), dp(p.size());
      Doubles want_y(width), want_dq(width), want_dk(width), want_dv(width);
      double total = 0, mean = 0;
      for (size_t i = 0; i < p.size(); ++i) total += p[i] = std::exp(c.scale * dot(all_q, t, all_k, int64_t(i)));
      for (size_t i = 0; i < p.size(); ++i) mean += (p[i] /= total) * (dp[i] = dot(all_dy, t, all_v, int64_t(i)));
      for (size_t i = 0; i < p.size(); ++i)
        for (size_t d = 0; d < width; ++d) {
          want_y[d] += p[i] * all_v[i * width + d];
          want_dq[d] += c.scale * p[i] * (dp[i] - mean) * all_k[i * width + d];
        }
      const auto at_row = [&](const Tensor& x, int64_t token) {
        return x.window({c.features}, {1}, (token * c.heads + h) * c.features);
      };
      expect_near(at_row(y, t), want_y, tolerance(c, c.keys), "y");
      expect_near(at_row(dq, t), want_dq, tolerance(c, c.keys), "dq");
      expect_close(lse.window({1}, {1}, h * c.queries + t), {std::log(total)}, tolerance(c, c.keys), "lse");
      const Doubles all_y = head(y, 0, c.queries), all_lse = doubles(lse.window({c.queries}, {1}, h * c.queries));
      for (int64_t i = c.causal ? s : 0; i < c.queries; ++i) {
        const double weight = std::exp(c.scale * dot(all_q, i, all_k, s) - all_lse[size_t(i)]);
        const double grad = c.scale * weight * (dot(all_dy, i, all_v, s) - dot(all_dy, i, all_y, i));
        for (size_t d = 0; d < width; ++d) {
          want_dk[d] += grad * all_q[size_t(i) * width + d];
          want_dv[d] += weight * all_dy[size_t(i) * width + d];
        }
      }
      expect_near(at_row(dk, s), want_dk, tolerance(c, c.queries), "dk");
      expect_near(at_row(dv, s), want_dv, tolerance(c, c.queries), "dv");
    }
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  using Floats = std::vector<float>;
  const Tensor q = Tensor::of(Floats{1000, 0}, {1, 1, 1, 2}), k = Tensor::of(Floats{1000, 0, -1000, 0}, {1, 2, 1, 2});
  const Tensor v = Tensor::of(Floats{1, 2, 3, 4}, {1, 2, 1, 2}), y = poisoned({1, 1, 1, 2}), lse = poisoned({1, 1, 1});
  backend().attention({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = 1});
  expect_close(y, {1, 2}, 0, "y");
  expect_close(lse, {1e6}, 0, "lse");
}

TEST(Attention, NotANumberStaysOne) {
  Tensor q = random({1, 3, 1, 20}), k = random({1, 50, 1, 20}), v = random({1, 50, 1, 20}), y = poisoned({1, 3, 1, 20});
  q.data<float>()[20] = std::numeric_limits<float>::quiet_NaN();
  backend().attention({.y = y, .q = q, .k = k, .v = v, .scale = 1});
  for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(std::isnan(y.data<float>()[i]), i / 20 == 1) << i;
}

TEST(Attention, NoKeysAndNoQueries) {
  const Tensor none = Tensor::empty({1, 0, 2, 4}), q = random({1, 3, 2, 4}), y = poisoned({1, 3, 2, 4});
  backend().attention({.y = y, .q = q, .k = none, .v = none, .scale = 1});
  expect_close(y, Doubles(24, 0.0), 0, "y");
  const Tensor dk = poisoned({1, 3, 2, 4}), dv = poisoned({1, 3, 2, 4});
  backend().attention_backward({.y = none, .lse = Tensor::empty({1, 2, 0}), .q = none, .k = q, .v = q, .scale = 1},
                               {.dk = dk, .dv = dv, .dy = none});
  expect_close(dk, Doubles(24, 0.0), 0, "dk");
  expect_close(dv, Doubles(24, 0.0), 0, "dv");
}

TEST(Attention, SameBitsTwice) {
  for (const auto& [keys, features] : {std::pair{256, 64}, {77, 64}, {300, 128}}) {
    const Shape s{1, 1000, 2, features}, context{1, keys, 2, features};
    const Tensor q = input(s), k = input(context), v = input(context), dy = input(s);
    Tensor y[2], dq[2], dk[2], dv[2];
    for (int i = 0; i < 2; ++i) {
      const Tensor lse = poisoned({1, 2, 1000});
      y[i] = output(s), dq[i] = output(s), dk[i] = output(context), dv[i] = output(context);
      backend().attention({.y = y[i], .lse = lse, .q = q, .k = k, .v = v, .scale = 0.125f});
      backend().attention_backward({.y = y[i], .lse = lse, .q = q, .k = k, .v = v, .scale = 0.125f},
                                   {.dq = dq[i], .dk = dk[i], .dv = dv[i], .dy = dy});
    }
    expect_same_bits(y[0], y[1], "y");
    expect_same_bits(dq[0], dq[1], "dq");
    expect_same_bits(dk[0], dk[1], "dk");
    expect_same_bits(dv[0], dv[1], "dv");
  }
}

// cuDNN's backward in parts: the entries, and then the heads, are computed one by one, since together they take too
// much scratch.
TEST(Attention, InPartsAtFullSize) {
  if (on_cpu() || activations() == DType::f32 || std::getenv("WICK_CUDA_CAPABILITY"))
    GTEST_SKIP() << "nothing is computed in parts";
  setenv("WICK_CUDA_WAY", "attention:cudnn", 1);
  Memory& memory = test::memory();
  for (const Shape& s : {Shape{2, 4096, 10, 64}, {1, 6144, 24, 64}}) {
    const Tensor q = input(s).to(memory), k = input(s).to(memory), v = input(s).to(memory), dy = input(s).to(memory);
    const Tensor y = output(s).to(memory), lse = poisoned({s[0], s[2], s[1]}).to(memory);
    const Tensor dq = output(s).to(memory), dk = output(s).to(memory), dv = output(s).to(memory);
    Backend& device = test::backend();
    device.attention({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = 0.125f});
    device.attention_backward({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = 0.125f},
                              {.dq = dq, .dk = dk, .dv = dv, .dy = dy});
    // The last head of the last entry, alone.
    const int64_t b = s[0] - 1, h = s[2] - 1;
    const Shape one{1, s[1], 1, 64};
    const auto last = [&](const Tensor& t) { return t.window(one, t.stride(), b * t.stride()[0] + h * t.stride()[2]); };
    const Tensor last_lse = lse.window({1, 1, s[1]}, {s[1], s[1], 1}, (b * s[2] + h) * s[1]);
    const Tensor dq1 = output(one).to(memory), dk1 = output(one).to(memory), dv1 = output(one).to(memory);
    device.attention_backward(
        {.y = last(y), .lse = last_lse, .q = last(q), .k = last(k), .v = last(v), .scale = 0.125f},
        {.dq = dq1, .dk = dk1, .dv = dv1, .dy = last(dy)});
    expect_same_bits(last(dq).to(host_memory()), dq1.to(host_memory()), "dq");
    expect_same_bits(last(dk).to(host_memory()), dk1.to(host_memory()), "dk");
    expect_same_bits(last(dv).to(host_memory()), dv1.to(host_memory()), "dv");
  }
  unsetenv("WICK_CUDA_WAY");
}

TEST(Attention, ReplaysTheSameBits) {
  const Shape s{1, 256, 2, 64}, context{1, 77, 2, 64};
  Memory& memory = test::memory();
  const Tensor q = input(s).to(memory), k = input(context).to(memory), v = input(context).to(memory),
               dy = input(s).to(memory);
  const Tensor y = output(s).to(memory), lse = poisoned({1, 2, 256}).to(memory);
  const Tensor dq = output(s).to(memory), dk = output(context).to(memory), dv = output(context).to(memory);
  expect_replay(
      [&] {
        test::backend().attention({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = 0.125f});
        test::backend().attention_backward({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = 0.125f},
                                           {.dq = dq, .dk = dk, .dv = dv, .dy = dy});
      },
      {y, lse, dq, dk, dv});
}

// A filling cache: the same recorded step reads other ranges.
TEST(Attention, ARecordedStepReadsTheRangesOfItsTime) {
  if (on_cpu()) GTEST_SKIP() << "for devices";
  Memory& memory = test::memory();
  for (const int64_t queries : {1, 8, 40}) {
    const Shape s{1, queries, 8, 64}, context{1, 300, 2, 64};
    const Tensor q = input(s).to(memory), k = input(context).to(memory), v = input(context).to(memory);
    const Tensor y = output(s).to(memory), lse = poisoned({1, 8, queries}).to(memory);
    const Tensor ranges = Tensor::empty({1, queries, 2}, DType::i32, memory).constant();
    const auto fill_to = [&](int64_t length) {
      std::vector<int32_t> bounds;
      for (int64_t t = 0; t < queries; ++t) bounds.insert(bounds.end(), {0, int32_t(length + t + 1)});
      memory.write(ranges.view().data, bounds.data(), bounds.size() * sizeof(int32_t));
    };
    const auto step = [&] {
      test::backend().attention({.y = y, .lse = lse, .q = q, .k = k, .v = v, .scale = 0.125f, .ranges = ranges});
    };
    fill_to(100);
    step();  // plans are made on a first call
    memory.enter_arena();
    const auto replay = test::backend().capture(step);
    memory.leave_arena();
    if (!replay) GTEST_SKIP() << "nothing is recorded here";
    fill_to(250);
    replay->run();
    const Tensor got = y.to(host_memory());
    step();
    expect_same_bits(got, y.to(host_memory()), "replayed");
  }
}

}  // namespace
}  // namespace wick
