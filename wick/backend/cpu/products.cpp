#include "wick/backend/cpu/products.h"

#include <algorithm>
#include <cassert>

#include "wick/backend/cpu/parallel.h"

namespace wick {
namespace {

constexpr double kLargeTile = 1e6;  // flops: 20 to 50 us of a core
constexpr int64_t kGrain = 16;      // rows and columns, a multiple of what oneDNN's kernels compute at once

double flops_of(int64_t rows, int64_t cols, int64_t inner) { return 2.0 * double(rows) * double(cols) * double(inner); }

}  // namespace

Tiles::Tiles(int64_t rows, int64_t cols, int64_t inner) : rows_(rows), cols_(cols) {
  const int64_t wanted = chunks_for_flops(flops_of(rows, cols, inner), kLargeTile);
  while (count() < wanted) {  // halves the longer side
    const int64_t height = rows_ / row_parts_, width = cols_ / col_parts_;
    if (std::max(height, width) < 2 * kGrain) return;
    (height >= width ? row_parts_ : col_parts_) *= 2;
  }
}

Tiles::Range Tiles::part(int64_t index, int64_t extent, int64_t parts) {
  const int64_t grains = (extent + kGrain - 1) / kGrain;
  return {std::min(extent, grains * index / parts * kGrain), std::min(extent, grains * (index + 1) / parts * kGrain)};
}

void Products::add(const Matrix& c, const Matrix& a, const Matrix& b, float alpha, float beta) {
  assert(a.rows == c.rows && b.cols == c.cols && a.cols == b.rows);
  const Tiles tiles(c.rows, c.cols, a.cols);
  all_.push_back({c, a, b, alpha, beta, tiles, tiles_});
  tiles_ += tiles.count();
  flops_ += flops_of(c.rows, c.cols, a.cols);
}

void Products::run_tile(int64_t tile) const {
  const auto after =
      std::upper_bound(all_.begin(), all_.end(), tile, [](int64_t t, const Product& p) { return t < p.first; });
  const Product& p = *std::prev(after);
  const auto rows = p.tiles.rows(tile - p.first), cols = p.tiles.cols(tile - p.first);
  gemm_here(p.c.row_range(rows.begin, rows.end).col_range(cols.begin, cols.end), p.a.row_range(rows.begin, rows.end),
            p.b.col_range(cols.begin, cols.end), p.alpha, p.beta);
}

// Many small products share a chunk.
void Products::run() const {
  const int64_t chunks = std::min(tiles_, chunks_for_flops(flops_, kLargeTile));
  parallel_tasks(chunks, [&](int64_t chunk) {
    for (int64_t t = tiles_ * chunk / chunks; t < tiles_ * (chunk + 1) / chunks; ++t) run_tile(t);
  });
}

}  // namespace wick
