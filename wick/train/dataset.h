// Pictures (io/image.h), each with its caption beside it (captions.h), in a folder or several. Folders within are
// read too; names that start with a dot are not.
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
#include "wick/train/batches.h"
#include "wick/train/buckets.h"
#include "wick/train/captions.h"
#include "wick/train/data_files.h"
#include "wick/train/split.h"

namespace wick {

// How samples of a picture differ; all off unless asked for (augment.h).
struct Augmentation {
  bool flip = false;         // half of them are mirrored
  bool color = false;        // some have another hue or gamma
  bool random_crop = false;  // the part that fits into the bucket is anywhere, else in the middle

  bool any() const { return flip || color || random_crop; }
  bool is_endless() const { return color || random_crop; }  // no cache holds them all
};

constexpr double kMaxLossWeight = 1000;
constexpr int64_t kMaxRepeats = 1000;  // of a picture in an epoch

// Pictures that share their settings: kohya's [[datasets.subsets]].
struct PictureSubset {
  std::filesystem::path folder;
  std::string source;     // "--dataset pictures", for messages
  std::string name = {};  // of the folder, in lists of files; empty for a data set of one folder
  bool nested = true;     // folders within are read too, and may tell repeats
  int64_t repeats = 1;    // how often an epoch shows a picture, unless folders within tell
  CaptionOptions captions = {};
  Augmentation augmentation = {};
  std::filesystem::path masks = {};  // folder of their masks, pictures of the same names
  bool alpha_mask = false;           // their alpha is their mask
  bool is_reg = false;               // of regularisation: an epoch shows as many as of the group's others
  double loss_weight = 1;
  Split split = {};

  bool has_masks() const { return alpha_mask || !masks.empty(); }
};

// Subsets whose pictures share batches: kohya's [[datasets]].
struct PictureGroup {
  Resolutions resolutions;
  std::vector<PictureSubset> subsets;
  int64_t batch_size = 0;  // 0: the run's
};

// The data sets of a run, and the folder or file that names them, for messages.
struct PictureSources {
  std::filesystem::path path;
  std::vector<PictureGroup> groups = {};
  std::string settings = {};              // of a file: what decides the numbers of a run, in words
  std::vector<std::string> remarks = {};  // on what of it counts
};

struct Example {  // a picture at one resolution
  std::filesystem::path image;
  std::string name;                         // its path within the dataset
  std::vector<std::string> captions;        // of which a sample has one
  std::filesystem::path mask = {};          // of its loss, if any: a picture, or the image itself for its alpha
  std::filesystem::path caption_file = {};  // that they are from, if any
  Size size;                                // of the upright picture
  std::string sha256 = {};                  // of its file
  Resolution resolution;                    // BucketOptions::resolution of its bucket
  Placement placement;
  int64_t repeats = 1;           // how often an epoch shows it
  size_t group = 0, subset = 0;  // of the data set's sources, the latter within its group
};

struct Dataset {
  PictureSources sources;
  std::vector<Example> examples;     // by group and subset, then by name, independent of the file system, and by
                                     // resolution as asked for
  std::string sha256;                // of names, pictures, captions and repeats
  std::vector<DataFile> files;       // pictures and captions
  bool repeated = false;             // its folders give repeats
  std::vector<std::string> remarks;  // "10_cat: 24 pictures × 10", and pictures left out

  // Checks every picture's header and every caption, and sorts the pictures into buckets of each resolution. All faults
  // are one Error with the files' names and the way out.
  static Dataset scan(PictureSources sources, const Progress& progress = {});
  static Dataset scan(const std::filesystem::path& folder, const Resolutions& resolutions,
                      const Progress& progress = {});

  const PictureSubset& subset_of(const Example& example) const;
  // Its examples of one resolution of a group: by default the first one's of each, every picture once.
  Dataset at(Resolution resolution = 0, size_t group = 0) const;
  // Indices of examples by size: buckets() has each once, shown() as often as an epoch shows it.
  std::map<Size, std::vector<size_t>> buckets(bool repeat = false) const;
  std::map<Size, std::vector<size_t>> shown() const { return buckets(/*repeat=*/true); }
  // What batches are made of: the buckets of one group after the other, with its own batch size if it has one.
  std::vector<BatchBucket> batch_buckets(int64_t batch_size) const;
  // Indices of examples by their folder of repeats, or by subset; of one folder without such, all under its own name.
  std::map<std::string, std::vector<size_t>> subsets() const;
  size_t shown_count() const;  // pictures an epoch shows, at all resolutions
  // Whether any of its subsets is so: a run's batches and its plan are of one kind.
  bool is_augmented_endlessly() const;
  bool has_masks() const;
  bool has_weights() const;  // of losses: masks among them

 private:
  void check_pictures(Faults& faults, const Progress& progress) const;
};

// As it is; an Error about it tells the way out.
Image readable_picture(const std::filesystem::path& path);

}  // namespace wick
