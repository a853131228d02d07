#include "wick/train/foreign/ai_toolkit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/diffusers_words.h"
#include "wick/train/foreign/optimizers.h"
#include "wick/train/foreign/samples.h"

namespace wick {
namespace {

using Key = ForeignKey;

constexpr std::string_view kMemory = "changes where weights lie; --memory and --stream-blocks save memory here",
                           kFileNames = "files have kohya's names, which ComfyUI reads",
                           kPartOf = "goes with another key, or with other models",
                           kPreviewFiles = "previews are PNG files", kTargets = "--targets names modules",
                           kFirst = "previews begin before the first step",
                           kUnbounded = "it weighs by gamma / SNR without a bound; min_snr_gamma has one",
                           kVideo = "is for videos and sounds";

// All options of a job of ai-toolkit's that Wick knows, by their paths within the process; config.name is the job's.
// Sources: toolkit/config_modules.py, and config/examples.
constexpr Key kJobKeys[] = {Key::together("config.name"),
                            Key::together("config.process"),
                            Key::together("datasets[0].alpha_mask"),
                            Key::idle("datasets[0].audio_normalize", kVideo),
                            Key::idle("datasets[0].audio_preserve_pitch", kVideo),
                            Key::refused("datasets[0].augmentations", "", ""),
                            Key::refused("datasets[0].augments", "", ""),
                            Key::idle("datasets[0].auto_frame_count", kVideo),
                            Key::setting("datasets[0].batch_size", "batch_size"),
                            Key::setting("datasets[0].bucket_tolerance", "bucket_step"),
                            Key::refused("datasets[0].buckets", "true", ""),
                            Key::idle("datasets[0].cache_clip_vision_to_disk", kOwnLoading),
                            Key::idle("datasets[0].cache_latents", kOwnLoading),
                            Key::idle("datasets[0].cache_latents_num_workers", kOwnLoading),
                            Key::idle("datasets[0].cache_latents_to_disk", kOwnLoading),
                            Key::idle("datasets[0].cache_tensors_to_disk", kOwnLoading),
                            Key::idle("datasets[0].cache_text_embeddings", kOwnLoading),
                            Key::setting("datasets[0].caption_dropout_rate", "caption_dropout"),
                            Key::together("datasets[0].caption_ext"),
                            Key::together("datasets[0].caption_type"),
                            Key::refused("datasets[0].clip_image_augmentations", "", ""),
                            Key::refused("datasets[0].clip_image_from_same_folder", "false", ""),
                            Key::refused("datasets[0].clip_image_path", "", ""),
                            Key::idle("datasets[0].clip_image_shuffle_augmentations", kOwnLoading),
                            Key::refused("datasets[0].control_from_same_folder", "false", ""),
                            Key::refused("datasets[0].control_path", "", ""),
                            Key::refused("datasets[0].control_path_1", "", ""),
                            Key::refused("datasets[0].control_path_2", "", ""),
                            Key::refused("datasets[0].control_path_3", "", ""),
                            Key::idle("datasets[0].control_transparent_color", kPartOf),
                            Key::refused("datasets[0].controls", "", ""),
                            Key::together("datasets[0].dataset_path"),
                            Key::idle("datasets[0].debug", kOwnLoading),
                            Key::setting("datasets[0].default_caption", "default_caption"),
                            Key::refused("datasets[0].diff_output_preservation", "false", ""),
                            Key::idle("datasets[0].diff_output_preservation_class", kPartOf),
                            Key::idle("datasets[0].do_audio", kVideo),
                            Key::idle("datasets[0].do_i2v", kVideo),
                            Key::refused("datasets[0].extra_values", "", ""),
                            Key::idle("datasets[0].fast_image_size", kOwnLoading),
                            Key::setting("datasets[0].flip_x", "flip_aug"),
                            Key::refused("datasets[0].flip_y", "false", ""),
                            Key::together("datasets[0].folder_path"),
                            Key::idle("datasets[0].fps", kVideo),
                            Key::idle("datasets[0].full_size_control_images", kOwnLoading),
                            Key::idle("datasets[0].guidance_type", kOwnLoading),
                            Key::refused("datasets[0].inpaint_path", "", ""),
                            Key::together("datasets[0].invert_mask"),
                            Key::together("datasets[0].is_reg"),
                            Key::setting("datasets[0].keep_tokens", "keep_tokens"),
                            Key::idle("datasets[0].load_image_when_caching_latents", kOwnLoading),
                            Key::together("datasets[0].loss_multiplier"),
                            Key::together("datasets[0].mask_min_value"),
                            Key::together("datasets[0].mask_path"),
                            Key::refused("datasets[0].network_weight", "1.0", ""),
                            Key::idle("datasets[0].num_controls_from_same_folder", kPartOf),
                            Key::idle("datasets[0].num_frames", kVideo),
                            Key::together("datasets[0].num_repeats"),
                            Key::idle("datasets[0].num_workers", kOwnLoading),
                            Key::refused("datasets[0].poi", "", ""),
                            Key::idle("datasets[0].prefetch_factor", kOwnLoading),
                            Key::refused("datasets[0].prior_reg", "false", ""),
                            Key::setting("datasets[0].random_crop", "random_crop"),
                            Key::refused("datasets[0].random_scale", "false", ""),
                            Key::refused("datasets[0].random_triggers", "", ""),
                            Key::idle("datasets[0].random_triggers_max", kPartOf),
                            Key::idle("datasets[0].replacements", "ai-toolkit reads it and replaces nothing"),
                            Key::idle("datasets[0].replay_transforms", kOwnLoading),
                            Key::setting("datasets[0].resolution", "resolution"),
                            Key::refused("datasets[0].scale", "1.0", ""),
                            Key::idle("datasets[0].shrink_video_to_frames", kVideo),
                            Key::idle("datasets[0].shuffle_augmentations", kOwnLoading),
                            Key::setting("datasets[0].shuffle_tokens", "shuffle_caption"),
                            Key::refused("datasets[0].square_crop", "false", ""),
                            Key::refused("datasets[0].standardize_images", "false", ""),
                            Key::setting("datasets[0].token_dropout_rate", "caption_tag_dropout_rate"),
                            Key::setting("datasets[0].trigger_word", "trigger_word"),
                            Key::idle("datasets[0].trim_auto_frame_count_tail", kVideo),
                            Key::refused("datasets[0].type", "image", ""),
                            Key::refused("datasets[0].unconditional_path", "", ""),
                            Key::refused("datasets[0].use_short_captions", "false", ""),
                            Key::setting("device", "device"),
                            Key::together("job"),
                            Key::refused("model.accuracy_recovery_adapter", "", ""),
                            Key::together("model.arch"),
                            Key::refused("model.assistant_lora_path", "", ""),
                            Key::refused("model.attn_masking", "false", ""),
                            Key::idle("model.auto_memory", kMemory),
                            Key::idle("model.block_compile", kCompiled),
                            Key::idle("model.cache_size_limit", kCompiled),
                            Key::idle("model.compile", kCompiled),
                            Key::idle("model.compile_dynamic", kCompiled),
                            Key::idle("model.compile_fullgraph", kCompiled),
                            Key::idle("model.compile_mode", kCompiled),
                            Key::idle("model.dtype", "train.dtype is that of the frozen weights"),
                            Key::refused("model.experimental_xl", "false", ""),
                            Key::refused("model.extras_name_or_path", "", ""),
                            Key::refused("model.ignore_if_contains", "", ""),
                            Key::refused("model.in_context", "false", ""),
                            Key::idle("model.inference_lora_path", kPartOf),
                            Key::refused("model.is_auraflow", "false", ""),
                            Key::together("model.is_flux"),
                            Key::refused("model.is_lumina2", "false", ""),
                            Key::refused("model.is_pixart", "false", ""),
                            Key::refused("model.is_pixart_sigma", "false", ""),
                            Key::refused("model.is_ssd", "false", ""),
                            Key::refused("model.is_v2", "false", ""),
                            Key::together("model.is_v3"),
                            Key::together("model.is_v_pred"),
                            Key::refused("model.is_vega", "false", ""),
                            Key::together("model.is_xl"),
                            Key::refused("model.latent_space_version", "", ""),
                            Key::idle("model.layer_offloading", kMemory),
                            Key::idle("model.layer_offloading_text_encoder_percent", kMemory),
                            Key::idle("model.layer_offloading_transformer_percent", kMemory),
                            Key::refused("model.lora_path", "", "`wick merge` merges LoRAs into a model first"),
                            Key::idle("model.low_vram", kMemory),
                            Key::together("model.name_or_path"),
                            Key::refused("model.only_if_contains", "", ""),
                            Key::together("model.qtype"),
                            Key::idle("model.qtype_te", kMemory),
                            Key::together("model.quantize"),
                            Key::idle("model.quantize_te", kMemory),
                            Key::refused("model.refiner_name_or_path", "", ""),
                            Key::idle("model.refiner_start_at", kPartOf),
                            Key::idle("model.split_model_other_module_param_count_scale", kMemory),
                            Key::idle("model.split_model_over_gpus", kMemory),
                            Key::idle("model.te_device", kMemory),
                            Key::idle("model.te_dtype", "train.dtype is that of the frozen weights"),
                            Key::refused("model.te_name_or_path", "", ""),
                            Key::refused("model.text_encoder_bits", "16", ""),
                            Key::refused("model.unconditional_lora_path", "", ""),
                            Key::refused("model.unet_path", "", ""),
                            Key::refused("model.unet_sample_size", "", ""),
                            Key::refused("model.use_flux_cfg", "false", ""),
                            Key::refused("model.use_text_encoder_1", "true", ""),
                            Key::refused("model.use_text_encoder_2", "true", ""),
                            Key::idle("model.vae_device", kMemory),
                            Key::idle("model.vae_dtype", "train.dtype is that of the frozen weights"),
                            Key::setting("model.vae_path", "vae"),
                            Key::refused("network.all_layers", "false", ""),
                            Key::together("network.alpha"),
                            Key::together("network.conv"),
                            Key::together("network.conv_alpha"),
                            Key::together("network.dropout"),
                            Key::idle("network.layer_offloading", kMemory),
                            Key::together("network.linear"),
                            Key::together("network.linear_alpha"),
                            Key::together("network.lokr_factor"),
                            Key::together("network.lokr_full_rank"),
                            Key::refused("network.lorm", "", ""),
                            Key::together("network.network_kwargs.ignore_if_contains"),
                            Key::together("network.network_kwargs.only_if_contains"),
                            Key::idle("network.old_lokr_format", kFileNames),
                            Key::together("network.pretrained_lora_path"),
                            Key::together("network.rank"),
                            Key::idle("network.split_multistage_loras", "is for models of several stages"),
                            Key::together("network.transformer_only"),
                            Key::together("network.type"),
                            Key::setting("meta.author", "metadata_author"),
                            Key::setting("meta.description", "metadata_description"),
                            Key::setting("meta.license", "metadata_license"),
                            Key::setting("meta.name", "metadata_title"),
                            Key::setting("meta.tags", "metadata_tags"),
                            Key::idle("performance_log_every", kOwnLogs),
                            Key::idle("sample.adapter_conditioning_scale", kPartOf),
                            Key::idle("sample.do_cfg_norm", kPartOf),
                            Key::idle("sample.ext", kPreviewFiles),
                            Key::idle("sample.extra_values", kPartOf),
                            Key::idle("sample.format", kPreviewFiles),
                            Key::idle("sample.fps", kVideo),
                            Key::together("sample.guidance_scale"),
                            Key::idle("sample.guidance_rescale", kPartOf),
                            Key::together("sample.height"),
                            Key::together("sample.neg"),
                            Key::idle("sample.network_multiplier", kPartOf),
                            Key::idle("sample.num_frames", kVideo),
                            Key::together("sample.prompts"),
                            Key::idle("sample.refiner_start_at", kPartOf),
                            Key::together("sample.sample_every"),
                            Key::idle("sample.sample_start_step", kPartOf),
                            Key::together("sample.sample_steps"),
                            Key::together("sample.sampler"),
                            Key::idle("sample.samples[0].ctrl_idx", kPartOf),
                            Key::idle("sample.samples[0].ctrl_img", kPartOf),
                            Key::together("sample.samples[0].guidance_scale"),
                            Key::together("sample.samples[0].height"),
                            Key::together("sample.samples[0].neg"),
                            Key::idle("sample.samples[0].network_multiplier", kPartOf),
                            Key::together("sample.samples[0].prompt"),
                            Key::together("sample.samples[0].sample_steps"),
                            Key::together("sample.samples[0].seed"),
                            Key::together("sample.samples[0].width"),
                            Key::together("sample.seed"),
                            Key::together("sample.walk_seed"),
                            Key::together("sample.width"),
                            Key::setting("save.dtype", "save_dtype"),
                            Key::idle("save.hf_private", kNoUpload),
                            Key::idle("save.hf_repo_id", kNoUpload),
                            Key::setting("save.max_step_saves_to_keep", "keep_last"),
                            Key::idle("save.push_to_hub", kNoUpload),
                            Key::setting("save.save_every", "save_every"),
                            Key::idle("save.save_format", kFileNames),
                            Key::idle("sqlite_db_path", kOwnLogs),
                            Key::idle("torch_profiler", kOwnLogs),
                            Key::refused("train.adapter_assist_name_or_path", "", ""),
                            Key::idle("train.adapter_assist_type", kPartOf),
                            Key::idle("train.adapter_lr", kPartOf),
                            Key::refused("train.adaptive_scaling_factor", "false", ""),
                            Key::idle("train.attention_backend", kFused),
                            Key::idle("train.audio_loss_multiplier", kPartOf),
                            Key::idle("train.batch_noise_correction_scale", kPartOf),
                            Key::setting("train.batch_size", "batch_size"),
                            Key::refused("train.blank_prompt_preservation", "false", ""),
                            Key::idle("train.blank_prompt_preservation_multiplier", kPartOf),
                            Key::refused("train.blended_blur_noise", "false", ""),
                            Key::refused("train.bypass_guidance_embedding", "false", ""),
                            Key::idle("train.cache_text_embeddings", kOwnLoading),
                            Key::idle("train.cfg_rescale", kPartOf),
                            Key::setting("train.cfg_scale", "train_guidance"),
                            Key::together("train.content_or_style"),
                            Key::refused("train.correct_pred_norm", "false", ""),
                            Key::idle("train.correct_pred_norm_multiplier", kPartOf),
                            Key::refused("train.diff_output_preservation", "false", ""),
                            Key::idle("train.diff_output_preservation_class", kPartOf),
                            Key::idle("train.diff_output_preservation_multiplier", kPartOf),
                            Key::idle("train.differential_guidance_scale", kPartOf),
                            Key::refused("train.diffusion_feature_extractor_path", "", ""),
                            Key::idle("train.diffusion_feature_extractor_weight", kPartOf),
                            Key::together("train.disable_sampling"),
                            Key::refused("train.do_batch_noise_correction", "false", ""),
                            Key::refused("train.do_blank_stabilization", "false", ""),
                            Key::refused("train.do_cfg", "false", ""),
                            Key::refused("train.do_differential_guidance", "false", ""),
                            Key::refused("train.do_fft_loss", "false", ""),
                            Key::refused("train.do_fft_velocity_equiv_weight", "false", ""),
                            Key::refused("train.do_guidance_loss", "false", ""),
                            Key::idle("train.do_guidance_loss_cfg_zero", kPartOf),
                            Key::refused("train.do_paramiter_swapping", "false", ""),
                            Key::refused("train.do_prior_divergence", "false", ""),
                            Key::refused("train.do_random_cfg", "false", ""),
                            Key::refused("train.do_signal_amplification", "false", ""),
                            Key::refused("train.do_signal_correction_noise", "false", ""),
                            Key::setting("train.dtype", "dtype"),
                            Key::refused("train.dynamic_noise_offset", "false", ""),
                            Key::together("train.ema_config.ema_decay"),
                            Key::refused("train.ema_config.param_multiplier", "1", ""),
                            Key::together("train.ema_config.use_ema"),
                            Key::refused("train.ema_config.use_feedback", "false", ""),
                            Key::idle("train.embedding_lr", kPartOf),
                            Key::refused("train.force_consistent_noise", "false", ""),
                            Key::idle("train.force_first_sample", kFirst),
                            Key::refused("train.free_u", "false", ""),
                            Key::together("train.gradient_accumulation"),
                            Key::together("train.gradient_accumulation_steps"),
                            Key::setting("train.gradient_checkpointing", "gradient_checkpointing"),
                            Key::idle("train.guidance_loss_schedule", kPartOf),
                            Key::idle("train.guidance_loss_target", kPartOf),
                            Key::refused("train.img_multiplier", "1.0", ""),
                            Key::refused("train.inverted_mask_prior", "false", ""),
                            Key::idle("train.inverted_mask_prior_multiplier", kPartOf),
                            Key::refused("train.latent_feature_extractor_path", "", ""),
                            Key::idle("train.latent_feature_loss_weight", kPartOf),
                            Key::refused("train.latent_multiplier", "1.0", ""),
                            Key::refused("train.learnable_snr_gos", "false", ""),
                            Key::together("train.linear_timesteps"),
                            Key::refused("train.linear_timesteps2", "false", ""),
                            Key::refused("train.loss_target", "noise", ""),
                            Key::together("train.loss_type"),
                            Key::together("train.lr"),
                            Key::together("train.lr_scheduler"),
                            Key::together("train.lr_scheduler_params.num_warmup_steps"),
                            Key::refused("train.match_adapter_assist", "false", ""),
                            Key::refused("train.match_adapter_chance", "0.0", ""),
                            Key::refused("train.match_noise_norm", "false", ""),
                            Key::idle("train.max_cfg_scale", kPartOf),
                            Key::together("train.max_denoising_steps"),
                            Key::setting("train.max_grad_norm", "max_grad_norm"),
                            Key::refused("train.max_loss", "", ""),
                            Key::idle("train.max_loss_debug", kPartOf),
                            Key::idle("train.max_negative_prompts", kPartOf),
                            Key::refused("train.merge_network_on_save", "false", ""),
                            Key::idle("train.merge_network_on_save_strength", kPartOf),
                            Key::together("train.min_denoising_steps"),
                            Key::together("train.min_snr_gamma"),
                            Key::refused("train.negative_prompt", "", ""),
                            Key::idle("train.next_sample_timesteps", kPartOf),
                            Key::refused("train.noise_multiplier", "1.0", ""),
                            Key::setting("train.noise_offset", "noise_offset"),
                            Key::together("train.noise_scheduler"),
                            Key::refused("train.noisy_latent_multiplier", "1.0", ""),
                            Key::refused("train.num_train_timesteps", "1000", ""),
                            Key::refused("train.optimal_noise_pairing_samples", "1", ""),
                            Key::together("train.optimizer"),
                            Key::together("train.optimizer_params.amsgrad"),
                            Key::together("train.optimizer_params.beta3"),
                            Key::together("train.optimizer_params.betas"),
                            Key::together("train.optimizer_params.clip_threshold"),
                            Key::together("train.optimizer_params.d0"),
                            Key::together("train.optimizer_params.d_coef"),
                            Key::together("train.optimizer_params.decay_rate"),
                            Key::together("train.optimizer_params.decouple"),
                            Key::together("train.optimizer_params.eps"),
                            Key::together("train.optimizer_params.growth_rate"),
                            Key::together("train.optimizer_params.is_paged"),
                            Key::together("train.optimizer_params.min_8bit_size"),
                            Key::together("train.optimizer_params.percentile_clipping"),
                            Key::together("train.optimizer_params.relative_step"),
                            Key::together("train.optimizer_params.safeguard_warmup"),
                            Key::together("train.optimizer_params.scale_parameter"),
                            Key::together("train.optimizer_params.slice_p"),
                            Key::together("train.optimizer_params.use_bias_correction"),
                            Key::together("train.optimizer_params.warmup_init"),
                            Key::together("train.optimizer_params.weight_decay"),
                            Key::idle("train.paramiter_swapping_factor", kPartOf),
                            Key::refused("train.pred_scaler", "1.0", ""),
                            Key::refused("train.prompt_dropout_prob", "0.0", ""),
                            Key::refused("train.prompt_saturation_chance", "0.0", ""),
                            Key::refused("train.random_noise_multiplier", "0.0", ""),
                            Key::refused("train.random_noise_shift", "0.0", ""),
                            Key::idle("train.refiner_lr", kPartOf),
                            Key::setting("train.reg_weight", "prior_loss_weight"),
                            Key::idle("train.sdp", kFused),
                            Key::refused("train.short_and_long_captions", "false", ""),
                            Key::idle("train.short_and_long_captions_encoder_split", kPartOf),
                            Key::idle("train.show_turbo_outputs", kPartOf),
                            Key::idle("train.signal_amplification_strength", kPartOf),
                            Key::idle("train.signal_correction_noise_scale", kPartOf),
                            Key::refused("train.single_item_batching", "false", ""),
                            Key::idle("train.skip_first_sample", kFirst),
                            Key::refused("train.snr_gamma", "0", kUnbounded),
                            Key::refused("train.standardize_images", "false", ""),
                            Key::refused("train.standardize_latents", "false", ""),
                            Key::refused("train.start_step", "", ""),
                            Key::setting("train.steps", "steps"),
                            Key::idle("train.switch_boundary_every", kPartOf),
                            Key::refused("train.t0_loss_target", "false", ""),
                            Key::refused("train.t0_velocity_equiv_weight", "false", ""),
                            Key::refused("train.target_noise_multiplier", "1.0", ""),
                            Key::refused("train.target_norm_std", "", ""),
                            Key::idle("train.target_norm_std_value", kPartOf),
                            Key::together("train.text_encoder_lr"),
                            Key::together("train.timestep_type"),
                            Key::idle("train.train_refiner", kPartOf),
                            Key::together("train.train_text_encoder"),
                            Key::refused("train.train_turbo", "false", ""),
                            Key::together("train.train_unet"),
                            Key::idle("train.unconditional_prompt", kPartOf),
                            Key::together("train.unet_lr"),
                            Key::idle("train.unload_text_encoder", kOwnLoading),
                            Key::refused("train.validation_config", "", ""),
                            Key::refused("train.weight_jitter", "0.0", ""),
                            Key::idle("train.xformers", kFused),
                            Key::together("training_folder"),
                            Key::setting("trigger_word", "trigger_word"),
                            Key::together("type")};

// Parts of a job of which what has no row means nothing here.
struct IdlePart {
  std::string_view prefix, why;
};
constexpr IdlePart kIdleParts[] = {{"logging.", kOwnLogs}, {"meta.", "Wick's files have no such field"}};

// Parts that Wick cannot honour.
constexpr std::string_view kRefusedParts[] = {"adapter.",
                                              "decorator.",
                                              "embedding.",
                                              "guidance.",
                                              "slider.",
                                              "network.lorm.",
                                              "model.model_kwargs.",
                                              "model.model_paths.",
                                              "model.quantize_kwargs.",
                                              "train.validation_config.",
                                              "train.lr_scheduler_params."};

constexpr std::string_view kOptimizerParams = "train.optimizer_params.";
// Those of toolkit/optimizer.py that Wick has.
constexpr std::string_view kJobOptimizers[] = {"adam", "adamw",    "adam8bit",  "adamw8bit",
                                               "lion", "lion8bit", "adafactor", "prodigy"};

enum class JobModel { sdxl, sd3, flux };

class AiToolkitReader : private ForeignReader {
 public:
  explicit AiToolkitReader(const std::filesystem::path& file)
      : ForeignReader(file.string(), "ai-toolkit", kJobKeys), tree_(read_option_tree(file)) {}

