// Which attention runs for a shape on a device (docs/kernels/attention_and_convolution.md).
#pragma once

#include <string>
#include <string_view>

#include "wick/backend/backend.h"
#include "wick/backend/cuda/gpu.h"

namespace wick {

enum class AttentionWay {
  few,    // few.cu: up to 8 queries over a cache, forward
  wgmma,  // sm90_{forward,backward}.cu: tensor cores of 9.0
  mma,    // sm80.cu: tensor cores from 8.0 on
  cudnn,  // runtime/cudnn.cpp
  tiles,  // tiles.cu: a tile of scores on the chip, in f32 arithmetic
  rows,   // rows.cu: matrix products and a softmax, some rows of scores at a time; takes everything
};
inline constexpr std::string_view kAttentionWays[] = {"few", "wgmma", "mma", "cudnn", "tiles", "rows"};
inline std::string_view to_string(AttentionWay way) { return kAttentionWays[size_t(way)]; }

struct AttentionShape {
  int64_t entries, queries, keys, heads, key_heads, features;
  DType dtype;
  bool ranges = false;
  bool backward = false;
  bool aligned = true;  // all views have one dtype, features side by side, and rows of 16 bytes
  bool positive_scale = true;

  // Language models alone have ranges or heads that share keys.
  bool is_language() const { return ranges || heads != key_heads; }
};
std::string to_string(const AttentionShape& shape);  // "attention 1024 x 77, 10 heads of 64, bf16"

// `cudnn`: it is there, and did not refuse this shape. WICK_CUDA_WAY=attention:WAY takes that way wherever it can go.
AttentionWay plan_attention(const Gpu& gpu, const AttentionShape& shape, bool cudnn);

}  // namespace wick
