// What ranks may take: the same for all.
#include "wick/train/rank_memory.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "wick/backend/registry.h"

namespace wick {
namespace {

constexpr size_t kGiB = size_t{1} << 30;

// Each rank has its own --host-memory, on one machine.
std::vector<RankMemory> least(const std::vector<std::string>& host_memory, std::string_view device = "cpu",
                              bool of_one_process = false) {
  const std::vector<std::unique_ptr<Ranks>> ranks = Ranks::of_threads(int(host_memory.size()));
  std::vector<RankMemory> all(host_memory.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i)
    threads.emplace_back([&, i] { all[i] = least_memory(*ranks[i], device, host_memory[i], of_one_process); });
  for (std::thread& thread : threads) thread.join();
  return all;
}

TEST(RankMemory, RanksOfAMachineShareItsHost) {
  for (const RankMemory& one : least({"9GiB", "6GiB", "12GiB"})) {
    ASSERT_TRUE(one.host.has_value());
    EXPECT_EQ(one.host->locked, 2 * kGiB) << "a third of the least";
    EXPECT_EQ(one.host->all, 2 * kGiB);
    EXPECT_EQ(one.host->devices, 1u);
  }
  Ranks alone;
  EXPECT_EQ(least_memory(alone, "cpu", "9GiB").host->locked, 9 * kGiB);
}

// The limit of one process is not divided among its threads: its plan counts them all.
TEST(RankMemory, ThreadsHaveTheHostInCommon) {
  for (const RankMemory& one : least({"9GiB", "6GiB", "12GiB"}, "cpu", /*of_one_process=*/true)) {
    ASSERT_TRUE(one.host.has_value());
    EXPECT_EQ(one.host->locked, 6 * kGiB);
    EXPECT_EQ(one.host->all, 6 * kGiB);
    EXPECT_EQ(one.host->devices, 3u);
  }
}

// On the CPU they share what is free, too.
TEST(RankMemory, AllKnowTheSame) {
  const std::vector<RankMemory> two = least({"", ""});
  ASSERT_TRUE(two[0].device.has_value() && two[0].host.has_value());
  EXPECT_EQ(two[0].device, two[1].device);
  EXPECT_EQ(two[0].host->locked, two[1].host->locked);
  EXPECT_EQ(two[0].host->all, two[1].host->all);
  EXPECT_LT(*two[0].device, *free_memory("cpu") / 10 * 7);  // what is free changes meanwhile
}

TEST(RankMemory, WhatIsNotKnownIsNotTold) { EXPECT_EQ(least({"1GiB", "1GiB"}, "cuda:99")[1].device, std::nullopt); }

}  // namespace
}  // namespace wick