  ForeignConfig operator()() {
    add_all();
    read_parts();
    attempt([&] { settle_model(); });
    if (model_ != JobModel::flux && has("train.cfg_scale")) drop("train.cfg_scale", "is for FLUX");
    set_defaults();
    begin_folders(datasets_);
    read_table();
    attempt([&] { settle_job(); });
    attempt([&] { settle_data(); });
    attempt([&] { settle_network(); });
    attempt([&] { settle_targets(); });
    attempt([&] { settle_optimizer(); });
    attempt([&] { settle_schedule(); });
    attempt([&] { settle_average(); });
    attempt([&] { settle_loss(); });
    attempt([&] { settle_times(); });
    settle_folders("datasets");
    attempt([&] { settle_range(); });
    attempt([&] { settle_samples(); });
    return finish();
  }

 private:
  using Json = nlohmann::ordered_json;

  // [name] stands for the job's name in all strings.
  Json named(const Json& value) const {
    Json changed = value;
    if (!value.is_string()) return changed;
    std::string text = value.get<std::string>();
    for (size_t at = text.find("[name]"); at != text.npos && !name_.empty();
         at = text.find("[name]", at + name_.size()))
      text.replace(at, std::string_view("[name]").size(), name_);
    return text;
  }

  void add_tree(const std::string& path, const Json& value) {
    const bool has_parts = value.is_object() || (value.is_array() && !value.empty() && value.front().is_object());
    if (!has_parts || value.empty()) return add(path, named(value));
    size_t i = 0;
    for (const auto& [key, item] : value.items()) {
      if (value.is_object())
        add_tree(path.empty() ? key : path + "." + key, item);
      else
        add_tree(fmt::format("{}[{}]", path, i++), item);
    }
  }

