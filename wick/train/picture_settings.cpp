#include "wick/train/picture_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "wick/train/dataset_file.h"
#include "wick/train/latent_cache.h"

namespace wick {
namespace {

std::optional<double> number_or_auto(const std::string& text) {
  return text == "auto" ? std::nullopt : std::optional(std::stod(text));
}

// Fails where one of these settings is not at its default.
void refuse(const TrainConfig& config, std::initializer_list<std::string_view> keys, std::string why) {
  static const TrainConfig defaults;
  if (!config.preset.empty()) why += fmt::format("; is --preset {} for this model?", config.preset);
  for (const TrainOption& option : train_options())
    check_usage(std::ranges::find(keys, option.key) == keys.end() || option.toml(config) == option.toml(defaults),
                "{}: {}", option.flag(), why);
}

CaptionOptions caption_options(const TrainConfig& config) {
  return {.extension = config.caption_extension == "auto" ? "" : config.caption_extension,
          .lines = config.caption_lines,
          .first_line = config.caption_first_line,
          .prefix = config.caption_prefix,
          .suffix = config.caption_suffix,
          .trigger = config.trigger_word,
          .class_tokens = config.default_caption,
          .wildcards = config.enable_wildcard,
          .shuffle = config.shuffle_caption,
          .keep_tokens = config.keep_tokens,
          .keep_separator = config.keep_tokens_separator,
          .separator = config.caption_separator,
          .secondary_separator = config.secondary_separator,
          .dropout = config.caption_dropout,
          .tag_dropout = config.caption_tag_dropout_rate,
          .variants = config.caption_variants};
}

// Another family's preset has ranks and rates that were found for other blocks.
void check_preset(const TrainConfig& config, const Diffusion& model) {
  constexpr std::pair<std::string_view, std::string_view> kFamilies[] = {
      {"sdxl", "stable-diffusion-xl"}, {"sd3", "stable-diffusion-3"}, {"flux", "flux"}};
  const std::string architecture = model.lora().metadata.at("modelspec.architecture");
  for (const auto& [family, prefix] : kFamilies)
    check_usage(!config.preset.ends_with(family) || architecture.starts_with(prefix),
                "--preset {}: is for {}; {} is of {}", config.preset, family,
                config.model.empty() ? config.transformer : config.model,
                architecture.substr(0, architecture.rfind('/')));
}

}  // namespace

ReadingOptions reading_options(const TrainConfig& config) {
  return {.t5 = {.tokens = config.t5_tokens, .mask = config.t5_mask},
          .clip_chunks = config.max_token_length / TrainConfig::kClipTokens,
          .prediction = config.prediction};
}

std::optional<Quantization> quantization(const TrainConfig& config) {
  const auto dtype = quantized_dtype(config);
  return dtype ? std::optional(Quantization{*dtype, config.keep_precision}) : std::nullopt;
}

Objective objective(const TrainConfig& config) {
  const bool has_last = config.max_timestep != TrainConfig::kTimesteps;
  return {.times = {.kind = config.timesteps,
                    .shift = number_or_auto(config.timestep_shift),
                    .mean = number_or_auto(config.timestep_mean),
                    .deviation = config.timestep_std,
                    .first = config.min_timestep,
                    .last = has_last ? std::optional(config.max_timestep) : std::nullopt,
                    .range = config.timestep_range},
          .noise = {.offset = config.noise_offset,
                    .adaptive_offset = config.adaptive_noise_scale,
                    .pyramid_iterations = config.multires_noise_iterations,
                    .pyramid_discount = config.multires_noise_discount,
                    .input_gamma = config.ip_noise_gamma},
          .type = config.loss_type,
          .huber_schedule = config.huber_schedule,
          .huber_c = config.huber_c,
          .huber_scale = config.huber_scale,
          .min_snr_gamma = config.min_snr_gamma,
          .debiased = config.debiased_estimation_loss,
          .v_like_noise = config.scale_v_pred_loss_like_noise_pred,
          .weighting = config.weighting_scheme};
}

Resolutions bucket_options(const TrainConfig& config, const LatentSpace& space) {
  check_usage(!config.no_bucket || !config.no_upscale,
              "--no-upscale: gives small pictures buckets; --no-bucket has none");
  Resolutions all = bucket_options(space, config.resolution, !config.no_upscale, config.bucket_step);
  for (BucketOptions& options : all) {
    const Resolution size = options.resolution;
    options.one = config.no_bucket;
    if (options.one) {
      check_usage(size.width % space.bucket_step == 0 && size.height % space.bucket_step == 0,
                  "--resolution: expected multiples of {}, the least step of this model, with --no-bucket, found {}",
                  space.bucket_step, size.text());
      continue;
    }
    check_usage(config.min_bucket_reso <= size.shorter(),
                "--min-bucket-reso: expected at most {}, the resolution, found {}", size.shorter(),
                config.min_bucket_reso);
    check_usage(config.max_bucket_reso == 0 || config.max_bucket_reso >= size.longer(),
                "--max-bucket-reso: expected at least {}, the resolution, found {}", size.longer(),
                config.max_bucket_reso);
    options.min_side = config.min_bucket_reso;
    options.max_side = config.max_bucket_reso;
  }
  return all;
}

void apply(const TrainConfig& config, PictureSubset& subset) {
  subset.captions = caption_options(config);
  subset.augmentation = {.flip = config.flip_aug, .color = config.color_aug, .random_crop = config.random_crop};
  subset.alpha_mask = config.alpha_mask && !subset.is_reg;
  const int64_t seed = config.validation_seed >= 0 ? config.validation_seed : config.seed;
  if (!subset.is_reg) subset.split = {.held_back = config.validation_split, .seed = uint64_t(seed)};
  if (!subset.is_reg) return;
  subset.captions.trigger.clear();  // it names what is trained, and not its kind
  subset.loss_weight *= config.prior_loss_weight;
}

PictureSources picture_sources(const TrainConfig& config, const LatentSpace& space) {
  if (!config.datasets.empty()) return read_datasets(config, space);
  check(config.dataset.size() == 1,
        "--dataset: expected one folder of pictures, or one .toml file that names several, found {}",
        config.dataset.size());
  const std::filesystem::path path = config.dataset.front();
  check_usage(config.conditioning_data_dir.empty() || config.masked_loss,
              "--conditioning-data-dir: names masks of pictures; expected --masked-loss with it");
  if (is_dataset_file(path)) return read_dataset_file(path, config, space);
  PictureSubset subset{.folder = path, .source = "--dataset " + path.string()};
  apply(config, subset);
  subset.masks = config.conditioning_data_dir;
  PictureGroup group{.resolutions = bucket_options(config, space), .subsets = {subset}};
  if (!config.reg_data_dir.empty()) {
    const std::filesystem::path folder = config.reg_data_dir;
    PictureSubset regularising{
        .folder = folder, .source = "--reg-data-dir " + folder.string(), .name = folder.filename().string()};
    regularising.is_reg = true;
    apply(config, regularising);
    group.subsets.push_back(regularising);
  }
  return {.path = path, .groups = {group}};
}

namespace {

// Of --val, whose pictures are all held back.
PictureSources named_for_validation(const TrainConfig& config, const LatentSpace& space) {
  check_usage(config.val.size() == 1, "--val: expected one folder of pictures, or one .toml file, found {}",
              config.val.size());
  TrainConfig plain = config;
  plain.dataset = config.val;
  plain.datasets.clear();
  plain.reg_data_dir.clear();
  PictureSources sources = picture_sources(plain, space);
  for (PictureGroup& group : sources.groups)
    for (PictureSubset& subset : group.subsets)
      if (subset.split = {}; !is_dataset_file(sources.path)) subset.source = "--val " + sources.path.string();
  return sources;
}

// The share of the training's folders that is held back.
PictureSources split_for_validation(const TrainConfig& config, const LatentSpace& space) {
  PictureSources sources = picture_sources(config, space);
  sources.remarks.clear();
  for (PictureGroup& group : sources.groups) {
    std::erase_if(group.subsets, [](const PictureSubset& subset) { return subset.split.held_back == 0; });
    for (PictureSubset& subset : group.subsets) subset.split.validates = true;
  }
  std::erase_if(sources.groups, [](const PictureGroup& group) { return group.subsets.empty(); });
  return sources;
}

}  // namespace

PictureSources held_back_sources(const TrainConfig& config, const LatentSpace& space) {
  PictureSources sources =
      config.val.empty() ? split_for_validation(config, space) : named_for_validation(config, space);
  check_usage(config.train != TrainMode::vae || sources.groups.empty(), "{}: --train vae has no validation",
              config.val.empty() ? "--validation-split" : "--val");
  for (PictureGroup& group : sources.groups) {
    group.batch_size = 0;
    for (PictureSubset& subset : group.subsets) {
      subset.repeats = subset.loss_weight = 1;
      subset.captions.shuffle = subset.captions.lines = subset.is_reg = subset.alpha_mask = false;
      subset.captions.dropout = subset.captions.tag_dropout = 0;
      subset.captions.variants = 1;  // of wildcards
      subset.augmentation = {};
      subset.masks.clear();
    }
  }
  return sources;
}

void check_dataset(const TrainConfig& config, const Dataset& dataset) {
  const std::string source = dataset.sources.path.string();
  check_usage(!dataset.has_masks() || config.masked_loss || config.alpha_mask,
              "{}: names masks of pictures; expected --masked-loss with it", source);
  check_usage(dataset.has_masks() || !config.masked_loss,
              "--masked-loss: expected masks, by --alpha-mask, --conditioning-data-dir or a file of data sets");
  check_usage(dataset.sources.settings.empty() || (config.conditioning_data_dir.empty() && config.reg_data_dir.empty()),
              "{}: {} names such folders itself",
              config.reg_data_dir.empty() ? "--conditioning-data-dir" : "--reg-data-dir", source);
  bool is_regularised = false, is_plain = true;
  for (const PictureGroup& group : dataset.sources.groups)
    for (const PictureSubset& subset : group.subsets) {
      is_regularised = is_regularised || subset.is_reg;
      is_plain = is_plain && !subset.augmentation.any() && subset.loss_weight == 1 && !subset.has_masks();
    }
  check_usage(is_regularised || config.prior_loss_weight == 1,
              "--prior-loss-weight: expected pictures of regularisation, by --reg-data-dir or is_reg in a file");
  check_usage(is_plain || config.train != TrainMode::vae,
              "--train vae: its pictures are neither augmented nor weighed; found that for {}", source);
  check_usage(
      config.batch_size > 0 ||
          std::ranges::all_of(dataset.sources.groups, [](const PictureGroup& group) { return group.batch_size == 0; }),
      "--batch-size auto: {} says how many itself", source);
}

namespace {

void check_timesteps(const TrainConfig& config, const Diffusion& model) {
  const int64_t steps = model.process().train_steps(), last = std::min(config.max_timestep, TrainConfig::kTimesteps);
  check_usage(config.min_timestep <= last, "--min-timestep: expected at most {}, the --max-timestep, found {}", last,
              config.min_timestep);
  check_usage(config.min_timestep < steps, "--min-timestep: expected less than {}, the timesteps of {}, found {}",
              steps, config.model, config.min_timestep);
  check_usage(last == TrainConfig::kTimesteps || last <= steps,
              "--max-timestep: expected at most {}, the timesteps of {}, found {}", steps, config.model, last);
  if (config.min_timestep == 0 && last == TrainConfig::kTimesteps)
    refuse(config, {"timestep_range"}, "expected --min-timestep or --max-timestep with it");
}

}  // namespace

void check_settings(const TrainConfig& config, const Diffusion& model) {
  check(!model.process().is_distilled,
        "{}: {} is of a model distilled to draw in few steps, which this training would undo; train the model that it "
        "was made from",
        model.process().source, model.process().class_name);
  if (!config.preset.empty()) check_preset(config, model);
  if (model.process().is_flow())
    refuse(config, {"prediction", "min_snr_gamma", "debiased_estimation_loss", "scale_v_pred_loss_like_noise_pred"},
           config.model + " is a rectified flow, which predicts neither noise nor v");
  if (!model.process().is_flow())
    refuse(config,
           {"timesteps", "timestep_shift", "timestep_mean", "timestep_std", "timestep_range", "weighting_scheme"},
           config.model + " is no rectified flow");
  check_usage(!config.scale_v_pred_loss_like_noise_pred || model.process().is_flow() || model.process().predicts_v(),
              "--scale-v-pred-loss-like-noise-pred: expected a model that predicts v, or --prediction v or v-zero-snr; "
              "{} predicts noise",
              config.model);
  if (model.process().is_flow())
    refuse(config, {"max_token_length"}, "is for SDXL; found the rectified flow " + config.model);
  if (config.train != TrainMode::lora)
    refuse(config,
           {"metadata_title", "metadata_author", "metadata_description", "metadata_license", "metadata_tags",
            "metadata_trigger_phrase", "metadata_usage_hint", "training_comment", "no_metadata"},
           fmt::format("is of a LoRA's file; expected --train lora, found {}", name_of(config.train)));
  check_timesteps(config, model);
  if (!objective(config).has_huber())
    refuse(config, {"huber_schedule", "huber_c", "huber_scale"}, "expected --loss-type huber or smooth-l1 with it");
  if (config.noise_offset == 0) refuse(config, {"adaptive_noise_scale"}, "expected --noise-offset with it");
  if (config.multires_noise_iterations == 0)
    refuse(config, {"multires_noise_discount"}, "expected --multires-noise-iterations with it");
  if (config.train == TrainMode::vae)
    refuse(config,
           {"min_snr_gamma", "debiased_estimation_loss", "scale_v_pred_loss_like_noise_pred", "weighting_scheme",
            "loss_type", "noise_offset", "adaptive_noise_scale", "multires_noise_iterations", "ip_noise_gamma"},
           "--train vae has a loss of its own, without noise");
  if (config.timesteps != TimestepKind::logit_normal)
    refuse(config, {"timestep_mean", "timestep_std"}, "expected --timesteps logit-normal with it");
  if (!model.drawing_defaults().guidance)
    refuse(config, {"train_guidance"}, config.model + " is not told its guidance");
  if (model.t5_tokens() == 0) refuse(config, {"t5_tokens", "t5_mask"}, config.model + " has no T5");
}

}  // namespace wick
