// The files of `wick convert`: the same model, and its ids in another engine.
#include "wick/pipelines/convert.h"

#include <gtest/gtest.h>

#include "engine_model.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/language_model.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFamilies[] = {"llama2", "llama3", "llama_linear", "mistral", "mistral_tekken", "qwen2", "qwen3"};

// Logits of 40 tokens: past the positions from which llama3's scaling stretches.
std::vector<float> logits(const fs::path& model, std::optional<DType> dtype = {}) {
  const Llama llama = Llama::load(model, {.dtype = dtype});
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 40; ++i) ids.push_back(i * 379 % 1440);
  return llama.logits(llama(Tensor::of(ids, {1, 40}), TokenPlan::dense(1, 40, llama.config()))).to_vector();
}

TextAnswer complete(const LanguageModel& language, const std::vector<int64_t>& prompt, int64_t tokens) {
  TextRequest request;
  request.prompt = prompt;
  request.max_tokens = tokens;
  request.sampling.temperature = 0;
  request.stop_ids = language.stop_ids();
  return Generator(language.model, 256)(request, language.stream());
}

class Convert : public testing::Test {
 protected:
  fs::path folder_of(const std::string& family) {
    const fs::path path = folder / family;
    if (!fs::exists(path)) test::write_engine_model(path, family);
    return path;
  }
  fs::path convert(const std::string& family, std::optional<DType> dtype = {}) {
    const fs::path to = folder / (family + (dtype ? std::string(name_of(*dtype)) : "") + ".gguf");
    convert_to_gguf(folder_of(family), to, {.dtype = dtype});
    return to;
  }
  const TemporaryDirectory folder;
};

TEST_F(Convert, ComputesTheSameBits) {
  for (const char* family : kFamilies) {
    const fs::path model = folder_of(family);
    const std::vector<float> exact = logits(model);
    EXPECT_EQ(logits(convert(family, DType::f32)), exact) << family;
    EXPECT_EQ(logits(convert(family), DType::f32), exact) << family;  // bf16, as it is stored
    for (const DType dtype : {DType::bf16, DType::f16, DType::q8_0, DType::q4_0})
      EXPECT_EQ(logits(convert(family, dtype)), logits(model, dtype)) << family << " " << name_of(dtype);
  }
}

TEST_F(Convert, SaysOfTheModelWhatItsFolderSays) {
  for (const char* family : kFamilies) {
    const LanguageModel from = LanguageModel::load(folder_of(family)), to = LanguageModel::load(convert(family));
    const LlamaConfig &a = from.model.config(), &b = to.model.config();
    EXPECT_EQ(b.model_type, family == std::string("mistral_tekken") ? "llama" : a.model_type);  // without a window
    EXPECT_EQ(b.positions, a.positions);
    EXPECT_EQ(b.window, a.window);
    EXPECT_EQ(b.tied, a.tied);
    EXPECT_EQ(b.rope_frequencies(), a.rope_frequencies()) << family;
    EXPECT_EQ(to.stop_ids(), from.stop_ids()) << family;
    EXPECT_EQ(to.tokenizer.chat_templates(), from.tokenizer.chat_templates());
    for (const char* text : {"Once upon a time", "Grüße, 12  mal", "<|im_start|>user\n<s>"})
      EXPECT_EQ(to.tokenizer.encode(text, {.parse_special = true}),
                from.tokenizer.encode(text, {.parse_special = true}))
          << family;
  }
}

// F16 and Q8_0 files: the ids of llama.cpp's tokenizer, and its likeliest tokens.
TEST_F(Convert, GreedyIdsAreThoseOfLlamaCpp) {
  const nlohmann::json rows = read_json(test::kEngine / "ids.json");
  EXPECT_GT(rows.size(), std::size(kFamilies) * 2 * 3);
  std::map<std::string, LanguageModel> models;
  for (const nlohmann::json& row : rows) {
    const std::string family = row.at("family"), type = row.at("dtype"), prompt = row.at("prompt");
    if (!models.contains(family + type))
      models.emplace(family + type, LanguageModel::load(convert(family, type == "f16" ? DType::f16 : DType::q8_0)));
    const LanguageModel& language = models.at(family + type);
    const auto ids = language.tokenizer.encode(prompt, {.parse_special = true});
    const std::vector<int64_t> wanted = row.at("ids");
    EXPECT_EQ(ids, row.at("prompt_ids").get<std::vector<int64_t>>()) << family << ": " << prompt;
    EXPECT_EQ(complete(language, ids, int64_t(wanted.size())).ids, wanted) << family << " " << type << ": " << prompt;
  }
}