  // The keys of the first process, and those beside it.
  void add_all() {
    const Json& config = tree_["config"];
    check_usage(config.is_object() && config.contains("process") && config["process"].is_array() &&
                    config["process"].size() == 1 && config["process"][0].is_object(),
                "{}: config.process: expected a list of one process", file());
    if (config.contains("name") && config["name"].is_string()) name_ = config["name"].get<std::string>();
    for (const auto& [key, value] : tree_.items())
      if (key != "config") add_tree(key, value);
    for (const auto& [key, value] : config.items())
      if (key != "process") add_tree("config." + key, value);
    for (const auto& [key, value] : config["process"][0].items())
      if (key == "datasets" && value.is_array() && !value.empty())
        add_datasets(value);
      else
        add_tree(key, value);
  }

  void add_datasets(const Json& datasets) {
    for (const Json& dataset : datasets) add_tree(fmt::format("datasets[{}]", datasets_++), dataset);
  }

  void read_parts() {
    for (const std::string& key : keys()) {
      for (const IdlePart& part : kIdleParts)
        if (key.starts_with(part.prefix) && std::ranges::find(kJobKeys, key, &Key::key) == std::end(kJobKeys))
          drop(key, std::string(part.why));
      for (const std::string_view part : kRefusedParts)
        if (key.starts_with(part) && has(key) && key != "train.lr_scheduler_params.num_warmup_steps")
          attempt([&] { refuse(key, "Wick has no such setting; leave it out"); });
    }
  }

