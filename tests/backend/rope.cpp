// Rotary positions against double precision.
#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

std::vector<double> reference(const Tensor& x, const Tensor& cos_table, const Tensor& sin_table, RopePairs pairs,
                              bool inverse) {
  const std::vector<double> in = doubles(x), cos = doubles(cos_table), sin = doubles(sin_table);
  std::vector<double> out = in;
  const int64_t tokens = x.dim(1), heads = x.dim(2), half = x.dim(3) / 2;
  for (int64_t row = 0; row < x.dim(0) * tokens * heads; ++row)
    for (int64_t i = 0; i < half; ++i) {
      const int64_t token = row / heads, first = row * 2 * half;
      const size_t angle = size_t((cos_table.rank() == 3 ? token : token % tokens) * half + i);
      const size_t a = size_t(first + (pairs == RopePairs::halves ? i : 2 * i));
      const size_t b = a + (pairs == RopePairs::halves ? size_t(half) : 1);
      const double s = inverse ? -sin[angle] : sin[angle];
      out[a] = in[a] * cos[angle] - in[b] * s;
      out[b] = in[a] * s + in[b] * cos[angle];
    }
  return out;
}

void check_rope(const Shape& shape, Layout layout, bool table_per_image) {
  const Shape table = table_per_image ? Shape{shape[0], shape[1], shape[3] / 2} : Shape{shape[1], shape[3] / 2};
  const Tensor x = input(shape, layout), cos = random(table, layout), sin = random(table, layout);
  for (RopePairs pairs : {RopePairs::neighbours, RopePairs::halves})
    for (bool inverse : {false, true}) {
      const Tensor y = output(shape, layout);
      backend().rope(y, x, cos, sin, pairs, inverse);
      expect_close(y, reference(x, cos, sin, pairs, inverse), 2 * kEps, "rope");
      const Tensor in_place = output(shape, layout);
      backend().copy(in_place, x);
      backend().rope(in_place, in_place, cos, sin, pairs, inverse);
      expect_same_bits(in_place, y, "rope in place");
    }
}

TEST(Rope, every_layout) {
  for (Layout layout : kLayouts)
    for (bool table_per_image : {false, true})
      check_rope({between(1, 3), between(1, 20), between(1, 5), 2 * between(1, 40)}, layout, table_per_image);
}

TEST(Rope, heads_of_models) {
  for (int64_t width : {64, 128, 72}) check_rope({2, between(20, 40), 24, width}, Layout::packed, width == 64);
}

// Up to the positions of models, where an angle in f32 has many turns.
TEST(Rope, angles) {
  const int64_t tokens = between(1, 300), pairs = between(1, 70);
  const Tensor positions = Tensor::empty({tokens}, DType::i32), frequencies = random({pairs});
  for (int64_t i = 0; i < tokens; ++i) positions.data<int32_t>()[i] = int32_t(between(0, i % 2 ? 131072 : 20));
  const Tensor cos = poisoned({tokens, pairs}), sin = poisoned({tokens, pairs});
  backend().rope_angles(cos, sin, positions, frequencies);
  Doubles want_cos, want_sin;
  for (int64_t i = 0; i < tokens * pairs; ++i) {
    const float angle = float(positions.data<int32_t>()[i / pairs]) * frequencies.data<float>()[i % pairs];
    want_cos.push_back(std::cos(double(angle)));
    want_sin.push_back(std::sin(double(angle)));
  }
  expect_close(cos, want_cos, 2 * kEps, "cosines");
  expect_close(sin, want_sin, 2 * kEps, "sines");
}

// Queries lie between keys and values.
TEST(Rope, a_window_of_a_fused_projection) {
  const int64_t heads = 3, width = 16, tokens = 7;
  const Tensor all = input({2, tokens, 3 * heads * width});
  const Tensor x = all.window({2, tokens, heads, width}, {tokens * 3 * heads * width, 3 * heads * width, width, 1}, 48);
  const Tensor cos = random({tokens, width / 2}), sin = random({tokens, width / 2}), y = output(x.shape());
  backend().rope(y, x, cos, sin, RopePairs::halves, false);
  expect_close(y, reference(x, cos, sin, RopePairs::halves, false), 2 * kEps, "rope");
}

