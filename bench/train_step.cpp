// One LoRA training step of an SDXL UNet: forward, backward, AdamW. On the CPU in f32 the same as
// bench/peers/train_step.py with the same arguments, on a GPU what bench/peers/sdxl_step.py does; and a line of JSON:
// milliseconds a step, peak memory, and what was measured.
#include <sys/resource.h>

#include <CLI/CLI.hpp>

#include "timing.h"
#include "wick/backend/registry.h"
#include "wick/models/sdxl.h"
#include "wick/pipelines/noise_schedule.h"
#include "wick/train/optimizer.h"

namespace {

using namespace wick;

struct Options {
  std::filesystem::path model;
  int64_t batch = 1, height = 32, width = 32;  // of the latents
  int64_t steps = 10, warmup = 2;
  int rank = 32;
  bool checkpoint = false, on_request = false, bf16 = false;
  std::string device = "cpu";

  DType dtype() const { return bf16 ? DType::bf16 : DType::f32; }
};

class TrainingStep {
 public:
  explicit TrainingStep(const Options& o)
      : memory_(open_backend(o.device).memory()),
        config_(UNetConfig::read(o.model / "unet")),
        schedule_(NoiseSchedule::read(o.model / "scheduler")),
        adapter_({.rank = o.rank, .targets = sdxl_default_targets()}, sdxl_module_names(config_)),
        unet_(Scope(Weights::open(o.model / "unet",
                                  {.dtype = o.dtype(), .place = Residence::on(open_backend(o.device), o.dtype())}),
                    "unet", &adapter_),
              config_, o.checkpoint),
        optimizer_(adapter_.parameters(), {.lr = 1e-4f, .weight_decay = 1e-2f}),
        latents_(random_normal({o.batch, o.height, o.width, config_.in_channels}, rng_, memory_)) {
    adapter_.check_complete();
    const auto h = float(8 * o.height), w = float(8 * o.width);
    context_ = random_normal({o.batch, 77, config_.cross_attention_dim}, rng_, memory_);
    pooled_ = random_normal({o.batch, config_.added_dim - kTimeIds * config_.time_ids_dim}, rng_, memory_);
    const Tensor time_ids = Tensor::of(std::vector<float>{h, w, 0, 0, h, w}, {1, kTimeIds}, memory_);
    time_ids_ = contiguous(expand(time_ids, {o.batch, kTimeIds}));
  }

  // The loss; reading it waits for all that the step gave the device to do.
  float operator()() {
    const Tensor noise = random_normal(latents_.shape(), rng_, memory_);
    std::vector<int64_t> t;
    for (int64_t i = 0; i < latents_.dim(0); ++i) t.push_back(int64_t(rng_.below(uint64_t(schedule_.train_steps()))));
    const Tensor timesteps = Tensor::of(t, {latents_.dim(0)});
    Tape tape;
    const Tensor predicted = unet_({.sample = schedule_.add_noise(latents_, noise, timesteps),
                                    .timestep = Tensor::of(timesteps.to_vector(), timesteps.shape(), memory_),
                                    .context = context_,
                                    .text_embeds = pooled_,
                                    .time_ids = time_ids_});
    const Tensor loss = mse_loss(predicted, noise);
    optimizer_.step(tape.backward(loss));
    return loss.item();
  }

  Memory& memory() { return memory_; }

  int64_t lora_parameters() const {
    int64_t count = 0;
    for (const Parameter& p : optimizer_.parameters()) count += p.value.numel();
    return count;
  }

 private:
  Memory& memory_;
  UNetConfig config_;
  NoiseSchedule schedule_;
  Adapter adapter_;
  SdxlUNet unet_;
  AdamW optimizer_;
  Rng rng_{0};
  Tensor latents_, context_, pooled_, time_ids_;
};

void report(const Options& o, TrainingStep& step, const std::vector<double>& ms) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const MemoryStats memory = step.memory().stats();
  fmt::print(
      "{{\"bench\": \"train_step\", \"peer\": \"wick\", \"model\": \"{}\", \"device\": \"{}\", \"dtype\": \"{}\", "
      "\"threads\": {}, \"batch\": {}, \"height\": {}, \"width\": {}, \"rank\": {}, \"checkpoint\": {}, "
      "\"lora_parameters\": {}, \"steps\": {}, \"median_ms\": {:.3f}, \"min_ms\": {:.3f}, \"max_ms\": {:.3f}, "
      "\"peak_rss_mib\": {}, \"peak_tensors_mib\": {}, \"reserved_mib\": {}}}\n",
      (o.model / "").parent_path().filename().string(), step.memory().backend->name(), o.bf16 ? "bfloat16" : "float32",
      omp_get_max_threads(), o.batch, o.height, o.width, o.rank, o.checkpoint, step.lora_parameters(), o.steps,
      bench::median(ms), *std::min_element(ms.begin(), ms.end()), *std::max_element(ms.begin(), ms.end()),
      usage.ru_maxrss / 1024, memory.peak >> 20, memory.reserved >> 20);
}

std::vector<double> measure(TrainingStep& step, int64_t count) {
  std::vector<double> ms;
  for (int64_t i = 0; i < count; ++i) ms.push_back(bench::time_ms([&] { step(); }));
  return ms;
}

void run(const Options& o) {
  TrainingStep step(o);
  step.memory().reset_peak();
  measure(step, o.warmup);
  if (o.on_request)
    bench::serve([&](int64_t steps) { return std::vector<bench::Row>{{"train_step", measure(step, steps)}}; });
  else
    report(o, step, measure(step, o.steps));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Times LoRA training steps of an SDXL UNet."};
  app.add_option("--model", o.model, "a diffusers folder")->required();
  app.add_option("--batch", o.batch);
  app.add_option("--height", o.height, "of the latents");
  app.add_option("--width", o.width, "of the latents");
  app.add_option("--steps", o.steps);
  app.add_option("--warmup", o.warmup);
  app.add_option("--rank", o.rank);
  app.add_flag("--checkpoint", o.checkpoint, "gradient checkpointing");
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N");
  app.add_flag("--bf16", o.bf16, "frozen weights in bf16, and on a device all arithmetic on them");
  app.add_flag("--on-request", o.on_request, "for each number on stdin, print the times of so many steps");
  CLI11_PARSE(app, argc, argv);
  try {
    run(o);
  } catch (const Error& e) {
    fmt::print(stderr, "bench_train_step: {}\n", e.what());
    return 1;
  }
}
