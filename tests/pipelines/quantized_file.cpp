// Models in other programs' quantised files: their bytes against bitsandbytes, comfy-kitchen and compressed-tensors
// (tools/golden/bitsandbytes_files.py), and what Wick reads from them.
#include "wick/pipelines/quantized_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "io/files.h"
#include "source_dir.h"
#include "wick/backend/backend.h"
#include "wick/core/rng.h"
#include "wick/core/row_formats.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/io/sha256.h"
#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/models/llama.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/forward.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kFlux = test::source_dir() / "tests/golden/bitsandbytes/flux";
const fs::path kPlain = kFlux / "plain/transformer";
const fs::path kLanguageModel = test::source_dir() / "models/tiny-llm";
constexpr DType kFormats[] = {DType::fp8, DType::int8, DType::nf4, DType::nf4_double};

// A pipeline that has a transformer alone.
class QuantizedFiles : public testing::Test {
 protected:
  QuantizedFiles() { fs::copy(kFlux / "plain", folder_ / "model", fs::copy_options::recursive); }

  static std::string bytes_of(const SafetensorsFile& file, const std::string& name) {
    std::string bytes(size_t(*file.tensors().at(name).bytes), '\0');
    file.bytes(name)(bytes.data(), 0, bytes.size());
    return bytes;
  }
  static void expect_hashed(const SafetensorsFile& file, const std::string& name, const nlohmann::json& want) {
    const TensorInfo& info = file.tensors().at(name);
    EXPECT_EQ(std::vector<int64_t>(info.shape.begin(), info.shape.end()), want.at(0));
    Sha256 hash;
    const std::string bytes = bytes_of(file, name);
    hash.update(bytes.data(), bytes.size());
    EXPECT_EQ(hash.hex(), want.at(1)) << (bytes.size() < 300 ? bytes : "");
  }
  fs::path written(DType dtype) const {
    const fs::path to = folder_ / name_of(dtype);
    write_quantized(folder_ / "model", to, {.dtype = dtype});
    return dtype == DType::fp8 ? to : to / "diffusion_pytorch_model.safetensors";
  }
  // The same transformer under Black Forest Labs' names, as ComfyUI keeps it, with a tensor of another network.
  fs::path single_file() const {
    const TensorSource source = flux_source(Checkpoint(kPlain).source());
    std::set<std::string> asked;
    FluxTransformer(Scope(Weights(watched(source, asked), {}), "transformer"), FluxConfig::read(Checkpoint(kPlain)));
    std::map<std::string, Tensor> tensors{{"vae.x", Tensor::of(std::vector<float>{1, 2}, {2})}};
    for (const std::string& name : asked)
      if (const auto found = source.find(name, {}))
        tensors["model.diffusion_model." + name] = cast(found->load(host_memory()), DType::f16);
    const fs::path file = folder_ / "flux.safetensors";
    save_safetensors(file, tensors, {{"kept", "yes"}});
    return file;
  }

  TemporaryDirectory folder_;
};

TEST_F(QuantizedFiles, BytesAreThoseOfTheOthersQuantisers) {
  const nlohmann::json golden = read_json(kFlux / "plain/quantised.json");
  const SafetensorsFile plain = SafetensorsFile::open(kPlain / "diffusion_pytorch_model.safetensors");
  for (const DType dtype : kFormats) {
    const nlohmann::json& want = golden.at(std::string(name_of(dtype)));
    const SafetensorsFile file = SafetensorsFile::open(written(dtype));
    EXPECT_EQ(file.metadata(), plain.metadata());
    size_t found = 0;
    for (const auto& [name, info] : file.tensors()) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), name));
      if (want.contains(name)) {
        expect_hashed(file, name, want.at(name));
        ++found;
      } else {
        EXPECT_EQ(info.dtype_name, "BF16");
        EXPECT_EQ(bytes_of(file, name), bytes_of(plain, name));
      }
    }
    EXPECT_EQ(found, want.size()) << name_of(dtype);
  }
}

