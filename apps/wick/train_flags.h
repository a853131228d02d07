// The settings of a training run as flags, for every command that takes them. A TOML file comes first, flags win.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/config.h"

namespace wick::cli {

class TrainFlags {
 public:
  void add_to(CLI::App& command);
  TrainConfig config();  // not yet resolved

 private:
  void add(CLI::App& command, const TrainOption& option);

  std::string config_file_;
  std::map<std::string_view, std::vector<std::string>> words_;  // by key, for those given
  bool bf16_ = false, fp16_ = false;
};

}  // namespace wick::cli
