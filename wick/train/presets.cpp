#include "wick/train/presets.h"

#include <algorithm>
#include <sstream>

#include "wick/core/error.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

// Logit-normal times of mean 0 and deviation 1 are the sigmoid of a normal number.
constexpr Preset kPresets[] = {
    {"kohya-sdxl", "the example of sd-scripts' docs/sdxl_train_network.md",
     "rank=32 alpha=16 lr=1e-4 optimizer=adamw8bit weight_decay=0.01 lr_schedule=constant warmup=0 max_grad_norm=1 "
     "loss_type=l2"},
    {"kohya-flux", "the example of sd-scripts' docs/flux_train_network.md",
     "rank=16 alpha=1 lr=1e-4 optimizer=adamw8bit weight_decay=0.01 lr_schedule=constant warmup=0 max_grad_norm=1 "
     "loss_type=l2 timesteps=logit-normal timestep_shift=auto timestep_std=1 weighting_scheme=none train_guidance=1"},
    {"kohya-sd3",
     "the example of sd-scripts' docs/sd3_train_network.md, whose sigma_sqrt undoes the sigma^2 of its loss",
     "rank=16 alpha=1 lr=1e-4 optimizer=adamw8bit weight_decay=0.01 lr_schedule=constant warmup=0 max_grad_norm=1 "
     "loss_type=l2 timesteps=uniform timestep_shift=1 weighting_scheme=none t5_tokens=256"},
    {"ai-toolkit-flux", "ai-toolkit's config/examples/train_lora_flux_24gb.yaml",
     "rank=16 alpha=16 lr=1e-4 optimizer=adamw8bit weight_decay=0.01 lr_schedule=constant warmup=0 max_grad_norm=1 "
     "ema=0.99 ema_warmup=none caption_dropout=0.05 loss_type=l2 timesteps=logit-normal timestep_mean=0 timestep_std=1 "
     "weighting_scheme=none train_guidance=1"},
    {"ai-toolkit-sd3", "ai-toolkit's config/examples/train_lora_sd35_large_24gb.yaml",
     "rank=16 alpha=16 lr=1e-4 optimizer=adamw8bit weight_decay=0.01 lr_schedule=constant warmup=0 max_grad_norm=1 "
     "ema=0.99 ema_warmup=none caption_dropout=0.05 loss_type=l2 timesteps=uniform timestep_shift=1 "
     "weighting_scheme=none"},
    {"onetrainer-sdxl", "OneTrainer's preset sdxl 1.0 LoRA",
     "rank=16 alpha=1 lr=3e-4 optimizer=adamw weight_decay=0.01 lr_schedule=constant warmup=200 max_grad_norm=1 "
     "loss_type=l2 noise_offset=0.05"},
    {"onetrainer-flux", "OneTrainer's preset flux LoRA and its TrainConfig.py",
     "rank=16 alpha=1 lr=3e-4 optimizer=adamw weight_decay=0.01 lr_schedule=constant warmup=200 max_grad_norm=1 "
     "loss_type=l2 timesteps=logit-normal timestep_shift=auto timestep_std=1 weighting_scheme=none train_guidance=1"},
    {"onetrainer-sd3", "OneTrainer's preset sd 3 LoRA and its TrainConfig.py",
     "rank=16 alpha=1 lr=3e-4 optimizer=adamw weight_decay=0.01 lr_schedule=constant warmup=200 max_grad_norm=1 "
     "loss_type=l2 timesteps=logit-normal timestep_mean=0 timestep_std=1 weighting_scheme=none"}};

}  // namespace

std::span<const Preset> presets() { return kPresets; }

void apply_preset(TrainConfig& config, const std::string& name) {
  const auto* found = std::ranges::find(kPresets, name, &Preset::name);
  if (found == std::end(kPresets)) {
    std::vector<std::string> names;
    for (const Preset& preset : kPresets) names.emplace_back(preset.name);
    fail_usage("--preset: there is none named {}{}", quote(name), did_you_mean(name, names));
  }
  std::istringstream words{std::string(found->settings)};
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    option_named(word.substr(0, equals)).set(config, {word.substr(equals + 1)});
  }
  config.preset = name;
}

}  // namespace wick
