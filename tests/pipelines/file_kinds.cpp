// Each kind of file of the same weights gives the same bits: what every component computes and what is drawn from given
// noise.
#include <array>
#include <functional>
#include <optional>
#include <set>

#include "pipelines/drawn_models.h"
#include "wick/pipelines/forward.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/pipelines/noise_schedule.h"
#include "wick/pipelines/text_to_image.h"

namespace wick {
namespace {

template <class Models>
class Kinds : public Models {
 protected:
  using Models::folder_;

  std::vector<float> picture(const Checkpoint& files, const std::vector<SamplerKind>& samplers = {SamplerKind::euler},
                             PredictionSetting prediction = PredictionSetting::automatic) const {
    const std::unique_ptr<Diffusion> diffusion =
        open_diffusion(files, {.t5 = {.tokens = 12}, .prediction = prediction});
    diffusion->load({}, kDrawingParts);
    TextToImage text_to_image(*diffusion);
    ImageRequest request{.prompt = "a red fox", .negative = "blurry", .width = 16, .height = 24, .cfg = 3};
    request.guidance = 2.5f;
    request.sampling.steps = 3;
    std::vector<float> pictures;
    for (const SamplerKind sampler : samplers) {
      request.sampling.kind = sampler;
      const Tensor latents =
          text_to_image.denoise({request}, Models::random(5, {1, 12, 8, diffusion->latents().channels}));
      const std::vector<float> pixels = text_to_image.decode(latents).to_vector();
      pictures.insert(pictures.end(), pixels.begin(), pixels.end());
    }
    return pictures;
  }

  std::string forward(const Checkpoint& files, const std::string& component, const Tensors& in) const {
    save_safetensors(folder_ / "in", in);
    run_forward(files, component, folder_ / "in", folder_ / "out");
    return read_plain(folder_ / "out");
  }

