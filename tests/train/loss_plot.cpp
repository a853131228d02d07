// The loss curve: round numbers on its axes, a mean that does not lag, and ink where the points are.
#include "wick/train/loss_plot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/files.h"
#include "wick/train/run_log.h"

namespace wick {
namespace {

TEST(LossPlot, TicksAreRoundAndCover) {
  EXPECT_EQ(axis_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(axis_ticks(3, 47, 5), (std::vector<double>{0, 10, 20, 30, 40, 50}));
  for (const auto& [low, high] : {std::pair{0.011, 0.013}, {-3.0, 5e6}, {7.0, 7.0}, {0.0, 0.0}}) {
    const std::vector<double> ticks = axis_ticks(low, high, 6);
    EXPECT_LE(ticks.front(), low);
    EXPECT_GE(ticks.back(), high);
    EXPECT_GE(ticks.size(), 3u);
    EXPECT_LE(ticks.size(), 14u);
  }
}

TEST(LossPlot, TheMeanIsCentred) {
  std::vector<LossPoint> line;
  for (int64_t i = 0; i < 50; ++i) line.push_back({i + 1, 2.0 * double(i)});
  const std::vector<double> average = smoothed(line, 11);
  for (size_t i = 0; i < 50; ++i) EXPECT_NEAR(average[i], line[i].loss, 1e-9) << "a straight line stays where it is";
}

TEST(LossPlot, DrawsOneToManyPoints) {
  for (const int64_t count : {1, 2, 500}) {
    std::vector<LossPoint> points;
    for (int64_t i = 1; i <= count; ++i) points.push_back({i, 1 / double(i), 1e-4 / double(i)});
    const Image image = plot_loss(points, "fox: a LoRA of rank 4 on sdxl");
    const auto dark = std::count_if(image.rgb.begin(), image.rgb.end(), [](uint8_t c) { return c < 100; });
    EXPECT_GT(dark, 3000);
    EXPECT_EQ(image.rgb.size(), size_t(image.width) * size_t(image.height) * 3);
  }
}

int64_t pixels_like(const Image& image, int r, int g, int b) {
  int64_t count = 0;
  for (size_t i = 0; i < image.rgb.size(); i += 3)
    count += std::abs(image.rgb[i] - r) + std::abs(image.rgb[i + 1] - g) + std::abs(image.rgb[i + 2] - b) < 60;
  return count;
}

TEST(LossPlot, ShowsTitleRateAndValidation) {
  std::vector<LossPoint> points;
  for (int64_t i = 1; i <= 100; ++i) points.push_back({i, 2 + std::sin(double(i)), 1e-4 * double(i)});
  const Image plain = plot_loss(points, "");
  EXPECT_EQ(pixels_like(plain, 200, 70, 30), 0);
  EXPECT_GT(pixels_like(plain, 150, 155, 165), 500) << "the rate's line";
  points[49].validation = 2.5;
  const Image validated = plot_loss(points, std::string(500, 'W'));  // wider than the picture: cut
  EXPECT_GT(pixels_like(validated, 200, 70, 30), 20);
  EXPECT_GT(pixels_like(validated, 40, 44, 52), pixels_like(plain, 40, 44, 52) + 1000) << "the title";
}

TEST(LossPlot, ARunsPlotShowsTheRateThatWasFound) {
  const TemporaryDirectory folder;
  RunLog log(folder.path(), 0, "fox");
  log.add({.step = 1, .loss = 2, .lr = 1, .found_lr = 1e-3});
  log.draw_plot();
  EXPECT_EQ(read_image(folder / "loss.png").rgb, plot_loss({{1, 2, 1e-3}}, "fox").rgb);
}

}  // namespace
}  // namespace wick
