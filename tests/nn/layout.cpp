// Names of CLIP, T5 and VAE files in every layout, against diffusers' and gguf-py's own conversions
// (tools/golden/layouts.py).
#include "wick/nn/layout.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "nn/golden_layouts.h"
#include "wick/io/gguf.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

using std::string;
using test::expect_all, test::tensors_of_layout, test::Tensors;

TEST(Layouts, LibraryNames) {
  for (const string family : {"vae", "clip", "t5"}) {
    const Tensors native = tensors_of_layout(family + ".native"), diffusers = tensors_of_layout(family + ".diffusers");
    expect_all(with_library_names(memory_source(native)), diffusers);
    expect_all(with_library_names(memory_source(diffusers)), diffusers);
  }
}

// Both halves count their levels from the picture on.
TEST(Layouts, AHalfOfAVaeIsEnough) {
  Tensors decoder;
  for (const auto& [name, value] : tensors_of_layout("vae.native"))
    if (name.starts_with("decoder.")) decoder[name] = value;
  const TensorSource source = with_library_names(memory_source(decoder));
  EXPECT_EQ(source.stored_name("decoder.up_blocks.0.resnets.2.conv1.weight"), "decoder.up.3.block.2.conv1.weight");
  EXPECT_EQ(source.stored_name("decoder.up_blocks.2.upsamplers.0.conv.bias"), "decoder.up.1.upsample.conv.bias");
  EXPECT_FALSE(source.has("encoder.conv_in.weight"));
}

// A matrix [out, in] of a projection is stored as [in, out] in OpenCLIP's files, unless its name says otherwise.
TEST(Layouts, OpenClipsProjectionIsTurned) {
  Tensors clip = tensors_of_layout("clip.native");
  const Tensor turned = tensors_of_layout("clip.diffusers").at("text_projection.weight");
  EXPECT_EQ(with_library_names(memory_source(clip)).find("text_projection.weight", {})->shape, turned.shape());
  clip.erase("text_projection");
  EXPECT_FALSE(with_library_names(memory_source(clip)).has("text_projection.weight"));
  clip["text_projection.weight"] = turned;
  expect_all(with_library_names(memory_source(clip)), {{"text_projection.weight", turned}});
}

// A shape that blocks do not fit stands in the metadata.
TEST(Layouts, GgufFilesOfATransformer) {
  const TemporaryDirectory folder;
  const Tensors native = tensors_of_layout("flux.native");
  std::vector<GgufEntry> entries;
  for (const auto& [name, value] : native)
    entries.push_back({"model.diffusion_model." + name, DType::f32, value.shape(), [value = value] { return value; }});
  const Tensor conv = cast(Tensor::of(std::vector<float>(64, 0.5f), {2, 32}), DType::q8_0);
  entries.push_back({"conv.weight", DType::q8_0, {2, 32}, [conv] { return conv; }});
  const GgufArray shape = std::vector<int32_t>{4, 4, 2, 2}, wrong = std::vector<int32_t>{4, 4};
  const auto write = [&](const GgufArray& extents) {
    save_gguf(folder / "m.gguf",
              {{"general.architecture", string("flux")}, {"comfy.gguf.orig_shape.conv.weight", extents}}, entries);
    return open_source(folder / "m.gguf");
  };
  expect_all(with_prefix(write(shape), "model.diffusion_model."), native);
  const StoredTensor found = *write(shape).find("conv.weight", {});
  EXPECT_EQ(found.shape, (Shape{4, 4, 2, 2}));
  EXPECT_EQ(found.dtype, DType::f32);
  EXPECT_EQ(found.load(host_memory()).to_vector(), conv.to_vector());
  const TensorSource source = write(wrong);
  expect_error([&] { source.find("conv.weight", {}); }, {"m.gguf", "comfy.gguf.orig_shape.conv.weight", "64 elements"});
}

TEST(Layouts, GgufFilesOfT5) {
  const TemporaryDirectory folder;
  std::vector<GgufEntry> entries;
  for (const auto& [name, value] : tensors_of_layout("t5.native"))
    entries.push_back({name, DType::f32, value.shape(), [value = value] { return value; }});
  save_gguf(folder / "m.gguf", {{"general.architecture", string("t5encoder")}}, entries);
  expect_all(open_source(folder / "m.gguf"), tensors_of_layout("t5.diffusers"));
}

}  // namespace
}  // namespace wick
