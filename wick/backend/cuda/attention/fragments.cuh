// The steps of attention's tensor-core kernels between two products: masks, the online softmax and its gradient, and
// the stores of a warp's rows.
//
// Scores and sums are fragments: a warp holds 16 rows, and lane i of each eight columns the elements (i / 4, 2 (i % 4)
// + {0, 1}) and the same of the row eight below. So mma.sync and wgmma return them, and so both take them as operand a
// once they are packed to 16 bits.
#pragma once

#include "wick/backend/cuda/attention/shape.cuh"
#include "wick/backend/cuda/device/mma.cuh"

namespace wick {

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Columns 16 k to 16 k + 15 of fragments as operand a.
template <class T>
__device__ __forceinline__ void pack(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack<T>(left[0], left[1]);
  a[1] = pack<T>(left[2], left[3]);
  a[2] = pack<T>(right[0], right[1]);
  a[3] = pack<T>(right[2], right[3]);
}

// Where a lane's fragments stand among all queries and keys.
struct Place {
  int row, column;  // of its first element
};
template <bool kKeys>  // rows are keys
__device__ __forceinline__ bool visible(const AttentionProblem& s, int row, int column) {
  const int query = kKeys ? column : row, key = kKeys ? row : column;
  return key < s.keys && (!s.causal || key <= query);
}
// Whether a tile of scores has to ask.
template <bool kKeys>
__device__ __forceinline__ bool masked(const AttentionProblem& s, int row, int rows, int column, int columns) {
  if (kKeys) return s.causal && column < row + rows;
  return column + columns > s.keys || (s.causal && column + columns > row);
}

// The ranges of a lane's two rows, or, where queries are columns, of all columns in shared memory.
struct RowLimits {
  int2 of[2];
  __device__ __forceinline__ int2 at(int, int i) const { return of[i / 2]; }
};
struct ColumnLimits {
  const int2* of;
  int column;  // 2 (lane % 4)
  __device__ __forceinline__ int2 at(int j, int i) const { return of[column + 8 * j + i % 2]; }
};

// Scores (or probabilities) that are not seen become `value`. `place` counts keys and queries; kKeys: rows are keys.
template <bool kKeys, int kFragments, class Limits>
__device__ __forceinline__ void hide(float (&s)[kFragments][4], const Limits& limits, Place place, float value) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = kKeys ? place.row + i / 2 * 8 : place.column + 8 * j + i % 2;
      const int2 seen = limits.at(j, i);
      if (key < seen.x || key >= seen.y) s[j][i] = value;
    }
}

// Whether queries whose first and last range are given, and all between, see keys `from` to `from + count` wholly.
__device__ __forceinline__ bool sees_all(int2 first, int2 last, int from, int count) {
  return last.x <= from && first.y >= from + count;
}

// ---- forward: sums are kept relative to the largest score so far

struct RowSum {  // of one row; `total` of this lane's elements alone
  float peak = -INFINITY, total = 0;
};

// Scores of a lane's two rows to exp(scale (s - peak)); earlier sums shrink by `shrink`. With kBlind rows may have seen
// nothing so far.
template <bool kBlind = false, int kFragments>
__device__ __forceinline__ void exponentials(float (&s)[kFragments][4], RowSum (&rows)[2], float (&shrink)[2],
                                             float scale2, const AttentionProblem& shape, Place place, bool mask) {
  if (mask)
#pragma unroll
    for (int j = 0; j < kFragments; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!visible<false>(shape, place.row + i / 2 * 8, place.column + 8 * j + i % 2)) s[j][i] = -INFINITY;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float peak = rows[r].peak;
#pragma unroll
    for (int j = 0; j < kFragments; ++j)
      peak = fmaxf(peak, fmaxf(s[j][2 * r], s[j][2 * r + 1]));  // skips NaN, which the exponential brings back
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
    const float from = kBlind && peak == -INFINITY ? 0 : peak, shift = from * scale2;
    shrink[r] = fast_exp2((rows[r].peak - from) * scale2);
    float total = rows[r].total * shrink[r];
#pragma unroll
    for (int j = 0; j < kFragments; ++j)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) total += s[j][i] = fast_exp2(fmaf(s[j][i], scale2, -shift));
    rows[r] = {peak, total};
  }
}
template <int kFragments>
__device__ __forceinline__ void rescale(float (&sum)[kFragments][4], const float (&shrink)[2]) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[j][i] *= shrink[i / 2];
}
// The factors that make sums averages, zero of rows that saw nothing; saves the log-sum-exp of a head's rows from
// `first` on.
__device__ __forceinline__ void finish_rows(float (&inverse)[2], const RowSum (&rows)[2], float* lse, int first,
                                            const AttentionProblem& shape, int lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = rows[r].total;
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
    const int query = first + lane / 4 + 8 * r;
    if (lane % 4 == 0 && query < shape.queries) lse[query] = rows[r].peak * shape.scale + logf(total);
    inverse[r] = total == 0 ? 0 : 1 / total;
  }
}

