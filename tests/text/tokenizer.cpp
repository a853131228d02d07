#include "wick/text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "source_dir.h"
#include "text/lines.h"
#include "wick/core/error.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<int64_t>;
using Texts = std::map<std::string, std::string>;

fs::path family(const std::string& name) { return test::source_dir() / "tests/golden/tokenizers" / name; }

const std::vector<const char*> kFamilies{"llama2", "mistral3", "llama3", "qwen3", "tekken", "smollm"};

bool is_utf8(const std::string& text) { return invalid_utf8(text) == text.npos; }

// A folder to write files into.
class TokenizerFolder : public testing::Test {
 protected:
  TokenizerFolder() { fs::create_directories(folder_); }
  ~TokenizerFolder() override { fs::remove_all(folder_); }

  void write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void copy(const std::string& name, const char* file) const {
    fs::copy_file(family(name) / file, folder_ / file, fs::copy_options::overwrite_existing);
  }
  Tokenizer load() const { return Tokenizer::load(folder_); }

  // The error of load(), without the folder's name.
  std::string complaint() const {
    try {
      load();
    } catch (const Error& error) {
      std::string message = error.what();
      EXPECT_EQ(message.find('\n'), message.npos) << "one line";
      for (size_t at; (at = message.find(folder_.string() + "/")) != message.npos;)
        message.erase(at, folder_.string().size() + 1);
      return message;
    }
    return "nothing";
  }
  std::string complaint_about(const json& tokenizer) const {
    write("tokenizer.json", tokenizer.dump());
    return complaint();
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) /
      fmt::format("wick-{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
};

// Byte-level BPE of a few letters.
json small() {
  return json::parse(R"({
    "added_tokens": [{"id": 7, "content": "<s>", "special": true}, {"id": 8, "content": "<t>", "special": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "\u0120": 5, "bc": 6},
              "merges": ["a b", ["ab", "c"], "b c"]}})");
}

TEST_F(TokenizerFolder, ControlTokensCountOnlyWhereTheyMay) {
  write("tokenizer.json", small().dump());
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.encode("abc bc"), (Ids{7, 4, 5, 6}));
  EXPECT_EQ(tokenizer.encode("a<s>b", {.add_special = false, .parse_special = true}), (Ids{0, 7, 1}));
  EXPECT_EQ(tokenizer.encode("a<t>b<s>", {.add_special = false}), (Ids{0, 8, 1})) << "<, s and > are no tokens here";
  const auto parts = [&](std::vector<TextPart> all) { return tokenizer.encode(all, {.add_special = false}); };
  EXPECT_EQ(parts({{"<s>", true}, {"a", false}, {"bc<s>", false}, {"<s>", true}}), (Ids{7, 4, 7}));
  EXPECT_EQ(parts({{"<s", true}, {">a", false}}), (Ids{0})) << "not across the border";
  EXPECT_EQ(parts({{"<s", true}, {">a", true}}), (Ids{7, 0})) << "both are the template's";
}

// The marks at all bytes of a text.
std::vector<TextMark> marks_of(const Tokenizer& tokenizer, const std::vector<TextPart>& parts,
                               const EncodeOptions& options = {.add_special = false}) {
  size_t size = 0;
  for (const TextPart& part : parts) size += part.text.size();
  std::vector<TextMark> marks(size + 1);
  for (size_t byte = 0; byte <= size; ++byte) marks[byte].byte = byte;
  EXPECT_EQ(tokenizer.encode(parts, options, marks), tokenizer.encode(parts, options));
  return marks;
}

// "0" to "9" for the tokens before each byte, with "+" where one goes on.
std::string shown(const std::vector<TextMark>& marks) {
  std::string text;
  for (const TextMark& mark : marks) text += fmt::format("{}{}", mark.tokens, mark.is_inside ? "+" : " ");
  return text;
}

TEST_F(TokenizerFolder, MarksTellTheTokensBeforeThem) {
  write("tokenizer.json", small().dump());
  const Tokenizer tokenizer = load();
  const auto marks = [&](std::vector<TextPart> parts) { return shown(marks_of(tokenizer, parts)); };
  EXPECT_EQ(marks({}), "0 ");
  EXPECT_EQ(marks({{"", false}}), "0 ");
  EXPECT_EQ(marks({{"abc bc"}}), "0 0+0+1 2 2+3 ");
  EXPECT_EQ(marks({{"ab", false}, {"c", false}, {"<s>a", true}}), "0 0+0+1 1+1+2 3 ") << "across the parts' borders";
  EXPECT_EQ(marks({{"a<t>b", false}}), "0 1 1+1+2 3 ");
  TextMark twice[] = {{.byte = 1}, {.byte = 1}, {.byte = 1000}};
  const TextPart part{"abc"};
  tokenizer.encode(std::span(&part, 1), {.add_special = false}, twice);
  EXPECT_EQ(shown({std::begin(twice), std::end(twice)}), "0+0+1 ");
}

