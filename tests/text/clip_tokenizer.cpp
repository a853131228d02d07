#include "wick/text/clip_tokenizer.h"
#include "source_dir.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "io/files.h"
#include "wick/core/error.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Ids = std::vector<int64_t>;

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// A tokenizer small enough to follow by eye.
class SmallTokenizer : public testing::Test {
 protected:
  SmallTokenizer() {
    fs::create_directories(folder_);
    write(folder_ / "vocab.json", kVocabulary);
    write(folder_ / "merges.txt", kMerges);
    write(folder_ / "tokenizer_config.json", R"({"model_max_length": 8})");
  }
  ~SmallTokenizer() override { fs::remove_all(folder_); }

  ClipTokenizer load() const { return ClipTokenizer::load(folder_); }
  Ids encode(std::string_view text) const { return load().encode(text); }

  // The error of load(), after the folder's name.
  std::string complaint() const {
    try {
      load();
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), message.npos) << "one line";
      EXPECT_EQ(message.find(folder_.string() + "/"), 0u) << message;
      return message.substr(std::min(message.size(), folder_.string().size() + 1));
    }
    return "nothing";
  }

  static constexpr const char* kVocabulary = R"({"!": 0, "c": 1, "a": 2, "t": 3, "c</w>": 4, "a</w>": 5, "t</w>": 6,
      "!</w>": 7, "at</w>": 8, "cat</w>": 9, "ca": 10, "<|startoftext|>": 11, "<|endoftext|>": 12})";
  static constexpr const char* kMerges = "#version: 0.2\na t</w>\nc at</w>\nc a\n";
  const fs::path folder_ =
      fs::path(testing::TempDir()) /
      fmt::format("wick-{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
};

TEST_F(SmallTokenizer, StartsEndsAndPads) {
  const ClipTokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.encode("a cat"), (Ids{11, 5, 9, 12, 12, 12, 12, 12}));
  EXPECT_EQ(tokenizer.encode(""), (Ids{11, 12, 12, 12, 12, 12, 12, 12}));
  EXPECT_EQ(tokenizer.size(), 13);
  EXPECT_EQ(tokenizer.max_length(), 8);
  EXPECT_EQ(tokenizer.bos_id(), 11);
  EXPECT_EQ(tokenizer.eos_id(), 12);
  EXPECT_EQ(tokenizer.pad_id(), 12);
}

TEST_F(SmallTokenizer, KeepsTheEndWhenItTruncates) {
  EXPECT_EQ(encode("a a a a a a cat"), (Ids{11, 5, 5, 5, 5, 5, 5, 12}));
  EXPECT_EQ(encode("a a a a a catcac"), (Ids{11, 5, 5, 5, 5, 5, 10, 12}));
  EXPECT_EQ(load().length("a a a a a a cat"), 9);
  EXPECT_EQ(load().length("a a a a a catcac"), 11);
  EXPECT_EQ(load().length(""), 2);
}

TEST_F(SmallTokenizer, MergesTheLowestRankFirst) {
  EXPECT_EQ(encode("cat"), (Ids{11, 9, 12, 12, 12, 12, 12, 12}));    // not `ca` `t</w>`
  EXPECT_EQ(encode("catcat"), (Ids{11, 10, 3, 9, 12, 12, 12, 12}));  // `ca` where a word goes on
  EXPECT_EQ(encode("cat cat!!"), (Ids{11, 9, 9, 0, 7, 12, 12, 12}));
}

TEST_F(SmallTokenizer, IgnoresCaseAndTheKindOfSpace) {
  EXPECT_EQ(encode("  CAT\t\nA\u00a0Cat\u3000 "), (Ids{11, 9, 5, 9, 12, 12, 12, 12}));
}

TEST_F(SmallTokenizer, UnknownBytesBecomeTheUnknownToken) {
  EXPECT_EQ(encode("b a"), (Ids{11, 12, 5, 12, 12, 12, 12, 12}));
}

TEST_F(SmallTokenizer, SpecialTokensInTheTextAreOneId) {
  EXPECT_EQ(encode("a<|startoftext|>cat"), (Ids{11, 5, 11, 9, 12, 12, 12, 12}));
  EXPECT_EQ(encode("a!"), (Ids{11, 5, 7, 12, 12, 12, 12, 12}));
  write(folder_ / "special_tokens_map.json", R"({"pad_token": "!"})");
  EXPECT_EQ(encode("a!"), (Ids{11, 5, 0, 12, 0, 0, 0, 0}));
}

