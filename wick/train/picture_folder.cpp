#include "wick/train/picture_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/image.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr std::array kPictureNames = {".jpg", ".jpeg", ".png", ".webp", ".jfif",
                                      ".jpe", ".gif",  ".bmp", ".tif",  ".tiff"};
// Formats that Wick cannot read are reported, not skipped.
constexpr std::array kForeignNames = {".avif", ".heic", ".heif", ".jxl", ".ppm", ".tga", ".exr"};

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return extension;
}

constexpr std::array<std::string_view, 2> kLabels = {kMaskLabel, "-condlabel.png"};

template <size_t N>
bool ends_in(const fs::path& path, const std::array<const char*, N>& extensions) {
  return std::ranges::find(extensions, lower_extension(path)) != extensions.end();
}

// Sorts the files of one folder into pictures, captions and others.
class FolderScan {
 public:
  FolderScan(PictureFolder& found, const fs::path& folder, const CaptionOptions& captions)
      : found_(found), folder_(folder), captions_(captions) {}

  void add(const fs::path& file) {
    if (ends_in(file, kPictureNames) || is_foreign_picture(file)) return add_picture(file);
    if (is_caption_name(file, captions_)) return texts_.push_back(file);
    const ImageStart start = image_start(file);
    if (start.is_read) return add_picture(file);
    if (start.foreign.empty()) return leave_out(LeftOut::Reason::other, file);
    found_.left_out.add(LeftOut::Reason::image, fmt::format("{} ({})", name_of(file), start.foreign));
  }

  void finish() {
    std::ranges::sort(found_.pictures);
    std::erase_if(found_.pictures, [this](const fs::path& file) {
      if (!is_label(file)) return false;
      leave_out(LeftOut::Reason::label, file);
      return true;
    });
    std::ranges::sort(found_.folders);
    std::ranges::sort(texts_);
    for (const fs::path& text : texts_)
      if (!stems_.contains(fs::path(text).replace_extension())) leave_out(LeftOut::Reason::caption, text);
  }

  void leave_out(LeftOut::Reason reason, const fs::path& file) { found_.left_out.add(reason, name_of(file)); }

 private:
  std::string name_of(const fs::path& file) const { return file.lexically_relative(folder_).generic_string(); }
  void add_picture(const fs::path& file) {
    found_.pictures.push_back(file);
    stems_.insert(fs::path(file).replace_extension());
  }

  // Of a picture beside it.
  bool is_label(const fs::path& file) const {
    const std::string path = file.string();
    return std::ranges::any_of(kLabels, [&](std::string_view label) {
      return path.ends_with(label) && stems_.contains(path.substr(0, path.size() - label.size()));
    });
  }

  PictureFolder& found_;
  const fs::path& folder_;
  const CaptionOptions& captions_;
  std::vector<fs::path> texts_;
  std::set<fs::path> stems_;
};

bool is_one_of(const fs::path& folder, const std::vector<fs::path>& all) {
  return std::ranges::any_of(all, [&](const fs::path& one) {
    std::error_code ignored;
    return fs::equivalent(folder, one, ignored);
  });
}

}  // namespace

std::vector<std::string> LeftOut::lines() const {
  struct Words {
    const char *noun, *one, *many;
  };
  // In the order of Reason.
  constexpr Words kWords[] = {
      {"name", "begins with a dot and is not read", "begin with a dot and are not read"},
      {"caption", "has no picture and is not read", "have no picture and are not read"},
      {"image", "is of a format that Wick does not read, and is left out",
       "are of formats that Wick does not read, and are left out"},
      {"file", "is neither picture nor caption and is not read", "are neither pictures nor captions and are not read"},
      {"folder", "within an image_dir is not read", "within image_dirs are not read"},
      {"mask", "has no picture and is not read", "have no picture and are not read"},
      {"label", "beside a picture is none of the pictures", "beside pictures are none of the pictures"}};
  std::vector<std::string> all;
  for (size_t i = 0; i < names_.size(); ++i)
    if (const std::vector<std::string>& names = names_[i]; !names.empty())
      all.push_back(fmt::format("{} {}: {}.", count_of(names.size(), kWords[i].noun),
                                names.size() == 1 ? kWords[i].one : kWords[i].many, first_few(names)));
  return all;
}

PictureFolder PictureFolder::scan(const fs::path& folder, bool nested, const CaptionOptions& captions,
                                  const std::vector<fs::path>& elsewhere, const std::string& source) {
  PictureFolder found;
  FolderScan scan(found, folder, captions);
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const std::string name = path.filename().string();
    std::error_code ignored;
    const bool is_folder = entry->is_directory(ignored), is_hidden = name.starts_with('.');
    if (is_hidden || !nested) entry.disable_recursion_pending();
    if (is_hidden) {
      scan.leave_out(LeftOut::Reason::hidden, path);
    } else if (!is_folder) {
      scan.add(path);
    } else if (!nested) {
      if (!is_one_of(path, elsewhere)) scan.leave_out(LeftOut::Reason::folder, path);
    } else if (entry->is_symlink(ignored)) {
      found.linked_folders.push_back(path.lexically_relative(folder).string());
    } else if (entry.depth() == 0) {
      found.folders.push_back(name);
    }
  }
  check(!error, "{}: cannot be read: {}", source, error.message());
  scan.finish();
  return found;
}

bool is_foreign_picture(const fs::path& path) { return ends_in(path, kForeignNames); }

fs::path picture_of_stem(const fs::path& stem) {
  std::error_code ignored;
  for (const char* extension : kPictureNames)
    if (fs::path file = fs::path(stem).concat(extension); fs::exists(file, ignored)) return file;
  std::vector<fs::path> others;
  std::error_code error;
  for (fs::directory_iterator entry(stem.parent_path(), error), end; !error && entry != end; entry.increment(error))
    if (fs::path(entry->path()).replace_extension() == stem)
      if (ends_in(entry->path(), kPictureNames) || image_start(entry->path()).is_read) others.push_back(entry->path());
  return others.empty() ? fs::path() : *std::ranges::min_element(others);
}

}  // namespace wick
