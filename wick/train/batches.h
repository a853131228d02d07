// The order in which a run sees its examples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "wick/train/buckets.h"

namespace wick {

// Epochs of shuffled batches. A batch lies within one bucket; the last of a bucket may be smaller. The order of epoch e
// depends on seed and e alone, so two numbers say where a run stands.
class BatchSampler {
 public:
  BatchSampler(const std::map<Size, std::vector<size_t>>& buckets, int64_t batch_size, uint64_t seed);

  const std::vector<size_t>& next();  // indices of examples

  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }  // batches of this epoch that are used up
  int64_t batches_per_epoch() const { return int64_t(batches_.size()); }
  void seek(int64_t epoch, int64_t batch);

 private:
  void shuffle();

  std::vector<std::vector<size_t>> buckets_, batches_;
  size_t batch_size_;
  uint64_t seed_;
  int64_t epoch_ = 0, batch_ = 0;
};

}  // namespace wick
