// Adafactor (Shazeer & Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018) as transformers
// computes it without beta1, at a rate from outside: the second moment of g[m, n] is the product of its row's mean and
// its column's, over the mean of all. A vector is a matrix of one row, whose factor is 1.
//
// Blocks work on tiles of 128 x 128 elements. Kernels of a step: sums of the squares over each tile's rows and columns;
// from those the means, and of each matrix the mean of its rows'; of each tile the sums of the squares of the update
// and, for scale_parameter, of the parameter; from those their root mean squares; and the update. Every sum has one
// order.
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/optimizer/step.cuh"
#include "wick/backend/scratch.h"

namespace wick {
namespace {

constexpr int kSide = int(AdafactorTiles::kSide), kThreads = kOptimizerThreads, kWarps = kThreads / 32;
constexpr int kRowsAWarp = kSide / kWarps, kColsALane = kSide / 32;

struct Adafactor {
  float keep, share;  // of a second moment: 1 - t^decay_rate of it stays
  float decay, lr;
  float eps, scale_eps, clip_threshold;
  bool scale_parameter;

  __device__ void begin(const OptimizerRule& rule, const float* scalars) {
    const AdafactorRule& own = rule.adafactor;
    const double change = pow(double(scalars[kSteps]), own.decay_rate);
    keep = float(1 - change);
    share = float(change);
    lr = scalars[kLr];
    decay = float(1 - double(lr) * double(rule.weight_decay));
    eps = float(own.eps);
    scale_eps = float(own.scale_eps);
    clip_threshold = float(own.clip_threshold);
    scale_parameter = own.scale_parameter;
  }
};
using AllFactors = Factors<Adafactor>;

struct MatrixSlot {
  Destination to;
  const float* grad;
  float *row, *column;  // the states; a vector has no row
  // In scratch; roots are of the update and of the parameter.
  float *row_sums, *column_sums, *row_means, *tile_squares, *tile_params, *roots;
  AdafactorTiles tiles;
  int64_t blocks = 0;

  MatrixSlot(const OptimizerSlot& slot, float* scratch)
      : to(slot),
        grad(slot.grad.as<const float>()),
        row(slot.states.size() == 2 ? slot.states[0].as<float>() : nullptr),
        column(slot.states.back().as<float>()),
        row_sums(scratch),
        column_sums(row_sums + shape_of(slot).row_sums()),
        row_means(column_sums + shape_of(slot).column_sums()),
        tile_squares(row_means + shape_of(slot).matrices),
        tile_params(tile_squares + shape_of(slot).tiles()),
        roots(tile_params + shape_of(slot).tiles()),
        tiles(shape_of(slot)) {}
  MatrixSlot() : tiles(Shape{0}) {}
  static AdafactorTiles shape_of(const OptimizerSlot& slot) { return AdafactorTiles(slot.param.shape); }
};
using Table = SlotTable<MatrixSlot>;

// A block's tile.
struct Tile {
  const MatrixSlot& slot;
  int64_t index, matrix, row_tile, col_tile;

  __device__ explicit Tile(const SlotBlock<MatrixSlot>& block) : slot(block.slot), index(block.index) {
    const AdafactorTiles& t = slot.tiles;
    col_tile = index % t.col_tiles;
    row_tile = index / t.col_tiles % t.row_tiles;
    matrix = index / (t.col_tiles * t.row_tiles);
  }

