#include "wick/train/kohya_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "wick/core/error.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"
#include "wick/train/toml_settings.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// Keys with the meaning of the setting of that name or alias here.
constexpr std::string_view kSame[] = {"alpha_mask",
                                      "apply_t5_attn_mask",
                                      "bucket_no_upscale",
                                      "bucket_reso_steps",
                                      "caption_dropout_rate",
                                      "caption_prefix",
                                      "caption_separator",
                                      "caption_suffix",
                                      "caption_tag_dropout_rate",
                                      "clip_g",
                                      "clip_l",
                                      "color_aug",
                                      "conditioning_data_dir",
                                      "debiased_estimation_loss",
                                      "flip_aug",
                                      "gradient_accumulation_steps",
                                      "gradient_checkpointing",
                                      "huber_c",
                                      "huber_scale",
                                      "huber_schedule",
                                      "ip_noise_gamma",
                                      "keep_tokens",
                                      "loss_type",
                                      "lr_scheduler_num_cycles",
                                      "lr_scheduler_power",
                                      "lr_warmup_steps",
                                      "masked_loss",
                                      "max_grad_norm",
                                      "max_train_epochs",
                                      "max_train_steps",
                                      "min_snr_gamma",
                                      "multires_noise_discount",
                                      "multires_noise_iterations",
                                      "network_dropout",
                                      "network_weights",
                                      "noise_offset",
                                      "output_dir",
                                      "output_name",
                                      "pretrained_model_name_or_path",
                                      "prior_loss_weight",
                                      "random_crop",
                                      "reg_data_dir",
                                      "save_every_n_epochs",
                                      "save_every_n_steps",
                                      "sample_every_n_epochs",
                                      "sample_every_n_steps",
                                      "sample_prompts",
                                      "scale_weight_norms",
                                      "seed",
                                      "shuffle_caption",
                                      "t5xxl",
                                      "t5xxl_max_token_length",
                                      "train_batch_size",
                                      "vae"};
// Of kSame, those whose 0 says that there is none.
constexpr std::string_view kZeroIsNone[] = {"max_train_epochs", "max_train_steps", "sample_every_n_epochs",
                                            "sample_every_n_steps", "t5xxl_max_token_length"};

// Keys that mean nothing here, and why.
struct IdleKey {
  std::string_view key, why;
};
constexpr std::string_view kAlways = "always so", kOwnLogs = "a run writes TensorBoard's files and metrics.jsonl",
                           kOwnLoading = "Wick reads and moves data in its own way", kFactors = "factors are in f32",
                           kNoUpload = "Wick uploads nothing", kOwnState = "--resume goes on with any run";
