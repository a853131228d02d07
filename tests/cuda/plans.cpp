// Which kernels attention, linears and LoRAs take, and how they cut their work, for devices that need not be there.
#include <gtest/gtest.h>

#include <cstdlib>

#include "wick/backend/cuda/attention/plan.h"
#include "wick/backend/cuda/kernels.h"
#include "wick/backend/cuda/linear/extended_gemm.h"
#include "wick/backend/cuda/linear/fp8.h"
#include "wick/backend/cuda/linear/lora_products.h"
#include "wick/backend/cuda/linear/plan.h"
#include "wick/core/error.h"
#include "wick/core/rng.h"

namespace wick {
namespace {

constexpr int kKiB = 1024;
const Gpu kTuring(75, 72, 64 * kKiB), kA100(80, 108, 164 * kKiB), kAmpere(86, 82, 100 * kKiB),
    kAda(89, 128, 100 * kKiB), kHopper(90, 132, 228 * kKiB), kBlackwell(100, 148, 228 * kKiB),
    kLater(120, 170, 100 * kKiB);
// In the order of the tables below: 7.5, 8.0, 8.6, 8.9, 9.0, 10.0, 12.0.
const Gpu kAll[] = {kTuring, kA100, kAmpere, kAda, kHopper, kBlackwell, kLater};

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
  void SetUp() override { unsetenv("WICK_CUDA_WAY"); }
  void TearDown() override { SetUp(); }
  int64_t between(int64_t least, int64_t most) { return least + int64_t(rng_.below(uint64_t(most - least + 1))); }
  Rng rng_{11};
};

TEST_F(Plans, EachDeviceHasItsWay) {
  const ExtendedGemm g = forward(1024, 1280, 1280, 32);
  EXPECT_FALSE(extended_gemm_fits(kTuring, g));
  EXPECT_EQ(plan_extended_gemm(kTuring, g).way, ProductWay::composed);
  for (const Gpu& gpu : {kAmpere, kAda}) {
    EXPECT_TRUE(extended_gemm_fits(gpu, g));
    EXPECT_EQ(plan_extended_gemm(gpu, g).way, ProductWay::mma);
  }
  EXPECT_EQ(plan_extended_gemm(kHopper, g).way, ProductWay::wgmma);
  EXPECT_EQ(plan_extended_gemm(kLater, g).way, ProductWay::composed);
}

TEST_F(Plans, WhatNoKernelOfOursReadsIsComposed) {
  ExtendedGemm odd = forward(100, 77, 64, 8), shifted = forward(100, 64, 64, 8);
  shifted.x.data = static_cast<char*>(kSomewhere) + 2;
  for (const Gpu& gpu : {kAmpere, kHopper})
    for (const ExtendedGemm& g : {odd, shifted, forward(100, 64, 63, 8), forward(100, 64, 64, 8, DType::f32)}) {
      EXPECT_FALSE(extended_gemm_fits(gpu, g));
      EXPECT_EQ(plan_extended_gemm(gpu, g).way, ProductWay::composed);
    }
}

TEST_F(Plans, AWayCanBePreferred) {
  const ExtendedGemm g = forward(1024, 1280, 1280, 32);
  setenv("WICK_CUDA_WAY", "lora:composed", 1);
  EXPECT_EQ(plan_extended_gemm(kHopper, g).way, ProductWay::composed);
  setenv("WICK_CUDA_WAY", "lora:mma,sm80:64x64", 1);
  EXPECT_EQ(to_string(plan_extended_gemm(kHopper, g)), "mma 64x64");
  setenv("WICK_CUDA_WAY", "sm90:32/2/2/128/5/64", 1);
  const GemmPlan plan = plan_gemm_sm90(kHopper, g);
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
    const GemmPlan plan = plan_gemm_sm90(kHopper, g), again = plan_gemm_sm90(kHopper, g);
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
    ASSERT_TRUE(gemm_sm90_fits(kHopper, g));
    const GemmPlan plan = plan_gemm_sm90(kHopper, g);
    EXPECT_EQ(std::tuple(plan.slice, plan.parts, plan.consumers), std::tuple(0, 1, 2));
    EXPECT_LT(int64_t(plan.wide) * (plan.wide_tiles - 1), 2 * f);
    EXPECT_GE(plan.narrow, 128);
    EXPECT_LE(plan.narrow, plan.wide);
  }
}

