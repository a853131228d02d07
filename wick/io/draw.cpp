#include "wick/io/draw.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "wick/core/error.h"

#define STB_TRUETYPE_IMPLEMENTATION
#define STBTT_STATIC
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include <stb/stb_truetype.h>
#pragma GCC diagnostic pop

// The font's file, in the program: pictures look the same on every machine.
asm(".section .rodata\n.balign 16\nwick_font:\n.incbin \"" WICK_FONT "\"\n.byte 0\n.text");
extern "C" __attribute__((visibility("hidden"))) const unsigned char wick_font[];

namespace wick {
namespace {

const stbtt_fontinfo& font() {
  static const stbtt_fontinfo font = [] {
    stbtt_fontinfo info;
    check(stbtt_InitFont(&info, wick_font, 0) != 0, "the program's font cannot be read");
    return info;
  }();
  return font;
}

// Calls f(glyph, x) for each character, x in pixels from the line's start; returns the line's width.
template <class F>
double for_glyphs(std::string_view utf8, int size, const F& f) {
  const float scale = stbtt_ScaleForPixelHeight(&font(), float(size));
  double x = 0;
  int before = 0;
  while (!utf8.empty()) {
    utf8proc_int32_t character;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(utf8.data());
    const auto length = utf8proc_iterate(bytes, utf8proc_ssize_t(utf8.size()), &character);
    if (length < 0) character = 0xfffd;
    utf8.remove_prefix(size_t(std::max<utf8proc_ssize_t>(length, 1)));
    const int glyph = stbtt_FindGlyphIndex(&font(), character < ' ' ? ' ' : character);
    int advance = 0;
    stbtt_GetGlyphHMetrics(&font(), glyph, &advance, nullptr);
    if (before) x += scale * float(stbtt_GetGlyphKernAdvance(&font(), before, glyph));
    f(glyph, x);
    x += scale * float(advance);
    before = glyph;
  }
  return x;
}

// Mixes `color` into one pixel, `cover` of 255 parts.
void blend(Image& canvas, int x, int y, Color color, int cover) {
  if (x < 0 || y < 0 || x >= canvas.width || y >= canvas.height) return;
  uint8_t* const pixel = &canvas.rgb[(size_t(y) * size_t(canvas.width) + size_t(x)) * 3];
  const uint8_t ink[3] = {color.r, color.g, color.b};
  for (int c = 0; c < 3; ++c) pixel[c] = uint8_t((pixel[c] * (255 - cover) + ink[c] * cover + 127) / 255);
}

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

int text_width(std::string_view utf8, int size) {
  return int(std::ceil(for_glyphs(utf8, size, [](int, double) {})));
}

void draw_text(Image& canvas, std::string_view utf8, int x, int y, Color color, int size) {
  const float scale = stbtt_ScaleForPixelHeight(&font(), float(size));
  int ascent = 0;
  stbtt_GetFontVMetrics(&font(), &ascent, nullptr, nullptr);
  const int baseline = y + int(std::lround(scale * float(ascent)));
  std::vector<uint8_t> cover;
  for_glyphs(utf8, size, [&](int glyph, double at) {
    const double whole = std::floor(at);
    int left, top, right, bottom;
    stbtt_GetGlyphBitmapBoxSubpixel(&font(), glyph, scale, scale, float(at - whole), 0, &left, &top, &right, &bottom);
    const int width = right - left, height = bottom - top;
    cover.assign(size_t(width) * size_t(height), 0);
    stbtt_MakeGlyphBitmapSubpixel(&font(), cover.data(), width, height, width, scale, scale, float(at - whole), 0,
                                  glyph);
    for (int row = 0; row < height; ++row)
      for (int column = 0; column < width; ++column)
        blend(canvas, x + int(whole) + left + column, baseline + top + row, color,
              cover[size_t(row) * size_t(width) + size_t(column)]);
  });
}

}  // namespace wick
