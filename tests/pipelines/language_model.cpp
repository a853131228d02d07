#include "wick/pipelines/language_model.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/nn/gguf_model.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden";

// The model of tests/golden/llama/text and a tokenizer, as a GGUF file would hold them.
void write_gguf(const fs::path& path, const Tokenizer& tokenizer) {
  const LlamaConfig c = LlamaConfig::read(kGolden / "llama/text");
  const auto number = [](int64_t n) { return GgufValue(uint32_t(n)); };
  const TokenizerArrays arrays = tokenizer.arrays();
  GgufMetadata::Entries metadata = {
      {"general.architecture", std::string("llama")},
      {"llama.block_count", number(c.layers)},
      {"llama.context_length", number(c.positions)},
      {"llama.embedding_length", number(c.hidden)},
      {"llama.feed_forward_length", number(c.intermediate)},
      {"llama.attention.head_count", number(c.heads)},
      {"llama.attention.head_count_kv", number(c.kv_heads)},
      {"llama.attention.layer_norm_rms_epsilon", c.eps},
      {"tokenizer.ggml.model", arrays.model},
      {"tokenizer.ggml.pre", arrays.pre},
      {"tokenizer.ggml.tokens", GgufArray(arrays.tokens)},
      {"tokenizer.ggml.token_type", GgufArray(arrays.token_type)},
  };
  if (!arrays.scores.empty()) metadata.emplace_back("tokenizer.ggml.scores", GgufArray(arrays.scores));
  if (!arrays.merges.empty()) metadata.emplace_back("tokenizer.ggml.merges", GgufArray(arrays.merges));
  if (arrays.bos_token_id) metadata.emplace_back("tokenizer.ggml.bos_token_id", number(*arrays.bos_token_id));
  if (arrays.eos_token_id) metadata.emplace_back("tokenizer.ggml.eos_token_id", number(*arrays.eos_token_id));
  if (arrays.add_bos_token) metadata.emplace_back("tokenizer.ggml.add_bos_token", *arrays.add_bos_token);
  const SafetensorsFile weights = SafetensorsFile::open(kGolden / "llama/text/model.safetensors");
  const GgufMetadata facts("facts", metadata);
  std::vector<GgufEntry> tensors;
  for (const auto& [name, info] : weights.tensors())
    tensors.push_back({gguf_name(name), DType::f32, info.shape, [&weights, &facts, name = name] {
                         const int64_t heads = heads_of_pairs(facts, gguf_name(name));
                         return heads > 0 ? halves_to_pairs(weights.load(name), heads) : weights.load(name);
                       }});
  save_gguf(path, metadata, tensors);
}

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
    write_gguf(folder / "model.gguf", Tokenizer::load(folder.path()));
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

TEST(LanguageModel, WithoutATokenizerIsOneLine) {
  cpu_backend();
  expect_error([] { LanguageModel::load(kGolden / "llama/text"); }, {"llama/text", "tokenizer.json"});
}

}  // namespace
}  // namespace wick
