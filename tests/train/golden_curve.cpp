// Ten steps of LoRA training against PyTorch's, with the same noise (tools/golden/training.py).
#include <gtest/gtest.h>

#include <cmath>

#include "device.h"
#include "source_dir.h"
#include "wick/io/safetensors.h"
#include "wick/ops/ops.h"
#include "wick/train/objective.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden";

// Step i of a tensor [steps, ...].
Tensor at_step(const Tensor& all, int64_t i) {
  const Tensor one = contiguous(slice(all, 0, i, i + 1));
  return reshape(one, Shape(one.shape().begin() + 1, one.shape().end()));
}

double relative_distance(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to_vector(), y = b.to_vector();
  double distance = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    distance += std::pow(double(x[i]) - double(y[i]), 2);
    size += std::pow(double(y[i]), 2);
  }
  return std::sqrt(distance / size);
}

TEST(GoldenCurve, TenStepsAreThoseOfPyTorch) {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "train/in.safetensors");
  const SafetensorsFile out = SafetensorsFile::open(kGolden / "train/out.safetensors");
  const auto number = [&](const char* key) { return std::stof(in.metadata().at(key)); };

  const std::unique_ptr<Diffusion> sdxl = open_diffusion(kGolden / "sdxl");
  Adapter lora(sdxl->lora().names, {{kGolden / in.metadata().at("lora")}}, /*trainable=*/true);
  sdxl->load({.adapter = &lora, .backend = &test::backend()}, {DiffusionPart::denoiser});
  Optimizer optimizer(lora.parameters(), {.rule = {.beta1 = number("beta1"),
                                                   .beta2 = number("beta2"),
                                                   .eps = number("eps"),
                                                   .weight_decay = number("weight_decay")},
                                          .lr = number("lr"),
                                          .max_grad_norm = number("max_grad_norm")});

  const Tensor losses = out.load("losses"), norms = out.load("grad_norms");
  for (int64_t i = 0; i < losses.numel(); ++i) {
    const auto input = [&](const char* name) { return at_step(in.load(name), i).to(test::memory()); };
    const Batch batch{.latents = to_channels_last(input("latents")),
                      .conditioning = {{"text states", input("prompt_embeds")},
                                       {"pooled text", input("text_embeds")},
                                       {"sizes", input("time_ids")}}};
    const Tensor noise = to_channels_last(input("noise")), timesteps = at_step(in.load("timesteps"), i);
    const NamedTensors noisy = noised(sdxl->process(), batch, noise, timesteps);
    const Tensor latents = to_channels_first(noisy[kNoisedLatents]);
    EXPECT_LT(relative_distance(latents, at_step(out.load("noisy_latents"), i)), 1e-6);

    Tape tape;
    const Tensor loss = denoising_loss(*sdxl, noisy);
    const float norm = optimizer.step(tape.backward(loss));
    EXPECT_NEAR(loss.item() / losses.data<float>()[i], 1, 1e-4) << "step " << i + 1;
    EXPECT_NEAR(norm / norms.data<float>()[i], 1, 1e-3) << "step " << i + 1;
  }
  for (const auto& [name, tensor] : lora.tensors()) EXPECT_LT(relative_distance(tensor, out.load(name)), 1e-3) << name;
}

}  // namespace
}  // namespace wick
