#include "wick/train/lora_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>

#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/io/sha256.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

using Metadata = std::map<std::string, std::string>;
using nlohmann::json;

const char* python_bool(bool value) { return value ? "True" : "False"; }

std::string folder_name(const std::string& path) {
  const std::filesystem::path p(path);
  return p.has_filename() ? p.filename().string() : p.parent_path().filename().string();
}

// {folder: {tag: how often}}; tags are the texts between commas.
json tag_frequency(const Dataset& dataset) {
  json folders = json::object();
  for (const auto& [folder, examples] : dataset.subsets()) {
    json& tags = folders[folder] = json::object();
    for (const size_t i : examples) {
      for (const std::string& text : dataset.examples[i].captions) {
        std::istringstream caption(text);
        for (std::string tag; std::getline(caption, tag, ',');) {
          const size_t begin = tag.find_first_not_of(" \t\r\n"), end = tag.find_last_not_of(" \t\r\n");
          if (begin == std::string::npos) continue;
          json& count = tags[tag.substr(begin, end - begin + 1)];
          count = count.is_null() ? 1 : count.get<int64_t>() + 1;
        }
      }
    }
  }
  return folders;
}

json subset_info(const Dataset& dataset, const std::vector<size_t>& examples, const char* repeats) {
  return {{repeats, dataset.examples[examples.front()].repeats}, {"img_count", examples.size()}};
}

// {folder: its repeats and pictures}, once for each resolution: "cat", "cat (2)".
json dataset_dirs(const Dataset& dataset, size_t resolutions) {
  json folders = json::object();
  for (const auto& [folder, examples] : dataset.subsets())
    for (size_t i = 1; i <= resolutions; ++i)
      folders[i == 1 ? folder : fmt::format("{} ({})", folder, i)] = subset_info(dataset, examples, "n_repeats");
  return folders;
}

// The data set has one resolution.
json bucket_info(const Dataset& dataset) {
  json buckets = json::object();
  double error = 0;
  const auto shown = dataset.shown();
  for (const auto& [size, examples] : dataset.buckets()) {
    const std::string index = std::to_string(buckets.size());
    buckets[index] = {{"resolution", {size.width, size.height}}, {"count", shown.at(size).size()}};
    for (const size_t i : examples) {
      const Size picture = dataset.examples[i].size;
      error += std::abs(double(picture.width) / double(picture.height) - double(size.width) / double(size.height));
    }
  }
  return {{"buckets", buckets}, {"mean_img_ar_error", error / double(dataset.examples.size())}};
}

// The time that the environment sets, in UTC.
std::optional<int64_t> source_date_epoch() {
  const char* text = std::getenv("SOURCE_DATE_EPOCH");
  if (!text || !*text) return {};
  int64_t seconds = -1;
  const char* const last = text + std::strlen(text);
  const auto [end, error] = std::from_chars(text, last, seconds);
  constexpr int64_t kMost = 253402300799;  // the end of the year 9999
  check_usage(error == std::errc() && end == last && seconds >= 0 && seconds <= kMost,
              "SOURCE_DATE_EPOCH: expected seconds since 1970, found {}", quote(text));
  return seconds;
}

double seconds_now() {
  if (const auto fixed = source_date_epoch()) return double(*fixed);
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// datetime.fromtimestamp(int(seconds)).isoformat(): local time.
std::string iso_date(double seconds) {
  const auto whole = std::time_t(seconds);
  std::tm parts{};
  source_date_epoch() ? ::gmtime_r(&whole, &parts) : ::localtime_r(&whole, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts)};
}

// As accelerate names it: the dtype of the arithmetic, whatever weights are stored in.
const char* mixed_precision(DType activations) {
  return activations == DType::bf16 ? "bf16" : activations == DType::f16 ? "fp16" : "no";
}

// Whether some of a file's tensors are of that part.
bool has_part(const std::map<std::string, Tensor>& tensors, std::string_view prefix) {
  const auto found = tensors.lower_bound(std::string(prefix));
  return found != tensors.end() && found->first.starts_with(prefix);
}

