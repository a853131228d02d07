// The table of defaults (pipelines/model_defaults.h, TrainConfig) for help texts.
#pragma once

#include <string>

namespace wick::cli {

std::string defaults_help();  // lines of at most 80 columns, without the last one's end

}  // namespace wick::cli
