// Ten thousand lines through every family's tokenizer: the ids of HF tokenizers and of SentencePiece
// (tools/golden/llm_tokenizers.py).

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "text/hash.h"
#include "text/lines.h"
#include "wick/text/tokenizer.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

using test::Fnv1a;

const std::vector<std::string>& lines() {
  static const auto all = test::Lines::all();
  return all;
}

std::string differences(const std::string& golden, const std::function<void(const std::string&, Fnv1a&)>& add) {
  return test::differences(golden, lines(), add);
}

void expect_golden(const Tokenizer& tokenizer, const fs::path& path, bool parses_special) {
  const auto golden = nlohmann::json::parse(std::ifstream(path));
  const EncodeOptions with_special{.parse_special = parses_special}, plain{.add_special = false};
  for (const auto& row : golden.at("lines")) {
    const std::string& line = lines()[row[0].get<size_t>()];
    EXPECT_EQ(tokenizer.encode(line, with_special), row[1].get<Ids>()) << path << ": line " << row[0] << ": " << line;
    EXPECT_EQ(tokenizer.encode(line, plain), row[2].get<Ids>()) << path << ": line " << row[0] << ": " << line;
  }
  EXPECT_EQ("", differences(golden.at("special"), [&](const std::string& line,
                                                      Fnv1a& hash) { hash.add(tokenizer.encode(line, with_special)); }))
      << path;
  EXPECT_EQ("", differences(golden.at("plain"),
                            [&](const std::string& line, Fnv1a& hash) { hash.add(tokenizer.encode(line, plain)); }))
      << path;
  EXPECT_EQ("", differences(golden.at("decoded"),
                            [&](const std::string& line, Fnv1a& hash) {
                              hash.add(tokenizer.decode(tokenizer.encode(line, plain)) + '\0');
                            }))
      << path;
}

fs::path family(const std::string& name) { return test::source_dir() / "tests/golden/tokenizers" / name; }

class TokenizerJson : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerJson, GivesTheIdsOfHfTokenizers) {
  expect_golden(Tokenizer::load(family(GetParam())), family(GetParam()) / "ids.json", true);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerJson,
                         testing::Values("llama2", "mistral3", "llama3", "qwen3", "tekken", "smollm"),
                         [](const auto& each) { return std::string(each.param); });

class TokenizerModel : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerModel, GivesTheIdsOfSentencePiece) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("wick-{}-{}", GetParam(), getpid());
  fs::create_directories(folder);
  for (const char* name : {"tokenizer.model", "tokenizer_config.json"})
    fs::copy_file(family(GetParam()) / name, folder / name, fs::copy_options::overwrite_existing);
  expect_golden(Tokenizer::load(folder), family(GetParam()) / "ids_model.json", false);
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerModel, testing::Values("llama2", "mistral3"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace wick