constexpr IdleKey kIdle[] = {{"cache_info", kOwnLoading},
                             {"cache_latents", kAlways},
                             {"cache_latents_to_disk", kAlways},
                             {"clip_skip", "these models have one way to read CLIP's layers"},
                             {"console_log_file", kOwnLogs},
                             {"console_log_level", kOwnLogs},
                             {"console_log_simple", kOwnLogs},
                             {"ddp_gradient_as_bucket_view", kOwnLoading},
                             {"ddp_static_graph", kOwnLoading},
                             {"ddp_timeout", kOwnLoading},
                             {"dim_from_weights", "--from has the file's ranks"},
                             {"disable_mmap_load_safetensors", kOwnLoading},
                             {"dynamo_backend", "kernels are compiled ahead"},
                             {"full_bf16", kFactors},
                             {"full_fp16", kFactors},
                             {"highvram", kOwnLoading},
                             {"huggingface_path_in_repo", kNoUpload},
                             {"huggingface_repo_id", kNoUpload},
                             {"huggingface_repo_type", kNoUpload},
                             {"huggingface_repo_visibility", kNoUpload},
                             {"huggingface_token", kNoUpload},
                             {"async_upload", kNoUpload},
                             {"save_state_to_huggingface", kNoUpload},
                             {"resume_from_huggingface", kNoUpload},
                             {"log_config", kOwnLogs},
                             {"log_prefix", kOwnLogs},
                             {"log_tracker_config", kOwnLogs},
                             {"log_tracker_name", kOwnLogs},
                             {"log_with", kOwnLogs},
                             {"logging_dir", kOwnLogs},
                             {"lowram", kOwnLoading},
                             {"max_data_loader_n_workers", kOwnLoading},
                             {"mem_eff_attn", "attention is always fused"},
                             {"metadata_author", "the file tells the run's settings"},
                             {"metadata_description", "the file tells the run's settings"},
                             {"metadata_license", "the file tells the run's settings"},
                             {"metadata_tags", "the file tells the run's settings"},
                             {"metadata_title", "the file tells the run's settings"},
                             {"model_type", "the model's file says"},
                             {"no_half_vae", "the VAE's dtype is the model's own choice"},
                             {"no_metadata", "the file tells the run's settings"},
                             {"persistent_data_loader_workers", kOwnLoading},
                             {"sample_at_first", kAlways},
                             {"sample_sampler", "lines of --sample-prompts say --ss"},
                             {"save_last_n_epochs_state", kOwnState},
                             {"save_last_n_steps_state", kOwnState},
                             {"save_state", kOwnState},
                             {"save_state_on_train_end", kOwnState},
                             {"sdpa", "attention is always fused"},
                             {"skip_cache_check", kOwnLoading},
                             {"split_attn", "attention is always fused"},
                             {"split_mode", "--stream-blocks and --memory save memory"},
                             {"t5xxl_device", kOwnLoading},
                             {"t5xxl_dtype", kOwnLoading},
                             {"text_encoder_batch_size", kOwnLoading},
                             {"tokenizer_cache_dir", "tokenizers are Wick's own"},
                             {"torch_compile", "kernels are compiled ahead"},
                             {"training_comment", "the file tells the run's settings"},
                             {"vae_batch_size", kOwnLoading},
                             {"vae_spatial_chunk_size", kOwnLoading},
                             {"wandb_api_key", kOwnLogs},
                             {"wandb_run_name", kOwnLogs},
                             {"xformers", "attention is always fused"}};

// Keys of which the scripts of some models alone make something: their parsers or losses have them
// (flux_train_utils.add_flux_train_arguments, sd3_train_utils.add_sd3_training_arguments,
// train_util.add_dit_training_arguments, post_process_loss and get_noise_pred_and_target of each trainer). The other
// scripts leave such a key alone, whatever it says.
enum class Family { sdxl = 1, sd3 = 2, flux = 4 };
struct FamilyKey {
  std::string_view key;
  int families;  // the sum of their numbers
};
constexpr int kSdxl = int(Family::sdxl), kSd3 = int(Family::sd3), kFlux = int(Family::flux), kFlows = kSd3 + kFlux;
constexpr FamilyKey kOfFamilies[] = {{"ae", kFlux},
                                     {"apply_lg_attn_mask", kSd3},
                                     {"apply_t5_attn_mask", kFlows},
                                     {"clip_g", kSd3},
                                     {"clip_g_dropout_rate", kSd3},
                                     {"clip_l", kFlows},
                                     {"clip_l_dropout_rate", kSd3},
                                     {"debiased_estimation_loss", kSdxl},
                                     {"discrete_flow_shift", kFlux},
                                     {"enable_scaled_pos_embed", kSd3},
                                     {"guidance_scale", kFlux},
                                     {"logit_mean", kFlows},
                                     {"logit_std", kFlows},
                                     {"min_snr_gamma", kSdxl},
                                     {"mode_scale", kFlows},
                                     {"model_prediction_type", kFlux},
                                     {"multires_noise_discount", kSdxl},
                                     {"multires_noise_iterations", kSdxl},
                                     {"noise_offset", kSdxl},
                                     {"noise_offset_random_strength", kSdxl},
                                     {"pos_emb_random_crop_rate", kSd3},
                                     {"scale_v_pred_loss_like_noise_pred", kSdxl},
                                     {"sigmoid_scale", kFlux},
                                     {"t5_dropout_rate", kSd3},
                                     {"t5xxl", kFlows},
                                     {"t5xxl_max_token_length", kFlows},
                                     {"timestep_sampling", kFlux},
                                     {"training_shift", kSd3},
                                     {"v_parameterization", kSdxl},
                                     {"v_pred_like_loss", kSdxl},
                                     {"weighting_scheme", kFlows}};

