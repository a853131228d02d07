// SD3 as a Diffusion, against StableDiffusion3Pipeline on a tiny random one.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "device.h"
#include "flow_folder.h"
#include "golden.h"
#include "io/files.h"
#include "wick/backend/counting.h"
#include "wick/io/json.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/text_to_image.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class TinySd3 : public test::FlowFolder {
 public:
  TinySd3() : FlowFolder("sd3") {}

  std::unique_ptr<Diffusion> open(const T5Options& t5, DiffusionOptions options = {}) const {
    auto model = open_diffusion(path(), {.t5 = t5});
    options.backend = &test::backend();
    model->load(options, kDrawingParts);
    return model;
  }
};

class Sd3Pipeline : public testing::Test {
 protected:
  Sd3Pipeline() {
    const SafetensorsFile in = open_golden("sd3/pictures.in");
    const auto& told = in.metadata();
    request.prompt = told.at("prompt");
    request.negative = told.at("negative_prompt");
    request.width = std::stoll(told.at("width"));
    request.height = std::stoll(told.at("height"));
    request.sampling.steps = std::stoll(told.at("num_inference_steps"));
    request.cfg = std::stof(told.at("guidance_scale"));
    tokens = std::stoll(told.at("max_sequence_length"));
    noise = to_channels_last(in.load("noise")).to(test::memory());
  }

  std::vector<float> latents(const Diffusion& model) const {
    return TextToImage(model).denoise({request}, noise).to_vector();
  }

  const TinySd3 folder;
  ImageRequest request;
  int64_t tokens;
  Tensor noise;
};

TEST_F(Sd3Pipeline, AgreesWithDiffusers) {
  const SafetensorsFile out = open_golden("sd3/pictures.out");
  const auto model = folder.open({.tokens = tokens});
  TextToImage text_to_image(*model);
  for (const std::string name : {"plain", "skip"}) {
    if (name == "skip") request.skip = {.scale = 2.5f, .layers = {0, 5}, .start = 0.1, .stop = 0.6};
    const Tensor found = text_to_image.denoise({request}, noise);
    EXPECT_LE(relative_error(to_channels_first(found), out.load(name + ".latents")), 1e-5) << name;
    EXPECT_LE(relative_error(to_channels_first(text_to_image.decode(found)), out.load(name + ".decoded")), 1e-5);
  }
}

// If the negative prompt equals the prompt, classifier-free guidance of any scale changes nothing. So --cfg 1 should
// give the picture that diffusers draws with guidance (above). Skip-layer guidance acts at --cfg 1 too, as in ComfyUI;
// diffusers leaves it out there.
TEST_F(Sd3Pipeline, SkipLayerGuidanceActsWithoutClassifierFreeGuidance) {
  const auto model = folder.open({.tokens = tokens});
  TextToImage text_to_image(*model);
  const auto drawn = [&](float cfg, float scale) {
    request.negative = request.prompt;
    request.cfg = cfg;
    request.skip = {.scale = scale, .layers = {0, 5}, .start = 0.1, .stop = 0.6};
    return to_channels_first(text_to_image.denoise({request}, noise)).to_vector();
  };
  const std::vector<float> plain = drawn(1, 0), alone = drawn(1, 2.5f);
  EXPECT_LE(relative_error(drawn(4, 0), plain), 1e-5);
  EXPECT_LE(relative_error(alone, drawn(4, 2.5f)), 1e-5);
  EXPECT_GT(relative_error(alone, plain), 1e-2);
}

// Stability's sampler, as tools/golden/sd3.py writes it from the formula.
TEST_F(Sd3Pipeline, AgreesWithStabilitysSampler) {
  request.sampling.kind = SamplerKind::dpmpp_2m;
  const auto model = folder.open({.tokens = tokens});
  const Tensor found = TextToImage(*model).denoise({request}, noise);
  EXPECT_LE(relative_error(to_channels_first(found), open_golden("sd3/pictures.out").load("dpmpp.latents")), 1e-5);
}

TEST_F(Sd3Pipeline, DrawsFromAPictureAsDiffusersDoes) {
  const SafetensorsFile golden = open_golden("sd3/from_picture");
  const auto model = folder.open({.tokens = tokens});
  model->load({.backend = &test::backend()}, {DiffusionPart::vae_encoder});
  request.picture = model->encode(affine(to_channels_last(golden.load("picture")).to(test::memory()), 2, -1)).mean;
  TextToImage text_to_image(*model);
  for (const std::string strength : {"0.4", "0.75"}) {
    request.sampling.skipped = model->process().skipped(request.sampling.steps, std::stod(strength));
    const Tensor found = text_to_image.denoise({request}, noise);
    EXPECT_LE(relative_error(to_channels_first(found), golden.load(strength + ".latents")), 1e-5) << strength;
    EXPECT_LE(relative_error(to_channels_first(text_to_image.decode(found)), golden.load(strength + ".decoded")), 1e-5);
  }
}

