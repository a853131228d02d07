// The prompts of previews in other trainers' files:
//
//   kohya's scripts   TOML: [prompt] and [[prompt.subset]]; JSON: a list of lines or objects (library/train_util.py,
//                     load_prompts())
//   OneTrainer        JSON: a list of objects, or an option file that holds or names one (SampleConfig.py)
//   ai-toolkit        a job's `sample` (SampleConfig of toolkit/config_modules.py)
#pragma once

#include <filesystem>
#include <vector>

#include "wick/train/sample_prompts.h"

namespace wick {

// Throws Error or UsageError that names the file, the prompt and the key.
std::vector<SamplePrompt> read_foreign_samples(const std::filesystem::path& file);

}  // namespace wick