TEST_F(TokenizerFolder, MarksMoveAsTheTextIsNormalized) {
  const auto marks = [&](const char* normalizer, const char* pre_tokenizer, const char* text) {
    json tokenizer = small();
    tokenizer["normalizer"] = json::parse(normalizer);
    tokenizer["pre_tokenizer"] = json::parse(pre_tokenizer);
    tokenizer["model"]["vocab"]["\u2581"] = 9;
    tokenizer["model"]["unk_token"] = "c";
    tokenizer["model"]["fuse_unk"] = true;
    write("tokenizer.json", tokenizer.dump());
    return shown(marks_of(load(), {{text, true}}));
  };
  const char* prepend = R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})";
  const char* metaspace = R"({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"})";
  const char* words = R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
      {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}]})";
  // The space in front belongs to the first character.
  EXPECT_EQ(marks(prepend, "null", "ab a"), "0 1+2 3 4 ");
  EXPECT_EQ(marks(prepend, "null", "<s>b"), "0 0+0+1 3 ");
  EXPECT_EQ(marks("null", metaspace, "ab a"), "0 1+2 3 4 ");
  EXPECT_EQ(marks("null", metaspace, " a"), "0 1 2 ");
  EXPECT_EQ(marks("null", words, " ab  a "), "0 0 1+2 2 2 4 4 ") << "spaces between words are no token's";
  EXPECT_EQ(marks("null", "null", "axyzb"), "0 1 1+1+2 3 ") << "unknown characters are one token";
  EXPECT_EQ(marks(R"({"type": "Replace", "pattern": {"String": "xy"}, "content": "b"})", "null", "axya"), "0 0+1 1 2 ");
  EXPECT_EQ(marks(R"({"type": "Strip", "strip_left": true, "strip_right": true})", "null", "  a "), "0 0 0 1 1 ");
  EXPECT_EQ(marks(R"({"type": "NFC"})", "null", "ae\u0301a"), "0 1 1+2 2 3 ") << "inside a composed character";
}

// The bytes of the tokens before a mark are the text before it.
TEST(Tokenizer, MarksAgreeWithTheBytesOfTokens) {
  for (const std::string name : {"llama3", "tekken", "smollm"}) {
    const Tokenizer tokenizer = Tokenizer::load(family(name));
    const auto lines = test::Lines::all();
    for (size_t i = 0; i < lines.size(); i += 9) {
      const std::string line = replace_invalid_utf8(lines[i]);
      const size_t cut = line.size() / 3;
      const std::vector<TextPart> parts{{std::string_view(line).substr(0, cut), true},
                                        {std::string_view(line).substr(cut), false}};
      if (!is_utf8(line.substr(0, cut))) continue;
      const Ids ids = tokenizer.encode(parts, {.add_special = false});
      size_t tokens = 0, end = 0;  // the tokens before a byte, and where they end
      for (const TextMark& mark : marks_of(tokenizer, parts)) {
        while (tokens < ids.size() && end + tokenizer.bytes(ids[tokens]).size() <= mark.byte)
          end += tokenizer.bytes(ids[tokens++]).size();
        ASSERT_EQ(mark.tokens, tokens) << name << ": byte " << mark.byte << " of " << line;
        ASSERT_EQ(mark.is_inside, end < mark.byte) << name << ": byte " << mark.byte << " of " << line;
      }
    }
  }
}

// By scores the tokens lie where they do by merges; for HF tokenizers' offsets see tokenizer_golden.cpp.
TEST_F(TokenizerFolder, MarksAreAlikeByScoresAndByMerges) {
  for (const char* name : {"llama2", "mistral3"}) {
    copy(name, "tokenizer.model");
    const Tokenizer by_scores = load(), by_merges = Tokenizer::load(family(name));
    size_t count = 0;
    for (const std::string& line : test::Lines::all()) {
      const std::vector<TextPart> parts{{line}};
      const EncodeOptions options{.add_special = false};
      if (!is_utf8(line) || by_scores.encode(parts, options) != by_merges.encode(parts, options)) continue;
      ASSERT_EQ(shown(marks_of(by_scores, parts)), shown(marks_of(by_merges, parts))) << line;
      ++count;
    }
    EXPECT_GT(count, 5000u) << name;
  }
}

// Marks are in order, and in a text that is not UTF-8 too.
TEST(Tokenizer, MarksAreInOrderInAnyText) {
  for (const std::string name : kFamilies) {
    const Tokenizer tokenizer = Tokenizer::load(family(name));
    const auto lines = test::Lines::all();
    for (size_t i = 7; i < lines.size(); i += 16) {
      size_t before = 0;
      const std::vector<TextPart> parts{{lines[i], true}};
      const auto marks = marks_of(tokenizer, parts);
      for (const TextMark& mark : marks) {
        ASSERT_LE(before, mark.tokens) << name << ": " << lines[i];
        before = mark.tokens;
      }
      ASSERT_EQ(marks[0].tokens, 0u);
      ASSERT_EQ(before, tokenizer.encode(parts, {.add_special = false}).size());
    }
  }
}

TEST_F(TokenizerFolder, PiecesBytesAndIds) {
  write("tokenizer.json", small().dump());
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.size(), 9);
  EXPECT_EQ(tokenizer.piece(5), "\u0120");
  EXPECT_EQ(tokenizer.bytes(5), " ");
  EXPECT_EQ(tokenizer.id_of("abc"), 4);
  EXPECT_EQ(tokenizer.id_of("x"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_control(7));
  EXPECT_FALSE(tokenizer.is_control(8));
  EXPECT_EQ(tokenizer.decode(Ids{7, 4, 8, 5, 100, 3}), "abc<t> ab") << "an id beyond the tokens gives nothing";
  EXPECT_EQ(tokenizer.decode(Ids{7, 4}, {.skip_special = false}), "<s>abc");
  EXPECT_THROW(tokenizer.decode(Ids{-1}), Error);
  EXPECT_THROW(tokenizer.decode(Ids{1 << 20}), Error);
}

