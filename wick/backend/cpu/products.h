// f32 matrix products shared among threads. A product is cut into tiles of c, whose sizes depend on its shape alone;
// each tile is one product of oneDNN's on one thread, over all of the inner dimension. So no bits depend on the number
// of threads.
#pragma once

#include <vector>

#include "wick/backend/cpu/gemm.h"

namespace wick {

// Tiles of a matrix [rows, cols] whose product sums `inner` terms an element.
class Tiles {
 public:
  Tiles(int64_t rows, int64_t cols, int64_t inner);

  int64_t count() const { return row_parts_ * col_parts_; }
  struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  Range rows(int64_t tile) const { return part(tile / col_parts_, rows_, row_parts_); }
  Range cols(int64_t tile) const { return part(tile % col_parts_, cols_, col_parts_); }

 private:
  static Range part(int64_t index, int64_t extent, int64_t parts);

  int64_t rows_, cols_, row_parts_ = 1, col_parts_ = 1;
};

// Products that do not read each other's results, as one job.
class Products {
 public:
  // c = alpha * a b + beta * c
  void add(const Matrix& c, const Matrix& a, const Matrix& b, float alpha = 1, float beta = 0);
  void run() const;

 private:
  struct Product {
    Matrix c, a, b;
    float alpha, beta;
    Tiles tiles;
    int64_t first;  // its first tile, among those of all products
  };
  void run_tile(int64_t tile) const;

  std::vector<Product> all_;
  int64_t tiles_ = 0;
  double flops_ = 0;
};

}  // namespace wick