  // Calls f(n, row, column, element) for this lane's part of the rows of its warp, n below kColsALane, and after(row)
  // at the end of each. Rows and columns of all matrices are counted together, as in the states.
  template <class F, class After>
  __device__ __forceinline__ void for_elements(const F& f, const After& after) const {
    const AdafactorTiles& t = slot.tiles;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int k = 0; k < kRowsAWarp; ++k) {
      const int64_t row = row_tile * kSide + warp + kWarps * k;
      if (row >= t.rows) break;
      const int64_t all_rows = matrix * t.rows + row;
#pragma unroll
      for (int n = 0; n < kColsALane; ++n) {
        const int64_t col = col_tile * kSide + lane + 32 * n;
        if (col < t.cols) f(n, all_rows, matrix * t.cols + col, all_rows * t.cols + col);
      }
      after(all_rows);
    }
  }
};

__global__ void __launch_bounds__(kThreads) sum_tiles(const AllFactors* factors, const __grid_constant__ Table table) {
  const AllFactors s = *factors;
  if (!s.update) return;
  const Tile tile(block_of(table, blockIdx.x));
  const AdafactorTiles& t = tile.slot.tiles;
  float in_columns[kColsALane] = {}, in_row = 0;
  tile.for_elements(
      [&](int n, int64_t, int64_t, int64_t i) {
        const float g = tile.slot.grad[i] * s.grad_scale, square = fmaf(g, g, s.rule.eps);
        in_columns[n] += square;
        in_row += square;
      },
      [&](int64_t row) {
        const float sum = warp_reduce<Sum>(in_row);
        if (threadIdx.x % 32 == 0) tile.slot.row_sums[row * t.col_tiles + tile.col_tile] = sum;
        in_row = 0;
      });
  __shared__ float of_warps[kWarps][kSide];
  for (int n = 0; n < kColsALane; ++n) of_warps[threadIdx.x / 32][threadIdx.x % 32 + 32 * n] = in_columns[n];
  __syncthreads();
  const int64_t col = tile.col_tile * kSide + threadIdx.x;
  if (threadIdx.x >= kSide || col >= t.cols) return;
  float sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp][threadIdx.x];
  tile.slot.column_sums[(tile.matrix * t.row_tiles + tile.row_tile) * t.cols + col] = sum;
}

// The mean of `count` elements whose sums lie `stride` apart.
__device__ float mean_of(const float* sums, int64_t parts, int64_t stride, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < parts; ++i) sum += double(sums[i * stride]);
  return float(sum / double(count));
}

__global__ void __launch_bounds__(kThreads)
    update_means(const AllFactors* factors, const __grid_constant__ Table table) {
  const AllFactors s = *factors;
  if (!s.update) return;
  const auto [slot, block] = block_of(table, blockIdx.x);
  const AdafactorTiles& t = slot.tiles;
  const int64_t i = block * kThreads + threadIdx.x, rows = t.matrices * t.rows, j = i - rows;
  const auto follow = [&](float& state, float mean) { state = fmaf(state, s.rule.keep, mean * s.rule.share); };
  if (i < rows) {
    if (slot.row) follow(slot.row[i], mean_of(slot.row_sums + i * t.col_tiles, t.col_tiles, 1, t.cols));
  } else if (j < t.matrices * t.cols) {
    const float* sums = slot.column_sums + j / t.cols * t.row_tiles * t.cols + j % t.cols;
    follow(slot.column[j], mean_of(sums, t.row_tiles, t.cols, t.rows));
  }
}

// A block for each matrix.
__global__ void __launch_bounds__(kThreads)
    average_rows(const AllFactors* factors, const __grid_constant__ Table table) {
  if (!factors->update) return;
  const auto [slot, matrix] = block_of(table, blockIdx.x);
  if (!slot.row) return;
  const int64_t rows = slot.tiles.rows;
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) sum += double(slot.row[matrix * rows + row]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) slot.row_means[matrix] = float(sum / double(rows));
}

// Before its root mean square is limited.
__device__ __forceinline__ float update_of(const AllFactors& s, const Tile& tile, int64_t row, int64_t col, int64_t i) {
  const MatrixSlot& slot = tile.slot;
  const float of_row = slot.row ? sqrtf(slot.row_means[tile.matrix] / slot.row[row]) : 1;
  return slot.grad[i] * (s.grad_scale * of_row) * (1 / sqrtf(slot.column[col]));
}

