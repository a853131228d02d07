// A folder of pictures, JPEG, PNG or WebP, each with its caption in a .txt of the same name. Folders within are read
// too; names that start with a dot are not.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "wick/io/image.h"
#include "wick/train/buckets.h"

namespace wick {

struct Example {
  std::filesystem::path image;
  std::string name;     // its path within the dataset
  std::string caption;  // UTF-8, without the space around it
  Size size;            // of the upright picture
  Placement placement;
};

struct Dataset {
  std::filesystem::path folder;
  std::vector<Example> examples;  // ordered by name, whatever the file system says
  std::string sha256;             // of names, pictures and captions

  // Checks every picture's header and every caption, and sorts the pictures into buckets. What is wrong is one Error
  // with the file's name and the way out.
  static Dataset scan(const std::filesystem::path& folder, const BucketOptions& options);
  std::map<Size, std::vector<size_t>> buckets() const;  // indices of examples, by size
};

// The picture, upright, scaled and cropped to its bucket.
Image load_image(const Example& example);
// One row of SDXL's size conditioning: original height and width, crop top and left, target height and width.
std::vector<float> time_ids(const Example& example);

}  // namespace wick
