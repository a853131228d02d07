// The transformer of SD3 and SD3.5: predicts the velocity from a picture's latent towards noise (a rectified flow),
// given text.
#pragma once

#include <set>

#include "wick/models/modulation.h"
#include "wick/models/sd3/config.h"

namespace wick {

struct Sd3Input {                  // floats, in the model's memory
  Tensor latents;                  // [B, h, w, channels]
  Tensor timestep;                 // [B] f32, 1000 sigma
  Tensor pooled;                   // [B, pooled_dim] of both CLIP encoders
  Tensor text;                     // [B, L, text_dim]
  Tensor positions;                // [h/2 w/2, hidden], of these latents
  Tensor modulations = {};         // [B, ...] of modulations(), or empty: they are made here
  Tensor ranges = {};              // i32 [B, L + h/2 w/2, 2]: tokens that each one sees, as for attention(); or empty
  std::set<int64_t> skipped = {};  // blocks that do nothing (skip-layer guidance); there may be no such blocks
};

class Sd3Transformer {
 public:
  Sd3Transformer(Scope s, const Sd3Config& config, const FlowTransformerOptions& options = {});
  Tensor operator()(const Sd3Input& in) const;  // [B, h, w, channels] f32

  bool modulates_ahead() const;  // as the options ask, unless an adapter trains what the vector is made of
  // [R, ...] on the host: Sd3Input::modulations of R times and pooled states.
  Tensor modulations(const Sd3Input& in) const;

  // [h/2 w/2, hidden] in the model's memory and the dtype of activations: the middle of the table, which is stored or
  // computed. Throws Error where it is too small.
  Tensor positions(int64_t height, int64_t width) const;

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

// The entry of the table of positions, `hidden` numbers: what files store.
std::vector<float> sd3_position(int64_t row, int64_t column, const Sd3Config& config);
// Does the table among the tensors (under Stability's names) agree, in some of its entries? True where there is none.
bool sd3_positions_agree(const TensorSource& tensors, const Sd3Config& config);

}  // namespace wick
