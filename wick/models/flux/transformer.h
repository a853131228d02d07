// The transformer of FLUX.1: predicts the velocity from a picture's latent towards noise (a rectified flow), given
// text.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "wick/models/flux/config.h"
#include "wick/models/modulation.h"

namespace wick {

// The place of a token: three axes. Text is at (0, 0, 0), a picture's token at (0, row, column).
using FluxPlaces = std::vector<std::array<float, 3>>;

struct FluxInput {          // floats, in the model's memory
  Tensor tokens;            // [B, N, token_dim]: pixels of a latent, two by two
  Tensor timestep;          // [B] f32, 1000 sigma
  Tensor guidance;          // [B] f32, as users give it; empty for a model that is not told it
  Tensor pooled;            // [B, pooled_dim] of CLIP
  Tensor text;              // [B, L, text_dim] of T5
  Rotary rotary;            // of the text's places and the tokens'
  Tensor modulations = {};  // [B, ...] of modulations(), where they are computed ahead; made here where there are none
  Tensor ranges = {};       // i32 [B, L + N, 2] of keys, or empty: every token sees all
};

class FluxTransformer {
 public:
  FluxTransformer(Scope s, const FluxConfig& config, const FlowTransformerOptions& options = {});
  Tensor operator()(const FluxInput& in) const;  // [B, N, token_dim] f32

  bool modulates_ahead() const;  // as the options ask, unless an adapter trains what the vector is made of
  // [R, ...] on the host: FluxInput::modulations of R times, guidances and pooled states.
  Tensor modulations(const FluxInput& in) const;

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

// Angles in double; their cosines and sines in f32.
Rotary flux_rotary(const FluxPlaces& places, const FluxConfig& config, Memory& memory);
// Latents [B, h, w, C] and tokens [B, h/2 w/2, 4 C], in which channels are slowest: feature 4 c + 2 row + column.
Tensor flux_tokens(const Tensor& latents);
Tensor flux_latents(const Tensor& tokens, int64_t height, int64_t width);
// Places of `text` tokens of text and of a latent's tokens behind them.
FluxPlaces flux_places(int64_t text, int64_t height, int64_t width);

}  // namespace wick
