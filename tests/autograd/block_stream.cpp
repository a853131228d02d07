#include "wick/autograd/block_stream.h"

#include <gtest/gtest.h>

#include <numeric>

#include "late_device.h"
#include "wick/autograd/block_schedule.h"
#include "wick/core/error.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

Tensor numbers(float a, float b, float c) { return Tensor::of(std::vector<float>{a, b, c}, {3}); }

// Blocks that multiply by a weight of their own.
class BlockStreamTest : public testing::Test {
 protected:
  struct Model {
    std::vector<Tensor> weights;
    BlockSchedule blocks;

    Tensor operator()(Tensor x) const {
      BlockSchedule::Pass run = blocks.pass();
      for (const Tensor& w : weights) x = run([&w](const Tensor& h) { return silu(h) * w; }, x);
      return x;
    }
  };

  static float value(size_t block) { return 1 + 0.25f * float(block); }

  Model model(size_t count, size_t streamed, BlockSchedule blocks, bool staged = false) {
    const std::vector<size_t> bytes(count, BlockStream::rounded_up(12));
    const auto stream = std::make_shared<BlockStream>(device_, bytes, streamed, MasterPlace{.staged = staged});
    Model made{.blocks = std::move(blocks)};
    for (size_t i = 0; i < count; ++i) {
      const std::vector<float> values(3, value(i));
      made.weights.push_back(stream->has(i) ? stream->room(i, {3}, DType::f32) : Tensor::of(values, {3}, device_));
      if (!stream->has(i)) continue;
      device_.write(made.weights.back().view().data, values.data(), 12);
      stream->keep(i, true);
    }
    made.blocks.stream(stream);
    return made;
  }

  static std::vector<float> gradient(const Model& model) {
    const Tensor x = numbers(0.5f, -1, 2).trainable();
    const Tape tape;
    Tape* active = Tape::active();
    return active->backward(sum(model(x)))[x].to_vector();
  }

  test::LateDevice device_;
};

TEST_F(BlockStreamTest, GivesEachBlockItsWeights) {
  for (const size_t streamed : {1, 2, 3, 5, 6})
    for (const bool again : {false, true}) {
      const BlockSchedule kind = BlockSchedule::recomputing_all(again);
      const Model resident = model(6, 0, kind), some = model(6, streamed, kind);
      const Tensor x = numbers(0.25f, -3, 1);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(resident(x).to_vector(), some(x).to_vector()) << streamed;
        EXPECT_EQ(gradient(resident), gradient(some)) << streamed;
        EXPECT_EQ(gradient(resident), gradient(some)) << streamed << " once more";
      }
    }
}

TEST_F(BlockStreamTest, StagedOnesComeAlike) {
  const Model resident = model(6, 0, BlockSchedule::recomputing_all()),
              staged = model(6, 5, BlockSchedule::recomputing_all(), true);
  EXPECT_EQ(device_.staged_bytes, 2 * BlockStream::rounded_up(12)) << "a block's for each slot";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(gradient(resident), gradient(staged));
}

// Six in two slots: forward brings four, backward the first four again, and the next step finds the first two.
TEST_F(BlockStreamTest, NoTurnBringsWhatIsThere) {
  const Model m = model(6, 6, BlockSchedule::recomputing_all());
  gradient(m);
  device_.fetches = 0;
  gradient(m);
  EXPECT_EQ(device_.fetches, 8);
  device_.fetches = 0;
  for (int i = 0; i < 3; ++i) m(numbers(1, 2, 3));
  EXPECT_EQ(device_.fetches, 3 * 6 - 1) << "the last block's slot gets its first one when the next pass begins";
}

TEST_F(BlockStreamTest, RestsWithTheFirstBlocks) {
  const Model m = model(5, 5, {});
  const Tensor x = numbers(1, 2, 3);
  const Tape tape;
  m(x.trainable());  // no backward comes
  device_.rest();
  for (const size_t block : {0, 1})
    EXPECT_EQ(m.weights[block].to_vector(), std::vector<float>(3, value(block))) << block;
  device_.fetches = 0;
  device_.rest();
  EXPECT_EQ(device_.fetches, 0);
}

// A pass that leaves blocks out, as skip-layer guidance does.
TEST_F(BlockStreamTest, BlocksMayBeSkipped) {
  const Model m = model(6, 6, {});
  const Tensor x = numbers(1, 2, 3);
  BlockSchedule::Pass run = m.blocks.pass();
  Tensor y = x;
  float factor = 1;
  for (size_t i = 0; i < 6; ++i)
    if (i == 1 || i == 4) {
      run.skip();
    } else {
      y = run([&](const Tensor& h) { return h * m.weights[i]; }, y);
      factor *= value(i);
    }
  EXPECT_EQ(y.to_vector(), (std::vector<float>{factor, 2 * factor, 3 * factor}));
}

TEST_F(BlockStreamTest, IsEvenlySpread) {
  const BlockStream stream(device_, std::vector<size_t>(10, 512), 4);
  std::vector<size_t> streamed;
  for (size_t i = 0; i < 10; ++i)
    if (stream.has(i)) streamed.push_back(i);
  EXPECT_EQ(streamed, (std::vector<size_t>{2, 4, 7, 9}));
  EXPECT_THROW(BlockStream(device_, {512, 512}, 3), Error);
  // Blocks twice as large are streamed half as often.
  std::vector<size_t> bytes(20, 2048);
  bytes.resize(60, 1024);
  const BlockStream some(device_, bytes, 20);
  size_t large = 0, all = 0;
  for (size_t i = 0; i < 60; ++i) (i < 20 ? large : all) += some.has(i);
  EXPECT_EQ(large + all, 20u);
  EXPECT_GE(large, 3u);
  EXPECT_LE(large, 4u);
}

}  // namespace
}  // namespace wick
