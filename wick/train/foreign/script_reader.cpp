#include "wick/train/foreign/script_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "wick/io/nearest.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/tree.h"

namespace wick {
namespace {

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
  return text;
}

}  // namespace

ScriptReader::ScriptReader(const std::string& source, std::string program, std::span<const ForeignKey> table,
                           const nlohmann::ordered_json& tree, bool is_command)
    : ForeignReader(source, std::move(program), table), table_(table) {
  if (!is_command) {
    add_flat(tree, nlohmann::ordered_json::object());
    return;
  }
  for (const auto& [key, value] : tree.items()) {
    add(key, value);
    if (std::ranges::find(table, key, &ForeignKey::key) == table.end()) not_options_.push_back(key);
  }
  const auto file = tree.find("config_file");
  if (file == tree.end() || !file->is_string()) return;
  const auto name = file->get<std::string>();
  add_flat(read_option_tree(name.ends_with(".toml") ? name : name + ".toml"), tree);
}

// Tables are laid flat. `winners` are options that are there already.
void ScriptReader::add_flat(const nlohmann::ordered_json& tree, const nlohmann::ordered_json& winners) {
  for (const auto& [key, value] : tree.items()) {
    if (value.is_object())
      add_flat(value, winners);
    else if (!winners.contains(key))
      add(key, value);
  }
}

void ScriptReader::refuse_unknown_options() {
  std::vector<std::string> known;
  for (const ForeignKey& row : table_) known.emplace_back(row.key);
  for (const std::string& key : not_options_)
    attempt([&] { refuse(key, "not an option of the training script" + did_you_mean(key, known)); });
}

// As sample_images_common() of train_util.py has it. The GUI writes a file of prompts for each run, often without
// any.
void ScriptReader::settle_previews() {
  if (!has("sample_prompts")) return;
  constexpr const char* kWhen[] = {"sample_every_n_steps", "sample_every_n_epochs"};
  if (!is_set("sample_at_first") && std::ranges::all_of(kWhen, [&](const char* key) { return number(key, 0) == 0; }))
    return drop("sample_prompts", "without sample_every_n_steps or sample_every_n_epochs none is drawn there");
  std::error_code ignored;
  if (std::filesystem::file_size(text("sample_prompts", ""), ignored) != 0) return;
  for (const char* key : {"sample_prompts", kWhen[0], kWhen[1]})
    if (has(key)) drop(key, "the file of prompts is empty");
}

// "1024", "1344,1792" or a list.
void ScriptReader::settle_resolution() {
  std::string size = fmt::format("{}", fmt::join(words("resolution"), ","));
  std::erase(size, ' ');
  set("resolution", size, "resolution");
}

// KEY=VALUE. If a key is repeated, the last value wins.
void ScriptReader::read_network_arguments() {
  if (!has("network_args")) return;
  for (const std::string& argument : words("network_args")) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) refuse_value("network_args", "KEY=VALUE", argument);
    std::string value = argument.substr(equals + 1);
    std::erase(value, '"');
    arguments_.set(argument.substr(0, equals), value);
  }
  for (const auto& [name, value] : arguments_.all()) attempt([&, &n = name, &v = value] { settle_argument(n, v); });
}

void ScriptReader::settle_argument(const std::string& name, const std::string& value) {
  const std::string low = in_lower_case(value);
  const NetworkArgument* const row = find_network_argument(name);
  if (!row || (row->families & int(network_.family)) == 0) {
    if (arguments_.has(name) && low != "false" && low != "0")
      remark(fmt::format("network_args: {}: not an argument of {}.", printable(name), network_.module));
    return;
  }
  if (!arguments_.has(name)) return;
  if (row->use == NetworkArgument::Use::setting) return set(row->text, value, "network_args", name);
  if (row->use == NetworkArgument::Use::refused && low != row->neutral)
    refuse("network_args",
           fmt::format("{}: Wick has no such argument{}{}", name, row->text.empty() ? "" : "; ", row->text));
}

