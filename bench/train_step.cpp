// One LoRA training step of an SDXL UNet: forward, backward, AdamW. The same as bench/peers/train_step.py with the same
// arguments on the CPU in f32, and as bench/peers/sdxl_step.py on a GPU. Prints a line of JSON: milliseconds per step,
// peak memory, and the settings.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <deque>

#include "timing.h"
#include "wick/backend/registry.h"
#include "wick/models/sdxl/names.h"
#include "wick/models/sdxl/unet.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/noise_schedule.h"
#include "wick/train/objective.h"
#include "wick/train/step.h"

namespace {

using namespace wick;

struct Options {
  std::filesystem::path model;
  int64_t batch = 1, height = 32, width = 32;  // of the latents
  int64_t steps = 10, warmup = 3;              // the second step of a device is recorded
  int rank = 32;
  std::string adapter = "lora";
  int64_t lokr_factor = -1;
  bool checkpoint = false, on_request = false, bf16 = false, no_graph = false;
  std::string device = "cpu";

  DType dtype() const { return bf16 ? DType::bf16 : DType::f32; }
  LoraConfig adapter_config() const {
    LoraConfig config{.rank = rank, .targets = sdxl_default_targets(), .kron = {.factor = lokr_factor}};
    if (adapter == "loha") config.algorithm = &loha_algorithm();
    if (adapter == "lokr") config.algorithm = &lokr_algorithm();
    config.dora = adapter.starts_with("dora");
    config.magnitudes_of_inputs = adapter == "dora";
    return config;
  }
};

// The trainer's step, without its text encoders, its VAE and its data.
class UNetLora final : public Task {
 public:
  explicit UNetLora(const Options& o)
      : backend_(open_backend(o.device)),
        config_(UNetConfig::read(o.model)),
        schedule_(NoiseSchedule::read(o.model)),
        adapter_(o.adapter_config(), sdxl_module_names(config_)),
        unet_(Scope(Weights::open(o.model / "unet", {.dtype = o.dtype(), .place = Residence::on(backend_, o.dtype())}),
                    "unet", &adapter_),
              config_, BlockSchedule::recomputing_all(o.checkpoint)) {
    adapter_.check_complete();
    Rng rng(0);
    const auto normal = [&](const Shape& shape) { return random_normal(shape, rng, memory()); };
    const auto h = float(8 * o.height), w = float(8 * o.width);
    const Tensor time_ids = Tensor::of(std::vector<float>{h, w, 0, 0, h, w}, {1, kTimeIds}, memory());
    batch_ = {.latents = normal({o.batch, o.height, o.width, config_.in_channels}),
              .conditioning = {{"context", normal({o.batch, 77, config_.cross_attention_dim})},
                               {"pooled", normal({o.batch, config_.added_dim - kTimeIds * config_.time_ids_dim})},
                               {"time ids", contiguous(expand(time_ids, {o.batch, kTimeIds}))}}};
  }

  Memory& memory() const { return backend_.memory(); }
  std::vector<Parameter> parameters() const override { return adapter_.parameters(); }

  NamedTensors next_batch(TrainRng& rng) override { return noised(schedule_, batch_, rng); }

  Tensor loss(const NamedTensors& in) override {
    const Tensor predicted = unet_({.sample = in[kNoisedLatents],
                                    .timestep = in[kTimesteps],
                                    .context = in["context"],
                                    .text_embeds = in["pooled"],
                                    .time_ids = in["time ids"]});
    return mse_loss(predicted, in[kTarget]);
  }

  std::string describe() const override { return "a LoRA"; }
  BatchSampler& batches() override { fail("there is no data"); }
  std::filesystem::path save(const std::filesystem::path&, int64_t) override { fail("nothing is to be saved"); }

 private:
  Backend& backend_;
  UNetConfig config_;
  NoiseSchedule schedule_;
  Adapter adapter_;
  SdxlUNet unet_;
  Batch batch_;
};

class TrainingStep {
 public:
  explicit TrainingStep(const Options& o)
      : task_(o), optimizer_(task_.parameters(), {}), step_(task_, optimizer_, StepOrder{}, !o.no_graph) {}

