#include "wick/train/foreign/kohya_gui.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "wick/train/foreign/kohya.h"
#include "wick/train/foreign/table.h"

namespace wick {
namespace {

using Json = nlohmann::ordered_json;

// Names that differ; of kohya_gui/lora_gui.py.
struct GuiName {
  std::string_view gui, script;
};
constexpr GuiName kGuiNames[] = {{"max_resolution", "resolution"},
                                 {"optimizer", "optimizer_type"},
                                 {"sdxl_no_half_vae", "no_half_vae"},
                                 {"sdxl_cache_text_encoder_outputs", "cache_text_encoder_outputs"},
                                 {"flux1_cache_text_encoder_outputs", "cache_text_encoder_outputs"},
                                 {"flux1_cache_text_encoder_outputs_to_disk", "cache_text_encoder_outputs_to_disk"},
                                 {"sd3_cache_text_encoder_outputs", "cache_text_encoder_outputs"},
                                 {"sd3_clip_l", "clip_l"},
                                 {"sd3_t5xxl", "t5xxl"}};

// A kind of network: its module, LyCORIS' name of it, and its arguments among the GUI's keys.
struct GuiNetwork {
  std::string_view type, module, algorithm, arguments;
};
constexpr std::string_view kByBlocks =
    "down_lr_weight mid_lr_weight up_lr_weight block_lr_zero_threshold block_dims block_alphas conv_block_dims "
    "conv_block_alphas rank_dropout module_dropout";
constexpr std::string_view kOfLycoris =
    "conv_dim conv_alpha use_tucker rank_dropout bypass_mode dora_wd module_dropout use_scalar rank_dropout_scale "
    "train_norm";
constexpr GuiNetwork kGuiNetworks[] = {
    {"Standard", "networks.lora", "", kByBlocks},
    {"Kohya LoCon", "networks.lora", "",
     "conv_dim conv_alpha down_lr_weight mid_lr_weight up_lr_weight block_lr_zero_threshold block_dims block_alphas "
     "conv_block_dims conv_block_alphas rank_dropout module_dropout"},
    {"Kohya DyLoRA", "networks.dylora", "", ""},
    {"Kohya LoHa", "networks.loha", "", "conv_dim conv_alpha use_tucker rank_dropout module_dropout"},
    {"Kohya LoKr", "networks.lokr", "", "conv_dim conv_alpha use_tucker factor rank_dropout module_dropout"},
    {"LoRA-FA", "networks.lora_fa", "", ""},
    {"Flux1", "networks.lora_flux", "",
     "img_attn_dim img_mlp_dim img_mod_dim single_dim txt_attn_dim txt_mlp_dim txt_mod_dim single_mod_dim in_dims "
     "train_double_block_indices train_single_block_indices split_qkv train_t5xxl rank_dropout module_dropout"},
    {"Flux1 OFT", "networks.oft_flux", "", ""},
    {"LoCon", "lycoris.kohya", "locon", kOfLycoris},
    {"LyCORIS/LoCon", "lycoris.kohya", "locon", kOfLycoris},
    {"LyCORIS/LoHa", "lycoris.kohya", "loha", kOfLycoris},
    {"LyCORIS/BOFT", "lycoris.kohya", "boft", ""},
    {"LyCORIS/Diag-OFT", "lycoris.kohya", "diag-oft", ""},
    {"LyCORIS/DyLoRA", "lycoris.kohya", "dylora", ""},
    {"LyCORIS/GLoRA", "lycoris.kohya", "glora", ""},
    {"LyCORIS/Native Fine-Tuning", "lycoris.kohya", "full", ""},
    {"LyCORIS/iA3", "lycoris.kohya", "ia3", ""},
    {"LyCORIS/LoKr", "lycoris.kohya", "lokr",
     "conv_dim conv_alpha use_tucker rank_dropout bypass_mode dora_wd module_dropout factor use_cp use_scalar "
     "decompose_both rank_dropout_scale train_norm"}};

// What the GUI does not hand on, as Python's "value in ['', False, None]" has it.
bool says_nothing(const Json& value) {
  if (value.is_null() || (value.is_string() && value.get<std::string>().empty())) return true;
  return (value.is_boolean() && !value.get<bool>()) || (value.is_number() && value.get<double>() == 0);
}

double number_in(const Json& gui, const char* key) {
  const auto found = gui.find(key);
  if (found == gui.end()) return 0;
  const std::vector<std::string> words = words_of(*found);
  return words.size() == 1 ? number_of(words[0]).value_or(0) : 0;
}

// "a=1 b=2" as a list.
Json split_words(const std::string& text) {
  Json all = Json::array();
  std::string word;
  for (const char c : text + " ") {
    if (c != ' ')
      word += c == '"' ? "" : std::string(1, c);
    else if (!word.empty())
      all.push_back(std::exchange(word, ""));
  }
  return all;
}

// The text of a value as Python formats it into network_args.
std::string argument_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  const std::vector<std::string> words = words_of(value);
  return words.empty() ? "" : words.front();
}

void add_network(const Json& gui, Json& options) {
  const auto found = gui.find("LoRA_type");
  const std::string type = found != gui.end() && found->is_string() ? found->get<std::string>() : "Standard";
  const auto* network = std::ranges::find(kGuiNetworks, type, &GuiNetwork::type);
  if (network == std::end(kGuiNetworks)) {
    options["network_module"] = type;  // is refused by this name
    return;
  }
  const bool is_sd3 = gui.contains("sd3_checkbox") && gui["sd3_checkbox"] == true;
  options["network_module"] = type == "Standard" && is_sd3 ? "networks.lora_sd3" : std::string(network->module);
  Json arguments = Json::array();
  if (!network->algorithm.empty()) {
    arguments.push_back(fmt::format("algo={}", network->algorithm));
    if (gui.contains("LyCORIS_preset")) arguments.push_back("preset=" + argument_of(gui["LyCORIS_preset"]));
  }
  for (const Json& name : split_words(std::string(network->arguments) +
                                      " loraplus_lr_ratio loraplus_unet_lr_ratio loraplus_text_encoder_lr_ratio")) {
    const std::string key = name.get<std::string>();
    const bool keeps_zero = !network->algorithm.empty() && !key.starts_with("loraplus");
    if (gui.contains(key) && (keeps_zero || !says_nothing(gui[key])))
      arguments.push_back(key + "=" + argument_of(gui[key]));
  }
  if (!arguments.empty()) options["network_args"] = arguments;
}

// Which parts are trained follows from their rates.
void add_rates(const Json& gui, Json& options) {
  const double text = number_in(gui, "text_encoder_lr"), t5 = number_in(gui, "t5xxl_lr"),
               denoiser = number_in(gui, "unet_lr");
  options["text_encoder_lr"] = nullptr;
  if (text > 0) options["text_encoder_lr"] = Json::array({text, t5 > 0 ? t5 : text});
  options["network_train_unet_only"] = text == 0 && denoiser != 0;
  options["network_train_text_encoder_only"] = text != 0 && denoiser == 0;
}

// Without steps the GUI counts those of its epochs; its warm-up is a percentage unless there are steps of it.
void add_steps(const Json& gui, Json& options) {
  if (number_in(gui, "max_train_steps") == 0 && number_in(gui, "max_train_epochs") == 0 && number_in(gui, "epoch") > 0)
    options["max_train_epochs"] = int64_t(number_in(gui, "epoch"));
  const double percent = number_in(gui, "lr_warmup");
  if (number_in(gui, "lr_warmup_steps") == 0 && percent > 0 && percent < 100)
    options["lr_warmup_steps"] = percent / 100;
}

// Noise of one kind alone.
void drop_other_noise(const Json& gui, Json& options) {
  const auto found = gui.find("noise_offset_type");
  const std::string type = found != gui.end() && found->is_string() ? found->get<std::string>() : "Original";
  for (const char* key : {"noise_offset", "noise_offset_random_strength", "adaptive_noise_scale"})
    if (type != "Original" && options.contains(key)) options[key] = nullptr;
  for (const char* key : {"multires_noise_iterations", "multires_noise_discount"})
    if (type != "Multires" && options.contains(key)) options[key] = nullptr;
}

}  // namespace

bool is_of_kohya_gui(const Json& tree) { return tree.contains("LoRA_type") || tree.contains("max_resolution"); }

Json options_of_gui(const Json& gui, std::vector<std::string>& own) {
  Json options = Json::object();
  for (const auto& [key, value] : gui.items()) {
    const auto* name = std::ranges::find(kGuiNames, key, &GuiName::gui);
    const std::string script = name == std::end(kGuiNames) ? key : std::string(name->script);
    const bool is_list = script == "optimizer_args" || script == "lr_scheduler_args";
    if (std::ranges::find(kohya_keys(), script, &ForeignKey::key) == kohya_keys().end() || script == "network_args")
      own.push_back(key);
    else if (!options.contains(script) || options[script].is_null())
      options[script] = says_nothing(value)            ? Json()
                        : is_list && value.is_string() ? split_words(value.get<std::string>())
                                                       : value;
  }
  for (const std::string& key : own) options[key] = gui[key];
  add_network(gui, options);
  add_rates(gui, options);
  add_steps(gui, options);
  drop_other_noise(gui, options);
  return options;
}

}  // namespace wick
