// Files of JSON lines: the documents of each form, and the lines refused.
#include "wick/train/text_dataset.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"
#include "wick/text/conversation.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden";

class TextDatasetTest : public testing::Test {
 protected:
  fs::path model(const std::string& tokenizer = "qwen3") {
    const fs::path path = folder_ / tokenizer;
    if (!fs::exists(path)) {
      fs::copy(kGolden / "llama/text", path);
      for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
        fs::copy(kGolden / "tokenizers" / tokenizer / file, path / file);
      fs::remove(path / "chat_template.jinja");
      if (tokenizer == "qwen3")
        write_plain(path / "chat_template.jinja",
                    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\\n'}}"
                    "{% endif %}");
    }
    return path;
  }
  TextDataset read(const std::string& lines, int64_t length = 128, LongDocuments how = LongDocuments::error) {
    write_plain(folder_ / "a.jsonl", lines);
    return TextDataset::read({(folder_ / "a.jsonl").string()}, TextEncoder(model()), length, how);
  }
  // The counted tokens, as text.
  std::string counted(const TextDocument& document, const std::string& tokenizer = "qwen3") {
    std::vector<int64_t> ids;
    for (size_t i = 0; i < document.ids.size(); ++i)
      if (document.counts[i]) ids.push_back(document.ids[i]);
    return Tokenizer::load(model(tokenizer)).decode(ids, {.skip_special = false, .at_start = false});
  }
  void refuse(const std::string& lines, std::initializer_list<std::string_view> parts) {
    expect_error([&] { read(lines); }, parts);
  }

  TemporaryDirectory folder_;
};

TEST_F(TextDatasetTest, WhatTheModelSaysCounts) {
  const TextDataset data = read(
      "\xef\xbb\xbf{\"prompt\": \"What is 2?\", \"completion\": \" A number.\", \"id\": 7}\r\n"
      "\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi <|im_end|>\"}, {\"role\": \"assistant\", \"content\": "
      "\"Hello\"}, {\"role\": \"user\", \"content\": \"Bye\"}, {\"role\": \"assistant\", \"content\": \"Ciao\"}]}\n"
      "{\"text\": \"Once upon a time\"}");
  ASSERT_EQ(data.documents.size(), 3u);
  EXPECT_EQ(counted(data.documents[0]), " A number.<|im_end|>");
  EXPECT_EQ(counted(data.documents[1]), "Hello<|im_end|>\nCiao<|im_end|>\n");
  EXPECT_TRUE(std::string("Once upon a time<|im_end|>").ends_with(counted(data.documents[2])));
  EXPECT_EQ(data.documents[2].counted(), data.documents[2].size() - 1);
  EXPECT_FALSE(data.documents[2].counts.front());

  const Tokenizer tokenizer = Tokenizer::load(model());
  const auto prompt = tokenizer.encode("What is 2?");
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), data.documents[0].ids.begin()))
      << "a prompt's ids are those that it has by itself";
  EXPECT_EQ(data.tokens, data.documents[0].size() + data.documents[1].size() + data.documents[2].size());
  EXPECT_NE(data.describe().find("3 documents"), std::string::npos);
}

TEST_F(TextDatasetTest, ABeginOfTextStandsBeforeIt) {
  write_plain(folder_ / "a.jsonl", "{\"text\": \"Once upon\"}\n{\"prompt\": \"Once\", \"completion\": \"upon\"}\n");
  const TextEncoder encoder(model("llama2"));
  const Tokenizer tokenizer = Tokenizer::load(model("llama2"));
  const TextDataset data = TextDataset::read({(folder_ / "a.jsonl").string()}, encoder, 64, LongDocuments::error);
  for (const TextDocument& d : data.documents) {
    EXPECT_EQ(d.ids.front(), *tokenizer.bos_id());
    EXPECT_EQ(d.ids.back(), *tokenizer.eos_id());
  }
  EXPECT_EQ(counted(data.documents[1], "llama2"), "upon</s>");
}

