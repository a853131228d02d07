// Optimizer states that are sharded over ranks, which are threads here: each rank keeps its share alone, and
// parameters, copies, averages and state files have the bits of one rank that keeps all.
#include "wick/train/shards.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "device.h"
#include "io/files.h"
#include "ranks/group.h"
#include "wick/io/safetensors.h"
#include "wick/ops/ops.h"
#include "wick/train/optimizer.h"
#include "wick/train/state.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr OptimizerKind kShardedKinds[] = {OptimizerKind::adamw,     OptimizerKind::adamw8bit,
                                           OptimizerKind::lion,      OptimizerKind::lion8bit,
                                           OptimizerKind::adafactor, OptimizerKind::schedule_free};

std::vector<Parameter> of_sizes(const std::vector<int64_t>& sizes) {
  std::vector<Parameter> all;
  for (const int64_t size : sizes) all.push_back({std::to_string(all.size()), zeros({size}).trainable()});
  return all;
}

// Large enough for states in 8 bits, or not; with copies, dense and of padded rows, or without.
std::vector<Parameter> parameters(uint64_t seed) {
  Rng rng(seed);
  const auto draw = [&](const Shape& shape) { return random_normal(shape, rng).trainable(); };
  std::vector<Parameter> all = {{"a", draw({64, 65})}, {"b", draw({7, 3})}, {"c", draw({5})}, {"d", draw({33, 130})}};
  all[0].copy = cast(all[0].value, DType::bf16);
  all[1].copy = zeros({7, 8}, DType::bf16).window({7, 3}, {8, 1});
  all[3].rate = 0.5f;
  return all;
}

Grads gradients(const std::vector<Parameter>& parameters, int step) {
  Rng rng(uint64_t(1000 + step));
  Grads grads;
  for (const Parameter& p : parameters) grads.add(p.value, random_normal(p.value.shape(), rng));
  return grads;
}

std::string hash_of(const std::vector<Parameter>& parameters) {
  std::map<std::string, Tensor> all;
  for (const Parameter& p : parameters) {
    all[p.name] = p.value.detached();
    if (p.copy) all["copy of " + p.name] = contiguous(p.copy);
  }
  return sha256_of_tensors(all);
}

size_t bytes_kept(const Optimizer& optimizer) {
  size_t bytes = 0;
  for (const Optimizer::State& s : optimizer.states())
    if (s.value && !s.name.starts_with("param.")) bytes += size_t(bytes_of(s.dtype, s.shape));
  return bytes;
}

// One rank of a run that keeps shards.
class ShardedRank {
 public:
  ShardedRank(Ranks& ranks, const OptimizerOptions& options, uint64_t seed = 1)
      : ranks_(ranks),
        watch_(ranks),
        sums_(ranks, watch_, cpu_backend()),
        optimizer_(parameters(seed), options, {ranks.rank(), ranks.count()}) {
    int64_t count = 0;
    for (const Parameter& p : optimizer_.parameters()) count += p.value.numel();
    room_ = zeros({count + 3});
  }

  Optimizer& optimizer() { return optimizer_; }
  void share() { share_values(optimizer_.parameters(), optimizer_.owners(), room_, sums_); }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      optimizer_.set(0.01f);
      optimizer_.update(gradients(optimizer_.parameters(), step));
      share();
    }
  }
  void swap() {
    optimizer_.swap_averages();
    share();
  }
  std::string hash() const { return hash_of(optimizer_.parameters()); }
  void save(const fs::path& file) {
    const std::map<std::string, Tensor> elsewhere = fetch_states(optimizer_, ranks_);
    if (ranks_.is_first())
      save_state(file, {.step = 3, .sample = 12, .fingerprint = {}, .settings = {}}, optimizer_, elsewhere);
  }
  void restore(const fs::path& file) {
    std::optional<SavedState> saved;
    if (ranks_.is_first()) saved = SavedState::open(file);
    wick::restore(optimizer_, saved ? &*saved : nullptr, ranks_);
  }

 private:
  Ranks& ranks_;
  RankWatch watch_;
  RankSums sums_;
  Optimizer optimizer_;
  Tensor room_;
};

class ShardsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::backend().memory().on_host()) GTEST_SKIP() << "these ranks are of the CPU";
  }
  // The values of all ranks, which are the same.
  static std::string on_ranks(int count, const Body& body) {
    const std::vector<std::string> all = run_threads(count, body);
    for (const std::string& one : all) EXPECT_EQ(one, all[0]) << "of " << count << " ranks";
    return all[0];
  }

  TemporaryDirectory folder_;
};

