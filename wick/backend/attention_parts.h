// How much of attention's backward pass is computed at a time.
//
// To have the same bits twice, cuDNN keeps the gradient of the queries once for each 128 keys, in f32, and adds up at
// the end. For long rows that would be most of a step's memory, so batch entries and then heads go one after the other
// where it is more than some share of a device.
#pragma once

#include <algorithm>

#include "wick/core/tensor.h"

namespace wick {

struct AttentionParts {
  int64_t entries, heads;  // at a time
  size_t scratch;          // bytes

  AttentionParts(const Shape& q, int64_t keys) {  // q [B, T, H, D]
    constexpr int64_t kMost = int64_t{384} << 20;
    const int64_t head = 4 * q[1] * (q[3] * ((keys + 127) / 128) + 1), entry = head * q[2];
    entries = std::clamp<int64_t>(kMost / std::max<int64_t>(entry, 1), 1, q[0]);
    heads = entry <= kMost ? q[2] : std::clamp<int64_t>(kMost / std::max<int64_t>(head, 1), 1, q[2]);
    scratch = size_t(entries * heads * head);
  }
};

}  // namespace wick