  void settle_model() {
    const std::string arch = text("model.arch", is_set("model.is_flux") ? "flux"
                                                : is_set("model.is_v3") ? "sd3"
                                                : is_set("model.is_xl") ? "sdxl"
                                                                        : "sd1");
    const std::string kind = arch.substr(0, arch.find(':'));
    if (kind == "flux")
      model_ = JobModel::flux;
    else if (kind == "sd3")
      model_ = JobModel::sd3;
    else if (kind != "sdxl")
      refuse(has("model.arch") ? "model.arch" : "",
             fmt::format("model.arch: Wick trains SDXL (sdxl), SD3 (sd3) and FLUX.1 (flux), found {}", quote(kind)));
    is_for(kind == "flux" ? "FLUX" : kind == "sd3" ? "SD3" : "SDXL", has("model.arch") ? "model.arch" : "model");
  }

  // Where the file says nothing.
  void set_defaults() {
    config_.steps = 1000;
    config_.save_every = 1000;
    config_.keep_last = 5;
    config_.save_dtype = DType::f16;
    config_.gradient_checkpointing = true;
    config_.resolution = {512};
    config_.no_upscale = true;  // its buckets never scale pictures up
    config_.bucket_step = 64;
    config_.train_guidance = 1;
    config_.caption_extension = ".txt";
  }

