// Attention of language models: heads that share keys, and queries that see ranges of them (backend.h).
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {

// Tensor cores by mma.sync: what attention_by_mma() asks for. `ranges` is contiguous i32 [B, T, 2], or empty.
void attention_of_ranges(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal,
                         View ranges);
void attention_of_ranges_backward(CudaBackend& cuda, View dq, View dk, View dv, View dy, View lse, View delta, View q,
                                  View k, View v, float scale, bool causal, View ranges);

// The same forward for a few queries over many keys: a step of decoding. The keys that are seen are shared between
// warps, and their sums added in a fixed order.
inline constexpr int64_t kFewQueries = 8;
void attention_of_few_queries(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal,
                              View ranges);

}  // namespace wick
