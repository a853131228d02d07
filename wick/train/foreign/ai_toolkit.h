// Jobs of ai-toolkit, in YAML or JSON: config.process[0] of a trainer of LoRAs.
#pragma once

#include <filesystem>
#include <span>

#include "wick/train/foreign/option_file.h"
#include "wick/train/foreign/table.h"

namespace wick {

ForeignConfig explain_ai_toolkit(const std::filesystem::path& file);
// All that Wick knows, each once, by their paths within the process.
std::span<const ForeignKey> ai_toolkit_keys();

}  // namespace wick
