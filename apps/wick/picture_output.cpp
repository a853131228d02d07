#include "picture_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/file.h"

namespace wick::cli {
namespace {

namespace fs = std::filesystem;

// Other programs that draw into a folder wait while this lives.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder) : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (fd_ >= 0) ::flock(fd_, LOCK_EX);  // where a file system has no locks, its user has one program at a time
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

// The largest number that is the whole name of a file, whatever its ending; 0 without one.
int64_t last_number(const fs::path& folder) {
  int64_t last = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string stem = entry.path().stem().string();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), number);
    if (error == std::errc() && end == stem.data() + stem.size()) last = std::max(last, number);
  }
  return last;
}

fs::path write_next(const fs::path& folder, const Image& image, const ImageTexts& texts) {
  const FolderLock lock(folder);
  fs::path file = folder / fmt::format("{:05}.png", last_number(folder) + 1);
  write_image(file, image, texts);
  return file;
}

}  // namespace

PictureFile::PictureFile(fs::path file, ImageGrid grid, std::vector<size_t> places, int64_t width, int64_t height,
                         ImageTexts texts)
    : file_(std::move(file)), grid_(std::move(grid)), places_(std::move(places)), texts_(std::move(texts)) {
  grid_.cells.resize(places_.size());
  if (grid_.columns.size() * grid_.rows.size() > 1) std::tie(width, height) = size_of_grid(grid_, width, height);
  check_image_fits(file_, width, height, texts_);
}

std::vector<fs::path> PictureFile::finish() {
  write_image(file_, grid_.cells.size() == 1 ? grid_.cells.front() : draw_grid(grid_), texts_);
  return {file_};
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) || (!path.empty() && !path.has_filename());
}

PictureFolder::PictureFolder(fs::path folder, std::vector<ImageTexts> texts)
    : folder_(std::move(folder)), texts_(std::move(texts)) {
  make_directories(folder_);
  check(::access(folder_.c_str(), W_OK) == 0, "{}: the folder is not writable", folder_.string());
}

void PictureFolder::wait() {
  if (writing_.valid()) files_.push_back(writing_.get());
}

void PictureFolder::take(Image image) {
  wait();
  writing_ =
      std::async(std::launch::async, [folder = folder_, image = std::move(image), &texts = texts_[files_.size()]] {
        return write_next(folder, image, texts);
      });
}

std::vector<fs::path> PictureFolder::finish() {
  wait();
  return std::move(files_);
}

}  // namespace wick::cli
