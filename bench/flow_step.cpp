// A LoRA training step of FLUX.1's or SD3.5's transformer, or one step of drawing with it, in real size with random
// weights: no file is read. The same as bench/peers/flow_step.py. Prints a line of JSON: milliseconds a step and peak
// memory.
#include <CLI/CLI.hpp>
#include <cmath>
#include <deque>
#include <map>

#include "timing.h"
#include "wick/backend/registry.h"
#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/models/sd3/names.h"
#include "wick/models/sd3/transformer.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/rectified_flow.h"
#include "wick/train/objective.h"
#include "wick/train/step.h"

namespace {

using namespace wick;

constexpr DType kBases[] = {DType::fp8, DType::int8, DType::nf4, DType::nf4_double};

struct Options {
  std::string model = "flux", device = "cuda";
  int64_t batch = 1, height = 128, width = 128;  // of the latents
  int64_t text = 0;                              // tokens; 0: 512 of FLUX, 333 of SD3
  int64_t steps = 20, warmup = 3;
  int rank = 16, double_blocks = 0, single_blocks = 0;  // 0: the model's
  std::vector<std::string> targets;
  bool draw = false, no_lora = false, checkpoint = false, f32 = false, no_graph = false, resident = false;
  std::string quantize;
  bool fp8_compute = false;

  DType dtype() const { return f32 ? DType::f32 : DType::bf16; }
  // The matrices of the blocks as `wick train` keeps them; modulations are no part of it.
  WeightsOptions weights(Backend& backend) const {
    WeightsOptions w{.dtype = dtype(), .place = Residence::on(backend, dtype())};
    if (quantize.empty() && !fp8_compute) return w;
    w.dtype =
        fp8_compute ? DType::fp8_product : *std::ranges::find(kBases, quantize, [](DType d) { return name_of(d); });
    w.unquantized = dtype();
    w.quantizes = [](const std::string& name) {
      return name.find("blocks.") != name.npos && name.find("mod") == name.npos && name.find("adaLN") == name.npos;
    };
    return w;
  }
  std::string_view base() const {
    return fp8_compute ? "fp8, multiplied in fp8" : quantize.empty() ? name_of(dtype()) : std::string_view(quantize);
  }
};

// Attention and feed-forward of all blocks.
const std::map<std::string, std::vector<std::string>> kTargets = {
    {"flux", {"transformer.double_blocks.*", "transformer.single_blocks.*", "-*_mod.lin", "-*modulation.lin"}},
    {"sd3", {"transformer.joint_blocks.*", "-*adaLN_modulation.1"}}};

FluxConfig flux_config(const Options& o) {
  return {.channels = 16,
          .heads = 24,
          .head_dim = 128,
          .text_dim = 4096,
          .pooled_dim = 768,
          .double_blocks = o.double_blocks > 0 ? o.double_blocks : 19,
          .single_blocks = o.single_blocks > 0 ? o.single_blocks : 38,
          .axes = {16, 56, 56},
          .guidance = true};
}

Sd3Config sd3_config(const Options& o) {
  const bool large = o.model == "sd3-large";
  const int64_t depth = large ? 38 : 24;
  std::vector<bool> dual(size_t(o.double_blocks > 0 ? o.double_blocks : depth));
  for (size_t i = 0; i < dual.size(); ++i) dual[i] = !large && i < 13;
  return {.channels = 16,
          .heads = depth,
          .head_dim = 64,
          .text_dim = 4096,
          .pooled_dim = 2048,
          .dual = dual,
          .qk_norm = true,
          .table_side = large ? 192 : 384,
          .native_side = 64};
}

// The transformer of one family: a velocity for latents [B, h, w, 16].
struct Denoiser {
  std::function<Tensor(const Tensor& x, const Tensor& timestep, const NamedTensors& parts)> predict;
  std::function<Tensor(const Tensor& timestep, const Tensor& pooled)> ahead;  // empty where it is not made ahead
  int64_t text_dim, pooled_dim, text;
};

class FlowLora final : public Task {
 public:
  explicit FlowLora(const Options& o)
      : backend_(open_backend(o.device)), flow_(Config::parse(R"({"shift": 3})", "bench"), SigmaGrid::uniform) {
    const std::string family = o.model.substr(0, o.model.find('-'));
    adapter_.emplace(LoraConfig{.rank = o.rank, .targets = o.targets.empty() ? kTargets.at(family) : o.targets},
                     family == "flux" ? flux_module_names() : sd3_module_names(o.model == "sd3-large" ? 38 : 24));
    const Scope scope(Weights::drawn(1, 0.02f, o.weights(backend_)), "transformer", o.no_lora ? nullptr : &*adapter_);
    const Denoiser d = family == "flux" ? flux(o, scope) : sd3(o, scope);
    predict_ = d.predict;
    if (!o.no_lora) adapter_->check_complete();
    Rng rng(0);
    const auto normal = [&](const Shape& shape) { return random_normal(shape, rng, memory()); };
    batch_ = {.latents = normal({o.batch, o.height, o.width, 16}),
              .conditioning = {{"text", cast(normal({o.batch, d.text, d.text_dim}), o.dtype())},
                               {"pooled", normal({o.batch, d.pooled_dim})}}};
    const Tensor ahead = d.ahead(full({o.batch}, 500, DType::f32, memory()), batch_.conditioning["pooled"]);
    if (ahead) batch_.conditioning.add("modulations", ahead.to(memory()));
    host_memory().trim();
    memory().trim();
  }

