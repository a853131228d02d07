#include "wick/train/foreign/kohya.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/command.h"
#include "wick/train/foreign/kohya_gui.h"
#include "wick/train/foreign/script_reader.h"
#include "wick/train/foreign/table.h"

namespace wick {
namespace {

using Key = ForeignKey;
using Json = nlohmann::ordered_json;

constexpr std::string_view kAlways = "always so", kFactors = "factors are in f32", kDeepSpeed = "is for DeepSpeed",
                           kWhole = "is for whole models", kItself = "names option files",
                           kOfGui = "of kohya's GUI; the scripts leave it alone",
                           kLeftAlone = "kohya's scripts leave it alone", kNoField = "Wick's files have no such field",
                           kTwoRates = "kohya's scripts leave it alone; text_encoder_lr is a list";

// All options of kohya's scripts that Wick knows.
constexpr Key kKeys[] = {
    Key::same("adaptive_noise_scale"),
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
    Key::same("max_timestep"),
    Key::same("max_token_length"),
    Key::unless_zero("max_train_epochs"),
    Key::unless_zero("max_train_steps"),
    Key::same("max_validation_steps"),
    Key::idle("mem_eff_attn", kFused),
    Key::idle("mem_eff_save", kOfGui),
    Key::same("metadata_author"),
    Key::same("metadata_description"),
    Key::idle("metadata_is_negative_embedding", kNoField),
    Key::same("metadata_license"),
    Key::idle("metadata_merged_from", kNoField),
    Key::idle("metadata_preprocessor", kNoField),
    Key::same("metadata_tags"),
    Key::idle("metadata_thumbnail", kNoField),
    Key::same("metadata_title"),
    Key::same("metadata_trigger_phrase"),
    Key::same("metadata_usage_hint"),
    Key::together("min_bucket_reso"),
    Key::same("min_snr_gamma"),
    Key::same("min_timestep"),
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
    Key::same("no_metadata"),
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
    Key::same("scale_v_pred_loss_like_noise_pred"),
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
    Key::idle("text_encoder_lr1", kTwoRates),
    Key::idle("text_encoder_lr2", kTwoRates),
    Key::together("timestep_sampling"),
    Key::refused("token_warmup_min", "1", ""),
    Key::refused("token_warmup_step", "0", ""),
    Key::idle("tokenizer_cache_dir", "tokenizers are Wick's own"),
    Key::idle("torch_compile", kCompiled),
    Key::same("train_batch_size"),
    Key::together("train_data_dir"),
    Key::idle("train_inpainting", kOfGui),
    Key::same("training_comment"),
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
    Key::together("zero_terminal_snr")};

// Keys of which the scripts of some models alone make something: their parsers or losses have them
// (flux_train_utils.add_flux_train_arguments, sd3_train_utils.add_sd3_training_arguments,
// train_util.add_dit_training_arguments, post_process_loss and get_noise_pred_and_target of each trainer). The other
// scripts leave such a key alone, whatever it says.
struct KohyaModelKey {
  std::string_view key;
  int models;  // the sum of their numbers
};
constexpr int kSdxl = int(KohyaModel::sdxl), kSd3 = int(KohyaModel::sd3), kFlux = int(KohyaModel::flux),
              kFlows = kSd3 + kFlux;
constexpr KohyaModelKey kOfModels[] = {{"adaptive_noise_scale", kSdxl},
                                       {"ae", kFlux},
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
                                       {"max_timestep", kSdxl + kSd3},
                                       {"max_token_length", kSdxl},
                                       {"min_snr_gamma", kSdxl},
                                       {"min_timestep", kSdxl + kSd3},
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
                                       {"weighting_scheme", kFlows},
                                       {"zero_terminal_snr", kSdxl}};

struct KohyaScript {
  std::string_view name;
  KohyaModel model;
};
constexpr KohyaScript kTrainingScripts[] = {{"sdxl_train_network.py", KohyaModel::sdxl},
                                            {"sd3_train_network.py", KohyaModel::sd3},
                                            {"flux_train_network.py", KohyaModel::flux}};

std::string in_words(int models) {
  std::vector<std::string_view> names;
  for (const KohyaModel model : {KohyaModel::sdxl, KohyaModel::sd3, KohyaModel::flux})
    if (models & int(model)) names.push_back(name_of_model(model));
  return fmt::format("{}", fmt::join(names, " and "));
}

class KohyaReader : private ScriptReader {
 public:
  // `of_gui`: keys of the GUI's alone.
  KohyaReader(const std::string& source, const Json& tree, bool is_command, std::vector<std::string> of_gui = {})
      : ScriptReader(source, "kohya's scripts", kKeys, tree, is_command), of_gui_(std::move(of_gui)) {}

