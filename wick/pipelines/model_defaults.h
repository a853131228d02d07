// The settings with which models of pictures are drawn and trained by default: one table for program, documents
// (docs/defaults.md) and --help. Settings of training that all models share are TrainConfig's own.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "wick/pipelines/diffusion.h"

namespace wick {

struct ModelDefaults {
  std::string_view model;  // a KnownModel's name
  int64_t resolution;      // pixels of a square picture's side
  int64_t t5_tokens;       // that a text is cut or padded to; 0 for a model without T5
  DrawingDefaults drawing;
};

const std::vector<ModelDefaults>& model_defaults();
const ModelDefaults& defaults_of(std::string_view model);  // throws Error for one that the table lacks

inline constexpr std::pair<std::string_view, SamplerKind> kSamplers[] = {
    {"euler", SamplerKind::euler},         {"euler-ancestral", SamplerKind::euler_ancestral},
    {"dpmpp-2m", SamplerKind::dpmpp_2m},   {"dpmpp-2m-karras", SamplerKind::dpmpp_2m_karras},
    {"dpmpp-sde", SamplerKind::dpmpp_sde}, {"ddim", SamplerKind::ddim},
    {"unipc", SamplerKind::unipc},         {"lcm", SamplerKind::lcm}};
std::string_view name_of(SamplerKind kind);
// A model's defaults where that sampler draws it: lcm takes few steps, and no guidance.
DrawingDefaults drawn_by(SamplerKind sampler, DrawingDefaults defaults);

}  // namespace wick
