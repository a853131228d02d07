#include "wick/nn/checkpoint.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/file.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/io/sha256.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kSdxl = test::source_dir() / "tests/golden/sdxl";

std::vector<std::string> names_of(const std::map<std::string, Checkpoint>& components) {
  std::vector<std::string> names;
  for (const auto& [name, component] : components) names.push_back(name);
  return names;
}

TEST(Checkpoint, APipelineHasComponents) {
  const Checkpoint model = kSdxl;
  EXPECT_TRUE(model.is_pipeline());
  EXPECT_FALSE(model.is_gguf());
  EXPECT_EQ(names_of(model.components()), (std::vector<std::string>{"scheduler", "text_encoder", "text_encoder_2",
                                                                    "tokenizer", "tokenizer_2", "unet", "vae"}));
  EXPECT_FALSE(model.has("transformer"));
  EXPECT_EQ(model.config().text("_class_name"), "StableDiffusionXLPipeline");
  EXPECT_EQ(model.component("unet").config().text("_class_name"), "UNet2DConditionModel");
  EXPECT_EQ(model.component("scheduler").config().text("_class_name"), "EulerDiscreteScheduler");
  EXPECT_EQ(model.component("tokenizer_2").path(), kSdxl / "tokenizer_2");
  EXPECT_TRUE(model.component("vae").weights().has("decoder.conv_in.weight"));
}

TEST(Checkpoint, WhatIsMissingIsNamed) {
  const Checkpoint unet = Checkpoint(kSdxl).component("transformer");
  EXPECT_FALSE(unet.has_config());
  expect_error([&] { unet.config(); }, {(kSdxl / "transformer").string() + ": there is no such folder"});
  expect_error([&] { unet.weights(); }, {(kSdxl / "transformer").string() + ": there is no such folder"});
  expect_error([&] { Checkpoint(kSdxl / "none.gguf").fingerprint(); }, {"none.gguf"});
}

TEST(Checkpoint, AGgufFileIsOneNetwork) {
  const Checkpoint model = test::source_dir() / "tests/golden/gguf/model.gguf";
  EXPECT_TRUE(model.is_gguf());
  EXPECT_TRUE(model.components().empty());
  EXPECT_EQ(model.files(), std::vector{model.path()});
  EXPECT_EQ(model.config_file(), model.path());
}

// A tokenizer's file counts as a weight does, a picture beside them does not.
TEST(Checkpoint, AFingerprintTellsModelsApart) {
  const TemporaryDirectory folder;
  const auto copy = [&](const char* name) {
    fs::copy(kSdxl, folder / name, fs::copy_options::recursive);
    return folder / name;
  };
  const fs::path one = copy("one"), other = copy("other");
  const std::string print = Checkpoint(one).fingerprint();
  write_file_atomically(one / "unet" / "grid.png", "not a part");
  EXPECT_EQ(Checkpoint(one).fingerprint(), print);
  EXPECT_EQ(Checkpoint(other).fingerprint(), print);
  fs::rename(other / "vae/diffusion_pytorch_model.safetensors", other / "vae/model.safetensors");
  EXPECT_NE(Checkpoint(other).fingerprint(), print);
  write_file_atomically(one / "tokenizer_2" / "merges.txt", "#version: 0.2\n");
  EXPECT_NE(Checkpoint(one).fingerprint(), print);
}

// The names and contents of a folder's files, as runs have it in their states.
TEST(Checkpoint, FingerprintsStayFromVersionToVersion) {
  const TemporaryDirectory folder;
  write_file_atomically(folder / "config.json", "{}");
  write_file_atomically(folder / "tokenizer.json", "[]");
  const std::string text = "/config.json\n{}/tokenizer.json\n[]";
  Sha256 hash;
  hash.update(text.data(), text.size());
  EXPECT_EQ(Checkpoint(folder.path()).fingerprint(), hash.hex());

  fs::create_directory(folder / "vae");
  write_file_atomically(folder / "vae/config.json", "{}");
  write_file_atomically(folder / kPipelineConfig, "{}");
  const std::string parts = "vae/config.json\n{}";
  Sha256 of_parts;
  of_parts.update(parts.data(), parts.size());
  EXPECT_EQ(Checkpoint(folder.path()).fingerprint(), of_parts.hex());
}

// Files of the tiny networks in tests/golden/layouts, one by one and all in one.
class ModelFilesTest : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, Tensor>;

  static Tensors golden(const std::string& name, const std::string& prefix = "") {
    const auto file = SafetensorsFile::open(test::source_dir() / "tests/golden/layouts" / (name + ".safetensors"));
    Tensors tensors;
    for (const auto& [tensor, info] : file.tensors()) tensors[prefix + tensor] = file.load(tensor);
    return tensors;
  }
  static Tensors one(const std::string& name) { return {{name, Tensor::empty({1, 1})}}; }
  fs::path write(const std::string& name, std::initializer_list<Tensors> all) {
    Tensors together;
    for (const Tensors& tensors : all) together.insert(tensors.begin(), tensors.end());
    save_safetensors(folder_ / name, together);
    return folder_ / name;
  }
  fs::path all_in_one() {
    return write(
        "all.safetensors",
        {golden("flux.native", "model.diffusion_model."), golden("clip.diffusers", "text_encoders.clip_l.transformer."),
         golden("t5.diffusers", "text_encoders.t5xxl.transformer."), golden("vae.native", "vae.")});
  }

  TemporaryDirectory folder_;
  const fs::path flux_ = write("flux.safetensors", {golden("flux.native")}),
                 sd3_ = write("sd3.safetensors", {golden("sd3.diffusers")}),
                 clip_ = write("clip.safetensors", {golden("clip.diffusers")}),
                 t5_ = write("t5.safetensors", {golden("t5.diffusers")}),
                 vae_ = write("ae.safetensors", {golden("vae.native")});
};

