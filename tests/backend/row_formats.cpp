// Quantised rows on a backend: the bits of core/row_formats.h, and products that are those of the decoded weight.
#include "wick/core/row_formats.h"

#include "backend/few_tokens.h"
#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

constexpr DType kFormats[] = {DType::fp8, DType::fp8_block,  DType::int8,
                              DType::nf4, DType::nf4_double, DType::fp8_product};

// Those of fp8_product are of codes (fp8.cpp).
constexpr DType kDecoded[] = {DType::fp8, DType::fp8_block, DType::int8, DType::nf4, DType::nf4_double};

// Also rows of 8-bit codes that are no whole words.
int64_t width_of(DType dtype, int64_t most) {
  return row_format(dtype).run == 0 ? between(1, 64 * most) : between(1, most) * row_format(dtype).run;
}

Tensor random_rows(const Shape& shape, DType dtype) {
  const Tensor w = Tensor::empty(shape, dtype);
  const std::vector<float> x = random(shape).to_vector();
  quantize_rows(w.data<void>(), dtype, x.data(), shape[0], shape[1]);
  return w;
}

size_t bytes_in(const Tensor& w) { return size_t(w.dim(0) * row_bytes(w.dtype(), w.dim(1))); }

TEST(RowFormats, DecodeToTheirElements) {
  for (const DType dtype : kFormats)
    for (const DType to : {DType::f32, DType::bf16, DType::f16})
      for (const Layout layout : kLayouts) {
        const Tensor all = random_rows({between(3, 40), width_of(dtype, 6)}, dtype);
        const Tensor w = all.window({all.dim(0) - 2, all.dim(1)}, all.stride(), all.dim(1));  // not from the first row
        const Tensor y = poisoned(w.shape(), layout, to), want = Tensor::empty(w.shape(), to);
        backend().copy(y, w);
        cpu_backend().copy(want, Tensor::of(w.to_vector(), w.shape()));
        expect_same_bits(y, want, "decoded");
      }
}

TEST(RowFormats, CopyAsTheyLie) {
  for (const DType dtype : kFormats) {
    const Tensor w = random_rows({between(1, 9), width_of(dtype, 4)}, dtype), y = Tensor::empty(w.shape(), dtype);
    backend().copy(y, w);
    EXPECT_EQ(std::memcmp(y.data<void>(), w.data<void>(), bytes_in(w)), 0) << name_of(dtype);
  }
}

TEST(RowFormats, QuantiseRowsOfAnyLayout) {
  for (const DType dtype : kFormats)
    for (const DType from : {DType::f32, DType::bf16, DType::f16})
      for (const Layout layout : kLayouts) {
        const Tensor x = random({between(1, 300), width_of(dtype, 6)}, layout, from);
        const Tensor got = Tensor::empty(x.shape(), dtype), want = Tensor::empty(x.shape(), dtype);
        for (const Tensor& t : {got, want}) std::memset(t.data<void>(), 0, bytes_in(t));
        backend().copy(got, x);
        const std::vector<float> values = x.to_vector();
        quantize_rows(want.data<void>(), dtype, values.data(), x.dim(0), x.dim(1));
        EXPECT_EQ(got.to_vector(), want.to_vector()) << name_of(dtype);
        EXPECT_EQ(std::memcmp(got.data<void>(), want.data<void>(), size_t(x.dim(1) * row_format(dtype).bits / 8)), 0);
      }
}

// Whether products of a few rows may have a kernel that reads the codes (FewTokens... below).
bool reads_codes() { return !on_cpu() && activations() != DType::f32; }

