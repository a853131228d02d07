#include "wick/train/foreign/onetrainer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/diffusers_words.h"
#include "wick/train/foreign/optimizers.h"
#include "wick/train/foreign/samples.h"
#include "wick/train/foreign/table.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

constexpr std::string_view kOffloads = "changes where weights lie; --memory and --stream-blocks save memory here",
                           kGpus = "--gpus names devices", kBackups = "a run keeps its state; --resume goes on with it",
                           kWithOther = "goes with another key, or with other models", kOfTheFile = "is of the file",
                           kTextDtype = "all frozen weights have train_dtype",
                           kAllFolders = "folders within a folder are read, unless there are several concepts";

// All options of OneTrainer that Wick knows, by their paths; those of the first concept stand for all.
// Sources: modules/util/config/TrainConfig.py and ConceptConfig.py, modules/util/optimizer_util.py.
constexpr ForeignKey kTrainerKeys[] = {
    ForeignKey::idle("__version", kOfTheFile),
    ForeignKey::together("aspect_ratio_bucketing"),
    ForeignKey::idle("async_gradient_reduce", kGpus),
    ForeignKey::idle("async_gradient_reduce_buffer", kGpus),
    ForeignKey::idle("async_offloading", kOwnLoading),
    ForeignKey::idle("attention_mechanism", kFused),
    ForeignKey::idle("backup_after", kBackups),
    ForeignKey::idle("backup_after_unit", kBackups),
    ForeignKey::idle("backup_before_save", kBackups),
    ForeignKey::together("base_model_name"),
    ForeignKey::setting("batch_size", "batch_size"),
    ForeignKey::idle("bundle_additional_embeddings", kWithOther),
    ForeignKey::idle("cache_dir", kOwnLoading),
    ForeignKey::idle("clear_cache_before_training", kOwnLoading),
    ForeignKey::together("clip_grad_norm"),
    ForeignKey::idle("compile", kCompiled),
    ForeignKey::together("concept_file_name"),
    ForeignKey::together("concepts[0].balancing"),
    ForeignKey::refused("concepts[0].balancing_strategy", "REPEATS", ""),
    ForeignKey::idle("concepts[0].enabled", kWithOther),
    ForeignKey::together("concepts[0].image.enable_crop_jitter"),
    ForeignKey::refused("concepts[0].image.enable_fixed_brightness", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_fixed_contrast", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_fixed_flip", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_fixed_hue", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_fixed_rotate", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_fixed_saturation", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_random_brightness", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_random_circular_mask_shrink", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_random_contrast", "false", ""),
    ForeignKey::setting("concepts[0].image.enable_random_flip", "flip_aug"),
    ForeignKey::refused("concepts[0].image.enable_random_hue", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_random_mask_rotate_crop", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_random_rotate", "false", ""),
    ForeignKey::refused("concepts[0].image.enable_random_saturation", "false", ""),
    ForeignKey::together("concepts[0].image.enable_resolution_override"),
    ForeignKey::idle("concepts[0].image.random_brightness_max_strength", kWithOther),
    ForeignKey::idle("concepts[0].image.random_contrast_max_strength", kWithOther),
    ForeignKey::idle("concepts[0].image.random_hue_max_strength", kWithOther),
    ForeignKey::idle("concepts[0].image.random_rotate_max_angle", kWithOther),
    ForeignKey::idle("concepts[0].image.random_saturation_max_strength", kWithOther),
    ForeignKey::together("concepts[0].image.resolution_override"),
    ForeignKey::idle("concepts[0].image_variations", kWithOther),
    ForeignKey::together("concepts[0].include_subdirectories"),
    ForeignKey::together("concepts[0].loss_weight"),
    ForeignKey::idle("concepts[0].name", kWithOther),
    ForeignKey::together("concepts[0].path"),
    ForeignKey::idle("concepts[0].seed", kWithOther),
    ForeignKey::refused("concepts[0].text.caps_randomize_enable", "false", ""),
    ForeignKey::refused("concepts[0].text.caps_randomize_lowercase", "false", ""),
    ForeignKey::idle("concepts[0].text.caps_randomize_mode", kWithOther),
    ForeignKey::idle("concepts[0].text.caps_randomize_probability", kWithOther),
    ForeignKey::together("concepts[0].text.enable_tag_shuffling"),
    ForeignKey::together("concepts[0].text.keep_tags_count"),
    ForeignKey::idle("concepts[0].text.prompt_path", kWithOther),
    ForeignKey::together("concepts[0].text.prompt_source"),
    ForeignKey::together("concepts[0].text.tag_delimiter"),
    ForeignKey::together("concepts[0].text.tag_dropout_enable"),
    ForeignKey::together("concepts[0].text.tag_dropout_mode"),
    ForeignKey::together("concepts[0].text.tag_dropout_probability"),
    ForeignKey::idle("concepts[0].text.tag_dropout_special_tags", kWithOther),
    ForeignKey::together("concepts[0].text.tag_dropout_special_tags_mode"),
    ForeignKey::idle("concepts[0].text.tag_dropout_special_tags_regex", kWithOther),
    ForeignKey::idle("concepts[0].text_variations", kWithOther),
    ForeignKey::together("concepts[0].type"),
    ForeignKey::idle("continue_last_backup", kBackups),
    ForeignKey::refused("custom_conditioning_image", "false", ""),
    ForeignKey::idle("custom_learning_rate_scheduler", kWithOther),
    ForeignKey::idle("dataloader_threads", kOwnLoading),
    ForeignKey::idle("debug_dir", kOwnLogs),
    ForeignKey::idle("debug_mode", kOwnLogs),
    ForeignKey::idle("device_indexes", kGpus),
    ForeignKey::setting("dropout_probability", "lora_dropout"),
    ForeignKey::together("dynamic_timestep_shifting"),
    ForeignKey::together("ema"),
    ForeignKey::together("ema_decay"),
    ForeignKey::idle("ema_update_step_interval", kWithOther),
    ForeignKey::idle("embedding_learning_rate", kWithOther),
    ForeignKey::idle("embedding_weight_dtype", kWithOther),
    ForeignKey::idle("enable_activation_offloading", kOwnLoading),
    ForeignKey::idle("enable_async_offloading", kOwnLoading),
    ForeignKey::idle("enable_autocast_cache", kOwnLoading),
    ForeignKey::setting("epochs", "epochs"),
    ForeignKey::idle("fallback_train_dtype", kOwnLoading),
    ForeignKey::refused("force_circular_padding", "false", ""),
    ForeignKey::together("force_epsilon_prediction"),
    ForeignKey::together("force_v_prediction"),
    ForeignKey::idle("frames", kWithOther),
    ForeignKey::idle("fused_gradient_reduce", kGpus),
    ForeignKey::refused("generalized_offset_noise", "false", ""),
    ForeignKey::setting("gradient_accumulation_steps", "accumulate"),
    ForeignKey::together("gradient_checkpointing"),
    ForeignKey::idle("gradient_reduce_precision", kGpus),
    ForeignKey::idle("huber_delta", kWithOther),
    ForeignKey::refused("huber_strength", "0.0", ""),
    ForeignKey::idle("huggingface_cache_dir", kOwnLoading),
    ForeignKey::idle("include_train_config", kOwnLogs),
    ForeignKey::idle("latent_caching", kOwnLoading),
    ForeignKey::together("layer_filter"),
    ForeignKey::together("layer_filter_preset"),
    ForeignKey::together("layer_filter_regex"),
    ForeignKey::idle("layer_offload_fraction", kOwnLoading),
    ForeignKey::together("learning_rate"),
    ForeignKey::together("learning_rate_cycles"),
    ForeignKey::refused("learning_rate_min_factor", "0", ""),
    ForeignKey::refused("learning_rate_scaler", "NONE", ""),
    ForeignKey::together("learning_rate_scheduler"),
    ForeignKey::together("learning_rate_warmup_steps"),
    ForeignKey::refused("log_cosh_strength", "0.0", ""),
    ForeignKey::together("lokr_decompose_both"),
    ForeignKey::together("lokr_decompose_factor"),
    ForeignKey::together("lokr_dim"),
    ForeignKey::together("lokr_dora_on_output"),
    ForeignKey::together("lokr_full_matrix"),
    ForeignKey::together("lokr_use_tucker"),
    ForeignKey::idle("lokr_vec_trick", kOwnLoading),
    ForeignKey::together("lokr_weight_decompose"),
    ForeignKey::together("lora_alpha"),
    ForeignKey::together("lora_decompose"),
    ForeignKey::idle("lora_decompose_norm_epsilon", "keeps norms from 0, as Wick does"),
    ForeignKey::together("lora_decompose_output_axis"),
    ForeignKey::together("lora_model_name"),
    ForeignKey::together("lora_rank"),
    ForeignKey::idle("lora_weight_dtype", kWithOther),
    ForeignKey::refused("loss_scaler", "NONE", ""),
    ForeignKey::together("loss_weight_fn"),
    ForeignKey::together("loss_weight_strength"),
    ForeignKey::together("mae_strength"),
    ForeignKey::refused("masked_prior_preservation_weight", "0.0", ""),
    ForeignKey::together("masked_training"),
    ForeignKey::together("max_noising_strength"),
    ForeignKey::together("min_noising_strength"),
    ForeignKey::together("model_type"),
    ForeignKey::together("mse_strength"),
    ForeignKey::idle("multi_gpu", kGpus),
    ForeignKey::together("noising_bias"),
    ForeignKey::together("noising_weight"),
    ForeignKey::idle("non_ema_sampling", "previews are of the weights that are saved"),
    ForeignKey::refused("normalize_masked_area_loss", "false", ""),
    ForeignKey::idle("offline_mode", kOwnLoading),
    ForeignKey::setting("offset_noise_weight", "noise_offset"),
    ForeignKey::idle("oft_block_share", kWithOther),
    ForeignKey::idle("oft_block_size", kWithOther),
    ForeignKey::idle("oft_scaled", kWithOther),
    ForeignKey::idle("only_cache", kOwnLoading),
    ForeignKey::together("optimizer"),
    ForeignKey::together("optimizer.amsgrad"),
    ForeignKey::together("optimizer.beta1"),
    ForeignKey::together("optimizer.beta2"),
    ForeignKey::together("optimizer.beta3"),
    ForeignKey::together("optimizer.block_wise"),
    ForeignKey::together("optimizer.capturable"),
    ForeignKey::together("optimizer.clip_threshold"),
    ForeignKey::together("optimizer.d0"),
    ForeignKey::together("optimizer.d_coef"),
    ForeignKey::together("optimizer.decay_rate"),
    ForeignKey::together("optimizer.decouple"),
    ForeignKey::together("optimizer.differentiable"),
    ForeignKey::together("optimizer.eps"),
    ForeignKey::together("optimizer.eps2"),
    ForeignKey::together("optimizer.foreach"),
    ForeignKey::together("optimizer.fsdp_in_use"),
    ForeignKey::together("optimizer.fused"),
    ForeignKey::together("optimizer.fused_back_pass"),
    ForeignKey::together("optimizer.growth_rate"),
    ForeignKey::together("optimizer.is_paged"),
    ForeignKey::together("optimizer.maximize"),
    ForeignKey::together("optimizer.min_8bit_size"),
    ForeignKey::together("optimizer.optim_bits"),
    ForeignKey::together("optimizer.optimizer"),
    ForeignKey::together("optimizer.percentile_clipping"),
    ForeignKey::together("optimizer.r"),
    ForeignKey::together("optimizer.relative_step"),
    ForeignKey::together("optimizer.safeguard_warmup"),
    ForeignKey::together("optimizer.scale_parameter"),
    ForeignKey::together("optimizer.slice_p"),
    ForeignKey::together("optimizer.stochastic_rounding"),
    ForeignKey::together("optimizer.use_bias_correction"),
    ForeignKey::together("optimizer.use_triton"),
    ForeignKey::together("optimizer.warmup_init"),
    ForeignKey::together("optimizer.weight_decay"),
    ForeignKey::together("optimizer.weight_lr_power"),
    ForeignKey::together("output_dtype"),
    ForeignKey::together("output_model_destination"),
    ForeignKey::together("output_model_format"),
    ForeignKey::together("peft_type"),
    ForeignKey::setting("perturbation_noise_weight", "ip_noise_gamma"),
    ForeignKey::idle("preserve_embedding_norm", kWithOther),
    ForeignKey::idle("prevent_overwrites", kBackups),
    ForeignKey::together("rescale_noise_scheduler_to_zero_terminal_snr"),
    ForeignKey::together("resolution"),
    ForeignKey::idle("rolling_backup", kBackups),
    ForeignKey::idle("rolling_backup_count", kBackups),
    ForeignKey::together("sample_after"),
    ForeignKey::together("sample_after_unit"),
    ForeignKey::idle("sample_audio_format", "previews are PNG files"),
    ForeignKey::together("sample_definition_file_name"),
    ForeignKey::idle("sample_image_format", "previews are PNG files"),
    ForeignKey::idle("sample_skip_first", "previews begin before the first step"),
    ForeignKey::idle("sample_video_format", "previews are PNG files"),
    ForeignKey::together("samples"),
    ForeignKey::idle("samples_to_tensorboard", kOwnLogs),
    ForeignKey::together("save_every"),
    ForeignKey::together("save_every_unit"),
    ForeignKey::idle("save_filename_prefix", kWithOther),
    ForeignKey::refused("save_skip_first", "0", ""),
    ForeignKey::idle("temp_device", kOwnLoading),
    ForeignKey::idle("tensorboard", kOwnLogs),
    ForeignKey::idle("tensorboard_always_on", kOwnLogs),
    ForeignKey::idle("tensorboard_expose", kOwnLogs),
    ForeignKey::idle("tensorboard_port", kOwnLogs),
    ForeignKey::idle("text_encoder.activation_offloading", kOffloads),
    ForeignKey::refused("text_encoder.attention_mask", "false", ""),
    ForeignKey::refused("text_encoder.dropout_probability", "0", ""),
    ForeignKey::idle("text_encoder.gradient_checkpointing", kOffloads),
    ForeignKey::idle("text_encoder.guidance_scale", kWithOther),
    ForeignKey::idle("text_encoder.include", kWithOther),
    ForeignKey::together("text_encoder.learning_rate"),
    ForeignKey::refused("text_encoder.model_name", "", ""),
    ForeignKey::idle("text_encoder.offload_fraction", kOffloads),
    ForeignKey::together("text_encoder.stop_training_after"),
    ForeignKey::together("text_encoder.stop_training_after_unit"),
    ForeignKey::together("text_encoder.train"),
    ForeignKey::idle("text_encoder.train_embedding", kWithOther),
    ForeignKey::idle("text_encoder.weight_dtype", kTextDtype),
    ForeignKey::idle("text_encoder_2.activation_offloading", kOffloads),
    ForeignKey::refused("text_encoder_2.attention_mask", "false", ""),
    ForeignKey::refused("text_encoder_2.dropout_probability", "0", ""),
    ForeignKey::idle("text_encoder_2.gradient_checkpointing", kOffloads),
    ForeignKey::idle("text_encoder_2.guidance_scale", kWithOther),
    ForeignKey::idle("text_encoder_2.include", kWithOther),
    ForeignKey::together("text_encoder_2.learning_rate"),
    ForeignKey::refused("text_encoder_2.model_name", "", ""),
    ForeignKey::idle("text_encoder_2.offload_fraction", kOffloads),
    ForeignKey::together("text_encoder_2.stop_training_after"),
    ForeignKey::together("text_encoder_2.stop_training_after_unit"),
    ForeignKey::together("text_encoder_2.train"),
    ForeignKey::idle("text_encoder_2.train_embedding", kWithOther),
    ForeignKey::idle("text_encoder_2.weight_dtype", kTextDtype),
    ForeignKey::refused("text_encoder_2_layer_skip", "0", ""),
    ForeignKey::together("text_encoder_2_sequence_length"),
    ForeignKey::idle("text_encoder_3.activation_offloading", kOffloads),
    ForeignKey::refused("text_encoder_3.attention_mask", "false", ""),
    ForeignKey::refused("text_encoder_3.dropout_probability", "0", ""),
    ForeignKey::idle("text_encoder_3.gradient_checkpointing", kOffloads),
    ForeignKey::idle("text_encoder_3.guidance_scale", kWithOther),
    ForeignKey::idle("text_encoder_3.include", kWithOther),
    ForeignKey::together("text_encoder_3.learning_rate"),
    ForeignKey::refused("text_encoder_3.model_name", "", ""),
    ForeignKey::idle("text_encoder_3.offload_fraction", kOffloads),
    ForeignKey::together("text_encoder_3.stop_training_after"),
    ForeignKey::together("text_encoder_3.stop_training_after_unit"),
    ForeignKey::together("text_encoder_3.train"),
    ForeignKey::idle("text_encoder_3.train_embedding", kWithOther),
    ForeignKey::idle("text_encoder_3.weight_dtype", kTextDtype),
    ForeignKey::refused("text_encoder_3_layer_skip", "0", ""),
    ForeignKey::refused("text_encoder_4_layer_skip", "0", ""),
    ForeignKey::refused("text_encoder_layer_skip", "0", ""),
    ForeignKey::idle("text_encoder_sequence_length", kWithOther),
    ForeignKey::together("timestep_distribution"),
    ForeignKey::together("timestep_shift"),
    ForeignKey::idle("train_device", kOwnLoading),
    ForeignKey::together("train_dtype"),
    ForeignKey::together("training_method"),
    ForeignKey::idle("transformer.activation_offloading", kOffloads),
    ForeignKey::refused("transformer.attention_mask", "false", ""),
    ForeignKey::idle("transformer.dropout_probability", kWithOther),
    ForeignKey::together("transformer.gradient_checkpointing"),
    ForeignKey::together("transformer.guidance_scale"),
    ForeignKey::idle("transformer.include", kWithOther),
    ForeignKey::together("transformer.learning_rate"),
    ForeignKey::refused("transformer.model_name", "", ""),
    ForeignKey::idle("transformer.offload_fraction", kOffloads),
    ForeignKey::idle("transformer.stop_training_after", kWithOther),
    ForeignKey::idle("transformer.stop_training_after_unit", kWithOther),
    ForeignKey::together("transformer.train"),
    ForeignKey::idle("transformer.train_embedding", kWithOther),
    ForeignKey::together("transformer.weight_dtype"),
    ForeignKey::idle("unet.activation_offloading", kOffloads),
    ForeignKey::refused("unet.attention_mask", "false", ""),
    ForeignKey::idle("unet.dropout_probability", kWithOther),
    ForeignKey::together("unet.gradient_checkpointing"),
    ForeignKey::together("unet.guidance_scale"),
    ForeignKey::idle("unet.include", kWithOther),
    ForeignKey::together("unet.learning_rate"),
    ForeignKey::refused("unet.model_name", "", ""),
    ForeignKey::idle("unet.offload_fraction", kOffloads),
    ForeignKey::idle("unet.stop_training_after", kWithOther),
    ForeignKey::idle("unet.stop_training_after_unit", kWithOther),
    ForeignKey::together("unet.train"),
    ForeignKey::idle("unet.train_embedding", kWithOther),
    ForeignKey::together("unet.weight_dtype"),
    ForeignKey::idle("unmasked_probability", kWithOther),
    ForeignKey::together("unmasked_weight"),
    ForeignKey::setting("vae.model_name", "vae"),
    ForeignKey::idle("vae.weight_dtype", kTextDtype),
    ForeignKey::idle("validate_after", "--val names pictures that are held back"),
    ForeignKey::idle("validate_after_unit", "--val names pictures that are held back"),
    ForeignKey::idle("validation", "--val names pictures that are held back"),
    ForeignKey::idle("vb_loss_strength", kWithOther),
    ForeignKey::together("workspace_dir")};

