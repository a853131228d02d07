// The failure of a rank as all other ranks learn it, and how soon.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "group.h"

namespace wick {
namespace {

const char* const kKilled = "killed or cut off: its connection closed";

// Sums until a rank breaks; says when, by the clock of all processes.
std::string sum_for_ever(Ranks& ranks) {
  std::vector<float> values(5 << 18, 1);
  ranks.barrier();
  Processes::say("begun");
  try {
    while (true) ranks.sum(values.data(), values.size());
  } catch (const RankError& error) {
    Processes::say(std::to_string(now()));
    return error.what();
  }
}

class BrokenRankTest : public testing::TestWithParam<int> {
 protected:
  int victim() const { return GetParam(); }

  void expect_all_learn(Processes& processes, const std::string& cause, double since, double within) const {
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == victim()) continue;
      const double when = std::atof(processes.line(rank).c_str());
      EXPECT_EQ(processes.line(rank), on_this_host(victim(), cause));
      EXPECT_LT(when - since, within) << "rank " << rank;
    }
  }
};

TEST_P(BrokenRankTest, KilledInASum) {
  Processes processes(4, sum_for_ever);
  for (int rank = 0; rank < 4; ++rank) ASSERT_EQ(processes.line(rank), "begun");
  std::this_thread::sleep_for(50ms);
  const double begin = now();
  processes.signal(victim(), SIGKILL);
  expect_all_learn(processes, kKilled, begin, 1);
}

TEST_P(BrokenRankTest, StoppedInASum) {
  Processes processes(4, sum_for_ever, 1s);
  for (int rank = 0; rank < 4; ++rank) ASSERT_EQ(processes.line(rank), "begun");
  const double begin = now();
  processes.signal(victim(), SIGSTOP);
  expect_all_learn(processes, "not heard of for 1 s", begin, 2);
  // One that goes on learns that other ranks have not waited.
  processes.signal(victim(), SIGCONT);
  EXPECT_NE(processes.line(victim()), "");
  EXPECT_NE(processes.line(victim()), "");
}

INSTANTIATE_TEST_SUITE_P(Victim, BrokenRankTest, testing::Values(0, 1, 3));

TEST(FailureTest, AllStoppedForAWhileGoOn) {
  Processes processes(3, sum_for_ever, 1s);
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(processes.line(rank), "begun");
  for (int rank = 0; rank < 3; ++rank) processes.signal(rank, SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  for (int rank = 0; rank < 3; ++rank) processes.signal(rank, SIGCONT);
  std::this_thread::sleep_for(300ms);
  processes.signal(2, SIGKILL);
  for (int rank = 0; rank < 2; ++rank) {
    processes.line(rank);
    EXPECT_EQ(processes.line(rank), on_this_host(2, kKilled));
  }
}

// A rank that works for long without a call is not lost.
TEST(FailureTest, BusyForLongerThanTheSilence) {
  for (const int busy : {0, 1}) {
    const auto results = run_threads(Ranks::of_threads(3, 400ms), [busy](Ranks& ranks) {
      if (ranks.rank() == busy) std::this_thread::sleep_for(900ms);
      ranks.barrier();
      return "";
    });
    EXPECT_EQ(results, std::vector<std::string>(3));
  }
}

// The failing rank's line, as all ranks have it.
class FailingTest : public testing::TestWithParam<int> {
 protected:
  void expect_all(const std::string& line, const Body& body) {
    EXPECT_EQ(run_threads(4, body), std::vector<std::string>(4, line));
    EXPECT_EQ(run_processes(4, body), std::vector<std::string>(4, line));
  }
};

TEST_P(FailingTest, ReachesThoseThatWait) {
  expect_all(on_this_host(GetParam(), "disk full"), [failing = GetParam()](Ranks& ranks) {
    ranks.barrier();
    if (ranks.rank() == failing) ranks.fail("disk\nfull");
    ranks.barrier();
    return "no error";
  });
}

TEST_P(FailingTest, ReachesThoseThatAreBusy) {
  expect_all(on_this_host(GetParam(), "disk full"), [failing = GetParam()](Ranks& ranks) {
    if (ranks.rank() == failing) ranks.fail("disk full");
    for (const double end = now() + 5; now() < end; std::this_thread::sleep_for(1ms)) ranks.check();
    return "no error";
  });
}

// From another thread, while its own is in a call that cannot end.
TEST_P(FailingTest, EndsItsOwnCall) {
  expect_all(on_this_host(GetParam(), "interrupted"), [failing = GetParam()](Ranks& ranks) {
    if (ranks.rank() == (failing + 1) % 4) {
      while (!ranks.failure()) std::this_thread::sleep_for(1ms);
    }
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      if (ranks.rank() == failing) ranks.fail("interrupted");
    });
    const std::string result = outcome_of([&] { return ranks.barrier(), "no error"; });
    other.join();
    return result;
  });
}

