// Merged models compute what the model and its LoRAs do.
#include "wick/train/merge.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/models/llama.h"
#include "wick/nn/gguf_model.h"
#include "wick/ops/shape.h"
#include "wick/train/model_folder.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = test::source_dir() / "tests/golden/llama";

std::vector<float> logits(const fs::path& model, const std::vector<LoraFile>& loras = {},
                          std::optional<DType> dtype = {}) {
  Adapter adapter(llama_module_names());
  for (const LoraFile& file : loras) adapter.add_file(file.path, file.strength);
  const Llama llama = Llama::load(model, {.dtype = dtype, .adapter = loras.empty() ? nullptr : &adapter});
  const Tensor ids = Tensor::of(std::vector<int64_t>{5, 17, 3, 96, 44, 8, 8, 21, 60}, {1, 9});
  return llama.logits(llama(ids, TokenPlan::dense(1, 9, llama.config()))).to_vector();
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, double(std::abs(a[i] - b[i])));
    size = std::max(size, double(std::abs(b[i])));
  }
  return largest / size;
}

TEST(Merge, AFolderSaysWhatModelAndLorasSay) {
  const TemporaryDirectory folder;
  for (const char* family : {"llama3", "qwen3", "llama_linear"}) {  // one file, shards, a tied head
    const fs::path model = kModels / family, to = folder / family;
    const std::vector<LoraFile> loras = {{model / "adapter", 0.75f}, {model / "adapter", -0.25f}};
    merge_loras(model, loras, to);
    const std::vector<float> wanted = logits(model, loras);
    EXPECT_LT(distance(logits(to), wanted), 1e-5) << family;
    EXPECT_GT(distance(logits(model), wanted), 1e-2) << family;
  }
}

// llama2 of the goldens as a GGUF file.
void write_gguf(const fs::path& path, DType dtype) {
  const fs::path model = kModels / "llama2";
  const LlamaConfig c = LlamaConfig::read(model);
  const auto number = [](int64_t n) { return GgufValue(uint32_t(n)); };
  std::vector<std::string> tokens;
  for (int64_t i = 0; i < c.vocab; ++i) tokens.push_back(std::to_string(i));
  const GgufMetadata::Entries metadata = {
      {"general.architecture", std::string("llama")},        {"llama.block_count", number(c.layers)},
      {"llama.context_length", number(c.positions)},         {"llama.embedding_length", number(c.hidden)},
      {"llama.feed_forward_length", number(c.intermediate)}, {"llama.attention.head_count", number(c.heads)},
      {"llama.attention.head_count_kv", number(c.kv_heads)}, {"llama.attention.layer_norm_rms_epsilon", c.eps},
      {"tokenizer.ggml.tokens", GgufArray(tokens)},
  };
  const GgufMetadata facts("facts", metadata);
  std::vector<GgufEntry> entries;
  for (const fs::path& file : weight_files(model)) {
    const SafetensorsFile weights = SafetensorsFile::open(file);
    for (const auto& [name, info] : weights.tensors()) {
      const int64_t heads = heads_of_pairs(facts, gguf_name(name));
      const DType kept = info.shape.rank() == 2 && info.shape[1] % 32 == 0 ? dtype : DType::f32;
      entries.push_back({gguf_name(name), kept, info.shape, [=, name = name] {
                           const Tensor w = weights.load(name);
                           return cast(heads > 0 ? halves_to_pairs(w, heads) : w, kept);
                         }});
    }
  }
  save_gguf(path, metadata, entries);
}

TEST(Merge, AGgufFileSaysWhatModelAndLoraSay) {
  const TemporaryDirectory folder;
  const std::vector<LoraFile> loras = {{kModels / "llama2/adapter", 1}};
  write_gguf(folder / "f32.gguf", DType::f32);
  merge_loras(folder / "f32.gguf", loras, folder / "merged.gguf");
  EXPECT_LT(distance(logits(folder / "merged.gguf"), logits(kModels / "llama2", loras)), 1e-5);

  // In f32 only the model was rounded, and that in both.
  write_gguf(folder / "q8_0.gguf", DType::q8_0);
  merge_loras(folder / "q8_0.gguf", loras, folder / "wide.gguf", DType::f32);
  EXPECT_LT(distance(logits(folder / "wide.gguf", {}, DType::f32), logits(folder / "q8_0.gguf", loras, DType::f32)),
            1e-5);

  // Blocks of the merged: half a step, of which there are 127 to the largest of a block, whose scale is an f16.
  merge_loras(folder / "q8_0.gguf", loras, folder / "blocks.gguf");
  const GgufFile wide = GgufFile::open(folder / "wide.gguf"), blocks = GgufFile::open(folder / "blocks.gguf");
  EXPECT_EQ(blocks.metadata().entries().size(), wide.metadata().entries().size());
  for (const char* name : {"blk.0.attn_q.weight", "blk.2.ffn_up.weight"}) {
    EXPECT_EQ(wide.tensors().at(name).dtype, DType::f32);
    EXPECT_EQ(blocks.tensors().at(name).dtype, DType::q8_0);
    const std::vector<float> x = wide.load(name).to_vector(), y = cast(blocks.load(name), DType::f32).to_vector();
    for (size_t begin = 0; begin < x.size(); begin += 32) {
      float largest = 0;
      for (size_t i = begin; i < begin + 32; ++i) largest = std::max(largest, std::abs(x[i]));
      for (size_t i = begin; i < begin + 32; ++i) ASSERT_NEAR(x[i], y[i], largest * (1 / 254.f + 0x1p-11f)) << name;
    }
  }
}

TEST(Merge, NothingIsWrittenWhereItCannotBe) {
  const TemporaryDirectory folder;
  const fs::path to = folder / "out", model = kModels / "llama2";
  expect_error([&] { merge_loras(model, {{kModels / "llama3/adapter"}}, to); }, {"adapter_model", "shape"});
  expect_error([&] { merge_loras(model, {{model / "adapter"}}, model); }, {"llama2", "--output"});
  expect_error([&] { merge_loras(model, {{model / "adapter"}}, to, DType::q8_0); }, {"--dtype", "q8_0"});
  EXPECT_FALSE(fs::exists(to));
}

}  // namespace
}  // namespace wick
