// How weights are held within a memory, of plans that are made up; and the flags that limit it.
#include "wick/pipelines/memory_fit.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "wick/backend/registry.h"
#include "wick/pipelines/weight_flags.h"

namespace wick {
namespace {

constexpr size_t kGiB = size_t{1} << 30;

// Ten blocks of 1 GiB, or a quarter of that in 4 bits, beside 1 GiB; two of them take turns in the room of streamed
// ones. What is staged comes half as fast.
InferencePlan plan_of(const Holding& held) {
  DeviceKind device = device_kind("cuda");
  device.workspace = device.context = 0;
  const size_t block = held.quantized ? kGiB / 4 : kGiB;
  const size_t resident = held.streamed > 0 ? std::min<size_t>(10 - held.streamed + 2, 10) : 10;
  return {.device = device,
          .taken = kGiB + resident * block,
          .host = held.staged ? 2 * block : held.streamed * block,
          .staged = held.staged ? held.streamed * block : 0,
          .blocks = 10,
          .cost = {.seconds = 1.0 + double(held.streamed) * (held.staged ? 2 : 1)}};
}

InferenceChoices choose(const MemoryRequest& request, bool may_quantize) {
  std::vector<std::optional<DType>> precisions{std::nullopt};
  if (may_quantize) precisions.emplace_back(DType::nf4);
  return choose_holding(request, precisions, plan_of);
}

TEST(MemoryFit, StreamsNoMoreThanItMust) {
  EXPECT_EQ(choose({.size = 11 * kGiB}, false).best->holding.streamed, 0u);
  EXPECT_EQ(choose({.size = 8 * kGiB}, false).best->holding.streamed, 5u);
  EXPECT_FALSE(choose({.size = 2 * kGiB}, false).best);
}

TEST(MemoryFit, LocksNoMoreOfTheHostThanItMay) {
  EXPECT_EQ(choose({.size = 8 * kGiB, .host = HostLimit{5 * kGiB, 5 * kGiB}}, false).best->holding.streamed, 5u);
  const InferenceChoices none = choose({.size = 8 * kGiB, .host = HostLimit{4 * kGiB, 4 * kGiB}}, false);
  EXPECT_FALSE(none.best);
  EXPECT_EQ(none.in_words(),
            "this needs 5.0 GiB of the host's memory, more than the 4.0 GiB that --host-memory allows, with weights as "
            "they are, 5 of 10 blocks streamed, with 5.0 GiB on the host");
  const InferenceChoices narrow = choose({.size = 8 * kGiB, .host = HostLimit{4 * kGiB, 4 * kGiB}}, true);
  ASSERT_TRUE(narrow.best);
  EXPECT_EQ(narrow.best->holding.quantized, DType::nf4);
  EXPECT_EQ(narrow.best->holding.streamed, 0u);
}

// More than may be locked lies in ordinary memory, unless a narrower format is faster.
TEST(MemoryFit, StagesWhatItMayNotLock) {
  const HostLimit host{4 * kGiB, 8 * kGiB};
  const InferenceChoices staged = choose({.size = 8 * kGiB, .host = host}, false);
  ASSERT_TRUE(staged.best);
  EXPECT_EQ(staged.best->holding.streamed, 5u);
  EXPECT_TRUE(staged.best->holding.staged);
  EXPECT_EQ(staged.in_words(),
            "8.0 GiB with weights as they are, 5 of 10 blocks streamed, with 7.0 GiB on the host, in ordinary memory");
  EXPECT_EQ(choose({.size = 8 * kGiB, .host = host}, true).best->holding.quantized, DType::nf4);
  EXPECT_FALSE(choose({.size = 8 * kGiB, .host = HostLimit{4 * kGiB, 6 * kGiB}}, false).best) << "no room for both";
  EXPECT_EQ(staging_in_words(0), "");
  EXPECT_EQ(staging_in_words(5 * kGiB).substr(0, 53), "Streamed weights take 5.0 GiB of the host's memory, m");
}

TEST(WeightFlags, HostMemoryIsASizeOrAShareOfWhatIsThere) {
  EXPECT_EQ(host_limit("3GiB")->locked, 3 * kGiB);
  expect_error([] { host_limit("much"); }, {"--host-memory", "12GiB", "\"much\""});
  if (const auto free = free_memory("cpu")) {
    EXPECT_GT(host_limit("")->locked, *free / 2);  // what is free changes meanwhile
    EXPECT_LT(host_limit("")->locked, *free / 10 * 7);
  }
  check_locked(kGiB, HostLimit{kGiB, kGiB});
  check_locked(kGiB, {});
  expect_error(
      [] {
        check_locked(2 * kGiB, HostLimit{kGiB, kGiB});
      },
      {"lock 2.0 GiB", "1.0 GiB", "--stream-blocks", "--host-memory"});
}

TEST(WeightFlags, BlocksAreANumberOrAll) {
  EXPECT_EQ(parse_blocks("--stream-blocks", "12"), 12u);
  EXPECT_EQ(parse_blocks("--stream-blocks", "all"), BlockSchedule::kAll);
  for (const char* text : {"", "-1", "1.5", "many", "12345678901"})
    expect_error([&] { parse_blocks("--stream-blocks", text); }, {"--stream-blocks", "number of blocks or all", text});
}

TEST(WeightFlags, Fp8ComputeIsForFp8) {
  check_fp8_compute("");
  check_fp8_compute("fp8");
  check_fp8_compute(cpu_backend());
  expect_error([] { check_fp8_compute("nf4"); }, {"--fp8-compute", "--quantize", "nf4"});
}

}  // namespace
}  // namespace wick