// As transformers reads them, and apply_chat_template's result has its ids.
TEST_F(TextDatasetTest, ControlTokensAreReadInTextsPromptsAndCompletions) {
  const TextEncoder encoder(model());
  const auto ids = [&](const std::string& line) { return encoder.encode(line, "x").front().ids; };
  Conversation conversation;
  conversation.say("user", "Hi");
  conversation.say("assistant", "Yo");
  const std::vector<int64_t> whole = encoder.chat_template()->rows(conversation).front().ids;
  const std::string prompt = "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n", answer = "Yo<|im_end|>\\n";
  EXPECT_EQ(ids("{\"text\": \"" + prompt + answer + "\"}"), whole);
  EXPECT_EQ(ids("{\"prompt\": \"" + prompt + "\", \"completion\": \"" + answer + "\"}"), whole);
  EXPECT_EQ(ids("{\"prompt\": \"" + prompt + "\", \"completion\": \"Yo\"}"),
            std::vector<int64_t>(whole.begin(), whole.end() - 1))
      << "the end is put behind what has none";

  const TextEncoder llama2(model("llama2"));
  const auto llama2_ids = [&](const std::string& text) {
    return llama2.encode("{\"text\": \"" + text + "\"}", "x").front().ids;
  };
  EXPECT_EQ(llama2_ids("<s>[INST] Hi [/INST] Yo </s>"),
            llama2.tokenizer().encode("<s>[INST] Hi [/INST] Yo </s>", {.add_special = false, .parse_special = true}));
  EXPECT_EQ(llama2_ids("  ").back(), *llama2.tokenizer().eos_id()) << "the token before it ends no text";
  EXPECT_EQ(llama2_ids("Hi").front(), *llama2.tokenizer().bos_id());
  EXPECT_EQ(llama2_ids("Hi").back(), *llama2.tokenizer().eos_id());
}

TEST_F(TextDatasetTest, PromptsAndCompletionsMayBeMessages) {
  const TextDataset data = read(
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
      "{\"role\": \"user\", \"content\": \"c\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"d\"}]}");
  ASSERT_EQ(data.documents.size(), 1u);
  EXPECT_EQ(counted(data.documents[0]), "d<|im_end|>\n");
}

TEST_F(TextDatasetTest, LongDocumentsAreAChoice) {
  const std::string line = "{\"prompt\": \"one two three four five six\", \"completion\": \" seven eight nine ten\"}\n";
  const TextDataset whole = read(line);
  const int64_t length = whole.documents[0].size(), limit = length - 3;
  expect_error([&] { read("{\"text\": \"a b\"}\n" + line, limit); },
               {"a.jsonl: line 2", std::to_string(length), std::to_string(limit), "cut or split"});

  const TextDataset cut = read(line, limit, LongDocuments::cut);
  ASSERT_EQ(cut.documents.size(), 1u);
  EXPECT_EQ(cut.documents[0].size(), limit);
  EXPECT_EQ(cut.cut, 1);
  EXPECT_EQ(cut.cut_tokens, 3);
  EXPECT_NE(cut.describe().find("1 cut, which lost 3 tokens"), std::string::npos) << cut.describe();

  const TextDataset split = read(line, limit, LongDocuments::split);
  ASSERT_EQ(split.documents.size(), 2u);
  EXPECT_EQ(split.documents[1].size(), 3);
  EXPECT_EQ(split.split, 1);
  EXPECT_EQ(split.counted, whole.counted - 1) << "the first of a piece does not count";

  const TextDataset none = read(line + "{\"text\": \"a b\"}", 4, LongDocuments::cut);
  EXPECT_EQ(none.left_out, 1) << "only its prompt was left";
}

