#include "wick/train/lora_metadata.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "wick/io/safetensors.h"

namespace wick {
namespace {

using Metadata = std::map<std::string, std::string>;
using nlohmann::json;

const char* python_bool(bool value) { return value ? "True" : "False"; }

std::string folder_name(const std::string& path) {
  const std::filesystem::path p(path);
  return p.has_filename() ? p.filename().string() : p.parent_path().filename().string();
}

// {folder: {tag: how often}}; tags are what stands between commas.
json tag_frequency(const Dataset& dataset) {
  json folders = json::object();
  for (const auto& [folder, examples] : dataset.subsets()) {
    json& tags = folders[folder] = json::object();
    for (const size_t i : examples) {
      std::istringstream caption(dataset.examples[i].caption);
      for (std::string tag; std::getline(caption, tag, ',');) {
        const size_t begin = tag.find_first_not_of(" \t\r\n"), end = tag.find_last_not_of(" \t\r\n");
        if (begin == std::string::npos) continue;
        json& count = tags[tag.substr(begin, end - begin + 1)];
        count = count.is_null() ? 1 : count.get<int64_t>() + 1;
      }
    }
  }
  return folders;
}

json dataset_dirs(const Dataset& dataset) {
  json folders = json::object();
  for (const auto& [folder, examples] : dataset.subsets())
    folders[folder] = {{"n_repeats", dataset.examples[examples.front()].repeats}, {"img_count", examples.size()}};
  return folders;
}

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

Metadata run_metadata(const LoraRun& run) {
  const TrainConfig& c = run.config;
  static constexpr const char* kSchedules[] = {"constant", "linear", "cosine"};
  const std::string schedule = kSchedules[size_t(c.lr_schedule)];
  return {
      {"ss_output_name", c.name},
      {"ss_steps", fmt::format("{}", run.step)},
      {"ss_max_train_steps", fmt::format("{}", c.steps)},
      {"ss_epoch", fmt::format("{}", run.epoch)},
      {"ss_num_batches_per_epoch", fmt::format("{}", run.batches_per_epoch)},
      {"ss_seed", fmt::format("{}", c.seed)},
      {"ss_learning_rate", fmt::format("{}", c.lr)},
      {"ss_unet_lr", fmt::format("{}", c.lr)},
      {"ss_optimizer", fmt::format("AdamW(weight_decay={})", c.weight_decay)},
      {"ss_lr_scheduler", schedule == "constant" && c.warmup > 0 ? "constant_with_warmup" : schedule},
      {"ss_lr_warmup_steps", fmt::format("{}", c.warmup)},
      {"ss_max_grad_norm", fmt::format("{}", c.max_grad_norm)},
      {"ss_gradient_accumulation_steps", fmt::format("{}", c.accumulate)},
      {"ss_gradient_checkpointing", python_bool(c.gradient_checkpointing)},
      {"ss_mixed_precision", "no"},
      {"ss_loss_type", "l2"},
      {"ss_batch_size_per_device", fmt::format("{}", c.batch_size)},
      {"ss_total_batch_size", fmt::format("{}", c.batch_size * c.accumulate)},
      {"ss_sd_model_name", folder_name(c.model)},
  };
}

Metadata network_metadata(const TrainConfig& c) {
  return {
      {"ss_v2", "False"},
      {"ss_base_model_version", "sdxl_base_v1-0"},
      {"ss_network_module", "networks.lora"},
      {"ss_network_dim", fmt::format("{}", c.rank)},
      {"ss_network_alpha", fmt::format("{}", c.alpha)},
      {"ss_network_args", "{}"},
  };
}

Metadata dataset_metadata(const LoraRun& run) {
  const int64_t side = run.buckets.resolution;
  return {
      {"ss_num_train_images", fmt::format("{}", run.dataset.shown_count())},
      {"ss_num_reg_images", "0"},
      {"ss_dataset_dirs", dataset_dirs(run.dataset).dump()},
      {"ss_tag_frequency", tag_frequency(run.dataset).dump()},
      {"ss_bucket_info", bucket_info(run.dataset).dump()},
      {"ss_enable_bucket", "True"},
      {"ss_bucket_no_upscale", python_bool(run.config.no_upscale)},
      {"ss_min_bucket_reso", fmt::format("{}", side / 2)},
      {"ss_max_bucket_reso", fmt::format("{}", side * 2)},
      {"ss_resolution", fmt::format("({}, {})", side, side)},
      {"ss_cache_latents", "True"},
      {"ss_network_dropout", fmt::format("{}", run.config.lora_dropout)},
      {"ss_caption_dropout_rate", fmt::format("{}", run.config.caption_dropout)},
  };
}

Metadata modelspec(const LoraRun& run, const std::string& hash) {
  const int64_t side = run.buckets.resolution;
  return {
      {"modelspec.sai_model_spec", "1.0.1"},
      {"modelspec.architecture", "stable-diffusion-xl-v1-base/lora"},
      {"modelspec.implementation", "https://github.com/Stability-AI/generative-models"},
      {"modelspec.title", run.config.name},
      {"modelspec.resolution", fmt::format("{}x{}", side, side)},
      {"modelspec.prediction_type", "epsilon"},
      {"modelspec.hash_sha256", "0x" + hash},
      {"sshs_model_hash", hash},
  };
}

}  // namespace

Metadata sdxl_lora_metadata(const LoraRun& run, const std::map<std::string, Tensor>& tensors) {
  Metadata all = run_metadata(run);
  for (const Metadata& part :
       {network_metadata(run.config), dataset_metadata(run), modelspec(run, sha256_of_tensors(tensors))})
    all.insert(part.begin(), part.end());
  return all;
}

}  // namespace wick