TEST_F(ShardsTest, AreAboutEqualAndInARow) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{5}, {1, 1, 1, 1}, {100, 1, 1, 1, 1}, {3, 1, 4, 1, 5, 9, 2, 6}})
    for (const int count : {1, 2, 3, 8}) {
      const std::vector<Parameter> all = of_sizes(sizes);
      const std::vector<int> owners = owners_of(all, count);
      ASSERT_EQ(owners.size(), sizes.size());
      EXPECT_TRUE(std::ranges::is_sorted(owners));
      EXPECT_GE(owners.front(), 0);
      EXPECT_LT(owners.back(), count);
      std::vector<int64_t> elements(static_cast<size_t>(count));
      for (size_t i = 0; i < sizes.size(); ++i) elements[size_t(owners[i])] += sizes[i];
      const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
      EXPECT_LE(std::ranges::max(elements), total / count + std::ranges::max(sizes)) << count;
      EXPECT_EQ(elements[size_t(largest_owner(all, count))], std::ranges::max(elements));
    }
  EXPECT_EQ(owners_of(of_sizes({1, 1, 1, 1}), 2), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(owners_of(of_sizes({1, 1, 1, 1}), 4), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(owners_of(of_sizes({10, 1, 1}), 2), (std::vector<int>{0, 1, 1}));
}

TEST_F(ShardsTest, AreOfWholeWeightsAlone) {
  TrainConfig config{.train = TrainMode::full};
  config.ranks = 4;
  EXPECT_EQ(shard_of(config, 3).rank, 3);
  EXPECT_EQ(shard_of(config, 3).count, 4);
  config.train = TrainMode::vae;
  EXPECT_EQ(shard_of(config, 3).count, 4);
  config.optimizer = OptimizerKind::prodigy;
  EXPECT_EQ(shard_of(config, 3).count, 1);
  EXPECT_EQ(shard_of(config, 3).rank, 0);
  expect_error(
      [] {
        Optimizer(parameters(1), OptimizerOptions::of(OptimizerKind::prodigy), {0, 2});
      },
      {"prodigy", "all parameters"});
  config = {.train = TrainMode::lora};
  config.ranks = 4;
  EXPECT_EQ(shard_of(config, 3).count, 1);
}

// Signs of zeros and the payload of a NaN among them.
TEST_F(ShardsTest, ValuesAreThoseOfTheirOwnersToTheBit) {
  on_ranks(3, [](Ranks& ranks) {
    ShardedRank one(ranks, {}, /*seed=*/uint64_t(10 + ranks.rank()));
    const std::vector<Parameter>& all = one.optimizer().parameters();
    for (const Parameter& p : all) {
      float* values = p.value.data<float>();
      values[0] = -0.0f;
      values[1] = std::bit_cast<float>(0x7fc12340 + ranks.rank());
      values[2] = std::numeric_limits<float>::infinity();
    }
    one.share();
    std::string text = one.hash();
    for (size_t i = 0; i < all.size(); ++i) {
      const float* values = all[i].value.data<float>();
      if (!std::signbit(values[0]) || std::bit_cast<int>(values[1]) != 0x7fc12340 + one.optimizer().owners()[i])
        text += "; other bits of " + all[i].name;
    }
    return text.size() == 64 ? "" : text;
  });
}

// On more ranks than there are parameters too, of which some own none.
TEST_F(ShardsTest, HaveTheBitsOfOneThatKeepsAll) {
  for (const OptimizerKind kind : kShardedKinds) {
    OptimizerOptions options = OptimizerOptions::of(kind);
    options.average = kind == OptimizerKind::schedule_free ? 0 : 0.9f;
    options.max_grad_norm = 1;
    const auto file = [&](int count) { return folder_ / std::to_string(count); };
    const auto trained = [&](int count) {
      return on_ranks(count, [&](Ranks& ranks) {
        ShardedRank one(ranks, options);
        one.train(0, 2);
        std::string text = one.hash();
        one.swap();
        text += " " + one.hash();
        one.swap();
        text += " " + one.hash();
        one.save(file(count));
        one.train(2, 3);
        return text + " " + one.hash();
      });
    };
    const std::string whole = trained(1), bytes = read_plain(file(1));
    for (const int count : {3, 5}) {
      EXPECT_EQ(trained(count), whole) << name_of(kind) << " on " << count;
      EXPECT_TRUE(read_plain(file(count)) == bytes) << name_of(kind) << ": other bytes in the state of " << count;
      const std::string resumed = on_ranks(count == 3 ? 2 : 1, [&](Ranks& ranks) {
        ShardedRank one(ranks, options, /*seed=*/2);
        one.restore(file(count));
        one.train(2, 3);
        return one.hash();
      });
      EXPECT_TRUE(whole.ends_with(resumed)) << name_of(kind) << " from " << count;
    }
  }
}

TEST_F(ShardsTest, TakeTheMemoryOfTheirShareAlone) {
  OptimizerOptions options;
  options.average = 0.9f;
  const std::vector<Parameter> all = parameters(1);
  const size_t before = host_memory().held(Purpose::optimizer);
  const auto held = [&] { return host_memory().held(Purpose::optimizer) - before; };
  const Optimizer whole(all, options);
  const size_t scalars = size_t(whole.scalars().numel() + whole.sums_by_part().numel()) * sizeof(float);
  EXPECT_EQ(bytes_kept(whole) + size_t(whole.sums_by_part().numel()) * sizeof(float), held());
  size_t together = 0;
  for (const int rank : {0, 1, 2, 3, 4, 5, 6}) {
    const size_t others = held();
    const Optimizer one(all, options, {rank, 7});
    size_t own = 0;
    for (size_t i = 0; i < all.size(); ++i)
      if (one.owners()[i] == rank) own += 3 * sizeof(float) * size_t(all[i].value.numel());
    EXPECT_EQ(held() - others, own + scalars) << rank;
    together += own;
  }
  EXPECT_EQ(together + scalars, held()) << "of the whole, since shards are gone";
}

// Scalars move on where nothing is owned.
TEST_F(ShardsTest, OneThatOwnsNothingStillCountsSteps) {
  const std::vector<Parameter> all = of_sizes({8});
  ASSERT_EQ(owners_of(all, 2)[0], 1);
  for (const OptimizerKind kind : kShardedKinds) {
    Optimizer none(all, OptimizerOptions::of(kind), {0, 2}), whole(of_sizes({8}), OptimizerOptions::of(kind));
    for (Optimizer* one : {&none, &whole}) {
      one->set(0.1f);
      one->update(gradients(one->parameters(), 1));
    }
    EXPECT_EQ(none.scalars().to_vector(), whole.scalars().to_vector()) << name_of(kind);
    EXPECT_EQ(all[0].value.to_vector(), std::vector<float>(8)) << "it is another rank's";
    expect_error([&] { none.update({}); }, {"no parameter has a gradient"});
  }
}

}  // namespace
}  // namespace wick
