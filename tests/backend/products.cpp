#include "backend/products.h"

#include <algorithm>

#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/products.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace wick::probe {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<double> kTag;
constexpr int64_t kTileRows = 4, kBlockRows = 64, kDepth = 256;  // sizes of packed panels that stay in the caches

// Panels of `width` columns and up to kDepth rows, one after the other; the last is filled up with zeros.
void Pack(Doubles& panels, const Matrix& m, int64_t width) {
  panels.assign(size_t((m.columns + width - 1) / width * width * m.rows), 0.0);
  double* to = panels.data();
  for (int64_t first = 0; first < m.columns; first += width)
    for (int64_t row = 0; row < m.rows; ++row, to += width)
      for (int64_t i = 0; i < std::min(width, m.columns - first); ++i)
        to[i] = m.data[row * m.row_stride + (first + i) * m.column_stride];
}

// tile [kTileRows, two vectors] = the product of a panel of each
void Tile(double* HWY_RESTRICT tile, const double* HWY_RESTRICT a, const double* HWY_RESTRICT b, int64_t depth) {
  const int64_t lanes = int64_t(hn::Lanes(kTag));
  hn::Vec<decltype(kTag)> sum[kTileRows][2];
  for (auto& row : sum) row[0] = row[1] = hn::Zero(kTag);
  for (int64_t p = 0; p < depth; ++p, a += kTileRows, b += 2 * lanes) {
    const auto left = hn::LoadU(kTag, b), right = hn::LoadU(kTag, b + lanes);
    for (int64_t i = 0; i < kTileRows; ++i) {
      const auto factor = hn::Set(kTag, a[i]);
      sum[i][0] = hn::MulAdd(factor, left, sum[i][0]);
      sum[i][1] = hn::MulAdd(factor, right, sum[i][1]);
    }
  }
  for (int64_t i = 0; i < kTileRows; ++i) {
    hn::StoreU(sum[i][0], kTag, tile + 2 * lanes * i);
    hn::StoreU(sum[i][1], kTag, tile + 2 * lanes * i + lanes);
  }
}

Matrix part(const Matrix& m, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  return {m.data + row * m.row_stride + column * m.column_stride, std::min(rows, m.rows - row),
          std::min(columns, m.columns - column), m.row_stride, m.column_stride};
}

void AddProduct(double* c, int64_t stride, const Matrix& a, const Matrix& b, double scale) {
  const int64_t width = 2 * int64_t(hn::Lanes(kTag));
  double tile[kTileRows * 2 * hn::MaxLanes(kTag)];
  Doubles left, right;
  for (int64_t k = 0; k < b.rows; k += kDepth) {
    const Matrix depth = part(b, k, kDepth, 0, b.columns);
    Pack(right, depth, width);
    for (int64_t top = 0; top < a.rows; top += kBlockRows) {
      const Matrix block = part(a, top, kBlockRows, k, kDepth).transposed();
      Pack(left, block, kTileRows);
      for (int64_t j = 0; j < b.columns; j += width)
        for (int64_t i = 0; i < block.columns; i += kTileRows) {
          Tile(tile, left.data() + i * depth.rows, right.data() + j * depth.rows, depth.rows);
          for (int64_t row = 0; row < std::min(kTileRows, block.columns - i); ++row)
            for (int64_t column = 0; column < std::min(width, b.columns - j); ++column)
              c[(top + i + row) * stride + j + column] += scale * tile[row * width + column];
        }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick::probe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick::probe {

HWY_EXPORT(AddProduct);

void add_product(double* c, int64_t stride, const Matrix& a, const Matrix& b, double scale) {
  HWY_DYNAMIC_DISPATCH(AddProduct)(c, stride, a, b, scale);
}

}  // namespace wick::probe
#endif  // HWY_ONCE
