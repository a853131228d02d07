// The tape: order, accumulation, checkpointing, and the tensors that it saves.
#include <gtest/gtest.h>

#include <array>

#include "wick/ops/ops.h"

namespace wick {
namespace {

class TapeTest : public testing::Test {
 protected:
  void SetUp() override { cpu_backend(); }
  Tensor normal(const Shape& shape) { return random_normal(shape, rng_); }
  Rng rng_{7};
};

TEST_F(TapeTest, NothingIsRecordedWithoutATape) {
  const Tensor x = normal({3, 4}).trainable();
  EXPECT_FALSE(silu(x).tracked());
}

TEST_F(TapeTest, NothingIsRecordedForConstants) {
  Tape tape;
  const Tensor y = silu(normal({3, 4}));
  EXPECT_FALSE(y.tracked());
  EXPECT_EQ(tape.size(), 0u);
}

TEST_F(TapeTest, GradientsOfATensorUsedTwiceAddUp) {
  const Tensor x = Tensor::of(std::vector<float>{1, -2, 3}, {3}).trainable();
  Tape tape;
  const Tensor y = x * x + x + x;  // y' = 2x + 2
  const Grads grads = tape.backward(sum(y));
  EXPECT_EQ(grads[x].to_vector(), (std::vector<float>{4, -2, 8}));
}

TEST_F(TapeTest, AnObserverSeesEveryRecordedOutput) {
  const Tensor x = normal({3}).trainable();
  Tape tape;
  std::vector<std::string> seen;
  tape.observe([&](const Op& op, const Tensor& y) { seen.push_back(op.name() + std::to_string(y.numel())); });
  sum(silu(x) * 2.0f);
  EXPECT_EQ(seen, (std::vector<std::string>{"silu3", "affine3", "sum_to1"}));
}

TEST_F(TapeTest, ASharedGradientIsNotAddedToInPlace) {
  const Tensor a = Tensor::of(std::vector<float>{1, 2}, {2}).trainable();
  const Tensor b = Tensor::of(std::vector<float>{3, 4}, {2}).trainable();
  Tape tape;
  const Grads grads = tape.backward(sum(a + b) + sum(a * 5.0f));
  EXPECT_EQ(grads[a].to_vector(), (std::vector<float>{6, 6}));
  EXPECT_EQ(grads[b].to_vector(), (std::vector<float>{1, 1}));
}

TEST_F(TapeTest, AnyComputedTensorCanBeMadeTrainable) {
  const Tensor w = normal({4, 3});
  const Tensor h = silu(linear(normal({2, 3}), w)).trainable();
  Tape tape;
  const Grads grads = tape.backward(sum(square(h)));
  ASSERT_TRUE(grads[h]);
  EXPECT_FLOAT_EQ(grads[h].to_vector()[0], 2 * h.to_vector()[0]);
}

TEST_F(TapeTest, AnInnerTapeRestoresTheOuterOne) {
  Tape outer;
  {
    Tape inner;
    EXPECT_EQ(Tape::active(), &inner);
  }
  EXPECT_EQ(Tape::active(), &outer);
  {
    const TapePause pause;
    EXPECT_EQ(Tape::active(), nullptr);
  }
  EXPECT_EQ(Tape::active(), &outer);
}

// The bytes that stay allocated for the backward of `f`, beyond its result.
template <class F>
int64_t saved_bytes(const F& f) {
  const int64_t before = int64_t(host_memory().in_use());
  Tape tape;
  const Tensor y = f();
  return int64_t(host_memory().in_use()) - before - int64_t((size_t(y.numel()) * 4 + 63) / 64 * 64);
}

TEST_F(TapeTest, AFrozenLinearSavesNoActivation) {
  const Tensor w = normal({64, 64}), x = normal({128, 64}).trainable();
  // h dies with the expression unless linear saved it.
  EXPECT_LT(saved_bytes([&] { return linear(affine(x, 2, 0), w); }), 128 * 64 * 4);
  const Tensor trainable = w.trainable();
  EXPECT_GE(saved_bytes([&] { return linear(affine(x, 2, 0), trainable); }), 128 * 64 * 4);
}

TEST_F(TapeTest, AFrozenWeightGetsNoGradient) {
  const Tensor w = normal({5, 3}), x = normal({2, 3}).trainable();
  Tape tape;
  const Grads grads = tape.backward(sum(linear(x, w)));
  EXPECT_TRUE(grads[x]);
  EXPECT_FALSE(grads[w]);
}

TEST_F(TapeTest, BackwardFreesWhatWasSaved) {
  const Tensor x = normal({128, 64}).trainable(), w = normal({64, 64});
  const size_t before = host_memory().in_use();
  {
    Tape tape;
    tape.backward(sum(silu(linear(silu(x), w))));
    EXPECT_EQ(tape.size(), 0u);
  }
  EXPECT_EQ(host_memory().in_use(), before);
}

struct Block {
  Tensor w1, w2;
  Tensor operator()(const Tensor& x) const { return x + linear(silu(linear(x, w1)), w2); }
};

TEST_F(TapeTest, ACheckpointedBlockGivesTheSameBits) {
  const Block block{normal({8, 6}).trainable(), normal({6, 8}).trainable()};
  const Tensor x = normal({5, 6});  // untracked: the parameters hide inside the block
  auto gradients = [&](bool again) {
    Tape tape;
    Tensor h = x;
    for (int i = 0; i < 3; ++i) h = again ? checkpoint(std::cref(block), h) : block(h);
    const Grads grads = tape.backward(mean(square(h)));
    return std::pair(grads[block.w1].to_vector(), grads[block.w2].to_vector());
  };
  EXPECT_EQ(gradients(false), gradients(true));
}

TEST_F(TapeTest, CheckpointingKeepsInputsOnly) {
  const Block block{normal({256, 64}), normal({64, 256})};
  const Tensor x = normal({32, 64}).trainable();
  const int64_t plain = saved_bytes([&] { return block(x); });
  const int64_t again = saved_bytes([&] { return checkpoint(std::cref(block), x); });
  EXPECT_LT(again, plain);
  EXPECT_LE(again, 64);
}

// Norms, gates and products keep their input; the operations behind them need not keep their output as well.
TEST_F(TapeTest, OutputsThatAreMadeAgainAreNotKept) {
  const Tensor x = normal({32, 64}).trainable(), w = normal({8, 64}).trainable(), v = normal({8, 32}).trainable();
  const Tensor one = normal({64}), zero = normal({64});
  const auto through = [&](const Tensor& h) { return linear(h, h.dim(-1) == 64 ? w : v); };
  const int64_t kept = saved_bytes([&] { return through(x + x); });
  const int64_t h = 32 * 64 * int64_t(sizeof(float));
  EXPECT_GE(kept, h);
  EXPECT_LT(saved_bytes([&] { return through(silu(x)); }), h);
  EXPECT_LT(saved_bytes([&] { return through(layer_norm(x, one, zero, 1e-5f)); }), h);
  EXPECT_LT(saved_bytes([&] { return through(rms_norm(x, one, 1e-5f)); }), h);
  EXPECT_LT(saved_bytes([&] { return through(geglu(x)); }), h / 2);
  const Tensor wide = normal({256, 64}).trainable(), back = normal({8, 128}).trainable();
  EXPECT_LT(saved_bytes([&] { return linear(geglu(linear(layer_norm(x, one, zero, 1e-5f), wide)), back); }), h);
}

TEST_F(TapeTest, WhatIsMadeAgainHasTheSameBits) {
  const Tensor x = normal({2, 3, 8}).trainable(), w = normal({12, 8}).trainable(), v = normal({4, 6}).trainable();
  const Tensor one = normal({8}), zero = normal({8});
  const auto gradients = [&](Tape::Keep keep) {
    Tape tape(keep);
    const Tensor y = linear(geglu(linear(layer_norm(x, one, zero, 1e-5f), w)), v);
    const Grads grads = tape.backward(sum(square(y)));
    return std::array{grads[x].to_vector(), grads[w].to_vector(), grads[v].to_vector()};
  };
  EXPECT_EQ(gradients(Tape::Keep::needed), gradients(Tape::Keep::all));
}

TEST_F(TapeTest, AGateOverwritesOnlyWhatNobodyElseHolds) {
  const Tensor x = normal({5, 6}).trainable(), w = normal({8, 6});
  const auto gradient = [&](bool held) {
    Tape tape;
    const Tensor values = linear(x, w);
    const std::vector<float> before = values.to_vector();
    const Tensor y = sum(square(swiglu(held ? values : linear(x, w))));
    const Grads grads = tape.backward(y);
    EXPECT_EQ(values.to_vector(), before);
    return grads[x].to_vector();
  };
  EXPECT_EQ(gradient(false), gradient(true));
}

}  // namespace
}  // namespace wick
