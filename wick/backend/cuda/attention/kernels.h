// Attention without cuDNN, in several ways. Views are [B, T, H, D] of any float dtype with D contiguous; statistics are
// contiguous f32 [B, H, T]. Nothing is empty. Outputs of backward may be unwanted.
#pragma once

#include "wick/backend/cuda/cuda.h"

namespace wick {

// One kernel that keeps a tile of scores on the chip (Dao et al., "FlashAttention", 2022), in f32 arithmetic. D <= 64.
inline constexpr int kAttentionTileFeatures = 64;
void attention_by_tiles(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal);
void attention_by_tiles_backward(CudaBackend& cuda, View dq, View dk, View dv, View dy, View lse, View delta, View q,
                                 View k, View v, float scale, bool causal);

// Tensor cores by mma.sync, from 8.0 on: views of one 16-bit dtype, 16-byte aligned, D a multiple of 8 up to 128, and a
// positive scale.
inline constexpr int kAttentionMmaFeatures = 128;
void attention_by_mma(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal);
void attention_by_mma_backward(CudaBackend& cuda, View dq, View dk, View dv, View dy, View lse, View delta, View q,
                               View k, View v, float scale, bool causal);

// The same on 9.0 by wgmma, also with heads that share keys, and ranges (contiguous i32 [B, T, 2], or empty).
void attention_by_wgmma(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal,
                        View ranges);
void attention_by_wgmma_backward(CudaBackend& cuda, View dq, View dk, View dv, View dy, View lse, View delta, View q,
                                 View k, View v, float scale, bool causal, View ranges);

// Matrix products and a softmax, with the scores of some rows at a time in memory. Any D, heads that share keys, and
// ranges (contiguous i32 [B, T, 2], or empty).
void attention_by_rows(CudaBackend& cuda, View y, View lse, View q, View k, View v, float scale, bool causal,
                       View ranges);
void attention_by_rows_backward(CudaBackend& cuda, View dq, View dk, View dv, View dy, View lse, View delta, View q,
                                View k, View v, float scale, bool causal, View ranges);

// delta [B, H, T] = the sum over D of dy * y, which both backward passes want.
void attention_delta(CudaBackend& cuda, View delta, View dy, View y);
// The same of what the tensor cores' kernels take.
void attention_packed_delta(CudaBackend& cuda, View delta, View dy, View y);

}  // namespace wick
