// Data sets of pictures in a TOML file of kohya's format (sd-scripts, docs/config_README-en.md and
// library/config_util.py):
//
//   [general]              # settings of all that follows
//   [[datasets]]           # pictures that share batches: batch_size, resolution, buckets
//   [[datasets.subsets]]   # a folder of pictures: image_dir, num_repeats, captions
//
// A subset has the settings of its data set, that has the general ones, and these have the run's flags. Folders are
// named relative to the file. Some keys are Wick's own: caption_lines, caption_variants, trigger_word, loss_weight.
// Those of kohya's that Wick cannot honour are refused, unless they have the value that asks for nothing. Of subsets of
// one data set with the same image_dir the first counts, as in kohya's scripts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "wick/pipelines/diffusion.h"
#include "wick/train/dataset.h"

namespace wick {

struct TrainConfig;

bool is_dataset_file(const std::filesystem::path& path);  // a file whose name ends in .toml
// Throws UsageError that names the file, the table and the key.
PictureSources read_dataset_file(const std::filesystem::path& file, const TrainConfig& config,
                                 const LatentSpace& space);
std::vector<std::string> dataset_keys();  // all that Wick knows
// The folders that it names.
std::vector<std::filesystem::path> dataset_folders(const std::filesystem::path& file);

}  // namespace wick