  void settle_job() {
    const std::string job = text("job", ""), type = text("type", "");
    if (job != "extension" && job != "train") refuse_value("job", "extension or train, which trains", job);
    if (type != "sd_trainer" && type != "diffusion_trainer" && type != "ui_trainer")
      refuse_value("type", "sd_trainer or diffusion_trainer", type);
    const std::string folder = text("training_folder", "output");
    set("output", folder + "/" + name_, has("training_folder") ? "training_folder" : "config.name");
    set("name", name_, "config.name");
    claim("config.name", "output");
    set("model", text("model.name_or_path", ""), "model.name_or_path");
    if (is_set("model.is_v_pred")) set("prediction", "v", "model.is_v_pred");
    if (is_set("model.quantize")) settle_quantize();
    const char* key =
        has("train.gradient_accumulation") ? "train.gradient_accumulation" : "train.gradient_accumulation_steps";
    if (has(key)) set("accumulate", text(key, "1"), key);
  }

  void settle_quantize() {
    const std::string type = text("model.qtype", "qfloat8");
    if (type == "qfloat8" || type == "float8")
      set("quantize", "fp8", "model.quantize");
    else if (type == "qint8" || type == "int8" || type == "uint8")
      set("quantize", "int8", "model.quantize");
    else
      refuse_value("model.qtype", "qfloat8, float8 or qint8; --quantize has nf4 and GGUF's types", type);
    claim("model.qtype", "quantize");
    remark("model.quantize: Wick's types of 8 bits have scales for each row, and T5 is not quantised.");
  }

