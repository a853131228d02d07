#include "wick/io/draw.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace wick {
namespace {

// 5 x 7 dots a glyph, from the space to the tilde: a row a number, the leftmost dot the highest of five bits.
using Glyph = std::array<uint8_t, 7>;
// clang-format off
constexpr Glyph kFont[] = {
    {0, 0, 0, 0, 0, 0, 0}, {4, 4, 4, 4, 4, 0, 4}, {10, 10, 0, 0, 0, 0, 0}, {10, 10, 31, 10, 31, 10, 10},  //  !"#
    {4, 15, 20, 14, 5, 30, 4}, {25, 25, 2, 4, 8, 19, 19}, {12, 18, 20, 8, 21, 18, 13}, {4, 4, 0, 0, 0, 0, 0},  // $%&'
    {2, 4, 8, 8, 8, 4, 2}, {8, 4, 2, 2, 2, 4, 8}, {0, 4, 21, 14, 21, 4, 0}, {0, 4, 4, 31, 4, 4, 0},  // ()*+
    {0, 0, 0, 0, 12, 4, 8}, {0, 0, 0, 31, 0, 0, 0}, {0, 0, 0, 0, 0, 12, 12}, {0, 1, 2, 4, 8, 16, 0},  // ,-./
    {14, 17, 19, 21, 25, 17, 14}, {4, 12, 4, 4, 4, 4, 14}, {14, 17, 1, 2, 4, 8, 31}, {31, 2, 4, 2, 1, 17, 14},  // 0123
    {2, 6, 10, 18, 31, 2, 2}, {31, 16, 30, 1, 1, 17, 14}, {6, 8, 16, 30, 17, 17, 14}, {31, 1, 2, 4, 8, 8, 8},  // 4567
    {14, 17, 17, 14, 17, 17, 14}, {14, 17, 17, 15, 1, 2, 12}, {0, 12, 12, 0, 12, 12, 0}, {0, 12, 12, 0, 12, 4, 8},  // 89:;
    {2, 4, 8, 16, 8, 4, 2}, {0, 0, 31, 0, 31, 0, 0}, {8, 4, 2, 1, 2, 4, 8}, {14, 17, 1, 2, 4, 0, 4},  // <=>?
    {14, 17, 23, 21, 22, 16, 14}, {14, 17, 17, 31, 17, 17, 17}, {30, 17, 17, 30, 17, 17, 30}, {14, 17, 16, 16, 16, 17, 14},  // @ABC
    {30, 17, 17, 17, 17, 17, 30}, {31, 16, 16, 30, 16, 16, 31}, {31, 16, 16, 30, 16, 16, 16}, {14, 17, 16, 23, 17, 17, 15},  // DEFG
    {17, 17, 17, 31, 17, 17, 17}, {14, 4, 4, 4, 4, 4, 14}, {7, 2, 2, 2, 2, 18, 12}, {17, 18, 20, 24, 20, 18, 17},  // HIJK
    {16, 16, 16, 16, 16, 16, 31}, {17, 27, 21, 21, 17, 17, 17}, {17, 25, 21, 19, 17, 17, 17}, {14, 17, 17, 17, 17, 17, 14},  // LMNO
    {30, 17, 17, 30, 16, 16, 16}, {14, 17, 17, 17, 21, 18, 13}, {30, 17, 17, 30, 20, 18, 17}, {15, 16, 16, 14, 1, 1, 30},  // PQRS
    {31, 4, 4, 4, 4, 4, 4}, {17, 17, 17, 17, 17, 17, 14}, {17, 17, 17, 17, 17, 10, 4}, {17, 17, 17, 21, 21, 21, 10},  // TUVW
    {17, 17, 10, 4, 10, 17, 17}, {17, 17, 10, 4, 4, 4, 4}, {31, 1, 2, 4, 8, 16, 31}, {14, 8, 8, 8, 8, 8, 14},  // XYZ[
    {0, 16, 8, 4, 2, 1, 0}, {14, 2, 2, 2, 2, 2, 14}, {4, 10, 17, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 31},  // \ ]^_
    {8, 4, 0, 0, 0, 0, 0}, {0, 0, 14, 1, 15, 17, 15}, {16, 16, 22, 25, 17, 17, 30}, {0, 0, 14, 16, 16, 17, 14},  // `abc
    {1, 1, 13, 19, 17, 17, 15}, {0, 0, 14, 17, 31, 16, 14}, {6, 9, 8, 28, 8, 8, 8}, {0, 15, 17, 17, 15, 1, 14},  // defg
    {16, 16, 22, 25, 17, 17, 17}, {4, 0, 12, 4, 4, 4, 14}, {2, 0, 6, 2, 2, 18, 12}, {16, 16, 18, 20, 24, 20, 18},  // hijk
    {12, 4, 4, 4, 4, 4, 14}, {0, 0, 26, 21, 21, 17, 17}, {0, 0, 22, 25, 17, 17, 17}, {0, 0, 14, 17, 17, 17, 14},  // lmno
    {0, 0, 30, 17, 30, 16, 16}, {0, 0, 15, 17, 15, 1, 1}, {0, 0, 22, 25, 16, 16, 16}, {0, 0, 14, 16, 14, 1, 30},  // pqrs
    {8, 8, 28, 8, 8, 9, 6}, {0, 0, 17, 17, 17, 19, 13}, {0, 0, 17, 17, 17, 10, 4}, {0, 0, 17, 17, 21, 21, 10},  // tuvw
    {0, 0, 17, 10, 4, 10, 17}, {0, 0, 17, 17, 15, 1, 14}, {0, 0, 31, 2, 4, 8, 31}, {2, 4, 4, 8, 4, 4, 2},  // xyz{
    {4, 4, 4, 4, 4, 4, 4}, {8, 4, 4, 2, 4, 4, 8}, {0, 0, 8, 21, 2, 0, 0},  // |}~
};
// clang-format on
constexpr Glyph kUnknown{31, 17, 17, 17, 17, 17, 31};

const Glyph& glyph_of(char c) { return c >= ' ' && c <= '~' ? kFont[c - ' '] : kUnknown; }
bool continues_utf8(char c) { return (uint8_t(c) & 0xc0) == 0x80; }

}  // namespace

