// Option files of kohya's scripts (sd-scripts): the TOML of --config_file, the GUI's JSON, and scripts of a shell that
// call them. Tables are laid flat, as they do it.
#pragma once

#include <filesystem>
#include <span>

#include "wick/train/foreign/option_file.h"
#include "wick/train/foreign/table.h"

namespace wick {

ForeignConfig explain_kohya(const std::filesystem::path& file);
ForeignConfig read_kohya_config(const std::filesystem::path& file);  // the same, and check()
// The flags of such a command (command.h); a config_file among them is read, and the flags win.
ForeignConfig explain_kohya_words(std::span<const std::string> words);
std::span<const ForeignKey> kohya_keys();  // all that Wick knows, each once

}  // namespace wick
