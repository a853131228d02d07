#include "wick/pipelines/image_grid.h"

#include <algorithm>
#include <string_view>

#include "wick/core/error.h"
#include "wick/io/draw.h"

namespace wick {
namespace {

constexpr Color kPaper{255, 255, 255}, kInk{40, 44, 52};
constexpr int kReadable = 256;  // smaller pictures are enlarged to about this

int line_height(int size) { return size * 5 / 4; }

std::vector<std::string> wrap(std::string_view text, int width, int size) {
  constexpr size_t kMaxLines = 5;
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string word(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
    const bool fits = text_width(lines.back() + " " + word, size) <= width;
    if (lines.back().empty())
      lines.back() = word;
    else if (fits)
      lines.back() += " " + word;
    else if (lines.size() < kMaxLines)
      lines.push_back(word);
    else {
      lines.back() += " ...";
      break;
    }
  }
  return lines;
}

void draw_lines(Image& canvas, const std::vector<std::string>& lines, int x, int y, int size) {
  for (const std::string& line : lines) {
    draw_text(canvas, line, x, y, kInk, size);
    y += line_height(size);
  }
}

}  // namespace

Image draw_grid(const ImageGrid& grid) {
  check(!grid.cells.empty() && grid.cells.size() == grid.columns.size() * grid.rows.size(),
        "grid: expected {} x {} pictures, found {}", grid.rows.size(), grid.columns.size(), grid.cells.size());
  const int zoom = std::max(1, kReadable / grid.cells.front().width);
  const int width = grid.cells.front().width * zoom, height = grid.cells.front().height * zoom;
  const int size = std::max(18, width / 32), gap = size / 2, line = line_height(size);

  std::vector<std::vector<std::string>> columns;
  size_t header_lines = 0;
  for (const std::string& label : grid.columns) {
    columns.push_back(wrap(label, width, size));
    header_lines = std::max(header_lines, columns.back().size());
  }
  int margin = 0;
  for (const std::string& label : grid.rows) margin = std::max(margin, text_width(label, size));
  const int left = margin + 2 * gap, top = int(header_lines) * line + 2 * gap;

  Image canvas =
      blank_image(left + (width + gap) * int(columns.size()), top + (height + gap) * int(grid.rows.size()), kPaper);
  for (size_t c = 0; c < columns.size(); ++c) draw_lines(canvas, columns[c], left + (width + gap) * int(c), gap, size);
  for (size_t r = 0; r < grid.rows.size(); ++r) {
    const int y = top + (height + gap) * int(r);
    draw_text(canvas, grid.rows[r], gap, y + (height - size) / 2, kInk, size);
    for (size_t c = 0; c < columns.size(); ++c)
      draw_image(canvas, grid.cells[r * columns.size() + c], left + (width + gap) * int(c), y, zoom);
  }
  return canvas;
}

}  // namespace wick