  void settle_data() {
    if (datasets_ == 0) refuse("", "datasets: expected a folder of pictures, found none");
    for (size_t i = 0; i < datasets_; ++i)
      attempt([&] { settle_dataset(fmt::format("datasets[{}].", i), folders()[i]); });
  }

  // Folders within are read too.
  void settle_dataset(const std::string& path, PictureSection& folder) {
    const std::string key = path + (has(path + "folder_path") ? "folder_path" : "dataset_path");
    if (!has(key)) refuse("", path + "folder_path is missing");
    set("dataset", text(key, ""), key);
    folder.image_dir = text(key, "");
    folder.recursive = true;
    folder.is_reg = is_set(path + "is_reg");
    folder.repeats = whole_number(path + "num_repeats", kMaxRepeats);
    folder.loss_weight = number(path + "loss_multiplier", 1);
    if (!(folder.loss_weight >= 0 && folder.loss_weight <= kMaxLossWeight))
      refuse_value(path + "loss_multiplier", fmt::format("a number from 0 to {}", kMaxLossWeight),
                   text(path + "loss_multiplier", ""));
    const std::string ending_key = path + (has(path + "caption_type") ? "caption_type" : "caption_ext");
    if (has(ending_key)) {
      const std::string ending = text(ending_key, "");
      set("caption_extension", (ending.starts_with('.') ? "" : ".") + ending, ending_key);
    }
    if (is_set(path + "shuffle_tokens") && number(path + "keep_tokens", 0) > 0)
      remark(path + "keep_tokens: ai-toolkit shuffles these tags too; here they stay where they are.");
    settle_masks(path, folder);
  }

  int64_t whole_number(const std::string& key, int64_t most) const {
    const double value = number(key, 1);
    if (!(value >= 1 && value <= double(most)) || value != std::floor(value))
      refuse_value(key, fmt::format("an integer from 1 to {}", most), text(key, ""));
    return int64_t(value);
  }

  void settle_masks(const std::string& path, PictureSection& folder) {
    const bool has_alpha = is_set(path + "alpha_mask"), has_folder = has(path + "mask_path");
    if (has_alpha) set("alpha_mask", "true", path + "alpha_mask");
    if (has_folder) {
      set("conditioning_data_dir", text(path + "mask_path", ""), path + "mask_path");
      folder.masks = text(path + "mask_path", "");
    }
    if (!has_alpha && !has_folder) return;
    config_.masked_loss = true;
    if (is_set(path + "invert_mask")) refuse(path + "invert_mask", "Wick has masks whose white counts; invert them");
    if (number(path + "mask_min_value", 0) != 0)
      refuse(path + "mask_min_value", "Wick's masks begin at 0; make black a grey of this value in them");
  }

  // SD3's and FLUX's files have no alpha there: the scale is 1.
  void settle_network() {
    const std::string type = text("network.type", "lora");
    if (type != "lora" && type != "locon" && type != "lokr" && type != "dora")
      refuse_value("network.type", "lora, locon, dora or lokr", type);
    const char* key = has("network.rank") ? "network.rank" : "network.linear";
    const std::string rank = text(key, "4");
    set("rank", rank, key);
    const char* alpha_key = has("network.linear_alpha") ? "network.linear_alpha" : "network.alpha";
    const bool is_scaled = model_ == JobModel::sdxl;
    set("alpha", is_scaled ? text(alpha_key, "1") : rank, alpha_key);
    if (has("network.conv")) settle_convolutions();
    if (has("network.pretrained_lora_path")) {
      set("from", text("network.pretrained_lora_path", ""), "network.pretrained_lora_path");
      config_.rank = 0, config_.alpha = 0, config_.conv_rank = 0, config_.conv_alpha = 0;
      return;
    }
    set("adapter", type == "locon" ? "lora" : type, "network.type");
    config_.split_qkv = model_ != JobModel::sdxl;  // its models are diffusers'
    if (type == "lokr") return settle_lokr();
    if (type == "dora") config_.dora_on_output = true;
    if (!has("network.dropout")) return;
    if (type == "dora" && number("network.dropout", 0) != 0)
      refuse("network.dropout", "Wick has dropouts for a LoRA alone, found a dora");
    set("lora_dropout", text("network.dropout", ""), "network.dropout");
  }

  // Of full rank unless told otherwise: convolutions too.
  void settle_lokr() {
    if (has("network.dropout")) drop("network.dropout", "ai-toolkit's LoKr has none");
    if (number("network.lokr_factor", -1) != -1)
      set("lokr_factor", text("network.lokr_factor", ""), "network.lokr_factor");
    const bool is_full = is_set("network.lokr_full_rank", true);
    set("lokr_full", is_full ? "true" : "false", "network.lokr_full_rank");
    if (!is_full || model_ != JobModel::sdxl) return;
    config_.conv_rank = config_.rank.value, config_.conv_alpha = double(config_.rank.value);
  }

  void settle_convolutions() {
    if (model_ != JobModel::sdxl) {
      for (const char* key : {"network.conv", "network.conv_alpha"})
        if (has(key)) drop(key, "the model has no convolutions to train");
      return;
    }
    const std::string rank = text("network.conv", "");
    set("conv_rank", rank, "network.conv");
    set("conv_alpha", text("network.conv_alpha", rank),
        has("network.conv_alpha") ? "network.conv_alpha" : "network.conv");
  }

