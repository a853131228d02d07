// A folder of pictures as it lies on the disk: the pictures in it, and the files that a run leaves out, each with its
// reason.
//
// A picture is a file that begins as one that Wick reads, whatever its name (.jfif, .jpe, .png_large), or one that is
// named as a picture. A caption is a file whose name ends as captions do. Beside cat.jpg OneTrainer keeps the picture's
// mask as cat-masklabel.png and what conditions it as cat-condlabel.png.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "wick/train/captions.h"

namespace wick {

// Names of the files that are left out, by reason. A run prints one line for each reason.
class LeftOut {
 public:
  enum class Reason { hidden, caption, image, other, folder, mask, label };

  void add(Reason reason, std::string name) { names_.at(size_t(reason)).push_back(std::move(name)); }
  // "2 captions have no picture and are not read: a.txt, b.txt."
  std::vector<std::string> lines() const;

 private:
  std::vector<std::vector<std::string>> names_ = std::vector<std::vector<std::string>>(7);
};

struct PictureFolder {
  std::vector<std::filesystem::path> pictures;       // sorted
  std::vector<std::string> folders, linked_folders;  // directly within, the former sorted
  LeftOut left_out;                                  // by their paths within the folder

  // Reads names, and first bytes where a name does not tell. Of `nested` folders those within are read too.
  // `elsewhere` are folders that the run reads for another purpose. Throws Error, which begins with `source`, where a
  // folder cannot be read.
  static PictureFolder scan(const std::filesystem::path& folder, bool nested, const CaptionOptions& captions,
                            const std::vector<std::filesystem::path>& elsewhere, const std::string& source);
};

// Whether the name is that of a format that Wick cannot read (.avif): such a file stops a run, unless its bytes are of
// one that Wick reads.
bool is_foreign_picture(const std::filesystem::path& path);

// The picture of this path without an extension, whatever its extension; empty where there is none.
std::filesystem::path picture_of_stem(const std::filesystem::path& stem);
inline constexpr const char* kMaskLabel = "-masklabel.png";  // behind such a path

}  // namespace wick