  Memory& memory() const { return backend_.memory(); }
  std::vector<Parameter> parameters() const override { return adapter_->parameters(); }
  NamedTensors next_batch(TrainRng& rng) override { return noised(flow_, batch_, rng); }
  Tensor loss(const NamedTensors& in) override { return mse_loss(predict(in), in[kTarget]); }
  Tensor predict(const NamedTensors& in) const { return predict_(in[kNoisedLatents], in[kTimesteps], in); }
  std::string describe() const override { return "a LoRA"; }
  BatchSampler& batches() override { fail("there is no data"); }
  std::filesystem::path save(const std::filesystem::path&, int64_t) override { fail("nothing is to be saved"); }

 private:
  static FlowTransformerOptions options(const Options& o) {
    return {.block_schedule = BlockSchedule::recomputing_all(o.checkpoint), .modulations_ahead = !o.resident};
  }

  Denoiser flux(const Options& o, const Scope& scope) {
    const FluxConfig config = flux_config(o);
    const FluxTransformer model(scope, config, options(o));
    const int64_t text = o.text > 0 ? o.text : 512;
    const Rotary rotary = flux_rotary(flux_places(text, o.height, o.width), config, memory());
    const Tensor guidance = full({o.batch}, 1, DType::f32, memory());
    const auto predict = [=](const Tensor& x, const Tensor& timestep, const NamedTensors& parts) {
      return flux_latents(model({.tokens = flux_tokens(x),
                                 .timestep = timestep,
                                 .guidance = guidance,
                                 .pooled = parts["pooled"],
                                 .text = parts["text"],
                                 .rotary = rotary,
                                 .modulations = parts.has("modulations") ? parts["modulations"] : Tensor()}),
                          x.dim(1), x.dim(2));
    };
    const auto ahead = [=](const Tensor& timestep, const Tensor& pooled) {
      return model.modulates_ahead() ? model.modulations({.timestep = timestep, .guidance = guidance, .pooled = pooled})
                                     : Tensor();
    };
    return {predict, ahead, config.text_dim, config.pooled_dim, text};
  }

  Denoiser sd3(const Options& o, const Scope& scope) {
    const Sd3Config config = sd3_config(o);
    const Sd3Transformer model(scope, config, options(o));
    const Tensor positions = model.positions(o.height, o.width);
    const auto predict = [=](const Tensor& x, const Tensor& timestep, const NamedTensors& parts) {
      return model({.latents = x,
                    .timestep = timestep,
                    .pooled = parts["pooled"],
                    .text = parts["text"],
                    .positions = positions,
                    .modulations = parts.has("modulations") ? parts["modulations"] : Tensor()});
    };
    const auto ahead = [=](const Tensor& timestep, const Tensor& pooled) {
      return model.modulates_ahead() ? model.modulations({.timestep = timestep, .pooled = pooled}) : Tensor();
    };
    return {predict, ahead, config.text_dim, config.pooled_dim, o.text > 0 ? o.text : 333};
  }

