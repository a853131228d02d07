// Option files of kohya's scripts (sd-scripts, the TOML of --config_file): the settings of a run as those would
// understand them, with their parser's defaults for what the file leaves out. Tables are laid flat, as they do it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/config.h"

namespace wick {

struct KohyaConfig {
  TrainConfig config;
  std::vector<std::string> taken;    // keys, in the file's order
  std::vector<std::string> without;  // "xformers (attention is always fused)": keys that mean nothing here
  std::vector<std::string> remarks;  // sentences on what differs
};

// What becomes of a key. `refused`: unless it has the value that asks for nothing.
enum class KohyaUse { setting, together, none, refused };
struct KohyaKey {
  std::string_view key;
  KohyaUse use;
};
std::vector<KohyaKey> kohya_keys();  // all that Wick knows, each once

// Throws UsageError that names file and key for what cannot be honoured, and for keys that kohya's scripts have not.
KohyaConfig read_kohya_config(const std::filesystem::path& file);

}  // namespace wick