TEST_F(TokenizerFolder, TheFilesBesideItSayWhatEndsAnAnswer) {
  write("tokenizer.json", small().dump());
  EXPECT_EQ(load().bos_id(), std::nullopt);
  EXPECT_TRUE(load().stop_ids().empty());
  write("special_tokens_map.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "abc"})");
  EXPECT_EQ(load().bos_id(), 7);
  EXPECT_EQ(load().eos_id(), 4);
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": "ab", "chat_template": "{{ x }}",
      "added_tokens_decoder": {"9": {"content": "<|eot_id|>", "special": true}}})");
  EXPECT_EQ(load().bos_id(), std::nullopt) << "null is an answer";
  EXPECT_EQ(load().stop_ids(), (Ids{3, 9})) << "<|eot_id|> always ends a turn";
  EXPECT_EQ(load().chat_templates(), (Texts{{"default", "{{ x }}"}}));
  write("generation_config.json", R"({"eos_token_id": [3, 5]})");
  EXPECT_EQ(load().stop_ids(), (Ids{3, 5, 9}));
  write("generation_config.json", R"({"eos_token_id": 2})");
  EXPECT_EQ(load().stop_ids(), (Ids{2, 3, 9}));
  write("chat_template.jinja", "{{ y }}\n");
  EXPECT_EQ(load().chat_templates(), (Texts{{"default", "{{ y }}\n"}}));
}

// transformers' special_tokens_map.
TEST_F(TokenizerFolder, NamesSpecialTokensAsTransformersDoes) {
  write("tokenizer.json", small().dump());
  const auto texts = [&](const char* config, const char* map = "{}") {
    write("tokenizer_config.json", config);
    write("special_tokens_map.json", map);
    return load().special_texts();
  };
  EXPECT_EQ(texts("{}"), Texts{});
  EXPECT_EQ(texts(R"({"bos_token": "<s>", "eos_token": {"content": "c"}, "unk_token": null, "pad_token": "<pad>",
                      "add_bos_token": true})"),
            (Texts{{"bos_token", "<s>"}, {"eos_token", "c"}, {"pad_token", "<pad>"}}));
  EXPECT_EQ(texts(R"({"image_token": "<i>", "extra_special_tokens": {"audio": "<a>", "video_token": {"content": "<v>"}},
                      "additional_special_tokens": ["<x>"]})"),
            (Texts{{"image_token", "<i>"}, {"audio", "<a>"}, {"video_token", "<v>"}}));
  EXPECT_EQ(texts(R"({"extra_special_tokens": ["<x>"]})"), Texts{}) << "lists have no names";
  const char* map = R"({"bos_token": "a", "eos_token": {"content": "b"}, "sep_token": "c"})";
  EXPECT_EQ(texts(R"({"bos_token": null, "eos_token": "ab"})", map),
            (Texts{{"bos_token", "a"}, {"eos_token", "b"}, {"sep_token", "c"}}))
      << "the map's keys win";
  EXPECT_EQ(load().bos_id(), 0);
  EXPECT_EQ(texts(R"({"bos_token": null, "eos_token": "ab", "added_tokens_decoder": {}})", map),
            (Texts{{"eos_token", "ab"}}))
      << "added_tokens_decoder: the map is not read";
  EXPECT_EQ(texts(R"({"tokenizer_class": "LlamaTokenizer"})"), (Texts{{"bos_token", "<s>"}}))
      << "</s> is no token here";
  EXPECT_EQ(texts(R"({"tokenizer_class": "LlamaTokenizer", "bos_token": null})"), Texts{}) << "null is an answer";

  write("special_tokens_map.json", "{}");
  write("tokenizer_config.json", R"({"pad_token": 5})");
  EXPECT_EQ(complaint(), "tokenizer_config.json: pad_token: expected a string, found 5");
  write("tokenizer_config.json", R"({"extra_special_tokens": {"audio": 5}})");
  EXPECT_EQ(complaint(), "tokenizer_config.json: extra_special_tokens.audio: expected a string, found 5");
  fs::remove(folder_ / "tokenizer.json");
  fs::remove(folder_ / "tokenizer_config.json");
  copy("llama2", "tokenizer.model");
  EXPECT_EQ(load().special_texts(), (Texts{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}));
}

