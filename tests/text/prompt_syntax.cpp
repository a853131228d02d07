// ComfyUI's syntax of prompts, against what tools/golden/prompts.py made of the same prompts.
#include "wick/text/prompt_syntax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "source_dir.h"
#include "wick/text/clip_tokenizer.h"
#include "wick/text/t5_tokenizer.h"

namespace wick {
namespace {

const std::filesystem::path kGolden = test::source_dir() / "tests/golden";

nlohmann::json golden() { return nlohmann::json::parse(std::ifstream(kGolden / "prompts/prompts.json")); }

TEST(PromptSyntax, PartsHaveTheWeightsOfTheGolden) {
  for (const auto& row : golden()) {
    std::vector<WeightedText> expected;
    for (const auto& part : row.at("parts")) expected.push_back({part[0], float(part[1].get<double>())});
    EXPECT_EQ(weighted_texts(row.at("prompt").get<std::string>()), expected) << row.at("prompt");
  }
}

TEST(PromptSyntax, TokensAreThoseOfTheGolden) {
  const ClipTokenizer l = ClipTokenizer::load(kGolden / "sdxl/tokenizer"), g = l.padded_with(0);
  const T5Tokenizer t5 = T5Tokenizer::load(kGolden / "t5_tokenizer/tokenizer.json");
  for (const auto& row : golden()) {
    const std::vector<WeightedText> parts = weighted_texts(row.at("prompt").get<std::string>());
    const std::vector<float> weights = row.at("weights");
    EXPECT_EQ(clip_chunks(parts, l), (WeightedIds{row.at("l"), weights})) << row.at("prompt");
    EXPECT_EQ(clip_chunks(parts, g), (WeightedIds{row.at("g"), weights})) << row.at("prompt");
    EXPECT_EQ(t5_ids(parts, t5), (WeightedIds{row.at("t5"), row.at("t5_weights")})) << row.at("prompt");
  }
}

TEST(PromptSyntax, RefusesWeightsThatAreNoNumbers) {
  for (const std::string weight : {"nan", "-inf", " Infinity ", "1e999", "-1e39", "+NaN"})
    expect_error([&] { weighted_texts("a (b:" + weight + ") c"); }, {"--prompt-syntax comfyui", "finite", weight});
  expect_error([] { weighted_texts("((b) c:3.4e38)"); }, {"not finite", "\"b\""});
}

TEST(PromptSyntax, RefusesEmbeddings) {
  for (const std::string prompt :
       {"embedding:bad-hands", "a embedding:bad-hands b", "a\nembedding:bad-hands", "(embedding:bad-hands:1.2)",
        "a (b embedding:bad-hands)", "a\tembedding:bad-hands", "a\u3000embedding:bad-hands\u00A0b"})
    expect_error([&] { weighted_texts(prompt); }, {"\"embedding:bad-hands\"", "textual inversion", "leave it out"});
}

// Where ComfyUI has them: the same rows are in tools/interop/prompts.py.
TEST(PromptSyntax, EmbeddingsOfALora) {
  const std::vector<LearnedWord> words = {{"fox", {10, 11}}};
  const auto vectors = [](float weight = 1) { return WeightedText{"", weight, {10, 11}}; };
  const std::vector<std::pair<std::string, std::vector<WeightedText>>> kRows{
      {"embedding:fox", {vectors()}},
      {"a embedding:fox b", {{"a"}, vectors(), {"b"}}},
      {"a\nembedding:fox\nb", {{"a"}, vectors(), {"b"}}},
      {"a\tembedding:fox b", {{"a"}, vectors(), {"b"}}},
      {"a embedding:fox, b", {{"a"}, vectors(), {", b"}}},
      {"(embedding:fox:1.3) b", {vectors(1.3f), {" b"}}},
      {"a (red embedding:fox:0.5) b", {{"a "}, {"red", 0.5f}, vectors(0.5f), {" b"}}},
      {"(a)embedding:fox", {{"a", 1.1f}, vectors()}},
      {"embedding:fox embedding:fox", {vectors(), vectors()}},
      {"embedding:fox[b]", {vectors(), {"[b]"}}}};
  for (const auto& [prompt, parts] : kRows) EXPECT_EQ(weighted_texts(prompt, words), parts) << prompt;
}

TEST(PromptSyntax, RefusesTextThatIsNoneAndDeepParentheses) {
  const auto nested = [](size_t levels) { return std::string(levels, '(') + "a" + std::string(levels, ')'); };
  EXPECT_NEAR(weighted_texts(nested(256)).front().weight, std::pow(1.1, 256), 1e-5 * std::pow(1.1, 256));
  expect_error([&] { weighted_texts(nested(257)); }, {"256 levels"});
  expect_error([&] { weighted_texts(nested(500'000)); }, {"256 levels"});
  expect_error([] { weighted_texts("a \xFE b"); }, {"UTF-8"});
  expect_error([] { weighted_texts(std::string(ClipTokenizer::kMaxTextBytes + 1, 'a')); }, {"bytes"});
}

}  // namespace
}  // namespace wick