TEST_F(SmallTokenizer, ThePaddingTokenIsAStringOrAnObject) {
  write(folder_ / "tokenizer_config.json", R"({"pad_token": {"content": "!", "normalized": true}})");
  EXPECT_EQ(load().pad_id(), 0);
  EXPECT_EQ(load().max_length(), 77);
  write(folder_ / "special_tokens_map.json", R"({"pad_token": "a</w>"})");
  EXPECT_EQ(load().pad_id(), 5) << "the map is newer than a configuration of the old kind";
  write(folder_ / "tokenizer_config.json", R"({"pad_token": "!", "added_tokens_decoder": {}})");
  EXPECT_EQ(load().pad_id(), 0) << "a configuration of the new kind is complete";
}

TEST_F(SmallTokenizer, NoLimitMeansTheUsualOne) {
  write(folder_ / "tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  EXPECT_EQ(load().max_length(), 77);
}

TEST_F(SmallTokenizer, ReadsWindowsLineEndings) {
  write(folder_ / "merges.txt", "#version: 0.2\r\na t</w>\r\nc at</w>\r\n");
  EXPECT_EQ(encode("cat")[1], 9);
}

TEST_F(SmallTokenizer, LongWordsTakeNoLongerThanTheirLength) {
  std::string word;
  while (word.size() + 3 <= ClipTokenizer::kMaxTextBytes) word += "cat";
  EXPECT_EQ(encode(word), (Ids{11, 10, 3, 10, 3, 10, 3, 12}));
}

TEST_F(SmallTokenizer, RefusesTextsThatAreNotUtf8OrTooLong) {
  const ClipTokenizer tokenizer = load();
  for (const char* bad : {"a \xff", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80"})
    EXPECT_THROW(tokenizer.encode(bad), Error) << bad;
  EXPECT_THROW(tokenizer.encode(std::string(ClipTokenizer::kMaxTextBytes + 1, 'a')), Error);
}

TEST_F(SmallTokenizer, SaysWhatIsWrongWithTheVocabulary) {
  const fs::path path = folder_ / "vocab.json";
  const auto complaint_about = [&](const std::string& text) {
    write(path, text);
    return complaint();
  };
  EXPECT_EQ(complaint_about("{\"a\": "),
            "vocab.json: not valid JSON: line 1, column 7: syntax error while parsing value - unexpected end of input; "
            "expected '[', '{', or a literal");
  EXPECT_EQ(complaint_about("[]"), "vocab.json: expected a JSON object, found array");
  EXPECT_TRUE(complaint_about("{\"\xff\": 1}").starts_with("vocab.json: not valid JSON: "));
  EXPECT_EQ(complaint_about(R"({"a": 1, "a": 2})"), "vocab.json: the key \"a\" stands twice in one object");
  EXPECT_EQ(complaint_about(R"({"a\nb": []})"),
            "vocab.json: token \"a\\x0ab\": expected an id from 0 to 1048575, found array");
  EXPECT_EQ(complaint_about(R"({"a": -1})"), "vocab.json: token \"a\": expected an id from 0 to 1048575, found -1");
  EXPECT_EQ(complaint_about(R"({"a": 18446744073709551615})"),
            "vocab.json: token \"a\": expected an id from 0 to 1048575, found 18446744073709551615");
  EXPECT_EQ(complaint_about(R"({"a": "x"})"),
            "vocab.json: token \"a\": expected an id from 0 to 1048575, found string");
  EXPECT_EQ(complaint_about(R"({"a": 3, "b": 3})"), "vocab.json: tokens \"a\" and \"b\" share the id 3");
  EXPECT_EQ(complaint_about(R"({"a": 3})"),
            "vocab.json: expected the bos_token \"<|startoftext|>\", found no such token");
  fs::remove(path);
  EXPECT_EQ(complaint(),
            "vocab.json: no such file; a CLIP tokenizer is a folder with vocab.json and merges.txt, or with "
            "tokenizer.json");
}

TEST_F(SmallTokenizer, SaysWhatIsWrongWithTheMerges) {
  const auto complaint_about = [&](const std::string& text) {
    write(folder_ / "merges.txt", text);
    return complaint();
  };
  EXPECT_EQ(complaint_about("#version: 0.2\na t</w>\na b\n"),
            "merges.txt: line 3: \"b\" is not in the vocabulary; both must be of one tokenizer");
  EXPECT_EQ(complaint_about("a a\n"),
            "merges.txt: line 1: \"aa\" is not in the vocabulary; both must be of one tokenizer");
  EXPECT_EQ(complaint_about("a t</w>\na t</w>\n"), "merges.txt: line 2: the pair \"a t</w>\" stands there twice");
  for (const char* line : {"a", "a ", " a", "a t</w> c", "a  t</w>"})
    EXPECT_EQ(complaint_about(std::string(line) + "\n"),
              fmt::format("merges.txt: line 1: expected two tokens, found \"{}\"", line));
  EXPECT_EQ(complaint_about("a t</w>\n\nc a\n"), "merges.txt: line 2: expected two tokens, found \"\"");
}

TEST_F(SmallTokenizer, SaysWhatIsWrongWithTheConfiguration) {
  const auto complaint_about = [&](const std::string& text) {
    write(folder_ / "tokenizer_config.json", text);
    return complaint();
  };
  EXPECT_EQ(complaint_about(R"({"pad_token": 3})"),
            "tokenizer_config.json: pad_token: expected a token or an object with its content, found number");
  EXPECT_EQ(complaint_about(R"({"model_max_length": 2})"),
            "tokenizer_config.json: model_max_length: expected a number of at least 3, found 2");
  EXPECT_EQ(complaint_about(R"({"pad_token": "dog"})"),
            "vocab.json: expected the pad_token \"dog\", found no such token");
}

// Hard strings through both of SDXL's tokenizers, as transformers' CLIPTokenizerFast encodes them.
TEST(ClipTokenizer, EncodesAsTransformersDoes) {
  const fs::path golden = test::source_dir() / "tests/golden";
  const auto cases = nlohmann::json::parse(std::ifstream(golden / "tokenizer.json"));
  ASSERT_FALSE(cases.empty());
  for (const char* model : {"sdxl", "sdxl_today"})
    for (const char* name : {"tokenizer", "tokenizer_2"}) {
      const ClipTokenizer tokenizer = ClipTokenizer::load(golden / model / name);
      for (const auto& each : cases)
        EXPECT_EQ(tokenizer.encode(each.at("text").get<std::string>()), each.at(name).get<Ids>())
            << model << "/" << name << ": " << each.at("text");
    }
}

TEST(ClipTokenizer, ReadsTheFileAsItsFolder) {
  const fs::path folder = test::source_dir() / "tests/golden/sdxl_today/tokenizer_2";
  const ClipTokenizer file = ClipTokenizer::load(folder / "tokenizer.json");
  EXPECT_EQ(file.pad_id(), 0);
  EXPECT_EQ(file.encode("a cat!"), ClipTokenizer::load(folder).encode("a cat!"));
}

TEST(ClipTokenizer, EncodesWholeTexts) {
  const ClipTokenizer tokenizer = ClipTokenizer::load(test::source_dir() / "tests/golden/sdxl/tokenizer_2");
  const std::string cat = "a photo of a cat",
                    cats = cat + cat + cat + cat + cat + cat + cat + cat + cat + cat + cat + cat;
  Ids ids = tokenizer.encode_whole(cat);
  EXPECT_EQ(ids.back(), tokenizer.eos_id());
  ids.resize(77, tokenizer.pad_id());
  EXPECT_EQ(ids, tokenizer.encode(cat));
  ids = tokenizer.encode_whole(cats + cats);
  ASSERT_GT(ids.size(), 77u);
  EXPECT_EQ(ids.back(), tokenizer.eos_id());
  ids.resize(76);
  ids.push_back(tokenizer.eos_id());
  EXPECT_EQ(ids, tokenizer.encode(cats + cats));
}

TEST(ClipTokenizer, RefusesATokenizerJsonOfAnotherKind) {
  const fs::path from = test::source_dir() / "tests/golden/sdxl_today/tokenizer";
  const TemporaryDirectory folder;
  fs::copy(from, folder.path(), fs::copy_options::recursive);
  const nlohmann::json whole = nlohmann::json::parse(std::ifstream(from / "tokenizer.json"));
  const auto refused = [&](const char* place, const nlohmann::json& value,
                           std::initializer_list<std::string_view> parts) {
    nlohmann::json changed = whole;
    changed[nlohmann::json::json_pointer(place)] = value;
    write_plain(folder / "tokenizer.json", changed.dump());
    expect_error([&] { ClipTokenizer::load(folder.path()); }, parts);
  };
  const std::initializer_list<std::string_view> other = {"tokenizer.json", "expected the tokenizer of CLIP"};
  refused("/normalizer", nullptr, other);
  refused("/normalizer/normalizers/2/type", "Nothing", other);
  refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", 5, other);
  refused("/pre_tokenizer/pretokenizers/0/invert", false, other);
  refused("/pre_tokenizer", "ByteLevel", other);
  refused("/model/type", "Unigram", other);
  refused("/model/end_of_word_suffix", "", other);
  refused("/model/dropout", 0.1, other);
  refused("/model", 5, {"tokenizer.json: model", "an object"});
  refused("/model/merges", 5, {"merges", "a list"});
  refused("/model/merges/0", {"t"}, {"merges[0]"});
  refused("/model/merges/1", {"t", "nothing like it"}, {"merges[1]", "not in the vocabulary"});
  refused("/model/vocab/t", -1, {"\"t\"", "from 0"});
  refused("/added_tokens/0/lstrip", true, {"added_tokens", "lstrip"});
  refused("/added_tokens/0/content", "a", {"added_tokens", "\"a\""});
}

}  // namespace
}  // namespace wick