TEST_F(TokenizerFolder, ReadsChatTemplatesOfTheConfiguration) {
  write("tokenizer.json", small().dump());
  const auto config = [&](const json& templates) {
    write("tokenizer_config.json", json{{"chat_template", templates}}.dump());
  };
  EXPECT_EQ(load().chat_templates(), Texts{});
  config(nullptr);
  EXPECT_EQ(load().chat_templates(), Texts{});
  config("{{ x }}");
  EXPECT_EQ(load().chat_templates(), (Texts{{"default", "{{ x }}"}}));
  const json one = {{"name", "default"}, {"template", "a"}}, other = {{"name", "tool_use"}, {"template", "b"}};
  config({one, other});
  EXPECT_EQ(load().chat_templates(), (Texts{{"default", "a"}, {"tool_use", "b"}}));
  const std::string where = "tokenizer_config.json: chat_template";
  config({one, one});
  EXPECT_EQ(complaint(), where + ": expected each name once, found \"default\" twice");
  config({{{"name", ""}, {"template", "a"}}});
  EXPECT_EQ(complaint(), where + ": expected a chat template with a name, found an empty name");
  config(5);
  EXPECT_EQ(complaint(), where + ": expected a string, or a list of templates with names, found 5");
  config({{{"name", "x"}}});
  EXPECT_EQ(complaint(), where + ": the key \"template\" is missing");
  config(std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(complaint(), where + ": expected a chat template of at most 1048576 bytes, found 1048577");
  json many = json::array();
  for (int i = 0; i < 65; ++i) many.push_back({{"name", std::to_string(i)}, {"template", "a"}});
  config(many);
  EXPECT_EQ(complaint(), where + ": expected at most 64 chat templates, found more");
}

TEST_F(TokenizerFolder, ReadsChatTemplatesOfFiles) {
  write("tokenizer.json", small().dump());
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  const fs::path more = folder_ / "additional_chat_templates", file = folder_ / "chat_template.jinja";
  fs::create_directory(more);
  write("additional_chat_templates/notes.txt", "\xff");
  EXPECT_EQ(load().chat_templates(), (Texts{{"rag", "r"}})) << "no template file";
  write("additional_chat_templates/tool_use.jinja", "t");
  EXPECT_EQ(load().chat_templates(), (Texts{{"tool_use", "t"}})) << "files take the place of the configuration's";
  write("chat_template.jinja", "{{ y }}\n");
  EXPECT_EQ(load().chat_templates(), (Texts{{"default", "{{ y }}\n"}, {"tool_use", "t"}}));
  write("additional_chat_templates/default.jinja", "d");
  EXPECT_EQ(complaint(), "additional_chat_templates/default.jinja: expected each name once, found \"default\" twice");
  fs::remove(more / "default.jinja");

  write("chat_template.jinja", "ab\xff");
  EXPECT_EQ(complaint(), "chat_template.jinja: expected UTF-8, found an invalid byte at 2; save it as UTF-8");
  write("chat_template.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(complaint().substr(0, 20), "chat_template.jinja:");
  fs::remove(file);
  fs::create_symlink("chat_template.jinja", file);
  EXPECT_EQ(complaint().substr(0, 20), "chat_template.jinja:") << "a link to itself";
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_EQ(complaint().substr(0, 20), "chat_template.jinja:");
  fs::remove(file);
  fs::create_symlink("tool_use.jinja", more / "other.jinja");
  EXPECT_EQ(load().chat_templates(), (Texts{{"other", "t"}, {"tool_use", "t"}})) << "the file to which a link leads";
  fs::remove_all(more);
  write("additional_chat_templates", "");
  EXPECT_EQ(
      complaint(),
      "additional_chat_templates: expected a folder of chat templates, found none that can be read (Not a directory)");
  fs::remove(more);
  fs::create_symlink("additional_chat_templates", more);
  EXPECT_EQ(complaint().substr(0, 26), "additional_chat_templates:") << "a link to itself";
}

TEST_F(TokenizerFolder, LlamaTokenizersPutBosByTheirConfiguration) {
  write("tokenizer.json", small().dump());
  const char* config = R"({{"tokenizer_class": "{}", "bos_token": "<s>", "eos_token": "c", "{}": {}}})";
  const auto encoded = [&](const char* kind, const char* key, bool value) {
    write("tokenizer_config.json", fmt::format(fmt::runtime(config), kind, key, value));
    return load().encode("a");
  };
  EXPECT_EQ(encoded("LlamaTokenizer", "add_bos_token", true), (Ids{7, 0}));
  EXPECT_EQ(encoded("LlamaTokenizerFast", "add_bos_token", false), (Ids{0}));
  EXPECT_EQ(encoded("LlamaTokenizer", "add_eos_token", true), (Ids{7, 0, 2}));
  EXPECT_EQ(encoded("PreTrainedTokenizerFast", "add_bos_token", false), (Ids{7, 0})) << "the post_processor's";
}

TEST_F(TokenizerFolder, NamesWhatItDoesNotKnow) {
  const auto with = [&](const char* pointer, const char* value) {
    json tokenizer = small();
    tokenizer[json::json_pointer(pointer)] = json::parse(value);
    return complaint_about(tokenizer);
  };
  EXPECT_EQ(with("/normalizer", R"({"type": "Lowercase"})"),
            "tokenizer.json: normalizer: \"Lowercase\" is not supported; Wick knows NFC, NFKC, Precompiled, Prepend, "
            "Replace, Strip and Sequence");
  EXPECT_EQ(
      with("/normalizer", R"({"type": "Replace", "pattern": {"Regex": " +"}, "content": ""})"),
      "tokenizer.json: normalizer: a Replace of a pattern is not supported; Wick knows Strings, and the pattern of "
      "two spaces or more");
  EXPECT_EQ(with("/pre_tokenizer", R"({"type": "Whitespace"})"),
            "tokenizer.json: pre_tokenizer: \"Whitespace\" is not supported; Wick knows ByteLevel, Digits, Metaspace, "
            "Split, WhitespaceSplit and Sequence");
  EXPECT_EQ(
      with("/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"})"),
      "tokenizer.json: pre_tokenizer: the pattern \"(a+)+$\" is not supported; Wick knows those of GPT-2, Llama 3 "
      "(and GPT-4), Qwen 2 and Tekken");
  EXPECT_EQ(with("/model/type", R"("Unigram")"), "tokenizer.json: model: \"Unigram\" is not supported; Wick knows BPE");
  EXPECT_EQ(with("/model/end_of_word_suffix", R"("</w>")"),
            "tokenizer.json: model: end_of_word_suffix is not supported; Wick knows BPE without it");
  EXPECT_EQ(with("/post_processor", R"({"type": "RobertaProcessing"})"),
            "tokenizer.json: post_processor: \"RobertaProcessing\" is not supported; Wick knows ByteLevel, "
            "TemplateProcessing and Sequence");
  EXPECT_EQ(with("/decoder", R"({"type": "WordPiece"})"),
            "tokenizer.json: decoder: \"WordPiece\" is not supported; Wick knows ByteFallback, ByteLevel, Fuse, "
            "Metaspace, Replace, Strip and Sequence");
}

TEST_F(TokenizerFolder, SaysWhatIsWrongWithTheFile) {
  EXPECT_EQ(complaint(),
            folder_.string() + ": no tokenizer.json or tokenizer.model there; expected a transformers folder");
  write("tokenizer.json", "{\"model\": ");
  EXPECT_EQ(complaint().substr(0, 31), "tokenizer.json: not valid JSON:");
  EXPECT_EQ(complaint_about(json::array()), "tokenizer.json: expected a JSON object, found a list");
  EXPECT_EQ(complaint_about(json::object()), "tokenizer.json: the key \"model\" is missing");
  const auto with = [&](const char* pointer, const json& value) {
    json tokenizer = small();
    tokenizer[json::json_pointer(pointer)] = value;
    return complaint_about(tokenizer);
  };
  EXPECT_EQ(with("/model/vocab/a", -1), "tokenizer.json: token \"a\": expected an id from 0 to 1048575, found -1");
  EXPECT_EQ(with("/model/vocab/b", 0), "tokenizer.json: tokens \"a\" and \"b\" share the id 0");
  EXPECT_EQ(with("/model/merges/0", "a d"), "tokenizer.json: model.merges: \"d\" is not in the vocabulary");
  EXPECT_EQ(with("/model/merges/0", "ab"), "tokenizer.json: model.merges: expected two tokens, found \"ab\"");
  EXPECT_EQ(with("/model/unk_token", "?"), "tokenizer.json: model.unk_token: \"?\" is not in the vocabulary");
  EXPECT_EQ(with("/added_tokens/0/id", 3), "tokenizer.json: tokens \"ab\" and \"<s>\" share the id 3");
  EXPECT_EQ(with("/post_processor/special_tokens/<s>/ids/0", 50),
            "tokenizer.json: post_processor: \"<s>\": no token has the id 50");
  json deep = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) deep = {{"type", "Sequence"}, {"normalizers", {deep}}};
  EXPECT_EQ(with("/normalizer", deep), "tokenizer.json: normalizer: sequences within sequences, more than 8 deep");

  write("tokenizer.json", small().dump());
  write("tokenizer_config.json", R"({"eos_token": "dog"})");
  EXPECT_EQ(complaint(), "tokenizer_config.json: eos_token: \"dog\" is not a token of tokenizer.json");
}

