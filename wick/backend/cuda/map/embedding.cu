// Table look-up, rows that go where a table says, and the sines and cosines of timesteps.
#include <cassert>
#include <cmath>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/linear/blocks.cuh"
#include "wick/backend/cuda/linear/blocks.h"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 128;

// A block copies a row.
__global__ void __launch_bounds__(kThreads)
    embedding_rows(const AnyFloats y, const AnyFloats table, int64_t table_row, const int64_t* ids, int64_t width) {
  const int64_t from = ids[blockIdx.x] * table_row, to = blockIdx.x * width;
  for (int64_t d = threadIdx.x; d < width; d += kThreads) y.store(to + d, table.load(from + d));
}

// The same from a table of quantised blocks, eight elements a thread.
template <class Block>
__global__ void __launch_bounds__(kThreads)
    embedding_rows_of_blocks(const AnyFloats y, const Block* table, int64_t table_row, const int64_t* ids, int width) {
  const Block* const from = table + ids[blockIdx.x] * table_row;
  for (int d = int(threadIdx.x) * 8; d < width; d += kThreads * 8) {
    float values[8];
    decode_eight(values, from[d / Block::kElements], d % Block::kElements);
#pragma unroll
    for (int k = 0; k < 8; ++k) y.store(int64_t(blockIdx.x) * width + d + k, values[k]);
  }
}

// Where the rows of a batch go, and how far apart they lie.
struct Scatter {
  const int32_t* rows;
  int64_t row_batch, row_token, tokens;
  int64_t y_batch, y_row, x_batch, x_token;
};

// Calls move(y offset, x offset) for the items of one token's row; a block has a token and kThreads items.
template <class Move>
__device__ __forceinline__ void scatter(const Scatter& s, const Walk<2>& walk, const Move& move) {
  const int64_t token = blockIdx.x % s.tokens, batch = blockIdx.x / s.tokens;
  launch_dependents();
  wait_for_previous();
  const int32_t row = s.rows[batch * s.row_batch + token * s.row_token];
  const uint32_t item = blockIdx.y * kThreads + threadIdx.x;
  if (row < 0 || item >= walk.count) return;
  int64_t at[2];
  walk.offsets(item, at);
  move(batch * s.y_batch + row * s.y_row + at[0], batch * s.x_batch + token * s.x_token + at[1]);
}
// Units of 16 bytes, which strides count.
__global__ void __launch_bounds__(kThreads)
    scatter_units(uint4* y, const uint4* x, const Scatter s, const __grid_constant__ Walk<2> walk) {
  scatter(s, walk, [=](int64_t to, int64_t from) { y[to] = x[from]; });
}
__global__ void __launch_bounds__(kThreads)
    scatter_elements(const AnyFloats y, const AnyFloats x, const Scatter s, const __grid_constant__ Walk<2> walk) {
  scatter(s, walk, [=](int64_t to, int64_t from) { y.store(to, x.load(from)); });
}

// A block has one position and kThreads columns. Where an id stands first, the rows of all its positions are added, in
// their order; each warp looks through 32 ids at once.
__global__ void __launch_bounds__(kThreads)
    embedding_gather(const AnyFloats dtable, const AnyFloats dy, const int64_t* ids, int64_t n, int64_t width) {
  const int64_t position = blockIdx.x, id = ids[position];
  bool earlier = false;
  for (int64_t i = threadIdx.x; i < position; i += kThreads) earlier |= ids[i] == id;
  if (__syncthreads_or(earlier)) return;
  const int64_t d = int64_t(blockIdx.y) * kThreads + threadIdx.x;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t i = position; i < n; i += 32) {
    unsigned same = __ballot_sync(0xffffffffu, i + lane < n && ids[i + lane] == id);
    for (; same != 0; same &= same - 1)
      if (d < width) sum += dy.load((i + __ffs(int(same)) - 1) * width + d);
  }
  if (d < width) dtable.store(id * width + d, sum);
}

// The angle's rounding to f32 is part of the models' training, so the frequency is the nearest f32, too.
__global__ void __launch_bounds__(kThreads)
    timestep_sines(const AnyFloats y, int64_t y_row, int64_t y_column, const AnyFloats t, int64_t t_step, int64_t n,
                   int half, float log_period) {
  const int64_t item = int64_t(blockIdx.x) * kThreads + threadIdx.x, row = item / half;
  const int i = int(item - row * half);
  if (row >= n) return;
  const float frequency = float(exp(double(__fdiv_rn(-log_period * float(i), float(half)))));
  const double angle = double(__fmul_rn(t.load(row * t_step), frequency));
  y.store(row * y_row + i * y_column, float(cos(angle)));
  y.store(row * y_row + (half + i) * y_column, float(sin(angle)));
}

}  // namespace

