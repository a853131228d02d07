// Weights in blocks: decoding, quantising, and the linear layers and tables that read them.
#include "wick/core/blocks.h"
#include "wick/backend/cpu/parallel.h"

#include <hwy/targets.h>
#include "backend/few_tokens.h"
#include "backend/probe.h"
#include "wick/backend/cpu/blocks.h"

namespace wick {
namespace {

using namespace probe;

constexpr DType kBlockTypes[] = {DType::q8_0, DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k};

// Random blocks, with scales that make values of about one.
template <class Block>
void set_scales(Block& block) {
  const auto scale = [](double size) { return f32_to_f16(float(size * (rng().uniform() - 0.5))); };
  if constexpr (requires { block.dmin; }) {
    block.d = scale(1e-3);
    block.dmin = scale(1e-2);
  } else {
    block.d = scale(sizeof(Block) == sizeof(Q4Block) ? 0.1 : sizeof(Block) == sizeof(Q8Block) ? 0.01 : 3e-4);
  }
}

Tensor random_blocks(const Shape& shape, DType dtype, int64_t gap = 0) {
  Shape outer = shape;
  outer[1] += gap * block_of(dtype).elements;
  const Tensor w = Tensor::empty(outer, dtype);
  const int64_t bytes = bytes_of(dtype, outer.numel());
  for (int64_t i = 0; i < bytes; ++i) w.data<uint8_t>()[i] = uint8_t(rng().below(256));
  for_block_type(dtype, [&]<class Block>(Block*) {
    for (int64_t i = 0; i < outer.numel() / Block::kElements; ++i) set_scales(w.data<Block>()[i]);
  });
  return w.window(shape, w.stride());
}

// A width of some blocks.
int64_t width_of(DType dtype, int64_t most) { return between(1, most) * block_of(dtype).elements; }

TEST(Blocks, DecodeToTheirElements) {
  for (const DType dtype : kBlockTypes)
    for (const int64_t gap : {0, 1}) {
      const Tensor w = random_blocks({7, width_of(dtype, 5)}, dtype, gap), y = poisoned(w.shape());
      backend().copy(y, w);
      expect_same_bits(y, w, "decoded");
      const Tensor spread = poisoned(w.shape(), Layout::swapped);
      backend().copy(spread, w);
      expect_same_bits(spread, w, "decoded to other strides");
      const Tensor half = poisoned(w.shape(), Layout::packed, DType::bf16),
                   want = poisoned(w.shape(), Layout::packed, DType::bf16);
      backend().copy(half, w);
      backend().copy(want, y);
      expect_same_bits(half, want, "decoded to bf16");
      const Tensor same = Tensor::empty(w.shape(), dtype);
      backend().copy(same, w);
      expect_same_bits(same, w, "copied");
    }
}

TEST(Blocks, QuantiseRowsOfAnyLayout) {
  for (const DType dtype : kBlockTypes)
    for (const Layout layout : kLayouts)
      for (const DType from : {DType::f32, DType::f16}) {
        const Tensor x = random({5, width_of(dtype, 4)}, layout, from), got = Tensor::empty(x.shape(), dtype);
        const Tensor want = Tensor::empty(x.shape(), dtype);
        backend().copy(got, x);
        const std::vector<float> values = x.to_vector();
        quantize_blocks(want.data<void>(), dtype, values.data(), x.numel());
        EXPECT_EQ(std::memcmp(got.data<void>(), want.data<void>(), size_t(bytes_of(dtype, x.numel()))), 0);
      }
}

// x w^T + bias + residual in f64, and the error allowed for f32's rounding and activations of 8 bits.
struct Product {
  Doubles values, tolerances;

  Product(const Tensor& x, const Tensor& w, const Tensor& bias, bool rounded, const Tensor& residual = {}) {
    const Doubles a = doubles(x), b = doubles(w), shift = bias ? doubles(bias) : Doubles(size_t(w.dim(0)), 0.0);
    const size_t k = size_t(w.dim(1)), rows = a.size() / k;
    const Doubles start = residual ? doubles(residual) : Doubles(rows * shift.size(), 0.0);
    for (size_t m = 0; m < rows; ++m)
      for (size_t n = 0; n < size_t(w.dim(0)); ++n) {
        const double begin = start[m * shift.size() + n];
        double sum = shift[n] + begin, sizes = std::abs(shift[n]) + std::abs(begin), rounding = 0;
        for (size_t block = 0; block < k; block += 32) {
          double largest = 0, weights = 0;
          for (size_t i = block; i < block + 32; ++i) {
            const double p = a[m * k + i] * b[n * k + i];
            sum += p;
            sizes += std::abs(p);
            largest = std::max(largest, std::abs(a[m * k + i]));
            weights += std::abs(b[n * k + i]);
          }
          rounding += largest / 254 * (1 + 1e-5) * weights;
        }
        values.push_back(sum);
        tolerances.push_back(kEps * double(k) * sizes + (rounded ? rounding + kEps * double(k) * rounding : 0));
      }
  }

