#include "wick/pipelines/diffusion.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/files.h"
#include "pipelines/golden.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

const std::filesystem::path kModel = kGolden / "sdxl";

TEST(Sdxl, IsOpenedFromAFolder) {
  const std::unique_ptr<Diffusion> model = open_diffusion(kModel);
  EXPECT_EQ(model->latents().channels, 4);
  EXPECT_EQ(model->latents().native, 128);
  EXPECT_EQ(model->length("a cat").tokens, 2);
  EXPECT_EQ(model->length("").limit, 75);
  expect_error([] { open_diffusion(kGolden); }, {"golden: has no transformer or UNet"});
}

TEST(Sdxl, LoadsAFolder) {
  const std::unique_ptr<Diffusion> model = open_diffusion(kModel);
  model->load({}, {DiffusionPart::text_encoders, DiffusionPart::vae_encoder, DiffusionPart::vae_decoder});
  const SafetensorsFile ids = SafetensorsFile::open(kGolden / "cases/text_encoder.in.safetensors");
  const SafetensorsFile ids_2 = SafetensorsFile::open(kGolden / "cases/text_encoder_2.in.safetensors");
  const NamedTensors text =
      model->encode_text({{"tokens", ids.load("input_ids")}, {"tokens 2", ids_2.load("input_ids")}});
  EXPECT_EQ(text["text states"].shape(), (Shape{3, 77, 40}));
  EXPECT_EQ(text["pooled text"].shape(), (Shape{3, 20}));
  const LatentPosterior latent = model->encode(zeros({1, 16, 24, 3}));
  EXPECT_EQ(model->decode(latent.mean).shape(), (Shape{1, 16, 24, 3}));
  model->drop_encoders();
  expect_error([&] { model->caption("x"); }, {"text encoders"});
}

}  // namespace
}  // namespace wick