TEST_F(Plans, GatesAndValuesThatNoKernelTakes) {
  const ExtendedGemm g{.y = matrix(512, 256), .x = matrix(512, 512), .w = matrix(512, 512).t(), .gated = true};
  EXPECT_TRUE(gemm_sm90_fits(kHopper, g));
  ExtendedGemm by_columns = g, short_sums = g;
  by_columns.w = matrix(512, 512);
  short_sums.x = matrix(512, 448);
  short_sums.w = matrix(512, 448).t();
  for (const ExtendedGemm& other : {by_columns, short_sums}) EXPECT_FALSE(gemm_sm90_fits(kHopper, other));
  EXPECT_FALSE(gemm_sm90_fits(kAda, g));
}

// One launch instead of two where launches dominate.
TEST_F(Plans, SmallProductsMakeTheirOwnLow) {
  EXPECT_TRUE(plan_extended_gemm(kHopper, forward(77, 768, 768, 16)).makes_low());
  EXPECT_TRUE(plan_extended_gemm(kHopper, forward(4096, 640, 640, 32)).makes_low());
  EXPECT_FALSE(plan_extended_gemm(kHopper, forward(4096, 4096, 14336, 16)).makes_low());
  EXPECT_FALSE(plan_extended_gemm(kHopper, forward(77, 768, 768, 100)).makes_low());
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
    const MmaPlan plan = plan_gemm_sm80(kAda, forward(side, side, side, 16));
    EXPECT_GT(plan.microseconds, before);
    before = plan.microseconds;
  }
  EXPECT_EQ(plan_gemm_sm80(kAda, forward(16, 768, 768, 16)).tile, MmaTile::rows32_cols64);
  EXPECT_EQ(plan_gemm_sm80(kAda, forward(8192, 4096, 8192, 16)).tile, MmaTile::rows128_cols256);
}

// ---- tables: a row has the way on each device of kAll

template <class Plan>
std::string on_all(const Plan& plan) {
  std::string all;
  for (const Gpu& gpu : kAll) all += (all.empty() ? "" : " ") + std::string(plan(gpu));
  return all;
}

AttentionShape heads(int64_t queries, int64_t keys, int64_t count, int64_t features, DType dtype = DType::bf16) {
  return {1, queries, keys, count, count, features, dtype};
}

std::string attention(AttentionShape shape, bool backward = false, bool cudnn = true) {
  shape.backward = backward;
  return on_all([&](const Gpu& gpu) { return to_string(plan_attention(gpu, shape, cudnn)); });
}

TEST_F(Plans, Attention) {
  const AttentionShape self = heads(4096, 4096, 10, 64), cross = heads(1024, 77, 20, 64);
  EXPECT_EQ(attention(self), "rows mma mma mma wgmma cudnn cudnn");
  EXPECT_EQ(attention(heads(4429, 4429, 38, 64)), "rows mma mma mma wgmma cudnn cudnn");
  EXPECT_EQ(attention(heads(4096, 4096, 8, 40)), "rows mma mma mma cudnn cudnn cudnn");
  EXPECT_EQ(attention(heads(4608, 4608, 24, 128)), "rows mma mma mma cudnn cudnn cudnn");
  EXPECT_EQ(attention(self, true), "rows mma mma mma wgmma cudnn cudnn");
  EXPECT_EQ(attention(self, false, /*cudnn=*/false), "rows mma mma mma wgmma mma mma");
  EXPECT_EQ(attention(self, true, /*cudnn=*/false), "rows mma mma mma wgmma mma mma");
  EXPECT_EQ(attention(cross), "rows mma mma mma wgmma cudnn cudnn");
  EXPECT_EQ(attention(cross, true), "rows mma mma mma wgmma cudnn cudnn");
  EXPECT_EQ(attention(heads(77, 77, 12, 64)), "tiles mma mma mma wgmma cudnn cudnn");
  EXPECT_EQ(attention(heads(77, 77, 12, 64), true), "rows mma mma mma wgmma cudnn cudnn");
  EXPECT_EQ(attention(heads(4096, 15, 10, 64)), "tiles mma mma mma wgmma mma mma");
  EXPECT_EQ(attention(heads(4096, 4096, 10, 256)), "rows rows rows rows cudnn rows rows");
  EXPECT_EQ(attention(heads(4096, 4096, 1, 512), true), "rows rows rows rows rows rows rows");
  EXPECT_EQ(attention(heads(4096, 4096, 10, 64, DType::f32)), "tiles tiles tiles tiles tiles tiles tiles");
  EXPECT_EQ(attention(heads(4096, 4096, 10, 64, DType::f32), true), "rows tiles tiles tiles tiles tiles tiles");
  EXPECT_EQ(attention(heads(1024, 77, 10, 64, DType::f32)), "rows rows rows rows rows rows rows");
}

