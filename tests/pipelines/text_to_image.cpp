// Text to image against StableDiffusionXLPipeline on a tiny random SDXL.
#include "wick/pipelines/text_to_image.h"

#include <gtest/gtest.h>

#include "device.h"
#include "io/files.h"
#include "pipelines/golden.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

const std::filesystem::path kModel = kGolden / "sdxl";

class TextToImageTest : public testing::Test {
 protected:
  static std::unique_ptr<Diffusion> loaded() {
    auto model = open_diffusion(kModel);
    model->load({.backend = &test::backend()}, kDrawingParts);
    return model;
  }

  TextToImageTest() : in(open_golden("samplers/text_to_image.in")), out(open_golden("samplers/text_to_image.out")) {
    const auto& told = in.metadata();
    request.prompt = told.at("prompt");
    request.negative = told.at("negative_prompt");
    request.width = std::stoll(told.at("width"));
    request.height = std::stoll(told.at("height"));
    request.sampling.steps = std::stoll(told.at("steps"));
    request.cfg = std::stof(told.at("guidance_scale"));
    noise = to_channels_last(in.load("noise")).to(test::memory());
  }

  const SafetensorsFile in, out;
  const std::unique_ptr<Diffusion> model = loaded();
  TextToImage text_to_image{*model};
  ImageRequest request;
  Tensor noise;
};

TEST_F(TextToImageTest, AgreesWithDiffusers) {
  for (const auto& [kind, name] : {std::pair{SamplerKind::euler, "euler"}, {SamplerKind::ddim, "ddim"}}) {
    request.sampling.kind = kind;
    const Tensor latents = text_to_image.denoise({request}, noise);
    EXPECT_LE(relative_error(to_channels_first(latents), out.load(std::string(name) + ".latents")), 1e-4) << name;
    const Tensor picture = text_to_image.decode(latents);
    EXPECT_LE(relative_error(to_channels_first(picture), out.load(std::string(name) + ".decoded")), 1e-4) << name;
  }
}

TEST_F(TextToImageTest, GivenDrawsAgreeWithKDiffusion) {
  const SafetensorsFile given = open_golden("samplers/stochastic.in"), drawn = open_golden("samplers/stochastic.out");
  request.sampling.kind = SamplerKind::dpmpp_sde;
  for (int64_t i = 0; i < 2 * request.sampling.steps - 2; ++i)
    request.draws.push_back(to_channels_last(given.load("noise." + std::to_string(i))));
  const Tensor latents = text_to_image.denoise({request}, to_channels_last(given.load("noise")).to(test::memory()));
  EXPECT_LE(relative_error(to_channels_first(latents), drawn.load("latents")), 1e-4);
  EXPECT_LE(relative_error(to_channels_first(text_to_image.decode(latents)), drawn.load("decoded")), 1e-4);
}

TEST_F(TextToImageTest, RescaledGuidanceAgreesWithDiffusers) {
  const SafetensorsFile rescaled = open_golden("samplers/guidance_rescale");
  request.cfg_rescale = std::stof(rescaled.metadata().at("guidance_rescale"));
  const Tensor latents = text_to_image.denoise({request}, noise);
  EXPECT_LE(relative_error(to_channels_first(latents), rescaled.load("latents")), 1e-4);
}

TEST_F(TextToImageTest, ThePictureIsThatOfItsParts) {
  int64_t last = 0;
  const Image image = text_to_image(request, [&](int64_t step) { last = step; });
  EXPECT_EQ(last, request.sampling.steps);
  EXPECT_EQ(image.width, request.width);
  EXPECT_EQ(image.height, request.height);
  const Tensor picture = text_to_image.decode(text_to_image.denoise({request}, text_to_image.noise({request})));
  EXPECT_EQ(image.rgb, tensor_to_image(reshape(picture, {request.height, request.width, 3})).rgb);
}

TEST_F(TextToImageTest, SeedsAndPromptsMatter) {
  request.sampling.steps = 2;
  const Image first = text_to_image(request);
  EXPECT_EQ(first.rgb, text_to_image(request).rgb);
  ImageRequest other = request;
  other.seed = 1;
  EXPECT_NE(first.rgb, text_to_image(other).rgb);
  other = request;
  other.prompt = "a blue dog";
  EXPECT_NE(first.rgb, text_to_image(other).rgb);
}

int largest_difference(const Image& a, const Image& b) {
  int largest = a.rgb.size() == b.rgb.size() ? 0 : 256;
  for (size_t i = 0; i < std::min(a.rgb.size(), b.rgb.size()); ++i)
    largest = std::max(largest, std::abs(int(a.rgb[i]) - int(b.rgb[i])));
  return largest;
}

