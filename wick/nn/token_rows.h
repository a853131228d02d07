// Rows of an embedding's table or of a head that PEFT trained, a token each (trainable_token_indices): they take the
// place of the model's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wick/nn/adapter_algorithm.h"

namespace wick {

// The change that rows [n, dim] of these tokens make to a matrix `base` [count, dim] as a LoRA of rank n, which is
// exact; an empty base counts as zeros. `what` begins errors.
AdapterModule lora_of_token_rows(const std::string& name, const LoraTarget& target, const AdapterFactor& rows,
                                 const std::vector<int64_t>& tokens, const Tensor& base, const std::string& what);

}  // namespace wick
