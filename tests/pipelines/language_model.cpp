#include "wick/pipelines/language_model.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"
#include "wick/pipelines/convert.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden";

TextAnswer complete(const LanguageModel& language, const std::string& prompt) {
  TextRequest request;
  request.prompt = language.tokenizer.encode(prompt);
  request.max_tokens = 20;
  request.sampling.temperature = 0;
  request.stop_ids = language.stop_ids();
  return Generator(language.model, 100)(request, language.stream());
}

TEST(LanguageModel, AGgufFileSaysWhatAFolderSays) {
  cpu_backend();
  for (const char* family : {"llama2", "llama3"}) {
    const TemporaryDirectory folder;
    for (const fs::path& from : {kGolden / "llama/text", kGolden / "tokenizers" / family})
      fs::copy(from, folder.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    convert_to_gguf(folder.path(), folder / "model.gguf");
    const LanguageModel from_folder = LanguageModel::load(folder.path());
    const LanguageModel from_gguf = LanguageModel::load(folder / "model.gguf");
    for (const std::string prompt : {"Once upon a time", "  Grüße, 12 mal"}) {
      const TextAnswer want = complete(from_folder, prompt), got = complete(from_gguf, prompt);
      EXPECT_EQ(got.ids, want.ids);
      EXPECT_EQ(got.text, want.text);
      EXPECT_EQ(want.ids.size(), 20u);
    }
  }
}

// Marks of thoughts may be control tokens, which are else no part of a text.
TEST(LanguageModel, ControlTokensAreSpeltWhereTheyAreWanted) {
  cpu_backend();
  const TemporaryDirectory folder;
  for (const fs::path& from : {kGolden / "llama/text", kGolden / "tokenizers/llama3"})
    fs::copy(from, folder.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const LanguageModel language = LanguageModel::load(folder.path());
  std::vector<int64_t> ids = language.tokenizer.encode("<|start_header_id|>Hi the<|end_header_id|>",
                                                       {.add_special = false, .parse_special = true});
  const auto text_of = [&](std::span<const std::string_view> spelt) {
    const TextStream stream = language.stream(/*at_start=*/true, spelt);
    std::string text;
    for (const int64_t id : ids) text += stream.push(id);
    return text + stream.finish();
  };
  const std::vector<std::string_view> wanted{"<|start_header_id|>", "the", "<|no_such_token|>"};
  EXPECT_EQ(text_of({}), "Hi the");
  EXPECT_EQ(text_of(wanted), "<|start_header_id|>Hi the");
  const int64_t half = *language.tokenizer.id_of("\u00c3");  // GPT-2's letter for the byte C3, which begins "ß"
  ids = {half, *language.tokenizer.id_of("<|start_header_id|>"), half};
  EXPECT_EQ(text_of(wanted), "\ufffd<|start_header_id|>\ufffd");
}

TEST(LanguageModel, WithoutATokenizerIsOneLine) {
  cpu_backend();
  expect_error([] { LanguageModel::load(kGolden / "llama/text"); }, {"llama/text", "tokenizer.json"});
}

}  // namespace
}  // namespace wick