  ForeignConfig operator()() {
    for (const std::string& key : of_gui_)
      if (key == "additional_parameters" && has(key))
        attempt([&] { refuse(key, "Wick reads no flags there; write them as options"); });
      else if (has(key))
        drop(key, "of kohya's GUI; the scripts get it by another name, or not at all");
    refuse_unknown_options();
    attempt([&] { settle_model(); });
    for (const KohyaModelKey& row : kOfModels)
      if (has(row.key) && (row.models & int(model_)) == 0)
        drop(std::string(row.key), fmt::format("is for {}", in_words(row.models)));
    attempt([&] { settle_previews(); });
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
  // There is a script for each model. A command names it; an option file does not.
  void settle_model() {
    const std::string module = text("network_module", "networks.lora"), script = text(kScriptKey, "");
    if (!script.empty()) {
      const auto* known = std::ranges::find(kTrainingScripts, script, &KohyaScript::name);
      if (known == std::end(kTrainingScripts))
        refuse_value(kScriptKey, "sdxl_train_network.py, sd3_train_network.py or flux_train_network.py", script);
      model_ = known->model;
    } else if (module == "networks.lora_flux" || has("ae"))
      model_ = KohyaModel::flux;
    else if (module == "networks.lora_sd3" || has("clip_g") || has("training_shift"))
      model_ = KohyaModel::sd3;
    if (!has("network_module")) {
      if (model_ == KohyaModel::flux) network_ = *find_kohya_network("networks.lora_flux");
      if (model_ == KohyaModel::sd3) network_ = *find_kohya_network("networks.lora_sd3");
      return;
    }
    const KohyaNetwork* network = of_network("network_module", [&] { return find_kohya_network(module); });
    if (!network)
      refuse_value("network_module", "networks.lora, lora_sd3, lora_flux, loha or lokr, or lycoris.kohya", module);
    network_ = *network;
    if (network_.family != NetworkFamily::lycoris) is_for(name_of_model(model_), "network_module");
    const bool is_for_sdxl = network_.family == NetworkFamily::lora || network_.family == NetworkFamily::loha_lokr;
    if (is_for_sdxl && model_ != KohyaModel::sdxl)
      refuse("network_module", fmt::format("{} is for SDXL, and other keys are for {}; expected networks.lora_{}",
                                           module, name_of_model(model_), model_ == KohyaModel::flux ? "flux" : "sd3"));
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

  void settle_network() {
    modules_ = network_modules({"", NetworkFamily::lora}, model_, {}, {});  // until the arguments are understood
    read_network_arguments();
    set("rank", text("network_dim", "4"), "network_dim");
    const double alpha = number("network_alpha", 1);
    set("alpha", fmt::format("{}", alpha == 0 ? double(config_.rank.value) : alpha), "network_alpha");
    const bool is_lycoris = network_.family == NetworkFamily::lycoris;
    if (is_lycoris) settle_algorithm();
    settle_sizes(alpha);
    if (!config_.from.empty()) return;  // its kind and sizes are the file's
    config_.adapter = network_.kind;
    claim("network_module", "adapter");
    if (without_magnitudes(network_.kind) == AdapterKind::lokr) settle_lokr();
    if (is_lycoris) settle_lycoris();
    settle_tucker();
    if ((network_.family == NetworkFamily::lora_flux || network_.family == NetworkFamily::lora_sd3)) settle_split();
    check_dropouts();
  }

  void settle_algorithm() {
    static constexpr std::pair<std::string_view, std::string_view> kUntrained[] = {
        {"dylora", "DyLoRA"}, {"glora", "GLoRA"},       {"ia3", "IA3"}, {"full", "whole matrices"},
        {"boft", "BOFT"},     {"diag-oft", "Diag-OFT"}, {"oft", "OFT"}, {"tlora", "T-LoRA"}};
    const std::string algorithm = arguments_.text("algo", "lora");
    for (const auto& [name, kind] : kUntrained)
      if (algorithm == name)
        refuse("network_args",
               fmt::format("algo={}: Wick trains no {}; expected lora, locon, loha or lokr", algorithm, kind));
    if (algorithm == "loha" || algorithm == "lokr")
      network_.kind = algorithm == "loha" ? AdapterKind::loha : AdapterKind::lokr;
    else if (algorithm != "lora" && algorithm != "locon")
      refuse_value("network_args", "algo=lora, locon, loha or lokr", "algo=" + algorithm);
  }

  void settle_lycoris() {
    const bool bypasses = arguments_.is_not_false("bypass_mode", false);
    if (arguments_.is_not_false("dora_wd", false)) {
      if (bypasses) {
        remark("network_args: dora_wd: with bypass_mode LyCORIS leaves it out.");
      } else {
        config_.adapter = with_magnitudes(network_.kind);
        set_argument("dora_on_output", {arguments_.is_not_false("wd_on_output", true) ? "true" : "false"},
                     "wd_on_output");
      }
    }
    if (arguments_.is_not_false("rs_lora", false)) set_argument("rslora", {"true"}, "rs_lora");
    config_.lora_dropout = 0;
    const bool drops_out = bypasses && network_.kind == AdapterKind::lora;
    if (drops_out) set("lora_dropout", text("network_dropout", arguments_.text("dropout", "0")), "network_dropout");
    if (!drops_out && has("network_dropout"))
      drop("network_dropout", "LyCORIS leaves it out, but for a LoRA with bypass_mode");
    if (config_.rank_dropout > 0)
      remark("network_args: rank_dropout: LyCORIS leaves out outputs of what a module adds, and Wick ranks.");
  }

  // LyCORIS takes any word of decompose_both for true, False too; its factor of -1 is near the root.
  void settle_lokr() {
    if (arguments_.number("factor", -1) != -1) set_argument("lokr_factor", {arguments_.text("factor", "")}, "factor");
    if (network_.family != NetworkFamily::lycoris) return;
    if (arguments_.has("decompose_both")) {
      set_argument("lokr_decompose_both", {"true"}, "decompose_both");
      if (arguments_.text("decompose_both", "") == "false")
        remark("network_args: decompose_both: LyCORIS takes False for true; without the argument it is off.");
    }
    if (arguments_.is_not_false("full_matrix", false)) set_argument("lokr_full", {"true"}, "full_matrix");
    if (arguments_.is_not_false("unbalanced_factorization", false))
      set_argument("lokr_unbalanced", {"true"}, "unbalanced_factorization");
  }

  // Tucker's form is of convolutions of more than one pixel alone. The first argument that says something decides.
  void settle_tucker() const {
    if (config_.conv_rank == 0) return;
    for (const char* name : {"use_conv_cp", "use_cp", "use_tucker"}) {
      const NetworkArgument* row = find_network_argument(name);
      if (!arguments_.has(name) || (row->families & int(network_.family)) == 0) continue;
      if (arguments_.text(name, "") != "false")
        refuse("network_args", fmt::format("{}: Wick trains no Tucker form of convolutions; expected False", name));
      return;
    }
  }

  void settle_split() {
    if (!arguments_.is_true("split_qkv")) return;
    set_argument("split_qkv", {"true"}, "split_qkv");
    remark("split_qkv: the file names q, k and v apart, as OneTrainer's does.");
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
    const bool trains_text = modules_.trains_text && !is_set("network_train_unet_only") &&
                             !is_set("cache_text_encoder_outputs") && !is_set("cache_text_encoder_outputs_to_disk");
    const std::string base = text("learning_rate", "2e-6"), rate = text("unet_lr", base);
    const bool has_own = trains_denoiser() && has("unet_lr") && number_of(rate) != 0;
    config_.lr = 0;
    set("lr", has_own ? rate : base, has_own ? "unet_lr" : "learning_rate");
    for (const auto& [pattern, share] : modules_.shares) {
      config_.lr.others.push_back({pattern, share * config_.lr.value});
      claim("network_args", "lr");
    }
    std::vector<std::string> targets;
    if (trains_denoiser()) targets = modules_.targets;
    const size_t of_denoiser = targets.size();
    if (trains_text) add_text_targets(targets);
    settle_lora_plus(of_denoiser > 0, targets.size() > of_denoiser);
    if (targets.empty()) refuse("", "neither the denoiser nor a text encoder is trained");
    if (!config_.from.empty()) return;
    if (trains_text || !trains_denoiser() || !are_defaults(targets)) config_.targets = targets;
    for (const char* key : {"network_train_unet_only", "network_train_text_encoder_only"}) claim(key, "targets");
  }

  // Wick's own, with convolutions where they have a rank.
  bool are_defaults(const std::vector<std::string>& targets) const {
    return targets == network_modules({"", NetworkFamily::lora}, model_, {}, modules_.sizes).targets;
  }

  // The k-th text encoder has the k-th rate, or the last that there is; with some networks all have the first.
  void add_text_targets(std::vector<std::string>& targets) {
    std::vector<std::string> rates;
    if (has("text_encoder_lr")) rates = words("text_encoder_lr");
    const bool has_one = network_.family == NetworkFamily::lora || network_.family == NetworkFamily::lycoris;
    if (has_one && rates.size() > 1) {
      rates.resize(1);
      remark(fmt::format("text_encoder_lr: {} has the first rate for all text encoders.", network_.module));
    }
    const bool trains_t5 = arguments_.is_true("train_t5xxl") && network_.family != NetworkFamily::lycoris;
    const size_t clips = model_ == KohyaModel::flux ? 1 : 2;
    for (size_t k = 0; k < clips + (trains_t5 ? 1 : 0); ++k) {
      const std::string encoder = k == 0 ? "text_encoder.*" : fmt::format("text_encoder_{}.*", k + 1);
      const std::string rate = rates.empty() ? text("learning_rate", "2e-6") : rates[std::min(k, rates.size() - 1)];
      const auto value = number_of(rate);
      if (!value || !(*value >= 0 && *value <= 1e38)) refuse_value("text_encoder_lr", "numbers", rate);
      if (*value == 0) continue;
      targets.push_back(k < clips ? encoder + modules_.text_modules : encoder);
      if (*value != config_.lr.value) config_.lr.others.push_back({encoder, *value});
    }
    claim("text_encoder_lr", "lr");
  }

  void settle_process() {
    if (model_ == KohyaModel::flux) return settle_flux();
    if (model_ == KohyaModel::sd3) return settle_sd3();
    settle_prediction();
  }

  void settle_prediction() {
    constexpr const char *kV = "v_parameterization", *kZero = "zero_terminal_snr";
    if (is_set(kZero) && !is_set(kV))
      refuse(kZero, "only v can be predicted where no signal is left; expected v_parameterization with it");
    for (const char* key : {kV, kZero})
      if (is_set(key)) set("prediction", is_set(kZero) ? "v-zero-snr" : "v", key);
  }

  void settle_flux() {
    const std::string loss = text("model_prediction_type", "raw");
    if (loss != "raw")
      refuse_value("model_prediction_type", "raw, the velocity, which is what the loss compares with", loss);
    if (!has("model_prediction_type"))
      remark("model_prediction_type: raw is taken; kohya's default, sigma_scaled, is not for FLUX's loss.");
    set("train_guidance", text("guidance_scale", "3.5"), "guidance_scale");
    settle_flow_times(3);
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

  std::vector<std::string> of_gui_;
};

}  // namespace

ForeignConfig explain_kohya(const std::filesystem::path& file) {
  Json tree = read_option_tree(file);
  std::vector<std::string> of_gui;
  if (is_of_kohya_gui(tree)) tree = options_of_gui(tree, of_gui);
  return KohyaReader(file.string(), tree, syntax_of(file) == OptionSyntax::script, of_gui)();
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