TEST_F(Plans, AttentionOfLanguageModels) {
  AttentionShape prompt{1, 512, 512, 32, 8, 128, DType::bf16, /*ranges=*/true}, token = prompt, unaligned = prompt;
  token.queries = 8;
  unaligned.aligned = false;
  EXPECT_EQ(attention(prompt), "rows mma mma mma wgmma mma mma");
  EXPECT_EQ(attention(prompt, true), "rows mma mma mma wgmma mma mma");
  EXPECT_EQ(attention(token), "rows few few few few few few");
  EXPECT_EQ(attention(token, true), "rows mma mma mma wgmma mma mma");
  EXPECT_EQ(attention(unaligned), "rows rows rows rows rows rows rows");
}

View tensor(const Shape& shape, DType dtype = DType::bf16) { return contiguous_view(kSomewhere, dtype, shape); }

std::string linear(int64_t m, int64_t k, int64_t n, DType weight, bool gated = false, DType dtype = DType::bf16) {
  const LinearCall call{
      matrix(m, n, dtype), matrix(m, k, dtype), tensor({gated ? 2 * n : n, k}, weight), {}, {}, gated};
  return on_all([&](const Gpu& gpu) { return to_string(plan_linear(gpu, call)); });
}

TEST_F(Plans, Linear) {
  const std::string few = " few_rows few_rows few_rows few_rows few_rows few_rows";
  const std::string large = "cublaslt cublaslt cublaslt cublaslt cublaslt cublaslt cublaslt";
  const std::string sliced = "sliced sliced sliced sliced sliced sliced sliced";
  EXPECT_EQ(linear(1, 4096, 4096, DType::bf16), "cublaslt" + few);
  EXPECT_EQ(linear(8, 4096, 14336, DType::bf16, true), "cublaslt" + few);
  EXPECT_EQ(linear(9, 4096, 4096, DType::bf16), large);
  EXPECT_EQ(linear(1, 4160, 4096, DType::bf16), large);
  EXPECT_EQ(linear(1, 4096, 4096, DType::f32, false, DType::f32), large);
  EXPECT_EQ(linear(32, 4096, 4096, DType::q8_0), "sliced" + few);
  EXPECT_EQ(linear(1, 4096, 14336, DType::q4_0, true), "sliced" + few);
  EXPECT_EQ(linear(33, 4096, 4096, DType::q8_0), sliced);
  EXPECT_EQ(linear(1, 4096, 4096, DType::q4_0, false, DType::f32), sliced);
  const std::string decoded = "decoded decoded decoded decoded decoded decoded decoded";
  for (const DType weight : {DType::nf4, DType::nf4_double, DType::int8, DType::fp8, DType::fp8_block}) {
    EXPECT_EQ(linear(1, 4096, 4096, weight), "decoded" + few) << name_of(weight);
    EXPECT_EQ(linear(32, 4096, 14336, weight, true), "decoded" + few) << name_of(weight);
    EXPECT_EQ(linear(1, 896, 4864, weight), "decoded" + few) << name_of(weight);
    EXPECT_EQ(linear(33, 4096, 4096, weight), decoded) << name_of(weight);
    EXPECT_EQ(linear(1, 4096, 4096, weight, false, DType::f32), decoded) << name_of(weight);
  }
  EXPECT_EQ(linear(1, 4104, 4096, DType::int8), "decoded" + few);
  EXPECT_EQ(linear(1, 4100, 4096, DType::int8), decoded);
  EXPECT_EQ(linear(512, 4096, 14336, DType::bf16, true),
            "cublaslt cublaslt cublaslt cublaslt extended cublaslt cublaslt");
  EXPECT_EQ(linear(384, 4096, 14336, DType::bf16, true), large);
}