void ScriptReader::set_argument(std::string_view setting, const std::vector<std::string>& to,
                                std::string_view argument) {
  set(setting, to, "network_args", argument);
}

// The ranks and alphas of modules, and which are trained.
void ScriptReader::settle_sizes(double alpha) {
  NetworkSizes sizes{.rank = config_.rank.value, .alpha = alpha};
  of_network("network_args", [&] {
    const bool is_lycoris = network_.family == NetworkFamily::lycoris;
    const double conv_rank = arguments_.number("conv_dim", is_lycoris ? double(sizes.rank) : 0);
    check_usage(conv_rank >= 0 && conv_rank <= 4096 && conv_rank == std::floor(conv_rank),
                "conv_dim: expected a rank up to 4096, found {}", conv_rank);
    sizes.conv_rank = int64_t(conv_rank);
    sizes.conv_alpha = arguments_.number("conv_alpha", is_lycoris ? alpha : 1);
    modules_ = network_modules(network_, model_, arguments_, sizes);
  });
  if (!config_.from.empty()) {
    config_.rank = 0, config_.alpha = 0;
    return;
  }
  const auto with_others = [](const auto& value, const auto& others) {
    std::vector<std::string> all = {fmt::format("{}", value)};
    for (const auto& [pattern, other] : others) all.push_back(fmt::format("{}={}", pattern, other));
    return all;
  };
  if (!trains_denoiser()) {
    modules_.targets.clear(), modules_.ranks.clear(), modules_.alphas.clear(), modules_.shares.clear();
    modules_.sizes.conv_rank = 0;
  }
  if (!modules_.ranks.empty()) set_argument("rank", with_others(sizes.rank, modules_.ranks), "ranks");
  // 0 is each module's rank.
  if (!modules_.alphas.empty() || (alpha == 0 && !modules_.ranks.empty()))
    set_argument("alpha", with_others(alpha, modules_.alphas), "alphas");
  if (modules_.sizes.conv_rank == 0) return;
  set_argument("conv_rank", {fmt::format("{}", modules_.sizes.conv_rank)}, "conv_dim");
  const double conv_alpha = modules_.sizes.conv_alpha;
  set_argument("conv_alpha", {fmt::format("{}", conv_alpha == 0 ? double(modules_.sizes.conv_rank) : conv_alpha)},
               "conv_alpha");
}

bool ScriptReader::trains_denoiser() const { return !is_set("network_train_text_encoder_only"); }

// A ratio of 0 is none, so that the one of all counts. LyCORIS' is of lora_up alone.
void ScriptReader::settle_lora_plus(bool has_denoiser, bool has_text) {
  const auto ratio = [&](const char* own) {
    const double value = arguments_.number(own, 0);
    return value != 0 ? value : arguments_.number("loraplus_lr_ratio", 0);
  };
  const auto [denoiser, encoders] = of_network("network_args", [&] {
    return std::pair(ratio("loraplus_unet_lr_ratio"), ratio("loraplus_text_encoder_lr_ratio"));
  });
  if (denoiser == 0 && encoders == 0) return;
  if (network_.family == NetworkFamily::lycoris && network_.kind != AdapterKind::lora)
    return remark(fmt::format("network_args: loraplus_lr_ratio: does nothing to LyCORIS' {}.", name_of(network_.kind)));
  if (network_.kind == AdapterKind::lokr)
    refuse("network_args", "loraplus_lr_ratio: is of a LoKr's first matrix there, and Wick's of the second");
  const double first = has_denoiser ? denoiser : encoders;
  std::vector<std::string> all = {fmt::format("{}", first == 0 ? 1 : first)};
  if (has_denoiser && has_text && encoders != denoiser)
    all.push_back(fmt::format("text_encoder*={}", encoders == 0 ? 1 : encoders));
  set_argument("lora_plus", all, "loraplus_lr_ratio");
}