// The same call with the weight decoded beforehand has the same bits: the decoded one is rounded to what the device
// computes with, and goes the same way. (The CPU has another one for one row of floats.)
TEST(RowFormats, ProductsAreThoseOfTheDecodedWeight) {
  const DType activations = probe::activations();
  for (const DType dtype : kDecoded)
    for (int round = 0; round < rounds(4); ++round) {
      const int64_t m = between(on_cpu()        ? 2
                                : reads_codes() ? 33
                                                : 1,
                                60),
                    n = 2 * between(1, 40), k = width_of(dtype, 3), r = between(1, 12);
      const Tensor w = random_rows({n, k}, dtype), decoded = Tensor::empty({n, k}, activations);
      cpu_backend().copy(decoded, Tensor::of(w.to_vector(), w.shape()));
      const Tensor x = input({m, k}, kLayouts[rng().below(4)]), dy = input({m, n}, kLayouts[rng().below(4)]);
      const Tensor bias = between(0, 1) ? random({n}) : Tensor(), residual = between(0, 1) ? input({m, n}) : Tensor();
      const Tensor down = random({r, k}), up = random({n, r});
      const LoraFactors lora{down, {{up, 0, 0, 0.5f}}};
      const auto same = [&](const char* what, const Shape& shape, const auto& call) {
        const Tensor got = output(shape, Layout::gapped), want = output(shape, Layout::gapped);
        call(got, w);
        call(want, decoded);
        expect_same_bits(got, want, what);
      };
      same("linear", {m, n}, [&](const View& y, const View& by) { backend().linear(y, x, by, bias, residual); });
      same("gated", {m, n / 2}, [&](const View& y, const View& by) { backend().gated_linear(y, x, by, bias); });
      same("matmul", {m, k}, [&](const View& y, const View& by) { backend().matmul(y, dy, by, 1, 0); });
      same("LoRA", {m, n}, [&](const View& y, const View& by) {
        backend().lora_linear({.y = y, .x = x, .w = by, .bias = bias, .lora = lora, .residual = residual});
      });
      const Tensor s = input({m, r});
      same("LoRA's dx", {m, k}, [&](const View& dx, const View& by) {
        const Tensor ddown = poisoned({r, k}), dup = poisoned({n, r});
        backend().lora_linear_backward({.s = s, .x = x, .w = by, .lora = lora},
                                       {.dx = dx, .ddown = ddown, .dups = {dup}, .dy = dy});
      });
    }
}

// A weight whose first row is not the first of its storage, and whose scales have bytes like codes of NaN.
Tensor weight_of_few_rows(int64_t n, int64_t k, DType dtype) {
  const Tensor all = random_rows({n + 1, k}, dtype);
  const RowLayout layout = row_layout(dtype, k);
  if (!row_format(dtype).nested)
    for (int64_t row = 0; row <= n; ++row)
      for (int64_t run = 0; run < layout.count; ++run) {
        uint8_t* const scale = all.data<uint8_t>() + row * layout.bytes + layout.scales + 4 * run;
        scale[0] = scale[1] = uint8_t(between(0, 1) ? 0x7f : 0xff);
      }
  return all.window({n, k}, all.stride(), k);
}

// A few tokens of 16 bits are multiplied with the codes' exact numbers, or with nf4's values rounded to 16 bits; where
// the kernel does not take a width, or as many tokens, with weights that are rounded.
TEST(RowFormats, FewTokensAreAsExactAsTheirCodes) {
  if (on_cpu()) GTEST_SKIP() << "for devices";
  for (const DType dtype : kDecoded)
    for (const DType activations : {DType::bf16, DType::f16})
      for (const int64_t m : {1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 32, 33}) {
        const bool is_wide = m == 5;  // more tiles than blocks run at once
        const int64_t n = is_wide ? between(6400, 7000) : between(1, 70);
        const int64_t run = row_format(dtype).run, unit = run > 0 ? run : between(0, 3) ? 8 : 1;
        const int64_t k = unit * between(1, (is_wide ? 512 : m == 1 ? 9000 : 4000) / unit);
        const bool exact = m <= 32 && k % 8 == 0 && row_format(dtype).bits == 8 && !std::getenv("WICK_CUDA_CAPABILITY");
        FewTokens(m, weight_of_few_rows(n, k, dtype), activations).expect_product(exact, 8);  // 8: of the scales
      }
}