Image blank_image(int width, int height, Color color) {
  Image image{width, height, std::vector<uint8_t>(size_t(width) * size_t(height) * 3)};
  draw_rectangle(image, 0, 0, width, height, color);
  return image;
}

void draw_image(Image& canvas, const Image& image, int x, int y, int scale) {
  for (int row = 0; row < image.height; ++row)
    for (int column = 0; column < image.width; ++column) {
      const uint8_t* pixel = &image.rgb[(size_t(row) * size_t(image.width) + size_t(column)) * 3];
      draw_rectangle(canvas, x + column * scale, y + row * scale, scale, scale, {pixel[0], pixel[1], pixel[2]});
    }
}

void draw_rectangle(Image& canvas, int x, int y, int width, int height, Color color) {
  for (int row = std::max(0, y); row < std::min(canvas.height, y + height); ++row)
    for (int column = std::max(0, x); column < std::min(canvas.width, x + width); ++column) {
      uint8_t* pixel = &canvas.rgb[(size_t(row) * size_t(canvas.width) + size_t(column)) * 3];
      pixel[0] = color.r, pixel[1] = color.g, pixel[2] = color.b;
    }
}

int text_width(std::string_view utf8, int scale) {
  const auto characters = std::count_if(utf8.begin(), utf8.end(), [](char c) { return !continues_utf8(c); });
  return int(characters) * kGlyphWidth * scale;
}

void draw_text(Image& canvas, std::string_view utf8, int x, int y, Color color, int scale) {
  for (const char c : utf8) {
    if (continues_utf8(c)) continue;
    const Glyph& glyph = glyph_of(c);
    for (int row = 0; row < 7; ++row)
      for (int column = 0; column < 5; ++column)
        if (glyph[size_t(row)] >> (4 - column) & 1)
          draw_rectangle(canvas, x + column * scale, y + row * scale, scale, scale, color);
    x += kGlyphWidth * scale;
  }
}

}  // namespace wick
