// Drawing on images: just enough for picture grids and plots. Everything is clipped to the canvas.
#pragma once

#include <string_view>

#include "wick/io/image.h"

namespace wick {

struct Color {
  uint8_t r, g, b;
};

Image blank_image(int width, int height, Color color);
void draw_image(Image& canvas, const Image& image, int x, int y, int scale = 1);  // each pixel a square of `scale`
void draw_rectangle(Image& canvas, int x, int y, int width, int height, Color color);

// Text in a fixed-width bitmap font of our own: printable ASCII; a box stands for every other character. A glyph takes
// 6 x 8 dots of `scale` pixels, its gaps to the right and below included.
inline constexpr int kGlyphWidth = 6, kGlyphHeight = 8;
int text_width(std::string_view utf8, int scale = 1);
void draw_text(Image& canvas, std::string_view utf8, int x, int y, Color color, int scale = 1);

}  // namespace wick