  Backend& backend_;
  RectifiedFlow flow_;
  std::optional<Adapter> adapter_;
  decltype(Denoiser::predict) predict_;
  Batch batch_;
};

// Milliseconds from the end of one step to the end of the next, which is begun before.
std::vector<double> train(FlowLora& task, const Options& o) {
  Optimizer optimizer(task.parameters(), {});
  TrainStep step(task, optimizer, StepOrder{}, !o.no_graph);
  TrainRng rng(0);
  std::vector<double> ms;
  std::optional<StepReport> begun;
  task.memory().reset_peak();  // the first step is not yet replayed
  for (int64_t i = 0; i < o.warmup + o.steps; ++i) {
    ms.push_back(bench::time_ms([&] {
      StepReport next = step(rng, 1e-4f);
      if (begun) begun->wait();
      begun.emplace(std::move(next));
    }));
  }
  begun->wait();
  return {ms.begin() + o.warmup + 1, ms.end()};
}

std::vector<double> draw(FlowLora& task, const Options& o) {
  TrainRng rng(0);
  const NamedTensors in = task.next_batch(rng);
  const auto one = [&] { sum(task.predict(in)).item(); };
  for (int64_t i = 0; i < o.warmup; ++i) one();
  task.memory().reset_peak();
  std::vector<double> ms;
  for (int64_t i = 0; i < o.steps; ++i) ms.push_back(bench::time_ms(one));
  return ms;
}

void run(const Options& o) {
  FlowLora task(o);
  const std::vector<double> ms = o.draw ? draw(task, o) : train(task, o);
  const MemoryStats memory = task.memory().stats();
  fmt::print(
      "{{\"bench\": \"flow_step\", \"peer\": \"wick\", \"model\": \"{}\", \"base\": \"{}\", \"draw\": {}, \"lora\": "
      "{}, \"batch\": {}, "
      "\"height\": {}, \"width\": {}, \"rank\": {}, \"checkpoint\": {}, \"graph\": {}, \"median_ms\": {:.3f}, "
      "\"min_ms\": {:.3f}, \"max_ms\": {:.3f}, \"peak_mib\": {}, \"reserved_mib\": {}}}\n",
      o.model, o.base(), o.draw, !o.no_lora, o.batch, o.height, o.width, o.rank, o.checkpoint, !o.no_graph && !o.draw,
      bench::median(ms), *std::min_element(ms.begin(), ms.end()), *std::max_element(ms.begin(), ms.end()),
      memory.peak >> 20, memory.reserved >> 20);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Times steps of FLUX.1's and SD3.5's transformers."};
  app.add_option("--model", o.model)->check(CLI::IsMember({"flux", "sd3-large", "sd3-medium"}));
  app.add_option("--batch", o.batch);
  app.add_option("--height", o.height, "of the latents");
  app.add_option("--width", o.width, "of the latents");
  app.add_option("--text", o.text, "tokens");
  app.add_option("--steps", o.steps);
  app.add_option("--warmup", o.warmup);
  CLI::Option* const rank = app.add_option("--rank", o.rank);
  CLI::Option* const targets = app.add_option("--targets", o.targets);
  app.add_option("--double-blocks", o.double_blocks);
  app.add_option("--single-blocks", o.single_blocks, "of flux");
  CLI::Option* const draw = app.add_flag("--draw", o.draw, "predictions alone, without gradients, call by call");
  app.add_flag("--no-lora", o.no_lora, "with --draw")->needs(draw)->excludes(rank)->excludes(targets);
  app.add_flag("--checkpoint", o.checkpoint, "gradient checkpointing")->excludes(draw);
  app.add_flag("--resident", o.resident, "modulations are made in each step, and their weights stay on the device");
  app.add_flag("--f32", o.f32);
  std::vector<std::string> bases;
  for (const DType base : kBases) bases.emplace_back(name_of(base));
  CLI::Option* const quantize =
      app.add_option("--quantize", o.quantize, "the matrices of the blocks")->check(CLI::IsMember(bases));
  app.add_flag("--fp8-compute", o.fp8_compute, "those in fp8, and their products")->excludes(quantize);
  app.add_flag("--no-graph", o.no_graph, "give the device every step call by call")->excludes(draw);
  app.add_option("--device", o.device);
  CLI11_PARSE(app, argc, argv);
  try {
    check(o.single_blocks == 0 || o.model == "flux", "--single-blocks: {} has none; leave it out", o.model);
    run(o);
  } catch (const Error& e) {
    fmt::print(stderr, "bench_flow_step: {}\n", e.what());
    return 1;
  }
}
