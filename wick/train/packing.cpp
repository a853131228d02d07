#include "wick/train/packing.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "wick/core/error.h"

namespace wick {

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
  for (size_t begin = 0; begin < rows.size(); begin += batch_size_) {
    const size_t end = std::min(rows.size(), begin + batch_size_);
    batches_.emplace_back(rows.begin() + std::ptrdiff_t(begin), rows.begin() + std::ptrdiff_t(end));
  }
}

}  // namespace wick
