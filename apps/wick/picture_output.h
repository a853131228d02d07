// Where drawn pictures go: one file, in which several are a labelled grid, or a folder with a file for each.
#pragma once

#include <filesystem>
#include <future>
#include <utility>
#include <vector>

#include "wick/io/image.h"
#include "wick/pipelines/image_grid.h"

namespace wick::cli {

class PictureOutput {
 public:
  virtual ~PictureOutput() = default;
  // In the order in which they are drawn. Throws Error if a picture could not be written.
  virtual void take(Image image) = 0;
  // Returns what was written.
  virtual std::vector<std::filesystem::path> finish() = 0;
};

class PictureFile : public PictureOutput {
 public:
  // `grid` has labels and no cells yet; `places` are those of its cells, in the order in which they are drawn. Throws
  // Error if the file cannot hold pictures of this size, or these texts.
  PictureFile(std::filesystem::path file, ImageGrid grid, std::vector<size_t> places, int64_t width, int64_t height,
              ImageTexts texts);

  void take(Image image) override { grid_.cells[places_[taken_++]] = std::move(image); }
  std::vector<std::filesystem::path> finish() override;

 private:
  std::filesystem::path file_;
  ImageGrid grid_;
  std::vector<size_t> places_;
  size_t taken_ = 0;
  ImageTexts texts_;
};

// Whether a path names a folder: it is one, or ends with a slash.
bool is_folder(const std::filesystem::path& path);

// PNG files 00001.png and so on, behind those that are there. They are written on another thread, while the next
// picture is drawn. Two programs that draw into one folder take different names.
class PictureFolder : public PictureOutput {
 public:
  // Makes the folder. `texts` has those of each picture. Throws Error if it cannot be written to.
  PictureFolder(std::filesystem::path folder, std::vector<ImageTexts> texts);

  void take(Image image) override;
  std::vector<std::filesystem::path> finish() override;

 private:
  void wait();

  std::filesystem::path folder_;
  std::vector<ImageTexts> texts_;
  std::vector<std::filesystem::path> files_;
  std::future<std::filesystem::path> writing_;
};

}  // namespace wick::cli
