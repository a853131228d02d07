// Documents laid side by side in rows of one length, so that little of a batch is padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "wick/train/batches.h"

namespace wick {

using PackedRow = std::vector<size_t>;  // consecutive documents

// First-fit: each document, in the given order, goes to the first row that has room for it. None may be longer than a
// row. O(n log n).
std::vector<PackedRow> first_fit(const std::vector<size_t>& order, const std::vector<int64_t>& lengths,
                                 int64_t row_length);

// Batches of rows, packed and shuffled anew in each epoch; the last of an epoch may have fewer rows.
class PackedBatches final : public Batches {
 public:
  // With a row_length of 0 a row holds one document, whatever its length.
  PackedBatches(std::vector<int64_t> lengths, int64_t row_length, int64_t batch_size, uint64_t seed);

  const std::vector<PackedRow>& next() { return batches_[advance()]; }
  int64_t batches_per_epoch() const override { return int64_t(batches_.size()); }
  int64_t rows_per_epoch() const { return rows_; }  // of the current epoch

 private:
  void shuffle(Rng rng) override;

  std::vector<int64_t> lengths_;
  int64_t row_length_;
  size_t batch_size_;
  std::vector<std::vector<PackedRow>> batches_;
  int64_t rows_ = 0;
};

}  // namespace wick
