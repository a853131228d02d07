// Scratch of kernels that weighs beside tensors: how much of a call a device computes at a time, by rules that it
// shares with the plan of a run (counting.h).
#pragma once

#include <algorithm>

#include "wick/core/tensor.h"

namespace wick {

// Attention's backward pass by cuDNN. To have the same bits twice, it keeps the gradient of the queries once for each
// 128 keys, in f32, and adds up at the end. For long rows that would be most of a step's memory, so batch entries and
// then heads go one after the other where it is more than some share of a device.
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

// Attention by rows of scores in memory, all heads of an entry together: the way of f32 with ranges or shared keys.
struct AttentionRows {
  int64_t rows;    // at a time
  size_t scratch;  // bytes of a forward pass; of a backward pass with `backward`

  AttentionRows(const Shape& q, const Shape& k, bool ranges, bool backward) {  // q [B, T, H, D], k [B, S, G, D]
    constexpr int64_t kScores = int64_t{32} << 20;                             // elements at a time
    const int64_t most = std::max<int64_t>(kScores / std::max<int64_t>(q[2] * k[1], 1), 1);
    rows = most >= q[1] ? q[1] : std::max<int64_t>(most / 128 * 128, 1);
    const int64_t scores = q[2] * rows * k[1], reached = ranges ? 2 * k.numel() : 0;
    const int64_t shared = q[2] == k[2] ? 0 : q[2] * rows * q[3];  // of one product at a time
    scratch = 4 * size_t(backward ? 2 * scores + reached + shared + q[0] * q[1] * q[2] : scores + reached);
  }
};

// The most that cuDNN gets for a weight gradient of f32, in bytes. Kernels that want more lose digits (seen: 1.5e-3 in
// sums of 16384 products); presumably they transform the images first.
inline constexpr int64_t kConvolutionScratch = int64_t{16} << 20;

}  // namespace wick
