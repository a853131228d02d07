// Copies between every pair of layouts and dtypes, against element-by-element conversion.
#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};
constexpr DType kIntegers[] = {DType::i32, DType::i64, DType::u8};

float rounded(float value, DType dtype) {
  if (dtype == DType::bf16) return bf16_to_f32(f32_to_bf16(value));
  if (dtype == DType::f16) return f16_to_f32(f32_to_f16(value));
  return value;
}

float load(const Tensor& t, int64_t i) {
  const uint16_t bits = t.data<uint16_t>()[i];
  return t.dtype() == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

void expect_equal(const Tensor& got, const std::vector<float>& want, const char* what) {
  const std::vector<float> values = got.to_vector();
  size_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) wrong += values[i] != want[i];
  EXPECT_EQ(wrong, 0u) << what << " " << to_string(got.shape());
}

TEST(Copy, floats) {
  for (DType to : kFloats)
    for (DType from : kFloats)
      for (Layout y_layout : kLayouts)
        for (Layout x_layout : kLayouts) {
          const Shape shape{between(1, 3), between(1, 70), between(1, 70)};
          const Tensor x = random(shape, x_layout, from), y = poisoned(shape, y_layout, to);
          backend().copy(y, x);
          std::vector<float> want = x.to_vector();
          for (float& v : want) v = rounded(v, to);
          expect_equal(y, want, "copy");
        }
}

TEST(Copy, permutations) {
  const Shape shape{between(1, 3), between(1, 40), between(1, 40), between(1, 40)};
  std::array<int, 4> order{0, 1, 2, 3};
  do {
    for (DType to : kFloats) {
      const Tensor x = random(shape);
      Shape permuted, stride;
      for (int axis : order) permuted.push_back(shape[axis]), stride.push_back(x.stride()[axis]);
      const Tensor view = x.window(permuted, stride), y = poisoned(permuted, Layout::packed, to);
      backend().copy(y, view);
      std::vector<float> want = view.to_vector();
      for (float& v : want) v = rounded(v, to);
      expect_equal(y, want, "permuted");
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Copy, broadcasts) {
  for (unsigned mask = 0; mask < 8; ++mask) {
    const Shape shape{between(1, 9), between(1, 50), between(1, 300)};
    const Tensor base = random(shape);
    Shape stride = base.stride();
    for (int d = 0; d < 3; ++d)
      if (mask >> d & 1) stride[d] = 0;
    const Tensor x = base.window(shape, stride), y = poisoned(shape);
    backend().copy(y, x);
    expect_equal(y, x.to_vector(), "broadcast");
  }
}

TEST(Copy, integers) {
  for (DType to : kIntegers)
    for (DType from : kIntegers)
      for (Layout layout : kLayouts) {
        const Shape shape{between(1, 40), between(1, 40)};
        const Tensor x = poisoned(shape, layout, from), y = poisoned(shape, Layout::packed, to);
        for_each_offset(x, [&](int64_t i) {
          const int64_t value = between(0, 255);
          if (from == DType::i32) x.data<int32_t>()[i] = int32_t(value);
          if (from == DType::i64) x.data<int64_t>()[i] = value;
          if (from == DType::u8) x.data<uint8_t>()[i] = uint8_t(value);
        });
        backend().copy(y, x);
        expect_equal(y, x.to_vector(), "integers");
      }
}

// Every 16-bit float widens exactly; every kind of f32 narrows as core/dtype.h does.
TEST(Copy, conversions_bit_by_bit) {
  constexpr int64_t kAll = 1 << 16;
  for (DType dtype : {DType::bf16, DType::f16}) {
    const Tensor half = Tensor::empty({kAll}, dtype), wide = poisoned({kAll}),
                 back = poisoned({kAll}, Layout::packed, dtype);
    for (int64_t i = 0; i < kAll; ++i) half.data<uint16_t>()[i] = uint16_t(i);
    backend().copy(wide, half);
    backend().copy(back, wide);
    for (int64_t i = 0; i < kAll; ++i) {
      const float want = dtype == DType::bf16 ? bf16_to_f32(uint16_t(i)) : f16_to_f32(uint16_t(i));
      const float got = wide.data<float>()[i];
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << i;
        ASSERT_TRUE(std::isnan(load(back, i))) << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << i;
        ASSERT_EQ(back.data<uint16_t>()[i], i);
      }
    }
  }
}

TEST(Copy, narrowing_rounds_to_nearest_even) {
  constexpr int64_t kCount = 1 << 18;
  const Tensor x = Tensor::empty({kCount});
  for (int64_t i = 0; i < kCount; ++i) {
    uint32_t bits = uint32_t(rng().below(uint64_t{1} << 32));
    if (i % 4 == 1) bits = (bits & 0x8fffffffu) | 0x30000000u;  // near f16's range
    if (i % 4 == 2) bits = (bits & 0x8fffe000u) | 0x30001000u;  // half way between two f16
    if (i % 4 == 3) bits = (bits & 0xffff0000u) | 0x00008000u;  // half way between two bf16
    x.data<uint32_t>()[i] = bits;
  }
  for (DType dtype : {DType::bf16, DType::f16}) {
    const Tensor y = poisoned({kCount}, Layout::packed, dtype);
    backend().copy(y, x);
    for (int64_t i = 0; i < kCount; ++i) {
      const float value = x.data<float>()[i];
      const uint16_t want = dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
      if (std::isnan(value))
        ASSERT_TRUE(std::isnan(load(y, i)));
      else
        ASSERT_EQ(y.data<uint16_t>()[i], want) << value;
    }
  }
}

TEST(Copy, fill) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8})
    for (Layout layout : kLayouts) {
      const Tensor y = poisoned({between(1, 9), between(1, 90)}, layout, dtype);
      backend().fill(y, 3);
      expect_equal(y, std::vector<float>(size_t(y.numel()), 3.0f), "fill");
    }
  const Tensor large = poisoned({between(1 << 18, 1 << 19)});
  backend().fill(large, -0.5f);
  expect_equal(large, std::vector<float>(size_t(large.numel()), -0.5f), "fill");
}

