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

// Queries lie between keys and values.
TEST(Rope, a_window_of_a_fused_projection) {
  const int64_t heads = 3, width = 16, tokens = 7;
  const Tensor all = input({2, tokens, 3 * heads * width});
  const Tensor x = all.window({2, tokens, heads, width}, {tokens * 3 * heads * width, 3 * heads * width, width, 1}, 48);
  const Tensor cos = random({tokens, width / 2}), sin = random({tokens, width / 2}), y = output(x.shape());
  backend().rope(y, x, cos, sin, RopePairs::halves, false);
  expect_close(y, reference(x, cos, sin, RopePairs::halves, false), 2 * kEps, "rope");
}

}  // namespace
}  // namespace wick