// Padding that no token sees may be longer; padding that is seen matters.
TEST_F(Sd3Pipeline, AMaskHidesPadding) {
  request.sampling.steps = 2;
  const auto with = [&](int64_t count, bool mask) { return latents(*folder.open({.tokens = count, .mask = mask})); };
  const std::vector<float> masked = with(tokens, true);
  EXPECT_LE(relative_error(with(tokens + 19, true), masked), 1e-5);
  EXPECT_GT(relative_error(with(tokens, false), masked), 1e-3);
  EXPECT_GT(relative_error(with(tokens + 19, false), with(tokens, false)), 1e-3);
}

// One that is given for both pads as CLIP-L does, and bigG's is padded with zeros.
TEST_F(Sd3Pipeline, OneTokenizerOfClipServesBothEncoders) {
  const Checkpoint both =
      ModelFiles{.model = folder.path(), .parts = {{"clip_tokenizer", folder.path() / "tokenizer"}}};
  const auto given = open_diffusion(both, {.t5 = {.tokens = tokens}}), own = folder.open({.tokens = tokens});
  given->load({.backend = &test::backend()}, kDrawingParts);
  const NamedTensors found = given->encode_text(given->caption(request.prompt)),
                     expected = own->encode_text(own->caption(request.prompt));
  for (const char* name : {"CLIP states", "pooled text"})
    EXPECT_EQ(found[name].to_vector(), expected[name].to_vector()) << name;
}

TEST_F(Sd3Pipeline, WeightsAndChunksAgreeWithTheGolden) {
  const SafetensorsFile states = open_golden("prompts/sd3");
  const auto model = open_diffusion(folder.path(), {.t5 = {.tokens = 256}, .syntax = PromptSyntax::comfyui});
  model->load({.backend = &test::backend()}, kDrawingParts);
  const nlohmann::json told = read_json(kGolden / "prompts/prompts.json");
  size_t compared = 0;
  for (size_t i = 0; i < told.size(); ++i) {
    const std::string prompt = told[i].at("prompt"), number = std::to_string(i);
    if (!states.has("t5." + number)) continue;
    const NamedTensors found = model->encode_text(model->caption(prompt));
    for (const auto& [name, golden] :
         {std::pair{"CLIP states", "clip."}, {"pooled text", "pooled."}, {"T5 states", "t5."}})
      EXPECT_LE(relative_error(found[name], states.load(golden + number)), 1e-5) << name << ": " << prompt;
    ++compared;
  }
  EXPECT_GE(compared, 9);
}

// Each row of a batch is predicted as if it were alone, however many chunks of CLIP's the others have.
TEST_F(Sd3Pipeline, TextsOfUnlikeChunksAreJoined) {
  const auto model = open_diffusion(folder.path(), {.t5 = {.tokens = 256}, .syntax = PromptSyntax::comfyui});
  model->load({.backend = &test::backend()}, kDrawingParts);
  std::string words = "(fox:1.2)";
  std::vector<NamedTensors> texts;
  for (const int64_t chunks : {1, 2, 3}) {
    texts.push_back(model->encode_text(model->caption(words)));
    EXPECT_EQ(texts.back()["CLIP states"].dim(1), 77 * chunks);
    for (int word = 0; word < 75; ++word) words += " a";
  }
  const Tensor x = noise, time = full({1}, 500, DType::f32, test::memory());
  const NamedTensors joined = model->joined(texts);
  EXPECT_EQ(joined["CLIP states"].shape(), (Shape{3, 77 * 3, 20}));
  const Tensor all = model->predict(cat({x, x, x}, 0), cat({time, time, time}, 0), joined);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_LE(relative_error(slice(all, 0, i, i + 1), model->predict(x, time, texts[size_t(i)])), 1e-5) << i;
}

TEST_F(Sd3Pipeline, WhatComfyUIDoesNotDoIsRefusedInItsSyntax) {
  const auto model = open_diffusion(folder.path(), {.t5 = {.tokens = 4}, .syntax = PromptSyntax::comfyui});
  expect_error([&] { model->caption("a fox in the (snow:1.2)"); }, {"--t5-tokens", "tokens", "found 4"});
  expect_error([&] { open_diffusion(folder.path(), {.t5 = {.mask = true}, .syntax = PromptSyntax::comfyui}); },
               {"--t5-mask", "--prompt-syntax comfyui"});
}

