// Embedding, upsampling, random tensors and AdamW.
#include <algorithm>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

Tensor random_ids(const Shape& shape, int64_t rows) {
  std::vector<int64_t> ids(size_t(shape.numel()));
  for (int64_t& id : ids) id = between(0, rows - 1);
  return Tensor::of(ids, shape);
}

TEST(Embedding, looks_up_and_scatters) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (Layout layout : {Layout::packed, Layout::gapped}) {
      const int64_t rows = between(1, 300), width = between(1, 100);
      const Tensor ids = random_ids({between(1, 3), between(1, 77)}, rows),
                   table = random({rows, width}, layout, dtype);
      const Shape shape{ids.dim(0), ids.dim(1), width};
      const Tensor y = poisoned(shape, layout), dy = random(shape, layout);
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

TEST(Upsample, nearest_and_its_gradient) {
  for (Layout layout : kLayouts)
    for (int64_t vertical : {1, 2, 3})
      for (int64_t horizontal : {1, 2, 5}) {
        const Shape small{between(1, 3), between(1, 9), between(1, 9), between(1, 40)};
        const Shape large{small[0], small[1] * vertical, small[2] * horizontal, small[3]};
        const Tensor x = random(small, layout), y = poisoned(large, layout), dy = random(large, layout);
        const Tensor dx = poisoned(small, layout);
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
      wrong += normal.data<float>()[i] != bits_to_normals(bits[j & 2], bits[j | 1])[j & 1];
    }
    EXPECT_EQ(wrong, 0);
  }
}

// torch.optim.AdamW for one tensor, in double precision.
TEST(AdamW, follows_the_formulas) {
  std::vector<AdamWSlot> slots;
  std::vector<Tensor> kept;
  std::vector<std::vector<double>> want_param, want_m, want_v;
  for (int64_t n : {int64_t{1}, between(2, 50), between(30000, 40000)}) {
    const Tensor param = random({n}), grad = random({n}), m = poisoned({n}), v = poisoned({n});
    backend().fill(m, 0);
    backend().fill(v, 0);
    slots.push_back({param, grad, m, v});
    kept.insert(kept.end(), {param, grad, m, v});
    want_param.push_back(doubles(param));
    want_m.emplace_back(size_t(n), 0.0);
    want_v.emplace_back(size_t(n), 0.0);
  }
  const Tensor scalars = Tensor::of(std::vector<float>{1e-2f, 0.5f, 1, 0, 0, 4.0f, NAN, 0}, {kAdamWScalars});
  const AdamWStep s{.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f};
  for (int64_t step = 1; step <= 5; ++step) {
    backend().adamw(slots, s, scalars);
    EXPECT_EQ(scalars.data<float>()[kSteps], float(step));
    EXPECT_EQ(scalars.data<float>()[kGradNorm], 1.0f);
    const double lr = 1e-2f, beta1 = s.beta1, beta2 = s.beta2;
    for (size_t k = 0; k < slots.size(); ++k)
      for (size_t i = 0; i < want_m[k].size(); ++i) {
        const double g = double(kept[4 * k + 1].data<float>()[i]) * 0.5;
        want_param[k][i] *= 1 - lr * double(s.weight_decay);
        want_m[k][i] = beta1 * want_m[k][i] + (1 - beta1) * g;
        want_v[k][i] = beta2 * want_v[k][i] + (1 - beta2) * g * g;
        const double denominator = std::sqrt(want_v[k][i]) / std::sqrt(1 - std::pow(beta2, step)) + double(s.eps);
        want_param[k][i] -= lr / (1 - std::pow(beta1, step)) * want_m[k][i] / denominator;
      }
  }
  for (size_t k = 0; k < slots.size(); ++k) {
    expect_close(kept[4 * k], want_param[k], 5 * 2 * kEps, "param");
    expect_close(kept[4 * k + 2], want_m[k], 5 * kEps, "m");
    expect_close(kept[4 * k + 3], want_v[k], 5 * kEps * 0.01, "v");
  }
}

}  // namespace
}  // namespace wick
