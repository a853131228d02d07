#include "wick/train/loss_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "wick/core/error.h"
#include "wick/io/draw.h"

namespace wick {
namespace {

constexpr Color kInk{40, 44, 52}, kGrid{226, 228, 232}, kEachStep{170, 200, 235}, kAverage{20, 90, 170},
    kValidation{200, 70, 30}, kRate{150, 155, 165};

// Everything is drawn at twice the size and halved at the end, which smooths the edges. Sizes below are the large ones.
constexpr int kWidth = 1920, kHeight = 1080, kTextSize = 36;
constexpr int kLeft = 190, kRight = 190, kTop = 170, kBottom = 150;

void draw_line(Image& canvas, double x0, double y0, double x1, double y1, int thickness, Color color) {
  const int steps = int(std::max(std::abs(x1 - x0), std::abs(y1 - y0))) + 1;
  for (int i = 0; i <= steps; ++i) {
    const double t = double(i) / steps, x = x0 + t * (x1 - x0), y = y0 + t * (y1 - y0);
    draw_rectangle(canvas, int(x) - thickness / 2, int(y) - thickness / 2, thickness, thickness, color);
  }
}

Image halved(const Image& image) {
  Image small{image.width / 2, image.height / 2, {}};
  const auto at = [&](int x, int y, size_t c) -> int {
    return image.rgb[(size_t(y) * size_t(image.width) + size_t(x)) * 3 + c];
  };
  for (int y = 0; y + 1 < image.height; y += 2)
    for (int x = 0; x + 1 < image.width; x += 2)
      for (size_t c = 0; c < 3; ++c)
        small.rgb.push_back(uint8_t((at(x, y, c) + at(x + 1, y, c) + at(x, y + 1, c) + at(x + 1, y + 1, c) + 2) / 4));
  return small;
}

struct Axis {
  std::vector<double> ticks;
  int begin, end;  // the first and the last tick on the canvas
  double at(double value) const {
    return begin + (value - ticks.front()) / (ticks.back() - ticks.front()) * (end - begin);
  }
};

std::string label(double value) { return fmt::format("{:.4g}", std::abs(value) < 1e-12 ? 0.0 : value); }

int width_of(const std::string& text) { return text_width(text, kTextSize); }
void write(Image& canvas, const std::string& text, int x, int y) { draw_text(canvas, text, x, y, kInk, kTextSize); }

void draw_axes(Image& canvas, const Axis& x, const Axis& y, const Axis& rate) {
  for (const double tick : y.ticks) {
    const int row = int(y.at(tick));
    draw_rectangle(canvas, x.begin, row, x.end - x.begin, 2, kGrid);
    write(canvas, label(tick), x.begin - 20 - width_of(label(tick)), row - kTextSize / 2);
  }
  for (const double tick : x.ticks) {
    const int column = int(x.at(tick));
    draw_rectangle(canvas, column, y.begin, 2, 14, kInk);
    write(canvas, label(tick), column - width_of(label(tick)) / 2, y.begin + 26);
  }
  for (const double tick : rate.ticks) write(canvas, label(tick), x.end + 20, int(rate.at(tick)) - kTextSize / 2);
  draw_rectangle(canvas, x.begin - 2, y.end, 4, y.begin - y.end, kInk);
  draw_rectangle(canvas, x.begin - 2, y.begin - 2, x.end - x.begin, 4, kInk);
  write(canvas, "loss", x.begin - 20 - width_of("loss"), kTop - 70);
  write(canvas, "rate", x.end + 20, kTop - 70);
  write(canvas, "step", (x.begin + x.end - width_of("step")) / 2, kHeight - 55);
}

void draw_legend(Image& canvas, bool is_validated) {
  std::vector<std::pair<std::string, Color>> entries{{"each step", kEachStep}, {"moving average", kAverage}};
  if (is_validated) entries.emplace_back("validation", kValidation);
  entries.emplace_back("learning rate", kRate);
  int x = kLeft + 40;  // apart from the name of the axis
  for (const auto& [name, color] : entries) {
    draw_rectangle(canvas, x, kTop - 58, 50, 8, color);
    write(canvas, name, x + 66, kTop - 70);
    x += 66 + width_of(name) + 50;
  }
}

// As much of it as there is room for.
void draw_title(Image& canvas, std::string title) {
  while (width_of(title) > kWidth - 2 * kTextSize && !title.empty()) title.pop_back();
  write(canvas, title, (kWidth - width_of(title)) / 2, 26);
}

// A few outliers must not flatten the curve: the axis covers all but one point in a hundred at each end.
Axis loss_axis(const std::vector<LossPoint>& points, const std::vector<double>& average) {
  std::vector<double> sorted;
  for (const LossPoint& p : points) sorted.push_back(p.loss);
  std::sort(sorted.begin(), sorted.end());
  const size_t outliers = sorted.size() / 100;
  double low = std::min(sorted[outliers], *std::min_element(average.begin(), average.end()));
  double high = std::max(sorted[sorted.size() - 1 - outliers], *std::max_element(average.begin(), average.end()));
  for (const LossPoint& p : points)
    if (p.validation) low = std::min(low, *p.validation), high = std::max(high, *p.validation);
  return {axis_ticks(low, high, 6), kHeight - kBottom, kTop};
}

Axis rate_axis(const std::vector<LossPoint>& points) {
  const auto highest = std::ranges::max_element(points, {}, &LossPoint::lr);
  return {axis_ticks(0, highest->lr, 5), kHeight - kBottom, kTop};
}

}  // namespace

std::vector<double> smoothed(const std::vector<LossPoint>& points, size_t window) {
  std::vector<double> sums{0};
  for (const LossPoint& p : points) sums.push_back(sums.back() + p.loss);
  std::vector<double> average;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t reach = std::min({window / 2, i, points.size() - 1 - i});
    average.push_back((sums[i + reach + 1] - sums[i - reach]) / double(2 * reach + 1));
  }
  return average;
}