std::string fp8(int64_t m, int64_t k, int64_t n, DType dtype = DType::bf16) {
  return on_all([&](const Gpu& gpu) { return to_string(plan_fp8(gpu, matrix(m, n, dtype), k)); });
}

TEST_F(Plans, Fp8) {
  const std::string none = "decoded decoded decoded decoded decoded decoded decoded";
  EXPECT_EQ(fp8(4608, 3072, 12288), "decoded decoded decoded codes scaled codes codes");
  EXPECT_EQ(fp8(1, 4096, 4096, DType::f16), "decoded decoded decoded codes scaled codes codes");
  EXPECT_EQ(fp8(77, 4096, 4096, DType::f32), "decoded decoded decoded codes scaled codes codes");
  EXPECT_EQ(fp8(77, 4100, 4096), none);
  EXPECT_EQ(fp8(77, 4096, 4088), none);
  setenv("WICK_CUDA_WAY", "fp8:codes", 1);
  EXPECT_EQ(fp8(4608, 3072, 12288), "decoded decoded decoded codes codes codes codes");
  setenv("WICK_CUDA_WAY", "fp8:scaled", 1);
  EXPECT_EQ(fp8(4608, 3072, 12288), "decoded decoded decoded codes scaled codes codes");
}

// A linear with a LoRA of rank r, forward and backward; of no weight if `weight` is none.
struct LoraCase {
  int64_t m, k, n, r;
  std::optional<DType> weight = DType::bf16;
  DType dtype = DType::bf16;

  LoraArgs args() const {
    return {.y = tensor({m, n}, dtype),
            .s = tensor({m, r}, dtype),
            .x = tensor({m, k}, dtype),
            .w = weight ? tensor({n, k}, *weight) : View(),
            .bias = {},
            .lora = {tensor({r, k}, dtype), {{tensor({n, r}, dtype)}}}};
  }
  LoraGradients gradients() const {
    return {tensor({m, k}, dtype), tensor({r, k}, DType::f32), {tensor({n, r}, DType::f32)}, tensor({m, n}, dtype)};
  }
  std::string forward() const {
    return on_all([&](const Gpu& gpu) { return kLoraWays[size_t(plan_lora(gpu, args()).way)]; });
  }
};

TEST_F(Plans, LoraForward) {
  const std::string few = " few_rows few_rows few_rows few_rows few_rows few_rows";
  EXPECT_EQ((LoraCase{1024, 1280, 1280, 32}.forward()), "composed mma mma mma wgmma composed composed");
  EXPECT_EQ((LoraCase{9, 4096, 4096, 16}.forward()).substr(0, 8), "composed");
  EXPECT_EQ((LoraCase{1, 4096, 4096, 16}.forward()), "composed" + few);
  EXPECT_EQ((LoraCase{8, 14336, 4096, 128}.forward()), "composed" + few);
  EXPECT_EQ((LoraCase{32, 4096, 4096, 16, DType::q4_0}.forward()), "in_blocks" + few);
  EXPECT_EQ((LoraCase{32, 4096, 4096, 16, DType::nf4}.forward()), "in_blocks" + few);
  EXPECT_EQ((LoraCase{1, 4096, 4096, 16, DType::int8}.forward()), "in_blocks" + few);
  EXPECT_EQ((LoraCase{33, 4096, 4096, 16, DType::q4_0}.forward()),
            "in_blocks in_blocks in_blocks in_blocks in_blocks in_blocks in_blocks");
  EXPECT_EQ((LoraCase{8, 4096, 4096, 16, std::nullopt}.forward()),
            "composed composed composed composed adapter composed composed");
  EXPECT_EQ((LoraCase{1024, 1280, 1280, 32, DType::f32, DType::f32}.forward()),
            "composed composed composed composed composed composed composed");
  EXPECT_EQ((LoraCase{1, 4096, 4096, 16, DType::fp8_product}.forward()),
            "composed composed composed composed composed composed composed");
  const LoraArgs in_codes = LoraCase{2048, 4096, 4096, 16, DType::fp8_product}.args();
  EXPECT_EQ(plan_lora(kHopper, in_codes).low, LowWay::projection);
  EXPECT_TRUE(plan_lora(kHopper, in_codes).is_fused);
  const LoraArgs a = LoraCase{1024, 1280, 1280, 32}.args();
  EXPECT_EQ(plan_lora(kAda, a).low, LowWay::cublaslt);
  EXPECT_EQ(plan_lora(kLater, a).low, LowWay::projection);
  EXPECT_TRUE(plan_lora(kLater, a).is_fused);
  EXPECT_FALSE(plan_lora(kTuring, a).is_fused);
  setenv("WICK_CUDA_WAY", "lora:wgmma", 1);
  EXPECT_EQ((LoraCase{1, 4096, 4096, 16}.forward()).substr(0, 8), "composed");
  EXPECT_EQ(plan_lora(kHopper, LoraCase{1, 4096, 4096, 16}.args()).way, LoraWay::wgmma);
}