// As get_optimizer() of library/train_util.py makes it.
void ScriptReader::settle_optimizer() {
  const std::string name = text("optimizer_type", is_set("use_8bit_adam")        ? "AdamW8bit"
                                                  : is_set("use_lion_optimizer") ? "Lion"
                                                                                 : "AdamW");
  const OptimizerClass* known = find_optimizer_class(name);
  if (!known) refuse_value("optimizer_type", expected_optimizer_class(name), name);
  set_optimizer_class(config_, *known);
  for (const char* key : {"use_8bit_adam", "use_lion_optimizer", "optimizer_type"}) claim(key, "optimizer");
  if (is_schedule_free(known->kind)) config_.warmup = {};  // an argument of its own
  if (has("optimizer_args"))
    for (const std::string& argument : words("optimizer_args"))
      attempt([&] { settle_optimizer_argument(*known, argument); });
  if (config_.adafactor_warmup_init) config_.adafactor_relative_step = true;
  if (config_.adafactor_relative_step) settle_relative_step(name);
  if (config_.optimizer != OptimizerKind::prodigy) return;
  if (!modules_.shares.empty() || config_.lora_plus.value != 1 || !config_.lora_plus.others.empty())
    refuse("network_args", "Wick's Prodigy finds one rate for all; expected no rates of blocks and no loraplus ratio");
  if (!config_.lr.others.empty())
    refuse("text_encoder_lr", "Wick's Prodigy finds one rate for all; expected that of unet_lr");
}

void ScriptReader::settle_optimizer_argument(const OptimizerClass& known, const std::string& argument) {
  const size_t equals = argument.find('=');
  if (equals == std::string::npos) refuse_value("optimizer_args", "KEY=VALUE", argument);
  const std::string name = argument.substr(0, equals);
  std::vector<std::string> values(1);
  for (const char c : argument.substr(equals + 1))
    if (c == ',')
      values.emplace_back();
    else if (std::string_view(" ()[]'\"").find(c) == std::string_view::npos)
      values.back() += c;
  if (values.size() > 1 && values.back().empty()) values.pop_back();  // "(0.9,)"
  const OptimizerArgument read = read_optimizer_argument(config_, known, name, values);
  if (!read.refusal.empty()) refuse("optimizer_args", printable(read.refusal));
  if (!read.setting.empty()) set(read.setting, read.words, "optimizer_args", name);
}

// The rates of the file then mean nothing, and neither do its schedules.
void ScriptReader::settle_relative_step(const std::string& optimizer) {
  if (optimizer.find('.') != std::string::npos)
    refuse("optimizer_args",
           "relative_step: kohya's scripts give a class with its module a rate, which it refuses beside relative "
           "steps; expected optimizer_type = Adafactor, or relative_step=False");
  config_.lr = 0;
  config_.lora_plus = 1;
  config_.warmup = {};
  for (const char* key : {"learning_rate", "unet_lr", "text_encoder_lr", "text_encoder_lr1", "text_encoder_lr2",
                          "lr_scheduler", "lr_warmup_steps"})
    if (has(key)) drop(key, "Adafactor with relative_step has rates of its own");
}

// Schedule-free optimizers have none; a constant rate has no warm-up there.
void ScriptReader::settle_schedule() {
  if (config_.adafactor_relative_step) return;
  if (is_schedule_free(config_.optimizer)) {
    for (const char* key : {"lr_scheduler", "lr_warmup_steps"})
      if (has(key)) drop(key, "a schedule-free optimizer has no schedule");
    return;
  }
  std::string name = text("lr_scheduler", "constant");
  if (name == "constant") {
    config_.warmup = {};
    if (has("lr_warmup_steps")) drop("lr_warmup_steps", "a constant rate has no warm-up in kohya's scripts");
  }
  if (name == "constant_with_warmup") name = "constant";
  set("lr_schedule", name, "lr_scheduler");
}