  struct Result {
    std::vector<float> picture;
    std::map<std::string, std::string> components;
  };
  Result results(const Checkpoint& files, const std::map<std::string, Tensors>& inputs) const {
    Result all{picture(files), {}};
    for (const auto& [component, in] : inputs) all.components[component] = forward(files, component, in);
    return all;
  }
  void expect_same(const Result& found, const Result& expected) const {
    EXPECT_TRUE(found.picture == expected.picture) << "the pictures differ";
    for (const auto& [component, bytes] : expected.components)
      EXPECT_TRUE(found.components.at(component) == bytes) << component;
  }
};
using FileKinds = Kinds<DrawnModels>;
using SdxlKinds = Kinds<DrawnSdxl>;

TEST_F(FileKinds, OfFluxGiveTheSameBits) {
  const Tensors transformer = drawn_flux();
  const auto inputs = flux_inputs();
  const std::map<std::string, fs::path> parts = {{"transformer", save("flux", transformer)},
                                                 {"clip_l", save("clip_l", clip_l_)},
                                                 {"t5", save("t5", t5_)},
                                                 {"vae", save("vae", vae_)}};
  const Result expected = results(model({.parts = parts}), inputs);
  const auto with = [&](const std::string& part, const fs::path& file) {
    std::map<std::string, fs::path> others = parts;
    others[part] = file;
    SCOPED_TRACE(file.filename().string());
    expect_same(results(model({.parts = others}), inputs), expected);
  };
  with("transformer", save("flux, prefixed", behind("model.diffusion_model.", transformer)));
  const Tensors diffusers = in_diffusers_layout(transformer, kFluxLayout);
  with("transformer", save("flux, diffusers", diffusers));
  for (const DType dtype : {DType::f32, DType::f16}) {
    with("transformer", save_gguf_file("flux.gguf", transformer, dtype));
    with("t5", save_gguf_file("t5.gguf", in_gguf_layout(t5_), dtype));
  }
  for (const float scale : {1.0f, 0.0625f}) {
    with("transformer", save_fp8("flux, fp8", transformer, scale));
    with("t5", save_fp8("t5, fp8", t5_, scale));
  }
  with("vae", save("ae", in_ldm_layout(vae_)));
  expect_same(
      results(
          model({.model = save_folder(
                     kFlux,
                     {{"transformer", diffusers}, {"text_encoder", clip_l_}, {"text_encoder_2", t5_}, {"vae", vae_}})}),
          inputs),
      expected);

  Tensors all = behind("model.diffusion_model.", transformer);
  all.merge(behind("text_encoders.clip_l.transformer.", clip_l_));
  all.merge(behind("text_encoders.t5xxl.transformer.", t5_));
  all.merge(behind("vae.", in_ldm_layout(vae_)));
  expect_same(results(model({.model = save("all in one", all)}), inputs), expected);
}

TEST_F(FileKinds, OfSd3GiveTheSameBits) {
  const Tensors transformer = drawn_sd3();
  const auto inputs = sd3_inputs();
  const std::map<std::string, fs::path> parts = {{"transformer", save("sd3", transformer)},
                                                 {"clip_l", save("clip_l", clip_l_)},
                                                 {"clip_g", save("clip_g", big_g_)},
                                                 {"t5", save("t5", t5_)},
                                                 {"vae", save("vae", vae_)}};
  const Result expected = results(model({.parts = parts}), inputs);
  const auto with = [&](const fs::path& file) {
    std::map<std::string, fs::path> others = parts;
    others["transformer"] = file;
    SCOPED_TRACE(file.filename().string());
    expect_same(results(model({.parts = others}), inputs), expected);
  };
  with(save("sd3, prefixed", behind("model.diffusion_model.", transformer)));
  const Tensors diffusers = in_diffusers_layout(transformer, kSd3Layout);
  with(save("sd3, diffusers", diffusers));
  with(save_fp8("sd3, fp8", transformer, 0.0625f));
  for (const DType dtype : {DType::f32, DType::f16}) with(save_gguf_file("sd3.gguf", transformer, dtype));
  expect_same(results(model({.model = save_folder(kSd3, {{"transformer", diffusers},
                                                         {"text_encoder", clip_l_},
                                                         {"text_encoder_2", big_g_},
                                                         {"text_encoder_3", t5_},
                                                         {"vae", vae_}})}),
                      inputs),
              expected);

  Tensors all = behind("model.diffusion_model.", transformer);
  all.merge(behind("text_encoders.clip_l.transformer.", clip_l_));
  all.merge(behind("text_encoders.clip_g.transformer.", big_g_));
  all.merge(behind("text_encoders.t5xxl.transformer.", t5_));
  all.merge(behind("first_stage_model.", in_ldm_layout(vae_)));
  expect_same(results(model({.model = save("all in one", all)}), inputs), expected);
}

TEST_F(SdxlKinds, GiveTheSameBits) {
  const auto inputs = sdxl_inputs();
  const Result expected = results(model({.model = folder()}, false), inputs);
  const Tensors original = in_sgm_layout(unet_, /*convolutions=*/false);
  const fs::path whole = save("all in one", in_one_file());
  expect_same(results(model({.model = whole}, false), inputs), expected);
  expect_same(
      results(model({.model = whole, .parts = {{"vae", save("vae", in_ldm_layout(sdxl_vae_))}}}, false), inputs),
      expected);
  const fs::path in_fp8 = save_fp8("unet, fp8", behind("model.diffusion_model.", original), 1);
  expect_same(results(model({.model = whole, .parts = {{"transformer", in_fp8}}}, false), inputs), expected);

  const std::map<std::string, fs::path> parts = {{"transformer", save("unet", original)},
                                                 {"clip_l", save("clip_l", clip_l_)},
                                                 {"clip_g", save("clip_g", big_g_)},
                                                 {"vae", save("vae", sdxl_vae_)}};
  for (const auto& [name, tensors] : {std::pair("unet, prefixed", behind("model.diffusion_model.", original)),
                                      {"unet, diffusers", unet_},
                                      {"unet, convolutions", in_sgm_layout(unet_, /*convolutions=*/true)}}) {
    std::map<std::string, fs::path> others = parts;
    others["transformer"] = save(name, tensors);
    SCOPED_TRACE(name);
    expect_same(results(model({.parts = others}, false), inputs), expected);
  }
}

// A folder tells what the model predicts by its scheduler, a file by markers.
TEST_F(SdxlKinds, AreDrawnAlikeByAllSamplers) {
  std::vector<SamplerKind> samplers;
  for (const auto& [name, kind] : kSamplers) samplers.push_back(kind);
  const auto with = [](const std::string& changes) {
    Configs configs = kSdxl;
    std::string& scheduler = configs.at("scheduler");
    scheduler = scheduler.substr(0, scheduler.rfind('}')) + changes + "}";
    return configs;
  };
  const std::string v = R"(, "prediction_type": "v_prediction")";
  const Configs zero = [&] {
    Configs configs = with(v + R"(, "rescale_betas_zero_snr": true)");
    std::string& scheduler = configs.at("scheduler");
    scheduler = replaced(scheduler, "leading", "trailing");
    return configs;
  }();
  std::vector<std::vector<float>> all;
  for (const auto& [configs, markers] : std::vector<std::pair<Configs, std::vector<std::string>>>{
           {kSdxl, {}}, {with(v), {"v_pred"}}, {zero, {"v_pred", "ztsnr"}}}) {
    SCOPED_TRACE(markers.size());
    Tensors file = in_one_file();
    for (const std::string& marker : markers) file[marker] = zeros({0});
    all.push_back(picture(model({.model = folder(configs)}, false), samplers));
    const Checkpoint whole = model({.model = save("all in one", file)}, false);
    EXPECT_TRUE(picture(whole, samplers) == all.back()) << "the pictures differ";
    for (const float value : all.back()) ASSERT_TRUE(std::isfinite(value));
  }
  // In place of what the file says.
  const Checkpoint plain = model({.model = save("all in one", in_one_file())}, false);
  EXPECT_TRUE(picture(plain, samplers, PredictionSetting::v) == all[1]);
  // No sampler's picture is that of another one, or of a model that predicts something else.
  std::set<std::vector<float>> distinct;
  const size_t size = all[0].size() / samplers.size();
  for (const std::vector<float>& pictures : all)
    for (size_t i = 0; i < samplers.size(); ++i)
      distinct.emplace(pictures.begin() + ptrdiff_t(i * size), pictures.begin() + ptrdiff_t((i + 1) * size));
  EXPECT_EQ(distinct.size(), all.size() * samplers.size());
}

TEST_F(SdxlKinds, TellLorasWhatTheyPredict) {
  const auto told = [&](const std::vector<std::string>& markers,
                        PredictionSetting prediction = PredictionSetting::automatic) {
    Tensors all = in_one_file();
    for (const std::string& marker : markers) all[marker] = zeros({0});
    const auto metadata =
        open_diffusion(model({.model = save("all in one", all)}, false), {.prediction = prediction})->lora().metadata;
    return metadata.at("modelspec.prediction_type") + ", " + metadata.at("ss_zero_terminal_snr");
  };
  EXPECT_EQ(told({}), "epsilon, False");
  EXPECT_EQ(told({}, PredictionSetting::v), "v, False");
  EXPECT_EQ(told({"v_pred"}), "v, False");
  EXPECT_EQ(told({"v_pred", "ztsnr"}), "v, True");
}

// Only where some tensor stands for a part of the UNet that Wick does not compute.
TEST_F(SdxlKinds, TellWhatIsNotRead) {
  const auto remarks = [&](const std::vector<std::string>& more) {
    Tensors all = in_one_file();
    for (const std::string& name : more) all[name] = zeros({1});
    return open_diffusion(model({.model = save("all in one", all)}, false))->remarks();
  };
  EXPECT_TRUE(open_diffusion(model({.model = folder()}, false))->remarks().empty());
  EXPECT_TRUE(remarks({}).empty());
  EXPECT_TRUE(remarks({"v_pred", "ztsnr", "alphas_cumprod", "model_ema.decay", "model_ema.diffusion_modelout2bias",
                       "conditioner.embedders.0.transformer.text_model.embeddings.position_ids",
                       "conditioner.embedders.1.model.logit_scale", "first_stage_model.loss.discriminator.main.0.bias",
                       "denoiser.sigmas", "model.diffusion_model.v_pred", "model.diffusion_model.ztsnr"})
                  .empty());
  const auto told = remarks({"model.diffusion_model.time_embed.cond_proj.weight", "model.diffusion_model.zero.bias"});
  ASSERT_EQ(told.size(), 1);
  for (const char* word :
       {"all in one: 2 tensors of no part of the UNet", "\"time_embed.cond_proj.weight\"", "left out"})
    EXPECT_NE(told.front().find(word), std::string::npos) << told.front();

  const std::map<std::string, fs::path> parts = {{"transformer", save("bare",
                                                                      [&] {
                                                                        Tensors unet = in_sgm_layout(unet_, false);
                                                                        unet["v_pred"] = zeros({0});
                                                                        return unet;
                                                                      }())},
                                                 {"clip_l", save("clip_l", clip_l_)},
                                                 {"clip_g", save("clip_g", big_g_)},
                                                 {"vae", save("vae", sdxl_vae_)}};
  EXPECT_TRUE(open_diffusion(model({.parts = parts}, false))->remarks().empty());
}

// Tensors without meaning that say how a single file of SDXL was trained.
TEST_F(FileKinds, MarkersOfSdxlTellItsNoise) {
  const Tensor mark = zeros({1});
  const auto schedule = [&](const std::vector<std::string>& markers) {
    Tensors unet = {{"model.diffusion_model.input_blocks.0.0.weight", zeros({32, 4, 3, 3})},
                    {"model.diffusion_model.label_emb.0.0.weight", zeros({128, 160})}};
    for (const std::string& marker : markers) unet[marker] = mark;
    return NoiseSchedule::read(Checkpoint(save("marked.safetensors", unet)));
  };
  EXPECT_EQ(schedule({}).prediction, Prediction::noise);
  EXPECT_EQ(schedule({}).spacing, TimestepSpacing::leading);
  EXPECT_EQ(schedule({"v_pred"}).prediction, Prediction::v);
  EXPECT_GT(schedule({"v_pred"}).alpha_cumprod(999), 0);
  EXPECT_EQ(schedule({"v_pred", "ztsnr"}).alpha_cumprod(999), 0);
  EXPECT_EQ(schedule({"model.diffusion_model.v_pred", "ztsnr"}).spacing, TimestepSpacing::trailing);
  expect_error([&] { schedule({"edm_mean", "edm_std"}); }, {"marked.safetensors", "edm_mean", "Playground"});
  EXPECT_GT(schedule({"ztsnr"}).alpha_cumprod(999), 0);
}

}  // namespace
}  // namespace wick
