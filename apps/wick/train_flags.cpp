#include "train_flags.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/kohya.h"
#include "wick/train/presets.h"

namespace wick::cli {
namespace {

// A value of TOML as a flag would have it: a text without its quotes, a whole number without its fraction.
std::string as_word(std::string value) {
  if (value.starts_with('"')) return value.substr(1, value.size() - 2);
  if (value.ends_with(".0")) value.resize(value.size() - 2);
  return value;
}

}  // namespace

void TrainFlags::add(CLI::App& command, const TrainOption& option) {
  static const TrainConfig defaults;
  std::string help(option.help);
  const std::string group(kSubjects[size_t(option.subject)]);
  const std::string value = as_word(option.toml(defaults));
  if (help.back() != ']' && !value.empty() && value != "[]" && !option.is_switch()) help += fmt::format(" [{}]", value);
  if (option.is_switch()) {
    const auto remember = [this, key = option.key] { words_[key] = {"true"}; };
    command.add_flag_callback(option.flags(), remember, help)->group(group);
    return;
  }
  // Of numbers by pattern that are given again the last one's, which CLI11 sets apart by an empty word.
  const bool last_alone = option.is_by_pattern();
  const auto remember = [this, last_alone, key = option.key](const std::vector<std::string>& words) {
    const auto separator = last_alone ? std::find(words.rbegin(), words.rend(), "") : words.rend();
    words_[key].assign(separator.base(), words.end());
  };
  CLI::Option* flag = command.add_option_function<std::vector<std::string>>(option.flags(), remember, help);
  const bool several = option.is_list() || option.is_by_pattern();
  flag->type_name(std::string(option.type()))->type_size(1)->expected(1, several ? 4096 : 1);
  flag->allow_extra_args(several);
  flag->inject_separator(last_alone);
  flag->group(group);
  flag->multi_option_policy(several ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
}

void TrainFlags::add_to(CLI::App& command) {
  command
      .add_option("--config", config_file_,
                  "TOML file of settings, as config.toml of a run, or another trainer's option file; flags win")
      ->type_name("FILE")
      ->group(std::string(kSubjects[size_t(Subject::model)]));
  command
      .add_option("--kohya-config", kohya_file_,
                  "Option file of kohya's scripts, read as they would; it is told what was taken, and flags win")
      ->type_name("FILE")
      ->group(std::string(kSubjects[size_t(Subject::model)]));
  command.add_option(kKohyaWordFlag, kohya_words_)->group("");
  for (size_t subject = 0; subject < std::size(kSubjects); ++subject)
    for (const TrainOption& option : train_options())
      if (size_t(option.subject) == subject) add(command, option);
  const std::string precision(kSubjects[size_t(Subject::memory)]);
  command.add_flag("--bf16", bf16_, "Frozen weights in bf16, and on a device all arithmetic on them")->group(precision);
  command.add_flag("--fp16", fp16_, "Likewise in fp16")->group(precision);
}

TrainConfig TrainFlags::from_foreign(ForeignConfig explained) {
  explained.check();
  const ForeignConfig& read = foreign_.emplace(std::move(explained));
  std::vector<std::string> taken, idle;
  for (const KeyReport& key : read.keys) {
    if (key.use == KeyUse::honoured) taken.push_back(printable(key.key));
    if (key.use == KeyUse::idle) idle.push_back(fmt::format("{} ({})", printable(key.key), printable(key.told)));
  }
  remarks_ = {fmt::format("{}: taken: {}.", read.file, fmt::join(taken, ", "))};
  if (!idle.empty()) remarks_.push_back(fmt::format("Mean nothing here: {}.", fmt::join(idle, ", ")));
  remarks_.insert(remarks_.end(), read.remarks.begin(), read.remarks.end());
  return read.config;
}

TrainConfig TrainFlags::config() {
  check_usage(!(bf16_ && fp16_), "--bf16 and --fp16: expected one of them");
  if (bf16_ || fp16_) {
    check_usage(!words_.contains("dtype"), "--dtype: expected it, --bf16 or --fp16, found two of them");
    words_["dtype"] = {bf16_ ? "bf16" : "f16"};
  }
  check_usage(kohya_file_.empty() || (config_file_.empty() && !words_.contains("preset")),
              "--kohya-config: has all settings of a run; expected no --config or --preset beside it");
  check_usage(
      kohya_words_.empty() || (config_file_.empty() && kohya_file_.empty() && !words_.contains("preset")),
      "{}: is a flag of kohya's scripts, which have all settings of a run; expected no --config, --kohya-config "
      "or --preset beside it",
      kohya_words_.empty() ? "" : kohya_words_.front());
  const auto trainer = config_file_.empty() ? std::optional<Trainer>() : trainer_of(config_file_);
  check_usage(!trainer || !words_.contains("preset"),
              "--config: another trainer's file has all settings of a run; expected no --preset beside it");
  TrainConfig config;
  if (!kohya_file_.empty()) config = from_foreign(explain_options(kohya_file_, Trainer::kohya));
  if (!kohya_words_.empty()) config = from_foreign(explain_kohya_words(kohya_words_));
  if (trainer) config = from_foreign(explain_options(config_file_, *trainer));
  if (const auto preset = words_.find("preset"); preset != words_.end()) apply_preset(config, preset->second.back());
  if (!config_file_.empty() && !trainer) read_toml(config, config_file_);
  // --steps and --epochs exclude each other: the one given wins over the file's other.
  if (words_.contains("steps")) config.epochs = 0;
  if (words_.contains("epochs")) config.steps = 0;
  for (const TrainOption& option : train_options())
    if (const auto given = words_.find(option.key); given != words_.end()) option.set(config, given->second);
  return config;
}

}  // namespace wick::cli