  void expect(const Tensor& y, const std::string& what) const {
    const std::vector<float> got = y.to_vector();
    ASSERT_EQ(got.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_LE(std::abs(got[i] - values[i]), tolerances[i])
          << what << " at " << i << ": got " << got[i] << ", want " << values[i];
  }
};

// Whether products of bytes may run, which round the activations.
bool may_round(DType dtype) {
  return on_cpu() && is_block(dtype) && (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3)) != 0;
}

TEST(Blocks, LinearIsWithinWhatItsRoundingExplains) {
  for (const DType dtype : kBlockTypes)
    for (const int64_t m : {1, 2, 3, 7, 8, 9, 16, 21, 40})
      for (int round = 0; round < rounds(4); ++round) {
        const int64_t n = between(1, 70), k = width_of(dtype, block_of(dtype).elements == 32 ? 9 : 3);
        const Tensor w = random_blocks({n, k}, dtype, between(0, 1));
        const Tensor x = random({m, k}, kLayouts[rng().below(4)]), y = poisoned({m, n}, kLayouts[rng().below(4)]);
        const Tensor bias = rng().below(2) ? random({n}) : Tensor();
        const Tensor residual = rng().below(2) ? random({m, n}, kLayouts[rng().below(4)]) : Tensor();
        backend().linear(y, x, w, bias, residual);
        Product(x, w, bias, may_round(dtype), residual)
            .expect(y, std::string(name_of(dtype)) + " M " + std::to_string(m));
      }
}

// Arithmetic that rounds no activations is as exact as f32: the wider bound must not hide a slip there.
TEST(Blocks, OneRowOfFloatsIsExact) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t k : {32, 96, 352}) {
      const Tensor wide = random({13, k + 32}, Layout::packed, dtype), w = wide.window({13, k}, wide.stride());
      const Tensor x = random({1, k}), y = poisoned({1, 13}), bias = random({13});
      backend().linear(y, x, w, bias);
      Product(x, w, bias, false).expect(y, std::string(name_of(dtype)));
    }
}

// The kernel for processors without products of bytes.
TEST(Blocks, OneRowInFloatsIsExact) {
  if (!on_cpu()) GTEST_SKIP() << "for the CPU";
  for (const DType dtype : kBlockTypes) {
    const int64_t n = between(1, 40), k = width_of(dtype, 3);
    const Tensor w = random_blocks({n, k}, dtype, 1), x = random({1, k}), y = poisoned({1, n});
    ASSERT_TRUE(linear_one_row(row_major(y.data<float>(), 1, n), row_major(x.data<float>(), 1, k), w, nullptr));
    Product(x, w, {}, false).expect(y, std::string(name_of(dtype)));
  }
}

// 16-bit activations: a few tokens use the blocks' exact numbers there too; for many the weight is rounded.
TEST(Blocks, FewTokensOf16BitsAreExact) {
  if (on_cpu()) GTEST_SKIP() << "for devices";
  std::vector<DType> types(std::begin(kBlockTypes), std::end(kBlockTypes));
  types.insert(types.end(), {DType::bf16, DType::f16});
  for (const DType dtype : types)
    for (const DType activations : {DType::bf16, DType::f16})
      for (const int64_t m : {1, 2, 5, 8, 9, 17, 32, 45}) {
        if (!is_block(dtype) && dtype != activations) continue;
        const bool wide = m == 5;  // more tiles than blocks run at once
        const int64_t chunks = m == 1 ? between(8, 40) : between(1, wide ? 2 : 19);
        const int64_t n = wide ? between(6400, 8000) : between(1, 70);
        const int64_t k = chunks * (is_block(dtype) ? 256 : 128);
        // Rows that start at multiples of 256 elements, as the few-rows kernel wants them.
        const Tensor w = is_block(dtype) ? random_blocks({n, k}, dtype, between(0, 1) * 256 / block_of(dtype).elements)
                                         : random({n, k}, Layout::packed, dtype);
        const bool exact = m <= (is_block(dtype) ? 32 : 8) && !std::getenv("WICK_CUDA_CAPABILITY");
        FewTokens(m, w, activations).expect_product(exact, 0);
      }
}