std::string in_words(int families) {
  std::vector<std::string_view> names;
  for (const auto& [family, name] : {std::pair{kSdxl, "SDXL"}, {kSd3, "SD3"}, {kFlux, "FLUX"}})
    if (families & family) names.push_back(name);
  return fmt::format("{}", fmt::join(names, " and "));
}

// Keys that Wick cannot honour: the values that ask for nothing, and what there is instead.
struct RefusedKey {
  std::string_view key, neutral, instead;
};
constexpr RefusedKey kRefused[] = {
    {"adaptive_noise_scale", "0", ""},
    {"base_weights", "", "`wick merge` merges LoRAs into a model first"},
    {"base_weights_multiplier", "", "`wick merge` merges LoRAs into a model first"},
    {"caption_dropout_every_n_epochs", "0", "caption_dropout_rate leaves captions empty"},
    {"clip_g_dropout_rate", "0", "caption_dropout_rate leaves captions empty"},
    {"clip_l_dropout_rate", "0", "caption_dropout_rate leaves captions empty"},
    {"t5_dropout_rate", "0", "caption_dropout_rate leaves captions empty"},
    {"apply_lg_attn_mask", "false", ""},
    {"dataset_class", "", ""},
    {"dataset_repeats", "1", "folders named N_name repeat pictures"},
    {"debug_dataset", "false", ""},
    {"deepspeed", "false", ""},
    {"enable_scaled_pos_embed", "false", ""},
    {"enable_wildcard", "false", "caption_lines takes one line of several"},
    {"face_crop_aug_range", "", ""},
    {"fused_backward_pass", "false", "--memory finds what fits"},
    {"in_json", "", "captions lie beside the pictures, in .txt or .caption"},
    {"initial_epoch", "1", "--resume goes on with a run"},
    {"initial_step", "0", "--resume goes on with a run"},
    {"skip_until_initial_step", "false", "--resume goes on with a run"},
    {"ip_noise_gamma_random_strength", "false", ""},
    {"keep_tokens_separator", "", "keep_tokens says how many"},
    {"lr_decay_steps", "0", ""},
    {"lr_scheduler_args", "", ""},
    {"lr_scheduler_min_lr_ratio", "0", ""},
    {"lr_scheduler_timescale", "0", ""},
    {"lr_scheduler_type", "", "lr_scheduler names one"},
    {"max_timestep", "1000", ""},
    {"max_token_length", "75", "captions are read to the length that the model has"},
    {"max_validation_steps", "", "--val names pictures that are held back"},
    {"min_timestep", "0", ""},
    {"mode_scale", "1.29", ""},
    {"noise_offset_random_strength", "false", ""},
    {"pos_emb_random_crop_rate", "0", ""},
    {"resize_interpolation", "", ""},
    {"resume", "", "a state of kohya's is not read; --resume goes on with a run of Wick's"},
    {"scale_v_pred_loss_like_noise_pred", "false", ""},
    {"secondary_separator", "", ""},
    {"token_warmup_min", "1", ""},
    {"token_warmup_step", "0", ""},
    {"v_pred_like_loss", "0", ""},
    {"v2", "false", "Wick trains SDXL, SD3 and FLUX.1"},
    {"validate_every_n_epochs", "", "--val-every counts steps"},
    {"validate_every_n_steps", "", "--val and --val-every say it"},
    {"validation_seed", "", "--val names pictures that are held back"},
    {"validation_split", "0", "--val names pictures that are held back"},
    {"weighted_captions", "false", ""},
    {"zero_terminal_snr", "false", "a model's own scheduler says so"}};