// Parts that mean nothing here, in which each key would be told alike.
constexpr std::string_view kUnusedParts[] = {"optimizer_defaults.",
                                             "cloud.",
                                             "secrets.",
                                             "prior.",
                                             "effnet_encoder.",
                                             "decoder.",
                                             "decoder_text_encoder.",
                                             "decoder_vqgan.",
                                             "text_encoder_4.",
                                             "unconditional_transformer.",
                                             "embedding.",
                                             "quantization."};

// An optimizer, and the class that modules/util/create.py makes of it.
struct TrainerOptimizer {
  std::string_view name, class_name;
};
constexpr TrainerOptimizer kTrainerOptimizers[] = {{"ADAM", "torch.Adam"},
                                                   {"ADAMW", "torch.AdamW"},
                                                   {"ADAM_8BIT", "bitsandbytes.Adam"},
                                                   {"ADAMW_8BIT", "bitsandbytes.AdamW8bit"},
                                                   {"LION", "lion_pytorch.Lion"},
                                                   {"LION_8BIT", "bitsandbytes.Lion8bit"},
                                                   {"ADAFACTOR", "transformers.Adafactor"},
                                                   {"PRODIGY", "prodigyopt.Prodigy"},
                                                   {"SCHEDULE_FREE_ADAMW", "schedulefree.AdamWScheduleFree"}};