TEST_F(QuantizedFiles, LanguageModelsAreThoseOfTheOthersQuantisers) {
  const nlohmann::json golden = read_json(kFlux / "../tiny-llm.json");
  const SafetensorsFile plain = SafetensorsFile::open(kLanguageModel / "model.safetensors");
  for (const DType dtype : kFormats) {
    const fs::path to = folder_ / name_of(dtype);
    EXPECT_EQ(write_quantized(kLanguageModel, to, {.dtype = dtype}).matrices, 28);
    const SafetensorsFile file = SafetensorsFile::open(to / "model.safetensors");
    EXPECT_EQ(file.metadata(), plain.metadata());
    for (const auto& [name, hash] : golden.at(std::string(name_of(dtype))).items()) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), name));
      expect_hashed(file, name, hash);
    }
    for (const auto& [name, info] : plain.tensors())
      if (!name.ends_with("_proj.weight")) {
        EXPECT_EQ(bytes_of(file, name), bytes_of(plain, name)) << name;
      }
    for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json"})
      EXPECT_EQ(read_plain(to / name), read_plain(kLanguageModel / name));
  }
}

// Wick reads its own files with their codes: the bits are those of --quantize.
TEST_F(QuantizedFiles, LanguageModelsComputeAsIfTheyWereQuantisedAsTheyAreRead) {
  const auto logits = [](const fs::path& model, DType dtype) {
    const Llama llama = Llama::load(model, {.dtype = dtype});
    const Tensor ids = Tensor::of(std::vector<int64_t>{5, 700, 2000, 31, 8, 8}, {1, 6});
    return llama.logits(llama(ids, TokenPlan::dense(1, 6, llama.config()))).to_vector();
  };
  for (const DType dtype : {DType::fp8, DType::nf4}) {
    const fs::path to = folder_ / name_of(dtype);
    write_quantized(kLanguageModel, to, {.dtype = dtype});
    EXPECT_EQ(logits(to, dtype), logits(kLanguageModel, dtype)) << name_of(dtype);
  }
}

TEST_F(QuantizedFiles, LanguageModelsTellTransformersHowToReadThem) {
  const auto config_of = [&](DType dtype) {
    write_quantized(kLanguageModel, folder_ / name_of(dtype), {.dtype = dtype});
    nlohmann::json config = read_json(folder_ / name_of(dtype) / "config.json");
    const nlohmann::json q = config.at("quantization_config");
    config.erase("quantization_config");
    EXPECT_EQ(config, read_json(kLanguageModel / "config.json"));
    return q;
  };
  const nlohmann::json fp8 = config_of(DType::fp8), nf4 = config_of(DType::nf4), int8 = config_of(DType::int8);
  EXPECT_EQ(fp8.at("quant_method"), "compressed-tensors");
  EXPECT_EQ(fp8.at("format"), "float-quantized");
  EXPECT_EQ(fp8.at("ignore"), nlohmann::json({"lm_head"}));
  EXPECT_EQ(fp8.at("config_groups").at("group_0").at("weights").at("strategy"), "channel");
  EXPECT_EQ(nf4.at("bnb_4bit_quant_type"), "nf4");
  EXPECT_EQ(nf4.at("bnb_4bit_compute_dtype"), "float16");  // the model's
  EXPECT_EQ(nf4.at("llm_int8_skip_modules"), nlohmann::json({"lm_head"}));
  EXPECT_TRUE(int8.at("load_in_8bit") && !int8.at("load_in_4bit"));
}

