// Collective calls of ranks that are all well, as threads and as processes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "group.h"

namespace wick {
namespace {

uint64_t fresh_seed() {
  static const uint64_t seed =
      std::getenv("WICK_TEST_SEED") ? std::stoull(std::getenv("WICK_TEST_SEED")) : std::random_device{}();
  return seed;
}

const std::vector<size_t> kSizes = {0, 1, 3, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (6 << 18) + 17};

// Values of such different magnitudes that another order of addition would give other bits.
std::vector<float> make_values(int rank) {
  std::vector<float> values(kSizes.back());
  uint64_t state = fresh_seed() + uint64_t(rank) * 0x9e3779b97f4a7c15;
  for (float& value : values) {
    state = state * 6364136223846793005 + 1442695040888963407;
    value = std::ldexp(float(int32_t(state >> 32)), int(state >> 27 & 15));
  }
  return values;
}

std::vector<float> values_of(int rank, size_t count) {
  static const std::vector<float> all[] = {make_values(0), make_values(1), make_values(2), make_values(3),
                                           make_values(4)};
  return {all[rank].begin(), all[rank].begin() + ptrdiff_t(count)};
}

// "" if the sums are right.
std::string check_sums(Ranks& ranks) {
  for (const size_t size : kSizes) {
    std::vector<float> sum = values_of(ranks.rank(), size);
    std::vector<float> expected = values_of(0, size);
    for (int rank = 1; rank < ranks.count(); ++rank) {
      const std::vector<float> more = values_of(rank, size);
      for (size_t i = 0; i < size; ++i) expected[i] += more[i];
    }
    ranks.sum(sum.data(), size);
    if (size > 0 && std::memcmp(sum.data(), expected.data(), size * sizeof(float)) != 0)
      return "another sum of " + std::to_string(size);
  }
  return "";
}

std::string check_messages(Ranks& ranks) {
  const auto message = [](int rank) { return std::string(size_t(rank) * 400'000, char('a' + rank)); };
  for (int turn = 0; turn < 3; ++turn) {
    const std::vector<std::string> all = ranks.exchange(message(ranks.rank()));
    if (all.size() != size_t(ranks.count())) return "another number of messages";
    for (int rank = 0; rank < ranks.count(); ++rank)
      if (all[size_t(rank)] != message(rank)) return "another message of rank " + std::to_string(rank);
    for (const size_t bytes : {size_t{0}, size_t{1}, (size_t{7} << 20) + 5}) {
      std::string data(bytes, ranks.is_first() ? 'x' : 'y');
      ranks.broadcast(data.data(), bytes);
      if (data != std::string(bytes, 'x')) return "another broadcast of " + std::to_string(bytes);
    }
    for (int from = 0; from < ranks.count(); ++from)
      for (const size_t bytes : {size_t{0}, size_t{1}, (size_t{7} << 20) + 5}) {
        const char own = char('a' + ranks.rank());
        std::string data(bytes, own);
        ranks.fetch(data.data(), bytes, from);
        if (data != std::string(bytes, ranks.is_first() ? char('a' + from) : own))
          return "another fetch of " + std::to_string(bytes);
      }
    ranks.barrier();
  }
  return "";
}

using Run = std::vector<std::string> (*)(int count, const Body& body);
std::vector<std::string> as_threads(int count, const Body& body) { return run_threads(count, body); }
std::vector<std::string> as_connected_threads(int count, const Body& body) {
  return run_threads(connected_threads(count), body);
}

class CollectiveTest : public testing::TestWithParam<std::pair<const char*, Run>> {
 protected:
  void expect_well(int count, const Body& body) {
    EXPECT_EQ(GetParam().second(count, body), std::vector<std::string>(size_t(count)))
        << count << " ranks, WICK_TEST_SEED=" << fresh_seed();
  }
};

TEST_P(CollectiveTest, SumsAreThoseInTheOrderOfRanks) {
  values_of(0, 0);  // made once, before there are processes
  for (const int count : {1, 2, 3, 5}) expect_well(count, check_sums);
}

TEST_P(CollectiveTest, MessagesAndDataOfAnyLength) {
  for (const int count : {1, 2, 4}) expect_well(count, check_messages);
}

TEST_P(CollectiveTest, SpecialValues) {
  expect_well(3, [](Ranks& ranks) {
    const float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> values{-0.0f, ranks.rank() == 1 ? infinity : 1, ranks.rank() == 2 ? -infinity : infinity};
    ranks.sum(values.data(), values.size());
    return std::signbit(values[0]) && values[1] == infinity && std::isnan(values[2]) ? "" : "other values";
  });
}

// A rank that ends early, in any order: all that it sent arrives, and nobody takes it for lost.
TEST_P(CollectiveTest, GoodbyesInAnyOrder) {
  for (const int last : {0, 1, 2}) {
    expect_well(3, [last](Ranks& ranks) {
      std::vector<float> values((2 << 18) + 1, 1);
      ranks.sum(values.data(), values.size());
      std::string data(3 << 20, ranks.is_first() ? 'x' : 'y');
      if (!ranks.is_first() && ranks.rank() != last) std::this_thread::sleep_for(30ms);
      ranks.broadcast(data.data(), data.size());
      if (ranks.rank() == last) std::this_thread::sleep_for(100ms);
      ranks.check();
      return values.back() == 3 && data.back() == 'x' ? "" : "other values";
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CollectiveTest,
                         testing::Values(std::pair{"Threads", Run(as_threads)},
                                         std::pair{"ConnectedThreads", Run(as_connected_threads)},
                                         std::pair{"Processes", Run(run_processes)}),
                         [](const auto& row) { return row.param.first; });

TEST(RanksTest, Alone) {
  Ranks alone;
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.count(), 1);
  EXPECT_TRUE(alone.is_first());
  float value = 2;
  alone.sum(&value, 1);
  alone.broadcast(&value, sizeof value);
  alone.fetch(&value, sizeof value, 0);
  alone.barrier();
  alone.on_failure([](const std::string&) { FAIL(); });
  alone.fail("disk full");
  alone.check();
  EXPECT_FALSE(alone.failure());
  EXPECT_EQ(value, 2);
  EXPECT_EQ(alone.exchange("a"), std::vector<std::string>{"a"});
}

size_t entries_of(const char* folder) {
  return size_t(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{}));
}

TEST(RanksTest, NothingIsLeftOpen) {
  run_threads(connected_threads(2), [](Ranks&) { return ""; });  // libraries open some files once
  const size_t descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
  for (int i = 0; i < 3; ++i) {
    run_threads(4, [](Ranks& ranks) { return ranks.exchange("a")[3]; });
    run_threads(connected_threads(3), [](Ranks& ranks) { return ranks.barrier(), ""; });
    run_threads(3, [](Ranks& ranks) { return ranks.fail("disk full"), ""; });
  }
  EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
  // A joined thread may be listed for a moment more.
  for (int i = 0; i < 100 && entries_of("/proc/self/task") > threads; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(entries_of("/proc/self/task"), threads);
}

// All from one thread, which waits for none of the others.
TEST(RanksTest, DestroyedOneAfterTheOther) {
  const double begin = now();
  for (const bool forwards : {true, false}) {
    std::vector<std::unique_ptr<Ranks>> ranks = Ranks::of_threads(4);
    if (!forwards) std::reverse(ranks.begin(), ranks.end());
    for (auto& one : ranks) one.reset();
  }
  EXPECT_LT(now() - begin, 2);
}

}  // namespace
}  // namespace wick