// Arguments that say how numbers of fewer bits are rounded, or when the update is made.
constexpr std::string_view kIdleOptimizerKeys[] = {"fused_back_pass", "stochastic_rounding"};

constexpr std::string_view kOptimizerPart = "optimizer.";

class OneTrainerReader : private ForeignReader {
 public:
  explicit OneTrainerReader(const std::filesystem::path& file)
      : ForeignReader(file.string(), "OneTrainer", kTrainerKeys), tree_(read_option_tree(file)) {}

  ForeignConfig operator()() {
    add_all();
    attempt([&] { settle_model(); });
    config_.epochs = 100;
    config_.caption_extension = ".txt";
    config_.caption_lines = true;
    begin_folders(concepts_);
    read_table();
    attempt([&] { settle_files(); });
    attempt([&] { settle_concepts(); });
    attempt([&] { settle_adapter(); });
    attempt([&] { settle_targets(); });
    attempt([&] { settle_optimizer(); });
    attempt([&] { settle_schedule(); });
    attempt([&] { settle_precision(); });
    attempt([&] { settle_loss(); });
    attempt([&] { settle_times(); });
    attempt([&] { settle_range(); });
    attempt([&] { settle_saves(); });
    settle_folders("concepts");
    attempt([&] { settle_samples(); });
    return finish();
  }