// A matrix that threads share is the whole one's.
TEST_F(QuantizedFiles, LargeMatricesAreQuantisedInPieces) {
  constexpr int64_t kWide = 1088;  // beside 256: more than a piece, and not whole ones
  const fs::path from = folder_ / "from", to = folder_ / "to";
  fs::create_directories(from);
  nlohmann::json config = read_json(kLanguageModel / "config.json");
  config["intermediate_size"] = kWide;
  write_plain(from / "config.json", config.dump());
  const SafetensorsFile file = SafetensorsFile::open(kLanguageModel / "model.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) {
    const Tensor own = file.load(name);
    if (name.find(".mlp.") == name.npos) {
      tensors[name] = own;
      continue;
    }
    const bool down = name.ends_with("down_proj.weight");
    const Tensor large = Tensor::empty(down ? Shape{256, kWide} : Shape{kWide, 256}, DType::f32);
    cpu_backend().fill_normal(large.view(), 7, uint32_t(Stream::test), 0);
    tensors[name] = cast(large, DType::bf16);
  }
  save_safetensors(from / "model.safetensors", tensors);
  for (const DType dtype : {DType::fp8, DType::int8, DType::nf4, DType::nf4_double}) {
    write_quantized(from, to, {.dtype = dtype});
    const SafetensorsFile made = SafetensorsFile::open(to / "model.safetensors");
    for (const std::string layer : {"model.layers.0.mlp.up_proj", "model.layers.2.mlp.down_proj"}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), layer));
      Tensor x = cast(tensors.at(layer + ".weight"), DType::f32);
      if (dtype == DType::int8) x = cast(cast(x, DType::f16), DType::f32);
      const bool has_rows = dtype == DType::fp8 || dtype == DType::int8;
      const int64_t rows = has_rows ? x.dim(0) : 1, cols = x.numel() / rows;
      const RowLayout at = row_layout(dtype, cols);
      std::string all(size_t(rows * at.bytes), '\0'), codes, scales;
      quantize_rows(all.data(), dtype, x.data<float>(), rows, cols);
      for (int64_t row = 0; row < rows; ++row) {
        codes += all.substr(size_t(row * at.bytes), size_t(cols * row_format(dtype).bits / 8));
        scales += all.substr(size_t(row * at.bytes + at.scales), size_t(at.count * (row_format(dtype).nested ? 1 : 4)));
      }
      EXPECT_EQ(bytes_of(made, layer + ".weight"), codes);
      EXPECT_EQ(bytes_of(made, layer + (dtype == DType::fp8    ? ".weight_scale"
                                        : dtype == DType::int8 ? ".SCB"
                                                               : ".weight.absmax")),
                scales);
      if (dtype == DType::nf4_double) {
        const std::string nested = bytes_of(made, layer + ".weight.nested_absmax");
        EXPECT_EQ(nested, all.substr(size_t(at.nested) + sizeof(NestedScales), nested.size()));
      }
    }
    fs::remove_all(to);
  }
}

// The shards hold the tensors of the one file, each matrix with its scales, and no more bytes than they may.
TEST_F(QuantizedFiles, LargeLanguageModelsAreWrittenInShards) {
  constexpr uint64_t kMost = 500'000;  // less than the embeddings', which are a shard of their own
  const fs::path whole = folder_ / "whole", to = folder_ / "to";
  write_quantized(kLanguageModel, whole, {.dtype = DType::nf4});
  write_quantized(kLanguageModel, to, {.dtype = DType::nf4, .shard_bytes = kMost});
  EXPECT_FALSE(fs::exists(to / "model.safetensors"));
  const SafetensorsFile all = SafetensorsFile::open(whole / "model.safetensors");
  const std::map<std::string, std::string> shards = read_safetensors_index(to / "model.safetensors.index.json");
  ASSERT_EQ(shards.size(), all.tensors().size());
  std::set<std::string> names;
  uint64_t total = 0;
  for (const auto& [name, shard] : shards) {
    names.insert(shard);
    const SafetensorsFile file = SafetensorsFile::open(to / shard);
    EXPECT_EQ(bytes_of(file, name), bytes_of(all, name)) << name;
    EXPECT_EQ(file.metadata(), all.metadata());
    total += *all.tensors().at(name).bytes;
    if (name.ends_with(".absmax")) {
      EXPECT_EQ(shards.at(name.substr(0, name.rfind('.'))), shard) << name;
    }
  }
  ASSERT_EQ(names.size(), 4);
  for (int i = 1; i <= 4; ++i) {
    const std::string name = fmt::format("model-{:05}-of-00004.safetensors", i);
    ASSERT_TRUE(names.contains(name));
    uint64_t bytes = 0;
    const SafetensorsFile shard = SafetensorsFile::open(to / name);
    for (const auto& [tensor, info] : shard.tensors()) bytes += *info.bytes;
    EXPECT_TRUE(bytes <= kMost || shard.tensors().size() == 1) << name;
  }
  EXPECT_EQ(read_json(to / "model.safetensors.index.json").at("metadata").at("total_size"), total);
  const auto logits = [](const fs::path& model) {
    const Llama llama = Llama::load(model, {.dtype = DType::nf4});
    const Tensor ids = Tensor::of(std::vector<int64_t>{5, 700, 2000}, {1, 3});
    return llama.logits(llama(ids, TokenPlan::dense(1, 3, llama.config()))).to_vector();
  };
  EXPECT_EQ(logits(to), logits(whole));
}

