// Captions as they are read, put together and varied.
#include "wick/train/captions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "io/files.h"
#include "wick/io/sha256.h"

namespace wick {
namespace {

class CaptionsTest : public testing::Test {
 protected:
  std::vector<std::string> read(const CaptionOptions& options = {}) const {
    return read_captions(folder_ / "a.png", folder_.path(), options).texts;
  }
  std::string of(const std::string& text, const CaptionOptions& options) const {
    write_plain(folder_ / "a.txt", text);
    return read(options).front();
  }

  TemporaryDirectory folder_;
};

using Texts = std::vector<std::string>;

TEST_F(CaptionsTest, LieInTxtOrCaption) {
  expect_error([&] { read(); }, {"a.png", "no caption", "a.txt"});
  expect_error([&] { read({.extension = ".tags"}); }, {"a.png", "no caption", "a.tags"});
  write_plain(folder_ / "a.caption", " one \n");
  EXPECT_EQ(read(), Texts{"one"});
  const PictureCaptions captions = read_captions(folder_ / "a.png", folder_.path(), {});
  EXPECT_EQ(captions.file->name, "a.caption");
  EXPECT_EQ(captions.file->sha256, sha256_hex(" one \n"));
  write_plain(folder_ / "a.txt", "two");
  expect_error([&] { read(); }, {"a.png", "two captions, a.txt and a.caption", "--caption-extension"});
  EXPECT_EQ(read({.extension = ".txt"}), Texts{"two"});
  EXPECT_EQ(read({.extension = ".caption"}), Texts{"one"});
  write_plain(folder_ / "a.tags", "three");
  EXPECT_EQ(read({.extension = ".tags"}), Texts{"three"});
}

TEST_F(CaptionsTest, ClassTokensStandForThem) {
  const PictureCaptions captions = read_captions(folder_ / "a.png", folder_.path(), {.class_tokens = "cat"});
  EXPECT_EQ(captions.texts, Texts{"cat"});
  EXPECT_FALSE(captions.file);
  write_plain(folder_ / "a.txt", "a tabby");
  EXPECT_EQ(read({.class_tokens = "cat"}), Texts{"a tabby"});
}

TEST_F(CaptionsTest, LinesAreVariants) {
  write_plain(folder_ / "a.txt",
              "\xef\xbb\xbf"
              "one\r\n\r\n  two, three \n");
  EXPECT_EQ(read(), Texts{"one\r\n\r\n  two, three"});
  EXPECT_EQ(read({.lines = true}), (Texts{"one", "two, three"}));
}

TEST_F(CaptionsTest, HaveTheirSurroundings) {
  EXPECT_EQ(of("a cat", {.prefix = "photo of", .suffix = "on white"}), "photo of a cat on white");
  EXPECT_EQ(of("a [trigger] cat, [trigger]", {.trigger = "ohwx"}), "a ohwx cat, ohwx");
  EXPECT_EQ(of("a cat", {.trigger = "ohwx"}), "ohwx, a cat");
  EXPECT_EQ(of("an ohwx cat", {.trigger = "ohwx"}), "an ohwx cat");
  EXPECT_EQ(of("a cat", {.prefix = "[trigger],", .trigger = "[trigger]x"}), "[trigger]x, a cat");
}

std::vector<std::string> tags(const std::string& caption) {
  std::vector<std::string> all;
  std::istringstream in(caption);
  for (std::string tag; std::getline(in, tag, ',');) all.push_back(tag.substr(tag.find_first_not_of(' ')));
  return all;
}

TEST_F(CaptionsTest, TagsAreShuffledBehindThoseThatStay) {
  const std::string caption = "a, b,c ,, d, e";
  const CaptionOptions options{.shuffle = true, .keep_tokens = 2};
  EXPECT_EQ(caption_variant(caption, {}, 1, 3), caption) << "as it is";
  std::set<std::string> orders;
  for (int64_t i = 0; i < 200; ++i) {
    const std::string variant = caption_variant(caption, options, 1, i);
    EXPECT_EQ(variant, caption_variant(caption, options, 1, i));
    Texts all = tags(variant);
    ASSERT_EQ(all.size(), 5u) << variant;
    EXPECT_TRUE(variant.starts_with("a, b, ")) << variant;
    orders.insert(variant);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, (Texts{"a", "b", "c", "d", "e"}));
  }
  EXPECT_EQ(orders.size(), 6u) << "all orders of three";
  const auto first = [&](uint64_t seed) {
    Texts some;
    for (int64_t i = 0; i < 8; ++i) some.push_back(caption_variant(caption, options, seed, i));
    return some;
  };
  EXPECT_NE(first(1), first(2));
  EXPECT_EQ(caption_variant("x; y", {.shuffle = true, .keep_tokens = 9, .separator = ";"}, 1, 0), "x, y");
}

TEST_F(CaptionsTest, TagsAreDroppedAtTheirRate) {
  const CaptionOptions options{.keep_tokens = 1, .tag_dropout = 0.25};
  constexpr int64_t kDraws = 4000;
  size_t left = 0;
  for (int64_t i = 0; i < kDraws; ++i) {
    const Texts all = tags(caption_variant("a, b, c, d, e", options, 7, i));
    EXPECT_EQ(all.front(), "a");
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end())) << "in their order";
    left += all.size() - 1;
  }
  const double deviation = std::sqrt(0.25 * 0.75 / double(4 * kDraws));
  EXPECT_NEAR(double(left) / double(4 * kDraws), 0.75, 5 * deviation);
  EXPECT_EQ(caption_variant("a, b", {.tag_dropout = 1}, 7, 0), "");
}