  // SDXL: all linears and convolutions of one pixel in the UNet, and those of more where network.conv says so.
  void settle_targets() {
    const std::string base = text("train.lr", "1e-6"), rate = text("train.unet_lr", base);
    const char* key = has("train.unet_lr") ? "train.unet_lr" : "train.lr";
    set("lr", rate, key);
    if (!is_set("train.train_unet", true))
      refuse("train.train_unet", "Wick trains the denoiser with such a file, found false");
    claim("train.train_unet", "targets");
    const bool trains_text = is_set("train.train_text_encoder");
    if (trains_text && model_ != JobModel::sdxl)
      refuse("train.train_text_encoder", "Wick reads it of SDXL alone; --targets names text encoders");
    if (!config_.from.empty()) return;
    settle_denoiser_targets();
    if (!trains_text) return;
    claim("train.train_text_encoder", "targets");
    for (const char* encoder : {"text_encoder.*", "text_encoder_2.*"}) {
      config_.targets.push_back(std::string(encoder) + "layers.*");
      const auto value = number_of(text("train.text_encoder_lr", base));
      if (!value || !(*value > 0 && *value <= 1e38))
        refuse_value("train.text_encoder_lr", "a rate above 0", text("train.text_encoder_lr", base));
      if (*value != config_.lr.value) config_.lr.others.push_back({encoder, *value});
    }
    claim("train.text_encoder_lr", "lr");
  }

  // Modules with one of some words in their names, none outside the blocks, and without those of other words.
  void settle_denoiser_targets() {
    constexpr const char *kOnly = "network.network_kwargs.only_if_contains",
                         *kIgnored = "network.network_kwargs.ignore_if_contains";
    const bool is_sdxl = model_ == JobModel::sdxl, in_blocks = is_set("network.transformer_only", true);
    claim("network.transformer_only", "targets");
    std::vector<std::string> targets;
    if (has(kOnly))
      for (const std::string& word : words(kOnly)) targets.push_back(pattern_for(kOnly, word));
    else if (is_sdxl || !in_blocks)
      targets = {is_sdxl ? "unet.*" : "transformer.*"};
    else if (has(kIgnored))
      targets = model_ == JobModel::flux
                    ? std::vector<std::string>{"transformer.double_blocks.*", "transformer.single_blocks.*"}
                    : std::vector<std::string>{"transformer.joint_blocks.*"};
    if (is_sdxl && config_.conv_rank == 0)
      for (const char* pattern :
           {"-unet.conv_in", "-unet.conv_out", "-unet.*.conv1", "-unet.*.conv2", "-unet.*samplers.*.conv"})
        targets.push_back(pattern);
    if (!is_sdxl && in_blocks && has(kOnly)) {
      targets.push_back(model_ == JobModel::flux ? "-transformer.*_in*" : "-transformer.*embedder*");
      targets.push_back("-transformer.final_layer.*");
    }
    if (has(kIgnored))
      for (const std::string& word : words(kIgnored)) targets.push_back("-" + pattern_for(kIgnored, word));
    for (const char* key : {kOnly, kIgnored})
      if (has(key)) claim(key, "targets");
    config_.targets = targets;
  }

  std::string pattern_for(std::string_view key, const std::string& word) const {
    const DiffusersModel model = model_ == JobModel::sdxl   ? DiffusersModel::sdxl
                                 : model_ == JobModel::flux ? DiffusersModel::flux
                                                            : DiffusersModel::sd3;
    const auto pattern = pattern_of_word(model, word);
    if (!pattern)
      refuse(key, fmt::format("{} is in Wick's names of other modules too; --targets names modules", quote(word)));
    const std::string prefix = model_ == JobModel::sdxl ? "unet." : "transformer.";
    return word.starts_with(prefix) ? word + "*" : prefix + *pattern;
  }

