#include "wick/core/segments.h"

#include <algorithm>
#include <cassert>
#include <iterator>

namespace wick {

void Segments::add(size_t address, size_t bytes) {
  segments_[address] = address + bytes;
  add_gap(address, address + bytes);
  taken_ += bytes;
}

void Segments::add_gap(size_t begin, size_t end) {
  gaps_[begin] = end;
  sizes_.insert({end - begin, begin});
}

void Segments::remove_gap(Gaps::iterator gap) {
  sizes_.erase({gap->second - gap->first, gap->first});
  gaps_.erase(gap);
}

std::optional<size_t> Segments::allocate(size_t bytes) {
  const size_t size = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  const auto fit = sizes_.lower_bound({size, 0});
  if (fit == sizes_.end()) return {};
  const size_t begin = fit->second, end = begin + fit->first;
  remove_gap(gaps_.find(begin));
  if (begin + size < end) add_gap(begin + size, end);
  blocks_[begin] = size;
  return begin;
}

void Segments::release(size_t address) noexcept {
  const auto block = blocks_.find(address);
  assert(block != blocks_.end());
  size_t begin = address, end = address + block->second;
  blocks_.erase(block);
  // Adjacent segments stay apart: their gaps do not merge.
  if (const auto after = gaps_.find(end); after != gaps_.end() && !segments_.contains(end)) {
    end = after->second;
    remove_gap(after);
  }
  const auto next = gaps_.lower_bound(begin);
  if (next != gaps_.begin() && std::prev(next)->second == begin && !segments_.contains(begin)) {
    begin = std::prev(next)->first;
    remove_gap(std::prev(next));
  }
  add_gap(begin, end);
}

std::vector<size_t> Segments::trim() {
  std::vector<size_t> given_up;
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    const auto [begin, end] = *segment;
    const auto gap = gaps_.find(begin);
    if (gap == gaps_.end() || gap->second != end) {
      ++segment;
      continue;
    }
    remove_gap(gap);
    taken_ -= end - begin;
    given_up.push_back(begin);
    segment = segments_.erase(segment);
  }
  return given_up;
}

}  // namespace wick
