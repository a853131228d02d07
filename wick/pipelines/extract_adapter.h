// A LoRA out of two checkpoints: the nearest one of a rank to what training changed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "wick/nn/checkpoint.h"
#include "wick/pipelines/adapter_file.h"

namespace wick {

struct Extraction {
  int64_t rank;
  std::vector<std::string> targets = {};  // beside the family's, its convolutions and text encoders: globs on module
                                          // paths as LoraConfig has them
  std::function<void(size_t done, size_t all)> on_module = {};
};

struct Extracted {
  AdapterFile lora;   // kohya's names, or PEFT's of a language model; f32, and alphas are ranks
  int64_t unchanged;  // targeted modules that are alike in both
  int64_t left_out;   // tensors that differ and that the LoRA does not hold: norms, biases, modules that no target fits
  double energy;      // the share of the squared difference of its modules that it holds
};

// Both are models of one family, in any layout; components that one of them lacks are left out. Reads a tensor of each
// at a time. Throws Error where the shapes differ or nothing does.
Extracted extract_lora(const Checkpoint& tuned, const Checkpoint& base, const Extraction& extraction);

}  // namespace wick