  void settle_optimizer() {
    std::string name = text("train.optimizer", "adamw");
    std::ranges::transform(name, name.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
    if (name.starts_with("prodigy8bit")) remark("train.optimizer: Wick's Prodigy keeps its states in 32 bits.");
    if (name.starts_with("prodigy")) name = "prodigy";  // so does ai-toolkit
    const OptimizerClass* known = find_optimizer_class(name);
    if (std::ranges::find(kJobOptimizers, name) == std::end(kJobOptimizers))
      refuse_value("train.optimizer", expected_optimizer_class(name), name);
    set_optimizer_class(config_, *known);
    claim("train.optimizer", "optimizer");
    config_.adafactor_relative_step = config_.adafactor_scale_parameter = false;
    const bool has_own_eps = known->kind == OptimizerKind::adamw || known->kind == OptimizerKind::adamw8bit ||
                             known->kind == OptimizerKind::prodigy;
    if (has_own_eps) config_.eps = {1e-6};
    for (const std::string& key : keys())
      if (key.starts_with(kOptimizerParams) && has(key))
        attempt([&] { settle_optimizer_argument(*known, key, has_own_eps); });
    if (known->kind != OptimizerKind::prodigy) return;
    if (config_.lr.value < 0.1) {
      config_.lr.value = 1;
      remark("train.lr: below 0.1 ai-toolkit's Prodigy takes 1.");
    }
    if (!config_.lr.others.empty())
      refuse("train.text_encoder_lr", "Prodigy finds one rate for all; expected that of train.lr");
  }

  void settle_optimizer_argument(const OptimizerClass& known, const std::string& key, bool has_own_eps) {
    const std::string name = key.substr(kOptimizerParams.size());
    if (name == "eps" && has_own_eps) refuse(key, "ai-toolkit gives 1e-06 itself, and fails where it is given again");
    const OptimizerArgument read = read_optimizer_argument(config_, known, name, words(key));
    if (!read.refusal.empty()) refuse(key, printable(read.refusal));
    if (!read.setting.empty()) set(read.setting, read.words, key);
    if (config_.adafactor_relative_step)
      refuse(key, "ai-toolkit gives Adafactor a rate, which it refuses beside relative steps; expected false");
  }

  void settle_schedule() {
    const std::string name = text("train.lr_scheduler", "constant");
    if (name == "constant_with_warmup") {
      set("lr_schedule", "constant", "train.lr_scheduler");
      return set("warmup", text("train.lr_scheduler_params.num_warmup_steps", "1000"), "train.lr_scheduler");
    }
    if (name == "linear")
      refuse("train.lr_scheduler",
             "linear climbs there from a third of the rate to all of it; Wick has no such schedule");
    if (name != "constant" && name != "cosine" && name != "cosine_with_restarts")
      refuse_value("train.lr_scheduler", "constant, constant_with_warmup, cosine or cosine_with_restarts", name);
    // Restarts come after all of the steps there.
    set("lr_schedule", name == "constant" ? name : "cosine", "train.lr_scheduler");
  }

  void settle_average() {
    if (!is_set("train.ema_config.use_ema")) return;
    set("ema", text("train.ema_config.ema_decay", "0.999"), "train.ema_config.use_ema");
    claim("train.ema_config.ema_decay", "ema");
    config_.ema_warmup = AverageWarmup::none;
  }

  void settle_loss() {
    const std::string loss = text("train.loss_type", "mse");
    if (loss != "mse" && loss != "mae") refuse_value("train.loss_type", "mse or mae", loss);
    set("loss_type", loss == "mse" ? "l2" : "l1", "train.loss_type");
    if (number("train.min_snr_gamma", 0) == 0) return;
    if (model_ != JobModel::sdxl) refuse("train.min_snr_gamma", "is for SDXL");
    set("min_snr_gamma", text("train.min_snr_gamma", ""), "train.min_snr_gamma");
  }

  // As custom_flowmatch_sampler.py has them; SDXL's are uniform.
  void settle_times() {
    const std::string balance = text("train.content_or_style", "balanced");
    if (balance != "balanced") refuse_value("train.content_or_style", "balanced", balance);
    const std::string scheduler = text("train.noise_scheduler", "ddpm");
    if ((scheduler == "flowmatch") == (model_ == JobModel::sdxl))
      refuse_value("train.noise_scheduler", model_ == JobModel::sdxl ? "ddpm, for SDXL" : "flowmatch", scheduler);
    if (model_ == JobModel::sdxl) return;
    if (is_set("train.linear_timesteps"))
      refuse("train.linear_timesteps", "Wick has no such weights of times; timestep_type: linear has the times");
    const std::string type = text("train.timestep_type", "sigmoid");
    const std::string_view key = "train.timestep_type";
    if (type == "sigmoid") {
      set("timestep_mean", "0", key);
      set("timestep_std", "1", key);
    } else if (type == "linear") {
      set("timesteps", "uniform", key);
      set("timestep_shift", "1", key);
    } else if (type == "shift" || type == "flux_shift") {
      set("timesteps", "uniform", key);
      set("timestep_shift", "auto", key);
    } else {
      refuse_value(key, "sigmoid, linear or shift", type);
    }
  }

  // Indices from min_denoising_steps to below max_denoising_steps, from noise downwards, with DDPM without those two
  // (process_general_training_batch() of BaseSDTrainProcess.py).
  void settle_range() {
    constexpr double kSteps = 1000;
    static constexpr const char *kLeast = "train.min_denoising_steps", *kMost = "train.max_denoising_steps";
    const double least = std::max(number(kLeast, 0), 0.0), most = std::min(number(kMost, kSteps - 1), kSteps - 1);
    const char* key = has(kMost) ? kMost : kLeast;
    const double begin = kSteps - most, end = kSteps - least;
    const bool is_ddpm = model_ == JobModel::sdxl;
    if (!(least <= most) || (is_ddpm && most > least && most - least <= 2))
      refuse_value(key, "more than two steps between them", fmt::format("{} to {}", least, most));
    const auto bound = [&](double from, double to) {
      set("min_timestep", fmt::format("{}", from), kMost);
      set("max_timestep", fmt::format("{}", to), kLeast);
    };
    if (is_ddpm) return least == most ? bound(end - 1, end - 1) : bound(begin + 1, end - 1);
    if (least == 0 && most == kSteps - 1) return;
    if (config_.timesteps != TimestepKind::uniform)
      refuse(key, "with timestep_type: sigmoid it takes a share of the times drawn; linear and shift have a range");
    bound(begin, end);
    set("timestep_range", "drawn", key);
  }

  // Previews read the job itself (foreign/samples.h).
  void settle_samples() {
    std::vector<std::string> all;
    bool has_prompt = false;
    for (const std::string& key : keys()) {
      if (!key.starts_with("sample.") || !has(key)) continue;
      all.push_back(key);
      has_prompt = has_prompt || key == "sample.prompts" || key.ends_with("].prompt");
    }
    const bool is_off = is_set("train.disable_sampling");
    if (is_off || !has_prompt) {
      for (const std::string& key : all) drop(key, is_off ? "disable_sampling is set" : "there are no prompts");
      return;
    }
    for (const std::string& key : all) set("sample_prompts", file(), key);
    set("sample_every", text("sample.sample_every", "100"), "sample.sample_every");
    try {
      read_foreign_samples(file());
    } catch (const Error& error) {
      refuse("", error.what());
    }
  }

  Json tree_;
  std::string name_;
  size_t datasets_ = 0;
  JobModel model_ = JobModel::sdxl;
};

}  // namespace

ForeignConfig explain_ai_toolkit(const std::filesystem::path& file) { return AiToolkitReader(file)(); }

std::span<const ForeignKey> ai_toolkit_keys() { return kJobKeys; }

}  // namespace wick
