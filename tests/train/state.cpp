// The state of a run: a saved state opens as it was, and a damaged or foreign file is refused.
#include "wick/train/state.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "wick/train/train_rng.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

Tensor trainable(const std::vector<float>& values) { return Tensor::of(values, {int64_t(values.size())}).trainable(); }

class StateTest : public testing::Test {
 protected:
  Optimizer optimizer() const { return Optimizer({{"a", trainable({1, 2, 3})}, {"b", trainable({4})}}, {}); }
  TrainState state(int64_t step) const {
    return {.step = step,
            .epoch = 1,
            .batch = 2,
            .sample = 98,
            .batches = 6,
            .ranks = 3,
            .fingerprint = {{"--rank", "4"}},
            .settings = {{"--lr", "0.1"}}};
  }
  TrainState older(int64_t step) const {
    TrainState state = this->state(step);
    state.sample = {};
    state.batches = state.ranks = 1;
    state.rng = TrainRng(0).positions();
    return state;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const fs::path& file : state_files(folder_.path())) all.push_back(file.filename().string());
    return all;
  }

  TemporaryDirectory folder_;
  std::vector<std::string> said_;
  std::function<void(const std::string&)> say_ = [this](const std::string& text) { said_.push_back(text); };
};

TEST_F(StateTest, ComesBackAsItWas) {
  for (TrainState saved : {state(7), older(7)}) {
    saved.finished = true;
    save_state(folder_ / "state-000007.safetensors", saved, optimizer());
    const SavedState opened = SavedState::open(folder_ / "state-000007.safetensors");
    EXPECT_TRUE(opened.has_hash());
    EXPECT_TRUE(opened.state().finished);
    EXPECT_EQ(opened.state().step, 7);
    EXPECT_EQ(opened.state().sample, saved.sample);
    EXPECT_EQ(opened.state().rng, saved.rng);
    EXPECT_EQ(opened.state().fingerprint, saved.fingerprint);
    EXPECT_EQ(opened.state().settings, saved.settings);
    EXPECT_EQ(opened.state().batches, saved.batches);
    EXPECT_EQ(opened.state().ranks, saved.ranks);
    EXPECT_EQ(SavedState::glimpse(folder_.path())->sample, saved.sample);
  }
}

TEST_F(StateTest, NoBitMayFlip) {
  save_state(folder_ / "s", state(7), optimizer());
  std::string whole = read_plain(folder_ / "s");
  const auto refused = [&](size_t byte, int bit) {
    std::string flipped = whole;
    flipped[byte] = char(flipped[byte] ^ (1 << bit));
    write_plain(folder_ / "s", flipped);
    EXPECT_THROW(SavedState::open(folder_ / "s"), Error) << "byte " << byte << ", bit " << bit;
  };
  for (size_t i = 0; i < whole.size(); ++i) refused(i, int(i % 8));
  // One bit lies between the version before, and the one before that, which wrote no hash.
  save_state(folder_ / "s", older(7), optimizer());
  whole = read_plain(folder_ / "s");
  refused(whole.find("training state 3") + 15, 0);
}

TEST_F(StateTest, NumbersThatMakeNoSenseAreRefused) {
  const auto refused = [&](const char* key, auto&& edit) {
    TrainState nonsense = older(7);
    edit(nonsense);
    save_state(folder_ / "s", nonsense, optimizer());
    expect_error([&] { SavedState::open(folder_ / "s"); }, {"/s: metadata ", key});
  };
  refused("step", [](TrainState& s) { s.step = 1'000'000'000'000'000'000; });
  refused("step", [](TrainState& s) { s.step = 0; });
  refused("epoch", [](TrainState& s) { s.epoch = -1; });
  refused("batch", [](TrainState& s) { s.batch = -1; });
  refused("rng.noise", [](TrainState& s) { s.rng["noise"] = ~uint64_t{0}; });
  refused("rng.other", [](TrainState& s) { s.rng["other"] = 1; });
  TrainState lacking = older(7);
  lacking.rng.erase("noise");
  save_state(folder_ / "s", lacking, optimizer());
  expect_error([&] { SavedState::open(folder_ / "s"); }, {"rng.noise"});
}

TEST_F(StateTest, TheNewestTwoAreKept) {
  StateFolder states(folder_.path());
  EXPECT_FALSE(states.open_newest(say_));
  for (const int64_t step : {2, 5, 5, 9}) states.save(state(step), optimizer());
  EXPECT_EQ(names(), (std::vector<std::string>{"state-000009.safetensors", "state-000005.safetensors"}));
  states.save(state(12345678), optimizer());
  EXPECT_EQ(names(), (std::vector<std::string>{"state-12345678.safetensors", "state-000009.safetensors"}));
  EXPECT_EQ(StateFolder(folder_.path()).open_newest(say_)->state().step, 12345678);
  EXPECT_TRUE(said_.empty());
}

TEST_F(StateTest, ADamagedOneIsPassedOverAndNeverTakesAWholeOnesPlace) {
  StateFolder(folder_.path()).save(state(4), optimizer());
  write_plain(folder_ / "state-000006.safetensors", "half");
  write_plain(folder_ / "state-x.safetensors", "none of ours");
  StateFolder states(folder_.path());
  EXPECT_EQ(states.open_newest(say_)->state().step, 4);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_NE(said_.front().find("state-000006.safetensors"), std::string::npos) << said_.front();
  states.save(state(5), optimizer());
  EXPECT_EQ(names(), (std::vector<std::string>{"state-000005.safetensors", "state-000004.safetensors"}));
  EXPECT_EQ(read_plain(folder_ / "state-x.safetensors"), "none of ours");

  for (const std::string& name : names()) write_plain(folder_ / name, "half");
  expect_error([&] { StateFolder(folder_.path()).open_newest(say_); },
               {"state-000005.safetensors", "no other state is whole"});
}

}  // namespace
}  // namespace wick
