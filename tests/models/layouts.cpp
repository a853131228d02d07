// Names of transformers in every layout, against diffusers' and gguf-py's own conversions (tools/golden/layouts.py).
#include "wick/nn/layout.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "nn/golden_layouts.h"
#include "source_dir.h"
#include "wick/io/safetensors.h"
#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/models/sd3/names.h"
#include "wick/models/sd3/transformer.h"
#include "wick/nn/weights.h"

namespace wick {
namespace {

using std::string;
using test::expect_all, test::tensors_of_layout, test::Tensors;

Tensors behind(const string& prefix, const Tensors& tensors) {
  Tensors all;
  for (const auto& [name, value] : tensors) all[prefix + name] = value;
  return all;
}

// A file is read by its bytes, a map tensor by tensor.
void expect_transformer(const string& family, TensorSource (*names)(const TensorSource&)) {
  const Tensors native = tensors_of_layout(family + ".native"), diffusers = tensors_of_layout(family + ".diffusers");
  expect_all(names(safetensors_source(test::golden_layout(family + ".diffusers"))), native);
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
  Tensors diffusers = tensors_of_layout("flux.diffusers");
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