 private:
  using Json = nlohmann::ordered_json;
  enum class Model { sdxl, sd3, flux };

  // Objects by their paths.
  void add_tree(const std::string& path, const Json& value) {
    if (std::ranges::any_of(kUnusedParts, [&](std::string_view part) { return path.starts_with(part); })) return;
    if (path.starts_with("concepts[") && path.ends_with(".concept_stats")) return;
    if (!value.is_object() || value.empty()) return add(path, value);
    for (const auto& [key, item] : value.items()) add_tree(path.empty() ? key : path + "." + key, item);
  }

  void add_all() {
    for (const auto& [key, value] : tree_.items())
      if (key == "samples")
        add(key, value.is_array() && !value.empty() ? Json("of this file") : Json());
      else if (key != "concepts")
        add_tree(key, value);
    const Json concepts = this->concepts();
    if (!concepts.is_array()) return;
    for (const Json& concept_ : concepts) {
      if (!concept_.is_object() || (concept_.contains("enabled") && concept_["enabled"] == false)) continue;
      add_tree(fmt::format("concepts[{}]", concepts_++), concept_);
    }
  }

  // In the file, or in the one that it names.
  Json concepts() const {
    if (tree_.contains("concepts") && tree_["concepts"].is_array()) return tree_["concepts"];
    const auto found = tree_.find("concept_file_name");
    if (found == tree_.end() || !found->is_string()) return {};
    const std::string path = found->get<std::string>();
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return {};
    return parse_json_in_order(read_file(path, size_t{1} << 20), path);
  }

  void settle_model() {
    const std::string type = text("model_type", ""), method = text("training_method", "");
    if (type == "FLUX_DEV_1")
      model_ = Model::flux;
    else if (type == "STABLE_DIFFUSION_3" || type == "STABLE_DIFFUSION_35")
      model_ = Model::sd3;
    else if (type != "STABLE_DIFFUSION_XL_10_BASE")
      refuse_value("model_type", "STABLE_DIFFUSION_XL_10_BASE, STABLE_DIFFUSION_3, STABLE_DIFFUSION_35 or FLUX_DEV_1",
                   type);
    is_for(model_ == Model::flux ? "FLUX" : model_ == Model::sd3 ? "SD3" : "SDXL", "model_type");
    if (method != "LORA") refuse_value("training_method", "LORA", method);
  }

  const char* denoiser() const { return model_ == Model::sdxl ? "unet" : "transformer"; }
  std::string part(std::string_view key) const { return fmt::format("{}.{}", denoiser(), key); }

  void settle_files() {
    set("model", text("base_model_name", ""), "base_model_name");
    const std::filesystem::path target = text("output_model_destination", "models/model.safetensors");
    set("output", text("workspace_dir", "workspace/run"), "workspace_dir");
    set("name", target.stem().string(), "output_model_destination");
  }

  void settle_concepts() {
    if (concepts_ == 0)
      refuse(has("concept_file_name") ? "concept_file_name" : "",
             "expected concepts with folders of pictures, found none");
    claim("concept_file_name", "dataset");
    for (size_t i = 0; i < concepts_; ++i)
      attempt([&] { settle_concept(fmt::format("concepts[{}].", i), folders()[i]); });
    settle_resolution("resolution", "512");
    if (!is_set("aspect_ratio_bucketing", true)) set("no_bucket", "true", "aspect_ratio_bucketing");
    if (is_set("masked_training")) refuse("masked_training", "Wick's masks have no unmasked_weight; use --masked-loss");
  }