// Tokens [B, T] of a fused projection; rows say where keys and values go.
void check_into_cache(const Shape& q_shape, int64_t key_heads, DType kept, bool constant) {
  const int64_t batch = q_shape[0], tokens = q_shape[1], heads = q_shape[2], width = q_shape[3], capacity = tokens + 5;
  const int64_t all_heads = heads + 2 * key_heads;
  const Tensor qkv = input({batch, tokens, all_heads * width});
  const auto part = [&](int64_t first, int64_t count) {
    return qkv.window({batch, tokens, count, width}, {tokens * all_heads * width, all_heads * width, width, 1},
                      first * width);
  };
  const Tensor q = part(0, heads), k = part(heads, key_heads), v = part(heads + key_heads, key_heads);
  const Tensor cos = random({batch, tokens, width / 2}), sin = random(cos.shape()), turned = output(q_shape);
  const Shape cache{batch, capacity, key_heads, width};
  const Tensor keys = random(cache, Layout::packed, kept), values = random(cache, Layout::packed, kept);
  const Tensor rows = Tensor::empty({batch, tokens}, DType::i32);
  std::vector<double> want_keys = doubles(keys), want_values = doubles(values);
  const std::vector<double> turned_keys = reference(k, cos, sin, RopePairs::halves, false), given = doubles(v);
  for (int64_t i = 0; i < batch * tokens; ++i) {  // an entry's last token goes nowhere, unless alone
    const int64_t t = i % tokens, row = tokens > 1 && t == tokens - 1 ? -1 : (3 + i / tokens + t) % capacity;
    rows.data<int32_t>()[i] = int32_t(row);
    for (int64_t d = 0; d < key_heads * width && row >= 0; ++d) {
      const size_t to = size_t((i / tokens * capacity + row) * key_heads * width + d);
      want_keys[to] = turned_keys[size_t(i * key_heads * width + d)];
      want_values[to] = given[size_t(i * key_heads * width + d)];
    }
  }
  const auto given_as = [&](const Tensor& t) { return constant ? t.constant() : t; };
  backend().rope_into_cache({.turned = turned,
                             .keys = keys,
                             .values = values,
                             .q = q,
                             .k = k,
                             .v = v,
                             .cos = given_as(cos),
                             .sin = given_as(sin),
                             .rows = given_as(rows)});
  expect_close(turned, reference(q, cos, sin, RopePairs::halves, false), 2 * kEps, "turned");
  // Keys pass through a tensor of the activations' dtype where the cache's is another.
  expect_close(keys, want_keys, 2 * kEps + (keys.dtype() == q.dtype() ? 0 : 2 * unit_roundoff(q.dtype())), "keys");
  expect_close(values, want_values, 0, "values");
}

TEST(Rope, into_a_cache) {
  for (const bool constant : {false, true})
    for (const int64_t tokens : {int64_t{1}, between(2, 9), between(100, 200)})
      for (const int64_t width : {int64_t{64}, int64_t{128}, 2 * between(1, 40)})
        for (const auto& [heads, key_heads] : {std::pair{32, 8}, {6, 2}, {3, 3}})
          check_into_cache({tokens > 9 ? 1 : between(1, 3), tokens, heads, width}, key_heads, activations(), constant);
  check_into_cache({2, 3, 4, 64}, 2, DType::f32, true);
  check_into_cache({2, 0, 4, 64}, 2, activations(), true);
}

// Queries, keys and values side by side, among `beside` other columns.
struct Heads {
  int64_t batch, tokens, heads, width, beside;
  Tensor made(bool poison) const {
    const int64_t row = 3 * heads * width + beside, step = heads * width;
    const Tensor all = poison ? output({batch, tokens, row}) : input({batch, tokens, row});
    return all.window({batch, tokens, 3, heads, width}, {tokens * row, row, step, width, 1});
  }
};

// One head: y = turn(x_hat * w), or its gradients. `norm` and the angles may be absent.
struct HeadReference {
  const double* norm;
  const double *cos, *sin;
  size_t width;
  double eps;

  double rstd(const double* x) const {
    double square = 0;
    for (size_t i = 0; i < width; ++i) square += x[i] * x[i] / double(width);
    return norm ? 1 / std::sqrt(square + eps) : 1;
  }
  double weight(size_t i) const { return norm ? norm[i] : 1; }
  Doubles turned(const Doubles& v, double sign) const {
    Doubles y = v;
    for (size_t i = 0; cos && i < width / 2; ++i) {
      y[2 * i] = v[2 * i] * cos[i] - sign * v[2 * i + 1] * sin[i];
      y[2 * i + 1] = sign * v[2 * i] * sin[i] + v[2 * i + 1] * cos[i];
    }
    return y;
  }
  Doubles forward(const double* x) const {
    Doubles y(x, x + width);
    for (size_t i = 0; i < width; ++i) y[i] *= rstd(x) * weight(i);
    return turned(y, 1);
  }
  // Adds to dnorm.
  Doubles backward(const double* x, const double* dy, double* dnorm) const {
    Doubles g = turned(Doubles(dy, dy + width), -1);
    const double r = rstd(x);
    double mean = 0;
    for (size_t i = 0; i < width; ++i) {
      dnorm[i] += g[i] * x[i] * r;
      mean += g[i] * weight(i) * x[i] * r / double(width);
    }
    for (size_t i = 0; i < width; ++i) g[i] = r * (g[i] * weight(i) - (norm ? x[i] * r * mean : 0));
    return g;
  }
};

