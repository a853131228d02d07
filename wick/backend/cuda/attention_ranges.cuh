// What the kernels for language models share: which keys a query sees, and which heads read the same ones.
#pragma once

#include "wick/backend/cuda/attention_device.cuh"

namespace wick {

// Heads of one batch entry: `heads` of queries, `heads / shared` of keys and values.
struct RangedShape {
  int heads, shared, queries, keys, features;
  float scale;
  bool causal;
  const int2* ranges;  // [B, T], or null
  int entries;

  __device__ __forceinline__ int key_heads() const { return heads / shared; }
  // Keys first <= s < last of a query; of the last one beyond it.
  __device__ __forceinline__ int2 seen(int entry, int query) const {
    const int t = min(query, queries - 1);
    if (ranges) return ranges[int64_t(entry) * queries + t];
    return {0, causal ? min(t + 1, keys) : keys};
  }
};
inline RangedShape ranged_shape(const View& q, const View& k, float scale, bool causal, const View& ranges) {
  return {int(q.shape[2]), int(q.shape[2] / k.shape[2]), int(q.shape[1]), int(k.shape[1]), int(q.shape[3]), scale,
          causal,          ranges.as<const int2>(),      int(q.shape[0])};
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

}  // namespace wick