// As LyCORIS' network module calls what its other kinds of adapters are.
json lycoris_arguments(const TrainConfig& c) {
  const AdapterKind kind = without_magnitudes(c.adapter);
  json all = {{"algo", name_of(kind)}};
  if (has_magnitudes(c.adapter)) all.update({{"dora_wd", "True"}, {"wd_on_out", c.dora_on_output ? "True" : "False"}});
  if (kind != AdapterKind::lokr) return all;
  all["factor"] = fmt::format("{}", c.lokr_factor > 0 ? c.lokr_factor : -1);
  if (c.lokr_full) all["full_matrix"] = "True";
  if (c.lokr_decompose_both) all["decompose_both"] = "True";
  if (c.lokr_unbalanced) all["unbalanced_factorization"] = "True";
  return all;
}

// As --network_args would have it: the rank and alpha for convolutions of more than one pixel, if any are trained, and
// dropout of ranks and modules.
std::string network_arguments(const TrainConfig& c, const std::map<std::string, Tensor>& tensors) {
  const bool convolutions = std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    const Tensor& factor = entry.second;
    return entry.first.ends_with(".lora_down.weight") && factor.rank() == 4 && factor.dim(2) * factor.dim(3) > 1;
  });
  json all = json::object();
  if (convolutions) {
    const int64_t rank = c.conv_rank > 0 ? c.conv_rank : c.rank.value;
    const double alpha = c.conv_alpha > 0 ? c.conv_alpha : c.conv_rank > 0 ? double(rank) : c.alpha.value;
    all = {{"conv_dim", fmt::format("{}", rank)},
           {"conv_alpha", fmt::format("{}", alpha)},
           {"dropout", c.lora_dropout > 0 ? json(c.lora_dropout) : json()}};
  }
  if (c.adapter != AdapterKind::lora) all.update(lycoris_arguments(c));
  if (c.rank_dropout > 0) all["rank_dropout"] = fmt::format("{}", c.rank_dropout);
  if (c.module_dropout > 0) all["module_dropout"] = fmt::format("{}", c.module_dropout);
  return all.dump();
}

// As kohya's tools write a network's size that differs between modules, or that a file had.
template <class T>
std::string network_size(const TrainConfig& c, const ByPattern<T>& size) {
  return c.from.empty() && size.others.empty() && size.value > 0 ? fmt::format("{}", size.value) : "Dynamic";
}

// Of a component: "unet".
std::string rate_of(const TrainConfig& c, std::string_view component) {
  return fmt::format("{}", c.lr.at(fmt::format("{}.", component)));
}

// Behind weight_decay: those that the run names, and those whose defaults here are not the class's.
std::string optimizer_arguments(const TrainConfig& c, const OptimizerRule& rule) {
  std::string all;
  const auto add = [&all](std::string_view name, const std::string& value) {
    all += fmt::format(",{}={}", name, value);
  };
  const auto add_changed = [&add](std::string_view name, double value, double otherwise) {
    if (value != otherwise) add(name, fmt::format("{}", value));
  };
  const bool is_prodigy = c.optimizer == OptimizerKind::prodigy, is_adafactor = c.optimizer == OptimizerKind::adafactor;
  if (is_adafactor) {
    add("relative_step", python_bool(c.adafactor_relative_step));
    add("scale_parameter", python_bool(c.adafactor_scale_parameter));
    add("warmup_init", python_bool(c.adafactor_warmup_init));
  }
  if (is_prodigy || !c.betas.empty()) add("betas", fmt::format("({}, {})", rule.beta1, rule.beta2));
  if (!c.eps.empty())
    add("eps", is_adafactor ? fmt::format("({}, {})", rule.adafactor.eps, rule.adafactor.scale_eps)
                            : fmt::format("{}", c.eps.front()));
  if (is_prodigy) {
    add("use_bias_correction", python_bool(c.prodigy_use_bias_correction));
    add("safeguard_warmup", python_bool(c.prodigy_safeguard_warmup));
    if (!c.prodigy_decouple) add("decouple", "False");
    if (c.betas.size() == 3) add("beta3", fmt::format("{}", c.betas[2]));
  }
  const TrainConfig otherwise;
  add_changed("d_coef", c.prodigy_d_coef, otherwise.prodigy_d_coef);
  add_changed("d0", c.prodigy_d0, otherwise.prodigy_d0);
  add_changed("growth_rate", c.prodigy_growth_rate, otherwise.prodigy_growth_rate);
  add_changed("slice_p", double(c.prodigy_slice_p), double(otherwise.prodigy_slice_p));
  add_changed("r", c.schedule_free_r, otherwise.schedule_free_r);
  add_changed("weight_lr_power", c.schedule_free_weight_lr_power, otherwise.schedule_free_weight_lr_power);
  add_changed("clip_threshold", c.adafactor_clip_threshold, otherwise.adafactor_clip_threshold);
  add_changed("decay_rate", c.adafactor_decay_rate, otherwise.adafactor_decay_rate);
  return all;
}

