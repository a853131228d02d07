// One LoRA training step of an SDXL UNet: what bench/peers/train_step.py measures of PyTorch, as the same JSON line.
#include <fmt/core.h>
#include <omp.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>

#include "timing.h"
#include "wick/models/sdxl.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/noise_schedule.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

struct Arguments {
  std::filesystem::path model;
  int64_t batch = 1, height = 32, width = 32;  // of the latents
  int steps = 10, warmup = 2, rank = 32;
  bool checkpoint = false;
};

class TrainStep {
 public:
  explicit TrainStep(const Arguments& a)
      : config_(UNetConfig::read(a.model / "unet")),
        adapter_({.rank = a.rank, .targets = sdxl_default_targets()}, sdxl_module_names(config_)),
        unet_(Scope(Weights::open(a.model / "unet"), "unet", &adapter_), config_, a.checkpoint),
        optimizer_(adapter_.parameters(), {.lr = 1e-4f}),
        schedule_(NoiseSchedule::read(a.model / "scheduler")) {
    const float h = float(a.height * 8), w = float(a.width * 8);
    latents_ = random_normal({a.batch, a.height, a.width, config_.in_channels}, rng_);
    context_ = random_normal({a.batch, 77, config_.cross_attention_dim}, rng_);
    pooled_ = random_normal({a.batch, config_.added_dim - 6 * config_.time_ids_dim}, rng_);
    time_ids_ = clone(expand(Tensor::of(std::vector<float>{h, w, 0, 0, h, w}, {1, 6}), {a.batch, 6}));
  }

  float operator()() {
    const Tensor noise = random_normal(latents_.shape(), rng_);
    std::vector<int64_t> t;
    for (int64_t i = 0; i < latents_.dim(0); ++i) t.push_back(int64_t(rng_.below(uint64_t(schedule_.train_steps()))));
    const Tensor timesteps = Tensor::of(t, {latents_.dim(0)});

    Tape tape;
    const Tensor predicted = unet_({.sample = schedule_.add_noise(latents_, noise, timesteps),
                                    .timestep = cast(timesteps, DType::f32),
                                    .context = context_,
                                    .text_embeds = pooled_,
                                    .time_ids = time_ids_});
    const Tensor loss = mse_loss(predicted, noise);
    optimizer_.step(tape.backward(loss));
    return loss.item();
  }

  int64_t parameters() const {
    int64_t count = 0;
    for (const Parameter& p : optimizer_.parameters()) count += p.value.numel();
    return count;
  }

 private:
  UNetConfig config_;
  Adapter adapter_;
  SdxlUNet unet_;
  AdamW optimizer_;
  NoiseSchedule schedule_;
  Rng rng_{0};
  Tensor latents_, context_, pooled_, time_ids_;
};

void run(const Arguments& a) {
  TrainStep step(a);
  const auto times = bench::measure([&] { step(); }, a.warmup, a.steps);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print(
      R"({{"bench": "train_step", "peer": "wick", "model": "{}", "device": "cpu", "dtype": "float32", "threads": {}, )"
      R"("batch": {}, "height": {}, "width": {}, "rank": {}, "checkpoint": {}, "lora_parameters": {}, "steps": {}, )"
      R"("median_ms": {:.3f}, "min_ms": {:.3f}, "max_ms": {:.3f}, "peak_rss_mib": {}}})"
      "\n",
      a.model.filename().string(), omp_get_max_threads(), a.batch, a.height, a.width, a.rank, a.checkpoint,
      step.parameters(), a.steps, times.median * 1e3, times.min * 1e3, times.max * 1e3, usage.ru_maxrss / 1024);
}

}  // namespace
}  // namespace wick

int main(int argc, char** argv) {
  wick::Arguments a;
  CLI::App app;
  app.add_option("--model", a.model)->required();
  app.add_option("--batch", a.batch);
  app.add_option("--height", a.height);
  app.add_option("--width", a.width);
  app.add_option("--steps", a.steps);
  app.add_option("--warmup", a.warmup);
  app.add_option("--rank", a.rank);
  app.add_flag("--checkpoint", a.checkpoint);
  CLI11_PARSE(app, argc, argv);
  wick::run(a);
}