  StepReport operator()() { return step_(rng_, 1e-4f); }
  Memory& memory() const { return task_.memory(); }

  int64_t lora_parameters() const {
    int64_t count = 0;
    for (const Parameter& p : optimizer_.parameters()) count += p.value.numel();
    return count;
  }

 private:
  UNetLora task_;
  Optimizer optimizer_;
  TrainStep step_;
  TrainRng rng_{0};
};

void report(const Options& o, const TrainingStep& step, const std::vector<double>& ms) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const MemoryStats memory = step.memory().stats();
  fmt::print(
      "{{\"bench\": \"train_step\", \"peer\": \"wick\", \"model\": \"{}\", \"device\": \"{}\", \"dtype\": \"{}\", "
      "\"threads\": {}, \"batch\": {}, \"height\": {}, \"width\": {}, \"adapter\": \"{}\", \"rank\": {}, "
      "\"checkpoint\": {}, "
      "\"graph\": {}, \"lora_parameters\": {}, \"steps\": {}, \"median_ms\": {:.3f}, \"min_ms\": {:.3f}, \"max_ms\": "
      "{:.3f}, "
      "\"peak_rss_mib\": {}, \"peak_tensors_mib\": {}, \"reserved_mib\": {}}}\n",
      (o.model / "").parent_path().filename().string(), step.memory().backend().name(), o.bf16 ? "bfloat16" : "float32",
      thread_count(), o.batch, o.height, o.width, o.adapter, o.rank, o.checkpoint, !o.no_graph, step.lora_parameters(),
      o.steps, bench::median(ms), *std::min_element(ms.begin(), ms.end()), *std::max_element(ms.begin(), ms.end()),
      usage.ru_maxrss / 1024, memory.peak >> 20, memory.reserved >> 20);
}

// Milliseconds from the end of one step to the end of the next. As in the trainer, a device gets its next step before
// the current one is awaited.
std::vector<double> measure(TrainingStep& step, int64_t count) {
  const int64_t ahead = step.memory().on_host() ? 0 : 1;
  std::deque<StepReport> begun;
  std::vector<double> ms;
  for (int64_t i = 0, started = 0; i < count; ++i)
    ms.push_back(bench::time_ms([&] {
      for (; started < std::min(count, i + 1 + ahead); ++started) begun.push_back(step());
      begun.front().wait();
      begun.pop_front();
    }));
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
  CLI::Option* const steps = app.add_option("--steps", o.steps);
  app.add_option("--warmup", o.warmup);
  app.add_option("--rank", o.rank);
  app.add_option("--adapter", o.adapter, "magnitudes of dora are of inputs, of dora-outputs of outputs, as PEFT's")
      ->check(CLI::IsMember({"lora", "dora", "dora-outputs", "loha", "lokr"}));
  app.add_option("--lokr-factor", o.lokr_factor, "-1: near the root");
  app.add_flag("--checkpoint", o.checkpoint, "gradient checkpointing");
  app.add_option("--device", o.device, "auto, cpu, cuda or cuda:N");
  app.add_flag("--bf16", o.bf16, "frozen weights in bf16, and on a device all arithmetic on them");
  app.add_flag("--no-graph", o.no_graph, "give the device every step call by call");
  app.add_flag("--on-request", o.on_request, "for each number on stdin, print the times of so many steps")
      ->excludes(steps);
  CLI11_PARSE(app, argc, argv);
  try {
    check(o.lokr_factor == -1 || o.adapter == "lokr", "--lokr-factor: {} has none; leave it out", o.adapter);
    check(!o.no_graph || !open_backend(o.device).memory().on_host(),
          "--no-graph: the host computes call by call; leave it out");
    run(o);
  } catch (const Error& e) {
    fmt::print(stderr, "bench_train_step: {}\n", e.what());
    return 1;
  }
}
