// Embedding, upsampling and random tensors.
#include <algorithm>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

TEST(Embedding, looks_up_and_scatters) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (Layout layout : {Layout::packed, Layout::gapped}) {
      const int64_t rows = between(1, 300), width = between(1, 100);
      const Tensor ids = random_ids({between(1, 3), between(1, 77)}, rows),
                   table = random({rows, width}, layout, dtype);
      const Shape shape{ids.dim(0), ids.dim(1), width};
      const Tensor y = output(shape, layout), dy = input(shape, layout);
      const Tensor dtable = poisoned({rows, width}, layout), again = poisoned({rows, width});
      backend().embedding(y, table, ids);
      backend().embedding_backward(dtable, dy, ids);
      backend().embedding_backward(again, dy, ids);
      const std::vector<double> from = doubles(table), grads = doubles(dy);
      std::vector<double> want, want_table(from.size());
      for (int64_t i = 0; i < ids.numel(); ++i)
        for (int64_t d = 0; d < width; ++d) {
          const size_t at = size_t(ids.data<int64_t>()[i] * width + d);
          want.push_back(from[at]);
          want_table[at] += grads[size_t(i * width + d)];
        }
      expect_close(y, want, 0, "embedding");
      expect_close(dtable, want_table, 64 * kEps * double(ids.numel() / rows + 4), "embedding_backward");
      expect_same_bits(dtable, again, "embedding_backward");
    }
}

TEST(Embedding, strided_ids) {
  const Tensor ids = random_ids({8, 6}, 5), table = random({5, 3}), y = poisoned({6, 8, 3});
  const Tensor transposed = ids.window({6, 8}, {1, 6});
  backend().embedding(y, table, transposed);
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t j = 0; j < 8; ++j)
      EXPECT_EQ(y.data<float>()[(i * 8 + j) * 3], table.data<float>()[ids.data<int64_t>()[j * 6 + i] * 3]);
}

TEST(ScatterRows, go_where_they_belong_and_leave_the_rest) {
  for (const auto& [from, dtype] :
       {std::pair{DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::bf16}})
    for (const Layout layout : {Layout::packed, Layout::gapped, Layout::swapped})
      for (const int64_t width : {5, 8, 24}) {
        const Tensor x = random({2, 3, 4, width}, layout, from), y = random({2, 7, 4, width}, layout, dtype);
        std::vector<double> want = doubles(y);
        const Tensor rows = Tensor::empty({2, 3}, DType::i32);
        const std::vector<int32_t> places = {6, -1, 0, 2, 3, -7};
        std::copy(places.begin(), places.end(), rows.data<int32_t>());
        for (size_t i = 0; i < 6; ++i)
          for (size_t d = 0; d < 4 * size_t(width); ++d)
            if (places[i] >= 0)
              want[(i / 3 * 7 + size_t(places[i])) * 4 * size_t(width) + d] = doubles(x)[i * 4 * size_t(width) + d];
        backend().scatter_rows(y, x, rows);
        expect_close(y, want, 0, "scatter_rows");
      }
}

TEST(Upsample, nearest_and_its_gradient) {
  for (Layout layout : kLayouts)
    for (int64_t vertical : {1, 2, 3})
      for (int64_t horizontal : {1, 2, 5}) {
        const Shape small{between(1, 3), between(1, 9), between(1, 9), between(1, 40)};
        const Shape large{small[0], small[1] * vertical, small[2] * horizontal, small[3]};
        const Tensor x = input(small, layout), y = output(large, layout), dy = input(large, layout);
        const Tensor dx = output(small, layout);
        backend().upsample_nearest(y, x);
        backend().upsample_nearest_backward(dx, dy);
        const std::vector<double> from = doubles(x), grads = doubles(dy);
        std::vector<double> want, want_dx(from.size());
        for (int64_t i = 0; i < large.numel(); ++i) {
          const int64_t c = i % large[3], w = i / large[3] % large[2], h = i / large[3] / large[2] % large[1];
          const int64_t b = i / large[3] / large[2] / large[1];
          const size_t at = size_t(((b * small[1] + h / vertical) * small[2] + w / horizontal) * small[3] + c);
          want.push_back(from[at]);
          want_dx[at] += grads[size_t(i)];
        }
        expect_close(y, want, 0, "upsample_nearest");
        expect_close(dx, want_dx, 15 * 15 * kEps / 2, "upsample_nearest_backward");
      }
}

TEST(Random, words_of_philox_in_order) {
  for (int64_t n : {int64_t{1}, between(2, 90), between(50000, 60000)}) {
    const uint64_t seed = rng().below(~uint64_t{0}), position = rng().below(~uint64_t{0});
    const Tensor uniform = poisoned({n}), normal = poisoned({n});
    backend().fill_uniform(uniform, seed, 3, position);
    backend().fill_normal(normal, seed, 3, position);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = philox(seed, 3, position + uint64_t(i / 4));
      const size_t j = size_t(i % 4);
      wrong += uniform.data<float>()[i] != bits_to_uniform(bits[j]);
      // A device's libraries may round a double's last bit otherwise, which moves a float to its neighbour.
      const float want = bits_to_normals(bits[j & 2], bits[j | 1])[j & 1], got = normal.data<float>()[i];
      wrong += got != want && (test::memory().on_host() || got != std::nextafter(want, got));
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST(TimestepEmbedding, sines_of_angles_in_f32) {
  for (Layout layout : kLayouts) {
    const int64_t n = between(1, 9), half = between(1, 200);
    const Tensor t = random({n}), y = output({n, 2 * half}, layout);
    backend().affine(t, t, 500, 500);
    backend().timestep_embedding(y, t, 10000);
    std::vector<double> want(size_t(n * 2 * half));
    for (int64_t i = 0; i < n * half; ++i) {
      const float frequency = std::exp(-std::log(10000.0f) * float(i % half) / float(half));
      const float angle = t.data<float>()[i / half] * frequency;
      const size_t at = size_t(i / half * 2 * half + i % half);
      want[at] = std::cos(double(angle));
      want[at + size_t(half)] = std::sin(double(angle));
    }
    // Frequencies may be off by their last bit, and angles go up to 1000.
    expect_close(y, want, 1000 * kEps, "timestep_embedding");
  }
}

}  // namespace
}  // namespace wick