void check_qk_norm_rope(const Heads& h, bool normed, bool turned) {
  SCOPED_TRACE(testing::Message() << h.batch << " x " << h.tokens << " x " << h.heads << " x " << h.width << " beside "
                                  << h.beside << (normed ? " normed" : "") << (turned ? " turned" : ""));
  const Tensor x = h.made(false), dy = h.made(false), y = h.made(true), dx = h.made(true);
  const auto norm = [&] { return normed ? random({h.width}) : Tensor(); };
  const auto gradient = [&] { return normed ? poisoned({h.width}) : Tensor(); };
  const auto angles = [&] {  // of a stream's tokens behind another one's
    const int64_t pairs = h.width / 2;
    return turned ? random({h.tokens + 1, pairs}).window({h.tokens, pairs}, {pairs, 1}, pairs) : Tensor();
  };
  const Tensor norms[] = {norm(), norm()}, dnorms[] = {gradient(), gradient()}, cos = angles(), sin = angles();
  const QkNormRopeArgs args{
      .y = y, .x = x, .q_norm = norms[0], .k_norm = norms[1], .cos = cos, .sin = sin, .eps = 1e-6f};
  backend().qk_norm_rope(args);
  backend().qk_norm_rope_backward(args, {.dx = dx, .dq_norm = dnorms[0], .dk_norm = dnorms[1], .dy = dy});

  const Doubles in = doubles(x), grad = doubles(dy), of_cos = turned ? doubles(cos) : Doubles(),
                of_sin = turned ? doubles(sin) : Doubles();
  Doubles want = in, want_dx = grad, want_dnorm[2] = {Doubles(size_t(h.width)), Doubles(size_t(h.width))};
  double worst = 1, largest = 1;
  for (size_t which = 0; which < 2; ++which) {
    const Doubles w = normed ? doubles(norms[which]) : Doubles();
    for (int64_t row = 0; row < h.batch * h.tokens; ++row)
      for (int64_t head = 0; head < h.heads; ++head) {
        const auto at = size_t(((row * 3 + int64_t(which)) * h.heads + head) * h.width);
        const size_t angle = turned ? size_t(row % h.tokens * (h.width / 2)) : 0;
        const HeadReference ref{normed ? w.data() : nullptr, turned ? &of_cos[angle] : nullptr,
                                turned ? &of_sin[angle] : nullptr, size_t(h.width), double(1e-6f)};
        const Doubles made = ref.forward(&in[at]);
        const Doubles back = ref.backward(&in[at], &grad[at], want_dnorm[which].data());
        std::copy(made.begin(), made.end(), want.begin() + long(at));
        std::copy(back.begin(), back.end(), want_dx.begin() + long(at));
        worst = std::max(worst, ref.rstd(&in[at]));
        for (const double value : made) largest = std::max(largest, std::abs(value));
      }
  }
  // A composition rounds between its calls.
  const double between_calls = is_composed() && activations() != DType::f32 ? 4 * unit_roundoff(activations()) : 0;
  const double terms = std::sqrt(double(h.batch * h.tokens * h.heads));
  expect_close(y, want, (32 * kEps + between_calls) * largest * worst, "y");
  expect_close(dx, want_dx, (64 * kEps + between_calls) * worst * worst * worst, "dx");
  for (size_t which = 0; which < 2 && normed; ++which)
    expect_close(dnorms[which], want_dnorm[which], (64 * kEps + between_calls) * worst * worst * terms, "dnorm");
}

TEST(QkNormRope, EveryCombination) {
  for (const bool normed : {true, false})
    for (const bool turned : {true, false})
      for (const int64_t width : {int64_t{64}, int64_t{128}, 2 * between(1, 70)})
        for (const int64_t beside : {int64_t{0}, 8 * between(1, 20), between(1, 20)})
          check_qk_norm_rope({between(1, 3), between(1, 40), between(1, 5), width, beside}, normed, turned);
  for (const int64_t width : {2 * between(0, 40) + 1, between(100, 300)})
    check_qk_norm_rope({between(1, 3), between(1, 40), between(1, 5), width, between(0, 20)}, true, width % 2 == 0);
  for (const int64_t width : {int64_t{72}, 8 * between(30, 80)})  // packs that are no power of two; more than lanes
    check_qk_norm_rope({between(1, 3), between(1, 40), between(1, 5), width, 8 * between(0, 3)}, true, true);
  check_qk_norm_rope({1, between(200, 400), 24, 128, 4 * 24 * 128}, true, true);
  check_qk_norm_rope({2, between(100, 200), 38, 64, 0}, true, false);
}

// Without gradients of the norms, which are frozen as a rule.
TEST(QkNormRope, GradientsOfNormsMayBeUnwanted) {
  const Heads h{2, between(1, 30), 3, 64, 0};
  const Tensor x = h.made(false), dy = h.made(false), dx = h.made(true), other = h.made(true);
  const Tensor norm = random({64}), dq = poisoned({64}), dk = poisoned({64});
  const QkNormRopeArgs args{.y = {}, .x = x, .q_norm = norm, .k_norm = norm, .eps = 1e-6f};
  backend().qk_norm_rope_backward(args, {.dx = dx, .dq_norm = dq, .dk_norm = dk, .dy = dy});
  backend().qk_norm_rope_backward(args, {.dx = other, .dy = dy});
  expect_same_bits(dx, other, "dx");
}

}  // namespace
}  // namespace wick