std::vector<double> axis_ticks(double low, double high, int count) {
  if (!(high - low > std::abs(high) * 1e-9)) {  // one value, or all the same
    const double around = std::max(1e-6, std::abs(low) * 0.1);
    low -= around, high += around;
  }
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  const double fraction = raw / power;
  const double step = power * (fraction <= 1 ? 1 : fraction <= 2 ? 2 : fraction <= 5 ? 5 : 10);
  std::vector<double> ticks;
  for (double n = std::floor(low / step + 1e-9); ticks.empty() || ticks.back() < high - step * 1e-9; ++n)
    ticks.push_back(n * step);
  return ticks;
}

Image plot_loss(const std::vector<LossPoint>& points, const std::string& title) {
  check(!points.empty(), "plot_loss: there is no point to draw");
  const std::vector<double> average = smoothed(points, points.size() / 20);
  const Axis y = loss_axis(points, average), rate = rate_axis(points);
  const Axis x{axis_ticks(double(points.front().step), double(points.back().step), 8), kLeft, kWidth - kRight};
  const auto column = [&](size_t i) { return x.at(double(points[i].step)); };
  const auto row = [](const Axis& axis, double value) {
    return std::clamp(axis.at(value), double(kTop), double(kHeight - kBottom));
  };

  Image canvas = blank_image(kWidth, kHeight, {255, 255, 255});
  draw_axes(canvas, x, y, rate);
  draw_title(canvas, title);
  const auto curve = [&](const Axis& axis, auto value, int thickness, Color color) {
    for (size_t i = 0; i < points.size(); ++i) {
      const size_t before = i == 0 ? 0 : i - 1;
      draw_line(canvas, column(before), row(axis, value(before)), column(i), row(axis, value(i)), thickness, color);
    }
  };
  curve(
      rate, [&](size_t i) { return points[i].lr; }, 3, kRate);
  curve(
      y, [&](size_t i) { return points[i].loss; }, 3, kEachStep);
  curve(
      y, [&](size_t i) { return average[i]; }, 7, kAverage);
  constexpr int kDot = 14;
  bool is_validated = false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!points[i].validation) continue;
    is_validated = true;
    draw_rectangle(canvas, int(column(i)) - kDot / 2, int(row(y, *points[i].validation)) - kDot / 2, kDot, kDot,
                   kValidation);
  }
  draw_legend(canvas, is_validated);
  return halved(canvas);
}

}  // namespace wick
