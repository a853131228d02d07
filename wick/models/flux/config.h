// The sizes of FLUX.1's transformer (Black Forest Labs, 2024; dev, schnell, Krea-dev and pruned depths).
#pragma once

#include <array>

#include "wick/nn/checkpoint.h"

namespace wick {

struct FluxConfig {
  int64_t channels;  // of latents; a token holds 2 x 2 pixels of them
  int64_t heads, head_dim;
  int64_t text_dim, pooled_dim;
  int double_blocks, single_blocks;
  std::array<int64_t, 3> axes;  // features of a head that turn with each axis of a token's place
  bool guidance;                // the model is told its guidance: all but schnell

  int64_t hidden() const { return heads * head_dim; }
  int64_t token_dim() const { return 4 * channels; }
  static FluxConfig read(const Checkpoint& component);  // throws Error that names the model if it is another
};

}  // namespace wick
