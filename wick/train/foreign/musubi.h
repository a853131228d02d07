// Option files of musubi-tuner (kohya-ss/musubi-tuner): the TOML of --config_file, and scripts of a shell that call it.
// The TOML of its data sets (dataset_config) is read with it. Of its models Wick has FLUX.1 (its Kontext script).
#pragma once

#include <filesystem>
#include <span>

#include "wick/train/foreign/option_file.h"
#include "wick/train/foreign/table.h"

namespace wick {

bool is_of_musubi(const nlohmann::ordered_json& tree);
ForeignConfig explain_musubi(const std::filesystem::path& file);
std::span<const ForeignKey> musubi_keys();  // all that Wick knows, each once

}  // namespace wick