__global__ void __launch_bounds__(kThreads)
    square_tiles(const AllFactors* factors, const __grid_constant__ Table table) {
  const AllFactors s = *factors;
  if (!s.update) return;
  const Tile tile(block_of(table, blockIdx.x));
  double sum = 0, of_param = 0;
  tile.for_elements(
      [&](int, int64_t row, int64_t col, int64_t i) {
        const double u = update_of(s, tile, row, col, i), param = s.rule.scale_parameter ? tile.slot.to.param[i] : 0;
        sum += u * u;
        of_param += param * param;
      },
      [](int64_t) {});
  sum = block_sum(sum);
  if (threadIdx.x == 0) tile.slot.tile_squares[tile.index] = float(sum);
  if (!s.rule.scale_parameter) return;
  __syncthreads();  // block_sum's memory is used again
  of_param = block_sum(of_param);
  if (threadIdx.x == 0) tile.slot.tile_params[tile.index] = float(of_param);
}

// Runs in one block.
__device__ float root_mean_square(const float* squares, const AdafactorTiles& t) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < t.matrices * t.row_tiles * t.col_tiles; i += kThreads) sum += double(squares[i]);
  sum = block_sum(sum);
  return float(sqrt(sum / double(t.matrices * t.rows * t.cols)));
}

// A block for each slot.
__global__ void __launch_bounds__(kThreads) find_roots(const AllFactors* factors, const __grid_constant__ Table table) {
  if (!factors->update) return;
  const MatrixSlot& slot = block_of(table, blockIdx.x).slot;
  const float of_update = root_mean_square(slot.tile_squares, slot.tiles);
  if (threadIdx.x == 0) slot.roots[0] = of_update;
  if (!factors->rule.scale_parameter) return;
  __syncthreads();  // block_sum's memory is used again
  const float of_param = root_mean_square(slot.tile_params, slot.tiles);
  if (threadIdx.x == 0) slot.roots[1] = of_param;
}

__global__ void __launch_bounds__(kThreads)
    update_tiles(const AllFactors* factors, const __grid_constant__ Table table) {
  const AllFactors s = *factors;
  if (!s.update) return;
  const Tile tile(block_of(table, blockIdx.x));
  const Destination& to = tile.slot.to;
  const float share = s.rule.scale_parameter ? to.rate * fmaxf(s.rule.scale_eps, tile.slot.roots[1]) : to.rate;
  const float rate = share * s.rule.lr / fmaxf(1, tile.slot.roots[0] / s.rule.clip_threshold);
  const float decay = decay_at(share, s.rule.decay);
  tile.for_elements(
      [&](int, int64_t row, int64_t col, int64_t i) {
        const float u = update_of(s, tile, row, col, i);
        to.put(i, to.param[i] * decay - rate * u, s.average_share);
      },
      [](int64_t) {});
}

void update_slots(const RuleStep& step, const AllFactors* factors, std::vector<MatrixSlot>& slots) {
  const auto run = [&](void (*kernel)(const AllFactors*, Table), const auto& blocks) {
    for (MatrixSlot& slot : slots) slot.blocks = blocks(slot.tiles);
    in_tables(slots, [&](const Table& table) {
      launch("optimizer_step", step.cuda.stream(), {table.blocks, kThreads}, kernel, factors, table);
    });
  };
  const auto tiles = [](const AdafactorTiles& t) { return t.tiles(); };
  run(sum_tiles, tiles);
  run(update_means, [](const AdafactorTiles& t) { return ceil_div(t.matrices * (t.rows + t.cols), kThreads); });
  run(average_rows, [](const AdafactorTiles& t) { return t.matrices; });
  run(square_tiles, tiles);
  run(find_roots, [](const AdafactorTiles& t) { return int64_t(t.matrices > 0); });
  run(update_tiles, tiles);
}

}  // namespace

void on_device::adafactor(const RuleStep& step) {
  const FactorsOfStep<Adafactor> factors(step);
  std::vector<AdafactorTiles> tiles;
  for (const OptimizerSlot& slot : step.slots) tiles.emplace_back(slot.param.shape);
  for_adafactor_groups(tiles, [&](size_t first, size_t last, int64_t floats) {
    const Scratch scratch(step.cuda, size_t(floats) * sizeof(float));
    std::vector<MatrixSlot> slots;
    float* free = scratch.as<float>();
    for (size_t i = first; i < last; free += tiles[i++].scratch()) slots.emplace_back(step.slots[i], free);
    update_slots(step, factors, slots);
  });
}

}  // namespace wick