TEST_F(TextDatasetTest, WhatIsWrongIsNamedWithItsLine) {
  refuse("{\"text\": \"a b\"}\n{\"text\": \"b\"", {"a.jsonl: line 2", "JSON"});
  refuse("{\"text\": \"a b\"}\n[1]", {"line 2", "an object", "array"});
  refuse("{\"txt\": \"a\"}", {"line 1", "\"messages\"", "\"completion\"", "\"txt\""});
  refuse("{}", {"line 1", "of none"});
  refuse("{\"text\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}", {"line 1", "\"text\"", "\"prompt\""});
  refuse("{\"prompt\": \"a\"}", {"line 1", "\"completion\"", "missing"});
  refuse("{\"prompt\": [1], \"completion\": \"a\"}", {"line 1: prompt", "a string", "a list"});
  refuse("{\"text\": 3}", {"line 1: text", "a string", "3"});
  refuse("{\"text\": \"\"}", {"line 1", "empty"});
  refuse("{\"text\": \"\xff\"}", {"line 1", "JSON"});
  refuse("{\"messages\": {}}", {"line 1", "a list"});
  refuse("{\"messages\": []}", {"line 1", "at least one"});
  refuse("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", {"line 1", "\"assistant\"", "none"});
  refuse("{\"messages\": [{\"role\": \"im_end\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}",
         {"line 1", "\"im_end\""});
  refuse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": [1]}]}",
         {"line 1", "no place for \"tool_calls\""});
  refuse("{\"messages\": [{\"role\": \"assistant\", \"content\": 3}]}", {"line 1: message 1: \"content\"", "3"});
  refuse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}]}",
         {"line 1: message 1: \"weight\"", "0 or 1", "0.5"});
  refuse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"train\": 1}]}",
         {"line 1: message 1: \"train\"", "true or false"});
  const std::string answer = "\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]";
  refuse("{" + answer + ", \"system\": \"be kind\"}", {"line 1", "\"system\"", "role system"});
  refuse("{" + answer + ", \"loss_mask\": [1]}", {"line 1", "\"loss_mask\"", "\"train\": false"});
  refuse("{" + answer + ", \"tools\": [{}]}", {"line 1: \"tools\"", "\"function\""});
  refuse("{" + answer + ", \"tools\": 3}", {"line 1: \"tools\"", "a list"});
  refuse("{" + answer + ", \"chat_template_kwargs\": 3}", {"line 1: \"chat_template_kwargs\"", "an object"});
  refuse("{\"text\": \"a\", \"tools\": [{}]}", {"line 1", "\"tools\"", "chat template"});
  refuse("{\"prompt\": \"a\", \"completion\": \"b\", \"system\": \"c\"}", {"line 1", "\"system\""});
  refuse("{\"messages\": [{\"role\": \"assistant\"}]}", {"line 1: message 1", "content", "missing"});
  refuse("", {"a.jsonl", "JSON lines", "no document"});
  refuse(" \n\n", {"a.jsonl", "no document"});
  refuse(std::string("3").append(100'000, '['), {"line 1", "JSON"});
  expect_error([&] { TextDataset::read({"nothing.jsonl"}, TextEncoder(model()), 64, LongDocuments::cut); },
               {"nothing.jsonl"});
}

TEST_F(TextDatasetTest, ModelsWithoutATemplateTakeTheOtherForms) {
  fs::copy(model(), folder_ / "plain", fs::copy_options::recursive);
  fs::remove(folder_ / "plain/chat_template.jinja");
  const TextEncoder encoder(folder_ / "plain");
  EXPECT_GT(encoder.encode("{\"text\": \"a b\"}", "x").front().size(), 1);
  expect_error([&] { encoder.encode("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}", "f: line 1"); },
               {"f: line 1", "chat template"});
}

TEST_F(TextDatasetTest, ReadsLinesThatCrossItsBlocks) {
  const std::string note(1000, 'a');
  std::string lines = "\xef\xbb\xbf";
  for (int i = 0; i < 3000; ++i)
    lines += "{\"text\": \"a b\", \"note\": \"" + note + "\"}" + (i % 2 == 0 ? "\n" : "\r\n\n");
  lines += "{\"text\": \"the last one\"}";  // without an end
  const TextDataset data = read(lines);
  EXPECT_EQ(data.documents.size(), 3001u);
  ASSERT_EQ(data.files.size(), 1u);
  EXPECT_EQ(data.files[0].name, "a.jsonl");
  EXPECT_EQ(data.sha256, data.files[0].sha256);
}

TEST_F(TextDatasetTest, AllFaultsAreToldAtOnce) {
  expect_error([&] { read("{\"text\": \"a\"}\n{\"txt\": 1}\n\n{\"text\": \"\"}\n{"); },
               {"a.jsonl: 3 faults: (1) line 2: ", "(2) line 4: the text is empty", "(3) line 5: not valid JSON"});
}

TEST_F(TextDatasetTest, WhatIsNoJsonLinesIsToldAsWhatItIs) {
  using namespace std::string_literals;
  for (const auto& [bytes, what] :
       std::initializer_list<std::pair<std::string, const char*>>{{"[{\"text\": \"a\"}]", "a JSON array"},
                                                                  {" \n[\n", "a JSON array"},
                                                                  {"\x1f\x8b\x08", "a gzip archive"},
                                                                  {"PK\x03\x04", "a ZIP archive"},
                                                                  {"BZh9", "a bzip2 archive"},
                                                                  {"\xfd"
                                                                   "7zXZ\0"s,
                                                                   "an xz archive"},
                                                                  {"\x28\xb5\x2f\xfd", "a Zstandard archive"},
                                                                  {"PAR1", "a Parquet file"},
                                                                  {"ARROW1", "an Arrow file"},
                                                                  {"\xff\xfe{\0"s, "UTF-16"}})
    expect_error([&, &bytes = bytes] { read(bytes); }, {"a.jsonl: expected JSON lines, found ", what});
}

TEST_F(TextDatasetTest, ALineHasALimit) {
  expect_error([&] { read("{}\n" + std::string(size_t{66} << 20, ' ')); },
               {"a.jsonl: line 2 goes on for more than 64 MiB"});
}

}  // namespace
}  // namespace wick