void ScriptReader::settle_precision() {
  config_.dtype = DType::f32;
  if (const std::string dtype = text("mixed_precision", "no"); dtype != "no") set("dtype", dtype, "mixed_precision");
  set("save_dtype", text("save_precision", "float"), "save_precision");
  for (const char* key : {"fp8_base", "fp8_base_unet"})
    if (is_set(key)) set("quantize", "fp8", key);
  if (config_.quantize == Quantize::fp8 && !is_set("fp8_scaled"))
    remark("fp8_base: Wick's fp8 has scales, where kohya's rounds without.");
  if (number("blocks_to_swap", 0) > 0) set("stream_blocks", text("blocks_to_swap", ""), "blocks_to_swap");
  if (is_set("cpu_offload_checkpointing")) set("checkpoints_on_host", "true", "cpu_offload_checkpointing");
}

void ScriptReader::settle_output() {
  const std::string format = text("save_model_as", "safetensors");
  if (format != "safetensors") refuse_value("save_model_as", "safetensors", format);
  if (number("save_last_n_epochs", 0) > 0) set("keep_last", text("save_last_n_epochs", ""), "save_last_n_epochs");
  if (const double last = number("save_last_n_steps", 0); last > 0 && config_.save_every > 0)
    set("keep_last", fmt::format("{}", std::floor(last / double(config_.save_every)) + 1), "save_last_n_steps");
  if (has("ae")) set("vae", text("ae", ""), "ae");
}

// As get_noisy_model_input_and_timesteps() of sd-scripts' library/flux_train_utils.py has it.
void ScriptReader::settle_flow_times(double default_shift) {
  const std::string how = text("timestep_sampling", "sigma"), scale = text("sigmoid_scale", "1");
  const double shift = number("discrete_flow_shift", default_shift);
  claim("timestep_sampling", "timesteps");
  if (how == "sigma") return settle_density(text("weighting_scheme", "none"), shift, "discrete_flow_shift");
  if (how == "uniform") {
    set("timesteps", "uniform", "timestep_sampling");
    return set("timestep_shift", "1", "timestep_sampling");
  }
  set("timestep_std", scale, "sigmoid_scale");
  if (how == "sigmoid")
    set("timestep_mean", "0", "timestep_sampling");
  else if (how == "shift")
    set("timestep_shift", fmt::format("{}", shift), "discrete_flow_shift");
  else if (how != "flux_shift")
    refuse_value("timestep_sampling", "sigma, uniform, sigmoid, shift or flux_shift", how);
}

// compute_density_for_timestep_sampling() of library/sd3_train_utils.py, and the shift behind it.
void ScriptReader::settle_density(const std::string& scheme, double shift, std::string_view shift_key) {
  if (!(shift > 0)) refuse_value(shift_key, "a shift above 0", fmt::format("{}", shift));
  static constexpr std::string_view kUniform[] = {"none", "uniform", "sigma_sqrt", "cosmap"};
  if (scheme == "logit_normal") {
    set("timestep_mean", fmt::format("{}", number("logit_mean", 0) + std::log(shift)), "logit_mean");
    set("timestep_std", text("logit_std", "1"), "logit_std");
    return claim(shift_key, "timestep_mean");
  }
  if (scheme != "mode" && std::ranges::find(kUniform, scheme) == std::end(kUniform))
    refuse_value("weighting_scheme", "sigma_sqrt, logit_normal, mode, cosmap, none or uniform", scheme);
  set("timesteps", scheme == "mode" ? "mode" : "uniform", "weighting_scheme");
  set("timestep_shift", fmt::format("{}", shift), shift_key);
}

// Epochs win over steps.
void ScriptReader::settle_steps() {
  if (config_.epochs > 0 && config_.steps > 0) {
    config_.steps = 0;
    drop("max_train_steps", "max_train_epochs wins");
  }
  if (config_.steps == 0 && config_.epochs == 0) config_.steps = 1600;
}

}  // namespace wick
