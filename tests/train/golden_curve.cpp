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

struct Curve {
  std::string file;                 // tests/golden/train/FILE
  LoraConfig lora = {};             // rates, beside those of the schedule
  OptimizerOptions optimizer = {};  // what is not in the file's metadata
  TrainConfig schedule = {};
};

// Ten steps on the golden LoRA with the golden noise; the norms of gradients and what is left.
void expect_curve(const Curve& curve) {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "train/in.safetensors");
  const SafetensorsFile out = SafetensorsFile::open(kGolden / "train" / curve.file);
  const auto number = [&](const char* key) { return std::stof(in.metadata().at(key)); };

  const std::unique_ptr<Diffusion> sdxl = open_diffusion(kGolden / "sdxl");
  Adapter lora(curve.lora, sdxl->lora().names);
  lora.add_file(kGolden / in.metadata().at("lora"), 1, /*trainable=*/true);
  sdxl->load({.adapter = &lora, .backend = &test::backend()}, {DiffusionPart::denoiser});
  OptimizerOptions options = curve.optimizer;
  options.rule = {
      .beta1 = number("beta1"), .beta2 = number("beta2"), .eps = number("eps"), .weight_decay = number("weight_decay")};
  options.max_grad_norm = number("max_grad_norm");
  Optimizer optimizer(lora.parameters(), options);
  TrainConfig schedule = curve.schedule;
  schedule.lr = double(number("lr"));

  const Tensor losses = out.load("losses"), norms = out.load("grad_norms");
  schedule.steps = losses.numel();
  for (int64_t i = 0; i < losses.numel(); ++i) {
    const auto input = [&](const char* name) { return at_step(in.load(name), i).to(test::memory()); };
    const Batch batch{.latents = to_channels_last(input("latents")),
                      .conditioning = {{"text states", input("prompt_embeds")},
                                       {"pooled text", input("text_embeds")},
                                       {"sizes", input("time_ids")}}};
    const Tensor noise = to_channels_last(input("noise")), timesteps = at_step(in.load("timesteps"), i);
    const NamedTensors noisy = noised(sdxl->process(), batch, noise, timesteps);
    if (out.tensors().contains("noisy_latents")) {
      EXPECT_LT(relative_distance(to_channels_first(noisy[kNoisedLatents]), at_step(out.load("noisy_latents"), i)),
                1e-6);
    }

    Tape tape;
    const Tensor loss = denoising_loss(*sdxl, noisy);
    optimizer.set(float(learning_rate(schedule, i)));
    optimizer.update(tape.backward(loss));
    const float norm = optimizer.scalars().window({1}, {1}, kGradNorm).item();
    EXPECT_NEAR(loss.item() / losses.data<float>()[i], 1, 1e-4) << "step " << i + 1;
    EXPECT_NEAR(norm / norms.data<float>()[i], 1, 1e-3) << "step " << i + 1;
  }
  for (const auto& [name, tensor] : lora.tensors()) EXPECT_LT(relative_distance(tensor, out.load(name)), 1e-3) << name;
  for (const Optimizer::State& state : optimizer.states())
    if (state.name.starts_with("ema.")) {
      EXPECT_LT(relative_distance(state.value, out.load(state.name)), 1e-3) << state.name;
    }
}

TEST(GoldenCurve, TenStepsAreThoseOfPyTorch) { expect_curve({.file = "out.safetensors"}); }

// --lr 1e-3 '*attn2*=5e-4' --lora-plus 4 --lr-schedule polynomial --lr-scheduler-power 2 --warmup 3 --ema 0.6
// --ema-warmup power
TEST(GoldenCurve, RatesSchedulesAndAveragesAreThoseOfPyTorch) {
  Curve curve{.file = "rates.out.safetensors",
              .lora = {.up_rate = 4},
              .optimizer = {.average = 0.6f, .average_warmup = AverageWarmup::power}};
  curve.lora.rate.others = {{"*attn2*", 0.5}};
  curve.schedule.lr_schedule = LrSchedule::polynomial;
  curve.schedule.lr_scheduler_power = 2;
  curve.schedule.warmup.value = 3;
  expect_curve(curve);
}

}  // namespace
}  // namespace wick
