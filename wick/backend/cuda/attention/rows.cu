// Attention as matrix products and a softmax between them. The scores of as many rows as fit into a fixed part of
// memory are made at a time, so that the rest is large products, which run at cuBLASLt's speed: the way for long rows
// of wide heads (the VAE's one head of 512), and for 16-bit activations where cuDNN is missing. S keys; scores [H,
// rows, S] f32, probabilities and their gradients in the dtype of the activations.
#include <algorithm>

#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"
#include "wick/backend/scratch.h"

namespace wick {
namespace {

constexpr int kMaxThreads = 256;

// Rows `first` .. `first` + rows - 1 of every head's queries.
struct RowBlock {
  int64_t first, rows, queries, keys;
  bool causal;
  const int2* ranges;  // of the entry's queries, or null

  __device__ int64_t statistic(int64_t r) const { return r / rows * queries + first + r % rows; }
  __device__ int2 visible(int64_t r) const {  // first <= key < last
    const int64_t query = first + r % rows;
    if (ranges) return ranges[query];
    return {0, int(causal ? min(keys, query + 1) : keys)};
  }
};

struct Strides {
  int64_t batch, token, head, feature;
};

// One block a row. p may be scores itself.
template <class T>
__global__ void softmax_of_scores(T* p, const float* scores, float* lse, RowBlock block) {
  const int64_t r = blockIdx.x;
  const int2 seen = block.visible(r);
  const float* const x = scores + r * block.keys;
  float peak = -INFINITY, sum = 0;
  for (int64_t i = seen.x + threadIdx.x; i < seen.y; i += blockDim.x)
    peak = fmaxf(peak, x[i]);  // skips NaN, which comes back below
  peak = block_reduce<Max>(peak);
  for (int64_t i = seen.x + threadIdx.x; i < seen.y; i += blockDim.x) sum += expf(x[i] - peak);
  sum = block_reduce<Sum>(sum);
  const float factor = 1 / sum;
  for (int64_t i = threadIdx.x; i < block.keys; i += blockDim.x)
    p[r * block.keys + i] = from_float<T>(i >= seen.x && i < seen.y ? expf(x[i] - peak) * factor : 0);
  if (threadIdx.x == 0) lse[block.statistic(r)] = peak + logf(sum);
}

// p = exp(scores - lse) and ds = p * (dp - delta), zero where nothing is visible. p may be scores, and ds may be dp.
template <class T>
__global__ void gradients_of_scores(T* p, T* ds, const float* scores, const float* dp, const float* lse,
                                    const float* delta, RowBlock block) {
  const int64_t r = blockIdx.x, s = block.statistic(r);
  const int2 seen = block.visible(r);
  const float shift = lse[s], mean = delta[s];
  for (int64_t i = threadIdx.x; i < block.keys; i += blockDim.x) {
    const int64_t at = r * block.keys + i;
    const bool visible = i >= seen.x && i < seen.y;
    const float weight = visible ? expf(scores[at] - shift) : 0, grad = visible ? weight * (dp[at] - mean) : 0;
    p[at] = from_float<T>(weight);
    ds[at] = from_float<T>(grad);
  }
}

// y [B, S, G, D] dense = x where the entry's queries reach, else zero; a block a token.
__global__ void copy_reached(const AnyFloats y, const AnyFloats x, Strides strides, int64_t tokens, int64_t heads,
                             int64_t features, const int2* ranges, int64_t queries) {
  const int64_t token = blockIdx.x % tokens, entry = blockIdx.x / tokens, row = heads * features;
  const int2* const of_entry = ranges + entry * queries;
  const bool reached = token >= of_entry[0].x && token < of_entry[queries - 1].y;
  const int64_t from = entry * strides.batch + token * strides.token;
  for (int64_t i = threadIdx.x; i < row; i += blockDim.x)
    y.store(int64_t(blockIdx.x) * row + i,
            reached ? x.load(from + i / features * strides.head + i % features * strides.feature) : 0);
}

unsigned threads_for(int64_t keys) { return unsigned(std::clamp<int64_t>((keys + 31) / 32 * 32, 32, kMaxThreads)); }

View offset(const View& v, int64_t elements, const Shape& shape, const Shape& stride) {
  return {v.as<char>() + elements * int64_t(size_of(v.dtype)), v.dtype, shape, stride};
}
// The heads of one batch entry, [key heads, those that share them, T, D]; empty stays empty.
View heads_of(const View& v, int64_t b, int64_t shared) {
  if (!v) return {};
  return offset(v, b * v.stride[0], {v.shape[2] / shared, shared, v.shape[1], v.shape[3]},
                {v.stride[2] * shared, v.stride[2], v.stride[1], v.stride[3]});
}
// Those of keys and values, once for all that share them.
View key_heads_of(const View& v, int64_t b, int64_t shared) {
  View heads = heads_of(v, b, 1);
  heads.shape[1] = shared;
  heads.stride[1] = 0;
  return heads;
}
// Dense [G, shared, rows, S] as [G, 1, shared * rows, S].
View all_rows(const View& v) {
  return contiguous_view(v.data, v.dtype, {v.shape[0], 1, v.shape[1] * v.shape[2], v.shape[3]});
}
const int2* ranges_of(const View& ranges, int64_t b) {
  return ranges ? ranges.as<const int2>() + b * ranges.shape[1] : nullptr;
}
float* statistics_of(const View& s, int64_t b) { return s.as<float>() + b * s.shape[1] * s.shape[2]; }

// Keys or values, with zeros where no query of their entry reaches.
Held reached(CudaBackend& cuda, const View& v, const View& ranges) {
  if (!ranges) return Held(v);
  Held y(cuda, v.dtype, v.shape);
  launch("copy_reached", cuda.stream(), {unsigned(v.shape[0] * v.shape[1]), threads_for(v.shape[2] * v.shape[3])},
         copy_reached, AnyFloats(y.view()), AnyFloats(v), Strides{v.stride[0], v.stride[1], v.stride[2], v.stride[3]},
         v.shape[1], v.shape[2], v.shape[3], ranges.as<const int2>(), ranges.shape[1]);
  return y;
}

// As many elements as the f32 scores in another dtype: in their memory where that is f32, too.
Held weights_of(CudaBackend& cuda, const Held& scores, DType dtype) {
  return dtype == DType::f32 ? Held(scores.view()) : Held(cuda, dtype, scores.view().shape);
}
View shaped(const Held& memory, const Shape& shape) {
  return contiguous_view(memory.view().data, memory.view().dtype, shape);
}

// Rows of heads [G, shared, rows, D] as [G, 1, shared * rows, D], so that one product sums over all that share keys.
Held shared_rows(CudaBackend& cuda, const View& v) {
  if (v.shape[1] == 1) return Held(v);
  Held dense(cuda, v.dtype, all_rows(v).shape);
  cuda.copy(shaped(dense, v.shape), v);
  return dense;
}

// A sum over blocks of rows into a [G, 1, S, D] output: in f32 where there is more than one block.
class BlockSum {
 public:
  BlockSum(CudaBackend& cuda, const View& target, bool several) : cuda_(cuda), target_(target), sum_(target) {
    if (target && several && target.dtype != DType::f32) sum_ = Held(cuda, DType::f32, target.shape);
  }
  void add(const View& a, const View& b, float scale, bool first) const {
    if (target_) cuda_.matmul(sum_.view(), a, b, scale, first ? 0 : 1);
  }
  void finish() const {
    if (sum_.is_own()) cuda_.copy(target_, sum_.view());
  }

