// Attention without cuDNN, in several ways; each is in the file that has its name. As backend.h has it, where views of
// features are contiguous, statistics (lse, delta) and ranges are contiguous, and nothing is empty. Outputs of backward
// may be unwanted.
#pragma once

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/scratch.h"

namespace wick {

// tiles.cu: one kernel that keeps a tile of scores on the chip (Dao et al., "FlashAttention", 2022), in f32 arithmetic.
// D <= 64, without ranges or heads that share keys.
inline constexpr int kAttentionTileFeatures = 64;
void attention_by_tiles(CudaBackend& cuda, const AttentionArgs& a);
void attention_by_tiles_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, View delta);

// sm80.cu: tensor cores by mma.sync, from 8.0 on. Views of one 16-bit dtype, 16-byte aligned, D a multiple of 8 up to
// kAttentionMmaFeatures, and a positive scale.
void attention_by_mma(CudaBackend& cuda, const AttentionArgs& a);
void attention_by_mma_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, View delta);

// sm90_forward.cu, sm90_backward.cu: the same by wgmma and TMA, on 9.0.
void attention_by_wgmma(CudaBackend& cuda, const AttentionArgs& a);
void attention_by_wgmma_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, View delta);

// few.cu: mma.sync for a few queries over many keys, a step of decoding (split-K over the keys). What
// attention_by_mma() takes.
inline constexpr int64_t kFewQueries = 8;
void attention_of_few_queries(CudaBackend& cuda, const AttentionArgs& a);

// rows.cu: matrix products and a softmax, with the scores of some rows at a time in memory. Takes everything.
void attention_by_rows(CudaBackend& cuda, const AttentionArgs& a);
void attention_by_rows_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, View delta);

// delta [B, H, T] = the sum over D of dy * y, which all backward passes want.
void attention_delta(CudaBackend& cuda, View delta, View dy, View y);         // tiles.cu
void attention_packed_delta(CudaBackend& cuda, View delta, View dy, View y);  // sm80.cu: of views that mma.sync takes

}  // namespace wick
