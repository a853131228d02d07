// Command lines of kohya's scripts and of musubi-tuner: `accelerate launch sdxl_train_network.py --network_dim=8 ...`,
// in a script of a shell or as words that follow `wick train`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wick/train/foreign/tree.h"

namespace wick {

// The key under which a tree has the name of the training script.
inline constexpr std::string_view kScriptKey = "script";

// The words of the first command that starts a training script (its name ends in train_network.py), from that name on.
// A line that ends in \ (sh), ^ (cmd) or ` (PowerShell) continues. Throws UsageError if the text has no such command,
// if a quote is left open, or if a word after the script's name has a variable.
std::vector<std::string> words_of_script(std::string_view text, const std::string& source);

// Options by their names, as Python's argparse reads them: --KEY=VALUE, --KEY VALUE ..., and --KEY alone, which is
// true. Of an option that is given twice the last one counts. Throws UsageError for a word that no option takes.
nlohmann::ordered_json tree_of_words(std::span<const std::string> words, const std::string& source);

// `wick train` takes kohya's flags as its README has them. `options` are the words of kohya's scripts, `others` those
// of Wick. `options` is empty unless one of its flags, spelt with an underscore, is one that only kohya's scripts have.
struct KohyaWords {
  std::vector<std::string> options, others;
};
KohyaWords split_kohya_words(const std::vector<std::string>& words);

}  // namespace wick