  void settle_concept(const std::string& path, PictureSection& folder) {
    const std::string key = path + "path";
    if (!has(key)) refuse("", key + " is missing");
    set("dataset", text(key, ""), key);
    folder.image_dir = text(key, "");
    folder.recursive = is_set(path + "include_subdirectories");
    if (!folder.recursive && concepts_ == 1) {
      if (has(path + "include_subdirectories")) drop(path + "include_subdirectories", std::string(kAllFolders));
    }
    if (const std::string type = text(path + "type", "STANDARD"); type != "STANDARD")
      refuse_value(path + "type", "STANDARD", type);
    settle_balance(path, folder);
    folder.loss_weight = number(path + "loss_weight", 1);
    if (!(folder.loss_weight >= 0 && folder.loss_weight <= kMaxLossWeight))
      refuse_value(path + "loss_weight", fmt::format("a number from 0 to {}", kMaxLossWeight),
                   text(path + "loss_weight", ""));
    settle_captions(path + "text.");
    if (is_set(path + "image.enable_crop_jitter", true))
      remark(path + "image: crops are in the middle; OneTrainer moves each picture's by chance.");
    const std::string size = path + "image.resolution_override";
    if (is_set(path + "image.enable_resolution_override"))
      settle_resolution(size, "512");
    else if (has(size))
      drop(size, "enable_resolution_override is not set");
  }

  // A fraction of an epoch's repeats is another choice of pictures in each.
  void settle_balance(const std::string& path, PictureSection& folder) {
    const double repeats = number(path + "balancing", 1);
    if (!(repeats >= 1 && repeats <= double(kMaxRepeats)) || repeats != std::floor(repeats))
      refuse_value(path + "balancing", fmt::format("an integer from 1 to {}", kMaxRepeats),
                   text(path + "balancing", ""));
    folder.repeats = int64_t(repeats);
  }

  // As mgds' ShuffleTags and DropTags have them.
  void settle_captions(const std::string& path) {
    if (const std::string source = text(path + "prompt_source", "sample"); source != "sample")
      refuse_value(path + "prompt_source", "sample, a text file beside each picture", source);
    const bool shuffles = is_set(path + "enable_tag_shuffling");
    const bool drops = is_set(path + "tag_dropout_enable") && number(path + "tag_dropout_probability", 0) > 0;
    if (shuffles) set("shuffle_caption", "true", path + "enable_tag_shuffling");
    if (drops) {
      if (const std::string mode = text(path + "tag_dropout_mode", "FULL"); mode != "RANDOM")
        refuse_value(path + "tag_dropout_mode", "RANDOM, which drops each tag by chance", mode);
      if (const std::string mode = text(path + "tag_dropout_special_tags_mode", "NONE"); mode != "NONE")
        refuse_value(path + "tag_dropout_special_tags_mode", "NONE", mode);
      set("caption_tag_dropout_rate", text(path + "tag_dropout_probability", "0"), path + "tag_dropout_probability");
    } else {
      for (const char* key : {"tag_dropout_mode", "tag_dropout_probability", "tag_dropout_special_tags_mode"})
        if (has(path + key)) drop(path + key, "tag_dropout_enable is not set");
    }
    if (!shuffles && !drops) return;
    set("keep_tokens", text(path + "keep_tags_count", "1"), path + "keep_tags_count");
    set("caption_separator", text(path + "tag_delimiter", ","), path + "tag_delimiter");
  }

  // "512", "512,768", or "512x768", one size without buckets.
  void settle_resolution(const std::string& key, const char* otherwise) {
    std::string list = text(key, otherwise);
    std::erase(list, ' ');
    if (list.find('x') != list.npos) {
      set("no_bucket", "true", key);
      return set("resolution", list, key);
    }
    std::vector<std::string> sides;
    for (size_t begin = 0; begin <= list.size(); begin += sides.back().size() + 1)
      sides.push_back(list.substr(begin, list.find(',', begin) - begin));
    set("resolution", sides, key);
    if (sides.size() > 1)
      remark(key + ": OneTrainer takes one of them by chance; here an epoch shows each picture at each of them.");
  }

  void settle_adapter() {
    const std::string type = text("peft_type", "LORA");
    if (type != "LORA" && type != "LOHA" && type != "LOKR") refuse_value("peft_type", "LORA, LOHA or LOKR", type);
    drop_sizes_of_others(type);
    if (has("lora_model_name")) return set("from", text("lora_model_name", ""), "lora_model_name");
    config_.adapter = type == "LORA" ? AdapterKind::lora : type == "LOHA" ? AdapterKind::loha : AdapterKind::lokr;
    claim("peft_type", "adapter");
    const char* rank_key = type == "LOKR" ? "lokr_dim" : "lora_rank";
    set("rank", text(rank_key, "16"), rank_key);
    set("alpha", text("lora_alpha", "1"), "lora_alpha");
    if (type == "LORA" && is_set("lora_decompose"))
      settle_decomposition("lora_decompose", "lora_decompose_output_axis", false);
    if (type == "LOKR") settle_lokr();
    settle_fusion();
    if (config_.adapter != AdapterKind::lora && config_.lora_dropout != 0)
      refuse("dropout_probability",
             fmt::format("Wick has dropouts for a LoRA alone, found a {}", name_of(config_.adapter)));
  }

  void drop_sizes_of_others(const std::string& type) {
    for (const std::string& key : keys()) {
      const bool is_lokr = key.starts_with("lokr_") && key != "lokr_vec_trick",
                 is_lora = key == "lora_decompose" || key == "lora_decompose_output_axis",
                 is_others = (is_lokr && type != "LOKR") || (is_lora && type != "LORA") ||
                             (key == "lora_rank" && type == "LOKR");
      if (is_others && has(key)) drop(key, std::string(kWithOther));
    }
  }

  void settle_decomposition(const char* key, const char* axis, bool otherwise) {
    config_.adapter = with_magnitudes(config_.adapter);
    claim(key, "adapter");
    set("dora_on_output", is_set(axis, otherwise) ? "true" : "false", axis);
  }

  void settle_lokr() {
    if (number("lokr_decompose_factor", -1) > 0)
      set("lokr_factor", text("lokr_decompose_factor", ""), "lokr_decompose_factor");
    if (is_set("lokr_decompose_both")) set("lokr_decompose_both", "true", "lokr_decompose_both");
    if (is_set("lokr_full_matrix")) set("lokr_full", "true", "lokr_full_matrix");
    if (is_set("lokr_weight_decompose")) settle_decomposition("lokr_weight_decompose", "lokr_dora_on_output", true);
    if (is_set("lokr_use_tucker") && model_ == Model::sdxl)
      refuse("lokr_use_tucker", "Wick trains no Tucker form of convolutions; expected false");
  }

  // For some formats of files it trains q, k and v as the one that they have (ModelFormat.needs_qkv_fusion).
  void settle_fusion() {
    if (model_ == Model::sdxl) return;
    const std::string format = text("output_model_format", "SAFETENSORS");
    config_.split_qkv = format != "ORIGINAL_LORA" && format != "COMFY_LORA" && format != "KOHYA_LORA";
    claim("output_model_format", "split_qkv");
  }