TEST_F(TokenizerFolder, SaysWhatIsWrongWithASentencePieceModel) {
  copy("llama2", "tokenizer.model");
  std::string model;
  {
    std::ifstream file(folder_ / "tokenizer.model", std::ios::binary);
    model.assign(std::istreambuf_iterator<char>(file), {});
  }
  EXPECT_EQ(load().size(), 1400);
  write("tokenizer.model", model.substr(0, model.size() - 1));
  EXPECT_EQ(complaint(), "tokenizer.model: not a SentencePiece model, or cut short; copy the file again");
  write("tokenizer.model", "");
  EXPECT_EQ(complaint(),
            "tokenizer.model: expected pieces, a trainer_spec and a normalizer_spec; is it a SentencePiece model?");
  write("tokenizer.model", "IQ== 0\nIg== 1\n");
  EXPECT_EQ(complaint(),
            "tokenizer.model: a tiktoken vocabulary is not supported; take the tokenizer.json of the same model");
  const auto with = [&](const std::string& more) {
    write("tokenizer.model", model + more);
    return complaint();
  };
  EXPECT_EQ(with("\x12\x02\x18\x01"), "tokenizer.model: a unigram model is not supported; Wick knows BPE models");
  EXPECT_EQ(with(std::string("\x1a\x0d\x0a\x08nmt_nfkc\x12\x01x", 15)),
            "tokenizer.model: the normalizer \"nmt_nfkc\" is not supported; Wick knows identity");
  EXPECT_EQ(with(std::string("\x0a\x05\x0a\x01x\x18\x07", 7)),
            "tokenizer.model: piece \"x\": expected a type from 1 to 6, found 7");
  EXPECT_EQ(with(std::string("\x0a\x08\x0a\x01x\x15\x00\x00\xc0\x7f", 10)),
            "tokenizer.model: token 1400: the score is not finite");
}

// Whether a tokenizer.json of the older kind puts a second space.
bool has_space_behind_control(const std::string& text) {
  const auto has = [&](const char* token) { return text.find(token) != text.npos; };
  return has("<s> ") || has("</s> ") || has("<unk> ");
}

