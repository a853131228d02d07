// Settings in TOML, for those who read such files: it includes toml++.
#pragma once

#include <toml++/toml.h>

#include <filesystem>
#include <string>

#include "wick/train/config.h"

namespace wick {

// Throws UsageError that names the file and the line.
toml::table parse_toml(const std::filesystem::path& file);
toml::table parse_toml(const std::string& text, const std::string& source);
std::string told(const toml::node& value);  // "the string \"4\"", for messages
// Sets what a flag would. Wrong types and numbers out of range are UsageErrors that begin with `where`.
void set_from_toml(TrainConfig& config, const TrainOption& option, const toml::node& value, const std::string& where);

}  // namespace wick
