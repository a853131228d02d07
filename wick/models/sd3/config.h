// The sizes of SD3's transformer (Esser et al., 2024): SD3 medium, SD3.5 medium, large and large-turbo.
#pragma once

#include <vector>

#include "wick/nn/checkpoint.h"

namespace wick {

struct Sd3Config {
  int64_t channels;  // of latents; a token holds 2 x 2 pixels of them
  int64_t heads, head_dim;
  int64_t text_dim, pooled_dim;
  std::vector<bool> dual;  // a block: the picture attends to itself too
  bool qk_norm;
  int64_t table_side;   // tokens: the table of positions is a square
  int64_t native_side;  // tokens of a picture whose positions are 0, 1, 2, … (else they are fractions)

  int64_t hidden() const { return heads * head_dim; }
  static Sd3Config read(const Checkpoint& component);  // throws Error that names the model if it is another
};

}  // namespace wick
