// index.html of a run: curves, previews, settings and data in one file, which a browser opens from the disk without a
// server or a network. It is made from the run's records, and made anew as they grow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wick/train/config.h"
#include "wick/train/run_log.h"

namespace wick {

// What the model makes of a prompt after a step: a picture, or a text.
struct PagePreview {
  int64_t step = 0;
  size_t index = 0;  // of the prompt among all; the rows of the page
  std::string prompt;
  std::string file;  // a picture, relative to the page; empty for texts
  std::string text;
};

struct PageSetting {
  std::string subject, name, value;  // name and value as config.toml has them
  bool is_default = false;
};

struct PageLine {
  std::string name, text;
  bool operator==(const PageLine&) const = default;
};

struct RunPage {
  std::string title;
  int64_t steps = 0;   // that were asked for
  std::string result;  // the file or folder that the last of them leaves, relative to the page
  std::vector<PageSetting> settings;
  std::vector<PageLine> facts;     // model, data set, memory
  std::vector<PageLine> commands;  // for a shell, and what they are for
  std::vector<PagePreview> previews;
};

// All that have a value.
std::vector<PageSetting> page_settings(const TrainConfig& config);

// Ways to go on with a run and its result, which lies at `result`.
std::vector<PageLine> page_commands(const TrainConfig& config, ModelKind kind, const std::string& result);

// The whole file, below 1 MB whatever the number of records. Any text may be hostile: it stays text. Numbers that are
// not finite, and bytes that are not UTF-8, are left out.
std::string run_page(const RunPage& page, std::span<const StepRecord> records);

struct PagePoint {
  int64_t step = 0;
  double value = 0;
  bool operator==(const PagePoint&) const = default;
};

// At most `most` (4 or more) of the points, in their order: the first, the last, and the lowest and highest of each of
// as many stretches, so that no peak is lost.
std::vector<PagePoint> thinned(std::span<const PagePoint> points, size_t most);

}  // namespace wick
