// The choice of kernels for the LoRA linear, and their tilings, on devices that need not be there.
#include <gtest/gtest.h>

#include <cstdlib>

#include "wick/backend/cuda/linear/gemm_sm80.h"
#include "wick/backend/cuda/linear/lora_few_rows.h"
#include "wick/backend/cuda/linear/lora_product.h"
#include "wick/core/rng.h"

namespace wick {
namespace {

constexpr int kKiB = 1024;
const Gpu kTuring(75, 72, 64 * kKiB), kAmpere(86, 82, 100 * kKiB), kAda(89, 128, 100 * kKiB),
    kHopper(90, 132, 228 * kKiB), kLater(120, 170, 100 * kKiB);

// Never dereferenced: plans look at addresses only to see whether they are aligned.
void* const kSomewhere = reinterpret_cast<void*>(uintptr_t{1} << 20);

DeviceMatrix matrix(int64_t rows, int64_t cols, DType dtype = DType::bf16) {
  return {kSomewhere, dtype, rows, cols, cols, false};
}

// y [m, n] of x [m, k] by a linear with a LoRA of rank r, forward; all in one group.
ExtendedGemm forward(int64_t m, int64_t k, int64_t n, int64_t r, DType dtype = DType::bf16) {
  const int64_t padded = (r + 7) / 8 * 8;
  ExtendedGemm g{.y = matrix(m, n, dtype), .x = matrix(m, k, dtype), .w = matrix(n, k, dtype).t()};
  g.low = matrix(m, padded, dtype);
  DeviceMatrix up = matrix(n, padded, dtype), down = matrix(r, k, dtype);
  up.cols = r;
  g.groups[size_t(g.group_count++)] = {.f = up.t(), .p = down.t()};
  return g;
}

class Plans : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("WICK_CUDA_LORA");
    unsetenv("WICK_CUDA_LORA_PLAN");
  }
  void TearDown() override { SetUp(); }
  int64_t between(int64_t least, int64_t most) { return least + int64_t(rng_.below(uint64_t(most - least + 1))); }
  Rng rng_{11};
};

TEST_F(Plans, EachDeviceHasItsWay) {
  const ExtendedGemm g = forward(1024, 1280, 1280, 32);
  EXPECT_FALSE(lora_product_fits(kTuring, g));
  EXPECT_EQ(plan_lora_product(kTuring, g).way, ProductWay::composed);
  for (const Gpu& gpu : {kAmpere, kAda}) {
    EXPECT_TRUE(lora_product_fits(gpu, g));
    EXPECT_EQ(plan_lora_product(gpu, g).way, ProductWay::mma);
  }
  EXPECT_EQ(plan_lora_product(kHopper, g).way, ProductWay::wgmma);
  EXPECT_EQ(plan_lora_product(kLater, g).way, ProductWay::composed);
}

TEST_F(Plans, WhatNoKernelOfOursReadsIsComposed) {
  ExtendedGemm odd = forward(100, 77, 64, 8), shifted = forward(100, 64, 64, 8);
  shifted.x.data = static_cast<char*>(kSomewhere) + 2;
  for (const Gpu& gpu : {kAmpere, kHopper})
    for (const ExtendedGemm& g : {odd, shifted, forward(100, 64, 63, 8), forward(100, 64, 64, 8, DType::f32)}) {
      EXPECT_FALSE(lora_product_fits(gpu, g));
      EXPECT_EQ(plan_lora_product(gpu, g).way, ProductWay::composed);
    }
}

TEST_F(Plans, AWayCanBePreferred) {
  const ExtendedGemm g = forward(1024, 1280, 1280, 32);
  setenv("WICK_CUDA_LORA", "composed", 1);
  EXPECT_EQ(plan_lora_product(kHopper, g).way, ProductWay::composed);
  setenv("WICK_CUDA_LORA", "mma64x64", 1);
  EXPECT_EQ(plan_lora_product(kHopper, g).way, ProductWay::mma);
  setenv("WICK_CUDA_LORA_PLAN", "32 2 2 128 5 64", 1);
  const GemmPlan plan = plan_gemm(kHopper, g);
  EXPECT_EQ(std::tuple(plan.slice, plan.parts, plan.consumers, plan.wide, plan.wide_tiles, plan.narrow),
            std::tuple(32, 2, 2, 128, 5, 64));
}