// The class with the module that sd-scripts takes it from, and its arguments.
std::string optimizer_class(const TrainConfig& c) {
  constexpr std::string_view kClasses[] = {"torch.optim.adamw.AdamW",
                                           "bitsandbytes.optim.adamw.AdamW8bit",
                                           "lion_pytorch.lion_pytorch.Lion",
                                           "bitsandbytes.optim.lion.Lion8bit",
                                           "transformers.optimization.Adafactor",
                                           "prodigyopt.prodigy.Prodigy",
                                           "schedulefree.adamw_schedulefree.AdamWScheduleFree",
                                           "schedulefree.radam_schedulefree.RAdamScheduleFree"};
  return fmt::format("{}(weight_decay={}{})", kClasses[size_t(c.optimizer)], c.weight_decay,
                     optimizer_arguments(c, OptimizerOptions::of(c).rule));
}

// As kohya's train_network.py says what the loss was; "None" is Python's.
Metadata objective_metadata(const TrainConfig& c) {
  const auto or_none = [](double value) { return value != 0 ? fmt::format("{}", value) : std::string("None"); };
  std::string loss_type(name_of(c.loss_type));
  std::ranges::replace(loss_type, '-', '_');
  return {{"ss_loss_type", loss_type},
          {"ss_huber_schedule", std::string(name_of(c.huber_schedule))},
          {"ss_huber_c", fmt::format("{}", c.huber_c)},
          {"ss_huber_scale", fmt::format("{}", c.huber_scale)},
          {"ss_min_snr_gamma", or_none(c.min_snr_gamma)},
          {"ss_debiased_estimation", python_bool(c.debiased_estimation_loss)},
          {"ss_noise_offset", or_none(c.noise_offset)},
          {"ss_adaptive_noise_scale", or_none(c.adaptive_noise_scale)},
          {"ss_multires_noise_iterations", or_none(double(c.multires_noise_iterations))},
          {"ss_multires_noise_discount", fmt::format("{}", c.multires_noise_discount)},
          {"ss_ip_noise_gamma", or_none(c.ip_noise_gamma)},
          {"ss_scale_weight_norms", or_none(c.scale_weight_norms)}};
}

