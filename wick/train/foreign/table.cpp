#include "wick/train/foreign/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"

namespace wick {

std::optional<double> number_of(std::string_view text) {
  double value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

namespace {

// The key by which a table knows one of a list: "datasets[1].is_reg" is told by "datasets[0].is_reg".
std::string of_first(std::string key) {
  const size_t begin = key.find('['), end = key.find(']');
  if (begin < end && end != key.npos) key.replace(begin, end - begin + 1, "[0]");
  return key;
}

void asks_for_nothing(KeyReport& report) { report.use = KeyUse::empty, report.told = "asks for nothing"; }

}  // namespace

ForeignReader::ForeignReader(std::string file, std::string program, std::span<const ForeignKey> table) : table_(table) {
  read_.file = std::move(file);
  read_.program = std::move(program);
}

KeyReport* ForeignReader::report_of(std::string_view key) {
  const auto found = std::ranges::find(read_.keys, key, &KeyReport::key);
  return found == read_.keys.end() ? nullptr : &*found;
}

void ForeignReader::add(const std::string& key, const nlohmann::ordered_json& value) {
  check_usage(read_.keys.size() < kMaxOptions, "{}: expected at most {} options", read_.file, kMaxOptions);
  const std::vector<std::string> words = words_of(value);
  if (KeyReport* before = report_of(key)) {
    before->use = KeyUse::refused;
    before->told = "expected it once, as a value";
    return;
  }
  KeyReport& report = read_.keys.emplace_back();
  report.key = key;
  report.value = fmt::format("{}", fmt::join(words, ", "));
  const bool is_none = words.empty() || (words.size() == 1 && (words[0].empty() || words[0] == "None"));
  if (value.is_object() && !words.empty())
    report.use = KeyUse::refused, report.told = "expected it once, as a value";
  else if (is_none)
    report.use = KeyUse::empty, report.told = "says nothing";
  else
    values_[key] = words;
}

std::vector<std::string> ForeignReader::keys() const {
  std::vector<std::string> all;
  for (const KeyReport& report : read_.keys) all.push_back(report.key);
  return all;
}

void ForeignReader::drop(const std::string& key, std::string why) {
  values_.erase(key);
  if (KeyReport* report = report_of(key)) report->use = KeyUse::idle, report->told = std::move(why);
}

void ForeignReader::read_table() {
  std::vector<std::string> known;
  for (const ForeignKey& row : table_) known.emplace_back(row.key);
  for (KeyReport& report : read_.keys) {
    if (report.use != KeyUse::honoured) continue;  // is settled
    const auto row = std::ranges::find(table_, of_first(report.key), &ForeignKey::key);
    if (row != table_.end())
      attempt([&] { read_key(report, *row); });
    else
      drop(report.key,
           fmt::format("not a key of {}, so it does nothing there{}", read_.program, did_you_mean(report.key, known)));
  }
}

void ForeignReader::read_key(KeyReport& report, const ForeignKey& row) {
  const std::string& key = report.key;
  const std::vector<std::string>& found = words(key);
  switch (row.kind) {
    case ForeignKey::Kind::together:
      return;
    case ForeignKey::Kind::idle:
      return drop(key, std::string(row.text));
    case ForeignKey::Kind::setting:
      if (row.zero_is_none && number(key, 0) == 0) return asks_for_nothing(report);
      if (found.size() != 1 && !option_named(row.text).is_list())
        refuse(key, fmt::format("expected one value, found {}", found.size()));
      return set(row.text, found, key);
    case ForeignKey::Kind::refused:
      const auto value = number_of(found.front()), neutral = number_of(row.neutral);
      const bool is_off = found.front() == "false" && row.neutral != "true";
      const bool is_neutral =
          found.size() == 1 && (is_off || found.front() == row.neutral || (value && value == neutral));
      if (is_neutral) return asks_for_nothing(report);
      refuse(key, row.text.empty() ? "Wick has no such setting; leave it out"
                                   : fmt::format("Wick has no such setting; {}", row.text));
  }
}

std::string ForeignReader::text(std::string_view key, std::string_view otherwise) const {
  if (!has(key)) return std::string(otherwise);
  if (words(key).size() != 1) refuse(key, fmt::format("expected one value, found {}", words(key).size()));
  return words(key).front();
}

double ForeignReader::number(std::string_view key, double otherwise) const {
  if (!has(key)) return otherwise;
  const auto value = number_of(text(key, ""));
  if (!value) refuse_value(key, "a number", text(key, ""));
  return *value;
}

bool ForeignReader::is_set(std::string_view key, bool otherwise) const {
  const std::string value = text(key, otherwise ? "true" : "false");
  if (value != "true" && value != "false") refuse_value(key, "true or false", value);
  return value == "true";
}

void ForeignReader::set(std::string_view setting, const std::vector<std::string>& to, std::string_view key,
                        std::string_view part) {
  const TrainOption& option = option_named(setting);
  try {
    option.set(settings_of(key), to, std::string(part));
  } catch (const UsageError& error) {
    std::string_view why = error.what();
    if (part.empty()) why.remove_prefix(std::min(why.size(), std::string_view(": ").size()));
    refuse(key, std::string(why));
  }
  claim(key, option.key);
}

void ForeignReader::claim(std::string_view key, std::string_view setting) {
  std::vector<std::string>& settings = claims_[std::string(key)];
  if (std::ranges::find(settings, setting) == settings.end()) settings.emplace_back(setting);
}

void ForeignReader::refuse(std::string_view key, std::string why) { throw Refusal{std::string(key), std::move(why)}; }

void ForeignReader::refuse_value(std::string_view key, std::string_view expected, std::string_view found) {
  refuse(key, fmt::format("expected {}, found {}", expected, quote(found)));
}

// Of a key that is not in the file, or of none, it is the file's.
void ForeignReader::take_down(const Refusal& refusal) {
  KeyReport* report = report_of(refusal.key);
  if (!report)
    read_.faults.push_back(refusal.key.empty() ? refusal.why : fmt::format("{}: {}", refusal.key, refusal.why));
  else if (report->use == KeyUse::refused)
    report->told += "; " + refusal.why;
  else
    report->use = KeyUse::refused, report->told = refusal.why;
}

TrainConfig& ForeignReader::settings_of(std::string_view key) {
  const size_t begin = key.find('['), end = key.find("].");
  if (begin == key.npos || end == key.npos || key.find('.') < begin) return config_;
  size_t index{};
  std::from_chars(key.data() + begin + 1, key.data() + end, index);
  return index < folders_.size() ? folders_[index].settings : config_;
}

void ForeignReader::settle_folders(std::string_view list) {
  std::vector<PictureSection> all = folders_;
  for (PictureSection& folder : all) {
    const std::string prefix = fmt::format("{}[{}].", list, &folder - all.data());
    const TrainConfig own = std::exchange(folder.settings, config_);
    for (const auto& [key, settings] : claims_)
      if (key.starts_with(prefix))
        for (const std::string& setting : settings) option_named(setting).copy(own, folder.settings);
  }
  if (all.size() == 1 && all[0].repeats == 1 && all[0].loss_weight == 1 && !all[0].is_reg) {
    config_ = all[0].settings;
    config_.dataset = {all[0].image_dir};
    config_.conditioning_data_dir = all[0].masks;
  } else {
    config_.datasets = dataset_tables(config_, all);
  }
}

ForeignConfig ForeignReader::finish() {
  for (KeyReport& report : read_.keys) {
    const auto claimed = claims_.find(report.key);
    if (report.use != KeyUse::honoured) continue;
    if (claimed == claims_.end()) {
      if (words(report.key) == std::vector<std::string>{"false"}) asks_for_nothing(report);
      continue;
    }
    std::vector<std::string> settings;
    for (const std::string& setting : claimed->second)
      settings.push_back(fmt::format("{} = {}", setting, option_named(setting).toml(settings_of(report.key))));
    report.told = fmt::format("{}", fmt::join(settings, ", "));
  }
  return std::move(read_);
}

}  // namespace wick