// Tiles cover all columns and none in vain; a shape's plan is always the same.
TEST_F(Plans, TilesCoverTheColumns) {
  for (int round = 0; round < 300; ++round) {
    const int64_t m = between(1, round % 3 ? 500 : 20000), k = 8 * between(1, 600), n = 8 * between(1, 1500);
    const int64_t r = between(1, 256);
    SCOPED_TRACE(testing::Message() << "m " << m << " k " << k << " n " << n << " rank " << r);
    const ExtendedGemm g = forward(m, k, n, r);
    const GemmPlan plan = plan_gemm(kHopper, g), again = plan_gemm(kHopper, g);
    EXPECT_EQ(std::tuple(plan.slice, plan.parts, plan.consumers, plan.wide, plan.wide_tiles, plan.narrow),
              std::tuple(again.slice, again.parts, again.consumers, again.wide, again.wide_tiles, again.narrow));
    const int64_t rest = std::max<int64_t>(n - int64_t(plan.wide) * plan.wide_tiles, 0);
    EXPECT_LT(int64_t(plan.wide) * (plan.wide_tiles - 1), n);
    EXPECT_LE(plan.narrow, plan.wide);
    EXPECT_LE(plan.wide, 256);
    EXPECT_TRUE(rest == 0 || plan.narrow >= 64);
    EXPECT_TRUE(plan.slice == 0 || plan.slice >= r);
    EXPECT_TRUE(plan.parts == 1 || plan.slice > 0);
  }
}

// SwiGLU has fewer widths to choose from; half of the columns are y's.
TEST_F(Plans, TilesOfGatesAndValuesCoverTheColumns) {
  for (int round = 0; round < 100; ++round) {
    const int64_t m = between(1, 5000), k = 8 * between(57, 600), f = 8 * between(1, 2000);
    SCOPED_TRACE(testing::Message() << "m " << m << " k " << k << " f " << f);
    const ExtendedGemm g{.y = matrix(m, f), .x = matrix(m, k), .w = matrix(2 * f, k).t(), .gated = true};
    ASSERT_TRUE(extended_gemm_fits(kHopper, g));
    const GemmPlan plan = plan_gemm(kHopper, g);
    EXPECT_EQ(std::tuple(plan.slice, plan.parts, plan.consumers), std::tuple(0, 1, 2));
    EXPECT_LT(int64_t(plan.wide) * (plan.wide_tiles - 1), 2 * f);
    EXPECT_GE(plan.narrow, 128);
    EXPECT_LE(plan.narrow, plan.wide);
  }
}

TEST_F(Plans, GatesAndValuesThatNoKernelTakes) {
  const ExtendedGemm g{.y = matrix(512, 256), .x = matrix(512, 512), .w = matrix(512, 512).t(), .gated = true};
  EXPECT_TRUE(extended_gemm_fits(kHopper, g));
  ExtendedGemm by_columns = g, short_sums = g;
  by_columns.w = matrix(512, 512);
  short_sums.x = matrix(512, 448);
  short_sums.w = matrix(512, 448).t();
  for (const ExtendedGemm& other : {by_columns, short_sums}) EXPECT_FALSE(extended_gemm_fits(kHopper, other));
  EXPECT_FALSE(extended_gemm_fits(kAda, g));
}

// One launch instead of two where launches dominate.
TEST_F(Plans, SmallProductsMakeTheirOwnLow) {
  EXPECT_TRUE(plan_lora_product(kHopper, forward(77, 768, 768, 16)).makes_low());
  EXPECT_TRUE(plan_lora_product(kHopper, forward(4096, 640, 640, 32)).makes_low());
  EXPECT_FALSE(plan_lora_product(kHopper, forward(4096, 4096, 14336, 16)).makes_low());
  EXPECT_FALSE(plan_lora_product(kHopper, forward(77, 768, 768, 100)).makes_low());
}

TEST_F(Plans, FewRowsAreOneLaunch) {
  EXPECT_TRUE(few_rows_fit(kHopper, 77, 16));
  EXPECT_TRUE(few_rows_fit(kHopper, 512, 64));
  EXPECT_FALSE(few_rows_fit(kHopper, 4096, 16));
  EXPECT_FALSE(few_rows_fit(kHopper, 77, 65));
  EXPECT_FALSE(few_rows_fit(kAda, 77, 16));
}

// Larger products take longer, and no tile is larger than the device's shared memory.
TEST_F(Plans, TilesOfOlderDevices) {
  double before = 0;
  for (const int64_t side : {256, 1024, 4096, 8192}) {
    const MmaPlan plan = plan_mma_gemm(kAda, forward(side, side, side, 16));
    EXPECT_GT(plan.microseconds, before);
    before = plan.microseconds;
  }
  EXPECT_EQ(name_of(plan_mma_gemm(kAda, forward(16, 768, 768, 16)).tile), "mma32x64");
  EXPECT_EQ(name_of(plan_mma_gemm(kAda, forward(8192, 4096, 8192, 16)).tile), "mma128x256");
}

}  // namespace
}  // namespace wick
