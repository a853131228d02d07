// Models that Wick knows by name, without any of their files.
#include "wick/pipelines/known_models.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/files.h"
#include "wick/backend/counting.h"
#include "wick/pipelines/diffusion.h"

namespace wick {
namespace {

TEST(KnownModels, AreThoseOfAllFamilies) {
  const std::vector<std::string> names = known_model_names();
  EXPECT_EQ(names.front(), "tiny");  // models that ship with Wick come first
  for (const DiffusionFamily& family : diffusion_families())
    for (const KnownModel& known : family.known) {
      EXPECT_EQ(std::ranges::count(names, known.name), 1) << known.name;
      EXPECT_NE(model_help().find(known.name), std::string::npos) << known.name;
    }
}

TEST(KnownModels, AreFoundByNameAndByRepository) {
  ASSERT_NE(find_known("flux-dev"), nullptr);
  EXPECT_EQ(find_known("black-forest-labs/FLUX.1-dev"), find_known("flux-dev"));
  EXPECT_EQ(find_known("tiny")->repository, "");
  EXPECT_EQ(find_known("flux"), nullptr);
}

// Parameters of a model's parts, from its configs alone: the weights of an outline in f32.
int64_t parameters(const Checkpoint& model, const DiffusionParts& parts) {
  CountingBackend backend(device_kind("cpu"));
  const std::unique_ptr<Diffusion> outline = open_diffusion(model);
  outline->load({.backend = &backend, .outline = true}, parts);
  return int64_t(backend.memory().held(Purpose::weights)) / 4;
}

struct Sizes {
  const char* name;
  int64_t denoiser, text_encoders;
};

constexpr int64_t kClipL = 123'060'480, kProjection = 768 * 768, kBigG = 694'659'840, kT5 = 4'762'310'656;

// The denoisers of FLUX and SD3 add up to what flow_models.md counts; SDXL's and the encoders' numbers are those of the
// published files. A stored table of positions is counted apart from SD3's parameters.
TEST(KnownModels, HaveTheParametersOfThePublishedOnes) {
  const Sizes rows[] = {{"sdxl", 2'567'463'684, kClipL + kBigG},
                        {"flux-dev", 11'901'408'320, kClipL + kT5},
                        {"flux-krea-dev", 11'901'408'320, kClipL + kT5},
                        {"flux-schnell", 11'891'178'560, kClipL + kT5},
                        {"sd3-medium", 2'028'328'000, kClipL + kProjection + kBigG + kT5},
                        {"sd3.5-medium", 2'243'171'520, kClipL + kProjection + kBigG + kT5},
                        {"sd3.5-large", 8'056'627'520, kClipL + kProjection + kBigG + kT5},
                        {"sd3.5-large-turbo", 8'056'627'520, kClipL + kProjection + kBigG + kT5}};
  for (const auto& [name, denoiser, text_encoders] : rows) {
    SCOPED_TRACE(name);
    const Checkpoint model = find_known(name)->without_files();
    EXPECT_EQ(parameters(model, {DiffusionPart::denoiser}), denoiser);
    EXPECT_EQ(parameters(model, {DiffusionPart::text_encoders}), text_encoders);
    const bool sdxl = model.has("unet");
    EXPECT_EQ(parameters(model, {DiffusionPart::vae_encoder, DiffusionPart::vae_decoder}),
              sdxl ? 83'653'863 : 83'819'683);
    const std::unique_ptr<Diffusion> diffusion = open_diffusion(model);
    EXPECT_EQ(diffusion->latents().native, 1024);
    EXPECT_EQ(diffusion->process().is_flow(), !sdxl);
    EXPECT_EQ(diffusion->drawing_defaults().guidance.has_value(),
              std::string(name).starts_with("flux") && std::string(name) != "flux-schnell");
    EXPECT_TRUE(model.files().empty());
  }
}

TEST(KnownModels, HaveNoWeights) {
  const Checkpoint model = find_known("sd3.5-medium")->without_files();
  EXPECT_FALSE(model.component("transformer").has_weights());
  expect_error([&] { model.component("transformer").source(); }, {"the configs of sd3.5-medium/transformer"});
}

}  // namespace
}  // namespace wick