void CudaBackend::embedding(View y, View table, View ids) {
  assert(ids.dtype == DType::i64);
  const int64_t n = ids.numel(), width = table.dim(1);
  if (n * width == 0) return;
  const DenseInput rows(*this, ids);
  const DenseOutput output(*this, y);
  if (is_block(table.dtype)) {
    for_block_type(table.dtype, [&]<class Block>(Block*) {
      launch("embedding", stream_, {unsigned(n), kThreads}, embedding_rows_of_blocks<Block>, AnyFloats(output.view()),
             table.as<const Block>(), table.stride[0] / Block::kElements, rows.as<int64_t>(), int(width));
    });
  } else {
    const bool walks = width == 1 || table.stride[1] == 1;
    const DenseInput dense(*this, walks ? View() : table);
    const View& from = walks ? table : dense.view();
    launch("embedding", stream_, {unsigned(n), kThreads}, embedding_rows, AnyFloats(output.view()), AnyFloats(from),
           from.stride[0], rows.as<int64_t>(), width);
  }
  output.finish();
}

void CudaBackend::embedding_backward(View dtable, View dy, View ids) {
  assert(ids.dtype == DType::i64);
  const int64_t n = ids.numel(), width = dtable.dim(1);
  const DenseInput positions(*this, ids), grads(*this, dy);
  const DenseOutput output(*this, dtable);
  fill(output.view(), 0);
  if (n * width > 0) {
    const dim3 blocks(unsigned(n), unsigned(ceil_div(width, kThreads)));
    launch("embedding_backward", stream_, {blocks, kThreads}, embedding_gather, AnyFloats(output.view()),
           AnyFloats(grads.view()), positions.as<int64_t>(), n, width);
  }
  output.finish();
}

void CudaBackend::scatter_rows(View y, View x, View rows) {
  assert(rows.dtype == DType::i32 && y.rank() == x.rank());
  if (x.numel() == 0) return;
  const auto inner = [](View v) {
    v.shape = Shape(v.shape.begin() + 2, v.shape.end());
    v.stride = Shape(v.stride.begin() + 2, v.stride.end());
    return v;
  };
  const std::array<View, 2> views{inner(y), inner(x)};
  const auto index = memory_order(views);
  const int64_t width = y.dtype == x.dtype ? int64_t(16 / size_of(y.dtype)) : 1;
  bool units = width > 1;
  for (const View* v : {&y, &x})
    units = units && packs(index, v == &y ? 0 : 1, *v, int(width)) && (v->shape[0] == 1 || v->stride[0] % width == 0) &&
            (v->shape[1] == 1 || v->stride[1] % width == 0);
  const int64_t unit = units ? width : 1;
  const Scatter s{rows.as<const int32_t>(), rows.stride[0],     rows.stride[1],     x.shape[1],
                  y.stride[0] / unit,       y.stride[1] / unit, x.stride[0] / unit, x.stride[1] / unit};
  Walk walk(index, int(unit));
  for (auto& strides : walk.stride)
    for (int d = 0; d <= walk.last; ++d) strides[d] /= unit;
  const dim3 blocks(unsigned(x.shape[0] * x.shape[1]), blocks_for(walk.count, kThreads));
  const Launch shape = overlapped(*this, blocks, dim3(kThreads));
  if (units)
    launch("scatter_rows", stream_, shape, scatter_units, y.as<uint4>(), x.as<const uint4>(), s, walk);
  else
    launch("scatter_rows", stream_, shape, scatter_elements, AnyFloats(y), AnyFloats(x), s, walk);
}

void CudaBackend::timestep_embedding(View y, View t, float max_period) {
  const int64_t n = t.numel(), half = y.dim(1) / 2;
  if (n * half == 0) return;
  launch("timestep_embedding", stream_, {unsigned(ceil_div(n * half, kThreads)), kThreads}, timestep_sines,
         AnyFloats(y), y.stride[0], y.stride[1], AnyFloats(t), t.stride[0], n, int(half), std::log(max_period));
}

}  // namespace wick
