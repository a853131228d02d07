// How adapters' files spell the tensors of a module: the module's base name and a suffix that tells the factor.
#pragma once

#include <optional>
#include <string_view>

#include "wick/nn/adapter_algorithm.h"

namespace wick {

struct AdapterKey {
  std::string_view module;
  std::string_view name;                        // "down", "up", or "alpha", which is no factor
  const AdapterAlgorithm* algorithm = nullptr;  // null of an alpha: several algorithms have one
  size_t factor = 0;                            // its place in AdapterAlgorithm::factors()
};

// None if the key is no tensor of an algorithm that Wick computes.
std::optional<AdapterKey> parse_adapter_key(std::string_view key);

// The algorithm which Wick does not compute that a key belongs to: "LoHa", "DoRA", … Empty if it is none that we know.
std::string_view other_lora_algorithm(std::string_view key);

// Whether a key is of an embedding that OneTrainer keeps in the LoRA's file.
bool is_bundled_embedding(std::string_view key);

// The module whose matrix PEFT keeps under this key beside a LoRA's factors: an embedding or the head
// (save_embedding_layers of peft/utils/save_and_load.py). Empty for any other key.
std::string_view module_of_base(std::string_view key);

}  // namespace wick