TEST_F(Plans, LoraBackward) {
  const auto plan = [](const Gpu& gpu, const LoraCase& c) { return plan_lora_backward(gpu, c.args(), c.gradients()); };
  const LoraCase small{77, 768, 768, 16}, middle{1024, 1280, 1280, 32}, large{2048, 4096, 4096, 16};
  EXPECT_FALSE(plan(kTuring, middle).is_fused);
  for (const Gpu& gpu : {kA100, kAmpere, kAda}) {
    EXPECT_EQ(plan(gpu, middle).ds, LowWay::cublaslt);
    EXPECT_EQ(plan(gpu, middle).gradients, GradientsWay::cublaslt);
    EXPECT_EQ(plan(gpu, middle).dx.way, ProductWay::mma);
  }
  EXPECT_EQ(plan(kHopper, small).ds, LowWay::projection);
  EXPECT_EQ(plan(kHopper, small).gradients, GradientsWay::kernel);
  EXPECT_EQ(plan(kHopper, {77, 768, 320, 8}).ds, LowWay::product);
  EXPECT_EQ(plan(kHopper, large).ds, LowWay::pass);
  EXPECT_EQ(plan(kHopper, large).gradients, GradientsWay::pass);
  EXPECT_EQ(plan(kHopper, large).dx.way, ProductWay::wgmma);
  for (const Gpu& gpu : {kBlackwell, kLater}) {
    EXPECT_EQ(plan(gpu, large).ds, LowWay::projection);
    EXPECT_EQ(plan(gpu, large).dx.way, ProductWay::composed);
    EXPECT_EQ(plan(gpu, large).gradients, GradientsWay::kernel);
  }
  const LoraBackwardPlan in_codes = plan(kHopper, {2048, 4096, 4096, 16, DType::fp8_product});
  EXPECT_EQ(in_codes.ds, LowWay::pass);
  EXPECT_EQ(in_codes.dx.way, ProductWay::composed);
  // Without the gradient of down nothing passes over x, and dy goes by once less.
  LoraGradients ups_alone = large.gradients();
  ups_alone.ddown = {};
  EXPECT_NE(plan_lora_backward(kHopper, large.args(), ups_alone).gradients, GradientsWay::pass);
}

TEST_F(Plans, LoraGradientsAlone) {
  const auto ways = [](const LoraCase& c) {
    return on_all(
        [&](const Gpu& gpu) { return std::to_string(int(plan_lora_gradients(gpu, c.args(), c.gradients()))); });
  };
  const auto in_order = [](std::initializer_list<GradientsWay> ways_of_all) {
    std::string all;
    for (const GradientsWay way : ways_of_all) all += (all.empty() ? "" : " ") + std::to_string(int(way));
    return all;
  };
  constexpr auto kOne = GradientsWay::one_launch, kKernel = GradientsWay::kernel, kCublaslt = GradientsWay::cublaslt;
  EXPECT_EQ(ways({77, 768, 768, 16}), in_order({kCublaslt, kKernel, kKernel, kKernel, kOne, kKernel, kKernel}));
  EXPECT_EQ(ways({4096, 640, 1280, 16}), in_order({kCublaslt, kKernel, kKernel, kKernel, kKernel, kKernel, kKernel}));
  EXPECT_EQ(ways({4096, 640, 1280, 32}),
            in_order({kCublaslt, kCublaslt, kCublaslt, kCublaslt, kCublaslt, kCublaslt, kCublaslt}));
}