Metadata run_metadata(const LoraRun& run, const std::map<std::string, Tensor>& tensors) {
  const TrainConfig& c = run.config;
  std::string schedule(name_of(c.lr_schedule));
  std::ranges::replace(schedule, '-', '_');
  const int64_t warmup = c.warmup.of(c.steps);
  Metadata all{
      {"ss_session_id", fmt::format("{}", run.session.id)},
      {"ss_training_started_at", float_text(run.session.started_at)},
      {"ss_training_finished_at", float_text(seconds_now())},
      {"ss_output_name", c.name},
      {"ss_steps", fmt::format("{}", run.step)},
      {"ss_max_train_steps", fmt::format("{}", c.steps)},
      {"ss_epoch", fmt::format("{}", run.epochs_done())},
      {"ss_num_epochs", fmt::format("{}", run.epochs())},
      {"ss_num_batches_per_epoch", fmt::format("{}", run.batches_per_epoch)},
      {"ss_seed", fmt::format("{}", c.seed)},
      {"ss_learning_rate", fmt::format("{}", c.lr.value)},
      {"ss_text_encoder_lr", has_part(tensors, "lora_te") ? rate_of(c, "text_encoder") : "None"},
      {"ss_clip_skip", "None"},
      {"ss_optimizer", optimizer_class(c)},
      {"ss_lr_scheduler", schedule == "constant" && warmup > 0 ? "constant_with_warmup" : schedule},
      {"ss_lr_warmup_steps", fmt::format("{}", warmup)},
      {"ss_max_grad_norm", fmt::format("{}", c.max_grad_norm)},
      {"ss_gradient_accumulation_steps", fmt::format("{}", c.accumulate)},
      {"ss_gradient_checkpointing", python_bool(c.gradient_checkpointing)},
      {"ss_mixed_precision", mixed_precision(run.activations)},
      {"ss_batch_size_per_device", fmt::format("{}", c.batch_size)},
      {"ss_total_batch_size", fmt::format("{}", c.batch_size * c.accumulate)},
      {"ss_sd_model_name", folder_name(c.model.empty() ? c.transformer : c.model)},
      {"ss_network_dim", network_size(c, c.rank)},
      {"ss_network_alpha", network_size(c, c.alpha)},
      {"ss_network_args", network_arguments(c, tensors)},
  };
  all.merge(objective_metadata(c));
  if (c.max_token_length > TrainConfig::kClipTokens) all["ss_max_token_length"] = fmt::format("{}", c.max_token_length);
  if (!c.training_comment.empty()) all["ss_training_comment"] = c.training_comment;
  if (c.adapter != AdapterKind::lora) all["ss_network_module"] = "lycoris.kohya";
  if (has_part(tensors, "lora_unet") || has_part(tensors, "lora_transformer")) all["ss_unet_lr"] = rate_of(c, "unet");
  return all;
}

// One word there for the density of times and the weight of their losses.
std::string weighting_scheme(const TrainConfig& c, TimestepKind kind) {
  const bool is_weighed = kind == TimestepKind::uniform && c.weighting_scheme != WeightingScheme::none;
  std::string name(is_weighed ? name_of(c.weighting_scheme) : name_of(kind));
  std::ranges::replace(name, '-', '_');
  return name;
}

// As sd3_train_network.py and flux_train_network.py of kohya-ss/sd-scripts would draw the same times: the former by the
// weighting scheme, the latter, where times are logit-normal, by timestep_sampling, with the mean as a shift.
Metadata flow_metadata(const TrainConfig& c, const FlowRun& flow) {
  const TimestepOptions& times = flow.times;
  const bool is_normal = times.kind == TimestepKind::logit_normal;
  std::optional<double> shift = times.shift;
  if (is_normal && times.mean) shift = std::exp(*times.mean);
  const double mean = times.mean.value_or(std::log(times.shift.value_or(1)));
  Metadata all{
      {"ss_weighting_scheme", weighting_scheme(c, times.kind)},
      {"ss_logit_mean", float_text(is_normal ? mean : 0)},
      {"ss_logit_std", float_text(times.deviation)},
      {"ss_mode_scale", float_text(kModeScale)},
      {"ss_timestep_sampling", !is_normal ? "sigma"
                               : shift    ? "shift"
                                          : "flux_shift"},
      {"ss_sigmoid_scale", float_text(times.deviation)},
      {"ss_discrete_flow_shift", shift ? float_text(*shift) : "None"},
      {"ss_model_prediction_type", "raw"},
      {"ss_apply_t5_attn_mask", python_bool(c.t5_mask)},
      {"ss_t5xxl_max_token_length", fmt::format("{}", flow.t5_tokens)},
  };
  if (flow.is_guided) all["ss_guidance_scale"] = float_text(c.train_guidance);
  return all;
}

