// A folder of pictures, JPEG, PNG or WebP, each with its caption in a .txt of the same name. Folders within are read
// too; names that start with a dot are not.
//
// Where every folder within is named N_name ("10_cat"), an epoch shows its pictures N times, as kohya's scripts do
// (sd-scripts, library/config_util.py, generate_dreambooth_subsets_config_by_subdirs, and DreamBoothDataset in
// library/train_util.py). Only pictures directly in such a folder count; other places and an N of 0 leave them out.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "wick/io/image.h"
#include "wick/train/buckets.h"
#include "wick/train/data_files.h"

namespace wick {

struct Example {  // a picture at one resolution
  std::filesystem::path image;
  std::string name;     // its path within the dataset
  std::string caption;  // UTF-8, without the space around it
  Size size;            // of the upright picture
  int64_t resolution;   // BucketOptions::resolution of its bucket
  Placement placement;
  int64_t repeats = 1;  // how often an epoch shows it
};

struct Dataset {
  std::filesystem::path folder;
  std::vector<Example> examples;     // ordered by name, independent of the file system, and by resolution as asked for
  std::string sha256;                // of names, pictures, captions and repeats
  std::vector<DataFile> files;       // pictures and captions
  bool repeated = false;             // its folders give repeats
  std::vector<std::string> remarks;  // "10_cat: 24 pictures × 10", and pictures left out

  // Checks every picture's header and every caption, and sorts the pictures into buckets of each resolution. All faults
  // are one Error with the files' names and the way out.
  static Dataset scan(const std::filesystem::path& folder, const Resolutions& resolutions,
                      const Progress& progress = {});
  // Its examples of one resolution: by default the first one's, every picture once.
  Dataset at(int64_t resolution = 0) const;
  // Indices of examples by size: buckets() has each once, shown() as often as an epoch shows it.
  std::map<Size, std::vector<size_t>> buckets(bool repeat = false) const;
  std::map<Size, std::vector<size_t>> shown() const { return buckets(/*repeat=*/true); }
  // Indices of examples by their folder of repeats; without such folders, all under the data set's own name.
  std::map<std::string, std::vector<size_t>> subsets() const;
  size_t shown_count() const;  // pictures an epoch shows, at all resolutions

 private:
  void check_pictures(Faults& faults, const Progress& progress) const;
};

// The picture, upright, scaled and cropped to its bucket.
Image load_image(const Example& example);

}  // namespace wick
