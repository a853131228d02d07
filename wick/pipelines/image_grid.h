// Pictures side by side with their labels.
#pragma once

#include <string>
#include <vector>

#include "wick/io/image.h"

namespace wick {

struct ImageGrid {
  std::vector<std::string> columns, rows;  // labels
  std::vector<Image> cells;                // row by row, all of one size
};

Image draw_grid(const ImageGrid& grid);

}  // namespace wick
