// FLUX as a Diffusion, against FluxPipeline on a tiny random one.
#include <gtest/gtest.h>

#include "device.h"
#include "flow_folder.h"
#include "golden.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/memory_fit.h"
#include "wick/pipelines/plan.h"
#include "wick/pipelines/text_to_image.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class FluxPipeline : public testing::Test {
 protected:
  FluxPipeline() {
    const SafetensorsFile in = open_golden("flux_pictures/pictures.in");
    const auto& told = in.metadata();
    request.prompt = told.at("prompt");
    request.width = std::stoll(told.at("width"));
    request.height = std::stoll(told.at("height"));
    request.sampling.steps = std::stoll(told.at("num_inference_steps"));
    request.guidance = std::stof(told.at("guidance_scale"));
    negative = told.at("negative_prompt");
    cfg = std::stof(told.at("true_cfg_scale"));
    tokens = std::stoll(told.at("max_sequence_length"));
    noise = to_channels_last(in.load("noise")).to(test::memory());
  }

  const test::FlowFolder folder{"flux_pictures"};
  ImageRequest request{.cfg = 1};
  std::string negative;
  float cfg;
  int64_t tokens;
  Tensor noise;
};

TEST_F(FluxPipeline, AgreesWithDiffusers) {
  const SafetensorsFile out = open_golden("flux_pictures/pictures.out");
  const std::unique_ptr<Diffusion> model = open_diffusion(folder.path(), {.t5 = {.tokens = tokens}});
  model->load({.backend = &test::backend()}, kDrawingParts);
  TextToImage text_to_image(*model);
  for (const std::string name : {"plain", "cfg"}) {
    if (name == "cfg") request.negative = negative, request.cfg = cfg;
    const Tensor found = text_to_image.denoise({request}, noise);
    EXPECT_LE(relative_error(to_channels_first(found), out.load(name + ".latents")), 1e-5) << name;
    EXPECT_LE(relative_error(to_channels_first(text_to_image.decode(found)), out.load(name + ".decoded")), 1e-5);
  }
}

// Page-locked or staged; two pictures, of which the second replays the first one's steps where the backend can.
TEST_F(FluxPipeline, StreamedWeightsDrawTheSamePictures) {
  const auto drawn = [&](const Holding& held) {
    const std::unique_ptr<Diffusion> model = open_diffusion(folder.path(), {.t5 = {.tokens = tokens}});
    const DiffusionOptions options{.backend = &test::backend(),
                                   .block_schedule = held.block_schedule(),
                                   .stream_text_encoder = held.stream_text_encoder};
    TextToImage text_to_image = TextToImage::load(*model, options, {request});
    std::vector<std::vector<uint8_t>> pictures;
    for (request.seed = 1; request.seed < 3; ++request.seed) pictures.push_back(text_to_image(request).rgb);
    return pictures;
  };
  const auto resident = drawn({});
  EXPECT_NE(resident[0], resident[1]);
  for (const bool staged : {false, true}) {
    EXPECT_EQ(drawn({.streamed = BlockSchedule::kAll, .stream_text_encoder = true, .staged = staged}), resident);
    EXPECT_EQ(drawn({.streamed = 1, .staged = staged}), resident);
  }
}

// Those of T5 and of the transformer, each by itself and both together.
TEST_F(FluxPipeline, SeveralShareStreamedWeights) {
  Memory& host = test::memory().host_side();
  struct Loaded {
    std::unique_ptr<Diffusion> model;
    std::vector<uint8_t> picture;
    size_t bytes;
  };
  const auto loaded = [&](const Holding& held) {
    const size_t before = host.held(Purpose::weights);
    Loaded one{.model = open_diffusion(folder.path(), {.t5 = {.tokens = tokens}})};
    one.model->load({.backend = &test::backend(),
                     .block_schedule = held.block_schedule(),
                     .stream_text_encoder = held.stream_text_encoder},
                    kDrawingParts);
    one.bytes = host.held(Purpose::weights) - before;
    one.picture = TextToImage(*one.model)(request).rgb;
    return one;
  };
  const std::vector<uint8_t> expected = loaded({}).picture;
  const auto saved = [&](size_t streamed, bool text_encoder) {
    const Holding held{
        .streamed = streamed, .stream_text_encoder = text_encoder, .copies = std::make_shared<HostCopies>(2)};
    const Loaded first = loaded(held), second = loaded(held);
    EXPECT_EQ(first.picture, expected);
    EXPECT_EQ(second.picture, expected);
    return first.bytes - second.bytes;
  };
  const size_t blocks = saved(BlockSchedule::kAll, false), t5 = saved(0, true);
  EXPECT_GT(blocks, 0u);
  EXPECT_GT(t5, 0u);
  EXPECT_EQ(saved(BlockSchedule::kAll, true), blocks + t5);
}

// T5 is gone before the blocks come, and the larger of both lies in ordinary memory.
TEST_F(FluxPipeline, PlansWeightsThatAreStaged) {
  const auto plan = [&](const Holding& held) {
    return plan_image(
        folder.path(), {request},
        {.block_schedule = held.block_schedule(), .stream_text_encoder = held.stream_text_encoder, .costs = true},
        device_kind("cuda"));
  };
  const auto held = [&](size_t streamed, bool text_encoder, const std::optional<HostLimit>& host) {
    return plan_held({.streamed = streamed, .stream_text_encoder = text_encoder}, host, plan).plan;
  };
  const InferencePlan blocks = held(BlockSchedule::kAll, false, {}), t5 = held(0, true, {}),
                      locked = held(BlockSchedule::kAll, true, {});
  EXPECT_EQ(locked.host, std::max(blocks.host, t5.host));
  EXPECT_EQ(locked.staged, 0u);
  const InferencePlan staged = held(BlockSchedule::kAll, true, HostLimit{locked.host - 1, 2 * locked.host});
  EXPECT_EQ(staged.staged, locked.host);
  EXPECT_GT(staged.host, 0u);
  EXPECT_EQ(staged.total(), locked.total());
  EXPECT_GT(staged.seconds(), locked.seconds());
  EXPECT_EQ(held(BlockSchedule::kAll, true, HostLimit{locked.host - 1, locked.host}).staged, 0u)
      << "what it comes through has no room beside it";
}