TEST_P(FailingTest, EndingWithoutAWordFailsThoseThatWait) {
  const std::string line = on_this_host(GetParam(), "has ended");
  const auto results = run_threads(4, [ending = GetParam()](Ranks& ranks) {
    if (ranks.rank() == ending) return "";
    ranks.barrier();
    return "no error";
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(results[size_t(rank)], rank == GetParam() ? "" : line);
}

INSTANTIATE_TEST_SUITE_P(Rank, FailingTest, testing::Values(0, 1, 3));

TEST(FailureTest, TheFirstStays) {
  const auto results = run_threads(3, [](Ranks& ranks) {
    if (ranks.rank() == 2) ranks.fail("first");
    outcome_of([&] { return ranks.barrier(), ""; });
    ranks.fail("second");
    return ranks.failure().value_or("none");
  });
  EXPECT_EQ(results, std::vector<std::string>(3, on_this_host(2, "first")));
}

TEST(FailureTest, RanksInDifferentCalls) {
  const auto results = run_threads(2, [](Ranks& ranks) {
    std::vector<float> values(3);
    if (ranks.is_first()) ranks.sum(values.data(), values.size());
    if (!ranks.is_first()) ranks.exchange("a");
    return "no error";
  });
  EXPECT_EQ(results, std::vector<std::string>(2, on_this_host(1, "is in an exchange while rank 0 is in a sum")));
  const auto sizes = run_threads(2, [](Ranks& ranks) {
    std::vector<float> values(3);
    ranks.sum(values.data(), values.size() - size_t(ranks.rank()));
    return "no error";
  });
  EXPECT_EQ(sizes, std::vector<std::string>(2, on_this_host(1,
                                                            "sent 8 bytes of a sum where 12 were expected: the ranks "
                                                            "are not at the same call")));
}

TEST(FailureTest, CallsBackOnceOnAnotherThread) {
  std::atomic<int> calls[3] = {};
  const auto results = run_threads(3, [&](Ranks& ranks) {
    const std::thread::id own = std::this_thread::get_id();
    std::string found;
    ranks.on_failure([&](const std::string&) { calls[ranks.rank()] = 100; });
    ranks.on_failure([&](const std::string& failure) {
      found = std::this_thread::get_id() == own ? "on the rank's own thread" : failure;
      ++calls[ranks.rank()];
    });
    ranks.barrier();
    if (ranks.rank() == 1) ranks.fail("disk full");
    outcome_of([&] { return ranks.barrier(), ""; });
    while (ranks.rank() != 1 && calls[ranks.rank()] == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(50ms);
    ranks.on_failure(nullptr);
    return found;
  });
  const std::string line = on_this_host(1, "disk full");
  EXPECT_EQ(results, (std::vector<std::string>{line, "", line}));
  EXPECT_EQ(calls[0], 1);
  EXPECT_EQ(calls[1], 0);
  EXPECT_EQ(calls[2], 1);
}

TEST(FailureTest, CallsBackForAnEarlierFailure) {
  const auto results = run_threads(2, [](Ranks& ranks) -> std::string {
    if (ranks.rank() == 1) return ranks.fail("disk full"), "";
    while (!ranks.failure()) std::this_thread::sleep_for(1ms);
    std::mutex mutex;
    std::condition_variable changed;
    std::string found;
    ranks.on_failure([&](const std::string& failure) {
      std::lock_guard lock(mutex);
      found = failure;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait_for(lock, 5s, [&] { return !found.empty(); });
    return found;
  });
  EXPECT_EQ(results[0], on_this_host(1, "disk full"));
}

}  // namespace
}  // namespace wick
