#include "wick/pipelines/diffusion.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "device.h"
#include "io/files.h"
#include "pipelines/golden.h"
#include "wick/autograd/tape.h"
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

std::unique_ptr<Diffusion> open_comfyui(DiffusionOptions options = {}) {
  auto model = open_diffusion(kModel, {.syntax = PromptSyntax::comfyui});
  options.backend = &test::backend();
  model->load(options, {DiffusionPart::text_encoders, DiffusionPart::denoiser});
  return model;
}

// Also where the text encoders are trained and read ids in each step.
TEST(Sdxl, WeightsAndChunksAgreeWithTheGolden) {
  const SafetensorsFile states = open_golden("prompts/sdxl");
  const std::unique_ptr<Diffusion> frozen = open_comfyui();
  Adapter adapter({.rank = 2, .targets = {"text_encoder*"}}, frozen->lora().names);
  const std::unique_ptr<Diffusion> trained = open_comfyui({.adapter = &adapter});
  const auto told = nlohmann::json::parse(std::ifstream(kGolden / "prompts/prompts.json"));
  size_t compared = 0;
  for (size_t i = 0; i < told.size(); ++i) {
    const std::string prompt = told[i].at("prompt"), number = std::to_string(i);
    if (!states.has("states." + number)) continue;
    const NamedTensors ids = trained->caption(prompt), found = frozen->encode_text(frozen->caption(prompt)),
                       later = trained->encode_text(ids);
    EXPECT_EQ(ids["tokens 2"].to(host_memory()).numel(), int64_t(told[i].at("g").size()));
    EXPECT_EQ(std::vector(ids["tokens 2"].data<int64_t>(), ids["tokens 2"].data<int64_t>() + ids["tokens 2"].numel()),
              told[i].at("g").get<std::vector<int64_t>>());
    EXPECT_LE(relative_error(found["text states"], states.load("states." + number)), 1e-5) << prompt;
    EXPECT_LE(relative_error(found["pooled text"], states.load("pooled." + number)), 1e-5) << prompt;
    for (const auto& [name, value] : found) EXPECT_EQ(later[name].to_vector(), value.to_vector()) << prompt;
    ++compared;
  }
  EXPECT_GE(compared, 9);
}

std::unique_ptr<Diffusion> open_long(int64_t length, Adapter* adapter = nullptr) {
  auto model = open_diffusion(kModel, {.clip_chunks = length / 75});
  model->load({.adapter = adapter, .backend = &test::backend()},
              {DiffusionPart::text_encoders, DiffusionPart::denoiser});
  return model;
}

