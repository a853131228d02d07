// Merged models give the results of the model with its LoRAs.
#include "wick/pipelines/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine_model.h"
#include "wick/core/rng.h"
#include "wick/io/gguf.h"
#include "wick/io/json.h"
#include "wick/nn/peft.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/convert.h"
#include "wick/pipelines/language_model.h"

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
    EXPECT_EQ(read_json(to / "config.json"), read_json(model / "config.json"));
  }
}

// transformers loads in the dtype of the config.
TEST(Merge, AFolderTellsOfItsDtype) {
  const TemporaryDirectory folder;
  const fs::path model = kModels / "qwen3", to = folder / "merged";
  merge_loras(model, {{model / "adapter", 1}}, to, DType::bf16);
  EXPECT_EQ(read_json(to / "config.json").at("dtype"), "bfloat16");
  EXPECT_LT(distance(logits(to), logits(model, {{model / "adapter", 1}})), 0x1p-5);
}

// A LoRA of every linear of the layers, with factors of which none is zero.
void write_lora(const fs::path& model, const fs::path& to,
                const std::vector<std::string>& targets = llama_default_targets()) {
  Adapter adapter({.rank = 4, .targets = targets}, llama_module_names());
  const Llama llama = Llama::load(model, {.adapter = &adapter});
  std::map<std::string, Tensor> tensors = adapter.tensors();
  Rng rng(5);
  for (auto& [name, tensor] : tensors)
    if (name.ends_with(".lora_up.weight")) tensor = 0.2f * random_normal(tensor.shape(), rng);
  write_peft(to, tensors, {.layers = llama.config().layers});
}

