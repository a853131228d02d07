// Pictures side by side with their labels.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "wick/io/image.h"

namespace wick {

struct ImageGrid {
  std::vector<std::string> columns, rows;  // labels
  std::vector<Image> cells;                // row by row, all of one size
};

// Width and height of the grid, in pixels, of cells of that size.
std::pair<int64_t, int64_t> size_of_grid(const ImageGrid& labels, int64_t width, int64_t height);
Image draw_grid(const ImageGrid& grid);

}  // namespace wick
