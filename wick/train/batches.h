// The order in which a run sees its samples, and the rows of one length in which documents lie side by side, so that
// little of a batch is padding.
//
// A step takes `batches` batches of one bucket, wherever they are computed: one device takes them one after the other,
// several take their shares at once. The order depends on the seed and on the size of a step alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "wick/core/rng.h"

namespace wick {

// How samples become steps, and which of a step's batches are this rank's.
struct StepOrder {
  int64_t batches = 1;           // of a step, on all ranks together
  int64_t first = 0, count = 1;  // this rank's
  // Of runs begun before steps were of one bucket: batches of all buckets in one row, the last of each with what is
  // left of it; samples have no numbers.
  bool is_older = false;

  // Rank `rank` of `ranks` takes as many as the others, or one more or less.
  static StepOrder of(int64_t batches, int64_t rank = 0, int64_t ranks = 1);
};

template <class Item>
struct SampledBatch {
  std::vector<Item> items;
  std::optional<uint64_t> number = {};  // of its first sample among all of the run; none in older runs
};

// Epochs of steps. The order of epoch e depends on seed and e alone, so that three numbers are a run's position.
class Batches {
 public:
  // Where the next batch lies: behind `used` of this rank's batches of the current step.
  struct Place {
    int64_t epoch = 0, batch = 0;
    size_t used = 0;
    bool operator==(const Place&) const = default;
  };

  Batches(uint64_t seed, const StepOrder& order) : seed_(seed), order_(order) {}
  virtual ~Batches() = default;

  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }     // steps of this epoch that are used up; in older runs batches
  uint64_t sample() const { return sample_; }  // samples of all steps that are used up
  virtual Place place() const = 0;
  virtual int64_t steps_per_epoch() const = 0;                   // of the current epoch; in older runs batches
  virtual int64_t repeated() const = 0;                          // samples of this epoch that fill a step
  void seek(int64_t epoch, int64_t batch, uint64_t sample = 0);  // to the beginning of a step

 protected:
  virtual void shuffle(Rng rng) = 0;  // arranges the steps of an epoch anew
  virtual void forget_step() = 0;     // that was begun
  size_t advance();                   // the number of the next step; begins a new epoch if this one is used up
  const StepOrder& order() const { return order_; }

  uint64_t sample_ = 0;

 private:
  void begin_epoch(int64_t epoch);

  uint64_t seed_;
  StepOrder order_;
  int64_t epoch_ = 0, batch_ = 0;
};

template <class T>
void fisher_yates(std::vector<T>& items, Rng& rng) {
  for (size_t left = items.size(); left > 1; --left) std::swap(items[left - 1], items[rng.below(left)]);
}

// Steps of items: indices of pictures, or rows of documents.
template <class Item>
class StepsOf : public Batches {
 public:
  using Batches::Batches;

  SampledBatch<Item> next();  // this rank's next batch
  // All that the step of the last next() takes, on whichever rank.
  const std::vector<Item>& step() const { return step_; }
  Place place() const override;
  int64_t steps_per_epoch() const override { return int64_t(steps_.size()); }
  int64_t repeated() const override { return repeated_; }

 protected:
  void forget_step() override { own_.clear(); }
  void clear();
  // Steps of a bucket's items in a row. A rest is filled from the bucket's first ones on.
  void append(const std::vector<Item>& items, int64_t batch_size);
  void shuffle_steps(Rng& rng) { fisher_yates(steps_, rng); }

 private:
  struct Step {
    std::vector<Item> items;
    int64_t batch_size;
  };
  void begin_step();

  std::vector<Step> steps_;  // of the current epoch
  int64_t repeated_ = 0;
  std::vector<Item> step_;
  std::deque<SampledBatch<Item>> own_;  // this rank's batches of the current step that next() has not given yet
};

// Indices of examples that may share a step, each as often as an epoch shows it, and how many are a batch.
struct BatchBucket {
  std::vector<size_t> examples;
  int64_t batch_size = 1;
};

// Shuffled steps, each within one bucket.
class BatchSampler final : public StepsOf<size_t> {
 public:
  BatchSampler(const std::vector<BatchBucket>& buckets, uint64_t seed, const StepOrder& order = {});

 private:
  void shuffle(Rng rng) override;

  std::vector<BatchBucket> buckets_;
};

using PackedRow = std::vector<size_t>;  // consecutive documents

// First-fit: each document, in the given order, goes to the first row that has room for it. None may be longer than a
// row. O(n log n).
std::vector<PackedRow> first_fit(const std::vector<size_t>& order, const std::vector<int64_t>& lengths,
                                 int64_t row_length);

// Steps of rows, packed and shuffled anew in each epoch.
class PackedBatches final : public StepsOf<PackedRow> {
 public:
  // With a row_length of 0 a row holds one document, whatever its length.
  PackedBatches(std::vector<int64_t> lengths, int64_t row_length, int64_t batch_size, uint64_t seed,
                const StepOrder& order = {});

  int64_t rows_per_epoch() const { return rows_; }  // of the current epoch

 private:
  void shuffle(Rng rng) override;

  std::vector<int64_t> lengths_;
  int64_t row_length_, batch_size_;
  int64_t rows_ = 0;
};

}  // namespace wick