// Tolerances are ten times what PyTorch's float32 is from its float64: 2e-7 of the states, 2e-6 of the gradients.
// Ids and states as sd-scripts' own code has them, also where the text encoders are trained; a caption that fits into
// one chunk has the states of that many too.
TEST(Sdxl, LongCaptionsAgreeWithKohyasCode) {
  const SafetensorsFile golden = open_golden("long_captions/states");
  const auto told = nlohmann::json::parse(std::ifstream(kGolden / "long_captions/ids.json"));
  size_t compared = 0, counts = told.size() / 2;
  for (const int64_t length : {150, 225}) {
    const std::unique_ptr<Diffusion> frozen = open_long(length);
    Adapter adapter({.rank = 2, .targets = {"text_encoder*"}}, frozen->lora().names);
    const std::unique_ptr<Diffusion> trained = open_long(length, &adapter);
    EXPECT_EQ(frozen->length("").limit, length);
    EXPECT_EQ(frozen->negative({})["text states"].dim(1), length + 2);
    for (size_t i = 0; i < told.size(); ++i) {
      if (told[i].at("length") != length) continue;
      const std::string caption = told[i].at("caption"), key = fmt::format("{}.{}", length, i % counts);
      const NamedTensors ids = trained->caption(caption);
      for (const auto& [name, which] : {std::pair("tokens", "l"), {"tokens 2", "g"}})
        EXPECT_EQ(std::vector(ids[name].data<int64_t>(), ids[name].data<int64_t>() + ids[name].numel()),
                  told[i].at(which).get<std::vector<int64_t>>())
            << name << " of " << length << ": " << caption;
      if (!golden.has("states." + key)) continue;
      const NamedTensors found = frozen->encode_text(frozen->caption(caption)), later = trained->encode_text(ids);
      EXPECT_EQ(found["text states"].shape(), (Shape{1, length + 2, 40}));
      EXPECT_LE(relative_error(found["text states"], golden.load("states." + key)), 2e-6) << caption;
      EXPECT_LE(relative_error(found["pooled text"], golden.load("pooled." + key)), 2e-6) << caption;
      for (const auto& [name, value] : found) EXPECT_EQ(later[name].to_vector(), value.to_vector()) << caption;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 12);
}

TEST(Sdxl, GradientsOfLongCaptionsAgreeWithKohyasCode) {
  const SafetensorsFile golden = open_golden("long_captions/states");
  const auto told = nlohmann::json::parse(std::ifstream(kGolden / "long_captions/ids.json"));
  Adapter adapter(open_diffusion(kModel)->lora().names, {LoraFile{kGolden / "lora_te.safetensors"}}, true);
  const std::unique_ptr<Diffusion> model = open_long(225, &adapter);
  std::map<std::string, std::vector<Tensor>> rows;
  for (const size_t i : {2, 4})
    for (const auto& [name, ids] : model->caption(told[i].at("caption"))) rows[name].push_back(ids);
  NamedTensors batch;
  for (const auto& [name, ids] : rows) batch.add(name, cat(ids, 0));
  Tape tape;
  const NamedTensors text = model->encode_text(batch);
  const Grads grads = tape.backward(mean(square(text["text states"])) + mean(square(text["pooled text"])));
  size_t compared = 0;
  for (const auto& [name, gradient] : adapter.gradients(grads)) {
    const Tensor expected = golden.load(name);
    const std::vector<float> values = expected.to_vector();
    if (std::ranges::all_of(values, [](float value) { return value == 0; }))
      EXPECT_EQ(gradient.to_vector(), values) << name;  // behind the penultimate layer
    else
      EXPECT_LE(relative_error(gradient, expected), 2e-5) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 60);
}

// Each row of a batch is predicted as if it were alone, however long the others' texts are.
TEST(Sdxl, TextsOfUnlikeLengthsAreJoined) {
  const std::unique_ptr<Diffusion> model = open_comfyui();
  std::string words = "(heart:1.2)";
  std::vector<NamedTensors> texts;
  for (const int64_t chunks : {1, 2, 3}) {
    texts.push_back(model->encode_text(model->caption(words)));
    EXPECT_EQ(texts.back()["text states"].dim(1), 77 * chunks);
    EXPECT_EQ(model->length(words).limit, TextLength{}.limit);
    for (int word = 0; word < 75; ++word) words += " a";
  }
  texts.push_back(model->negative({}));
  const auto framed = [&](NamedTensors parts, size_t rows) {
    parts.add(model->framing(
        std::vector<PictureFrame>(rows, {.height = 64, .width = 64, .target_height = 64, .target_width = 64})));
    return parts;
  };
  const Tensor x = full({1, 8, 8, 4}, 0.5f, DType::f32, test::memory());
  const auto times = [&](int64_t rows) { return full({rows}, 500, DType::f32, test::memory()); };
  const NamedTensors joined = model->joined(texts);
  EXPECT_EQ(joined["text states"].dim(1), 77 * 6);
  const Tensor all = model->predict(cat({x, x, x, x}, 0), times(4), framed(joined, 4));
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_LE(relative_error(slice(all, 0, i, i + 1), model->predict(x, times(1), framed(texts[size_t(i)], 1))), 1e-5);
}

}  // namespace
}  // namespace wick
