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

// The length in bytes of the longest prefix that is no wider: whole characters, at least one.
size_t fitting(std::string_view word, int width, int size) {
  const auto next = [&](size_t at) {
    do ++at;
    while (at < word.size() && (word[at] & 0xC0) == 0x80);
    return at;
  };
  size_t end = next(0);
  while (end < word.size() && text_width(word.substr(0, next(end)), size) <= width) end = next(end);
  return end;
}

// The words of a text. A word that is wider than a line, a path for example, is cut into parts.
std::vector<std::string> words_of(std::string_view text, int width, int size) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (space == 0) {
      text.remove_prefix(1);
      continue;
    }
    const size_t end = fitting(text.substr(0, space), width, size);
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end + (end == space && space < text.size() ? 1 : 0));
  }
  return words;
}

std::vector<std::string> wrap(std::string_view text, int width, int size) {
  constexpr size_t kMaxLines = 5;
  std::vector<std::string> lines(1);
  for (const std::string& word : words_of(text, width, size)) {
    const bool fits = text_width(lines.back() + " " + word, size) <= width;
    if (lines.back().empty())
      lines.back() = word;
    else if (fits)
      lines.back() += " " + word;
    else if (lines.size() < kMaxLines)
      lines.push_back(word);
    else {
      const std::string more = " ...";
      lines.back().resize(fitting(lines.back(), width - text_width(more, size), size));
      lines.back() += more;
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

struct Layout {
  int zoom, width, height;                             // of a cell as it is drawn
  int size, gap;                                       // of letters; between cells
  int left, top;                                       // of the first cell
  std::vector<std::vector<std::string>> columns = {};  // lines

  int x(size_t column) const { return left + (width + gap) * int(column); }
  int y(size_t row) const { return top + (height + gap) * int(row); }
};

Layout layout_of(const ImageGrid& grid, int64_t cell_width, int64_t cell_height) {
  const int zoom = std::max(1, kReadable / int(cell_width));
  Layout layout{.zoom = zoom, .width = int(cell_width) * zoom, .height = int(cell_height) * zoom};
  layout.size = std::max(18, layout.width / 32);
  layout.gap = layout.size / 2;
  size_t header_lines = 0;
  for (const std::string& label : grid.columns) {
    layout.columns.push_back(wrap(label, layout.width, layout.size));
    header_lines = std::max(header_lines, layout.columns.back().size());
  }
  int margin = 0;
  for (const std::string& label : grid.rows) margin = std::max(margin, text_width(label, layout.size));
  layout.left = margin + 2 * layout.gap;
  layout.top = int(header_lines) * line_height(layout.size) + 2 * layout.gap;
  return layout;
}

}  // namespace

std::pair<int64_t, int64_t> size_of_grid(const ImageGrid& labels, int64_t width, int64_t height) {
  const Layout layout = layout_of(labels, width, height);
  return {layout.x(labels.columns.size()), layout.y(labels.rows.size())};
}

Image draw_grid(const ImageGrid& grid) {
  check(!grid.cells.empty() && grid.cells.size() == grid.columns.size() * grid.rows.size(),
        "grid: expected {} x {} pictures, found {}", grid.rows.size(), grid.columns.size(), grid.cells.size());
  const Layout layout = layout_of(grid, grid.cells.front().width, grid.cells.front().height);
  const size_t columns = grid.columns.size(), rows = grid.rows.size();
  Image canvas = blank_image(layout.x(columns), layout.y(rows), kPaper);
  for (size_t c = 0; c < columns; ++c) draw_lines(canvas, layout.columns[c], layout.x(c), layout.gap, layout.size);
  for (size_t r = 0; r < rows; ++r) {
    const int y = layout.y(r) + (layout.height - layout.size) / 2;
    draw_text(canvas, grid.rows[r], layout.gap, y, kInk, layout.size);
    for (size_t c = 0; c < columns; ++c)
      draw_image(canvas, grid.cells[r * columns + c], layout.x(c), layout.y(r), layout.zoom);
  }
  return canvas;
}

}  // namespace wick
