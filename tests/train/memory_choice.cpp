// --memory: what is chosen for a size. On the CPU, which is counted to the byte; a device takes memory in large pieces.
#include "wick/train/memory_choice.h"

#include <gtest/gtest.h>

#include "source_dir.h"
#include "wick/core/error.h"

namespace wick {
namespace {

const std::filesystem::path kModel = test::source_dir() / "tests/golden/sdxl";

TrainConfig config(int64_t batch_size = 64) {
  return {.model = kModel, .rank = 4, .alpha = 4, .batch_size = batch_size, .resolution = {128}};
}

MemoryChoices chosen(size_t size, const TrainConfig& c, bool keeps_precision = false) {
  KnownPlans known(kModel, device_kind("cpu"));
  return choose_for_memory({.size = size, .keeps_precision = keeps_precision}, c, known);
}

TEST(MemoryChoice, IsTheRule) {
  const size_t all = plan_memory(config(), kModel, device_kind("cpu")).total(), beside = device_kind("cpu").context;
  const MemoryChoices roomy = chosen(all, config());
  ASSERT_TRUE(roomy.best.has_value());
  EXPECT_EQ(roomy.best->config.quantize, Quantize::none);
  EXPECT_EQ(roomy.best->blocks, 0u);
  size_t fitted = 0;
  for (size_t size = all; size > beside; size -= (all - beside) / 12) {
    const MemoryChoices choices = chosen(size, config());
    double fastest = 1e300;
    for (const MemoryChoice& c : choices.precisions)
      if (c.plan.total() <= size) fastest = std::min(fastest, c.seconds);
    if (!choices.best) {
      EXPECT_EQ(fastest, 1e300);
      EXPECT_GT(choices.smallest().plan.total(), size);
      EXPECT_NE(choices.in_words().find(" more, with the base in "), std::string::npos) << choices.in_words();
      continue;
    }
    ++fitted;
    EXPECT_LE(choices.best->plan.total(), size);
    EXPECT_LE(choices.best->seconds, 1.10 * fastest);
    for (const MemoryChoice& c : choices.precisions) {
      if (c.config.quantize == choices.best->config.quantize) break;  // those of more bits
      EXPECT_TRUE(c.plan.total() > size || c.seconds > 1.10 * fastest);
    }
    const auto& [config, plan, blocks, streamed, host_is_full, seconds] = *choices.best;
    EXPECT_EQ(streamed, 0u) << "the CPU's host is itself";
    EXPECT_EQ(config.rank.value, 4);
    EXPECT_EQ(config.batch_size, 64);
    EXPECT_EQ(plan_memory(config, kModel, device_kind("cpu")).total(), plan.total());  // what the run will plan
  }
  EXPECT_GT(fitted, 5u);
}

// The fewest blocks that do: one less would not fit.
TEST(MemoryChoice, RecomputesNoMoreThanItMust) {
  TrainConfig c = config();
  const size_t none = plan_memory(c, kModel, device_kind("cpu")).total(), beside = device_kind("cpu").context;
  const size_t size = none - (none - beside) / 4;
  const MemoryChoices choices = chosen(size, c, /*keeps_precision=*/true);
  ASSERT_TRUE(choices.best.has_value());
  ASSERT_GT(choices.best->blocks, 0u);
  c.checkpoint_blocks = std::to_string(choices.best->blocks - 1);
  EXPECT_GT(plan_memory(c, kModel, device_kind("cpu")).total(), size);
}

TEST(MemoryChoice, IsBf16OnADevice) {
  KnownPlans known(kModel, device_kind("cuda"));
  const MemoryChoices choices = choose_for_memory({.size = size_t{1} << 40}, config(1), known);
  EXPECT_EQ(choices.best->config.dtype, DType::bf16);
  EXPECT_EQ(choices.best->config.quantize, Quantize::none);
}

TEST(MemoryChoice, WhatIsSetByHandStands) {
  TrainConfig c = config();
  c.quantize = Quantize::fp8;
  c.checkpoint_blocks = "3";
  const MemoryChoices choices = chosen(size_t{1} << 40, c);
  EXPECT_EQ(choices.precisions.size(), 1u);
  EXPECT_EQ(choices.best->config.quantize, Quantize::fp8);
  EXPECT_EQ(choices.best->blocks, 3u);
  EXPECT_EQ(chosen(size_t{1} << 40, config(), /*keeps_precision=*/true).precisions.size(), 1u);
}

TEST(MemoryChoice, SizesHaveUnits) {
  const auto sizes = [](const std::string& text) {
    TrainConfig c;
    c.memory = text;
    return asked_memory(c);
  };
  using Sizes = std::vector<std::optional<size_t>>;
  EXPECT_EQ(sizes("12GiB"), Sizes{size_t{12} << 30});
  EXPECT_EQ(sizes("1.5 GiB,auto,500MB"), (Sizes{size_t{3} << 29, std::nullopt, 500'000'000}));
  EXPECT_EQ(sizes("2KiB,3KB,4MiB,5GB"), (Sizes{2048, 3000, size_t{4} << 20, 5'000'000'000}));
  for (const char* wrong :
       {"12", "12G", "GiB", "-1GiB", "0GiB", "1e9GiB", "nanGiB", "12GiBs", "99999999999GiB", "1,,2GiB"})
    EXPECT_THROW(sizes(wrong), UsageError) << wrong;
}

// Batches grow until they do not fit, or with --memory until it costs too much to fit them.
TEST(MemoryChoice, BatchesThatFit) {
  const DeviceKind kind = device_kind("cpu");
  const auto total = [&](int64_t batch) {
    TrainConfig c = config();
    c.batch_size = batch;
    return plan_memory(c, kModel, kind).total();
  };
  const auto chosen = [&](size_t size, const std::string& memory, int64_t most = 64) {
    TrainConfig c = config();
    c.memory = memory;
    c.batch_size = 0;
    KnownPlans known(kModel, kind);
    return batch_that_fits({.size = size}, c, known, {}, most);
  };
  for (const std::string memory : {"", "auto"}) {
    EXPECT_EQ(chosen(total(1) / 2, memory), 1) << "nothing fits";
    EXPECT_EQ(chosen(total(16), memory, 6), 4);
  }
  EXPECT_EQ(chosen(total(4), ""), 4);
  EXPECT_EQ(chosen(total(8) - 1, ""), 4);
  EXPECT_EQ(chosen(total(8) - 1, "auto"), 8) << "with one block computed twice";
  EXPECT_LT(chosen((total(1) + device_kind("cpu").context) / 2, "auto"), 4);
}

// Several sizes share their plans. Each gets the same answer as alone.
TEST(MemoryChoice, SeveralSizesShareTheirPlans) {
  const DeviceKind kind = device_kind("cuda");
  const size_t whole = plan_memory(config(1), kModel, kind).total();
  size_t plans = 0;
  KnownPlans shared(kModel, kind, [&] { ++plans; });
  size_t alone = 0;
  for (const size_t size : {whole / 2, whole * 3 / 4, whole * 7 / 8, whole * 2}) {
    KnownPlans own(kModel, kind, [&] { ++alone; });
    EXPECT_EQ(choose_for_memory({.size = size}, config(1), shared).in_words(),
              choose_for_memory({.size = size}, config(1), own).in_words());
  }
  EXPECT_GT(plans, 0u);
  EXPECT_LT(plans, alone * 2 / 3);
  const size_t before = plans;
  choose_for_memory({.size = whole / 2}, config(1), shared);
  EXPECT_EQ(plans, before);
}

}  // namespace
}  // namespace wick