TEST_F(ModelFilesTest, OneFileHasComponents) {
  const Checkpoint model = all_in_one();
  EXPECT_TRUE(model.is_pipeline());
  EXPECT_TRUE(model.is_assembled());
  EXPECT_EQ(names_of(model.components()),
            (std::vector<std::string>{"text_encoder", "text_encoder_2", "transformer", "vae"}));
  EXPECT_FALSE(model.has_config());
  EXPECT_FALSE(model.component("transformer").has_config());
  EXPECT_TRUE(model.component("transformer").source().has("double_blocks.0.img_attn.qkv.weight"));
  EXPECT_TRUE(model.component("vae").source().has("decoder.up_blocks.0.resnets.0.conv1.weight"));
  EXPECT_TRUE(model.component("text_encoder_2").source().has("shared.weight"));
  EXPECT_EQ(model.files(), std::vector{model.path()});
  expect_error([&] { model.component("tokenizer").source(); },
               {"all.safetensors", "no tokenizer of CLIP", "--clip-tokenizer PATH"});
  expect_error([&] { model.component("scheduler").config(); }, {"all.safetensors", "no scheduler"});
}

TEST_F(ModelFilesTest, FilesOneByOne) {
  const Checkpoint flux = ModelFiles{.parts = {{"transformer", flux_}, {"clip_l", clip_}, {"t5", t5_}}};
  EXPECT_EQ(flux.name(), flux_.string());
  EXPECT_EQ(names_of(flux.components()), (std::vector<std::string>{"text_encoder", "text_encoder_2", "transformer"}));
  EXPECT_EQ(flux.component("text_encoder_2").path(), t5_);
  EXPECT_EQ(flux.files(), (std::vector{clip_, t5_, flux_}));
  expect_error([&] { flux.component("vae").source(); }, {"flux.safetensors: has no VAE; pass it with --vae FILE"});
  expect_error([&] { flux.component("vae").config(); }, {"--vae FILE"});
  expect_error([&] { flux.component("transformer").config(); }, {"flux.safetensors", "no config"});

  const fs::path tokenizer = folder_ / "tokenizer.json";
  write_file_atomically(tokenizer, "{}");
  const Checkpoint sd3 = ModelFiles{
      .model = sd3_, .parts = {{"clip_l", clip_}, {"clip_g", clip_}, {"t5", t5_}, {"clip_tokenizer", tokenizer}}};
  EXPECT_EQ(sd3.component("text_encoder_3").path(), t5_);
  EXPECT_EQ(sd3.component("text_encoder_2").path(), clip_);
  EXPECT_EQ(sd3.component("tokenizer_2").path(), tokenizer);
  expect_error([&] { sd3.component("tokenizer_3").config(); }, {"--t5-tokenizer PATH"});
}

TEST_F(ModelFilesTest, ConfigsStandForFiles) {
  const Checkpoint model =
      Checkpoint::of_configs("what is known", "FLUX", {{"transformer", R"({"num_layers": 3})"}, {"vae", "{}"}});
  EXPECT_TRUE(model.is_pipeline());
  EXPECT_EQ(names_of(model.components()), (std::vector<std::string>{"tokenizer", "tokenizer_2", "transformer", "vae"}));
  EXPECT_EQ(model.component("transformer").config().integer("num_layers"), 3);
  EXPECT_FALSE(model.component("transformer").has_weights());
  EXPECT_TRUE(model.files().empty());
  expect_error([&] { model.component("vae").source(); }, {"what is known/vae", "no weights"});
  expect_error([&] { model.component("text_encoder").config(); }, {"--clip-l FILE"});
  const Checkpoint other = model.with_parts({{"vae", vae_}});
  EXPECT_EQ(other.files(), std::vector{vae_});
  EXPECT_TRUE(other.component("vae").has_weights());
  expect_error([&] { model.with_parts({{"clip_g", clip_}}); }, {"--clip-g", "FLUX has no OpenCLIP bigG"});
  expect_error([&] { Checkpoint::of_configs("x", "SD9", {}); }, {"SD9"});
}