TEST_F(Convert, StatesWhatOutsideEnginesAskFor) {
  const GgufFile file = GgufFile::open(convert("llama3", DType::q8_0));
  const GgufMetadata& m = file.metadata();
  EXPECT_EQ(m.entries().front().first, "general.architecture");
  EXPECT_EQ(m.text("general.type"), "model");
  EXPECT_EQ(m.text("general.name"), "llama3");
  EXPECT_EQ(m.integer("general.file_type"), 7);
  EXPECT_EQ(m.integer("general.quantization_version"), 2);
  EXPECT_EQ(m.integer("llama.vocab_size"), 1440);
  EXPECT_EQ(m.integer("llama.rope.dimension_count"), 16);
  EXPECT_EQ(m.integer("llama.rope.scaling.original_context_length"), 32);
  EXPECT_FALSE(m.has("llama.rope.scaling.type"));
  EXPECT_EQ(m.texts("tokenizer.ggml.tokens").size(), 1440u);  // as many as the table has rows
  EXPECT_EQ(m.texts("tokenizer.ggml.tokens").back(), "[PAD1439]");
  EXPECT_EQ(m.integers("tokenizer.ggml.token_type").back(), 5);
  EXPECT_EQ(file.tensors().at("rope_freqs.weight").shape, (Shape{8}));
  EXPECT_EQ(file.tensors().at("blk.1.attn_norm.weight").dtype, DType::f32);
  EXPECT_EQ(file.tensors().at("token_embd.weight").dtype, DType::q8_0);
  EXPECT_TRUE(file.tensors().contains("output.weight"));

  const GgufFile tied = GgufFile::open(convert("llama_linear"));
  EXPECT_FALSE(tied.tensors().contains("output.weight"));
  EXPECT_EQ(tied.metadata().text("llama.rope.scaling.type"), "linear");
  EXPECT_EQ(tied.metadata().integer("general.file_type"), 32);
  EXPECT_FALSE(tied.metadata().has("general.quantization_version"));
  EXPECT_EQ(GgufFile::open(convert("mistral")).metadata().integer("llama.attention.sliding_window"), 256);
  EXPECT_EQ(GgufFile::open(convert("llama2")).metadata().numbers("tokenizer.ggml.scores").size(), 1440u);
}

TEST_F(Convert, AGgufFileKeepsWhatItSays) {
  const GgufFile file = GgufFile::open(convert("llama3"));
  GgufMetadata::Entries entries = file.metadata().entries();
  entries.emplace_back("general.license", std::string("mine"));
  entries.emplace_back("split.count", uint16_t{1});
  std::vector<GgufEntry> tensors;
  for (const auto& [name, info] : file.tensors())
    tensors.push_back({name, *info.dtype, info.shape, [&file, here = name] { return file.load(here); }});
  const fs::path from = folder / "from.gguf", to = folder / "to.gguf";
  save_gguf(from, entries, tensors);
  convert_to_gguf(from, to, {.dtype = DType::q4_0});
  EXPECT_EQ(logits(to), logits(folder_of("llama3"), DType::q4_0));
  const GgufMetadata m = GgufFile::open(to).metadata();
  EXPECT_EQ(m.text("general.license"), "mine");
  EXPECT_EQ(m.integer("general.file_type"), 2);
  EXPECT_FALSE(m.has("split.count"));
  EXPECT_EQ(m.texts("tokenizer.ggml.merges"), file.metadata().texts("tokenizer.ggml.merges"));
  // And back, without further loss.
  convert_to_gguf(to, folder / "wide.gguf", {.dtype = DType::f32});
  EXPECT_EQ(logits(folder / "wide.gguf"), logits(to, DType::f32));
}

TEST_F(Convert, WritesTheKTypes) {
  const fs::path model = test::source_dir() / "models/tiny-llm", to = folder / "k.gguf";
  for (const auto& [dtype, number] : {std::pair(DType::q4_k, 14), {DType::q5_k, 16}, {DType::q6_k, 18}}) {
    convert_to_gguf(model, to, {.dtype = dtype});
    EXPECT_EQ(logits(to), logits(model, dtype)) << name_of(dtype);
    EXPECT_EQ(GgufFile::open(to).metadata().integer("general.file_type"), number);
  }
}

