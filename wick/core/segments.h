// The allocator of device memory: segments, each one allocation of the driver's, are cut into blocks.
//
// A request gets the smallest gap that fits it, in any segment, and a released block becomes one gap with its
// neighbours. Segments are whole multiples of one size, so that requests of nearly equal size (pictures of several
// shapes, encoded one after the other) fit the same ones, and large segments are cut up for small blocks too.
//
// The class only counts addresses, so a CountingMemory (backend/counting.h) has the same gaps as a device.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace wick {

class Segments {
 public:
  static constexpr size_t kAlign = 512;
  static constexpr size_t kUnit = size_t{128} << 20;

  // The bytes of a segment to add() where allocate() finds no gap.
  static size_t segment_for(size_t bytes) { return bytes <= kUnit ? kUnit : (bytes + kUnit - 1) / kUnit * kUnit; }
  void add(size_t address, size_t bytes);

  // The address of a block for `bytes`, which are rounded up to kAlign; none where no gap is large enough.
  std::optional<size_t> allocate(size_t bytes);
  void release(size_t address) noexcept;
  size_t size_of(size_t address) const { return blocks_.at(address); }
  bool holds(size_t address) const { return blocks_.contains(address); }
  // The segments without a block; they are given up.
  std::vector<size_t> trim();

  size_t taken() const { return taken_; }  // bytes of all segments

 private:
  using Gaps = std::map<size_t, size_t>;
  void add_gap(size_t begin, size_t end);
  void remove_gap(Gaps::iterator gap);

  Gaps segments_;                              // begin -> end
  Gaps gaps_;                                  // begin -> end, each within one segment
  std::map<size_t, size_t> blocks_;            // address -> bytes of each block handed out
  std::set<std::pair<size_t, size_t>> sizes_;  // bytes and begin of each gap
  size_t taken_ = 0;
};

}  // namespace wick