// A part stands for the model's own: of a folder, of one file, and out of another one of many networks.
TEST_F(ModelFilesTest, PartsReplaceTheModels) {
  const Checkpoint model = ModelFiles{.model = all_in_one(), .parts = {{"vae", vae_}}};
  EXPECT_EQ(model.component("vae").path(), vae_);
  EXPECT_EQ(model.component("text_encoder").path(), all_in_one());
  const Checkpoint other = ModelFiles{.model = flux_, .parts = {{"t5", all_in_one()}}};
  EXPECT_TRUE(other.component("text_encoder_2").source().has("shared.weight"));
  EXPECT_FALSE(other.component("text_encoder_2").source().has("double_blocks.0.img_attn.qkv.weight"));

  const fs::path pipeline = folder_ / "sdxl";
  fs::copy(kSdxl, pipeline, fs::copy_options::recursive);
  const Checkpoint replaced = ModelFiles{.model = pipeline, .parts = {{"vae", vae_}}};
  EXPECT_TRUE(replaced.is_assembled());
  EXPECT_FALSE(Checkpoint(pipeline).is_assembled());
  EXPECT_EQ(replaced.component("vae").path(), vae_);
  EXPECT_EQ(replaced.component("unet").path(), pipeline / "unet");
  EXPECT_NE(replaced.fingerprint(), Checkpoint(pipeline).fingerprint());
  EXPECT_NE(replaced.fingerprint(),
            (Checkpoint(ModelFiles{.model = pipeline, .parts = {{"vae", all_in_one()}}}).fingerprint()));
}

TEST_F(ModelFilesTest, WrongPartsAreToldAsWhatTheyAre) {
  const auto wrong = [&](const ModelFiles& files, std::initializer_list<std::string_view> parts) {
    expect_error([&] { Checkpoint{files}; }, parts);
  };
  const fs::path lora = write("lora.safetensors", {one("lora_unet_x.lora_down.weight")});
  const fs::path odd = write("odd.safetensors", {one("something")});
  const fs::path chroma = write("chroma.safetensors", {golden("flux.native"), one("distilled_guidance_layer.x")});
  wrong({.model = flux_, .parts = {{"vae", lora}}}, {"--vae", "lora.safetensors", "expected a VAE, found a LoRA"});
  wrong({.model = flux_, .parts = {{"t5", vae_}}}, {"--t5", "expected a T5 encoder, found a VAE"});
  wrong({.model = flux_, .parts = {{"clip_l", all_in_one() / "none"}}}, {"--clip-l", "there is no such file"});
  wrong({.model = flux_, .parts = {{"clip_g", clip_}}}, {"--clip-g", "FLUX has no OpenCLIP bigG"});
  wrong({.model = vae_, .parts = {{"t5", t5_}}},
        {"ae.safetensors", "the transformer of FLUX or SD3, or SDXL's UNet, found a VAE"});
  wrong({.parts = {{"transformer", odd}}}, {"odd.safetensors", "\"something\""});
  wrong({.parts = {{"transformer", chroma}}}, {"chroma.safetensors", "the model Chroma"});
  const fs::path redux = write("redux.safetensors", {one("redux_up.weight"), one("redux_down.weight")});
  wrong({.parts = {{"transformer", redux}}}, {"redux.safetensors", "FLUX.1 Redux"});
  const fs::path guided = write("guided.safetensors", {golden("flux.native"), one("ip_adapter.x")});
  wrong({.parts = {{"transformer", guided}}}, {"guided.safetensors", "an IP-Adapter"});
  wrong({.parts = {{"vae", vae_}}}, {"--vae", "--model", "--transformer"});
  const fs::path pickle = folder_ / "model.ckpt";
  write_file_atomically(pickle, "PK\x03\x04 and so on");
  wrong({.parts = {{"transformer", pickle}}}, {"model.ckpt", "pickle", "convert it to safetensors"});
}

TEST_F(ModelFilesTest, GgufFilesAreToldApart) {
  const auto write_gguf = [&](const char* name, const char* architecture, const Tensors& tensors) {
    std::vector<GgufEntry> entries;
    for (const auto& [tensor, value] : tensors)
      entries.push_back({tensor, DType::f32, value.shape(), [value = value] { return value; }});
    GgufMetadata::Entries metadata;
    if (architecture) metadata.emplace_back("general.architecture", std::string(architecture));
    save_gguf(folder_ / name, metadata, entries);
    return folder_ / name;
  };
  const fs::path t5 = write_gguf("t5.gguf", "t5encoder", golden("t5.native"));
  const Checkpoint model =
      ModelFiles{.parts = {{"transformer", write_gguf("flux.gguf", "flux", golden("flux.native"))}, {"t5", t5}}};
  EXPECT_FALSE(model.is_gguf());
  EXPECT_FALSE(model.component("transformer").is_gguf());
  EXPECT_TRUE(model.component("text_encoder_2").source().has("shared.weight"));
  EXPECT_FALSE(model.component("text_encoder_2").has_config());
  const Checkpoint nameless = write_gguf("sd.gguf", nullptr, golden("flux.native", "model.diffusion_model."));
  EXPECT_TRUE(nameless.is_pipeline());
  EXPECT_TRUE(nameless.component("transformer").source().has("double_blocks.0.img_attn.qkv.weight"));
}

}  // namespace
}  // namespace wick
