// Settings of OneTrainer in JSON: a preset with concepts, or what "export" writes.
#pragma once

#include <filesystem>
#include <span>

#include "wick/train/foreign/option_file.h"
#include "wick/train/foreign/table.h"

namespace wick {

ForeignConfig explain_onetrainer(const std::filesystem::path& file);
// All that Wick knows, each once, by their paths; concepts[0] stands for all concepts.
std::span<const ForeignKey> onetrainer_keys();

}  // namespace wick
