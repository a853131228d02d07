#include "wick/pipelines/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "io/files.h"

namespace wick {
namespace {

const std::vector<float> kLogits = {1, 3, 2, -1, 2.5f, 0};
constexpr int kDraws = 4000;

// The share of each token in many draws.
std::map<int64_t, double> shares(const Sampling& sampling, const std::vector<float>& logits = kLogits,
                                 const std::vector<int64_t>& text = {}) {
  TokenSampler sampler(sampling);
  std::map<int64_t, double> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler(logits, text)];
  for (auto& [id, count] : counts) count /= kDraws;
  return counts;
}

// Expects these tokens, in proportion to the exponentials of their logits over the temperature.
void expect_shares(const std::map<int64_t, double>& got, const std::vector<int64_t>& tokens, float temperature,
                   const std::vector<float>& logits = kLogits) {
  double total = 0;
  for (const int64_t id : tokens) total += std::exp(double(logits[size_t(id)]) / temperature);
  EXPECT_EQ(got.size(), tokens.size());
  for (const int64_t id : tokens) {
    const double want = std::exp(double(logits[size_t(id)]) / temperature) / total;
    ASSERT_TRUE(got.contains(id)) << id;
    EXPECT_NEAR(got.at(id), want, 5 * std::sqrt(want * (1 - want) / kDraws)) << id;
  }
}

TEST(TokenSampler, DrawsByProbability) {
  expect_shares(shares({.temperature = 1}), {0, 1, 2, 3, 4, 5}, 1);
  expect_shares(shares({.temperature = 2}), {0, 1, 2, 3, 4, 5}, 2);
}

TEST(TokenSampler, GreedyTakesTheLikeliestAndOfEqualsTheFirst) {
  TokenSampler sampler({.temperature = 0, .seed = 5});
  EXPECT_EQ(sampler(kLogits, {}), 1);
  EXPECT_EQ(sampler({0, 2, 2, 1}, {}), 1);
}

TEST(TokenSampler, LeavesOutTheUnlikely) {
  expect_shares(shares({.temperature = 1, .top_k = 2}), {1, 4}, 1);
  expect_shares(shares({.temperature = 1, .top_k = 100}), {0, 1, 2, 3, 4, 5}, 1);
  // e^3 : e^2.5 : e^2 : e : 1 : 1/e are 45.9, 27.8, 16.9, 6.2, 2.3 and 0.8 per cent of their sum
  expect_shares(shares({.temperature = 1, .top_p = 0.45f}), {1}, 1);
  expect_shares(shares({.temperature = 1, .top_p = 0.5f}), {1, 4}, 1);
  expect_shares(shares({.temperature = 1, .top_p = 0.9f}), {1, 4, 2}, 1);
  expect_shares(shares({.temperature = 1, .top_p = 0}), {1}, 1);
  expect_shares(shares({.temperature = 1, .min_p = 0.3f}), {1, 4, 2}, 1);  // e^-1 = 0.37, e^-2 = 0.14
  expect_shares(shares({.temperature = 1, .min_p = 1}), {1}, 1);
  // The share is relative to the tokens that top-k left.
  expect_shares(shares({.temperature = 1, .top_k = 2, .top_p = 0.61f}), {1}, 1);
  expect_shares(shares({.temperature = 1, .top_k = 2, .top_p = 0.63f}), {1, 4}, 1);
}

TEST(TokenSampler, ManyTokensWithEqualChances) {
  const std::vector<float> flat(5000, 1.5f);
  EXPECT_NEAR(double(shares({.temperature = 1, .top_p = 0.25f}, flat).rbegin()->first), 1249, 30);
  EXPECT_EQ(shares({.temperature = 0.1f, .top_k = 3}, flat).size(), 3u);
}

TEST(TokenSampler, PenalisesWhatTheTextHas) {
  std::vector<float> penalised = kLogits;
  penalised[1] /= 2;
  penalised[3] *= 2;
  expect_shares(shares({.repetition_penalty = 2, .temperature = 1}, kLogits, {1, 3, 1, 1}), {0, 1, 2, 3, 4, 5}, 1,
                penalised);
}

TEST(TokenSampler, TheSeedDecides) {
  const auto drawn = [](uint64_t seed) {
    TokenSampler sampler({.temperature = 1, .seed = seed});
    std::vector<int64_t> ids;
    for (int i = 0; i < 30; ++i) ids.push_back(sampler(kLogits, {}));
    return ids;
  };
  EXPECT_EQ(drawn(7), drawn(7));
  EXPECT_NE(drawn(7), drawn(8));
}

TEST(TokenSampler, RefusesNonsense) {
  TokenSampler sampler({.temperature = 1});
  expect_error([&] { sampler({1, NAN}, {}); }, {"not numbers"});
  expect_error([&] { sampler({1, INFINITY}, {}); }, {"not finite"});
  expect_error([] { Sampling{.temperature = -1}.check(); }, {"temperature", "-1"});
  expect_error([] { Sampling{.top_p = NAN}.check(); }, {"top-p", "nan"});
  expect_error([] { Sampling{.min_p = 2}.check(); }, {"min-p", "2"});
  expect_error([] { Sampling{.repetition_penalty = 0}.check(); }, {"repetition"});
  expect_error([] { Sampling{.top_k = -1}.check(); }, {"top-k", "-1"});
}

}  // namespace
}  // namespace wick