// All that variants become.
std::set<std::string> variants(const std::string& caption, const CaptionOptions& options) {
  std::set<std::string> all;
  for (int64_t i = 0; i < 300; ++i) all.insert(caption_variant(caption, options, 3, i));
  return all;
}

using Set = std::set<std::string>;

// What process_caption() of sd-scripts' BaseDataset makes of these captions, in 3000 draws each.
TEST_F(CaptionsTest, WildcardsAreChoicesAsKohyasAre) {
  const CaptionOptions wild{.wildcards = true};
  EXPECT_EQ(variants("a {red|blue} cat", wild), (Set{"a blue cat", "a red cat"}));
  EXPECT_EQ(variants("{a|b} and {c|d}", wild), (Set{"a and c", "a and d", "b and c", "b and d"}));
  EXPECT_EQ(variants("{{x}} {a||b}", wild), (Set{"{x} ", "{x} a", "{x} b"}));
  EXPECT_EQ(variants("{} {a{b} c}", wild), Set{"{} a{b c}"});
  EXPECT_EQ(variants("{{{a|b}}}", wild), (Set{"{a", "{b}"}));
  EXPECT_EQ(variants("a }} b { c", wild), Set{"a } b { c"});
  EXPECT_EQ(variants("a, {b|c}, d", {.wildcards = true, .shuffle = true, .keep_tokens = 1}),
            (Set{"a, b, d", "a, c, d", "a, d, b", "a, d, c"}));
  EXPECT_EQ(variants("{a|b}", {}), Set{"{a|b}"}) << "without";
  write_plain(folder_ / "a.txt", " one, {x|y} \n\ntwo\n");
  const CaptionOptions around{.prefix = "p", .suffix = "s", .wildcards = true};
  ASSERT_EQ(read(around).size(), 1u);
  EXPECT_EQ(variants(read(around).front(), around), (Set{"p one, x", "p one, y", "two s"}));
  EXPECT_EQ(read({.first_line = true}), Texts{"one, {x|y}"});
}

TEST_F(CaptionsTest, SeparatorsMarkWhatStays) {
  CaptionOptions options{.shuffle = true, .keep_tokens = 3, .keep_separator = "|||"};
  EXPECT_EQ(variants("a, b ||| c, d ||| e, f", options), (Set{"a, b, c, d, e, f", "a, b, d, c, e, f"}));
  EXPECT_EQ(variants("a, b ||| c, d", options), (Set{"a, b, c, d", "a, b, d, c"}));
  EXPECT_EQ(variants("a, b, c, d", options), Set{"a, b, c, d"}) << "keep_tokens, where there is no separator";
  options.secondary_separator = ";;;";
  EXPECT_EQ(variants("a, b ||| c;;;d, e", options), (Set{"a, b, c,d, e", "a, b, e, c,d"}));
  EXPECT_EQ(variants("a ||| b ||| c ||| d", {.keep_separator = "|||", .tag_dropout = 1}), Set{"a, c ||| d"});
  EXPECT_EQ(variants("a;;;b", {.secondary_separator = ";;;"}), Set{"a,b"}) << "without a shuffle too";
}

}  // namespace
}  // namespace wick
