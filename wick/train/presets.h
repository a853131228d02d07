// Conventions of other trainers, as settings that --preset sets.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/config.h"

namespace wick {

// Rates, ranks, alphas, losses and schedules; never resolutions, devices or steps.
struct Preset {
  std::string_view name;      // "kohya-flux"
  std::string_view source;    // where the tool says so
  std::string_view settings;  // as flags' keys and values, "rank=16 lr=1e-4"
};

std::span<const Preset> presets();
// Throws UsageError for a name that none has.
void apply_preset(TrainConfig& config, const std::string& name);

}  // namespace wick