// Keys that Reader::settle() reads together.
constexpr std::string_view kTogether[] = {"ae",
                                          "blocks_to_swap",
                                          "cache_text_encoder_outputs",
                                          "cache_text_encoder_outputs_to_disk",
                                          "caption_extension",
                                          "cpu_offload_checkpointing",
                                          "dataset_config",
                                          "discrete_flow_shift",
                                          "enable_bucket",
                                          "fp8_base",
                                          "fp8_base_unet",
                                          "guidance_scale",
                                          "learning_rate",
                                          "logit_mean",
                                          "logit_std",
                                          "lr_scheduler",
                                          "max_bucket_reso",
                                          "min_bucket_reso",
                                          "mixed_precision",
                                          "model_prediction_type",
                                          "network_alpha",
                                          "network_args",
                                          "network_dim",
                                          "network_module",
                                          "network_train_text_encoder_only",
                                          "network_train_unet_only",
                                          "optimizer_args",
                                          "optimizer_type",
                                          "resolution",
                                          "save_last_n_epochs",
                                          "save_last_n_steps",
                                          "save_model_as",
                                          "save_precision",
                                          "sigmoid_scale",
                                          "text_encoder_lr",
                                          "text_encoder_lr1",
                                          "text_encoder_lr2",
                                          "timestep_sampling",
                                          "train_data_dir",
                                          "training_shift",
                                          "unet_lr",
                                          "use_8bit_adam",
                                          "use_lion_optimizer",
                                          "v_parameterization",
                                          "weighting_scheme"};

template <class T>
bool contains(const T& list, std::string_view key) {
  return std::ranges::find(list, key) != std::end(list);
}

std::vector<std::string> known_keys() {
  std::vector<std::string> all;
  for (const KohyaKey& row : kohya_keys()) all.emplace_back(row.key);
  return all;
}