// T5's states are weighted; CLIP gives its first chunk's pooled state, which no weight changes.
TEST_F(FluxPipeline, WeightsGoToT5) {
  const auto encoded = [&](PromptSyntax syntax, const std::string& prompt) {
    const auto model = open_diffusion(folder.path(), {.t5 = {.tokens = 8}, .syntax = syntax});
    model->load({.backend = &test::backend()}, kDrawingParts);
    return model->encode_text(model->caption(prompt));
  };
  const NamedTensors weighted = encoded(PromptSyntax::comfyui, "a (fox:0.25)"),
                     plain = encoded(PromptSyntax::plain, "a fox"), empty = encoded(PromptSyntax::plain, "");
  EXPECT_LE(relative_error(weighted["pooled text"], plain["pooled text"]), 1e-6);
  const std::vector<float> found = weighted["T5 states"].to_vector(), z = plain["T5 states"].to_vector(),
                           e = empty["T5 states"].to_vector();
  const size_t width = z.size() / 8;
  std::vector<size_t> changed;
  for (size_t token = 0; token < 8; ++token) {
    bool is_weighted = false;
    for (size_t i = token * width; i < (token + 1) * width; ++i) {
      is_weighted = is_weighted || std::abs(found[i] - z[i]) > 1e-5f;
      EXPECT_TRUE(std::abs(found[i] - z[i]) < 1e-5f || std::abs(found[i] - (e[i] + 0.25f * (z[i] - e[i]))) < 1e-5f);
    }
    if (is_weighted) changed.push_back(token);
  }
  EXPECT_FALSE(changed.empty());
  EXPECT_GT(changed.front(), 0);  // "a"
  EXPECT_LT(changed.back(), 7);   // padding
}

TEST_F(FluxPipeline, TakesItsTimesFromTheScheduler) {
  write_plain(folder.path() / "scheduler/scheduler_config.json",
              R"({"num_train_timesteps": 500, "shift": 1, "shift_terminal": 0.1})");
  const Sampler sampler = open_diffusion(folder.path())->process().sampler({.steps = 2}, noise.shape());
  EXPECT_EQ(sampler.steps[0].timestep, 500);
  EXPECT_NEAR(sampler.steps[1].timestep, 50, 1e-4);  // 0.5, stretched to the terminal
  EXPECT_GT(plan_image(folder.path(), {request}, {}, device_kind("cpu")).taken, 0);
}

TEST_F(FluxPipeline, SaysWhichPartsDoNotFit) {
  const auto with = [&](const char* component, const fs::path& other) {
    const test::FlowFolder odd("flux_pictures");
    fs::remove_all(odd.path() / component);
    fs::copy(kGolden / other, odd.path() / component);
    open_diffusion(odd.path());
  };
  expect_error([&] { with("text_encoder", "sdxl/text_encoder"); }, {"CLIP's pooled states", "16", "8"});
  expect_error([&] { with("text_encoder_2", "t5/three/text_encoder_3"); }, {"T5's states", "16", "24"});
  expect_error([&] { with("vae", "sdxl/vae"); }, {"VAE's latents", "4", "16"});
}

// Saves a folder's transformer with one more tensor.
void add_tensor(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / "transformer/diffusion_pytorch_model.safetensors";
  std::map<std::string, Tensor> tensors;
  {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [key, info] : file.tensors()) tensors[key] = file.load(key);
  }
  tensors[name] = zeros({1});
  save_safetensors(path, tensors);
}

TEST_F(FluxPipeline, RemarksOnWhatItDoesNotRead) {
  const auto remarks = [&] { return open_diffusion(folder.path())->remarks(); };
  EXPECT_TRUE(remarks().empty());
  add_tensor(folder.path(), "transformer_blocks.0.attn.extra");
  ASSERT_EQ(remarks().size(), 1);
  for (const char* word : {"1 tensor ", "\"transformer_blocks.0.attn.extra\"", "is left out"})
    EXPECT_NE(remarks().front().find(word), std::string::npos) << remarks().front();
  add_tensor(folder.path(), "time_text_embed.timestep_embedder.linear_1.scale_weight");  // fp8's, of one that is read
  EXPECT_EQ(remarks().size(), 1);

  write_plain(folder.path() / "model_index.json", R"({"_class_name": "FluxKontextPipeline"})");
  ASSERT_EQ(remarks().size(), 2);
  EXPECT_NE(remarks().back().find("Kontext"), std::string::npos);
}

TEST_F(FluxPipeline, OtherModelsOfItsShapeAreRefusedByName) {
  const auto expect_refused = [](int channels, const char* name) {
    test::FlowFolder other("flux_pictures");
    write_plain(other.path() / "transformer/config.json",
                R"({"_class_name": "FluxTransformer2DModel", "in_channels": )" + std::to_string(channels) + "}");
    fs::remove(other.path() / "transformer/diffusion_pytorch_model.safetensors");
    expect_error([&] { open_diffusion(other.path()); }, {name, "Wick supports FLUX.1 dev"});
  };
  expect_refused(384, "FLUX.1 Fill");
  expect_refused(128, "FLUX.1 Canny or Depth");
}

}  // namespace
}  // namespace wick