TEST_F(TextToImageTest, PicturesOfABatchAreThoseDrawnAlone) {
  request.sampling.steps = 3;
  TextToImage::Batch batch(3, request);
  batch[1].prompt = "a blue dog";
  batch[1].negative.reset();
  batch[2].seed = 7;
  for (const auto& [cfg, rescale] : {std::pair{1.0f, 0.0f}, {5.0f, 0.0f}, {5.0f, 0.7f}}) {
    for (ImageRequest& one : batch) one.cfg = cfg, one.cfg_rescale = rescale;
    const std::vector<Image> together = text_to_image(batch);
    ASSERT_EQ(together.size(), batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      EXPECT_LE(largest_difference(together[i], text_to_image(batch[i])), 1) << i;
      for (size_t k = 0; k < i; ++k) EXPECT_GT(largest_difference(together[i], together[k]), 1) << i << " " << k;
    }
  }
}

// From the second picture on, steps are replayed where the backend can.
TEST_F(TextToImageTest, PicturesInTurnAreThoseOfNewOnes) {
  request.sampling.steps = 3;
  for (const SamplerKind kind :
       {SamplerKind::euler, SamplerKind::dpmpp_2m, SamplerKind::euler_ancestral, SamplerKind::dpmpp_sde})
    for (const float cfg : {1.0f, 7.0f})
      for (const uint64_t seed : {1, 2}) {
        request.sampling.kind = kind, request.cfg = cfg, request.seed = seed;
        EXPECT_EQ(text_to_image(request).rgb, TextToImage(*model)(request).rgb);
      }
}

// A picture's draws are its seed's, whatever is drawn beside it; steps are the user's, also of two evaluations each.
TEST_F(TextToImageTest, SamplersThatDrawDoSoForEachPicture) {
  request.sampling.steps = 3;
  for (const SamplerKind kind : {SamplerKind::euler_ancestral, SamplerKind::dpmpp_sde, SamplerKind::lcm}) {
    request.sampling.kind = kind;
    TextToImage::Batch batch(2, request);
    batch[1].seed = 9;
    std::vector<int64_t> steps;
    const std::vector<Image> together = text_to_image(batch, [&](int64_t step) { steps.push_back(step); });
    EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
    EXPECT_LE(largest_difference(together[0], text_to_image(batch[0])), 1);
    EXPECT_LE(largest_difference(together[1], text_to_image(batch[1])), 1);
    // The same start with other draws is another picture, and the same draws are the same one.
    ImageRequest given = request;
    Rng rng(3, Stream::sampler);
    for (int i = 0; i < 6; ++i) given.draws.push_back(random_normal(noise.shape(), rng));
    const Image once = text_to_image(given);
    EXPECT_GT(largest_difference(once, together[0]), 1);
    EXPECT_EQ(once.rgb, text_to_image(given).rgb);
  }
}

TEST_F(TextToImageTest, IsDrawnWithoutTextEncodersOnceTextsAreKnown) {
  request.sampling.steps = 2;
  const auto other = open_diffusion(kModel);
  TextToImage loaded = TextToImage::load(*other, {.backend = &test::backend()}, {request});
  EXPECT_EQ(loaded(request).rgb, text_to_image(request).rgb);
  request.prompt = "not known";
  expect_error([&] { loaded(request); }, {"text encoders were dropped"});
}

// model_index.json's force_zeros_for_empty_prompt: without a negative prompt its embeddings are zero, which differs
// from the encoders' output for an empty text.
TEST_F(TextToImageTest, NoNegativeIsNotAnEmptyOne) {
  request.sampling.steps = 2;
  request.negative.reset();
  const Tensor none = text_to_image.denoise({request}, noise);
  request.negative = "";
  const Tensor empty = text_to_image.denoise({request}, noise);
  EXPECT_GT(relative_error(none, empty), 1e-3);
}

TEST_F(TextToImageTest, WithoutGuidanceTheNegativeIsNotAsked) {
  request.sampling.steps = 2;
  request.cfg = 1;
  const Tensor one = text_to_image.denoise({request}, noise);
  request.negative = "something else";
  EXPECT_EQ(relative_error(text_to_image.denoise({request}, noise), one), 0);
}

TEST_F(TextToImageTest, RejectsSizesThatTheVaeCannotMake) {
  request.width = 65;
  expect_error([&] { text_to_image(request); }, {"width", "multiple of 8", "65"});
  expect_error([&] { TextToImage::check_side("height", 0, model->latents()); }, {"height", "0"});
  expect_error([&] { TextToImage::check_side("height", 1 << 20, model->latents()); }, {"height", "16384"});
}

}  // namespace
}  // namespace wick