// Rows of down projections have 160 elements, all others 256.
TEST_F(Convert, MatricesWhoseRowsAreNotWholeBlocksStay) {
  const fs::path from = folder / "from", to = folder / "kept.gguf", again = folder / "again.gguf";
  fs::copy(test::source_dir() / "models/tiny-llm", from);
  nlohmann::json config = read_json(from / "config.json");
  config["intermediate_size"] = 160;
  write_plain(from / "config.json", config.dump());
  const SafetensorsFile file = SafetensorsFile::open(from / "model.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) {
    const bool down = name.ends_with("down_proj.weight"), narrow = down || name.find(".mlp.") != name.npos;
    tensors[name] = narrow ? slice(file.load(name), down ? 1 : 0, 0, 160) : file.load(name);
  }
  save_safetensors(from / "model.safetensors", tensors);
  const Weights::Quantized made = convert_to_gguf(from, to, {.dtype = DType::q4_k});
  EXPECT_EQ(made.matrices, 25);  // the table among them
  EXPECT_EQ(made.kept, 4);
  const GgufFile gguf = GgufFile::open(to);
  EXPECT_EQ(gguf.tensors().at("blk.0.ffn_down.weight").dtype, DType::f16);
  EXPECT_EQ(gguf.tensors().at("blk.0.ffn_up.weight").dtype, DType::q4_k);
  EXPECT_EQ(gguf.metadata().integer("general.file_type"), 14);
  EXPECT_EQ(convert_to_gguf(to, again, {.dtype = DType::q4_0}).kept, 0);
  EXPECT_EQ(GgufFile::open(again).tensors().at("blk.0.ffn_down.weight").dtype, DType::q4_0);
  EXPECT_EQ(convert_to_gguf(from, again, {.dtype = DType::bf16}).matrices, 0);
}

TEST_F(Convert, NothingIsWrittenWhereItCannotBe) {
  const fs::path to = folder / "out.gguf", models = test::source_dir() / "tests/golden/llama";
  const auto refuse = [&](const fs::path& from, std::optional<DType> dtype,
                          std::initializer_list<std::string_view> parts) {
    expect_error([&] { convert_to_gguf(from, to, {.dtype = dtype}); }, parts);
    EXPECT_FALSE(fs::exists(to));
  };
  refuse(models / "llama2", {}, {"llama2", "tokenizer.json"});
  refuse(models / "qwen2", {}, {"qwen2", "sliding window"});
  refuse(models / "text", DType::q8_0, {"text", "none of 23 weights", "q8_0", "whole blocks of 32"});
  refuse(folder_of("llama2"), DType::q6_k, {"llama2", "none of ", "q6_k", "whole blocks of 256"});
  refuse(folder / "nothing", {}, {"nothing"});

  const fs::path model = folder_of("qwen3");
  const std::string config = read_plain(model / "config.json");
  const auto with = [&](const char* key, auto value) {
    nlohmann::json changed = nlohmann::json::parse(config);
    changed[key] = value;
    write_plain(model / "config.json", changed.dump());
  };
  with("num_hidden_layers", 3);
  refuse(model, {}, {"model.safetensors", "model.layers.2."});
  with("hidden_size", 32);
  refuse(model, {}, {"model.safetensors", "[1440, 64]", "[1440, 32]"});
  with("vocab_size", 1000);
  refuse(model, {}, {"model.safetensors", "[1000, 64]"});

  // More tokens than rows, and a value too large for f16.
  std::map<std::string, Tensor> tensors;
  const SafetensorsFile file = SafetensorsFile::open(test::kEngine / "model.safetensors");
  for (const auto& [name, info] : file.tensors()) tensors[name] = cast(file.load(name), DType::f32);
  for (const char* table : {"model.embed_tokens.weight", "lm_head.weight"})
    tensors[table] = contiguous(slice(tensors[table], 0, 0, 1000));
  save_safetensors(model / "model.safetensors", tensors);
  refuse(model, {}, {"tokenizer.json", "1000", "1406"});
  write_plain(model / "config.json", config);
  tensors = {};
  for (const auto& [name, info] : file.tensors()) tensors[name] = cast(file.load(name), DType::f32);
  tensors["model.layers.1.mlp.up_proj.weight"].data<float>()[7] = 70000;
  save_safetensors(model / "model.safetensors", tensors);
  refuse(model, DType::f16, {"up_proj", "f16", "bf16"});
  EXPECT_NO_THROW(convert_to_gguf(model, to, {.dtype = DType::q8_0}));
}

}  // namespace
}  // namespace wick