// A LoRA that begins with zeros changes nothing but where texts are encoded.
TEST_F(Sd3Pipeline, TrainedEncodersReadIdsInEachStep) {
  const auto frozen = folder.open({.tokens = tokens, .mask = true});
  const NamedTensors expected = frozen->encode_text(frozen->caption(request.prompt));
  for (const std::string component : {"text_encoder", "text_encoder_2", "text_encoder_3"}) {
    Adapter adapter({.rank = 2, .targets = {component + ".*"}}, frozen->lora().names);
    const auto trained = folder.open({.tokens = tokens, .mask = true}, {.adapter = &adapter});
    const NamedTensors ids = trained->caption(request.prompt);
    EXPECT_EQ(ids.has("tokens"), component != "text_encoder_3");
    EXPECT_EQ(ids.has("T5 tokens"), component == "text_encoder_3");
    trained->drop_encoders();
    Tape tape;
    const NamedTensors found = trained->encode_text(ids);
    ASSERT_EQ(found.size(), expected.size());
    Tensor sum_of_squares;
    for (const auto& [name, value] : expected) {
      EXPECT_EQ(found[name].to_vector(), value.to_vector()) << component << ": " << name;
      if (!is_float(value.dtype())) continue;
      const Tensor term = sum(square(found[name]));
      sum_of_squares = sum_of_squares ? sum_of_squares + term : term;
    }
    const Grads grads = tape.backward(sum_of_squares);
    double largest = 0;  // the ups begin as zeros: the gradient flows to them
    for (const auto& [name, gradient] : adapter.gradients(grads))
      for (const float d : gradient.to_vector()) largest = std::max(largest, double(std::abs(d)));
    EXPECT_GT(largest, 0) << component;
  }
}

TEST_F(Sd3Pipeline, TellsItsSizesWithoutWeights) {
  CountingBackend counting(device_kind("cpu"));  // outlives what lies in its memory
  const auto model = open_diffusion(folder.path());
  const LatentSpace space = model->latents();
  EXPECT_EQ(std::tuple(space.channels, space.factor, space.side_step, space.native), std::tuple(16, 4, 8, 64));
  EXPECT_EQ(model->t5_tokens(), 256);
  EXPECT_EQ(model->lora().metadata.at("ss_base_model_version"), "5-medium");
  model->load({.backend = &counting, .outline = true}, kDrawingParts);
  const NamedTensors parts = model->encode_text(model->caption("a fox"));
  EXPECT_EQ(parts["T5 states"].shape(), (Shape{1, 256, 24}));
  EXPECT_EQ(parts["CLIP states"].shape(), (Shape{1, 77, 20}));
  EXPECT_EQ(parts["pooled text"].shape(), (Shape{1, 18}));
  const Tensor x = zeros({1, 8, 12, 16}, DType::f32, counting.memory());
  EXPECT_EQ(model->predict(x, zeros({1}, DType::f32, counting.memory()), parts).shape(), x.shape());
}

// Replaces one tensor of a file.
void replace(const fs::path& path, const std::string& name, const Tensor& value) {
  std::map<std::string, Tensor> tensors;
  {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [key, info] : file.tensors()) tensors[key] = file.load(key);
  }
  ASSERT_EQ(tensors.at(name).shape(), value.shape());
  tensors[name] = value;
  save_safetensors(path, tensors);
}

TEST_F(Sd3Pipeline, RemarksOnFilesThatOthersReadOtherwise) {
  const auto remarks = [&] { return open_diffusion(folder.path())->remarks(); };
  ASSERT_EQ(remarks().size(), 1);
  EXPECT_NE(remarks().front().find("text_encoder projects"), std::string::npos) << remarks().front();

  std::vector<float> identity(64);
  for (size_t i = 0; i < identity.size(); i += 9) identity[i] = 1;
  replace(folder.path() / "text_encoder/model.safetensors", "text_projection.weight", Tensor::of(identity, {8, 8}));
  EXPECT_TRUE(remarks().empty());

  replace(folder.path() / "transformer/diffusion_pytorch_model.safetensors", "pos_embed.pos_embed",
          full({1, 144, 16}, 0.25f));
  ASSERT_EQ(remarks().size(), 1);
  EXPECT_NE(remarks().front().find("transformer stores other positions"), std::string::npos) << remarks().front();
}

TEST_F(Sd3Pipeline, SaysWhichPartsDoNotFit) {
  const auto expect_wrong = [&](const char* component, std::initializer_list<std::string_view> parts) {
    const TinySd3 other;
    const fs::path target = other.path() / component;
    fs::remove_all(target);
    const std::map<std::string, fs::path> odd = {{"text_encoder_3", kGolden / "t5/three/text_encoder_3"},
                                                 {"text_encoder_2", kGolden / "sdxl/text_encoder_2"},
                                                 {"vae", kGolden / "sdxl/vae"}};
    if (odd.contains(component)) fs::copy(odd.at(component), target);
    expect_error([&] { open_diffusion(other.path()); }, parts);
  };
  expect_wrong("text_encoder_3", {"T5's states", "16", "24"});
  expect_wrong("text_encoder_2", {"CLIP", "pooled", "28", "18"});
  expect_wrong("vae", {"VAE's latents", "4", "16"});
  expect_wrong("text_encoder", {"text_encoder"});
}

}  // namespace
}  // namespace wick
