// The order in which a run sees its examples, and the rows of one length in which documents lie side by side, so that
// little of a batch is padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "wick/core/rng.h"

namespace wick {

// Epochs of batches. The order of epoch e depends on seed and e alone, so that two numbers are a run's position.
class Batches {
 public:
  explicit Batches(uint64_t seed) : seed_(seed) {}
  virtual ~Batches() = default;

  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }        // batches of this epoch that are used up
  virtual int64_t batches_per_epoch() const = 0;  // of the current epoch
  void seek(int64_t epoch, int64_t batch);

 protected:
  virtual void shuffle(Rng rng) = 0;  // arranges the batches of an epoch anew
  size_t advance();                   // the number of the next batch; begins a new epoch if this one is used up

 private:
  uint64_t seed_;
  int64_t epoch_ = 0, batch_ = 0;
};

template <class T>
void fisher_yates(std::vector<T>& items, Rng& rng) {
  for (size_t left = items.size(); left > 1; --left) std::swap(items[left - 1], items[rng.below(left)]);
}

// Indices of examples that may share a batch, each as often as an epoch shows it, and how many do.
struct BatchBucket {
  std::vector<size_t> examples;
  int64_t batch_size = 1;
};

// Shuffled batches, each within one bucket; the last of a bucket may be smaller.
class BatchSampler final : public Batches {
 public:
  BatchSampler(const std::vector<BatchBucket>& buckets, uint64_t seed);

  const std::vector<size_t>& next() { return batches_[advance()]; }  // indices of examples
  int64_t batches_per_epoch() const override { return int64_t(batches_.size()); }

 private:
  void shuffle(Rng rng) override;

  std::vector<BatchBucket> buckets_;
  std::vector<std::vector<size_t>> batches_;
};

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
