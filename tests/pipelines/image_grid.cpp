#include "wick/pipelines/image_grid.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "wick/io/draw.h"

namespace wick {
namespace {

TEST(Draw, ClipsToTheCanvas) {
  Image canvas = blank_image(4, 3, {0, 0, 0});
  draw_rectangle(canvas, -5, -5, 6, 6, {255, 255, 255});
  draw_image(canvas, blank_image(2, 2, {9, 9, 9}), 3, 2, 3);
  draw_text(canvas, "W", 100, 100, {1, 1, 1}, 16);
  std::vector<uint8_t> red;
  for (size_t i = 0; i < canvas.rgb.size(); i += 3) red.push_back(canvas.rgb[i]);
  EXPECT_EQ(red, (std::vector<uint8_t>{255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9}));
}

TEST(Draw, LettersAreThemselves) {
  const auto drawn = [](std::string_view text) {
    Image canvas = blank_image(40, 40, {255, 255, 255});
    draw_text(canvas, text, 4, 4, {0, 0, 0}, 24);
    return canvas.rgb;
  };
  EXPECT_NE(drawn("g"), drawn("9"));
  EXPECT_NE(drawn("é"), drawn("\uffff"));  // a box stands for that
  EXPECT_NE(drawn("é"), drawn("e"));
  EXPECT_NE(drawn("Ж"), drawn("\uffff"));
  EXPECT_EQ(drawn("\xff"), drawn("\ufffd"));
  EXPECT_EQ(drawn("a\n"), drawn("a "));
}

TEST(Draw, TextIsAsWideAsItsLetters) {
  EXPECT_EQ(text_width("", 16), 0);
  EXPECT_LT(text_width("iii", 16), text_width("mmm", 16));
  EXPECT_EQ(text_width("fur", 40), text_width("für", 40));
  EXPECT_NEAR(text_width("abc", 32), 2 * text_width("abc", 16), 1);
  Image canvas = blank_image(200, 40, {0, 0, 0});
  draw_text(canvas, "gjpqy|", 0, 4, {9, 9, 9}, 32);
  for (int x = 0; x < 200; ++x)
    for (const int y : {2, 37})
      EXPECT_EQ(canvas.rgb[size_t(y * 200 + x) * 3], 0) << "above or below the line, at " << x;
  for (int y = 0; y < 40; ++y) EXPECT_EQ(canvas.rgb[size_t(y * 200 + text_width("gjpqy|", 32)) * 3], 0);
}

TEST(ImageGrid, HoldsEveryPicture) {
  const ImageGrid grid{.columns = {"a red circle", "b"},
                       .rows = {"seed 1"},
                       .cells = {blank_image(300, 200, {200, 0, 0}), blank_image(300, 200, {0, 0, 200})}};
  const Image image = draw_grid(grid);
  size_t red = 0, blue = 0;
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    red += image.rgb[i] == 200 && image.rgb[i + 1] == 0;
    blue += image.rgb[i + 2] == 200 && image.rgb[i + 1] == 0;
  }
  EXPECT_EQ(red, size_t{300 * 200});
  EXPECT_EQ(blue, size_t{300 * 200});
}

TEST(ImageGrid, RejectsAWrongCount) {
  const ImageGrid grid{.columns = {"a", "b"}, .rows = {"1"}, .cells = {blank_image(8, 8, {0, 0, 0})}};
  expect_error([&] { draw_grid(grid); }, {"1 x 2", "found 1"});
}

// A path is one word: it is broken, and cut after some lines, so that nothing is drawn above the next column.
TEST(ImageGrid, LongWordsStayAboveTheirColumn) {
  std::string accents;
  for (int i = 0; i < 40; ++i) accents += "\u00e9";
  const std::string wide(40, 'W');
  for (const std::string& label : {wide, std::string(400, 'W'), "a  b " + wide + " c", accents}) {
    ImageGrid grid{.columns = {label, ""}, .rows = {""}};
    for (int i = 0; i < 2; ++i) grid.cells.push_back(blank_image(256, 64, {255, 255, 255}));
    const Image image = draw_grid(grid);
    const int64_t next_column = image.width - 256 - 9;
    int64_t above_first = 0, beyond = 0;
    for (int64_t y = 0; y < image.height; ++y)
      for (int64_t x = 0; x < image.width; ++x)
        if (image.rgb[size_t(3 * (y * image.width + x))] < 200) ++(x < next_column ? above_first : beyond);
    EXPECT_GT(above_first, 100);
    EXPECT_EQ(beyond, 0) << label;
  }
}

}  // namespace
}  // namespace wick
