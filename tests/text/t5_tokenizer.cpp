// T5's tokenizer against SentencePiece and HF tokenizers on ten thousand odd texts (tools/golden/t5_tokenizer.py).
#include "wick/text/t5_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "text/hash.h"
#include "text/lines.h"
#include "wick/text/precompiled_map.h"
#include "wick/text/shipped_tokenizer.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<int64_t>;

fs::path tiny() { return test::source_dir() / "tests/golden/t5_tokenizer"; }

json read(const fs::path& path) { return json::parse(read_plain(path)); }

const json& golden() {
  static const json all = read(tiny() / "ids.json");
  return all;
}

const std::vector<std::string>& texts() {
  static const auto all = [] {
    std::vector<std::string> lines = test::Lines::all();
    const auto extras = golden().at("extras").get<std::vector<std::string>>();
    const size_t n = extras.size();
    for (size_t i = 0; i < lines.size(); ++i)
      lines[i] = extras[i % n] + replace_invalid_utf8(lines[i]) + extras[i / n % n];
    return lines;
  }();
  return all;
}

class T5Golden : public testing::TestWithParam<std::string> {
 protected:
  // The tokenizer of "tiny/spiece.model", or of the tiny tokenizer.json in one of the forms.
  T5Tokenizer load() const {
    const std::string name = GetParam().substr(0, GetParam().find('/')), form = GetParam().substr(name.size() + 1);
    const fs::path folder = name == "tiny" ? tiny() : shipped_tokenizer(name);
    if (form == "spiece.model") return T5Tokenizer::load(folder / form);
    const json& patch = golden().at("forms").at(form);
    write_plain(temporary_ / "tokenizer.json", read(folder / "tokenizer.json").patch(patch).dump());
    return T5Tokenizer::load(temporary_.path());
  }

  const TemporaryDirectory temporary_;
};

TEST_P(T5Golden, GivesTheIdsOfTheReference) {
  const T5Tokenizer tokenizer = load();
  const json& expected = golden().at("ids").at(GetParam());
  for (const json& row : expected.at("lines")) {
    const std::string& text = texts()[row[0].get<size_t>()];
    EXPECT_EQ(tokenizer.encode(text), row[1].get<Ids>()) << "line " << row[0] << ": " << text;
  }
  const auto add = [&](const std::string& text, test::Fnv1a& hash) { hash.add(tokenizer.encode(text)); };
  EXPECT_EQ("", test::differences(expected.at("hashes"), texts(), add));
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& [name, ids] : golden().at("ids").items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Forms, T5Golden, testing::ValuesIn(golden_names()), [](const auto& each) {
  std::string name = each.param;
  std::ranges::replace_if(
      name, [](char c) { return c == '/' || c == '.'; }, '_');
  return name;
});

TEST(T5Tokenizer, EndsCutsAndPads) {
  const T5Tokenizer tokenizer = T5Tokenizer::load(tiny());
  const Ids ids = tokenizer.encode("a small red circle");
  ASSERT_GE(ids.size(), 5u);
  EXPECT_EQ(ids.back(), tokenizer.end_id());
  EXPECT_EQ(tokenizer.length("a small red circle"), int64_t(ids.size()));
  EXPECT_EQ(tokenizer.encode(""), Ids{1});
  EXPECT_EQ(tokenizer.encode("", 3), (Ids{1, 0, 0}));
  EXPECT_EQ(tokenizer.encode("a small red circle", int64_t(ids.size())), ids);
  EXPECT_EQ(tokenizer.encode("a small red circle", 3), (Ids{ids[0], ids[1], 1}));
  EXPECT_EQ(tokenizer.encode("a small red circle", 1), Ids{1});
  EXPECT_THROW(tokenizer.encode("a", 0), Error);
}

TEST(T5Tokenizer, TokenizerJsonWinsOverSpieceModel) {
  const std::string text = "<extra_id_0>";
  EXPECT_EQ(T5Tokenizer::load(tiny()).encode(text).size(), 2u);
  EXPECT_EQ(T5Tokenizer::load(tiny() / "tokenizer.json").encode(text).size(), 2u);
  EXPECT_GT(T5Tokenizer::load(tiny() / "spiece.model").encode(text).size(), 2u);
  EXPECT_EQ(T5Tokenizer::load(tiny()).vocabulary(), T5Tokenizer::load(tiny() / "spiece.model").vocabulary() + 100);
}