// Layers whose rows are no whole blocks stay, and are named.
TEST_F(QuantizedFiles, LanguageModelsKeepWhatCannotBeQuantised) {
  const fs::path from = folder_ / "from", to = folder_ / "to";
  fs::create_directories(from);
  nlohmann::json config = read_json(kLanguageModel / "config.json");
  config["intermediate_size"] = 72;
  write_plain(from / "config.json", config.dump());
  const SafetensorsFile file = SafetensorsFile::open(kLanguageModel / "model.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) {
    const bool down = name.ends_with("down_proj.weight"), wide = down || name.find(".mlp.") != name.npos;
    tensors[name] = wide ? slice(file.load(name), down ? 1 : 0, 0, 72) : file.load(name);
  }
  save_safetensors(from / "model.safetensors", tensors);
  const Weights::Quantized made = write_quantized(from, to, {.dtype = DType::nf4});
  EXPECT_EQ(made.matrices, 24);
  EXPECT_EQ(made.kept, 4);
  const nlohmann::json skipped = read_json(to / "config.json").at("quantization_config").at("llm_int8_skip_modules");
  EXPECT_EQ(skipped.size(), 5);
  EXPECT_EQ(skipped.at(4), "model.layers.3.mlp.down_proj");
}

TEST_F(QuantizedFiles, LanguageModelsThatCannotBeQuantisedAreRefused) {
  const fs::path from = folder_ / "from", to = folder_ / "to";
  const auto refused = [&](const fs::path& model, std::initializer_list<std::string_view> parts) {
    expect_error([&] { write_quantized(model, to, {.dtype = DType::int8}); }, parts);
    EXPECT_FALSE(fs::exists(to));
  };
  refused(kFlux / "../llama", {"model.safetensors", "quantised already"});
  refused(test::source_dir() / "tests/golden/gguf/model.gguf", {"model.gguf", "GGUF", "transformers folder"});
  fs::copy(kLanguageModel, from);
  const SafetensorsFile file = SafetensorsFile::open(kLanguageModel / "model.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
  const std::string last = "model.layers.3.self_attn.v_proj.weight";
  tensors[last] = cast(tensors[last], DType::f32);
  tensors[last].data<float>()[9] = 1e5f;
  save_safetensors(from / "model.safetensors", tensors);
  refused(from, {"model.safetensors", last, "too large for f16"});
  tensors.erase(last);
  save_safetensors(from / "model.safetensors", tensors);
  refused(from, {"model.safetensors", "has no tensor", last});
}

TEST_F(QuantizedFiles, AFolderTellsOfBitsandbytes) {
  const nlohmann::json own = read_json(kPlain / "config.json");
  for (const DType dtype : {DType::int8, DType::nf4, DType::nf4_double}) {
    nlohmann::json config = read_json(written(dtype).parent_path() / "config.json");
    const nlohmann::json q = config.at("quantization_config");
    EXPECT_EQ(q.at("quant_method"), "bitsandbytes");
    EXPECT_EQ(q.at("load_in_8bit"), dtype == DType::int8);
    EXPECT_EQ(q.at("load_in_4bit"), dtype != DType::int8);
    EXPECT_EQ(q.at("bnb_4bit_use_double_quant"), dtype == DType::nf4_double);
    const auto skipped = q.at("llm_int8_skip_modules").get<std::vector<std::string>>();
    for (const char* layer : {"x_embedder", "transformer_blocks.0.norm1.linear", "norm_out.linear"})
      EXPECT_NE(std::ranges::find(skipped, layer), skipped.end()) << layer;
    for (const char* layer : {"transformer_blocks.0.attn.to_q", "proj_out"})  // a name that blocks have too
      EXPECT_EQ(std::ranges::find(skipped, layer), skipped.end()) << layer;
    config.erase("quantization_config");
    EXPECT_EQ(config, own);
  }
}

// The values that Wick reads from a single file are those of its quantiser; all else is as it was.
TEST_F(QuantizedFiles, ASingleFileKeepsItsNames) {
  const fs::path file = single_file();
  const SafetensorsFile plain = SafetensorsFile::open(file);
  for (const DType dtype : kFormats) {
    const fs::path to = folder_ / "quantised.safetensors";
    const Weights::Quantized made = write_quantized(file, to, {.dtype = dtype, .fp8_layout = Fp8Layout::comfy_quant});
    EXPECT_EQ(made.matrices, 10);
    EXPECT_EQ(made.kept, 0);
    EXPECT_EQ(SafetensorsFile::open(to).metadata(), plain.metadata());
    const TensorSource source = open_source(to);
    int64_t quantised = 0;
    for (const auto& [name, info] : plain.tensors()) {
      const StoredTensor found = *source.find(name, {});
      EXPECT_EQ(found.shape, info.shape) << name;
      const Tensor own = cast(plain.load(name), DType::f32);
      if (!found.decoded) {
        EXPECT_EQ(found.load(host_memory()).to_vector(), own.to_vector()) << name;
        continue;
      }
      ++quantised;
      const int64_t rows = dtype == DType::int8 ? own.dim(0) : 1, cols = own.numel() / rows;
      const int64_t bytes = row_bytes(dtype, cols);
      std::string all(size_t(rows * bytes), '\0');
      quantize_rows(all.data(), dtype, own.data<float>(), rows, cols);
      if (dtype == DType::fp8) {  // by the scale's reciprocal, as comfy-kitchen does
        const RowLayout layout = row_layout(dtype, cols);
        float scale;
        std::memcpy(&scale, all.data() + layout.scales, sizeof scale);
        const float inverse = 1 / scale;
        for (int64_t i = 0; i < cols; ++i) all[size_t(i)] = char(f32_to_e4m3(own.data<float>()[i] * inverse));
      }
      std::vector<float> want(size_t(own.numel()));
      for (int64_t i = 0; i < rows; ++i) decode_row(&want[size_t(i * cols)], all.data() + i * bytes, dtype, cols);
      EXPECT_EQ(found.load(host_memory()).to_vector(), want) << name;
      EXPECT_TRUE(found.rows(dtype)) << name;  // the model keeps its codes
    }
    EXPECT_EQ(quantised, made.matrices);
  }
}

// The layout that old and new ComfyUI read: every matrix of the denoiser has a scale, and one marker stands where its
// names begin. All else of a file with several components is as it was.
TEST_F(QuantizedFiles, AllMatricesAreScaledForOldAndNewComfyUI) {
  const fs::path whole = single_file(), file = folder_ / "bare.safetensors", to = folder_ / "quantised.safetensors";
  const std::string prefix = "model.diffusion_model.";
  std::map<std::string, Tensor> tensors;
  const SafetensorsFile all = SafetensorsFile::open(whole);
  for (const auto& [name, info] : all.tensors())
    if (name.starts_with(prefix)) tensors[name.substr(prefix.size())] = all.load(name);
  save_safetensors(file, tensors);
  const SafetensorsFile plain = SafetensorsFile::open(file);
  for (const auto& [from, begin] : {std::pair{file, std::string()}, {whole, prefix}}) {
    const Weights::Quantized made = write_quantized(from, to, {.dtype = DType::fp8});
    const SafetensorsFile before = SafetensorsFile::open(from), after = SafetensorsFile::open(to);
    const TensorInfo& marker = after.tensors().at(begin + "scaled_fp8");
    EXPECT_EQ(marker.dtype_name, "F8_E4M3");
    EXPECT_EQ(marker.shape, Shape{2});
    int64_t matrices = 0;
    for (const auto& [name, info] : before.tensors()) {
      const bool is_matrix = info.shape.rank() == 2 && name.starts_with(begin) && name.ends_with(".weight");
      matrices += is_matrix;
      EXPECT_EQ(after.tensors().at(name).dtype_name, is_matrix ? "F8_E4M3" : info.dtype_name) << name;
      if (!is_matrix) continue;
      const std::string scale = name.substr(0, name.size() - 7) + ".scale_weight";
      const std::vector<float> values = before.load(name).to_vector();
      float largest = 0;
      for (const float value : values) largest = std::max(largest, std::abs(value));
      ASSERT_TRUE(after.has(scale)) << name;
      EXPECT_EQ(after.tensors().at(scale).shape, Shape{});
      EXPECT_EQ(after.load(scale).item(), largest / 448);
    }
    EXPECT_GT(matrices, 10);
    EXPECT_EQ(made.matrices, matrices);
    EXPECT_EQ(int64_t(after.tensors().size()), int64_t(before.tensors().size()) + matrices + 1);
  }
  // What Wick reads is within half a step of e4m3 of what it wrote.
  write_quantized(file, to, {.dtype = DType::fp8});
  const TensorSource source = open_source(to);
  for (const auto& [name, info] : plain.tensors()) {
    const std::vector<float> found = source.find(name, {})->load(host_memory()).to_vector(),
                             want = plain.load(name).to_vector();
    float largest = 0;
    for (const float value : want) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_LE(std::abs(found[i] - want[i]), std::abs(want[i]) / 16 * 1.00001f + largest / 448 * 0x1p-10f) << name;
  }
}

// The message that the command prints before it starts.
TEST_F(QuantizedFiles, ReadersAreToldOfEachLayout) {
  const auto expect = [](const fs::path& from, const QuantizedOptions& options, const std::string& words) {
    EXPECT_NE(quantized_readers(from, options).find(words), std::string::npos) << quantized_readers(from, options);
  };
  const fs::path file = single_file(), model = folder_ / "model";
  expect(file, {.dtype = DType::fp8}, "0.3.64 and 0.33");
  expect(file, {.dtype = DType::fp8, .fp8_layout = Fp8Layout::comfy_quant}, "from 0.4 on");
  expect(file, {.dtype = DType::int8}, "every ComfyUI draws noise");
  expect(file, {.dtype = DType::nf4}, "ComfyUI itself does not read it");
  expect(file, {.dtype = DType::nf4_double}, "ComfyUI itself does not read it");
  expect(model, {.dtype = DType::fp8}, "Wick alone");
  for (const DType dtype : {DType::int8, DType::nf4, DType::nf4_double})
    expect(model, {.dtype = dtype}, "diffusers reads it");
  expect(kLanguageModel, {.dtype = DType::fp8}, "vLLM");
  expect(kLanguageModel, {.dtype = DType::nf4}, "transformers reads it");
}

// Matrices of attention and feed-forward layers are quantised under diffusers' names too, and modulations are not.
TEST_F(QuantizedFiles, EveryFamilyKnowsItsBlocks) {
  for (const auto& [model, component] : {std::pair{"sdxl", "unet"}, {"sd3", "transformer"}}) {
    const fs::path from = test::source_dir() / "tests/golden" / model, to = folder_ / model;
    const auto weights = weights_in(from / component);
    const SafetensorsFile plain = SafetensorsFile::open(*weights);
    const Weights::Quantized made = write_quantized(from, to, {.dtype = DType::fp8});
    const SafetensorsFile file = SafetensorsFile::open(to);
    int64_t quantised = 0;
    for (const auto& [name, info] : plain.tensors()) {
      const bool in_blocks = ("." + name).find(".transformer_blocks.") != std::string::npos && info.shape.rank() == 2 &&
                             name.find(".linear.") == std::string::npos;
      EXPECT_EQ(file.tensors().at(name).dtype_name == "F8_E4M3", in_blocks) << name;
      quantised += in_blocks;
    }
    EXPECT_EQ(made.matrices, quantised);
    EXPECT_GT(quantised, 0);
  }
}

TEST_F(QuantizedFiles, WhatCannotBeQuantisedIsRefused) {
  const fs::path to = folder_ / "to", plain = folder_ / "model/transformer/diffusion_pytorch_model.safetensors";
  const auto refused = [&](const fs::path& from, DType dtype, std::initializer_list<std::string_view> parts) {
    expect_error([&] { write_quantized(from, to, {.dtype = dtype}); }, parts);
    EXPECT_FALSE(fs::exists(to) && fs::is_regular_file(to));
    EXPECT_FALSE(fs::exists(to / "diffusion_pytorch_model.safetensors"));
  };
  refused(kFlux, DType::nf4, {"quantised already", "\"context_embedder.weight"});
  const SafetensorsFile file = SafetensorsFile::open(plain);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
  const std::string name = "transformer_blocks.0.attn.to_q.weight";
  const Tensor matrix = cast(tensors.at(name), DType::f32);
  matrix.data<float>()[70] = 1e5f;
  tensors[name] = matrix;
  save_safetensors(plain, tensors);
  refused(folder_ / "model", DType::int8, {name, "too large for f16"});
  matrix.data<float>()[70] = NAN;
  save_safetensors(plain, tensors);
  for (const DType dtype : kFormats) refused(folder_ / "model", dtype, {name, "not finite"});
}

}  // namespace
}  // namespace wick