TEST(Merge, AGgufFileSaysWhatModelAndLoraSay) {
  const TemporaryDirectory folder;
  const fs::path model = folder / "llama3", f32 = folder / "f32.gguf", q8 = folder / "q8_0.gguf";
  test::write_engine_model(model, "llama3");
  write_lora(model, folder / "lora");
  const std::vector<LoraFile> loras = {{folder / "lora", 1}};
  convert_to_gguf(model, f32, {.dtype = DType::f32});
  convert_to_gguf(model, q8, {.dtype = DType::q8_0});
  // Into a folder, and into a file.
  merge_loras(model, loras, folder / "merged.gguf", DType::f32);
  EXPECT_LT(distance(logits(folder / "merged.gguf"), logits(model, loras)), 1e-5);
  EXPECT_GT(distance(logits(model), logits(model, loras)), 1e-2);
  merge_loras(f32, loras, folder / "again.gguf");
  EXPECT_EQ(logits(folder / "again.gguf"), logits(folder / "merged.gguf"));
  EXPECT_EQ(load_tokenizer(folder / "again.gguf").encode("A house."), load_tokenizer(model).encode("A house."));

  // In f32 only the model was rounded, and that in both.
  merge_loras(q8, loras, folder / "wide.gguf", DType::f32);
  EXPECT_LT(distance(logits(folder / "wide.gguf", {}, DType::f32), logits(q8, loras, DType::f32)), 1e-5);

  // Merged weights in blocks: half a step, of which there are 127 to a block's largest value, whose scale is an f16.
  merge_loras(q8, loras, folder / "blocks.gguf");
  const GgufFile wide = GgufFile::open(folder / "wide.gguf"), blocks = GgufFile::open(folder / "blocks.gguf");
  for (const char* name : {"blk.0.attn_q.weight", "blk.1.ffn_up.weight"}) {
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

TEST(Merge, AFolderOfQuantisedWeightsBecomesOneOfFloats) {
  const TemporaryDirectory folder;
  const fs::path model = test::source_dir() / "tests/golden/bitsandbytes/llama", to = folder / "merged";
  write_lora(model, folder / "lora");
  const std::vector<LoraFile> loras = {{folder / "lora", 1}};
  expect_error([&] { merge_loras(model, loras, to); }, {"config.json", "quantised", "--dtype", "GGUF"});
  EXPECT_FALSE(fs::exists(to));
  merge_loras(model, loras, to, DType::f32);
  const std::vector<float> expected = logits(model, loras, DType::f32);
  EXPECT_LT(distance(logits(to, {}, DType::f32), expected), 1e-5);
  EXPECT_GT(distance(logits(model, {}, DType::f32), expected), 1e-2);
  const nlohmann::json config = read_json(to / "config.json");
  EXPECT_FALSE(config.contains("quantization_config"));
  const SafetensorsFile file = SafetensorsFile::open(to / "model.safetensors");
  EXPECT_EQ(file.tensors().at("model.layers.0.mlp.up_proj.weight").dtype_name, "F32");
}

// The model's weights in two shards.
void write_shards(const fs::path& model, const fs::path& to) {
  fs::create_directories(to);
  fs::copy(model / "config.json", to / "config.json");
  const SafetensorsFile file = SafetensorsFile::open(model / "model.safetensors");
  nlohmann::json map;
  uint64_t bytes = 0;
  std::map<std::string, std::map<std::string, Tensor>> shards;
  for (const auto& [name, info] : file.tensors()) {
    const std::string shard = name < "model.layers.1" ? "model-a.safetensors" : "model-b.safetensors";
    shards[shard][name] = file.load(name);
    map[name] = shard;
    bytes += *info.bytes;
  }
  for (const auto& [shard, tensors] : shards) save_safetensors(to / shard, tensors);
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
  write_plain(to / "model.safetensors.index.json", index.dump());
}

// The shared table becomes two tables. Each gets its own change.
TEST(Merge, ATiedHeadGetsWeightsOfItsOwn) {
  const TemporaryDirectory folder;
  const fs::path adapters = test::source_dir() / "tests/golden/adapters", shards = folder / "shards";
  const std::string table = "model.embed_tokens.weight", head = "lm_head.weight";
  const auto numbers = [](const fs::path& file, const std::string& name) {
    return SafetensorsFile::open(file).load(name).to_vector();
  };
  for (const auto& [family, lora] : {std::pair{"llama_linear", "tied_head"}, {"qwen2", "peft_embedding_tied"}}) {
    SCOPED_TRACE(lora);
    const fs::path model = kModels / family, to = folder / family;
    const std::vector<LoraFile> loras = {{adapters / lora, 0.75f}};
    merge_loras(model, loras, to);
    EXPECT_LT(distance(logits(to), logits(model, loras)), 1e-5);
    EXPECT_GT(distance(logits(model), logits(model, loras)), 1e-3);
    EXPECT_FALSE(read_json(to / "config.json").at("tie_word_embeddings").get<bool>());
    const std::vector<float> before = numbers(model / "model.safetensors", table);
    const bool of_head = std::string(lora) == "tied_head";
    EXPECT_EQ(numbers(to / "model.safetensors", table) == before, of_head);
    EXPECT_EQ(numbers(to / "model.safetensors", head) == before, !of_head);
  }
  const std::vector<LoraFile> loras = {{adapters / "tied_head", 0.75f}};
  write_shards(kModels / "llama_linear", shards);
  merge_loras(shards, loras, folder / "merged");
  EXPECT_LT(distance(logits(folder / "merged"), logits(shards, loras)), 1e-5);
  const nlohmann::json index = read_json(folder / "merged/model.safetensors.index.json"),
                       old = read_json(shards / "model.safetensors.index.json");
  EXPECT_EQ(index["weight_map"].at(head), index["weight_map"].at(table));
  EXPECT_EQ(index["metadata"]["total_size"].get<uint64_t>() - old["metadata"]["total_size"].get<uint64_t>(),
            *SafetensorsFile::open(shards / "model-a.safetensors").tensors().at(table).bytes);
}

TEST(Merge, ATiedHeadGetsWeightsOfItsOwnInAGgufFile) {
  const TemporaryDirectory folder;
  const fs::path model = folder / "llama3";
  test::write_engine_model(model, "llama3");
  std::map<std::string, Tensor> tensors;
  const SafetensorsFile file = SafetensorsFile::open(model / "model.safetensors");
  for (const auto& [name, info] : file.tensors())
    if (name != "lm_head.weight") tensors[name] = file.load(name);
  save_safetensors(model / "model.safetensors", tensors);
  nlohmann::json config = read_json(model / "config.json");
  config["tie_word_embeddings"] = true;
  write_plain(model / "config.json", config.dump());
  write_lora(model, folder / "lora", {"llama.lm_head", "*.layers.*_proj"});
  const std::vector<LoraFile> loras = {{folder / "lora", 1}};
  merge_loras(model, loras, folder / "merged.gguf", DType::f32);
  EXPECT_TRUE(GgufFile::open(folder / "merged.gguf").has("output.weight"));
  EXPECT_LT(distance(logits(folder / "merged.gguf"), logits(model, loras)), 1e-5);
  convert_to_gguf(model, folder / "plain.gguf", {.dtype = DType::f32});
  EXPECT_FALSE(GgufFile::open(folder / "plain.gguf").has("output.weight"));
  merge_loras(folder / "plain.gguf", loras, folder / "again.gguf");
  EXPECT_EQ(logits(folder / "again.gguf"), logits(folder / "merged.gguf"));
}

TEST(Merge, NothingIsWrittenWhereItCannotBe) {
  const TemporaryDirectory folder;
  const fs::path to = folder / "out", model = kModels / "llama2";
  expect_error([&] { merge_loras(model, {{kModels / "llama3/adapter"}}, to); }, {"adapter_model", "shape"});
  expect_error([&] { merge_loras(model, {{model / "adapter"}}, model); }, {"llama2", "--output"});
  expect_error([&] { merge_loras(model, {{model / "adapter"}}, to, DType::q8_0); }, {"--dtype", "q8_0"});
  EXPECT_FALSE(fs::exists(to));

  const fs::path sharded = folder / "sharded";
  fs::copy(kModels / "qwen3", sharded, fs::copy_options::recursive);
  fs::create_directory(sharded / "x.txt");  // cannot be copied, once the weights are written
  expect_error([&] { merge_loras(sharded, {{sharded / "adapter"}}, to); }, {"x.txt"});
  EXPECT_FALSE(fs::exists(to)) << "half a model";
  fs::remove(sharded / "model-00003-of-00003.safetensors");
  expect_error([&] { merge_loras(sharded, {{sharded / "adapter"}}, to); }, {"model-00003", "index.json names it"});
}

}  // namespace
}  // namespace wick