  // The layers of the denoiser by their preset; text encoders as a whole.
  void settle_targets() {
    set("lr", text(part("learning_rate"), text("learning_rate", "3e-6")),
        has(part("learning_rate")) ? part("learning_rate") : "learning_rate");
    const std::string preset = text("layer_filter_preset", "full");
    std::vector<std::string> targets;
    if (is_set(part("train"), true)) targets = layers_of(preset);
    claim("layer_filter_preset", "targets");
    claim(part("train"), "targets");
    const int encoders = model_ == Model::sd3 ? 3 : 2;
    for (int i = 1; i <= encoders; ++i) add_text_encoder(targets, i);
    if (targets.empty()) refuse("", "neither the denoiser nor a text encoder is trained");
    if (config_.from.empty()) config_.targets = targets;
  }

  // Those with one of layer_filter's words in their names; its interface writes a preset's words there.
  std::vector<std::string> layers_of(const std::string& preset) {
    const std::vector<std::string> all = {fmt::format("{}.*", denoiser())};
    if (is_set("layer_filter_regex") && has("layer_filter"))
      refuse("layer_filter_regex", "Wick reads no expressions there; --targets names modules");
    const std::vector<std::string> filter =
        has("layer_filter") ? split_at_commas(text("layer_filter", "")) : words_of_preset(preset);
    const char* key = has("layer_filter") ? "layer_filter" : "layer_filter_preset";
    claim(key, "targets");
    if (filter.empty() || contains_empty(filter)) return all;
    if (model_ == Model::flux && filter == std::vector<std::string>{"transformer_block"})
      return {"transformer.double_blocks.*", "transformer.single_blocks.*"};
    if (model_ == Model::sd3 && filter == std::vector<std::string>{"transformer_block"})
      return {"transformer.joint_blocks.*"};
    if (model_ != Model::sdxl && !config_.split_qkv && config_.from.empty())
      refuse(key, "with fused q, k and v Wick's modules have other names; --targets names modules");
    std::vector<std::string> patterns;
    for (const std::string& word : filter) {
      const auto pattern = pattern_of_word(model_ == Model::sdxl   ? DiffusersModel::sdxl
                                           : model_ == Model::flux ? DiffusersModel::flux
                                                                   : DiffusersModel::sd3,
                                           word);
      if (!pattern)
        refuse(key, fmt::format("{} is in Wick's names of other modules too; --targets names modules", quote(word)));
      patterns.push_back(fmt::format("{}.{}", denoiser(), *pattern));
    }
    return patterns;
  }

  static bool contains_empty(const std::vector<std::string>& filter) {
    return std::ranges::find(filter, std::string()) != filter.end();
  }

