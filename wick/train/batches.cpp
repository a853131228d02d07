#include "wick/train/batches.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "wick/core/error.h"

namespace wick {
namespace {

// Batches of `size` items in a row; the last may have fewer.
template <class Item>
void append_batches(std::vector<std::vector<Item>>& batches, const std::vector<Item>& items, size_t size) {
  for (size_t begin = 0; begin < items.size(); begin += size) {
    const size_t end = std::min(items.size(), begin + size);
    batches.emplace_back(items.begin() + std::ptrdiff_t(begin), items.begin() + std::ptrdiff_t(end));
  }
}

}  // namespace

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

BatchSampler::BatchSampler(const std::vector<BatchBucket>& buckets, uint64_t seed) : Batches(seed) {
  for (const BatchBucket& bucket : buckets) {
    check(bucket.batch_size > 0, "BatchSampler: expected a batch size of at least 1");
    if (!bucket.examples.empty()) buckets_.push_back(bucket);
  }
  check(!buckets_.empty(), "BatchSampler: expected examples");
  seek(0, 0);
}

void BatchSampler::shuffle(Rng rng) {
  batches_.clear();
  for (BatchBucket bucket : buckets_) {
    fisher_yates(bucket.examples, rng);
    append_batches(batches_, bucket.examples, size_t(bucket.batch_size));
  }
  fisher_yates(batches_, rng);
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

PackedBatches::PackedBatches(std::vector<int64_t> lengths, int64_t row_length, int64_t batch_size, uint64_t seed)
    : Batches(seed), lengths_(std::move(lengths)), row_length_(row_length), batch_size_(size_t(batch_size)) {
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
  batches_.clear();
  append_batches(batches_, rows, batch_size_);
}

}  // namespace wick
