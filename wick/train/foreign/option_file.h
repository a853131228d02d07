// Option files of other trainers: the settings of a run as those programs would understand them, with their defaults
// for what a file leaves out.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/config.h"

namespace wick {

// Programs whose option files Wick reads.
enum class Trainer { kohya, ai_toolkit, onetrainer, musubi };

// What becomes of a key: it is honoured; it means nothing here; it asks for nothing, as if it were not there; or Wick
// cannot honour it.
enum class KeyUse { honoured, idle, empty, refused };
struct KeyReport {
  std::string key, value;  // as the file has them
  KeyUse use = KeyUse::honoured;
  std::string told;  // honoured: "rank = 8", which may be empty; otherwise why
};

struct ForeignConfig {
  std::string file, program;
  TrainConfig config;
  std::vector<KeyReport> keys;       // all of the file's
  std::vector<std::string> faults;   // of the file as a whole, or of what it leaves out
  std::vector<std::string> remarks;  // sentences on what differs
  std::string family, family_key;    // of models that it is for, "FLUX", and the key that says so; empty: none does

  size_t count(KeyUse use) const;
  // Throws UsageError of one line that names file and key if anything is refused.
  void check() const;
  // The same if the model is of another family of models of pictures than the file is for.
  void check_model(const Checkpoint& model) const;
};

// Whose option file this is; none for a file of Wick's own settings. Throws Error if it cannot be read, and UsageError
// if it is the file of a program that Wick knows by name alone.
std::optional<Trainer> trainer_of(const std::filesystem::path& file);

// Reads all keys, whatever is refused. Throws Error if the file is no such file at all.
ForeignConfig explain_options(const std::filesystem::path& file, Trainer trainer);

}  // namespace wick
