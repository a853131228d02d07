#include "wick/train/batches.h"

#include <algorithm>

#include "wick/core/error.h"

namespace wick {

size_t Batches::advance() {
  if (batch_ == batches_per_epoch()) seek(epoch_ + 1, 0);
  return size_t(batch_++);
}

void Batches::seek(int64_t epoch, int64_t batch) {
  epoch_ = epoch;
  shuffle(Rng(seed_, Stream::shuffle, uint64_t(epoch) << 32));  // an epoch's own stretch of the stream
  check(0 <= batch && batch <= batches_per_epoch(), "an epoch has {} batches, asked for {}", batches_per_epoch(),
        batch);
  batch_ = batch;
}

BatchSampler::BatchSampler(const std::map<Size, std::vector<size_t>>& buckets, int64_t batch_size, uint64_t seed)
    : Batches(seed), batch_size_(size_t(batch_size)) {
  for (const auto& [size, examples] : buckets)
    if (!examples.empty()) buckets_.push_back(examples);
  check(!buckets_.empty() && batch_size > 0, "BatchSampler: expected examples and a batch size of at least 1");
  seek(0, 0);
}

void BatchSampler::shuffle(Rng rng) {
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

}  // namespace wick
