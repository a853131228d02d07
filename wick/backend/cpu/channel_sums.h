// Per-channel sums over the rows of images, in a fixed order whatever the number of threads, and per-channel tables.
#pragma once

#include <algorithm>
#include <vector>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/targets.h"

namespace wick {

// Per-channel sums of one image or a part of it, with room for a whole vector after the last channel.
struct ChannelSums {
  double* first;   // forward: x;   backward: dz, the gradient before the activation
  double* second;  // forward: x^2; backward: dz times the normalised x
};

// The rows of a batch of images, in blocks that stay in the L1 cache while they are read twice, and in at most kParts
// parts an image, which are summed by one thread each and then in order.
struct RowBlocks {
  static constexpr int64_t kBlock = 8192, kPart = 1 << 15, kParts = 64;

  int64_t batch, rows, channels;
  int64_t block_rows, parts;

  RowBlocks(int64_t batch_size, int64_t row_count, int64_t channel_count)
      : batch(batch_size),
        rows(row_count),
        channels(channel_count),
        block_rows(std::max<int64_t>(4, kBlock / channels)),
        parts(std::clamp<int64_t>(rows * channels / kPart, 1, kParts)) {}

  // Calls body(image, first row, rows, part of the batch) for each block, the blocks of a part in order.
  template <class Body>
  void run(const Body& body) const {
    parallel_each(batch * parts, batch * rows * channels, [&](int64_t part) {
      const int64_t last = rows * (part % parts + 1) / parts;
      for (int64_t row = rows * (part % parts) / parts; row < last; row += block_rows)
        body(part / parts, row, std::min(block_rows, last - row), part);
    });
  }
};

// Sums per part, and in the end per image.
class PartialSums {
 public:
  explicit PartialSums(const RowBlocks& blocks)
      : parts_(blocks.parts),
        padded_(blocks.channels + kWidestVector),
        sums_(size_t(blocks.batch * parts_ * 2 * padded_)) {}

  ChannelSums part(int64_t index) {
    double* first = sums_.data() + index * 2 * padded_;
    return {first, first + padded_};
  }
  // The sum over an image's parts. Call once for each image.
  ChannelSums image(int64_t index) {
    const ChannelSums total = part(index * parts_);
    for (int64_t p = 1; p < parts_; ++p) {
      const ChannelSums more = part(index * parts_ + p);
      for (int64_t c = 0; c < 2 * padded_; ++c) total.first[c] += more.first[c];
    }
    return total;
  }

 private:
  int64_t parts_, padded_;
  std::vector<double> sums_;
};

// The floats of a view as an array; an empty one reads as `count` times `value`.
inline std::vector<float> floats_of(const View& v, int64_t count, float value) {
  std::vector<float> values(size_t(count), value);
  if (!v) return values;
  const View dense{values.data(), DType::f32, v.shape, contiguous_strides(v.shape)};
  cpu_backend().copy(dense, v);
  return values;
}

inline void store_sums(const View& to, const std::vector<double>& sums) {
  if (!to) return;
  const std::vector<float> rounded(sums.begin(), sums.end());
  const View dense{const_cast<float*>(rounded.data()), DType::f32, to.shape, contiguous_strides(to.shape)};
  cpu_backend().copy(to, dense);
}

// One float per channel for each image of a batch, one image after another.
struct ChannelTable {
  int64_t channels;
  std::vector<float> values;
  ChannelTable(int64_t batch, int64_t channel_count) : channels(channel_count), values(size_t(batch * channels)) {}
  float* image(int64_t index) { return values.data() + index * channels; }
  const float* image(int64_t index) const { return values.data() + index * channels; }
};

}  // namespace wick