// A product in f32 of all values that a code may have: each is at its place, with its sign.
TEST(RowFormats, EveryCodeCountsItsValue) {
  for (const DType dtype : {DType::fp8, DType::int8, DType::nf4})
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      if (on_cpu() && type != DType::f32) continue;
      const int64_t k = 256, n = 512;
      const Tensor w = random_rows({n, k}, dtype), x = Tensor::empty({1, k}, type),
                   y = poisoned({1, n}, Layout::packed, type);
      for (int64_t row = 0; row < n; ++row)
        for (int64_t i = 0; i < k; ++i) {
          const uint8_t code = uint8_t(row + i);
          const bool is_nan = (code & 0x7f) == 0x7f && dtype == DType::fp8;
          if (row_format(dtype).bits == 8)
            w.data<uint8_t>()[row * row_layout(dtype, k).bytes + i] = is_nan ? 0 : code;
          else if (i % 2 == 0)
            w.data<uint8_t>()[row * row_layout(dtype, k).bytes + i / 2] = code;
        }
      const Doubles all = doubles(w);
      for (int64_t at = 0; at < k; at += between(1, 40)) {
        std::memset(x.data<void>(), 0, size_t(k) * size_of(type));
        if (type == DType::f32)
          x.data<float>()[at] = 1;
        else
          x.data<uint16_t>()[at] = type == DType::bf16 ? f32_to_bf16(1) : f32_to_f16(1);
        backend().linear(y, x, w, {});
        Doubles want;
        for (int64_t row = 0; row < n; ++row) want.push_back(all[size_t(row * k + at)]);
        expect_close(y, want, row_format(dtype).bits == 4 && type != DType::f32 ? unit_roundoff(type) : kEps,
                     "one element");
      }
    }
}

TEST(RowFormats, WhatIsNotFiniteShowsInItsColumnAlone) {
  for (const DType dtype : {DType::fp8, DType::fp8_block, DType::int8, DType::nf4})
    for (const DType type : {DType::f32, DType::bf16, DType::f16})
      for (const int64_t m : {1, 3, 8, 11})
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
          if (on_cpu() && type != DType::f32) continue;
          const int64_t n = between(2, 40), k = 128 * between(1, 9), row = between(0, n - 1);
          const Tensor values = random({n, k}), w = Tensor::empty({n, k}, dtype);
          values.data<float>()[row * k + between(0, k - 1)] = bad;
          quantize_rows(w.data<void>(), dtype, values.data<float>(), n, k);
          const Tensor x = random({m, k}, Layout::packed, type), y = poisoned({m, n}, Layout::packed, type);
          backend().linear(y, x, w, {});
          const std::vector<float> got = y.to_vector();
          for (int64_t i = 0; i < m * n; ++i)
            ASSERT_EQ(std::isfinite(got[size_t(i)]), i % n != row) << name_of(dtype) << " at " << i;
        }
}

TEST(RowFormats, GatedOnesHaveTheBitsOfTheirParts) {
  for (const DType dtype : kDecoded)
    for (const int64_t m : {1, 1, 2, 7, 12, 32, 33}) {
      const int64_t n = 2 * between(1, 60), k = width_of(dtype, 6);
      const Tensor w = random_rows({n, k}, dtype), x = input({m, k}), bias = between(0, 1) ? random({n}) : Tensor();
      const Tensor wide = output({m, n}), y = output({m, n / 2}, Layout::gapped),
                   want = output({m, n / 2}, Layout::gapped);
      backend().gated_linear(y, x, w, bias);
      backend().linear(wide, x, w, bias);
      backend().swiglu(want, wide);
      expect_same_bits(y, want, "gated");
    }
}

}  // namespace
}  // namespace wick