// SwiGLU behind a linear, in the few-rows kernel's epilogue or as a call of its own.
TEST(GatedLinear, HasTheBitsOfItsParts) {
  const DType activations = probe::activations();
  for (const DType dtype : {activations, DType::q8_0, DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k})
    for (const int64_t m : {1, 1, 2, 7, 12}) {
      const int64_t n = 2 * between(1, 60), k = 256 * between(1, 9);
      const Tensor w = is_block(dtype) ? random_blocks({n, k}, dtype) : random({n, k}, Layout::packed, dtype);
      const Tensor x = random({m, k}, Layout::packed, activations), bias = between(0, 1) ? random({n}) : Tensor();
      const Tensor wide = poisoned({m, n}, Layout::packed, activations);
      const Tensor y = poisoned({m, n / 2}, Layout::gapped, activations),
                   want = poisoned({m, n / 2}, Layout::gapped, activations);
      backend().gated_linear(y, x, w, bias);
      backend().linear(wide, x, w, bias);
      backend().swiglu(want, wide);
      expect_same_bits(y, want, "gated");
    }
}

// The mean of the rounding is far below its bound, and without a trend: an uncorrected offset would show.
TEST(Blocks, RoundedActivationsHaveNoTrend) {
  if (!on_cpu()) GTEST_SKIP() << "devices round no activations";
  constexpr int kDraws = 8;  // outputs of one row of x share its roundings
  const int64_t n = 64, k = 512;
  for (const DType dtype : kBlockTypes)
    for (const int64_t m : {1, 6}) {
      const double count = double(m * n);
      double squares = 0;
      for (int draw = 0; draw < kDraws; ++draw) {
        const Tensor w = random_blocks({n, k}, dtype), x = random({m, k}), y = poisoned({m, n});
        backend().linear(y, x, w, {});
        const Product want(x, w, {}, true);
        const std::vector<float> got = y.to_vector();
        double errors = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          errors += (got[i] - want.values[i]) / want.tolerances[i];
          squares += std::pow((got[i] - want.values[i]) / want.tolerances[i], 2);
        }
        EXPECT_LT(std::abs(errors / count), 0.06 * 5 / std::sqrt(count)) << name_of(dtype);
      }
      // A sum of 512 independent errors, uniform within their bounds, deviates by a fortieth of the bound.
      EXPECT_LT(std::sqrt(squares / (kDraws * count)), 0.06) << name_of(dtype);
    }
}

TEST(Blocks, WhatIsNotFiniteShowsInItsRowAlone) {
  for (const DType dtype : kBlockTypes)
    for (const int64_t m : {1, 9})
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const int64_t k = 512, n = 20;
        const Tensor w = random_blocks({n, k}, dtype), x = random({m, k}), y = poisoned({m, n});
        x.data<float>()[(m - 1) * k + 300] = bad;
        backend().linear(y, x, w, {});
        for (int64_t i = 0; i < m * n; ++i)
          EXPECT_EQ(std::isfinite(y.data<float>()[i]), i / n != m - 1) << name_of(dtype) << " at " << i;
      }
}

TEST(Blocks, ZerosAndTinyActivations) {
  for (const DType dtype : {DType::q8_0, DType::q4_0})
    for (const int64_t m : {1, 4}) {
      const Tensor w = random_blocks({17, 96}, dtype), x = random({m, 96}), y = poisoned({m, 17});
      for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] *= i % 96 < 32 ? 0 : i % 96 < 64 ? 1e-37f : 1e-30f;
      backend().linear(y, x, w, {});
      for (int64_t i = 0; i < y.numel(); ++i) EXPECT_LT(std::abs(y.data<float>()[i]), 1e-26f);
    }
}

TEST(Blocks, GradientOfTheInputIsExact) {
  for (const DType dtype : kBlockTypes) {
    const int64_t n = between(100, 300), k = width_of(dtype, 3), m = between(1, 12);
    const Tensor w = random_blocks({n, k}, dtype), dy = random({m, n}, kLayouts[rng().below(4)]), dx = poisoned({m, k});
    backend().matmul(dx, dy, w, 1, 0);
    const Doubles a = doubles(dy), b = doubles(w);
    Doubles want(size_t(m * k));
    double largest = 0;
    for (size_t i = 0; i < size_t(m); ++i)
      for (size_t j = 0; j < size_t(n); ++j)
        for (size_t c = 0; c < size_t(k); ++c) want[i * size_t(k) + c] += a[i * size_t(n) + j] * b[j * size_t(k) + c];
    for (const double value : b) largest = std::max(largest, std::abs(value));
    expect_close(dx, want, kEps * double(n) * std::max(1.0, largest), "dx");
  }
}

