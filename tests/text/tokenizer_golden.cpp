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

// The tokens over ranges of a text (tools/golden/llm_marks.py).
class Ranges {
 public:
  Ranges(const Tokenizer& tokenizer, bool is_nfc) : tokenizer_(tokenizer), is_nfc_(is_nfc) {}

  // start and end in bytes, the first token and the one behind the last, for each range.
  std::vector<std::vector<size_t>> of(uint64_t index, const std::string& text) const {
    std::vector<size_t> starts;  // of the characters, and the end
    for (size_t at = 0; at < text.size(); at += utf8_length(text, at)) starts.push_back(at);
    starts.push_back(text.size());
    test::Lines::Draw draw(test::Lines::kCount + index);
    std::vector<std::vector<size_t>> found;
    for (int i = 0; i < 4; ++i) {
      const size_t one = starts[draw.below(starts.size())], other = starts[draw.below(starts.size())];
      const size_t start = std::min(one, other), end = std::max(one, other);
      if (is_nfc_ && (joins(text, start) || joins(text, end))) continue;
      TextMark marks[] = {{.byte = start}, {.byte = end}};
      const TextPart part{text, true};
      tokenizer_.encode(std::span(&part, 1), {.add_special = false}, marks);
      found.push_back({start, end, marks[0].tokens, marks[1].end()});
    }
    return found;
  }

 private:
  static bool joins(const std::string& text, size_t at) {
    return normalize_nfc(text.substr(0, at)) + normalize_nfc(text.substr(at)) != normalize_nfc(text);
  }

  const Tokenizer& tokenizer_;
  bool is_nfc_;
};

TEST_P(TokenizerJson, MarksTheTokensThatHfTokenizersHasOverRanges) {
  const fs::path path = family(GetParam()) / "marks.json";
  const auto golden = nlohmann::json::parse(std::ifstream(path));
  const Tokenizer tokenizer = Tokenizer::load(family(GetParam()));
  const Ranges ranges(tokenizer, GetParam() == std::string("qwen3"));
  for (const auto& row : golden.at("lines")) {
    const std::string line = replace_invalid_utf8(lines()[row[0].get<size_t>()]);
    EXPECT_EQ(ranges.of(row[0], line), row[1].get<std::vector<std::vector<size_t>>>())
        << "line " << row[0] << ": " << line;
  }
  uint64_t index = 0;
  EXPECT_EQ("", differences(golden.at("ranges"), [&](const std::string& line, Fnv1a& hash) {
              Ids all;
              for (const auto& range : ranges.of(index++, replace_invalid_utf8(line)))
                for (size_t i : {2, 3}) all.push_back(int64_t(range[i]));
              hash.add(all);
            }));
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
