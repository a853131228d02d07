// Data sets of pictures in a TOML file of kohya's format (sd-scripts, docs/config_README-en.md and
// library/config_util.py):
//
//   [general]              # settings of all that follows
//   [[datasets]]           # pictures that share batches: batch_size, resolution, buckets
//   [[datasets.subsets]]   # a folder of pictures: image_dir, num_repeats, captions
//
// A subset has the settings of its data set, that has the general ones, and these have the run's flags. Folders are
// named relative to the file. Some keys are Wick's own: caption_lines, caption_first_line, caption_variants,
// trigger_word, loss_weight, recursive, and resolutions, of which an epoch shows each picture at each.
// Those of kohya's that Wick cannot honour are refused, unless they have the value that asks for nothing. Of subsets of
// one data set with the same image_dir the first counts, as in kohya's scripts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "wick/pipelines/diffusion.h"
#include "wick/train/config.h"
#include "wick/train/dataset.h"

namespace wick {

// What is set for a data set or a subset: settings of the run that it may have of its own, and what only it has.
struct PictureSection {
  TrainConfig settings;
  int64_t repeats = 1;
  bool has_buckets = true, is_reg = false, recursive = false;
  double loss_weight = 1;
  std::string image_dir, masks;
};

bool is_dataset_file(const std::filesystem::path& path);  // a file whose name ends in .toml
// Throws UsageError that names the file, the table and the key.
PictureSources read_dataset_file(const std::filesystem::path& file, const TrainConfig& config,
                                 const LatentSpace& space);
// The same of config.datasets.
PictureSources read_datasets(const TrainConfig& config, const LatentSpace& space);
// Tables for TrainConfig::datasets: a subset each, with what it has beside the run's settings. Subsets with the same
// settings of data sets share batches, unless their folders are the same.
std::string dataset_tables(const TrainConfig& run, const std::vector<PictureSection>& subsets);
std::vector<std::string> dataset_keys();  // all that Wick knows
// The folders that it names.
std::vector<std::filesystem::path> dataset_folders(const std::filesystem::path& file);
std::vector<std::filesystem::path> dataset_folders(const std::string& text, const std::string& source);
// What --dataset names, or the folders of config.datasets.
std::vector<std::string> data_paths(const TrainConfig& config);

}  // namespace wick