// The arrays of every family's tokenizer, as a GGUF would hold them, give the same ids again.
TEST(TokenizerArrays, GiveTheSameIds) {
  const auto lines = test::Lines::all();
  for (const std::string name : kFamilies) {
    if (name == "mistral3") continue;  // below
    const Tokenizer one = Tokenizer::load(family(name));
    const Tokenizer other = Tokenizer::from_arrays(one.arrays(), "arrays.gguf");
    EXPECT_EQ(one.bos_id(), other.bos_id());
    EXPECT_EQ(one.stop_ids(), other.stop_ids());
    size_t count = 0;
    for (size_t i = 0; i < lines.size(); i += 5) {
      const std::string& line = lines[i];
      // Flags of added tokens are not in a GGUF; SentencePiece replaces bytes that are not UTF-8 one by one.
      if (name == "qwen3" && line.find("<tool>") != line.npos) continue;
      if (name == "llama2" && (!is_utf8(line) || has_space_behind_control(line))) continue;
      const Ids ids = one.encode(line, {.parse_special = true});
      EXPECT_EQ(ids, other.encode(line, {.parse_special = true})) << line;
      EXPECT_EQ(one.decode(ids), other.decode(ids)) << line;
      ++count;
    }
    EXPECT_GT(count, lines.size() / 10);
  }
}

TEST(TokenizerArrays, KeepTemplatesAndTextsOfSpecialTokens) {
  TokenizerArrays arrays{.model = "gpt2", .pre = "qwen2", .tokens = {"a", "b", "c", "d"}, .token_type = {1, 1, 3, 3}};
  arrays.bos_token_id = 2, arrays.padding_token_id = 3;
  arrays.chat_templates = {{"default", "x"}, {"tool_use", "y"}};
  const Tokenizer one = Tokenizer::from_arrays(arrays, "m.gguf");
  const Tokenizer other = Tokenizer::from_arrays(one.arrays(), "n.gguf");
  EXPECT_EQ(one.special_texts(), (Texts{{"bos_token", "c"}, {"pad_token", "d"}}));
  EXPECT_EQ(one.special_texts(), other.special_texts());
  EXPECT_EQ(other.chat_templates(), arrays.chat_templates);
}

// A tokenizer.model's own scores, and those made from a tokenizer.json's merges, merge alike.
TEST_F(TokenizerFolder, ScoresOfMergesMergeAlike) {
  for (const char* name : {"llama2", "mistral3"}) {
    copy(name, "tokenizer.model");
    const Tokenizer model = Tokenizer::from_arrays(load().arrays(), "model.gguf");
    const Tokenizer made = Tokenizer::from_arrays(Tokenizer::load(family(name)).arrays(), "json.gguf");
    for (const std::string& line : test::Lines::all()) {
      EXPECT_EQ(model.encode(line), made.encode(line)) << line;
      if (HasFailure()) return;
    }
  }
}

// Today's converters sort merges of one score by their lengths, as with real models' runs of spaces.
TEST_F(TokenizerFolder, ScoresAreThoseOfTheModelBeside) {
  json tokenizer = json::parse(std::ifstream(family("mistral3") / "tokenizer.json"));
  json& merges = tokenizer["model"]["merges"];
  const auto made = [&](size_t i) { return merges[i][0].get<std::string>() + merges[i][1].get<std::string>(); };
  size_t second = 1;
  while (made(second) != made(second - 1)) ++second;
  merges.push_back(merges[second]);
  merges.erase(merges.begin() + ptrdiff_t(second));
  write("tokenizer.json", tokenizer.dump());
  EXPECT_THROW(Tokenizer::load(folder_, true).arrays(), Error);

  copy("mistral3", "tokenizer.model");
  EXPECT_THROW(load().arrays(), Error);
  const std::vector<float> scores = Tokenizer::load(folder_, true).arrays().scores;
  tokenizer["model"]["vocab"]["of another model"] = tokenizer["model"]["vocab"].size();
  write("tokenizer.json", tokenizer.dump());
  EXPECT_THROW(Tokenizer::load(folder_, true).arrays(), Error);
  fs::remove(folder_ / "tokenizer.json");
  EXPECT_EQ(scores, load().arrays().scores);
}