// Elements between those of a strided output belong to another tensor.
TEST(Copy, touches_only_the_view) {
  const Tensor base = Tensor::empty({50, 50});
  backend().fill(base, 1);
  backend().fill(base.window({20, 20}, {50, 2}, 51), 2);
  double sum = 0;
  for (float v : base.to_vector()) sum += double(v);
  EXPECT_EQ(sum, 2500 + 400);
}

// Gradients lie so: at odd places of one buffer, whose other elements stay.
TEST(CopyMany, copies_or_adds_to_each) {
  for (const bool add : {false, true}) {
    std::vector<Tensor> inputs;
    std::vector<Copied> all;
    int64_t size = 400;
    for (int64_t i = between(1, 1200); i > 0; --i) {
      inputs.push_back(random({between(0, 9), between(0, i % 50 == 0 ? 9000 : 40)}));
      size += inputs.back().numel() + 3;
    }
    inputs.push_back(random({5, 70}, Layout::swapped));
    const Tensor buffer = random({size});
    Doubles want = doubles(buffer);
    int64_t at = between(0, 3);
    for (const Tensor& x : inputs) {
      all.push_back({buffer.window(x.shape(), contiguous_strides(x.shape()), at), x});
      const Doubles values = doubles(x);
      for (size_t i = 0; i < values.size(); ++i) {
        double& element = want[size_t(at) + i];
        element = add ? double(float(element) + float(values[i])) : values[i];
      }
      at += x.numel() + between(0, 3);
    }
    backend().copy_many(all, add);
    EXPECT_EQ(doubles(buffer), want);
  }
  backend().copy_many({}, true);
}

// Copies of factors of padded ranks lie so, where the padding stays, and their gradients.
TEST(CopyMany, of_rows_with_gaps_in_the_tested_dtype) {
  for (const bool add : {false, true}) {
    std::vector<Tensor> inputs, outputs, wants;
    std::vector<Copied> all;
    for (int64_t i = between(1, 900); i > 0; --i) {
      const int64_t rows = between(1, 40), cols = between(1, 9), width = cols + between(0, 5);
      const int64_t x_width = cols + between(0, 1) * between(1, 5);
      const Tensor y = random({rows, width}, Layout::packed, activations()),
                   x = random({rows, x_width}).window({rows, cols}, {x_width, 1});
      const Tensor sums = poisoned({rows, width}), want = poisoned({rows, width}, Layout::packed, activations());
      cpu_backend().copy(sums, y);
      for (int64_t at = 0; at < x.numel(); ++at) {
        float& sum = sums.data<float>()[at / cols * width + at % cols];
        sum = x.data<float>()[at / cols * x_width + at % cols] + (add ? sum : 0);
      }
      cpu_backend().copy(want, sums);
      all.push_back({y.window({rows, cols}, {width, 1}), x});
      inputs.push_back(x), outputs.push_back(y), wants.push_back(want);
    }
    backend().copy_many(all, add);
    for (size_t i = 0; i < outputs.size(); ++i) expect_same_bits(outputs[i], wants[i], "copy_many");
  }
}

}  // namespace
}  // namespace wick
