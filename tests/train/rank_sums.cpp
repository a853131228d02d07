#include "wick/train/rank_sums.h"

#include <gtest/gtest.h>

#include "backend/first_tier.h"
#include "ranks/group.h"

namespace wick {
namespace {

using CheckOthers = std::function<void()>;

// A device whose collectives are joined by a function.
class Joining final : public probe::FirstTier {
 public:
  explicit Joining(std::function<void(const CheckOthers&)> join) : FirstTier(cpu_backend()), join_(std::move(join)) {}

  std::string collective_id(CollectiveUse) override { return "an id"; }
  std::unique_ptr<Collective> join_collective(const std::string&, int, int, const CheckOthers& check_others) override {
    join_(check_others);
    return nullptr;
  }

 private:
  std::function<void(const CheckOthers&)> join_;
};

void wait_forever(const CheckOthers& check_others) {
  for (;; std::this_thread::sleep_for(1ms)) check_others();
}

void fail_at_once(const CheckOthers&) { fail("NCCL: joining failed"); }

// The outcome of rank 0, which joins by `join` while rank 1 does `instead`.
std::string joined(std::function<void(const CheckOthers&)> join, const std::function<void(Ranks&)>& instead) {
  return run_threads(2, [&](Ranks& ranks) -> std::string {
    if (!ranks.is_first()) {
      ranks.exchange("");
      instead(ranks);
      return "";
    }
    RankWatch watch(ranks);
    Joining backend(join);
    RankSums(ranks, watch, backend, /*are_light=*/false);
    return "joined";
  })[0];
}

TEST(RankSums, TellOfARankThatIsGoneBeforeItJoins) {
  const auto lose = [](Ranks& ranks) { ranks.fail("the device is lost"); };
  EXPECT_EQ(joined(wait_forever, lose), on_this_host(1, "the device is lost"));
}

TEST(RankSums, TellWhyACollectiveFailsWhereThatIsHeardALittleLater) {
  const auto lose = [](Ranks& ranks) {
    std::this_thread::sleep_for(200ms);
    ranks.fail("killed");
  };
  EXPECT_EQ(joined(fail_at_once, lose), on_this_host(1, "killed"));
}

TEST(RankSums, TellTheirOwnErrorWhereNoRankIsGone) {
  EXPECT_EQ(joined(fail_at_once, [](Ranks&) {}), "NCCL: joining failed");
}

}  // namespace
}  // namespace wick