TEST(TokenizerArrays, SayWhatIsWrong) {
  const auto complaint = [](const TokenizerArrays& arrays) -> std::string {
    try {
      Tokenizer::from_arrays(arrays, "m.gguf");
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  const TokenizerArrays good{
      .model = "gpt2", .pre = "qwen2", .tokens = {"a", "b", "ab"}, .token_type = {1, 1, 1}, .merges = {"a b"}};
  EXPECT_EQ(complaint(good), "nothing");
  auto bad = good;
  bad.model = "bert";
  EXPECT_EQ(complaint(bad), "m.gguf: tokenizer.ggml.model \"bert\" is not supported; Wick knows llama and gpt2");
  bad = good;
  bad.pre = "viking";
  EXPECT_EQ(complaint(bad),
            "m.gguf: tokenizer.ggml.pre \"viking\" is not supported; Wick knows llama-bpe, llama3, llama-v3, falcon3, "
            "falcon-h1, pixtral, midm-2.0, lfm2, jina-v5-nano, smaug-bpe, qwen2, deepseek-r1-qwen, tekken, smollm, "
            "gpt-2, default");
  bad = good;
  bad.tokens = {};
  EXPECT_EQ(complaint(bad), "m.gguf: expected 1 to 1048576 tokens, found 0");
  bad = good;
  bad.token_type = {1, 1};
  EXPECT_EQ(complaint(bad), "m.gguf: 2 token types for 3 tokens; convert the model to GGUF again");
  bad.token_type = {};
  EXPECT_EQ(complaint(bad), "m.gguf: 0 token types for 3 tokens; convert the model to GGUF again");
  bad.token_type = {1, 1, 7};
  EXPECT_EQ(complaint(bad), "m.gguf: token 2: expected a type from 1 to 6, found 7");
  bad = good;
  bad.tokens[1] = "\xff";
  EXPECT_EQ(complaint(bad), "m.gguf: token 1: expected UTF-8");
  bad = good;
  bad.merges = {"a c"};
  EXPECT_EQ(complaint(bad), "m.gguf: merges: \"c\" is not among the tokens");
  bad.merges = {"ab"};
  EXPECT_EQ(complaint(bad), "m.gguf: merges: expected two tokens, found \"ab\"");
  bad.merges = {};
  EXPECT_EQ(complaint(bad),
            "m.gguf: no merges (tokenizer.ggml.merges), and 1 of its 3 tokens need them; convert the model to GGUF "
            "again");
  bad.tokens = {"a", "b", "\u0120"};  // nothing to merge
  EXPECT_EQ(complaint(bad), "nothing");
  bad = good;
  bad.scores = {0, 0};
  EXPECT_EQ(complaint(bad), "m.gguf: 2 scores for 3 tokens; convert the model to GGUF again");
  bad = good;
  bad.chat_templates = {{"x", "\xff"}};
  EXPECT_EQ(complaint(bad),
            "m.gguf: chat template \"x\": expected UTF-8, found an invalid byte at 0; save it as UTF-8");
  bad = good;
  bad.padding_token_id = 3;
  EXPECT_EQ(complaint(bad), "m.gguf: padding_token_id: no token has the id 3");
  bad = good;
  bad.eos_token_id = 3;
  EXPECT_EQ(complaint(bad), "m.gguf: eos_token_id: no token has the id 3");
  bad = good;
  bad.model = "llama";
  EXPECT_EQ(complaint(bad), "m.gguf: 0 scores for 3 tokens; convert the model to GGUF again");
  bad.scores = {0, 0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(complaint(bad), "m.gguf: token 2: the score is not finite");
  bad.scores = {0, 0, 0};
  bad.token_type = {1, 6, 1};
  EXPECT_EQ(complaint(bad), "m.gguf: token 1: expected a byte as <0x0A>, found \"b\"");
}

// A space as at the start of a text, but one at most.
TEST_F(TokenizerFolder, SentencePieceModelsPutOneSpaceBehindControlTokens) {
  copy("mistral3", "tokenizer.model");
  const Tokenizer tokenizer = load();
  const auto behind = [&](const std::string& text) {
    Ids ids = tokenizer.encode("[INST]" + text, {.add_special = false, .parse_special = true});
    EXPECT_EQ(ids.at(0), tokenizer.id_of("[INST]"));
    ids.erase(ids.begin());
    return ids;
  };
  const auto alone = [&](const char* text) { return tokenizer.encode(text, {.add_special = false}); };
  EXPECT_EQ(behind("Hello world"), alone("Hello world"));
  EXPECT_EQ(behind(" Hello world"), alone("Hello world"));
  EXPECT_EQ(behind("  Hello world"), alone(" Hello world"));
  EXPECT_NE(alone(" Hello world"), alone("Hello world")) << "at the start of a text it is SentencePiece's own";
}

// SentencePiece's rules that the trained models do not reach.
TEST(SentencePieceScores, MergeTheHighestFirstAndKeepUserDefinedPiecesWhole) {
  const auto encode = [](TokenizerArrays arrays, const char* text) {
    arrays.model = "llama";
    arrays.add_space_prefix = false;
    arrays.scores.resize(arrays.tokens.size());
    return Tokenizer::from_arrays(arrays, "m").encode(text);
  };
  TokenizerArrays arrays{.tokens = {"<unk>", "a", "b", "c", "ab", "bc", "abc"},
                         .scores = {0, 0, 0, 0, -2, -1, -3},
                         .token_type = {2, 1, 1, 1, 1, 1, 1},
                         .unknown_token_id = 0};
  EXPECT_EQ(encode(arrays, "abc"), (Ids{6})) << "bc, then abc";
  EXPECT_EQ(encode(arrays, "abx?c"), (Ids{4, 0, 3})) << "unknown ones side by side are one";
  arrays.token_type[6] = 5;
  EXPECT_EQ(encode(arrays, "abc"), (Ids{1, 5})) << "an unused piece is taken apart as it was made";
  arrays.token_type[6] = 1;
  arrays.token_type[4] = 4;
  EXPECT_EQ(encode(arrays, "abc"), (Ids{4, 3})) << "a user-defined piece is not merged on";
  arrays.scores = {0, 0, 0, 0, 5, 5, -1};
  arrays.token_type[4] = 1;
  EXPECT_EQ(encode(arrays, "abc"), (Ids{6})) << "of equal scores the leftmost";
}

// tools/golden/gguf_pre.py; llama.cpp takes "default" for a file without the key.
TEST(Tokenizer, FindsTheIdsOfLlamaCpp) {
  std::ifstream in(family("pre.json"));
  const json golden = json::parse(in);
  const Tokenizer source = Tokenizer::load(family(golden.at("tokenizer")));
  const auto texts = golden.at("texts").get<std::vector<std::string>>();
  for (const auto& [pre, ids] : golden.at("ids").items())
    for (const std::string& name : {pre, pre == "default" ? std::string() : pre}) {
      TokenizerArrays arrays = source.arrays(source.size());
      arrays.pre = name;
      const Tokenizer tokenizer = Tokenizer::from_arrays(arrays, "m.gguf");
      for (size_t i = 0; i < texts.size(); ++i)
        EXPECT_EQ(tokenizer.encode(texts[i], {.add_special = false}), ids[i].get<Ids>()) << name << ": " << texts[i];
    }
}

TEST(Tokenizer, GivesTheTextBack) {
  for (const std::string name : {"llama2", "llama3", "tekken", "smollm"}) {
    const Tokenizer tokenizer = Tokenizer::load(family(name));
    for (const std::string& line : test::Lines::all()) {
      const Ids ids = tokenizer.encode(line);
      // A token of U+2581 comes back as a space.
      if (name == "llama2" && line.find("\u2581") != line.npos) continue;
      ASSERT_EQ(tokenizer.decode(ids), replace_invalid_utf8(line)) << name;
    }
  }
}

TEST(Tokenizer, StreamsWholeCharacters) {
  for (const std::string name : kFamilies) {
    const Tokenizer tokenizer = Tokenizer::load(family(name));
    for (size_t i = 0; i < 1000; ++i) {
      static const auto lines = test::Lines::all();
      const Ids ids = tokenizer.encode(lines[i]);
      TokenStream stream(tokenizer);
      std::string text;
      for (int64_t id : ids) {
        const std::string more = stream.push(id);
        ASSERT_TRUE(is_utf8(more));
        text += more;
      }
      ASSERT_EQ(text + stream.finish(), tokenizer.decode(ids)) << name << ": " << lines[i];
    }
  }
}

TEST(Tokenizer, HoldsBackACharacterUntilItIsWhole) {
  const Tokenizer tokenizer = Tokenizer::load(family("llama2"));
  const auto byte = [&](int value) { return *tokenizer.id_of(fmt::format("<0x{:02X}>", value)); };
  TokenStream stream(tokenizer, {.at_start = false});
  EXPECT_EQ(stream.push(byte(0xf0)), "");
  EXPECT_EQ(stream.push(byte(0x9f)), "");
  EXPECT_EQ(stream.push(byte(0x98)), "");
  EXPECT_EQ(stream.push(byte(0x80)), "\U0001f600");
  EXPECT_EQ(stream.push(byte(0xe2)), "");
  EXPECT_EQ(stream.push(byte('a')), "\ufffda");
  EXPECT_EQ(stream.push(byte(0xff)), "\ufffd");
  EXPECT_EQ(stream.push(byte(0xc3)), "");
  EXPECT_EQ(stream.finish(), "\ufffd");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the"), {.at_start = false}), " the");
}

// These would take hours if anything were quadratic in the length of a text.
TEST(Tokenizer, LongTextsTakeNoLongerThanTheirLength) {
  constexpr size_t kBytes = size_t{1} << 15;
  const auto repeated = [](std::string_view text) {
    std::string all;
    while (all.size() < kBytes) all += text;
    return all;
  };
  for (const std::string name : kFamilies) {
    const Tokenizer tokenizer = Tokenizer::load(family(name));
    for (const char* text :
         {" ", "a", "\n", " \n", "A", "\u4e00", "\u0301\u0323", "\u0f73", "<|im_start|", "\xff", "'", "1"}) {
      const std::string all = repeated(text);
      const Ids ids = tokenizer.encode(all);
      EXPECT_FALSE(ids.empty());
      if (name == "llama3") {
        EXPECT_EQ(tokenizer.decode(ids), replace_invalid_utf8(all));
      }
    }
  }
}

TEST(Unicode, GraphemesAreThoseOfUnicode16) {
  const auto first = [](const std::string& text) { return text.substr(0, grapheme_length(text, 0)); };
  for (const char* whole : {"a", "\r\n", "e\u0301\u0323", "\u0915\u094d\u0937\u093f", "\u0915\u094d\u200d\u0937",
                            "\U0001f468\u200d\U0001f469", "\U0001f1eb\U0001f1ee", "\u1100\u1161\u11a8", "a\u0897"})
    EXPECT_EQ(first(whole + std::string("x")), whole) << "of " << whole;
  EXPECT_EQ(first("\n\r"), "\n");
  EXPECT_EQ(first("\u0915\u0937"), "\u0915") << "no virama";
  EXPECT_EQ(first("\u0915\u094d\u200c\u0937"), "\u0915\u094d\u200c") << "a non-joiner";
  EXPECT_EQ(first("\u0b95\u0bcd\u0bb7"), "\u0b95\u0bcd") << "Tamil has no conjuncts";
  EXPECT_EQ(first("\U0001f1eb\U0001f1ee\U0001f1eb"), "\U0001f1eb\U0001f1ee");
}

TEST(Unicode, ReplacesWhatIsNotUtf8AsPythonDoes) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a\xff"
       "b",
       "a?b"},
      {"\xc3", "?"},
      {"\xc3(", "?("},
      {"\xc0\xaf", "??"},
      {"\xe2\x82", "?"},
      {"\xe2\x82(", "?("},
      {"\xe2(\x82", "?(?"},
      {"\xed\xa0\x80", "???"},
      {"\xf0\x9f\x98", "?"},
      {"\xf0\x9f\x98\xf0", "??"},
      {"\xf0\x80\x80\xaf", "????"},
      {"\xf4\x90\x80\x80", "????"},
      {"\xf5\x80", "??"},
      {"\xe2\x82\xc3\xa9", "?\u00e9"},
  };
  for (const auto& [text, expected] : cases) {
    std::string spelt;
    for (char c : expected) spelt += c == '?' ? "\ufffd" : std::string(1, c);
    EXPECT_EQ(replace_invalid_utf8(text), spelt) << text;
  }
}

}  // namespace
}  // namespace wick
