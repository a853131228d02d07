#include "wick/nn/checkpoint.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/file.h"
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
  expect_error([&] { unet.config(); }, {(kSdxl / "transformer/config.json").string()});
  expect_error([&] { unet.weights(); }, {(kSdxl / "transformer").string()});
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

}  // namespace
}  // namespace wick