TEST(T5Tokenizer, RefusesTextsThatAreNotUtf8OrTooLong) {
  const T5Tokenizer tokenizer = T5Tokenizer::load(tiny());
  for (const char* bad : {"a \xff", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80"})
    EXPECT_THROW(tokenizer.encode(bad), Error) << bad;
  const std::string longest(T5Tokenizer::kMaxTextBytes, 'a');
  EXPECT_GT(tokenizer.length(longest), 1000) << "and takes no longer than its length";
  EXPECT_THROW(tokenizer.encode(longest + "a"), Error);
}

TEST(T5Tokenizer, RefusesOtherTokenizers) {
  const TemporaryDirectory folder;
  const auto refused = [&](const json& patch, std::initializer_list<std::string_view> parts) {
    write_plain(folder / "tokenizer.json", read(tiny() / "tokenizer.json").patch(patch).dump());
    expect_error([&] { T5Tokenizer::load(folder.path()); }, parts);
  };
  const auto replaced = [](const char* path, const json& value) {
    return json{{{"op", "replace"}, {"path", path}, {"value", value}}};
  };
  refused(replaced("/normalizer/normalizers/2/pattern/Regex", " +"), {"tokenizer.json: normalizer", "Replace"});
  refused(replaced("/normalizer/normalizers/1/type", "Lowercase"), {"normalizer: \"Lowercase\"", "Precompiled"});
  refused(replaced("/normalizer/normalizers/0/precompiled_charsmap", "AAA"), {"precompiled_charsmap", "base64"});
  refused(replaced("/normalizer/normalizers/0/precompiled_charsmap", "AA=A"), {"precompiled_charsmap", "base64"});
  refused(replaced("/normalizer/normalizers/0/precompiled_charsmap", "AA-A"), {"precompiled_charsmap", "base64", "2"});
  refused(replaced("/normalizer/normalizers/0/precompiled_charsmap", "AAAA"), {"a character map", "3 bytes"});
  refused(replaced("/normalizer/normalizers/0/precompiled_charsmap", "BAAAAAAAAAA="), {"a trie of whole units"});
  refused(replaced("/normalizer/normalizers/0/precompiled_charsmap", "BAAAAAAAAABh"), {"ended by NUL"});
  refused(replaced("/normalizer/normalizers/0/precompiled_charsmap", "BAAAAAABAAAA"), {"out of the replacements"});
  refused(replaced("/pre_tokenizer/type", "WhitespaceSplit"), {"pre_tokenizer: WhitespaceSplit alone", "Metaspace"});
  refused(replaced("/pre_tokenizer/replacement", "_"), {"pre_tokenizer: Metaspace with \"_\""});
  refused(replaced("/model/type", "BPE"), {"model: \"BPE\" is not supported; Wick knows Unigram"});
  refused(replaced("/model/byte_fallback", true), {"model: byte_fallback"});
  refused(replaced("/model/unk_id", 100'000), {"model.unk_id: no piece has the id 100000"});
  refused(replaced("/model/unk_id", nullptr), {"model", "unk_id"});
  refused(replaced("/model/vocab", json::object()), {"model.vocab", "a list"});
  refused(replaced("/model/vocab/5", "a"), {"model.vocab", "each with its score"});
  refused(replaced("/model/vocab/5", {"", 0}), {"model.vocab: piece 5"});
  refused(replaced("/model/vocab/5", {"</s>", 0}), {"the piece \"</s>\" stands there twice"});
  refused(replaced("/added_tokens/5/single_word", true), {"added_tokens: single_word"});
  refused(replaced("/post_processor", nullptr), {"tokenizer.json", "texts end with one token"});
}

TEST(T5Tokenizer, RefusesOtherModels) {
  const fs::path llama = test::source_dir() / "tests/golden/tokenizers/llama2";
  expect_error([&] { T5Tokenizer::load(llama); }, {"tokenizer.json: model: \"BPE\"", "Unigram"});
  expect_error([&] { T5Tokenizer::load(llama / "tokenizer.model"); },
               {"tokenizer.model: a BPE model is not supported; Wick knows unigram models"});
  expect_error([&] { T5Tokenizer::load(llama / "nothing"); }, {"nothing: no such file", "spiece.model"});
  const TemporaryDirectory folder;
  expect_error([&] { T5Tokenizer::load(folder.path()); }, {"spiece.model: no such file", "tokenizer.json"});
  const std::string model = read_plain(tiny() / "spiece.model");
  write_plain(folder / "spiece.model", model.substr(0, model.size() / 2));
  expect_error([&] { T5Tokenizer::load(folder.path()); }, {"spiece.model: not a SentencePiece model, or cut short"});
  // Flags of a normalizer_spec that stands behind the first one.
  const auto refused = [&](std::string_view spec, std::initializer_list<std::string_view> parts) {
    write_plain(folder / "spiece.model", model + std::string(spec));
    expect_error([&] { T5Tokenizer::load(folder.path()); }, parts);
  };
  using std::string_view_literals::operator""sv;
  refused("\x1a\x02\x18\x00"sv, {"spiece.model: add_dummy_prefix = false"});
  refused("\x1a\x02\x20\x00"sv, {"spiece.model: remove_extra_whitespaces = false"});
  refused("\x1a\x02\x28\x00"sv, {"spiece.model: escape_whitespaces = false"});
  refused(
      "\x1a\x05\x12\x03"
      "abc"sv,
      {"spiece.model: precompiled_charsmap", "3 bytes"});
}

// The trie of one rule, by which the first byte of U+00E9 becomes x. Found by the fuzzer as a text without end.
TEST(PrecompiledMap, ARuleMayEndWithinACharacter) {
  std::vector<uint32_t> units(0x200);
  units[0xc3] = 0xc3 | 1 << 8 | 0x100 << 10;  // its label, a value there, and the offset of the value's unit
  units[0xc3 ^ 0x100] = uint32_t{1} << 31;    // the replacement at 0
  const auto size = uint32_t(units.size() * sizeof units[0]);
  std::string bytes(sizeof size + size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  std::memcpy(bytes.data() + sizeof size, units.data(), size);
  bytes += std::string("x\0", 2);
  EXPECT_EQ(PrecompiledMap::parse(bytes, "map").apply_with_spaces("a\u00e9b"), "\u2581ax\ufffdb");
}

TEST(T5Tokenizer, IsRefusedWhereALanguageModelsIsWanted) {
  expect_error([] { Tokenizer::load(tiny()); },
               {"tokenizer.json: model: \"Unigram\" is not supported; Wick knows BPE"});
}

TEST(ShippedTokenizer, SaysWhereItLooked) {
  setenv("WICK_TOKENIZERS", "/nowhere", 1);
  expect_error([] { shipped_tokenizer("t5"); }, {"\"t5\"", "/nowhere/t5", "scripts/setup-tokenizers"});
  unsetenv("WICK_TOKENIZERS");
  EXPECT_TRUE(fs::exists(shipped_tokenizer("clip_g") / "vocab.json"));
}

}  // namespace
}  // namespace wick
