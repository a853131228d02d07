// `wick plan`: the memory of `wick train` with the same flags, and of `wick generate`.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "defaults_help.h"
#include "flag_table.h"
#include "model_path.h"
#include "train_flags.h"
#include "validators.h"
#include "wick/backend/registry.h"
#include "wick/io/count.h"
#include "wick/pipelines/devices.h"
#include "wick/pipelines/plan.h"
#include "wick/pipelines/weight_flags.h"
#include "wick/train/memory_choice.h"
#include "wick/train/picture_settings.h"
#include "wick/train/plan.h"
#include "wick/train/progress.h"
#include "wick/train/text_task.h"

namespace wick {
namespace {

void print_row(std::string_view name, size_t bytes, const std::string& note = "") {
  fmt::print("  {:<12} {:>10}{}\n", name, readable_bytes(bytes), note.empty() ? "" : "  " + note);
}

using Devices = std::vector<std::string>;  // of a run, by rank, all planned alike

std::string in_words(const Devices& devices) {
  return devices.size() == 1 ? devices.front() : fmt::format("each of {}", fmt::join(devices, ", "));
}

// On each of them; none where one is not here.
std::optional<size_t> free_memory(const Devices& devices) {
  std::optional<size_t> least;
  for (const std::string& device : devices) {
    const std::optional<size_t> free = wick::free_memory(device);
    if (!free) return {};
    least = std::min(least.value_or(*free), *free);
  }
  return least;
}

void print_total(size_t total, const DeviceKind& kind, const Devices& devices) {
  const std::optional<size_t> free = free_memory(devices);
  const std::string missing = devices.size() == 1 ? "no such device here" : "no such devices here";
  print_row("total", total,
            fmt::format("{}; {}", kind.is_device ? "what nvidia-smi shows at the peak" : "of the process",
                        free ? readable_bytes(*free) + " are free" : missing));
}

// For all devices. A plan may be of another machine, whose memory is not known.
HostLimit asked_host(const TrainConfig& config, const Devices& devices) {
  constexpr size_t kAny = std::numeric_limits<size_t>::max();
  const bool is_elsewhere = !free_memory(devices) && config.host_memory.empty();
  HostLimit limit = (is_elsewhere ? std::nullopt : host_limit(config.host_memory)).value_or(HostLimit{kAny, kAny});
  limit.devices = devices.size();
  return limit;
}

template <class Plan>
void print_streamed(const Plan& plan, size_t devices = 1) {
  const auto print = [&](size_t bytes, size_t own, const std::string& what) {
    if (bytes == 0) return;
    const std::string each = own == 0 ? "once for all devices" : readable_bytes(own) + " of them for each device";
    print_row("on the host", bytes, what + (devices == 1 ? "" : "; " + each));
  };
  print(
      plan.host + (devices - 1) * plan.host_own, plan.host_own,
      plan.staged > 0 ? "page-locked, through which streamed weights come" : "weights that are streamed, page-locked");
  print(plan.staged, 0, "weights that are streamed, in ordinary memory, more slowly");
}

std::string precision(const TrainConfig& config) {
  const auto quantized = quantized_dtype(config);
  return quantized ? fmt::format("{} and {}", dtype_in_words(*quantized), name_of(config.dtype))
                   : std::string(name_of(config.dtype));
}

// "4 devices x 2 x accumulate 1 = 8 pictures a step"
std::string step_in_words(const TrainConfig& config, bool is_text) {
  return fmt::format("{} x {} x accumulate {} = {} a step", count_of(config.ranks, "device"), config.batch_size,
                     config.accumulate,
                     count_of(config.ranks * config.batch_size * config.accumulate, is_text ? "row" : "picture"));
}

void print_plan(const MemoryPlan& plan, const TrainConfig& config, const std::string& precision,
                const Devices& devices) {
  const Size size = plan.bucket;
  const std::string items = size.height == 1 ? fmt::format("{}", count_of(size.width, "token"))
                                             : fmt::format("{}x{} pixels", size.width, size.height);
  fmt::print("{}; batches of {}, {}; {}, on {}\n", plan.what, config.batch_size, items, precision, in_words(devices));
  print_row("weights", plan.weights, plan.about_weights);
  if (plan.adapter > 0) print_row("adapter", plan.adapter);
  print_row("optimizer", plan.optimizer);
  print_row("activations", plan.activations, "forward and backward, gradients and scratch among them");
  if (plan.encoding > plan.step())
    print_row("encoding", plan.encoding, "the pictures, before the first step, which takes less");
  if (plan.previews > plan.step())
    print_row("previews", plan.previews, "while they are made between steps, which take less");
  if (plan.gaps() > 0) print_row("gaps", plan.gaps(), "between tensors");
  if (plan.device.workspace > 0)
    print_row("workspace", plan.device.workspace, "allowance for tensors that lie otherwise than planned");
  print_row("beside them", plan.device.context, std::string(plan.device.context_of));
  if (plan.collectives > 0)
    print_row("collectives", plan.collectives, "buffers through which the devices sum gradients");
  print_total(plan.total(), plan.device, devices);
  print_streamed(plan, devices.size());
  if (plan.host_sums > 0)
    print_row("on the host", devices.size() * plan.host_sums,
              fmt::format("page-locked, through which gradients are summed; {} of them for each device",
                          readable_bytes(plan.host_sums)));
  if (plan.saving > 0)
    print_row("on the host", plan.saving, "of rank 0 while it saves: optimizer states that other devices keep");
  if (devices.size() > 1) fmt::print("{}\n", step_in_words(config, size.height == 1));
}

// Drawing and writing by a run's flags that say how weights are held.
HeldPlan plan_asked(const TrainConfig& config, const HostLimit& host, const PlanOfHolding& plan) {
  return plan_held({.streamed = parse_blocks("--stream-blocks", config.stream_blocks),
                    .stream_text_encoder = config.stream_text_encoder},
                   host, plan);
}

InferencePlan text_plan(const TrainConfig& config, const LlamaConfig& model, DType dtype, int64_t context,
                        const DeviceKind& kind, const HostLimit& host) {
  const auto plan = [&](const Holding& h) { return plan_text(model, dtype, context, kind, h.block_schedule()); };
  return plan_asked(config, host, plan).plan;
}

void print_text_plan(const InferencePlan& plan, DType dtype, int64_t context, const std::string& device) {
  fmt::print("Text of up to {}; {}, on {}\n", count_of(context, "token"), dtype_in_words(dtype), device);
  print_row("weights", plan.weights);
  print_row("cache", plan.cache, "keys and values of all tokens");
  print_row("activations", plan.activations, "while a prompt is read");
  print_row("beside them", plan.device.workspace + plan.device.context, std::string(plan.device.context_of));
  print_total(plan.total(), plan.device, {device});
  print_streamed(plan);
}

InferencePlan picture_plan(const TrainConfig& config, const Checkpoint& model, Size size, const DeviceKind& kind,
                           const HostLimit& host) {
  const ReadingOptions reading = reading_options(config);
  const ImageRequest request{
      .width = size.width, .height = size.height, .cfg = open_diffusion(model, reading)->drawing_defaults().cfg};
  const auto plan = [&](const Holding& h) {
    return plan_image(model, {request},
                      {.dtype = config.dtype,
                       .quantization = quantization(config),
                       .block_schedule = h.block_schedule(),
                       .stream_text_encoder = h.stream_text_encoder,
                       .reading = reading},
                      kind);
  };
  return plan_asked(config, host, plan).plan;
}

void print_picture_plan(const InferencePlan& plan, const TrainConfig& config, Size size, const std::string& device) {
  fmt::print("One picture of {}x{} pixels; {}, on {}\n", size.width, size.height, precision(config), device);
  print_row("weights", plan.weights);
  print_row("activations", plan.activations, "a step, the decoding, or text encoders before them");
  if (const size_t all = plan.weights + plan.activations; plan.taken > all)
    print_row("gaps", plan.taken - all, "between tensors");
  print_row("beside them", plan.device.workspace + plan.device.context, std::string(plan.device.context_of));
  print_total(plan.total(), plan.device, {device});
  print_streamed(plan);
}

nlohmann::ordered_json bytes_in(const MemoryPlan& plan) {
  return {{"weights", plan.weights},     {"adapter", plan.adapter},
          {"optimizer", plan.optimizer}, {"activations", plan.activations},
          {"encoding", plan.encoding},   {"previews", plan.previews},
          {"gaps", plan.gaps()},         {"beside", plan.device.workspace + plan.beside()},
          {"total", plan.total()}};
}

nlohmann::ordered_json to_json(const InferencePlan& plan) {
  return {{"bytes",
           {{"weights", plan.weights},
            {"cache", plan.cache},
            {"activations", plan.activations},
            {"beside", plan.device.workspace + plan.device.context},
            {"total", plan.total()}}},
          {"host_bytes", plan.host},
          {"staged_bytes", plan.staged}};
}

nlohmann::ordered_json to_json(const StepCost& cost) {
  return {{"flops", cost.flops},
          {"decoded_bytes", cost.decoded},
          {"fetched_bytes", cost.fetched},
          {"seconds", cost.seconds}};
}

nlohmann::ordered_json to_json(const MemoryChoices& choices) {
  const MemoryChoice& shown = choices.best ? *choices.best : choices.smallest();
  const MemoryPlan& plan = shown.plan;
  double fastest = shown.seconds;
  for (const MemoryChoice& choice : choices.precisions) fastest = std::min(fastest, choice.seconds);
  return {{"memory", choices.request.size},
          {"fits", choices.best.has_value()},
          {"missing", plan.total() - std::min(plan.total(), choices.request.size)},
          {"batch_size", shown.config.batch_size},
          {"quantize", name_of(shown.config.quantize)},
          {"dtype", name_of(shown.config.dtype)},
          {"checkpoint_blocks", shown.blocks},
          {"checkpoints_on_host", shown.config.checkpoints_on_host},
          {"stream_blocks", shown.streamed},
          {"stream_text_encoder", shown.config.stream_text_encoder},
          {"blocks", plan.blocks},
          {"host_bytes", locked_by(plan, choices.request.host)},
          {"staged_bytes", plan.staged},
          {"seconds_relative", shown.seconds / fastest},
          {"step", to_json(plan.cost)},
          {"bytes", bytes_in(plan)}};
}

// Tokens that are seen at once.
int64_t settled_context(const LlamaConfig& model, int64_t asked) {
  check(asked <= model.positions, "--context: expected at most {}, the positions that the model has, found {}",
        model.positions, asked);
  return asked > 0 ? asked : std::min<int64_t>(model.positions, 4096);
}

// One choice for each size; ends with 1 where none fits.
void print_choices(const TrainConfig& config, const Checkpoint& model, const Devices& devices, bool json) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  bool any_fits = false;
  const DeviceKind kind = device_kind(devices.front(), architecture_of(devices.front()));
  const std::vector<size_t> sizes = memory_sizes(config, devices.front(), free_memory(devices));
  const HostLimit host = asked_host(config, devices);
  ProgressLine progress = ProgressLine::on_stderr();
  size_t done = 0, plans = 0;
  KnownPlans known(model, kind, [&] {
    progress.show(
        fmt::format("Planning {} of {}: {}", done + 1, count_of(sizes.size(), "size"), count_of(++plans, "way")));
  });
  for (const size_t size : sizes) {
    const MemoryRequest request{.size = size, .host = host};
    TrainConfig asked = config;
    if (asked.batch_size == 0) asked.batch_size = batch_that_fits(request, asked, known);
    const MemoryChoices choices = choose_for_memory(request, asked, known);
    progress.clear();
    ++done;
    any_fits = any_fits || choices.best;
    if (json)
      all.push_back(to_json(choices));
    else
      fmt::print("{}, on {}{}: {}{}\n", readable_bytes(size), in_words(devices),
                 config.batch_size == 0 ? fmt::format(", batches of {}", asked.batch_size) : "",
                 choices.best ? "" : "does not fit; ", choices.in_words());
  }
  if (json) fmt::print("{}\n", nlohmann::ordered_json({{"choices", std::move(all)}}).dump(2));
  std::fflush(stdout);
  check(any_fits, "--memory {}: {} does not fit into {}", config.memory, config.model,
        config.memory.find(',') == config.memory.npos ? "it" : "any of them");
}

// They are planned for whether they are here or not.
Devices planned_devices(const TrainConfig& config) {
  if (Devices several = asked_devices(config.gpus); !several.empty()) return several;
  if (config.device == "auto") return {std::string(open_backend("auto").name())};
  return {config.device == "cuda" ? "cuda:0" : config.device};
}

void run_plan(cli::TrainFlags& flags, int64_t context, bool json) {
  TrainConfig config = flags.config();
  resolve(config, {"model"});
  const Checkpoint model = cli::resolve_model_to_plan(model_files(config));
  flags.check_model(model);
  const Devices devices = planned_devices(config);
  const std::string& device = devices.front();
  config.ranks = int64_t(devices.size());
  const ModelKind kind = kind_of(model);
  check_kind(config, kind);
  if (!config.memory.empty()) return print_choices(config, model, devices, json);
  const bool is_text = kind == ModelKind::text;
  const DType dtype = is_text ? planned_dtype(config, model.path()) : config.dtype;
  check_usage(is_text || context == 0, "--context: {} is a model of pictures, which has no such setting", model.name());
  if (!is_text) check_settings(config, *open_diffusion(model, reading_options(config)));
  const DeviceKind device_has = device_kind(device, architecture_of(device));
  if (config.batch_size == 0) {
    const std::optional<size_t> free = free_memory(devices);
    check_usage(free.has_value(), "--batch-size auto: expected --memory with it, or a device that is here, found {}",
                in_words(devices));
    KnownPlans known(model, device_has);
    config.batch_size = batch_that_fits({.size = *free}, config, known);
  }
  const HostLimit host = asked_host(config, devices), host_of_one = asked_host(config, {device});
  const MemoryPlan plan = plan_memory(config, model, device_has, {}, nullptr, host);
  if (is_text) context = settled_context(LlamaConfig::read(model), context);
  const InferencePlan use = is_text
                                ? text_plan(config, LlamaConfig::read(model), dtype, context, device_has, host_of_one)
                                : picture_plan(config, model, plan.bucket, device_has, host_of_one);
  if (json) {
    fmt::print("{}\n", nlohmann::ordered_json({{"devices", devices},
                                               {"samples_a_step", config.ranks * config.batch_size * config.accumulate},
                                               {"bytes", bytes_in(plan)},
                                               {"host_bytes", locked_by(plan, host)},
                                               {"staged_bytes", plan.staged},
                                               {"saving_bytes", plan.saving},
                                               {"step", to_json(plan.cost)},
                                               {is_text ? "writing" : "drawing", to_json(use)}})
                           .dump(2));
    return check_host(plan, host);
  }
  if (is_text) print_text_plan(use, dtype, context, device);
  print_plan(plan, config, is_text ? dtype_in_words(dtype) : precision(config), devices);
  for (const Alternative& a : alternatives(config, model, plan))
    fmt::print("with {}: {}\n", a.flags, readable_bytes(a.total));
  if (!is_text) print_picture_plan(use, config, plan.bucket, device);
  check_host(plan, host);
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan", "Show what memory training, drawing or text generation would take, without loading the model");
  const auto flags = std::make_shared<cli::TrainFlags>();
  const auto context = std::make_shared<int64_t>(0);
  flags->add_to(*command);
  cli::begin_group(*command, std::string(kSubjects[size_t(Subject::text)]));
  command->add_option("--context", *context, "Of a language model: tokens seen at once [4096, or its positions]")
      ->type_name("INT")
      ->transform(cli::positive_integer());
  cli::begin_group(*command, std::string(kSubjects[size_t(Subject::output)]));
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json,
                    "Print the plan, or what is chosen for each --memory, as one JSON object, in bytes");
  command->footer(
      "Takes the flags of `wick train`; --model is enough. It tells what drawing a picture or generating text takes "
      "too. Models known by name need not be there. Nothing is written. With several sizes at --memory it tells what "
      "would "
      "be chosen for each, and ends with 1 where none fits.\n"
      "\n" +
      cli::defaults_help() +
      "\n\n"
      "Examples:\n"
      "  wick plan --model sdxl --rank 32 --bf16 --resolution 1024 --device cuda\n"
      "  wick plan --model flux-dev --bf16 --gradient-checkpointing --device cuda\n"
      "  wick plan --model flux-dev --memory 12GiB,16GiB,24GiB --device cuda\n"
      "  wick plan --model flux-dev --bf16 --batch-size 2 --gpus 4\n"
      "  wick plan --model sd3.5-medium --bf16 --device cuda\n"
      "  wick plan --model path/to/llm --quantize q4_k --context 8192");
  command->callback([flags, context, json] { run_plan(*flags, *context, *json); });
}

}  // namespace wick
