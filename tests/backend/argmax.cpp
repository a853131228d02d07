// The largest logit of each row.
#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

TEST(Argmax, the_first_of_the_largest) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Layout layout : kLayouts)
      for (const int64_t width : {int64_t{1}, between(2, 70), int64_t{1024}, between(30000, 33000)}) {
        const int64_t rows = between(1, 4);
        const Tensor x = random({rows, width}, layout, dtype);
        // Many equals, zeros of either sign among them.
        if (between(0, 1)) backend().affine(x, x, 0, 0);
        const Tensor ids = random_ids({rows, 2}, 9).window({rows}, {2}), largest = poisoned({rows}, Layout::spread);
        backend().argmax(ids, largest, x);
        const std::vector<float> values = x.to_vector(), peaks = largest.to_vector();
        for (int64_t i = 0; i < rows; ++i) {
          const auto begin = values.begin() + i * width, want = std::max_element(begin, begin + width);
          EXPECT_EQ(ids.data<int64_t>()[2 * i], want - begin);
          EXPECT_EQ(peaks[size_t(i)], *want);
        }
        const Tensor alone = Tensor::empty({rows}, DType::i64);
        backend().argmax(alone, {}, x);
        for (int64_t i = 0; i < rows; ++i) EXPECT_EQ(alone.data<int64_t>()[i], ids.data<int64_t>()[2 * i]);
      }
}

TEST(Argmax, NaN_is_larger_than_anything) {
  const int64_t width = 5000, at = between(0, width - 2);
  const Tensor x = random({3, width}), ids = Tensor::empty({3}, DType::i64), largest = poisoned({3});
  float* values = x.data<float>();
  values[4000] = INFINITY, values[at] = values[at + 1] = -NAN;
  for (int64_t i = 0; i < width; ++i) values[width + i] = -INFINITY;
  values[2 * width + 17] = INFINITY;
  backend().argmax(ids, largest, x);
  EXPECT_EQ(ids.data<int64_t>()[0], at);
  EXPECT_TRUE(std::isnan(largest.data<float>()[0]));
  EXPECT_EQ(ids.data<int64_t>()[1], 0);
  EXPECT_EQ(largest.data<float>()[1], -INFINITY);
  EXPECT_EQ(ids.data<int64_t>()[2], 17);
}

}  // namespace
}  // namespace wick
