// The settings of a training run as flags, for every command that takes them. A TOML file comes first, flags win.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/config.h"
#include "wick/train/foreign/option_file.h"

namespace wick::cli {

// Takes a word of the flags of kohya's scripts; hidden, see with_kohya_words() of command_line.cpp.
inline constexpr const char* kKohyaWordFlag = "--kohya-word";

class TrainFlags {
 public:
  void add_to(CLI::App& command);
  TrainConfig config();  // not yet resolved
  // After it: sentences on what became of another program's options.
  const std::vector<std::string>& remarks() const { return remarks_; }
  // ForeignConfig::check_model() of that program's file.
  void check_model(const Checkpoint& model) const {
    if (foreign_) foreign_->check_model(model);
  }

 private:
  void add(CLI::App& command, const TrainOption& option);
  TrainConfig from_foreign(ForeignConfig explained);

  std::string config_file_, kohya_file_;
  std::vector<std::string> kohya_words_;
  std::vector<std::string> remarks_;
  std::optional<ForeignConfig> foreign_;
  std::map<std::string_view, std::vector<std::string>> words_;  // by key, for those given
  bool bf16_ = false, fp16_ = false;
};

}  // namespace wick::cli