// Kohya's ss_datasets: the same pictures at each resolution are a data set each.
json datasets(const LoraRun& run) {
  json all = json::array();
  const std::vector<PictureGroup>& groups = run.dataset.sources.groups;
  for (size_t i = 0; i < groups.size(); ++i)
    for (const BucketOptions& buckets : groups[i].resolutions) {
      const Dataset dataset = run.dataset.at(buckets.resolution, i);
      json subsets = json::array();
      for (const auto& [folder, examples] : dataset.subsets()) {
        subsets.push_back(subset_info(dataset, examples, "num_repeats"));
        subsets.back()["image_dir"] = folder;
      }
      all.push_back({{"is_dreambooth", true},
                     {"batch_size_per_device", groups[i].batch_size > 0 ? groups[i].batch_size : run.config.batch_size},
                     {"num_train_images", dataset.shown_count()},
                     {"num_reg_images", 0},
                     {"resolution", {buckets.resolution.width, buckets.resolution.height}},
                     {"enable_bucket", !run.config.no_bucket},
                     {"bucket_no_upscale", !buckets.upscale},
                     {"min_bucket_reso", buckets.shortest_side()},
                     {"max_bucket_reso", buckets.longest_side()},
                     {"tag_frequency", tag_frequency(dataset)},
                     {"bucket_info", bucket_info(dataset)},
                     {"subsets", subsets}});
    }
  return all;
}

Metadata dataset_metadata(const LoraRun& run) {
  const Dataset pictures = run.dataset.at();
  const PictureSources& sources = run.dataset.sources;
  const Resolutions& resolutions = sources.groups.front().resolutions;
  Metadata all{
      {"ss_num_train_images", fmt::format("{}", run.dataset.shown_count())},
      {"ss_num_reg_images", "0"},
      {"ss_dataset_dirs", dataset_dirs(pictures, resolutions.size()).dump()},
      {"ss_tag_frequency", tag_frequency(pictures).dump()},
      {"ss_bucket_no_upscale", python_bool(run.config.no_upscale)},
      {"ss_cache_latents", "True"},
      {"ss_network_dropout", fmt::format("{}", run.config.lora_dropout)},
      {"ss_caption_dropout_rate", fmt::format("{}", run.config.caption_dropout)},
      {"ss_caption_tag_dropout_rate", fmt::format("{}", run.config.caption_tag_dropout_rate)},
      {"ss_shuffle_caption", python_bool(run.config.shuffle_caption)},
      {"ss_flip_aug", python_bool(run.config.flip_aug)},
      {"ss_color_aug", python_bool(run.config.color_aug)},
      {"ss_random_crop", python_bool(run.config.random_crop)},
      {"ss_prior_loss_weight", fmt::format("{}", run.config.prior_loss_weight)},
      {"ss_keep_tokens", fmt::format("{}", run.config.keep_tokens)},
  };
  if (sources.groups.size() > 1 || resolutions.size() > 1) {
    all["ss_datasets"] = datasets(run).dump();
    return all;
  }
  const Resolution size = resolutions.front().resolution;
  all.merge(Metadata{{"ss_bucket_info", bucket_info(pictures).dump()},
                     {"ss_enable_bucket", run.config.no_bucket ? "False" : "True"},
                     {"ss_min_bucket_reso", fmt::format("{}", resolutions.front().shortest_side())},
                     {"ss_max_bucket_reso", fmt::format("{}", resolutions.front().longest_side())},
                     {"ss_resolution", fmt::format("({}, {})", size.width, size.height)}});
  return all;
}