  static std::vector<std::string> split_at_commas(const std::string& list) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      std::string part = list.substr(begin, end - begin);
      part.erase(0, std::min(part.find_first_not_of(' '), part.size()));
      part.erase(part.find_last_not_of(' ') + 1);
      parts.push_back(part);
      begin = end + 1;
    }
    return parts;
  }

  // LAYER_PRESETS of modules/modelSetup/Base*Setup.py.
  std::vector<std::string> words_of_preset(const std::string& preset) const {
    if (preset == "full") return {};
    if (preset == "attn-only") return {"attn"};
    if (preset == "blocks" && model_ != Model::sdxl) return {"transformer_block"};
    if (preset == "attn-mlp" && model_ == Model::sdxl) return {"attentions"};
    if (preset == "attn-mlp" && model_ == Model::flux) return {"attn", "ff.net", "proj_mlp"};
    refuse_value("layer_filter_preset",
                 model_ == Model::sdxl   ? "full, attn-mlp or attn-only; --targets names modules"
                 : model_ == Model::flux ? "full, blocks, attn-mlp or attn-only; --targets names modules"
                                         : "full, blocks or attn-only; --targets names modules",
                 preset);
  }

  void add_text_encoder(std::vector<std::string>& targets, int i) {
    const std::string encoder = i == 1 ? "text_encoder" : fmt::format("text_encoder_{}", i);
    const std::string train = encoder + ".train", rate_key = encoder + ".learning_rate";
    claim(train, "targets");
    if (!is_set(train, true)) return;
    const std::string unit = text(encoder + ".stop_training_after_unit", "EPOCH");
    const double after = number(encoder + ".stop_training_after", 30);
    if (unit != "NEVER" && !(unit == "EPOCH" && after >= double(config_.epochs)))
      refuse(train, fmt::format("Wick trains a text encoder to the end, found {} {}", after, unit));
    targets.push_back(encoder + ".*");
    const std::string rate = text(rate_key, text("learning_rate", "3e-6"));
    const auto value = number_of(rate);
    if (!value || !(*value > 0 && *value <= 1e38)) refuse_value(rate_key, "a rate above 0", rate);
    if (*value != config_.lr.value) config_.lr.others.push_back({encoder + ".*", *value});
    claim(rate_key, "lr");
  }

  void settle_optimizer() {
    const char* name_key = has("optimizer") ? "optimizer" : "optimizer.optimizer";
    const std::string name = text(name_key, "ADAMW");
    const auto* row = std::ranges::find(kTrainerOptimizers, name, &TrainerOptimizer::name);
    if (row == std::end(kTrainerOptimizers))
      refuse_value(name_key,
                   "ADAM, ADAMW, ADAM_8BIT, ADAMW_8BIT, LION, LION_8BIT, ADAFACTOR, PRODIGY or SCHEDULE_FREE_ADAMW",
                   name);
    const OptimizerClass& known = *find_optimizer_class(row->class_name);
    set_optimizer_class(config_, known);
    claim(name_key, "optimizer");
    set_optimizer_defaults(name);
    for (const std::string& key : keys())
      if (key.starts_with(kOptimizerPart) && key != "optimizer.optimizer" && has(key))
        attempt([&] { settle_optimizer_key(known, name, key); });
    if (config_.adafactor_relative_step)
      refuse("optimizer.relative_step",
             "OneTrainer gives Adafactor a rate, which it refuses beside relative steps; expected false");
    if (known.kind == OptimizerKind::prodigy && !config_.lr.others.empty())
      refuse("", "text_encoder.learning_rate: Prodigy finds one rate for all; expected that of learning_rate");
  }

  // Of create.py, where they are not the class's. A switch that the file leaves out is off.
  void set_optimizer_defaults(const std::string& name) {
    if (name == "SCHEDULE_FREE_ADAMW") config_.weight_decay = 0.01;
    if (name == "LION_8BIT") config_.betas = {0.9, 0.999};
    config_.adafactor_relative_step = config_.adafactor_scale_parameter = false;
    if (name == "PRODIGY") config_.prodigy_decouple = false;
  }

  void settle_optimizer_key(const OptimizerClass& known, const std::string& optimizer, const std::string& key) {
    std::string name = key.substr(kOptimizerPart.size());
    std::vector<std::string> values = words(key);
    const bool is_adafactor = known.kind == OptimizerKind::adafactor;
    if (std::ranges::find(kIdleOptimizerKeys, name) != std::end(kIdleOptimizerKeys))
      return drop(key, "changes nothing of Wick's");
    if ((name == "beta1" || name == "beta2") && !is_adafactor) {
      values = with_one(config_.betas.empty() ? betas_of(known.kind) : config_.betas, name == "beta2", values);
      name = "betas";
    } else if (is_adafactor && (name == "eps" || name == "eps2")) {
      const AdafactorRule own;
      values = with_one(config_.eps.empty() ? std::vector<double>{own.eps, own.scale_eps} : config_.eps, name == "eps2",
                        values);
      name = "eps";
    }
    if (!has_optimizer_argument(known, name)) return drop(key, "OneTrainer does not read it of " + optimizer);
    const OptimizerArgument read = read_optimizer_argument(config_, known, name, values);
    if (!read.refusal.empty()) refuse(key, printable(read.refusal));
    if (!read.setting.empty()) set(read.setting, read.words, key);
  }

  static std::vector<double> betas_of(OptimizerKind kind) {
    const OptimizerRule rule = OptimizerOptions::of(kind).rule;
    return {number_of(fmt::format("{}", rule.beta1)).value(), number_of(fmt::format("{}", rule.beta2)).value()};
  }

  // A list in which one number is replaced.
  static std::vector<std::string> with_one(const std::vector<double>& list, size_t at,
                                           const std::vector<std::string>& value) {
    std::vector<std::string> all;
    for (const double item : list) all.push_back(fmt::format("{}", item));
    all[at] = fmt::format("{}", fmt::join(value, ","));
    return all;
  }

  // Up to 1 a share of all steps, otherwise batches.
  void settle_schedule() {
    if (!is_schedule_free(config_.optimizer)) {
      const std::string name = text("learning_rate_scheduler", "CONSTANT");
      static constexpr std::pair<std::string_view, const char*> kSchedules[] = {
          {"CONSTANT", "constant"},
          {"LINEAR", "linear"},
          {"COSINE", "cosine"},
          {"COSINE_WITH_HARD_RESTARTS", "cosine-with-restarts"}};
      const auto* found = std::ranges::find(kSchedules, name, &std::pair<std::string_view, const char*>::first);
      if (found == std::end(kSchedules))
        refuse_value("learning_rate_scheduler", "CONSTANT, LINEAR, COSINE or COSINE_WITH_HARD_RESTARTS", name);
      set("lr_schedule", found->second, "learning_rate_scheduler");
      if (name == "COSINE_WITH_HARD_RESTARTS")
        set("lr_scheduler_num_cycles", fmt::format("{}", number("learning_rate_cycles", 1)), "learning_rate_cycles");
    }
    const double warmup = number("learning_rate_warmup_steps", 200);
    if (warmup == 1) refuse_value("learning_rate_warmup_steps", "steps, or a share of them below 1", "1");
    set("warmup", fmt::format("{}", warmup > 1 ? std::floor(warmup / double(config_.accumulate)) : warmup),
        "learning_rate_warmup_steps");
    if (is_schedule_free(config_.optimizer) && config_.warmup.value > 0)
      remark("learning_rate_warmup_steps: OneTrainer warms a schedule-free optimizer up twice over, Wick once.");
    if (text("ema", "OFF") == "OFF") return;
    set("ema", text("ema_decay", "0.999"), "ema");
    claim("ema_decay", "ema");
    remark("ema: Wick's average is updated in each step.");
  }

  std::string dtype_of(std::string_view key, const char* otherwise) const {
    const std::string name = text(key, otherwise);
    if (name == "FLOAT_16") return "f16";
    if (name == "BFLOAT_16") return "bf16";
    if (name == "FLOAT_32" || name == "TFLOAT_32") return "f32";
    refuse_value(key, "FLOAT_16, BFLOAT_16, FLOAT_32 or TFLOAT_32", name);
  }

  void settle_precision() {
    set("dtype", dtype_of("train_dtype", "FLOAT_16"), "train_dtype");
    if (text("train_dtype", "") == "TFLOAT_32") set("tf32", "true", "train_dtype");
    set("save_dtype", dtype_of("output_dtype", "FLOAT_32"), "output_dtype");
    const std::string key = part("weight_dtype"), type = text(key, "FLOAT_32");
    static constexpr std::pair<std::string_view, const char*> kTypes[] = {
        {"FLOAT_8", "fp8"}, {"INT_8", "int8"}, {"NFLOAT_4", "nf4"}};
    const auto* found = std::ranges::find(kTypes, type, &std::pair<std::string_view, const char*>::first);
    if (found != std::end(kTypes))
      set("quantize", found->second, key);
    else
      dtype_of(key, "FLOAT_32");
    const bool has_old = has("gradient_checkpointing");
    const std::string old = text("gradient_checkpointing", "ON");
    config_.gradient_checkpointing =
        has_old ? old != "OFF" && old != "false" : is_set(part("gradient_checkpointing"), true);
    claim(has_old ? "gradient_checkpointing" : part("gradient_checkpointing"), "gradient_checkpointing");
  }

  void settle_loss() {
    const double squares = number("mse_strength", 1), magnitudes = number("mae_strength", 0);
    if (!((squares == 1 && magnitudes == 0) || (squares == 0 && magnitudes == 1)))
      refuse_value("mse_strength", "1 and an mae_strength of 0, or the reverse",
                   fmt::format("{} and {}", squares, magnitudes));
    for (const char* key : {"mse_strength", "mae_strength"}) set("loss_type", squares == 1 ? "l2" : "l1", key);
    set("max_grad_norm", text("clip_grad_norm", "1"), "clip_grad_norm");
    const std::string weights = text("loss_weight_fn", "CONSTANT");
    const bool is_of_sdxl = model_ == Model::sdxl;
    if (weights == "MIN_SNR_GAMMA" && is_of_sdxl)
      set("min_snr_gamma", text("loss_weight_strength", "5"), "loss_weight_strength");
    else if (weights == "DEBIASED_ESTIMATION" && is_of_sdxl)
      set("debiased_estimation_loss", "true", "loss_weight_fn");
    else if (weights != "CONSTANT")
      refuse_value("loss_weight_fn", is_of_sdxl ? "CONSTANT, MIN_SNR_GAMMA or DEBIASED_ESTIMATION" : "CONSTANT",
                   weights);
    settle_prediction();
    if (model_ == Model::flux) {
      set("train_guidance", text("transformer.guidance_scale", "1"), "transformer.guidance_scale");
      set("t5_tokens", text("text_encoder_2_sequence_length", "77"), "text_encoder_2_sequence_length");
    }
    if (model_ == Model::sd3) config_.t5_tokens = 77;
  }

  // The rescaled scheduler overrides force_v_prediction and force_epsilon_prediction.
  void settle_prediction() {
    constexpr const char *kZero = "rescale_noise_scheduler_to_zero_terminal_snr", *kV = "force_v_prediction",
                         *kNoise = "force_epsilon_prediction";
    if (is_set(kZero)) {
      for (const char* key : {kV, kNoise})
        if (has(key)) drop(key, fmt::format("{} decides", kZero));
      return set("prediction", "v-zero-snr", kZero);
    }
    if (is_set(kV)) set("prediction", "v", kV);
    if (is_set(kNoise)) set("prediction", "epsilon", kNoise);
  }

  // As _get_timestep_discrete() of ModelSetupNoiseMixin.py has them; SDXL's are uniform here.
  void settle_times() {
    const std::string how = text("timestep_distribution", "UNIFORM");
    if (model_ == Model::sdxl) {
      if (how != "UNIFORM") refuse_value("timestep_distribution", "UNIFORM, for SDXL", how);
      return;
    }
    const bool is_dynamic = is_set("dynamic_timestep_shifting");
    const double shift = number("timestep_shift", 1), bias = number("noising_bias", 0);
    if (!(shift > 0)) refuse_value("timestep_shift", "a shift above 0", text("timestep_shift", ""));
    const std::string_view shift_key = is_dynamic ? "dynamic_timestep_shifting" : "timestep_shift";
    if (how == "UNIFORM") {
      set("timesteps", "uniform", "timestep_distribution");
      return set("timestep_shift", is_dynamic ? "auto" : fmt::format("{}", shift), shift_key);
    }
    if (how != "LOGIT_NORMAL") refuse_value("timestep_distribution", "UNIFORM or LOGIT_NORMAL", how);
    set("timesteps", "logit-normal", "timestep_distribution");
    set("timestep_std", fmt::format("{}", number("noising_weight", 0) + 1), "noising_weight");
    if (is_dynamic && bias != 0)
      refuse_value("noising_bias", "0 with dynamic_timestep_shifting", text("noising_bias", ""));
    if (is_dynamic) return set("timestep_shift", "auto", shift_key);
    set("timestep_mean", fmt::format("{}", bias + std::log(shift)), "noising_bias");
    claim(shift_key, "timestep_mean");
  }

  // Times are scaled into the range before their shift.
  void settle_range() {
    constexpr double kSteps = 1000;
    static constexpr const char *kLeast = "min_noising_strength", *kMost = "max_noising_strength";
    const double least = number(kLeast, 0), most = number(kMost, 1);
    if (least == 0 && most == 1) return;
    if (!(0 <= least && least <= most && most <= 1 && least < 1))
      refuse_value(has(kLeast) ? kLeast : kMost, "shares of the noise from 0 to 1",
                   fmt::format("{} to {}", least, most));
    set("min_timestep", fmt::format("{}", std::floor(kSteps * least)), kLeast);
    set("max_timestep", fmt::format("{}", std::floor(kSteps * most)), kMost);
    if (model_ == Model::sdxl) return;
    set("timestep_range", "drawn", has(kLeast) ? kLeast : kMost);
    if (config_.timesteps != TimestepKind::logit_normal || config_.timestep_mean == "auto") return;
    set("timestep_mean", fmt::format("{}", number("noising_bias", 0)), "noising_bias");
    set("timestep_shift", fmt::format("{}", number("timestep_shift", 1)), "timestep_shift");
  }

  // Previews read the file that has them (foreign/samples.h).
  void settle_samples() {
    static constexpr const char *kFile = "sample_definition_file_name", *kUnit = "sample_after_unit";
    const std::string unit = text(kUnit, "MINUTE"), after = text("sample_after", "10"),
                      named = text(kFile, "training_samples/samples.json");
    std::error_code ignored;
    const bool has_own = has("samples"), is_there = has_own || std::filesystem::exists(named, ignored);
    if (unit == "NEVER" || !is_there) {
      const char* why = unit == "NEVER" ? "there are no previews" : "there is no file of samples";
      for (const char* key : {"samples", kFile, "sample_after", kUnit})
        if (has(key)) drop(key, why);
      return;
    }
    const char* key = has_own ? "samples" : kFile;
    if (has_own && has(kFile)) drop(kFile, "samples wins");
    set("sample_prompts", has_own ? file() : named, key);
    for (const char* of_time : {"sample_after", kUnit})
      if (has(of_time)) claim(of_time, unit == "EPOCH" ? "sample_every_epochs" : "sample_every");
    if (unit == "STEP" || unit == "EPOCH")
      set(unit == "STEP" ? "sample_every" : "sample_every_epochs", after, "sample_after");
    else if (unit == "ALWAYS")
      set("sample_every", "1", kUnit);
    else
      remark(fmt::format("sample_after: Wick has previews by steps or epochs; found {} {}, so they come with saves.",
                         after, printable(unit)));
    try {
      read_foreign_samples(config_.sample_prompts);
    } catch (const Error& error) {
      refuse(key, error.what());
    }
  }

  void settle_saves() {
    const std::string unit = text("save_every_unit", "NEVER"), every = text("save_every", "0");
    if (unit == "NEVER" || number("save_every", 0) == 0) return;
    if (unit == "STEP")
      set("save_every", every, "save_every");
    else if (unit == "EPOCH")
      set("save_every_epochs", every, "save_every");
    else if (unit == "MINUTE")
      set("save_every_minutes", every, "save_every");
    else if (unit == "HOUR")
      set("save_every_minutes", fmt::format("{}", number("save_every", 0) * 60), "save_every");
    else
      refuse_value("save_every_unit", "NEVER, STEP, EPOCH, MINUTE or HOUR", unit);
  }

  Json tree_;
  size_t concepts_ = 0;  // that are enabled
  Model model_ = Model::sdxl;
};

}  // namespace

ForeignConfig explain_onetrainer(const std::filesystem::path& file) { return OneTrainerReader(file)(); }

std::span<const ForeignKey> onetrainer_keys() { return kTrainerKeys; }

}  // namespace wick
