// The loss that never holds all logits equals that of all of them, in chunks of any size.
#include <gtest/gtest.h>

#include "device.h"
#include "wick/ops/ops.h"

namespace wick::test {
namespace {

struct Differentiated {
  float loss;
  std::vector<float> dx, dw;
};

template <class F>
Differentiated differentiate(const Tensor& x, const Tensor& w, const F& loss_of) {
  const Tensor a = x.trainable(), b = w.trainable();
  Tape tape;
  const Tensor loss = loss_of(a, b);
  const Grads grads = tape.backward(loss);
  return {loss.item(), grads[a].to_vector(), grads[b].to_vector()};
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], tolerance) << i;
}

TEST(LinearCrossEntropy, IsThatOfAllLogitsWhateverTheChunk) {
  Rng rng(11);
  const Tensor x = random_normal({3, 7, 19}, rng).to(memory()), w = random_normal({41, 19}, rng).to(memory());
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 21; ++i) ids.push_back(i % 4 == 1 ? -100 : int64_t(rng.below(41)));
  const TokenTargets targets = TokenTargets::mean(Tensor::of(ids, {3, 7}), 41, memory());
  const Differentiated all =
      differentiate(x, w, [&](const Tensor& a, const Tensor& b) { return cross_entropy(linear(a, b), targets); });
  for (const int64_t chunk : {1, 2, 5, 20, 21, 100, 0}) {
    SCOPED_TRACE(chunk);
    const Differentiated got = differentiate(
        x, w, [&](const Tensor& a, const Tensor& b) { return linear_cross_entropy(a, b, targets, chunk) * 3.0f; });
    EXPECT_NEAR(got.loss, 3 * all.loss, 1e-5);
    std::vector<float> dx = all.dx, dw = all.dw;
    for (std::vector<float>* grad : {&dx, &dw})
      for (float& g : *grad) g *= 3;
    expect_near(got.dx, dx, 1e-6f);
    expect_near(got.dw, dw, 1e-5f);
  }
}

// Beside its inputs and gradients it takes one chunk of logits.
TEST(LinearCrossEntropy, HoldsAChunk) {
  if (!memory().on_host()) GTEST_SKIP() << "counted on the host";
  const int64_t tokens = 512, width = 8, vocabulary = 4000, chunk = 16;
  const Tensor x = zeros({tokens, width}).trainable(), w = zeros({vocabulary, width});
  const TokenTargets targets = TokenTargets::mean(zeros({tokens}, DType::i64), vocabulary);
  Memory& host = host_memory();
  host.reset_peak();
  const size_t before = host.in_use();
  Tape tape;
  tape.backward(linear_cross_entropy(x, w, targets, chunk));
  EXPECT_LT(host.peak() - before, size_t(2 * chunk * vocabulary + 4 * tokens * width) * sizeof(float));
}

TEST(TokenTargets, AreCheckedAndCounted) {
  const TokenTargets t = TokenTargets::mean(Tensor::of(std::vector<int64_t>{4, -100, 0, -1}, {2, 2}), 5);
  EXPECT_EQ(t.weights.to_vector(), (std::vector<float>{0.5f, 0, 0.5f, 0}));
  EXPECT_THROW(TokenTargets::mean(Tensor::of(std::vector<int64_t>{5}, {1}), 5), Error);
  // With nothing counted the loss is zero, not a number divided by zero.
  const Tensor logits = zeros({2, 5});
  const TokenTargets none = TokenTargets::mean(Tensor::of(std::vector<int64_t>{-100, -100}, {2}), 5);
  EXPECT_EQ(cross_entropy(logits, none).item(), 0);
}

}  // namespace
}  // namespace wick::test