Metadata modelspec(const LoraRun& run, const std::string& hash) {
  Resolution size;
  for (const PictureGroup& group : run.dataset.sources.groups)
    for (const BucketOptions& buckets : group.resolutions)
      size = std::max(size, buckets.resolution, [](Size a, Size b) { return a.width * a.height < b.width * b.height; });
  const TrainConfig& c = run.config;
  Metadata all{
      {"modelspec.sai_model_spec", "1.0.1"},
      {"modelspec.title", c.metadata_title.empty() ? c.name : c.metadata_title},
      {"modelspec.resolution", fmt::format("{}x{}", size.width, size.height)},
      {"modelspec.date", iso_date(seconds_now())},
      {"modelspec.hash_sha256", "0x" + hash},
      {"sshs_model_hash", hash},
  };
  for (const auto& [key, text] : {std::pair("author", &c.metadata_author),
                                  {"description", &c.metadata_description},
                                  {"license", &c.metadata_license},
                                  {"tags", &c.metadata_tags},
                                  {"trigger_phrase", &c.metadata_trigger_phrase},
                                  {"usage_hint", &c.metadata_usage_hint}})
    if (!text->empty()) all[fmt::format("modelspec.{}", key)] = *text;
  if (c.min_timestep != 0 || c.max_timestep != TrainConfig::kTimesteps)
    all["modelspec.timestep_range"] = fmt::format("{},{}", c.min_timestep, c.max_timestep);
  return all;
}

// Those that remain with no_metadata (sd-scripts, library/train_util.py: SS_METADATA_MINIMUM_KEYS).
bool is_of_network(std::string_view key) {
  static constexpr std::string_view kAll[] = {"ss_v2",          "ss_base_model_version", "ss_network_module",
                                              "ss_network_dim", "ss_network_alpha",      "ss_network_args"};
  return std::ranges::find(kAll, key) != std::end(kAll);
}

// sd-webui-additional-networks' first hash (sd-scripts, library/train_util.py: addnet_hash_legacy): over the 64 KiB
// behind the first MiB of a file with these metadata, over nothing for a shorter one.
std::string legacy_hash(const std::map<std::string, Tensor>& tensors, const Metadata& training) {
  constexpr uint64_t kBegin = 0x100000, kEnd = 0x110000;
  Sha256 hash;
  uint64_t offset = 0;
  safetensors_bytes(tensors, training, [&](std::string_view bytes) {
    const uint64_t end = offset + bytes.size(), from = std::clamp(kBegin, offset, end),
                   to = std::clamp(kEnd, from, end);
    hash.update(bytes.data() + (from - offset), size_t(to - from));
    offset = end;
  });
  return hash.hex().substr(0, 8);
}

}  // namespace

LoraSession LoraSession::begin(const TrainConfig& config) {
  const auto fixed = source_date_epoch();
  if (!fixed) return {seconds_now(), std::random_device()()};
  const std::string hash = sha256_hex(fmt::format("{} {} {}", *fixed, config.name, config.seed));
  return {double(*fixed), uint32_t(std::stoul(hash.substr(0, 8), nullptr, 16))};
}

int64_t LoraRun::epochs() const {
  return (config.steps * config.accumulate + batches_per_epoch - 1) / batches_per_epoch;
}

int64_t LoraRun::epochs_done() const {
  return step >= config.steps ? epochs() : step * config.accumulate / batches_per_epoch;
}

Metadata lora_metadata(const LoraRun& run, const std::map<std::string, Tensor>& tensors) {
  Metadata all = run_metadata(run, tensors), spec = modelspec(run, sha256_of_tensors(tensors));
  for (const auto& [key, value] : run.family) (key.starts_with("ss_") ? all : spec)[key] = value;
  all.merge(dataset_metadata(run));
  if (run.flow) all.merge(flow_metadata(run.config, *run.flow));
  if (run.config.no_metadata) std::erase_if(all, [](const auto& entry) { return !is_of_network(entry.first); });
  all["sshs_legacy_hash"] = legacy_hash(tensors, Metadata(all));
  all.merge(spec);
  return all;
}

}  // namespace wick