// ---- backward

// The log-sum-exp in base 2 and delta of a lane's two rows, or, where queries are columns, of all columns in shared
// memory. Entries beyond the last query have infinity and zero, and so no probability.
struct RowStatistics {
  float lse[2], delta[2];
  __device__ __forceinline__ void get(float (&x)[4], const float (&of)[2]) const {
    x[0] = x[1] = of[0];
    x[2] = x[3] = of[1];
  }
  __device__ __forceinline__ void lse_at(int, float (&x)[4]) const { get(x, lse); }
  __device__ __forceinline__ void delta_at(int, float (&x)[4]) const { get(x, delta); }
};
struct ColumnStatistics {
  const float *lse, *delta;
  int column;  // 2 (lane % 4)
  __device__ __forceinline__ void get(float (&x)[4], const float* of) const {
    const float2 both = *reinterpret_cast<const float2*>(of + column);
    x[0] = x[2] = both.x;
    x[1] = x[3] = both.y;
  }
  __device__ __forceinline__ void lse_at(int j, float (&x)[4]) const { get(x, lse + 8 * j); }
  __device__ __forceinline__ void delta_at(int j, float (&x)[4]) const { get(x, delta + 8 * j); }
};

__device__ __forceinline__ float saved_lse(const float* lse, int64_t at, bool there) {
  return there ? lse[at] * kLog2E : INFINITY;
}

// Scores to probabilities.
template <bool kKeys, int kFragments, class Statistics>
__device__ __forceinline__ void probabilities(float (&s)[kFragments][4], const Statistics& statistics, float scale2,
                                              const AttentionProblem& shape, Place place, bool mask) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
    float lse[4];
    statistics.lse_at(j, lse);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[j][i] = fast_exp2(fmaf(s[j][i], scale2, -lse[i]));
  }
  if (!mask) return;
#pragma unroll
  for (int j = 0; j < kFragments; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!visible<kKeys>(shape, place.row + i / 2 * 8, place.column + 8 * j + i % 2)) s[j][i] = 0;
}

// Gradients of probabilities to those of scores, without the factor `scale`. With kAnything dp may be NaN where p is 0.
template <bool kKeys, bool kAnything = false, int kFragments, class Statistics>
__device__ __forceinline__ void score_gradients(float (&dp)[kFragments][4], const float (&p)[kFragments][4],
                                                const Statistics& statistics) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
    float delta[4];
    statistics.delta_at(j, delta);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float gradient = p[j][i] * (dp[j][i] - delta[i]);
      dp[j][i] = kAnything && p[j][i] == 0 ? 0 : gradient;
    }
  }
}

// Stores a warp's 16 rows, the first of them token `first`, times a factor for each of a lane's two, through 16 kD
// elements of shared memory of its own.
template <class T, int kD>
__device__ __forceinline__ void store_warp_rows(T* staging, const float (&sum)[kD / 8][4], float upper, float lower,
                                                T* to, int64_t stride, int first, int tokens, int features, int lane) {
  const int row = lane / 4;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kD / 8; ++j) {
    uint32_t* const at = reinterpret_cast<uint32_t*>(staging + row * kD + (j ^ row) * 8 + lane % 4 * 2);
    at[0] = pack<T>(sum[j][0] * upper, sum[j][1] * upper);
    at[8 * kD / 2] = pack<T>(sum[j][2] * lower, sum[j][3] * lower);
  }
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * kD / 8; i += 32) {
    const int r = i / (kD / 8), chunk = i % (kD / 8);
    if (first + r < tokens && chunk * 8 < features)
      *reinterpret_cast<uint4*>(to + (first + r) * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(staging + r * kD + (chunk ^ (r % 8)) * 8);
  }
}
// The same as partial sums [S, D].
template <int kD>
__device__ __forceinline__ void store_partial(const float (&sum)[kD / 8][4], float* to, int first, int tokens,
                                              int features, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = first + lane / 4 + 8 * half;
    if (token >= tokens) continue;
#pragma unroll
    for (int j = 0; j < kD / 8; ++j)
      if (8 * j < features)
        *reinterpret_cast<float2*>(to + int64_t(token) * features + 8 * j + lane % 4 * 2) = {sum[j][2 * half],
                                                                                             sum[j][2 * half + 1]};
  }
}

}  // namespace wick
