#include "wick/autograd/host_checkpoints.h"

#include <gtest/gtest.h>

#include "late_device.h"
#include "wick/autograd/block_schedule.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

// Blocks that double what they are given and add what all of them share.
class HostCheckpointsTest : public testing::Test {
 protected:
  static Tensor block(const Tensor& x, const Tensor& shared) { return silu(x) * 2.0f + shared; }

  Tensor run(const BlockSchedule& blocks, Tensor x, const Tensor& shared, size_t count) {
    BlockSchedule::Pass pass = blocks.pass();
    for (size_t i = 0; i < count; ++i) x = pass(block, x, shared);
    return x;
  }

  std::vector<float> gradients(const BlockSchedule& blocks, size_t count, int64_t numbers = 5) {
    std::vector<float> values(static_cast<size_t>(numbers));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * float(i) - 0.4f;
    const Tensor x = Tensor::of(values, {numbers}, device_).trainable();
    const Tensor shared = Tensor::of(values, {numbers}, device_).trainable();
    const Tape tape;
    Grads grads = Tape::active()->backward(sum(run(blocks, x, shared, count)));
    std::vector<float> all = grads[x].to_vector(), more = grads[shared].to_vector();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  test::LateDevice device_;
};

TEST_F(HostCheckpointsTest, GiveTheSameGradients) {
  for (const std::set<size_t>& again : {std::set<size_t>{0}, {0, 1}, {0, 1, 2, 3, 4, 5}, {1, 2, 5}, {5}}) {
    const BlockSchedule there = BlockSchedule::recomputing(again), host = there.with_checkpoints_on_host();
    for (const int64_t numbers : {5, 9, 3, 9})  // rooms are used again
      EXPECT_EQ(gradients(there, 6, numbers), gradients(host, 6, numbers)) << again.size();
  }
}

// Of six blocks' inputs: the first is held outside, the last two do not leave. What is shared is held by all.
TEST_F(HostCheckpointsTest, WhatOthersHoldStays) {
  const BlockSchedule host = BlockSchedule::recomputing_all().with_checkpoints_on_host();
  gradients(host, 6);
  EXPECT_EQ(device_.sends, 4);
  EXPECT_EQ(device_.fetches, 3) << "the last that was sent is still there when backward begins";
}

// An input that a block does without, and one that is no tensor.
TEST_F(HostCheckpointsTest, OtherInputsStay) {
  const auto gradient = [&](const BlockSchedule& blocks) {
    const Tensor x = Tensor::of(std::vector<float>{1, -2, 3}, {3}, device_).trainable();
    const Tape tape;
    BlockSchedule::Pass pass = blocks.pass();
    const auto block = [](const Tensor& a, const Tensor& missing, float factor) {
      EXPECT_FALSE(missing);
      return silu(a) * factor;
    };
    Tensor y = x;
    for (int i = 0; i < 4; ++i) y = pass(block, y, Tensor(), 2.0f);
    return Tape::active()->backward(sum(y))[x].to_vector();
  };
  EXPECT_EQ(gradient(BlockSchedule::recomputing_all()),
            gradient(BlockSchedule::recomputing_all().with_checkpoints_on_host()));
}

TEST_F(HostCheckpointsTest, RestWithNothing) {
  const BlockSchedule host = BlockSchedule::recomputing_all().with_checkpoints_on_host();
  {
    const Tensor x = Tensor::of(std::vector<float>{1, 2}, {2}, device_).trainable();
    const Tape tape;
    run(host, x, x, 6);  // no backward comes
    device_.rest();
  }
  const int sends = device_.sends;
  device_.rest();
  EXPECT_EQ(device_.sends, sends);
  EXPECT_EQ(gradients(host, 6), gradients(BlockSchedule::recomputing_all(), 6));
}

}  // namespace
}  // namespace wick
