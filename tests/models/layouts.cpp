// Names of transformers in every layout, against diffusers' and gguf-py's own conversions (tools/golden/layouts.py).
#include "wick/nn/layout.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/models/sd3/names.h"
#include "wick/models/sd3/transformer.h"
#include "wick/nn/weights.h"

namespace wick {
namespace {

using std::string;
using Tensors = std::map<string, Tensor>;

Tensors golden(const string& name) {
  const auto file = SafetensorsFile::open(test::source_dir() / "tests/golden/layouts" / (name + ".safetensors"));
  Tensors tensors;
  for (const auto& [tensor, info] : file.tensors()) tensors[tensor] = file.load(tensor);
  return tensors;
}

Tensors behind(const string& prefix, const Tensors& tensors) {
  Tensors all;
  for (const auto& [name, value] : tensors) all[prefix + name] = value;
  return all;
}

void expect_all(const TensorSource& source, const Tensors& expected) {
  for (const auto& [name, value] : expected) {
    const std::optional<StoredTensor> found = source.find(name, {});
    ASSERT_TRUE(found.has_value()) << name;
    EXPECT_EQ(found->shape.numel(), value.numel()) << name;
    EXPECT_EQ(found->load(host_memory()).to_vector(), value.to_vector()) << name;
  }
}

// A file is read by its bytes, a map tensor by tensor.
void expect_transformer(const string& family, TensorSource (*names)(const TensorSource&)) {
  const Tensors native = golden(family + ".native"), diffusers = golden(family + ".diffusers");
  const string file = (test::source_dir() / "tests/golden/layouts" / (family + ".diffusers.safetensors")).string();
  expect_all(names(safetensors_source(file)), native);
  for (const string prefix : {"", "model.diffusion_model."})
    for (const Tensors& layout : {native, diffusers}) expect_all(names(memory_source(behind(prefix, layout))), native);
  EXPECT_FALSE(names(memory_source(diffusers)).has("transformer_blocks.0.attn.to_q.weight"));
}

TEST(Layouts, Flux) { expect_transformer("flux", flux_source); }
TEST(Layouts, Sd3) { expect_transformer("sd3", sd3_source); }

// A whole transformer that is trained is written as it was read: split and turned again, and with SD3's positions,
// which are no parameter.
template <class Config, class Model>
void expect_written(const string& model, TensorSource (*names)(const TensorSource&)) {
  const std::filesystem::path folder = test::source_dir() / "tests/golden" / model / "transformer";
  const SafetensorsFile read = SafetensorsFile::open(folder / "diffusion_pytorch_model.safetensors");
  const Weights weights(names(open_source(folder)), {.trainable = true});
  const Model transformer(Scope(weights, "transformer"), Config::read(folder));
  const TemporaryDirectory out;
  weights.save(out / "x.safetensors", DType::f32);
  const SafetensorsFile written = SafetensorsFile::open(out / "x.safetensors");
  EXPECT_EQ(written.tensors().size(), read.tensors().size());
  for (const auto& [name, info] : read.tensors()) {
    ASSERT_TRUE(written.tensors().contains(name)) << name;
    EXPECT_EQ(written.tensors().at(name).shape, info.shape) << name;
    EXPECT_EQ(written.load(name).to_vector(), read.load(name).to_vector()) << name;
  }
}

TEST(Layouts, ATrainedFluxIsWrittenAsItWasStored) {
  expect_written<FluxConfig, FluxTransformer>("flux/dev", flux_source);
  expect_written<FluxConfig, FluxTransformer>("flux/schnell", flux_source);
}
TEST(Layouts, ATrainedSd3IsWrittenAsItWasStored) {
  for (const char* model : {"sd3_transformer/dual", "sd3_transformer/plain", "sd3"})
    expect_written<Sd3Config, Sd3Transformer>(model, sd3_source);
}

TEST(Layouts, WhatLacksIsNamedAsTheFileHasIt) {
  Tensors diffusers = golden("flux.diffusers");
  diffusers.erase("transformer_blocks.1.attn.to_k.weight");
  diffusers.erase("transformer_blocks.1.norm1.linear.weight");
  diffusers.erase("norm_out.linear.bias");
  const Weights weights(flux_source(memory_source(diffusers)), {});
  expect_error(
      [&] {
        weights.load("double_blocks.1.img_attn.qkv.weight", {24, 8});
      },
      {"\"transformer_blocks.1.attn.to_k.weight\"", "\"double_blocks.1.img_attn.qkv.weight\""});
  expect_error(
      [&] {
        weights.load("double_blocks.1.img_mod.lin.weight", {48, 8});
      },
      {"\"transformer_blocks.1.norm1.linear.weight\" (for \"double_blocks.1.img_mod.lin.weight\")"});
  expect_error([&] { weights.load("final_layer.adaLN_modulation.1.bias", {16}); }, {"\"norm_out.linear.bias\""});
}

}  // namespace
}  // namespace wick