TEST(Blocks, UnderALora) {
  for (const DType dtype : kBlockTypes)
    for (const int64_t m : {1, 11}) {
      const int64_t n = 37, k = width_of(dtype, 2), r = 4;
      const Tensor w = random_blocks({n, k}, dtype), x = random({m, k}), up = random({n, r}), down = random({r, k});
      const Tensor dy = random({m, n}), y = poisoned({m, n}), plain = poisoned({m, n}), s = poisoned({m, r});
      const LoraFactors lora{down, {{up, 0, 0, 0.5f}}, {}};
      backend().lora_linear({.y = y, .s = s, .x = x, .w = w, .lora = lora});
      backend().linear(plain, x, w, {});
      Doubles want = doubles(plain);
      const Doubles low = doubles(s), b = doubles(up);
      for (size_t i = 0; i < want.size(); ++i)
        for (size_t j = 0; j < size_t(r); ++j)
          want[i] += 0.5 * low[i / size_t(n) * size_t(r) + j] * b[i % size_t(n) * size_t(r) + j];
      double largest = 1;
      for (const double value : want) largest = std::max(largest, std::abs(value));
      expect_close(y, want, kEps * 8 * largest, "lora_linear");

      const Tensor values = poisoned({n, k}), dx = poisoned({m, k}), same = poisoned({m, k});
      backend().copy(values, w);
      backend().lora_linear_backward({.s = s, .x = x, .w = w, .lora = lora}, {.dx = dx, .dy = dy});
      backend().lora_linear_backward({.s = s, .x = x, .w = values, .lora = lora}, {.dx = same, .dy = dy});
      double scale = 1;
      for (const double value : doubles(same)) scale = std::max(scale, std::abs(value));
      expect_close(dx, doubles(same), kEps * double(n + k) * scale, "dx under a LoRA");
    }
}

TEST(Blocks, TablesAreReadByTheRow) {
  for (const DType dtype : kBlockTypes) {
    const Tensor table = random_blocks({9, width_of(dtype, 2)}, dtype, 1);
    const Tensor ids = Tensor::of(std::vector<int64_t>{8, 0, 3, 8}, {4}), y = poisoned({4, table.dim(1)});
    backend().embedding(y, table, ids);
    for (int64_t i = 0; i < 4; ++i)
      expect_same_bits(y.window({table.dim(1)}, {1}, i * table.dim(1)),
                       table.window({table.dim(1)}, {1}, ids.data<int64_t>()[i] * table.stride()[0]), "row");
  }
}

TEST(Blocks, SameBitsOnAnyNumberOfThreads) {
  const int threads = thread_count();
  for (const DType dtype : kBlockTypes)
    for (const int64_t m : {1, 5, 70}) {
      const Tensor w = random_blocks({333, 512}, dtype), x = random({m, 512}), y = poisoned({m, 333}),
                   again = poisoned({m, 333});
      set_thread_count(1);
      backend().linear(y, x, w, {});
      set_thread_count(3);
      backend().linear(again, x, w, {});
      set_thread_count(threads);
      expect_same_bits(y, again, "threads");
      backend().linear(y, x, w, {});
      backend().linear(again, x, w, {});
      expect_same_bits(y, again, "twice");
    }
}

TEST(Blocks, OtherOperationsSayThatTheyCannot) {
  const Tensor w = random_blocks({4, 64}, DType::q8_0), y = poisoned({4, 64}), turned = poisoned({64, 4});
  const auto refused = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find("q8_0"), std::string_view::npos) << error.what();
    }
  };
  refused([&] { backend().unary(Unary::silu, y, w); });
  refused([&] { backend().unary(Unary::silu, w, y); });
  refused([&] { backend().binary(Binary::add, y, y, w); });
  refused([&] { backend().accumulate(w, y, 1); });
  refused([&] { backend().fill(w, 1); });
  refused([&] { backend().copy(turned, w.window({64, 4}, {1, 64})); });
}

}  // namespace
}  // namespace wick
