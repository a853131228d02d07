#include "wick/text/learned_word.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

using Parts = std::vector<TextOrIds>;

const std::vector<LearnedWord> kWords = {{"cat", {10, 11}}, {"big cat", {12}}, {"<s>", {13}}, {"elsewhere", {}}};

TEST(LearnedWord, TextIsDividedAtWords) {
  const auto parts = [](std::string_view text) { return parts_at_words(text, kWords); };
  EXPECT_EQ(parts("a dog"), (Parts{{"a dog"}}));
  EXPECT_EQ(parts(""), Parts{});
  EXPECT_EQ(parts("cat"), (Parts{{"", {10, 11}}}));
  EXPECT_EQ(parts("a Cat, with a BIG cat here"), (Parts{{"a"}, {"", {10, 11}}, {", with a"}, {"", {12}}, {"here"}}));
  // Not within others' words.
  EXPECT_EQ(parts("cats concat cat2 caté"), (Parts{{"cats concat cat2 caté"}}));
  EXPECT_EQ(parts("a<s>b <s><s>"), (Parts{{"a"}, {"", {13}}, {"b"}, {"", {13}}, {"", {13}}}));
  EXPECT_EQ(parts("elsewhere"), (Parts{{"elsewhere"}}));
  EXPECT_EQ(parts_at_words("", {}), (Parts{{""}}));
}

TEST(LearnedWord, AMarkGoesWithItsWord) {
  const auto parts = [](std::string_view text) { return parts_at_words(text, kWords, "embedding:"); };
  EXPECT_EQ(parts("a embedding:cat, b"), (Parts{{"a"}, {"", {10, 11}}, {", b"}}));
  EXPECT_EQ(parts("a embedding:elsewhere b"), (Parts{{"a"}, {"b"}}));
  EXPECT_EQ(parts("a embedding:dog"), (Parts{{"a embedding:dog"}}));
  EXPECT_EQ(parts("a cat"), (Parts{{"a"}, {"", {10, 11}}}));
}

TEST(LearnedWord, IdsOfBoth) {
  const auto lengths = [](const std::string& text) { return std::vector<int64_t>{int64_t(text.size())}; };
  EXPECT_EQ(ids_with_words("ab cat c", kWords, lengths), (std::vector<int64_t>{2, 10, 11, 1}));
  EXPECT_EQ(ids_with_words("ab", {}, lengths), (std::vector<int64_t>{2}));
}

}  // namespace
}  // namespace wick
