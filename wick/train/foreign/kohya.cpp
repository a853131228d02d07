#include "wick/train/foreign/kohya.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "wick/core/error.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/command.h"
#include "wick/train/foreign/kohya_gui.h"
#include "wick/train/foreign/optimizers.h"
#include "wick/train/foreign/table.h"

namespace wick {
namespace {

using Key = ForeignKey;
using Json = nlohmann::ordered_json;

constexpr std::string_view kAlways = "always so", kFactors = "factors are in f32",
                           kOwnState = "--resume goes on with any run", kDeepSpeed = "is for DeepSpeed",
                           kWhole = "is for whole models", kItself = "names option files",
                           kOfGui = "of kohya's GUI; the scripts leave it alone",
                           kLeftAlone = "kohya's scripts leave it alone";

// All options of kohya's scripts that Wick knows.
constexpr Key kKeys[] = {
    Key::refused("adaptive_noise_scale", "0", ""),
    Key::together("ae"),
    Key::same("alpha_mask"),
    Key::refused("apply_lg_attn_mask", "false", ""),
    Key::same("apply_t5_attn_mask"),
    Key::idle("async_upload", kNoUpload),
    Key::refused("base_weights", "", "`wick merge` merges LoRAs into a model first"),
    Key::refused("base_weights_multiplier", "", "`wick merge` merges LoRAs into a model first"),
    Key::together("blocks_to_swap"),
    Key::same("bucket_no_upscale"),
    Key::same("bucket_reso_steps"),
    Key::idle("cache_info", kOwnLoading),
    Key::idle("cache_latents", kAlways),
    Key::idle("cache_latents_to_disk", kAlways),
    Key::together("cache_text_encoder_outputs"),
    Key::together("cache_text_encoder_outputs_to_disk"),
    Key::refused("caption_dropout_every_n_epochs", "0", "caption_dropout_rate leaves captions empty"),
    Key::same("caption_dropout_rate"),
    Key::together("caption_extension"),
    Key::together("caption_extention"),
    Key::same("caption_prefix"),
    Key::same("caption_separator"),
    Key::same("caption_suffix"),
    Key::same("caption_tag_dropout_rate"),
    Key::same("clip_g"),
    Key::refused("clip_g_dropout_rate", "0", "caption_dropout_rate leaves captions empty"),
    Key::same("clip_l"),
    Key::refused("clip_l_dropout_rate", "0", "caption_dropout_rate leaves captions empty"),
    Key::idle("clip_skip", "these models have one way to read CLIP's layers"),
    Key::same("color_aug"),
    Key::same("conditioning_data_dir"),
    Key::idle("config_file", kItself),
    Key::idle("console_log_file", kOwnLogs),
    Key::idle("console_log_level", kOwnLogs),
    Key::idle("console_log_simple", kOwnLogs),
    Key::together("cpu_offload_checkpointing"),
    Key::refused("dataset_class", "", ""),
    Key::together("dataset_config"),
    Key::refused("dataset_repeats", "1", "folders named N_name repeat pictures"),
    Key::idle("ddp_gradient_as_bucket_view", kOwnLoading),
    Key::idle("ddp_static_graph", kOwnLoading),
    Key::idle("ddp_timeout", kOwnLoading),
    Key::same("debiased_estimation_loss"),
    Key::refused("debug_dataset", "false", ""),
    Key::refused("deepspeed", "false", ""),
    Key::idle("dim_from_weights", "--from has the file's ranks"),
    Key::idle("disable_mmap_load_safetensors", kOwnLoading),
    Key::together("discrete_flow_shift"),
    Key::idle("double_blocks_to_swap", kOfGui),
    Key::idle("dynamo_backend", kCompiled),
    Key::together("enable_bucket"),
    Key::refused("enable_scaled_pos_embed", "false", ""),
    Key::same("enable_wildcard"),
    Key::idle("epoch", kOfGui),
    Key::refused("face_crop_aug_range", "", ""),
    Key::same("flip_aug"),
    Key::idle("fp16_master_weights_and_gradients", kDeepSpeed),
    Key::together("fp8_base"),
    Key::together("fp8_base_unet"),
    Key::idle("full_bf16", kFactors),
    Key::idle("full_fp16", kFactors),
    Key::refused("fused_backward_pass", "false", "--memory finds what fits"),
    Key::same("gradient_accumulation_steps"),
    Key::same("gradient_checkpointing"),
    Key::together("guidance_scale"),
    Key::idle("highvram", kOwnLoading),
    Key::same("huber_c"),
    Key::same("huber_scale"),
    Key::same("huber_schedule"),
    Key::idle("huggingface_path_in_repo", kNoUpload),
    Key::idle("huggingface_repo_id", kNoUpload),
    Key::idle("huggingface_repo_type", kNoUpload),
    Key::idle("huggingface_repo_visibility", kNoUpload),
    Key::idle("huggingface_token", kNoUpload),
    Key::refused("in_json", "", "captions lie beside the pictures, in .txt or .caption"),
    Key::refused("initial_epoch", "1", "--resume goes on with a run"),
    Key::refused("initial_step", "0", "--resume goes on with a run"),
    Key::same("ip_noise_gamma"),
    Key::refused("ip_noise_gamma_random_strength", "false", ""),
    Key::same("keep_tokens"),
    Key::same("keep_tokens_separator"),
    Key::together("learning_rate"),
    Key::idle("log_config", kOwnLogs),
    Key::idle("log_prefix", kOwnLogs),
    Key::idle("log_tracker_config", kOwnLogs),
    Key::idle("log_tracker_name", kOwnLogs),
    Key::idle("log_with", kOwnLogs),
    Key::idle("logging_dir", kOwnLogs),
    Key::together("logit_mean"),
    Key::together("logit_std"),
    Key::same("loss_type"),
    Key::idle("lowram", kOwnLoading),
    Key::refused("lr_decay_steps", "0", ""),
    Key::together("lr_scheduler"),
    Key::refused("lr_scheduler_args", "", ""),
    Key::refused("lr_scheduler_min_lr_ratio", "0", ""),
    Key::same("lr_scheduler_num_cycles"),
    Key::same("lr_scheduler_power"),
    Key::refused("lr_scheduler_timescale", "0", ""),
    Key::refused("lr_scheduler_type", "", "lr_scheduler names one"),
    Key::same("lr_warmup_steps"),
    Key::same("masked_loss"),
    Key::together("max_bucket_reso"),
    Key::idle("max_data_loader_n_workers", kOwnLoading),
    Key::same("max_grad_norm"),
    Key::refused("max_timestep", "1000", ""),
    Key::refused("max_token_length", "75", "captions are read to the length that the model has"),
    Key::unless_zero("max_train_epochs"),
    Key::unless_zero("max_train_steps"),
    Key::same("max_validation_steps"),
    Key::idle("mem_eff_attn", kFused),
    Key::idle("mem_eff_save", kOfGui),
    Key::idle("metadata_author", kToldByFile),
    Key::idle("metadata_description", kToldByFile),
    Key::idle("metadata_is_negative_embedding", kToldByFile),
    Key::idle("metadata_license", kToldByFile),
    Key::idle("metadata_merged_from", kToldByFile),
    Key::idle("metadata_preprocessor", kToldByFile),
    Key::idle("metadata_tags", kToldByFile),
    Key::idle("metadata_thumbnail", kToldByFile),
    Key::idle("metadata_title", kToldByFile),
    Key::idle("metadata_trigger_phrase", kToldByFile),
    Key::idle("metadata_usage_hint", kToldByFile),
    Key::together("min_bucket_reso"),
    Key::same("min_snr_gamma"),
    Key::refused("min_timestep", "0", ""),
    Key::together("mixed_precision"),
    Key::refused("mode_scale", "1.29", ""),
    Key::together("model_prediction_type"),
    Key::idle("model_type", "the model's file says"),
    Key::same("multires_noise_discount"),
    Key::same("multires_noise_iterations"),
    Key::together("network_alpha"),
    Key::together("network_args"),
    Key::together("network_dim"),
    Key::same("network_dropout"),
    Key::together("network_module"),
    Key::together("network_train_text_encoder_only"),
    Key::together("network_train_unet_only"),
    Key::same("network_weights"),
    Key::idle("no_half_vae", "the VAE's dtype is the model's own choice"),
    Key::idle("no_metadata", kToldByFile),
    Key::same("noise_offset"),
    Key::refused("noise_offset_random_strength", "false", ""),
    Key::idle("noise_offset_type", kOfGui),
    Key::idle("offload_optimizer_device", kDeepSpeed),
    Key::idle("offload_optimizer_nvme_path", kDeepSpeed),
    Key::idle("offload_param_device", kDeepSpeed),
    Key::idle("offload_param_nvme_path", kDeepSpeed),
    Key::together("optimizer_args"),
    Key::idle("optimizer_schedulefree_wrapper", kLeftAlone),
    Key::together("optimizer_type"),
    Key::idle("output_config", kItself),
    Key::same("output_dir"),
    Key::same("output_name"),
    Key::idle("persistent_data_loader_workers", kOwnLoading),
    Key::refused("pos_emb_random_crop_rate", "0", ""),
    Key::same("pretrained_model_name_or_path"),
    Key::same("prior_loss_weight"),
    Key::same("random_crop"),
    Key::same("reg_data_dir"),
    Key::refused("resize_interpolation", "", ""),
    Key::together("resolution"),
    Key::refused("resume", "", "a state of kohya's is not read; --resume goes on with a run of Wick's"),
    Key::idle("resume_from_huggingface", kNoUpload),
    Key::idle("sample_at_first", kAlways),
    Key::unless_zero("sample_every_n_epochs"),
    Key::unless_zero("sample_every_n_steps"),
    Key::same("sample_prompts"),
    Key::idle("sample_sampler", "lines of --sample-prompts say --ss"),
    Key::idle("save_clip", kWhole),
    Key::same("save_every_n_epochs"),
    Key::same("save_every_n_steps"),
    Key::together("save_last_n_epochs"),
    Key::idle("save_last_n_epochs_state", kOwnState),
    Key::together("save_last_n_steps"),
    Key::idle("save_last_n_steps_state", kOwnState),
    Key::together("save_model_as"),
    Key::refused("save_n_epoch_ratio", "0", "save_every_n_epochs says when to save"),
    Key::together("save_precision"),
    Key::idle("save_state", kOwnState),
    Key::idle("save_state_on_train_end", kOwnState),
    Key::idle("save_state_to_huggingface", kNoUpload),
    Key::idle("save_t5xxl", kWhole),
    Key::refused("scale_v_pred_loss_like_noise_pred", "false", ""),
    Key::same("scale_weight_norms"),
    Key::idle("schedulefree_wrapper_args", kLeftAlone),
    Key::idle("sdpa", kFused),
    Key::together("script"),
    Key::same("secondary_separator"),
    Key::same("seed"),
    Key::same("shuffle_caption"),
    Key::together("sigmoid_scale"),
    Key::idle("single_blocks_to_swap", kOfGui),
    Key::idle("skip_cache_check", kOwnLoading),
    Key::refused("skip_until_initial_step", "false", "--resume goes on with a run"),
    Key::idle("split_attn", kFused),
    Key::idle("split_mode", "--stream-blocks and --memory save memory"),
    Key::idle("stop_text_encoder_training", kOfGui),
    Key::refused("t5_dropout_rate", "0", "caption_dropout_rate leaves captions empty"),
    Key::same("t5xxl"),
    Key::idle("t5xxl_device", kOwnLoading),
    Key::idle("t5xxl_dtype", kOwnLoading),
    Key::unless_zero("t5xxl_max_token_length"),
    Key::idle("text_encoder_batch_size", kOwnLoading),
    Key::together("text_encoder_lr"),
    Key::together("text_encoder_lr1"),
    Key::together("text_encoder_lr2"),
    Key::together("timestep_sampling"),
    Key::refused("token_warmup_min", "1", ""),
    Key::refused("token_warmup_step", "0", ""),
    Key::idle("tokenizer_cache_dir", "tokenizers are Wick's own"),
    Key::idle("torch_compile", kCompiled),
    Key::same("train_batch_size"),
    Key::together("train_data_dir"),
    Key::idle("train_inpainting", kOfGui),
    Key::idle("training_comment", kToldByFile),
    Key::together("training_shift"),
    Key::together("unet_lr"),
    Key::together("use_8bit_adam"),
    Key::together("use_lion_optimizer"),
    Key::idle("use_safetensors", kAlways),
    Key::refused("v2", "false", "Wick trains SDXL, SD3 and FLUX.1"),
    Key::together("v_parameterization"),
    Key::refused("v_pred_like_loss", "0", ""),
    Key::same("vae"),
    Key::idle("vae_batch_size", kOwnLoading),
    Key::idle("vae_spatial_chunk_size", kOwnLoading),
    Key::together("validate_every_n_epochs"),
    Key::together("validate_every_n_steps"),
    Key::same("validation_seed"),
    Key::same("validation_split"),
    Key::idle("wandb_api_key", kOwnLogs),
    Key::idle("wandb_run_name", kOwnLogs),
    Key::refused("weighted_captions", "false", ""),
    Key::together("weighting_scheme"),
    Key::idle("xformers", kFused),
    Key::idle("zero3_init_flag", kDeepSpeed),
    Key::idle("zero3_save_16bit_model", kDeepSpeed),
    Key::idle("zero_stage", kDeepSpeed),
    Key::refused("zero_terminal_snr", "false", "a model's own scheduler says so")};

// Keys of which the scripts of some models alone make something: their parsers or losses have them
// (flux_train_utils.add_flux_train_arguments, sd3_train_utils.add_sd3_training_arguments,
// train_util.add_dit_training_arguments, post_process_loss and get_noise_pred_and_target of each trainer). The other
// scripts leave such a key alone, whatever it says.
enum class KohyaModel { sdxl = 1, sd3 = 2, flux = 4 };
struct KohyaModelKey {
  std::string_view key;
  int models;  // the sum of their numbers
};
constexpr int kSdxl = int(KohyaModel::sdxl), kSd3 = int(KohyaModel::sd3), kFlux = int(KohyaModel::flux),
              kFlows = kSd3 + kFlux;
constexpr KohyaModelKey kOfModels[] = {{"ae", kFlux},
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

struct KohyaScript {
  std::string_view name;
  KohyaModel model;
};
constexpr KohyaScript kScripts[] = {{"sdxl_train_network.py", KohyaModel::sdxl},
                                    {"sd3_train_network.py", KohyaModel::sd3},
                                    {"flux_train_network.py", KohyaModel::flux}};

std::string in_words(int models) {
  std::vector<std::string_view> names;
  for (const auto& [model, name] : {std::pair{kSdxl, "SDXL"}, {kSd3, "SD3"}, {kFlux, "FLUX"}})
    if (models & model) names.push_back(name);
  return fmt::format("{}", fmt::join(names, " and "));
}

template <class T>
bool contains(const T& list, std::string_view key) {
  return std::ranges::find(list, key) != std::end(list);
}

// How LyCORIS and ours spell what a LoRA of theirs changes.
struct KohyaNetwork {
  std::string_view module;
  bool has_algorithm;  // of LyCORIS: network_args say which
  AdapterKind kind = AdapterKind::lora;
};
constexpr KohyaNetwork kNetworks[] = {{"networks.lora", false},
                                      {"networks.lora_flux", false},
                                      {"networks.lora_sd3", false},
                                      {"networks.loha", false, AdapterKind::loha},
                                      {"networks.lokr", false, AdapterKind::lokr},
                                      {"lycoris.kohya", true}};

// An argument of a network and its setting. Of LyCORIS' arguments and networks.lora's alike.
struct NetworkArgument {
  std::string_view name, setting;
};
constexpr NetworkArgument kNetworkSettings[] = {
    {"conv_dim", "conv_rank"},        {"conv_alpha", "conv_alpha"},         {"dropout", "lora_dropout"},
    {"rank_dropout", "rank_dropout"}, {"module_dropout", "module_dropout"}, {"loraplus_lr_ratio", "lora_plus"}};
// Those that change nothing of what is learnt, or are read elsewhere.
constexpr std::string_view kIdleArguments[] = {"verbose", "algo",    "preset",      "dora_wd",   "train_t5xxl",
                                               "factor",  "rs_lora", "bypass_mode", "block_size"};
// Those that Wick cannot honour, and the values that ask for nothing.
struct RefusedArgument {
  std::string_view name, neutral, instead;
};
constexpr std::string_view kOneOfEach = "--rank and --lr take others for patterns of modules";
constexpr RefusedArgument kRefusedArguments[] = {{"block_alphas", "", kOneOfEach},
                                                 {"block_dims", "", kOneOfEach},
                                                 {"block_lr_zero_threshold", "0", kOneOfEach},
                                                 {"constraint", "0", ""},
                                                 {"conv_block_alphas", "", kOneOfEach},
                                                 {"conv_block_dims", "", kOneOfEach},
                                                 {"decompose_both", "false", ""},
                                                 {"down_lr_weight", "", kOneOfEach},
                                                 {"full_matrix", "false", ""},
                                                 {"ggpo_beta", "", ""},
                                                 {"ggpo_sigma", "", ""},
                                                 {"img_attn_dim", "", kOneOfEach},
                                                 {"img_mlp_dim", "", kOneOfEach},
                                                 {"img_mod_dim", "", kOneOfEach},
                                                 {"in_dims", "", kOneOfEach},
                                                 {"loraplus_text_encoder_lr_ratio", "", "--lora-plus is for all"},
                                                 {"loraplus_unet_lr_ratio", "", "--lora-plus is for all"},
                                                 {"mid_lr_weight", "", kOneOfEach},
                                                 {"rank_dropout_scale", "false", ""},
                                                 {"rescaled", "false", ""},
                                                 {"single_dim", "", kOneOfEach},
                                                 {"single_mod_dim", "", kOneOfEach},
                                                 {"split_qkv", "false", "q, k and v share their LoRA"},
                                                 {"train_blocks", "all", "--targets names blocks"},
                                                 {"train_double_block_indices", "all", "--targets names blocks"},
                                                 {"train_norm", "false", ""},
                                                 {"train_single_block_indices", "all", "--targets names blocks"},
                                                 {"txt_attn_dim", "", kOneOfEach},
                                                 {"txt_mlp_dim", "", kOneOfEach},
                                                 {"txt_mod_dim", "", kOneOfEach},
                                                 {"unbalanced_factorization", "false", ""},
                                                 {"unit", "", ""},
                                                 {"up_lr_weight", "", kOneOfEach},
                                                 {"use_conv_cp", "false", "convolutions have no Tucker form"},
                                                 {"use_cp", "false", "convolutions have no Tucker form"},
                                                 {"use_scalar", "false", ""},
                                                 {"use_tucker", "false", "convolutions have no Tucker form"},
                                                 {"wd_on_output", "true", ""}};

std::string lowered(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
  return text;
}

class KohyaReader : private ForeignReader {
 public:
  // `is_command`: of words of a command, which win over the file that config_file names.
  KohyaReader(const std::string& source, const Json& tree, bool is_command)
      : ForeignReader(source, "kohya's scripts", kKeys) {
    if (!is_command) {
      add_flat(is_of_kohya_gui(tree) ? options_of_gui(tree, of_gui_) : tree, Json::object());
      return;
    }
    for (const auto& [key, value] : tree.items()) {
      add(key, value);
      if (std::ranges::find(kKeys, key, &Key::key) == std::end(kKeys)) not_options_.push_back(key);
    }
    if (const auto file = tree.find("config_file"); file != tree.end() && file->is_string())
      add_flat(read_option_tree(config_path(file->get<std::string>())), tree);
  }

  ForeignConfig operator()() {
    for (const std::string& key : of_gui_)
      if (key == "additional_parameters" && has(key))
        attempt([&] { refuse(key, "Wick reads no flags there; write them as options"); });
      else if (has(key))
        drop(key, "of kohya's GUI; the scripts get it by another name, or not at all");
    for (const std::string& key : not_options_)
      attempt([&] { refuse(key, "not an option of kohya's scripts" + nearest_key(key)); });
    attempt([&] { settle_model(); });
    for (const KohyaModelKey& row : kOfModels)
      if (has(row.key) && (row.models & int(model_)) == 0)
        drop(std::string(row.key), fmt::format("is for {}", in_words(row.models)));
    read_table();
    attempt([&] { settle_data(); });
    attempt([&] { settle_network(); });
    attempt([&] { settle_targets(); });
    attempt([&] { settle_optimizer(); });
    attempt([&] { settle_schedule(); });
    attempt([&] { settle_precision(); });
    attempt([&] { settle_output(); });
    attempt([&] { settle_process(); });
    settle_steps();
    return finish();
  }

 private:
  static std::filesystem::path config_path(const std::string& name) {
    return name.ends_with(".toml") ? name : name + ".toml";
  }

  static std::string nearest_key(const std::string& key) {
    std::vector<std::string> known;
    for (const Key& row : kKeys) known.emplace_back(row.key);
    return did_you_mean(key, known);
  }

  // Tables are laid flat. `winners` are options that are there already.
  void add_flat(const Json& tree, const Json& winners) {
    for (const auto& [key, value] : tree.items()) {
      if (value.is_object())
        add_flat(value, winners);
      else if (!winners.contains(key))
        add(key, value);
    }
  }

  // There is a script for each model. A command names it; an option file does not.
  void settle_model() {
    const std::string module = text("network_module", "networks.lora"), script = text(kScriptKey, "");
    if (!script.empty()) {
      const auto* known = std::ranges::find(kScripts, script, &KohyaScript::name);
      if (known == std::end(kScripts))
        refuse_value(kScriptKey, "sdxl_train_network.py, sd3_train_network.py or flux_train_network.py", script);
      model_ = known->model;
    } else if (module == "networks.lora_flux" || has("ae"))
      model_ = KohyaModel::flux;
    else if (module == "networks.lora_sd3" || has("clip_g") || has("training_shift"))
      model_ = KohyaModel::sd3;
    const auto* network = std::ranges::find(kNetworks, module, &KohyaNetwork::module);
    if (network == std::end(kNetworks))
      refuse_value("network_module", "networks.lora, lora_sd3, lora_flux, loha or lokr, or lycoris.kohya", module);
    network_ = *network;
  }

  void settle_data() {
    const bool has_folder = has("train_data_dir"), has_file = has("dataset_config");
    if (has_folder == has_file)
      refuse("", fmt::format("expected train_data_dir or dataset_config, found {}", has_folder ? "both" : "neither"));
    const std::string key = has_folder ? "train_data_dir" : "dataset_config";
    set("dataset", text(key, ""), key);
    const std::string ending = has("caption_extention") ? "caption_extention" : "caption_extension";
    set("caption_extension", text(ending, ".caption"), ending);
    config_.caption_first_line = !config_.enable_wildcard;
    settle_validation(has_file);
    if (has("resolution")) settle_resolution();
    if (!has("resolution") && !has_file) refuse("", "resolution is missing");
    if (!is_set("enable_bucket") && !has_file) set("no_bucket", "true", "enable_bucket");
    if (config_.no_bucket) config_.no_upscale = false;  // means nothing there
    if (config_.no_bucket || config_.no_upscale) return;
    set("min_bucket_reso", text("min_bucket_reso", "256"), "min_bucket_reso");
    set("max_bucket_reso", text("max_bucket_reso", "1024"), "max_bucket_reso");
  }

  // After each epoch, unless told otherwise, where a share of the pictures is held back.
  void settle_validation(bool has_file) {
    if (config_.validation_split == 0 && !has_file) {
      for (const char* key : {"validate_every_n_epochs", "validate_every_n_steps"})
        if (has(key)) drop(key, "there is no validation_split");
      return;
    }
    set("val_every_epochs", text("validate_every_n_epochs", "1"), "validate_every_n_epochs");
    if (has("validate_every_n_steps")) set("val_every", text("validate_every_n_steps", ""), "validate_every_n_steps");
  }

  // "1024", "1344,1792" or a list.
  void settle_resolution() {
    std::string size = fmt::format("{}", fmt::join(words("resolution"), ","));
    std::erase(size, ' ');
    set("resolution", size, "resolution");
  }

  void settle_network() {
    read_network_arguments();
    set("rank", text("network_dim", "4"), "network_dim");
    const double alpha = number("network_alpha", 1);
    set("alpha", fmt::format("{}", alpha == 0 ? double(config_.rank.value) : alpha), "network_alpha");
    if (network_.has_algorithm) settle_lycoris();
    if (config_.conv_rank > 0 && config_.conv_alpha == 0) config_.conv_alpha = 1;
    if (!config_.from.empty()) {  // its kind and sizes are the file's
      config_.rank = 0, config_.alpha = 0, config_.conv_rank = 0, config_.conv_alpha = 0;
      return;
    }
    config_.adapter = network_.kind;
    claim("network_module", "adapter");
    if (network_.kind == AdapterKind::lokr) settle_factor();
    check_dropouts();
  }

  // KEY=VALUE, of which the last one counts.
  void read_network_arguments() {
    if (!has("network_args")) return;
    for (const std::string& argument : words("network_args")) {
      const size_t equals = argument.find('=');
      if (equals == std::string::npos) refuse_value("network_args", "KEY=VALUE", argument);
      std::string value = argument.substr(equals + 1);
      std::erase(value, '"');
      arguments_[argument.substr(0, equals)] = value;
    }
    for (const auto& [name, value] : arguments_) attempt([&, &n = name, &v = value] { settle_argument(n, v); });
  }

  bool argument_is_set(const std::string& name, bool otherwise = false) const {
    const auto found = arguments_.find(name);
    if (found == arguments_.end() || found->second.empty()) return otherwise;
    const std::string value = lowered(found->second);
    return value != "false" && value != "0" && value != "none";
  }

  void settle_argument(const std::string& name, const std::string& value) {
    const std::string low = lowered(value);
    if (low.empty() || low == "none" || contains(kIdleArguments, name)) return;
    if (const auto* row = std::ranges::find(kNetworkSettings, name, &NetworkArgument::name);
        row != std::end(kNetworkSettings))
      return set(row->setting, value, "network_args", name);
    const auto* refused = std::ranges::find(kRefusedArguments, name, &RefusedArgument::name);
    if (refused == std::end(kRefusedArguments))
      return remark(fmt::format("network_args: {}: not an argument of {}.", printable(name), network_.module));
    const auto number = number_of(low), neutral = number_of(refused->neutral);
    if (low == "false" ? refused->neutral != "true" : low == refused->neutral || (number && number == neutral)) return;
    refuse("network_args", fmt::format("{}: Wick has no such argument{}{}", name, refused->instead.empty() ? "" : "; ",
                                       refused->instead));
  }

  // LyCORIS' convolutions are trained with the ranks of all else unless told otherwise.
  void settle_lycoris() {
    const auto said = [&](const char* name, const char* otherwise) {
      const auto found = arguments_.find(name);
      return found == arguments_.end() || found->second.empty() ? std::string(otherwise) : lowered(found->second);
    };
    const std::string algorithm = said("algo", "lora"), preset = said("preset", "full");
    if (algorithm == "lora" || algorithm == "locon")
      network_.kind = argument_is_set("dora_wd") ? AdapterKind::dora : AdapterKind::lora;
    else if (algorithm == "loha" || algorithm == "lokr")
      network_.kind = algorithm == "loha" ? AdapterKind::loha : AdapterKind::lokr;
    else
      refuse_value("network_args", "algo=lora, locon, loha or lokr", "algo=" + algorithm);
    if (argument_is_set("dora_wd") && network_.kind != AdapterKind::dora)
      refuse("network_args", fmt::format("dora_wd: Wick has it with algo=lora alone, found {}", algorithm));
    if (preset != "full" && preset != "attn-mlp")
      refuse_value("network_args", "preset=full or attn-mlp", "preset=" + preset);
    if (argument_is_set("rs_lora")) set("rslora", "true", "network_args", "rs_lora");
    if (preset != "full" || model_ != KohyaModel::sdxl) {
      config_.conv_rank = 0, config_.conv_alpha = 0;
      return;
    }
    if (!arguments_.contains("conv_dim")) config_.conv_rank = config_.rank.value;
    if (!arguments_.contains("conv_alpha")) config_.conv_alpha = config_.alpha.value;
  }

  // LyCORIS' -1 says that it is near the root.
  void settle_factor() {
    const auto found = arguments_.find("factor");
    if (found == arguments_.end() || number_of(found->second) == -1) return;
    set("lokr_factor", found->second, "network_args", "factor");
  }

  void check_dropouts() const {
    if (config_.adapter == AdapterKind::lora) return;
    for (const auto& [value, key] : {std::pair(config_.lora_dropout, "network_dropout"),
                                     {config_.rank_dropout, "network_args"},
                                     {config_.module_dropout, "network_args"},
                                     {config_.scale_weight_norms, "scale_weight_norms"}})
      if (value != 0)
        refuse(key, fmt::format("Wick has dropouts and limits of norms for a LoRA alone, found a {}",
                                name_of(config_.adapter)));
  }

  // Kohya's train CLIP too unless told otherwise, T5 only if told so.
  void settle_targets() {
    const bool trains_denoiser = !is_set("network_train_text_encoder_only");
    const bool trains_text = !is_set("network_train_unet_only") && !is_set("cache_text_encoder_outputs") &&
                             !is_set("cache_text_encoder_outputs_to_disk");
    const std::string base = text("learning_rate", "2e-6"), rate = text("unet_lr", base);
    const bool has_own = trains_denoiser && has("unet_lr") && number_of(rate) != 0;
    config_.lr = 0;
    set("lr", has_own ? rate : base, has_own ? "unet_lr" : "learning_rate");
    std::vector<std::string> targets;
    if (trains_denoiser) targets = denoiser_targets();
    if (trains_text) add_text_targets(targets, argument_is_set("train_t5xxl"));
    if (targets.empty()) refuse("", "neither the denoiser nor a text encoder is trained");
    if (!config_.from.empty()) return;
    if (trains_text || !trains_denoiser) config_.targets = targets;
    for (const char* key : {"network_train_unet_only", "network_train_text_encoder_only"}) claim(key, "targets");
  }

  std::vector<std::string> denoiser_targets() const {
    if (model_ == KohyaModel::flux) return {"transformer.double_blocks.*", "transformer.single_blocks.*"};
    if (model_ == KohyaModel::sd3) return {"transformer.joint_blocks.*"};
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
    const size_t clips = model_ == KohyaModel::flux ? 1 : 2;
    for (size_t k = 0; k < clips + (trains_t5 ? 1 : 0); ++k) {
      const std::string encoder = k == 0 ? "text_encoder.*" : fmt::format("text_encoder_{}.*", k + 1);
      const std::string rate = rates.empty() ? text("learning_rate", "2e-6") : rates[std::min(k, rates.size() - 1)];
      const auto value = number_of(rate);
      if (!value || !(*value >= 0 && *value <= 1e38)) refuse_value("text_encoder_lr", "numbers", rate);
      if (*value == 0) continue;
      targets.push_back(k < clips ? encoder + "layers.*" : encoder);
      if (*value != config_.lr.value) config_.lr.others.push_back({encoder, *value});
    }
    for (const char* key : {"text_encoder_lr", "text_encoder_lr1", "text_encoder_lr2"}) claim(key, "lr");
  }

  // As get_optimizer() of library/train_util.py makes it.
  void settle_optimizer() {
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
    if (config_.optimizer == OptimizerKind::prodigy && !config_.lr.others.empty())
      refuse("text_encoder_lr", "Wick's Prodigy finds one rate for all; expected that of unet_lr");
  }

  void settle_optimizer_argument(const OptimizerClass& known, const std::string& argument) {
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
  void settle_relative_step(const std::string& optimizer) {
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
  void settle_schedule() {
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

  void settle_precision() {
    config_.dtype = DType::f32;
    if (const std::string dtype = text("mixed_precision", "no"); dtype != "no") set("dtype", dtype, "mixed_precision");
    set("save_dtype", text("save_precision", "float"), "save_precision");
    for (const char* key : {"fp8_base", "fp8_base_unet"})
      if (is_set(key)) set("quantize", "fp8", key);
    if (config_.quantize == Quantize::fp8) remark("fp8_base: Wick's fp8 has scales, where kohya's rounds without.");
    if (number("blocks_to_swap", 0) > 0) set("stream_blocks", text("blocks_to_swap", ""), "blocks_to_swap");
    if (is_set("cpu_offload_checkpointing")) set("checkpoints_on_host", "true", "cpu_offload_checkpointing");
  }

  void settle_output() {
    const std::string format = text("save_model_as", "safetensors");
    if (format != "safetensors") refuse_value("save_model_as", "safetensors", format);
    if (number("save_last_n_epochs", 0) > 0) set("keep_last", text("save_last_n_epochs", ""), "save_last_n_epochs");
    if (const double last = number("save_last_n_steps", 0); last > 0 && config_.save_every > 0)
      set("keep_last", fmt::format("{}", std::floor(last / double(config_.save_every)) + 1), "save_last_n_steps");
    if (has("ae")) set("vae", text("ae", ""), "ae");
  }

  void settle_process() {
    if (model_ == KohyaModel::flux) return settle_flux();
    if (model_ == KohyaModel::sd3) return settle_sd3();
    if (is_set("v_parameterization")) set("prediction", "v", "v_parameterization");
  }

  // As get_noisy_model_input_and_timesteps() of library/flux_train_utils.py has it.
  void settle_flux() {
    const std::string how = text("timestep_sampling", "sigma"), loss = text("model_prediction_type", "raw");
    if (loss != "raw")
      refuse_value("model_prediction_type", "raw, the velocity, which is what the loss compares with", loss);
    if (!has("model_prediction_type"))
      remark("model_prediction_type: raw is taken; kohya's default, sigma_scaled, is not for FLUX's loss.");
    set("train_guidance", text("guidance_scale", "3.5"), "guidance_scale");
    const double shift = number("discrete_flow_shift", 3);
    const std::string scale = text("sigmoid_scale", "1");
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

  // Its loss compares pictures, which is sigma^2 times that of velocities (sd3_train_network.py).
  void settle_sd3() {
    const std::string scheme = text("weighting_scheme", "uniform");
    if (scheme == "cosmap")
      refuse("weighting_scheme", "Wick weighs by cosmap or by the sigma^2 of kohya's loss of SD3, not by both");
    set("weighting_scheme", scheme == "sigma_sqrt" ? "none" : "sigma-squared", "weighting_scheme");
    if (config_.t5_tokens == 0) config_.t5_tokens = 256;
    settle_density(scheme, number("training_shift", 1), "training_shift");
  }

  // compute_density_for_timestep_sampling() of library/sd3_train_utils.py, and the shift behind it.
  void settle_density(const std::string& scheme, double shift, std::string_view shift_key) {
    if (!(shift > 0)) refuse_value(shift_key, "a shift above 0", fmt::format("{}", shift));
    static constexpr std::string_view kUniform[] = {"none", "uniform", "sigma_sqrt", "cosmap"};
    if (scheme == "logit_normal") {
      set("timestep_mean", fmt::format("{}", number("logit_mean", 0) + std::log(shift)), "logit_mean");
      set("timestep_std", text("logit_std", "1"), "logit_std");
      return claim(shift_key, "timestep_mean");
    }
    if (scheme != "mode" && !contains(kUniform, scheme))
      refuse_value("weighting_scheme", "sigma_sqrt, logit_normal, mode, cosmap, none or uniform", scheme);
    set("timesteps", scheme == "mode" ? "mode" : "uniform", "weighting_scheme");
    set("timestep_shift", fmt::format("{}", shift), shift_key);
  }

  // Epochs win over steps.
  void settle_steps() {
    if (config_.epochs > 0 && config_.steps > 0) {
      config_.steps = 0;
      drop("max_train_steps", "max_train_epochs wins");
    }
    if (config_.steps == 0 && config_.epochs == 0) config_.steps = 1600;
  }

  KohyaModel model_ = KohyaModel::sdxl;
  KohyaNetwork network_ = kNetworks[0];
  std::map<std::string, std::string> arguments_;  // of the network
  std::vector<std::string> of_gui_;               // keys of the GUI's alone
  std::vector<std::string> not_options_;          // of a command
};

}  // namespace

ForeignConfig explain_kohya(const std::filesystem::path& file) {
  return KohyaReader(file.string(), read_option_tree(file), syntax_of(file) == OptionSyntax::script)();
}

ForeignConfig explain_kohya_words(std::span<const std::string> words) {
  const std::string source = "command line";
  return KohyaReader(source, tree_of_words(words, source), true)();
}

ForeignConfig read_kohya_config(const std::filesystem::path& file) {
  ForeignConfig read = explain_kohya(file);
  read.check();
  return read;
}

std::span<const ForeignKey> kohya_keys() { return kKeys; }

}  // namespace wick
