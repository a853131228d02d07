#include "wick/train/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "wick/train/loss_plot.h"
#include "wick/train/summary.h"

// The page without its data, in the program.
asm(".section .rodata\nwick_run_page:\n.incbin \"" WICK_RUN_PAGE "\"\n.byte 0\n.text");
extern "C" __attribute__((visibility("hidden"))) const char wick_run_page[];

namespace wick {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostPoints = 2000;  // of a curve: more than a screen has columns

// Six digits, which is more than a curve shows.
double rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

// Where `value` of a record is a finite number.
template <class F>
std::vector<PagePoint> points_of(std::span<const StepRecord> records, const F& value) {
  std::vector<PagePoint> points;
  for (const StepRecord& record : records)
    if (const std::optional<double> found = value(record); found && std::isfinite(*found))
      points.push_back({record.step, *found});
  return points;
}

Json curve(const std::string& name, const std::vector<PagePoint>& points) {
  Json pairs = Json::array();
  for (const PagePoint& point : thinned(points, kMostPoints)) pairs.push_back({point.step, rounded(point.value)});
  return {{"name", name}, {"points", std::move(pairs)}};
}

// The same moving average as in loss.png.
std::vector<PagePoint> averaged(const std::vector<PagePoint>& losses) {
  std::vector<LossPoint> points;
  for (const PagePoint& loss : losses) points.push_back({loss.step, loss.value});
  const std::vector<double> average = smoothed(points, points.size() / 20);
  std::vector<PagePoint> result = losses;
  for (size_t i = 0; i < result.size(); ++i) result[i].value = average[i];
  return result;
}

// Of the first and of the last tenth of the losses: how far the run came.
Json loss_means(const std::vector<PagePoint>& losses) {
  const size_t window = (losses.size() + 9) / 10;
  double first = 0, last = 0;
  for (size_t i = 0; i < window; ++i) first += losses[i].value, last += losses[losses.size() - 1 - i].value;
  const double share = window > 0 ? 1 / double(window) : 0;
  return {{"window", window}, {"first", rounded(first * share)}, {"last", rounded(last * share)}};
}

std::vector<PagePoint> losses_of(std::span<const StepRecord> records) {
  return points_of(records, [](const StepRecord& r) { return std::optional(r.loss); });
}

Json loss_curves(std::span<const StepRecord> records) {
  const std::vector<PagePoint> losses = losses_of(records);
  return {curve("each step", losses), curve("moving average", averaged(losses)),
          curve("validation", points_of(records, [](const StepRecord& r) { return r.val_loss; }))};
}

// Where the optimizer found it, what it found: the setting is a factor then.
Json rate_curves(std::span<const StepRecord> records) {
  const std::vector<PagePoint> found = points_of(records, [](const StepRecord& r) { return r.found_lr; });
  if (!found.empty()) return Json::array({curve("found by the optimizer", found)});
  return Json::array(
      {curve("learning rate", points_of(records, [](const StepRecord& r) { return std::optional(r.lr); }))});
}

Json norm_curves(std::span<const StepRecord> records) {
  Json curves = {curve("all", points_of(records, [](const StepRecord& r) { return std::optional(r.grad_norm); }))};
  std::vector<std::string> parts;
  for (const StepRecord& record : records)
    for (const auto& [part, norm] : record.part_norms)
      if (std::ranges::find(parts, part) == parts.end()) parts.push_back(part);
  for (const std::string& name : parts)
    curves.push_back(curve(name, points_of(records, [&](const StepRecord& r) {
                             const auto found =
                                 std::ranges::find(r.part_norms, name, &decltype(r.part_norms)::value_type::first);
                             return found == r.part_norms.end() ? std::nullopt : std::optional(found->second);
                           })));
  return curves;
}

double seconds_of(std::span<const StepRecord> records) {
  double seconds = 0;
  for (const StepRecord& record : records)
    if (std::isfinite(record.seconds)) seconds += record.seconds;
  return rounded(seconds);
}

Json lines_of(const std::vector<PageLine>& lines) {
  Json all = Json::array();
  for (const PageLine& line : lines) all.push_back({{"name", line.name}, {"text", line.text}});
  return all;
}

Json settings_of(const std::vector<PageSetting>& settings) {
  Json all = Json::array();
  for (const PageSetting& s : settings)
    all.push_back({{"subject", s.subject}, {"name", s.name}, {"value", s.value}, {"default", s.is_default}});
  return all;
}

Json previews_of(const std::vector<PagePreview>& previews) {
  Json all = Json::array();
  for (const PagePreview& p : previews)
    all.push_back({{"step", p.step}, {"index", p.index}, {"prompt", p.prompt}, {"file", p.file}, {"text", p.text}});
  return all;
}

// JSON in ASCII without "<", which nothing within a page's script can end.
std::string text_within_script(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', true, Json::error_handler_t::ignore)) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

}  // namespace

std::vector<PagePoint> thinned(std::span<const PagePoint> points, size_t most) {
  if (points.size() <= most) return {points.begin(), points.end()};
  const std::span<const PagePoint> inner = points.subspan(1, points.size() - 2);
  const size_t stretches = (most - 2) / 2;
  std::vector<PagePoint> kept{points.front()};
  for (size_t i = 0; i < stretches; ++i) {
    const size_t begin = i * inner.size() / stretches, end = (i + 1) * inner.size() / stretches;
    const auto [low, high] = std::ranges::minmax_element(inner.subspan(begin, end - begin), {}, &PagePoint::value);
    kept.push_back(std::min(*low, *high, [](const auto& a, const auto& b) { return a.step < b.step; }));
    if (low != high) kept.push_back(low->step < high->step ? *high : *low);
  }
  kept.push_back(points.back());
  return kept;
}

std::vector<PageSetting> page_settings(const TrainConfig& config) {
  const TrainConfig defaults;
  std::vector<PageSetting> settings;
  for (const TrainOption& option : train_options()) {
    const std::string value = option.toml(config);
    if (value != "\"\"" && value != "[]" && option.key != "resume")
      settings.push_back({.subject = std::string(kSubjects[size_t(option.subject)]),
                          .name = std::string(option.key),
                          .value = value,
                          .is_default = value == option.toml(defaults)});
  }
  return settings;
}

std::vector<PageLine> page_commands(const TrainConfig& config, ModelKind kind, const std::string& result) {
  const std::filesystem::path output = config.output;
  return {{config.train == TrainMode::lora ? "Use the LoRA" : "Use the model",
           command_for_result(config, kind, output / result)},
          {"Go on after a stop, or with more --steps",
           fmt::format("wick train --config {} --resume", shell_word((output / "config.toml").string()))},
          {"Compare runs", "tensorboard --logdir " + shell_word((output / "logs").string())}};
}

std::string run_page(const RunPage& page, std::span<const StepRecord> records) {
  const double time = records.empty() ? 0 : records.back().time;
  const Json run = {{"title", page.title},
                    {"step", records.empty() ? 0 : records.back().step},
                    {"steps", page.steps},
                    {"time", std::isfinite(time) ? time : 0},
                    {"seconds", seconds_of(records)},
                    {"result", page.result},
                    {"loss", loss_curves(records)},
                    {"means", loss_means(losses_of(records))},
                    {"rate", rate_curves(records)},
                    {"norms", norm_curves(records)},
                    {"previews", previews_of(page.previews)},
                    {"settings", settings_of(page.settings)},
                    {"facts", lines_of(page.facts)},
                    {"commands", lines_of(page.commands)}};
  constexpr std::string_view kPlace = "@RUN@";
  std::string html = wick_run_page;
  return html.replace(html.find(kPlace), kPlace.size(), text_within_script(run));
}

}  // namespace wick
