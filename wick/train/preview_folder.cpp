#include "wick/train/preview_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "wick/core/error.h"
#include "wick/io/draw.h"
#include "wick/io/file.h"
#include "wick/pipelines/image_grid.h"
#include "wick/text/unicode.h"
#include "wick/train/event_file.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr int kSmall = 256;           // pixels: the longest side of a picture in the sheet
constexpr size_t kMostColumns = 16;   // of the sheet: of more steps some are left out, evenly
constexpr size_t kMostOfPrompt = 40;  // bytes of a prompt in labels

std::string shortened(const std::string& prompt) {
  std::string text;
  for (size_t at = 0; at < prompt.size(); at += std::max(utf8_length(prompt, at), size_t{1})) {
    if (at > kMostOfPrompt) return text + "…";
    text += prompt.substr(at, std::max(utf8_length(prompt, at), size_t{1}));
  }
  return text;
}

double unix_time_of(const fs::path& file) {
  const auto written = std::chrono::file_clock::to_sys(fs::last_write_time(file));
  return std::chrono::duration<double>(written.time_since_epoch()).count();
}

Image made_small(const Image& image) {
  const double scale = std::min(1.0, double(kSmall) / double(std::max(image.width, image.height)));
  const auto side = [&](int pixels) { return std::max(1, int(double(pixels) * scale)); };
  return scale < 1 ? resize_image(image, side(image.width), side(image.height)) : image;
}

// So many of them, the first and the last among these.
std::vector<int64_t> evenly(const std::vector<int64_t>& steps, size_t count) {
  if (steps.size() <= count) return steps;
  std::vector<int64_t> some;
  for (size_t i = 0; i < count; ++i) some.push_back(steps[i * (steps.size() - 1) / (count - 1)]);
  return some;
}

}  // namespace

PreviewFolder::PreviewFolder(fs::path output, std::string name, const std::vector<SamplePrompt>& prompts,
                             std::optional<int64_t> step)
    : output_(std::move(output)), name_(std::move(name)) {
  make_directories(folder());
  remove_stale_temporaries(folder());
  find(step);
  number_prompts(prompts, !step);
  std::string records = file_version_record(0);
  std::erase_if(files_, [&](const auto& stored) {  // that are damaged
    try {
      records += record_of(stored.first, stored.second);
      return false;
    } catch (const std::runtime_error&) {
      return true;
    }
  });
  events_.emplace(output_ / "logs" / "samples" / "events.out.tfevents.wick", records);
}

fs::path PreviewFolder::file_of(Place place, const char* extension) const {
  return folder() / fmt::format("{}-{:06}-{:02}{}", name_, place.first, place.second, extension);
}

std::optional<PreviewFolder::Place> PreviewFolder::place_of(const fs::path& file) const {
  const std::string stem = file.stem().string();
  if ((file.extension() != ".png" && file.extension() != ".txt") || !stem.starts_with(name_ + "-")) return {};
  Place place;
  const char* const end = stem.data() + stem.size();
  const auto [dash, no_step] = std::from_chars(stem.data() + name_.size() + 1, end, place.first);
  if (no_step != std::errc() || dash == end || *dash != '-') return {};
  const auto [rest, no_number] = std::from_chars(dash + 1, end, place.second);
  if (no_number != std::errc() || rest != end) return {};
  return place;
}

void PreviewFolder::find(std::optional<int64_t> step) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder())) {
    const std::optional<Place> place = place_of(entry.path());
    if (!place) continue;
    std::error_code ignored;
    if (step && place->first <= *step)
      files_[*place] = entry.path();
    else
      fs::remove(entry.path(), ignored);
  }
}

void PreviewFolder::number_prompts(const std::vector<SamplePrompt>& prompts, bool anew) {
  const fs::path list = folder() / "prompts.txt";
  std::error_code missing;
  if (!anew && fs::exists(list, missing)) {
    std::istringstream lines(read_file(list));
    for (std::string line; std::getline(lines, line);) prompts_.push_back(line);
  }
  std::set<size_t> taken;
  for (const SamplePrompt& prompt : prompts) {
    size_t number = 0;
    while (number < prompts_.size() && (prompts_[number] != prompt.line || taken.contains(number))) ++number;
    if (number == prompts_.size()) prompts_.push_back(prompt.line);
    taken.insert(number);
    numbers_.push_back(number);
  }
  std::string text;
  for (const std::string& line : prompts_) text += line + "\n";
  write_file_atomically(list, text);
}

bool PreviewFolder::has(int64_t step) const {
  return std::ranges::all_of(numbers_, [&](size_t number) { return files_.contains({step, number}); });
}

void PreviewFolder::add(int64_t step, size_t index, const Preview& preview) {
  const Place place{step, numbers_[index]};
  const bool is_text = preview.image.rgb.empty();
  const fs::path file = file_of(place, is_text ? ".txt" : ".png");
  if (is_text)
    write_file_atomically(file, preview.text + "\n");
  else
    write_image(file, preview.image, preview.texts);
  files_[place] = file;
  events_->write(record_of(place, file));
}

std::string PreviewFolder::label_of(size_t number) const {
  return fmt::format("{}: {}", number, shortened(std::string(prompt_of(line_of(number)))));
}

std::string PreviewFolder::record_of(Place place, const fs::path& file) const {
  const double time = unix_time_of(file);
  const std::string tag = "preview " + label_of(place.second);
  std::string bytes = read_file(file);
  if (file.extension() == ".txt") return text_record({time, place.first, tag, std::move(bytes)});
  const ImageInfo info = probe_image(file);
  return image_record({time, place.first, tag, info.width, info.height, std::move(bytes)});
}

const Image& PreviewFolder::small(Place place) {
  const auto [found, is_new] = small_.try_emplace(place);
  if (is_new) try {
      found->second = made_small(read_image(files_.at(place)));
    } catch (const Error&) {  // its file is gone: the place stays blank
    }
  return found->second;
}

void PreviewFolder::draw_sheet() {
  std::set<int64_t> steps;
  std::set<size_t> numbers;
  for (const auto& [place, file] : files_)
    if (file.extension() == ".png") steps.insert(place.first), numbers.insert(place.second);
  if (steps.empty()) return;
  const std::vector<int64_t> shown = evenly({steps.begin(), steps.end()}, kMostColumns);
  ImageGrid grid;
  int width = 1, height = 1;
  for (const size_t number : numbers)
    for (const int64_t step : shown)
      if (files_.contains({step, number})) {
        width = std::max(width, small({step, number}).width);
        height = std::max(height, small({step, number}).height);
      }
  for (const int64_t step : shown) grid.columns.push_back(fmt::format("step {}", step));
  for (const size_t number : numbers) {
    grid.rows.push_back(label_of(number));
    for (const int64_t step : shown) {
      Image& cell = grid.cells.emplace_back(blank_image(width, height, {255, 255, 255}));
      if (files_.contains({step, number})) draw_image(cell, small({step, number}), 0, 0);
    }
  }
  write_image(folder() / "sheet.png", draw_grid(grid));
}

std::vector<StoredPreview> PreviewFolder::all() const {
  std::vector<StoredPreview> previews;
  for (const auto& [place, file] : files_) previews.push_back({place.first, place.second, line_of(place.second), file});
  return previews;
}

}  // namespace wick
