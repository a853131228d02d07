// Optimizer states that are sharded over the ranks of a run, as in ZeRO's first stage (Rajbhandari et al., "ZeRO:
// Memory Optimizations Toward Training Trillion Parameter Models", 2020): each rank keeps the states of its share of
// the parameters and updates those; then all ranks get the new values from their owners.
#pragma once

#include <vector>

#include "wick/nn/weights.h"
#include "wick/train/config.h"
#include "wick/train/rank_sums.h"

namespace wick {

struct Shard {
  int rank = 0, count = 1;  // of the ranks that keep states of their own
};
// That of a run's rank. A LoRA's states are small, and Prodigy's estimate is a sum over all parameters: of those each
// rank keeps all.
Shard shard_of(const TrainConfig& config, int rank);

// The rank that owns each parameter: those of a rank lie in a row, about equally many elements with each. A pure
// function, so that all ranks agree. Where parameters are few or large, a rank may own none.
std::vector<int> owners_of(const std::vector<Parameter>& parameters, int count);
// The rank that owns the most elements; the first of equals.
int largest_owner(const std::vector<Parameter>& parameters, int count);

// Parameters and their copies become what their owners have, to the bit. `room`, contiguous f32 [at least the elements
// of all parameters], is overwritten. All ranks call it; it may be captured.
void share_values(const std::vector<Parameter>& parameters, const std::vector<int>& owners, const Tensor& room,
                  RankSums& ranks);

}  // namespace wick
