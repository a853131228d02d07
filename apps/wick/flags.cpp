#include "flags.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "flag_table.h"
#include "model_path.h"
#include "validators.h"
#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/pipelines/devices.h"
#include "wick/pipelines/weight_flags.h"

namespace wick::cli {
namespace {

constexpr DType kQuantizedTypes[] = {DType::fp8,  DType::fp8_block, DType::int8, DType::nf4,  DType::nf4_double,
                                     DType::q8_0, DType::q6_k,      DType::q5_k, DType::q4_k, DType::q4_0};

}  // namespace

void RunOn::add_flags(CLI::App& command) {
  begin_group(command, kDeviceGroup);
  command.add_option("--device", device_, "Where it computes; auto is the first CUDA device, or the CPU [auto]")
      ->type_name("auto|cpu|cuda|cuda:N")
      ->check([](const std::string& device) {
        return is_device_name(device) ? "" : "expected auto, cpu, cuda or cuda:N, found '" + device + "'";
      });
  CLI::Option* bf16 = command.add_flag("--bf16", bf16_, "Weights in bf16, and on a device all arithmetic on them");
  command.add_flag("--fp16", fp16_, "Likewise in fp16")->excludes(bf16);
  command.add_flag("--tf32", tf32_, "Lets a GPU round the factors of f32 products to 10 bits, which is faster");
}

void RunOn::add_gpus(CLI::App& command, const std::string& help) {
  begin_group(command, kDeviceGroup);
  command.add_option("--gpus", gpus_, help)->type_name("N|all|0,2")->check(not_empty());
}

std::vector<std::string> RunOn::devices() const {
  if (gpus_.empty()) return {device_};
  check_usage(device_ == "auto" || device_ == "cuda", "--gpus {} and --device {}: expected one of them", gpus_,
              device_);
  return devices_of(gpus_);
}

void ModelArguments::add_flags(CLI::App& command, const std::string& help) {
  begin_group(command, "Model");
  CLI::Option* whole = add_model(command, model, help);
  begin_group(command, kPartsGroup);
  for (const ModelPart& part : model_parts()) {
    const auto remember = [this, whole, name = std::string(part.name)](const std::string& path) {
      parts[name] = path;
      whole->required(false);  // Checkpoint wants it beside all but a transformer
    };
    command.add_option_function<std::string>(part_flag(part.name), remember, part.help)
        ->type_name(part.item)
        ->check(not_empty());
  }
}

Checkpoint ModelArguments::resolve() const {
  return resolve_model({.model = model, .parts = {parts.begin(), parts.end()}});
}

std::vector<std::filesystem::path> ModelArguments::files(const Checkpoint& resolved) const {
  std::vector<std::filesystem::path> all{resolved.path()};
  for (const auto& [part, path] : parts) all.emplace_back(path);
  return all;
}

CLI::Option* add_model(CLI::App& command, std::string& model, const std::string& help) {
  return command.add_option("--model", model, help)->type_name("MODEL")->required();
}

CLI::Option* add_language_model(CLI::App& command, std::string& model) {
  return add_model(command, model, "Transformers folder, GGUF file, or a name: tiny-llm, ORGANISATION/NAME");
}

CLI::Option* add_loras(CLI::App& command, std::vector<std::string>& loras) {
  return command
      .add_option("--lora", loras,
                  "LoRA to apply, with an optional strength, also of parts of a model of pictures "
                  "(:unet=0.8,text_encoder=0); may be repeated")
      ->type_name("FILE[:STRENGTH]")
      ->allow_extra_args(false);
}

void add_overwrite(CLI::App& command, bool& overwrite) {
  command.add_flag("--overwrite", overwrite, "Write over a file that is there, instead of it being an error");
}

void add_chat_template(CLI::App& command, std::string& name) {
  command
      .add_option("--chat-template", name,
                  fmt::format("How conversations become text: auto, as the adapter or the model says; one of the "
                              "model's names, or of {}; or a file of Jinja [auto]",
                              fmt::join(ChatTemplate::names(), ", ")))
      ->type_name("NAME|FILE");
}

void add_chat_options(CLI::App& command, ChatOptions& chat) {
  add_chat_template(command, chat.name);
  command
      .add_option("--chat-template-kwargs", chat.variables,
                  "Variables of the chat template, as a JSON object: '{\"enable_thinking\": false}'")
      ->type_name("JSON");
  command
      .add_option("--template-date", chat.date,
                  "The date that a chat template tells, if it tells one: 2026-11-27, or 2026-11-27T13:04:05 [now]")
      ->type_name("DATE");
}

std::string kept_in_words(const Weights::Quantized& written, std::optional<DType> dtype) {
  if (written.kept == 0) return {};
  return fmt::format("; {} {} rows are not whole blocks of {}", count_of(written.kept, "weight"),
                     written.kept == 1 ? "stays as it is: its" : "stay as they are: their", block_of(*dtype).elements);
}

void HoldingFlags::add_flags(CLI::App& command) {
  begin_group(command, kDeviceGroup);
  std::vector<std::string> names;
  for (const DType type : kQuantizedTypes) names.emplace_back(name_of(type));
  set_choices(command.add_option("--quantize", quantize,
                                 "Keep the matrices of the blocks in 4 to 8 bits [as the model has them]"),
              names);
  command.add_flag("--fp8-compute", fp8_compute,
                   "Multiply the matrices of the blocks in fp8, on devices with tensor cores for it (8.9 and later); "
                   "they are kept as by --quantize fp8");
  CLI::Option* size = command.add_option("--memory", memory,
                                         "All that may be taken on the device, for example 12GiB, or auto for what is "
                                         "free: how weights are held is chosen to fit, the highest precision first");
  size->type_name("SIZE|auto")->check([](const std::string& text) { return parse_memory(text), std::string(); });
  command
      .add_option("--stream-blocks", stream_blocks,
                  "How many blocks keep their weights in the host's memory, from which they come while others run [0]")
      ->type_name("N|all")
      ->check([](const std::string& text) { return parse_blocks("--stream-blocks", text), std::string(); })
      ->excludes(size);
  command
      .add_option(
          "--host-memory", host_memory,
          "The most of the host's memory that these may take there, page-locked [60 % of what is free; weights beyond "
          "that lie in ordinary memory, from which they come more slowly, in 80 % at most]")
      ->type_name("SIZE")
      ->check([](const std::string& text) { return parse_host_memory(text), std::string(); });
}

std::optional<DType> HoldingFlags::quantized() const {
  if (fp8_compute) {
    check_fp8_compute(quantize);
    return DType::fp8_product;
  }
  if (quantize.empty()) return {};
  return *std::ranges::find_if(kQuantizedTypes, [&](DType type) { return wick::name_of(type) == quantize; });
}

std::optional<size_t> HoldingFlags::room(std::string_view device) const {
  const std::optional<size_t> size = memory.empty() ? std::nullopt : parse_memory(memory);
  return size ? size : free_memory(device);
}

HoldingFlags::Settled HoldingFlags::settle(const Backend& backend, bool may_quantize, const PlanOfHolding& plan) const {
  const std::string_view device = backend.name();
  if (fp8_compute) check_fp8_compute(backend);
  Holding asked{.quantized = quantized(),
                .streamed = parse_blocks("--stream-blocks", stream_blocks),
                .stream_text_encoder = stream_text_encoder,
                .copies = copies};
  if (memory.empty() && !asked.is_streamed()) return {asked, {}};
  std::optional<HostLimit> host = host_limit(host_memory);
  if (host && copies) host->devices = copies->threads();
  if (memory.empty()) {
    const HeldPlan held = plan_held(asked, host, plan);
    check_locked(locked_by(held.plan, host), host);
    return {held.holding, staging_in_words(held.plan.staged)};
  }
  const std::optional<size_t> size = room(device);
  check_usage(size.has_value(), "--memory auto: what is free on {} is not known; expected a size", device);
  const bool is_given = asked.quantized.has_value() || !may_quantize;
  const auto precisions = is_given ? std::vector{asked.quantized} : precisions_for_memory();
  const InferenceChoices choices = choose_holding({.size = *size, .host = host}, precisions, plan);
  const std::string words = fmt::format("--memory {}: {}", memory, choices.in_words());
  check(choices.best.has_value(), "{}", words);
  const std::string staging = staging_in_words(choices.best->plan.staged);
  Holding holding = choices.best->holding;
  holding.copies = copies;
  return {holding, words + (staging.empty() ? "." : ". " + staging)};
}

}  // namespace wick::cli
