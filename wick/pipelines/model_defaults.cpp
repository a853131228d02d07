#include "wick/pipelines/model_defaults.h"

#include <algorithm>

#include "wick/core/error.h"

namespace wick {

// FLUX dev's steps and guidance are those of diffusers' FluxPipeline, schnell's of its model card; SD3 medium has those
// of diffusers' StableDiffusion3Pipeline, and SD3.5 what Stability draws it with (sd3.5, sd3_infer.py: CONFIGS). T5
// reads what the models were trained with.
const std::vector<ModelDefaults>& model_defaults() {
  constexpr SamplerKind kDpm = SamplerKind::dpmpp_2m;
  static const std::vector<ModelDefaults> all = {
      {"sdxl", 1024, 0, {.steps = 30, .cfg = 5}},
      {"flux-dev", 1024, 512, {.steps = 28, .cfg = 1, .guidance = 3.5f}},
      {"flux-schnell", 1024, 256, {.steps = 4, .cfg = 1}},
      {"flux-krea-dev", 1024, 512, {.steps = 28, .cfg = 1, .guidance = 3.5f}},
      {"sd3-medium", 1024, 256, {.steps = 28, .cfg = 7}},
      {"sd3.5-medium", 1024, 256, {.steps = 50, .cfg = 5, .sampler = kDpm}},
      {"sd3.5-large", 1024, 256, {.steps = 40, .cfg = 4.5f, .sampler = kDpm}},
      {"sd3.5-large-turbo", 1024, 256, {.steps = 4, .cfg = 1}},
  };
  return all;
}

const ModelDefaults& defaults_of(std::string_view model) {
  const auto found = std::ranges::find(model_defaults(), model, &ModelDefaults::model);
  check(found != model_defaults().end(), "{}: has no defaults", model);
  return *found;
}

DrawingDefaults drawn_by(SamplerKind sampler, DrawingDefaults defaults) {
  defaults.sampler = sampler;
  if (sampler == SamplerKind::lcm) defaults.steps = 4, defaults.cfg = 1;
  return defaults;
}

std::string_view name_of(SamplerKind kind) {
  return std::ranges::find(kSamplers, kind, &std::pair<std::string_view, SamplerKind>::second)->first;
}

}  // namespace wick
