#include "wick/train/batches.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "wick/core/error.h"

namespace wick {

StepOrder StepOrder::of(int64_t batches, int64_t rank, int64_t ranks) {
  const int64_t first = batches * rank / ranks;
  return {.batches = batches, .first = first, .count = batches * (rank + 1) / ranks - first};
}

void Batches::begin_epoch(int64_t epoch) {
  epoch_ = epoch;
  batch_ = 0;
  shuffle(Rng(seed_, Stream::shuffle, uint64_t(epoch) << 32));  // an epoch's own stretch of the stream
}

size_t Batches::advance() {
  if (batch_ == steps_per_epoch()) begin_epoch(epoch_ + 1);
  return size_t(batch_++);
}

void Batches::seek(int64_t epoch, int64_t batch, uint64_t sample) {
  forget_step();
  begin_epoch(epoch);
  check(0 <= batch && batch <= steps_per_epoch(), "an epoch has {} {}, asked for {}", steps_per_epoch(),
        order_.is_older ? "batches" : "steps", batch);
  batch_ = batch;
  sample_ = sample;
}

template <class Item>
Batches::Place StepsOf<Item>::place() const {
  return {epoch(), batch(), own_.empty() ? 0 : size_t(order().count) - own_.size()};
}

template <class Item>
void StepsOf<Item>::clear() {
  steps_.clear();
  repeated_ = 0;
}

template <class Item>
void StepsOf<Item>::append(const std::vector<Item>& items, int64_t batch_size) {
  const size_t size = size_t(batch_size * (order().is_older ? 1 : order().batches));
  for (size_t begin = 0; begin < items.size(); begin += size) {
    const size_t end = order().is_older ? std::min(items.size(), begin + size) : begin + size;
    Step& step = steps_.emplace_back(Step{{}, batch_size});
    for (size_t i = begin; i < end; ++i) step.items.push_back(items[i % items.size()]);
    repeated_ += int64_t(end - std::min(end, items.size()));
  }
}

template <class Item>
void StepsOf<Item>::begin_step() {
  const auto part = [](const Step& step, int64_t begin, int64_t count) {
    return std::vector<Item>(step.items.begin() + begin, step.items.begin() + begin + count);
  };
  if (order().is_older) {
    step_.clear();
    for (int64_t i = 0; i < order().batches; ++i) {
      const std::vector<Item>& batch = steps_[advance()].items;
      step_.insert(step_.end(), batch.begin(), batch.end());
      own_.push_back({batch});
    }
    return;
  }
  const Step& step = steps_[advance()];
  step_ = step.items;
  for (int64_t i = order().first; i < order().first + order().count; ++i) {
    const int64_t begin = i * step.batch_size;
    own_.push_back({part(step, begin, step.batch_size), sample_ + uint64_t(begin)});
  }
  sample_ += step.items.size();
}

template <class Item>
SampledBatch<Item> StepsOf<Item>::next() {
  if (own_.empty()) begin_step();
  SampledBatch<Item> batch = std::move(own_.front());
  own_.pop_front();
  return batch;
}

template class StepsOf<size_t>;
template class StepsOf<PackedRow>;

BatchSampler::BatchSampler(const std::vector<BatchBucket>& buckets, uint64_t seed, const StepOrder& order)
    : StepsOf(seed, order) {
  for (const BatchBucket& bucket : buckets) {
    check(bucket.batch_size > 0, "BatchSampler: expected a batch size of at least 1");
    if (!bucket.examples.empty()) buckets_.push_back(bucket);
  }
  check(!buckets_.empty(), "BatchSampler: expected examples");
  seek(0, 0);
}

void BatchSampler::shuffle(Rng rng) {
  clear();
  for (BatchBucket bucket : buckets_) {
    fisher_yates(bucket.examples, rng);
    append(bucket.examples, bucket.batch_size);
  }
  shuffle_steps(rng);
}

// A binary tree whose leaves are as many rows as there could be; a node knows the most room of a row below it.
std::vector<PackedRow> first_fit(const std::vector<size_t>& order, const std::vector<int64_t>& lengths,
                                 int64_t row_length) {
  const size_t leaves = std::bit_ceil(order.size());
  std::vector<int64_t> room(2 * leaves, row_length);
  std::vector<PackedRow> rows;
  for (const size_t document : order) {
    const int64_t length = lengths[document];
    check(length <= row_length, "first_fit: a document of {} tokens in rows of {}", length, row_length);
    size_t node = 1;
    while (node < leaves) node = 2 * node + (room[2 * node] < length ? 1 : 0);
    const size_t row = node - leaves;
    if (row == rows.size()) rows.emplace_back();
    rows[row].push_back(document);
    room[node] -= length;
    while (node /= 2) room[node] = std::max(room[2 * node], room[2 * node + 1]);
  }
  return rows;
}

PackedBatches::PackedBatches(std::vector<int64_t> lengths, int64_t row_length, int64_t batch_size, uint64_t seed,
                             const StepOrder& order)
    : StepsOf(seed, order), lengths_(std::move(lengths)), row_length_(row_length), batch_size_(batch_size) {
  check(!lengths_.empty() && batch_size > 0, "PackedBatches: expected documents and a batch size of at least 1");
  seek(0, 0);
}

void PackedBatches::shuffle(Rng rng) {
  std::vector<size_t> order(lengths_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  fisher_yates(order, rng);
  std::vector<PackedRow> rows;
  if (row_length_ > 0) {
    rows = first_fit(order, lengths_, row_length_);
    fisher_yates(rows, rng);  // otherwise the fullest would come first
  } else {
    for (const size_t document : order) rows.push_back({document});
  }
  rows_ = int64_t(rows.size());
  clear();
  append(rows, batch_size_);
}

}  // namespace wick