 private:
  CudaBackend& cuda_;
  View target_;
  Held sum_;
};

}  // namespace

void attention_by_rows(CudaBackend& cuda, const AttentionArgs& a) {
  const int64_t heads = a.q.shape[2], shared = heads / a.k.shape[2], queries = a.q.shape[1], keys = a.k.shape[1];
  const int64_t step = AttentionRows(a.q.shape, a.k.shape, bool(a.ranges), false).rows;
  const Held reached_keys = reached(cuda, a.k, a.ranges), reached_values = reached(cuda, a.v, a.ranges);
  const Held scores(cuda, DType::f32, {heads * step * keys}), weights = weights_of(cuda, scores, a.q.dtype);
  for (int64_t b = 0; b < a.q.shape[0]; ++b) {
    const View out = heads_of(a.y, b, shared), query = heads_of(a.q, b, shared);
    const View key = key_heads_of(reached_keys.view(), b, shared),
               value = key_heads_of(reached_values.view(), b, shared);
    for (int64_t first = 0; first < queries; first += step) {
      const int64_t rows = std::min(step, queries - first);
      const Shape shape{heads / shared, shared, rows, keys};
      const View s = shaped(scores, shape), p = shaped(weights, shape);
      cuda.matmul(s, part_of(query, 2, first, rows), transposed(key), a.scale, 0);
      const RowBlock block{first, rows, queries, keys, a.causal, ranges_of(a.ranges, b)};
      dispatch_float(a.q.dtype, [&]<class T>(Type<T>) {
        launch("softmax_of_scores", cuda.stream(), {unsigned(heads * rows), threads_for(keys)}, softmax_of_scores<T>,
               p.as<T>(), s.as<const float>(), statistics_of(a.lse, b), block);
      });
      cuda.matmul(part_of(out, 2, first, rows), p, value, 1, 0);
    }
  }
}

void attention_by_rows_backward(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, View delta) {
  const int64_t heads = a.q.shape[2], shared = heads / a.k.shape[2], queries = a.q.shape[1], keys = a.k.shape[1];
  const int64_t step = AttentionRows(a.q.shape, a.k.shape, bool(a.ranges), true).rows, count = heads * step * keys;
  const Held reached_keys = reached(cuda, a.k, a.ranges), reached_values = reached(cuda, a.v, a.ranges);
  const Held scores(cuda, DType::f32, {count}), grads(cuda, DType::f32, {count});
  const Held weights = weights_of(cuda, scores, a.q.dtype), weight_grads = weights_of(cuda, grads, a.q.dtype);
  for (int64_t b = 0; b < a.q.shape[0]; ++b) {
    const View query = heads_of(a.q, b, shared), grad = heads_of(g.dy, b, shared), grad_q = heads_of(g.dq, b, shared);
    const View key = key_heads_of(reached_keys.view(), b, shared),
               value = key_heads_of(reached_values.view(), b, shared);
    const BlockSum grad_k(cuda, heads_of(g.dk, b, 1), step < queries),
        grad_v(cuda, heads_of(g.dv, b, 1), step < queries);
    for (int64_t first = 0; first < queries; first += step) {
      const int64_t rows = std::min(step, queries - first);
      const Shape shape{heads / shared, shared, rows, keys};
      const View some_queries = part_of(query, 2, first, rows), some_grads = part_of(grad, 2, first, rows);
      const View s = shaped(scores, shape), p = shaped(weights, shape);
      const View dp = shaped(grads, shape), ds = shaped(weight_grads, shape);
      cuda.matmul(s, some_queries, transposed(key), a.scale, 0);
      cuda.matmul(dp, some_grads, transposed(value), 1, 0);
      const RowBlock block{first, rows, queries, keys, a.causal, ranges_of(a.ranges, b)};
      dispatch_float(a.q.dtype, [&]<class T>(Type<T>) {
        launch("gradients_of_scores", cuda.stream(), {unsigned(heads * rows), threads_for(keys)},
               gradients_of_scores<T>, p.as<T>(), ds.as<T>(), s.as<const float>(), dp.as<const float>(),
               statistics_of(a.lse, b), statistics_of(delta, b), block);
      });
      if (g.dv) grad_v.add(transposed(all_rows(p)), shared_rows(cuda, some_grads).view(), 1, first == 0);
      if (g.dk) grad_k.add(transposed(all_rows(ds)), shared_rows(cuda, some_queries).view(), a.scale, first == 0);
      if (grad_q) cuda.matmul(part_of(grad_q, 2, first, rows), ds, key, a.scale, 0);
    }
    grad_k.finish();
    grad_v.finish();
  }
}

}  // namespace wick
