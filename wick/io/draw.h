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

// A line of text in DejaVu Sans, smoothed, `size` pixels high from ascenders to descenders; (x, y) is its upper left
// corner. A box stands for each character that the font does not have, U+FFFD for invalid UTF-8.
int text_width(std::string_view utf8, int size);
void draw_text(Image& canvas, std::string_view utf8, int x, int y, Color color, int size);

}  // namespace wick
