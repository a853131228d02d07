#include "wick/train/batches.h"

#include <algorithm>
#include <utility>

#include "wick/core/error.h"
#include "wick/core/rng.h"

namespace wick {
namespace {

template <class T>
void fisher_yates(std::vector<T>& items, Rng& rng) {
  for (size_t left = items.size(); left > 1; --left) std::swap(items[left - 1], items[rng.below(left)]);
}

}  // namespace

BatchSampler::BatchSampler(const std::map<Size, std::vector<size_t>>& buckets, int64_t batch_size, uint64_t seed)
    : batch_size_(size_t(batch_size)), seed_(seed) {
  for (const auto& [size, examples] : buckets)
    if (!examples.empty()) buckets_.push_back(examples);
  check(!buckets_.empty() && batch_size > 0, "BatchSampler: expected examples and a batch size of at least 1");
  shuffle();
}

void BatchSampler::shuffle() {
  Rng rng(seed_, Stream::shuffle, uint64_t(epoch_) << 32);  // an epoch's own stretch of the stream
  batches_.clear();
  for (std::vector<size_t> bucket : buckets_) {
    fisher_yates(bucket, rng);
    for (size_t begin = 0; begin < bucket.size(); begin += batch_size_) {
      const size_t end = std::min(bucket.size(), begin + batch_size_);
      batches_.emplace_back(bucket.begin() + std::ptrdiff_t(begin), bucket.begin() + std::ptrdiff_t(end));
    }
  }
  fisher_yates(batches_, rng);
}

const std::vector<size_t>& BatchSampler::next() {
  if (batch_ == batches_per_epoch()) seek(epoch_ + 1, 0);
  return batches_[size_t(batch_++)];
}

void BatchSampler::seek(int64_t epoch, int64_t batch) {
  epoch_ = epoch;
  shuffle();
  check(0 <= batch && batch <= batches_per_epoch(), "BatchSampler: an epoch has {} batches, asked for {}",
        batches_per_epoch(), batch);
  batch_ = batch;
}

}  // namespace wick