// A LoRA's few rows: factors that do not lie right are copied, blocks that begin within a tile's half are not taken.
TEST_F(Plans, FewRowsWithALora) {
  LoraArgs a = LoraCase{1, 4096, 4096, 16}.args();
  EXPECT_EQ(plan_lora(kHopper, a).way, LoraWay::few_rows);
  a.lora.down = tensor({16, 4096}, DType::f32);
  EXPECT_EQ(plan_lora(kHopper, a).way, LoraWay::few_rows);
  a.lora.blocks.front().up = tensor({4000, 16});
  a.lora.blocks.front().column = 96;
  EXPECT_EQ(plan_lora(kHopper, a).way, LoraWay::few_rows);
  a.lora.blocks.front().column = 94;
  EXPECT_EQ(plan_lora(kHopper, a).way, LoraWay::composed);
  a.lora.blocks.front().column = 96;
  a.lora.dropout.p = 0.5f;
  EXPECT_EQ(plan_lora(kHopper, a).way, LoraWay::composed);
}

std::string error_of(const char* way) {
  setenv("WICK_CUDA_WAY", way, 1);
  try {
    plan_attention(kHopper, heads(64, 64, 1, 64), true);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST_F(Plans, WaysThatDoNotExistAreErrors) {
  EXPECT_EQ(error_of("attention:mma"), "");
  EXPECT_EQ(error_of("attention:mna"),
            "WICK_CUDA_WAY: attention has no way mna; it has few, wgmma, mma, cudnn, tiles, rows");
  EXPECT_EQ(error_of("lora:mma,atention:mma"),
            "WICK_CUDA_WAY: there is no family atention; there are attention, fp8, linear, lora, sm80, sm90");
  EXPECT_EQ(error_of("lora"),
            "WICK_CUDA_WAY: lora has no way ; it has few_rows, wgmma, mma, composed, in_blocks, adapter");
}

TEST_F(Plans, AWayIsTakenWhereItCanGo) {
  const AttentionShape self = heads(4096, 4096, 10, 64);
  setenv("WICK_CUDA_WAY", "linear:cublaslt,attention:mma", 1);
  EXPECT_EQ(attention(self), "rows mma mma mma mma mma mma");
  EXPECT_EQ(linear(1, 4096, 4096, DType::bf16), "cublaslt cublaslt cublaslt cublaslt cublaslt cublaslt cublaslt");
  EXPECT_EQ(linear(1, 4096, 4096, DType::q4_0), "sliced few_rows few_rows few_rows few_rows few_rows few_rows");
  setenv("WICK_CUDA_WAY", "attention:tiles", 1);
  EXPECT_EQ(attention(self, true), "rows tiles tiles tiles tiles tiles tiles");
  EXPECT_EQ(attention(heads(4096, 4096, 10, 128), true), "rows mma mma mma wgmma cudnn cudnn");
}

// `wick doctor` prints the plans themselves, so that its lines cannot become untrue.
TEST_F(Plans, DoctorTellsThePlans) {
  const auto tells = [](const Gpu& gpu, bool cudnn, const std::string& line) {
    const std::string text = "; " + describe_kernels(gpu, cudnn) + "; ";
    EXPECT_NE(text.find("; " + line + "; "), text.npos) << gpu.capability() << ": " << line << " in " << text;
  };
  tells(kHopper, true, "attention 4096 x 4096, 10 heads of 64, bf16: wgmma, backward wgmma");
  tells(kHopper, true, "attention 1024 x 77, 20 heads of 64, bf16: wgmma, backward wgmma");
  tells(kHopper, false, "attention 4096 x 4096, 10 heads of 64, bf16: wgmma, backward wgmma");
  tells(kAmpere, true, "attention 1024 x 77, 20 heads of 64, bf16: mma, backward mma");
  tells(kTuring, true, "attention 1024 x 77, 20 heads of 64, bf16: rows, backward rows");
  tells(kHopper, true, "attention 1 x 512, 32 over 8 heads of 128, ranges, bf16: few, backward wgmma");
  tells(kHopper, true, "linear 512 x 4096 -> 14336, swiglu, bf16: extended");
  tells(kAda, true, "linear 1 x 4096 -> 4096, q4_0: few_rows");
  tells(kHopper, true, "LoRA 1 x 4096 -> 4096, rank 16, q4_0: few_rows");
  tells(kTuring, true, "LoRA 2048 x 4096 -> 4096, rank 16, bf16: composed, backward composed");
  tells(kLater, false, "convolution 3x3: cuBLASLt over gathered columns");
}

}  // namespace
}  // namespace wick