std::optional<double> number_of(std::string_view text) {
  double value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

// The words of a value, as a flag would have them.
std::vector<std::string> words_of(const toml::node& node) {
  if (const toml::array* list = node.as_array()) {
    std::vector<std::string> all;
    for (const toml::node& item : *list)
      for (const std::string& word : words_of(item)) all.push_back(word);
    return all;
  }
  if (const auto text = node.value_exact<std::string>()) return {*text};
  if (const auto truth = node.value_exact<bool>()) return {*truth ? "true" : "false"};
  if (const auto whole = node.value_exact<int64_t>()) return {fmt::format("{}", *whole)};
  if (const auto number = node.value_exact<double>()) return {fmt::format("{}", *number)};
  return {told(node)};
}

class Reader {
 public:
  explicit Reader(const fs::path& file) : file_(file.string()) {
    const toml::table table = parse_toml(file);
    for (const auto& [key, node] : table) {
      if (const toml::table* section = node.as_table()) {
        for (const auto& [inner, value] : *section) add(std::string(inner.str()), value);
      } else {
        add(std::string(key.str()), node);
      }
    }
  }

  KohyaConfig operator()() {
    family_ = family();
    for (const std::string& key : order_) {
      const auto* others = std::ranges::find(kOfFamilies, key, &FamilyKey::key);
      if (others != std::end(kOfFamilies) && (others->families & int(family_)) == 0) {
        read_.without.push_back(fmt::format("{} (is for {})", key, in_words(others->families)));
        values_.erase(key);
      } else if (contains(kTogether, key)) {
        read_.taken.push_back(key);
      } else if (contains(kSame, key)) {
        take(key);
      } else if (const auto* idle = std::ranges::find(kIdle, key, &IdleKey::key); idle != std::end(kIdle)) {
        read_.without.push_back(fmt::format("{} ({})", key, idle->why));
      } else {
        refuse(key);
      }
    }
    settle();
    return std::move(read_);
  }

 private:
  void add(const std::string& key, const toml::node& node) {
    const std::vector<std::string> words = words_of(node);
    check_usage(!node.is_table() && std::ranges::find(order_, key) == order_.end(),
                "{}: {}: expected it once, as a value", file_, printable(key));
    const bool is_none = words.empty() || (words.size() == 1 && (words[0].empty() || words[0] == "None"));
    if (is_none) return;  // as if it were not there
    order_.push_back(key);
    values_[key] = words;
  }

  std::string at(std::string_view key) const { return fmt::format("{}: {}", file_, printable(key)); }
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
  const std::vector<std::string>& words(std::string_view key) const { return values_.find(key)->second; }
  std::string text(std::string_view key, std::string_view otherwise) const {
    if (!has(key)) return std::string(otherwise);
    check_usage(words(key).size() == 1, "{}: expected one value, found {}", at(key), words(key).size());
    return words(key).front();
  }
  double number(std::string_view key, double otherwise) const {
    if (!has(key)) return otherwise;
    const auto value = number_of(text(key, ""));
    check_usage(value.has_value(), "{}: expected a number, found {}", at(key), quote(text(key, "")));
    return *value;
  }
  bool is_set(std::string_view key) const {
    const std::string value = text(key, "false");
    check_usage(value == "true" || value == "false", "{}: expected true or false, found {}", at(key), quote(value));
    return value == "true";
  }
  [[noreturn]] void fail_value(std::string_view key, std::string_view expected, std::string_view found) const {
    fail_usage("{}: expected {}, found {}", at(key), expected, quote(found));
  }

  void set(std::string_view setting, const std::vector<std::string>& to, std::string_view key) {
    option_named(setting).set(config_, to, at(key));
  }
  void set(std::string_view setting, const std::string& to, std::string_view key) {
    set(setting, std::vector<std::string>{to}, key);
  }

  void take(const std::string& key) {
    if (contains(kZeroIsNone, key) && number(key, 0) == 0) return;
    check_usage(words(key).size() == 1, "{}: expected one value, found {}", at(key), words(key).size());
    set(key, words(key), key);
    read_.taken.push_back(key);
  }

  void refuse(const std::string& key) const {
    const auto* row = std::ranges::find(kRefused, key, &RefusedKey::key);
    check_usage(row != std::end(kRefused), "{}: kohya's scripts have no such key that Wick knows{}", at(key),
                did_you_mean(key, known_keys()));
    const std::vector<std::string>& found = words(key);
    const auto value = number_of(found.front()), neutral = number_of(row->neutral);
    const bool is_neutral =
        found.size() == 1 && (found.front() == "false" || found.front() == row->neutral || (value && value == neutral));
    check_usage(is_neutral, "{}: Wick has no such setting{}{}", at(key), row->instead.empty() ? "; leave it out" : "; ",
                row->instead);
  }

  void settle() {
    settle_data();
    settle_network();
    settle_optimizer();
    settle_precision();
    settle_output();
    if (family_ == Family::flux)
      settle_flux();
    else if (family_ == Family::sd3)
      settle_sd3();
    else if (is_set("v_parameterization"))
      config_.prediction = PredictionSetting::v;
    if (config_.steps == 0 && config_.epochs == 0) config_.steps = 1600;
  }

  // Its scripts are one for each; a file of options does not say which one reads it.
  Family family() const {
    const std::string module = text("network_module", "networks.lora");
    if (module == "networks.lora_flux" || has("ae")) return Family::flux;
    if (module == "networks.lora_sd3" || has("clip_g") || has("training_shift")) return Family::sd3;
    if (module != "networks.lora")
      fail_value("network_module", "networks.lora, networks.lora_sd3 or networks.lora_flux", module);
    return Family::sdxl;
  }

  void settle_data() {
    check_usage(has("train_data_dir") != has("dataset_config"),
                "{}: expected train_data_dir or dataset_config, found {}", file_,
                has("train_data_dir") ? "both" : "neither");
    const std::string key = has("train_data_dir") ? "train_data_dir" : "dataset_config";
    config_.dataset = {text(key, "")};
    config_.caption_extension = text("caption_extension", ".caption");
    if (has("resolution")) settle_resolution();
    check_usage(has("resolution") || has("dataset_config"), "{}: resolution is missing", file_);
    config_.no_bucket = !is_set("enable_bucket") && !has("dataset_config");
    if (config_.no_bucket || config_.no_upscale) {
      if (config_.no_bucket) config_.no_upscale = false;  // means nothing there
      return;
    }
    set("min_bucket_reso", text("min_bucket_reso", "256"), "min_bucket_reso");
    set("max_bucket_reso", text("max_bucket_reso", "1024"), "max_bucket_reso");
  }

  // "1024", "1024,1024" or a list.
  void settle_resolution() {
    std::string joined = fmt::format("{}", fmt::join(words("resolution"), ","));
    const size_t comma = joined.find(',');
    const auto width = number_of(joined.substr(0, comma)),
               height = comma == std::string::npos ? width : number_of(joined.substr(comma + 1));
    check_usage(width && height && *width == *height,
                "{}: expected a side or two equal ones, whose square is the area of buckets, found {}",
                at("resolution"), quote(joined));
    set("resolution", fmt::format("{}", *width), "resolution");
  }

  void settle_network() {
    set("rank", text("network_dim", "4"), "network_dim");
    const double alpha = number("network_alpha", 1);
    set("alpha", alpha == 0 ? fmt::format("{}", config_.rank.value) : fmt::format("{}", alpha), "network_alpha");
    if (!config_.from.empty()) config_.rank = 0, config_.alpha = 0;  // the file's
    bool trains_t5 = false;
    if (has("network_args"))
      for (const std::string& argument : words("network_args")) settle_argument(argument, trains_t5);
    if (config_.conv_rank > 0 && config_.conv_alpha == 0) config_.conv_alpha = 1;
    settle_targets(trains_t5);
  }

  void settle_argument(const std::string& argument, bool& trains_t5) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) fail_value("network_args", "KEY=VALUE", argument);
    const std::string key = argument.substr(0, equals), value = argument.substr(equals + 1);
    static const std::map<std::string, std::string> kSettings = {
        {"conv_dim", "conv_rank"},        {"conv_alpha", "conv_alpha"},         {"dropout", "lora_dropout"},
        {"rank_dropout", "rank_dropout"}, {"module_dropout", "module_dropout"}, {"loraplus_lr_ratio", "lora_plus"}};
    const bool is_on = value == "True" || value == "true";
    if (const auto setting = kSettings.find(key); setting != kSettings.end())
      return set(setting->second, value, "network_args: " + key);
    if (key == "train_t5xxl")
      trains_t5 = is_on;
    else if (key != "verbose" && (is_on || key != "split_qkv"))
      fail_usage("{}: {}: Wick has no such argument", at("network_args"), printable(key));
  }

  // Kohya's train CLIP too unless told otherwise, T5 only if told so.
  void settle_targets(bool trains_t5) {
    const bool trains_denoiser = !is_set("network_train_text_encoder_only");
    const bool trains_text = !is_set("network_train_unet_only") && !is_set("cache_text_encoder_outputs") &&
                             !is_set("cache_text_encoder_outputs_to_disk");
    const std::string rate = text("unet_lr", text("learning_rate", "2e-6"));
    config_.lr = 0;
    set("lr", trains_denoiser && number_of(rate) != 0 ? rate : text("learning_rate", "2e-6"),
        has("unet_lr") ? "unet_lr" : "learning_rate");
    std::vector<std::string> targets;
    if (trains_denoiser) targets = denoiser_targets();
    if (trains_text) add_text_targets(targets, trains_t5);
    check_usage(!targets.empty(), "{}: neither the denoiser nor a text encoder is trained", file_);
    if (config_.from.empty() && (trains_text || !trains_denoiser)) config_.targets = targets;
  }

  std::vector<std::string> denoiser_targets() const {
    if (family_ == Family::flux) return {"transformer.double_blocks.*", "transformer.single_blocks.*"};
    if (family_ == Family::sd3) return {"transformer.joint_blocks.*"};
    return config_.conv_rank > 0 ? std::vector<std::string>{"unet.*.attentions.*", "unet.*.resnets.*",
                                                            "unet.*.downsamplers.*", "unet.*.upsamplers.*"}
                                 : std::vector<std::string>{"unet.*.attentions.*"};
  }

  // The k-th text encoder has the k-th rate, or the last that there is.
  void add_text_targets(std::vector<std::string>& targets, bool trains_t5) {
    std::vector<std::string> rates;
    if (has("text_encoder_lr")) rates = words("text_encoder_lr");
    for (const char* key : {"text_encoder_lr1", "text_encoder_lr2"})
      if (has(key)) rates.push_back(text(key, ""));
    const size_t clips = family_ == Family::flux ? 1 : 2;
    for (size_t k = 0; k < clips + (trains_t5 ? 1 : 0); ++k) {
      const std::string encoder = k == 0 ? "text_encoder.*" : fmt::format("text_encoder_{}.*", k + 1);
      const std::string rate = rates.empty() ? text("learning_rate", "2e-6") : rates[std::min(k, rates.size() - 1)];
      const auto value = number_of(rate);
      if (!value || *value < 0) fail_value("text_encoder_lr", "numbers", rate);
      if (*value == 0) continue;
      targets.push_back(k < clips ? encoder + "layers.*" : encoder);
      if (*value != config_.lr.value) config_.lr.others.push_back({encoder, *value});
    }
  }

  void settle_optimizer() {
    std::string name = text("optimizer_type", is_set("use_8bit_adam")        ? "AdamW8bit"
                                              : is_set("use_lion_optimizer") ? "Lion"
                                                                             : "AdamW");
    std::ranges::transform(name, name.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
    struct Known {
      std::string_view name, ours;
      double weight_decay;  // that it has unless told
    };
    static constexpr Known kKnown[] = {
        {"adamw", "adamw", 0.01}, {"adamw8bit", "adamw8bit", 0.01}, {"pagedadamw8bit", "adamw8bit", 0.01},
        {"lion", "lion", 0},      {"lion8bit", "lion8bit", 0},      {"adafactor", "adafactor", 0},
        {"prodigy", "prodigy", 0}};
    const auto* known = std::ranges::find(kKnown, name, &Known::name);
    if (known == std::end(kKnown))
      fail_value("optimizer_type", "AdamW, AdamW8bit, Lion, Lion8bit, AdaFactor or Prodigy", name);
    set("optimizer", std::string(known->ours), "optimizer_type");
    config_.weight_decay = known->weight_decay;
    bool relative_step = config_.optimizer == OptimizerKind::adafactor;
    if (has("optimizer_args"))
      for (const std::string& argument : words("optimizer_args")) settle_optimizer_argument(argument, relative_step);
    check_usage(!relative_step, "{}: Wick's Adafactor has the rate that it is told; expected relative_step=False",
                at("optimizer_args"));
    settle_schedule();
  }

  // What these have as Wick has it says nothing.
  void settle_optimizer_argument(const std::string& argument, bool& relative_step) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) fail_value("optimizer_args", "KEY=VALUE", argument);
    std::string key = argument.substr(0, equals), value = argument.substr(equals + 1);
    std::erase(value, ' ');
    if (key == "weight_decay") return set(key, value, "optimizer_args: weight_decay");
    if (key == "relative_step") {
      relative_step = value != "False" && value != "false";
      return;
    }
    static constexpr std::string_view kAsHere[] = {
        "scale_parameter=False", "warmup_init=False", "decouple=True", "betas=0.9,0.999",
        "betas=(0.9,0.999)",     "eps=1e-8",          "eps=1e-08"};
    check_usage(contains(kAsHere, key + "=" + value), "{}: Wick has no such argument of {}: {}", at("optimizer_args"),
                name_of(config_.optimizer), printable(argument));
  }

  void settle_schedule() {
    std::string name = text("lr_scheduler", "constant");
    if (name == "constant") config_.warmup = {};  // which has none there
    if (name == "constant_with_warmup") name = "constant";
    set("lr_schedule", name, "lr_scheduler");
  }

  void settle_precision() {
    config_.dtype = DType::f32;
    if (const std::string dtype = text("mixed_precision", "no"); dtype != "no") set("dtype", dtype, "mixed_precision");
    set("save_dtype", text("save_precision", "float"), "save_precision");
    if (is_set("fp8_base") || is_set("fp8_base_unet")) {
      config_.quantize = Quantize::fp8;
      read_.remarks.push_back("fp8_base: Wick's fp8 has scales, where kohya's rounds without.");
    }
    if (number("blocks_to_swap", 0) > 0) set("stream_blocks", text("blocks_to_swap", ""), "blocks_to_swap");
    config_.checkpoints_on_host = is_set("cpu_offload_checkpointing");
  }

  void settle_output() {
    const std::string format = text("save_model_as", "safetensors");
    if (format != "safetensors") fail_value("save_model_as", "safetensors", format);
    if (number("save_last_n_epochs", 0) > 0) set("keep_last", text("save_last_n_epochs", ""), "save_last_n_epochs");
    if (const double last = number("save_last_n_steps", 0); last > 0 && config_.save_every > 0)
      config_.keep_last = int64_t(last) / config_.save_every + 1;
    if (has("ae")) set("vae", text("ae", ""), "ae");
  }

  // As get_noisy_model_input_and_timesteps() of library/flux_train_utils.py has it.
  void settle_flux() {
    const std::string how = text("timestep_sampling", "sigma"), loss = text("model_prediction_type", "raw");
    if (loss != "raw")
      fail_value("model_prediction_type", "raw, the velocity, which is what the loss compares with", loss);
    if (!has("model_prediction_type"))
      read_.remarks.push_back(
          "model_prediction_type: raw is taken; kohya's default, sigma_scaled, is not for FLUX's loss.");
    set("train_guidance", text("guidance_scale", "3.5"), "guidance_scale");
    const double shift = number("discrete_flow_shift", 3), scale = number("sigmoid_scale", 1);
    if (how == "sigma") return settle_density(text("weighting_scheme", "none"), shift);
    if (how == "uniform") {
      config_.timesteps = TimestepKind::uniform;
      config_.timestep_shift = "1";
      return;
    }
    config_.timestep_std = scale;
    if (how == "sigmoid")
      config_.timestep_mean = "0";
    else if (how == "shift")
      config_.timestep_shift = fmt::format("{}", shift);
    else if (how != "flux_shift")
      fail_value("timestep_sampling", "sigma, uniform, sigmoid, shift or flux_shift", how);
  }

  // Its loss compares pictures, which is sigma^2 times that of velocities (sd3_train_network.py).
  void settle_sd3() {
    const std::string scheme = text("weighting_scheme", "uniform");
    check_usage(scheme != "cosmap", "{}: Wick weighs by cosmap or by the sigma^2 of kohya's loss of SD3, not by both",
                at("weighting_scheme"));
    config_.weighting_scheme = scheme == "sigma_sqrt" ? WeightingScheme::none : WeightingScheme::sigma_squared;
    if (config_.t5_tokens == 0) config_.t5_tokens = 256;
    settle_density(scheme, number("training_shift", 1));
  }

  // compute_density_for_timestep_sampling() of library/sd3_train_utils.py, and the shift behind it.
  void settle_density(const std::string& scheme, double shift) {
    check_usage(shift > 0, "{}: expected a shift above 0", file_);
    static constexpr std::string_view kUniform[] = {"none", "uniform", "sigma_sqrt", "cosmap"};
    if (scheme == "logit_normal") {
      config_.timestep_mean = fmt::format("{}", number("logit_mean", 0) + std::log(shift));
      config_.timestep_std = number("logit_std", 1);
      return;
    }
    if (scheme != "mode" && !contains(kUniform, scheme))
      fail_value("weighting_scheme", "sigma_sqrt, logit_normal, mode, cosmap, none or uniform", scheme);
    config_.timesteps = scheme == "mode" ? TimestepKind::mode : TimestepKind::uniform;
    config_.timestep_shift = fmt::format("{}", shift);
  }

  std::string file_;
  std::vector<std::string> order_;  // of the keys
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  Family family_ = Family::sdxl;
  KohyaConfig read_;
  TrainConfig& config_ = read_.config;
};

}  // namespace

KohyaConfig read_kohya_config(const fs::path& file) { return Reader(file)(); }

std::vector<KohyaKey> kohya_keys() {
  std::vector<KohyaKey> all;
  for (const std::string_view key : kSame) all.push_back({key, KohyaUse::setting});
  for (const std::string_view key : kTogether) all.push_back({key, KohyaUse::together});
  for (const IdleKey& row : kIdle) all.push_back({row.key, KohyaUse::none});
  for (const RefusedKey& row : kRefused) all.push_back({row.key, KohyaUse::refused});
  return all;
}

}  // namespace wick
