#include "wick/train/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/file.h"
#include "wick/io/sha256.h"
#include "wick/text/unicode.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxRepeats = 1000;
constexpr size_t kMaxCaptionBytes = size_t{1} << 20;
constexpr std::array kReadable = {".jpg", ".jpeg", ".png", ".webp"};
// Formats that Wick cannot read are reported, not skipped.
constexpr std::array kUnreadable = {".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".jxl", ".ppm", ".tga", ".exr"};

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](uint8_t c) { return char(std::tolower(c)); });
  return extension;
}

template <size_t N>
bool is_one_of(const std::string& extension, const std::array<const char*, N>& all) {
  return std::find(all.begin(), all.end(), extension) != all.end();
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// A caption, and its file as it is.
struct Caption {
  std::string text;
  DataFile file;
};

Caption read_caption(const fs::path& image, const fs::path& folder) {
  fs::path file = image;
  file.replace_extension(".txt");
  std::error_code ignored;
  check(fs::exists(file, ignored), "{}: no caption; write what the picture shows into {}", image.string(),
        file.filename().string());
  std::string text = read_file(file, kMaxCaptionBytes);
  Caption caption{.file = {file.lexically_relative(folder).generic_string(), sha256_hex(text)}};
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte-order mark
  check(invalid_utf8(text) == text.npos, "{}: the caption is not UTF-8; save it with that encoding", file.string());
  caption.text = trimmed(text);
  check(!caption.text.empty(), "{}: the caption is empty; write what the picture shows, or remove the picture",
        file.string());
  check(caption.text.find('\0') == std::string::npos, "{}: expected a caption, found a NUL character", file.string());
  return caption;
}

void check_is_folder(const fs::path& folder) {
  std::error_code error;
  check(fs::exists(folder, error), "--dataset {}: no such folder", folder.string());
  if (fs::is_directory(folder, error)) return;
  std::string found = "a file";
  if (fs::is_regular_file(folder, error)) {
    const FileDescriptor file(folder);
    std::array<char, kForeignBytes> start{};
    const std::string foreign = foreign_format({start.data(), file.read_at(0, start.data(), start.size())});
    if (!foreign.empty()) found = foreign;
  }
  fail("--dataset {}: expected a folder of pictures, found {}", folder.string(), found);
}

struct Scanned {
  std::vector<fs::path> pictures;                    // by their extensions
  std::vector<std::string> folders, linked_folders;  // directly within
};

Scanned scan_folder(const fs::path& folder) {
  Scanned found;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const std::string name = path.filename().string();
    if (name.starts_with('.')) {
      entry.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      if (entry->is_symlink(ignored))
        found.linked_folders.push_back(path.lexically_relative(folder).string());
      else if (entry.depth() == 0)
        found.folders.push_back(name);
      continue;
    }
    const std::string extension = lower_extension(path);
    if (is_one_of(extension, kReadable) || is_one_of(extension, kUnreadable)) found.pictures.push_back(path);
  }
  check(!error, "--dataset {}: cannot be read: {}", folder.string(), error.message());
  std::sort(found.pictures.begin(), found.pictures.end());
  std::sort(found.folders.begin(), found.folders.end());
  return found;
}

// 10 for "10_cat"; more than allowed where the number does not fit.
std::optional<int64_t> repeats_in_name(const std::string& name) {
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == name.npos || name[digits] != '_') return {};
  int64_t repeats{};
  const auto [end, error] = std::from_chars(name.data(), name.data() + digits, repeats);
  return error == std::errc{} ? repeats : kMaxRepeats + 1;
}

// Repeats by folder if all folders give them; else empty.
std::map<std::string, int64_t> folder_repeats(const Scanned& found, Dataset& dataset) {
  std::map<std::string, int64_t> repeats;
  std::string without;
  for (const std::string& name : found.folders) {
    if (const auto n = repeats_in_name(name))
      repeats[name] = *n;
    else
      without = name;
  }
  if (!repeats.empty() && !without.empty()) {
    dataset.remarks.push_back(
        fmt::format("{} counts once: folders say how often their pictures are shown only where "
                    "all of them are named so, and {} is not.",
                    repeats.begin()->first, without));
    return {};
  }
  for (const auto& [name, n] : repeats)
    check(n <= kMaxRepeats,
          "--dataset {}: the folder {} says that an epoch shows its pictures {} times, expected at most {}; rename it, "
          "so that its name does not begin with a number and _",
          dataset.folder.string(), name, name.substr(0, name.find('_')), kMaxRepeats);
  return repeats;
}

// The pictures that an epoch shows, with their repeats. Adds remarks about those shown and left out.
std::vector<std::pair<fs::path, int64_t>> shown_pictures(const Scanned& found, Dataset& dataset) {
  std::vector<std::pair<fs::path, int64_t>> kept;
  const std::map<std::string, int64_t> repeats = folder_repeats(found, dataset);
  dataset.repeated = !repeats.empty();
  std::map<std::string, size_t> count;
  size_t left_out = 0;
  for (const fs::path& picture : found.pictures) {
    if (!dataset.repeated) {
      kept.emplace_back(picture, 1);
      continue;
    }
    const fs::path within = picture.lexically_relative(dataset.folder);
    const auto folder = repeats.find(within.parent_path().string());
    if (folder == repeats.end() || folder->second == 0) {
      ++left_out;
      continue;
    }
    kept.emplace_back(picture, folder->second);
    ++count[folder->first];
  }
  for (const auto& [folder, pictures] : count)
    dataset.remarks.push_back(fmt::format("{}: {} × {}", folder, count_of(pictures, "picture"), repeats.at(folder)));
  if (left_out > 0)
    dataset.remarks.push_back(
        fmt::format("{} left out, as kohya's scripts do: not directly in a folder named N_name, "
                    "or N is 0.",
                    count_of(left_out, "picture")));
  for (const std::string& link : found.linked_folders)
    dataset.remarks.push_back(fmt::format("{} is a link to a folder and is not read.", link));
  return kept;
}

// Calls `read` for a picture; its Error states the fault and the way out.
template <class Read>
auto readable(const Read& read) {
  try {
    return read();
  } catch (const Error& e) {
    fail("{}; repair or remove the picture", e.what());
  }
}

// The picture's header, as an example of no resolution yet.
Example examine(const fs::path& image, const fs::path& folder) {
  const std::string extension = lower_extension(image);
  check(is_one_of(extension, kReadable), "{}: {} is not a format Wick reads; convert it to PNG, JPEG or WebP",
        image.string(), extension);
  const ImageInfo info = readable([&] { return probe_image(image); });
  return {.image = image, .name = image.lexically_relative(folder).generic_string(), .size = {info.width, info.height}};
}

// The example at a resolution.
Example placed(Example example, const std::vector<Size>& buckets, const BucketOptions& options) {
  const fs::path& image = example.image;
  example.resolution = options.resolution;
  try {
    example.placement = place(example.size, buckets, options);
  } catch (const Error& e) {
    fail("{}: {}; remove the picture or lower --resolution", image.string(), e.what());
  }
  const ImageLimits limits;
  const Size scaled = example.placement.scaled;
  check(std::max(scaled.width, scaled.height) <= limits.max_side && scaled.width * scaled.height <= limits.max_pixels,
        "{}: {}x{} pixels are too long and thin for any bucket; crop or remove the picture", image.string(),
        example.size.width, example.size.height);
  return example;
}

}  // namespace

Dataset Dataset::scan(const fs::path& folder, const Resolutions& resolutions, const Progress& progress) {
  check(!resolutions.empty(), "Dataset: expected a resolution, found none");
  std::vector<std::vector<Size>> buckets;
  for (const BucketOptions& options : resolutions) buckets.push_back(bucket_sizes(options));
  Dataset dataset{.folder = folder};
  check_is_folder(folder);
  Sha256 hash;
  Faults faults;
  const auto pictures = shown_pictures(scan_folder(folder), dataset);
  size_t done = 0;
  for (const auto& [image, repeats] : pictures) {
    if (progress) progress("Looking at pictures", done++, pictures.size());
    std::vector<Example> at_each;
    Caption caption;
    const bool is_picture = faults.collect([&] {
      const Example example = examine(image, folder);
      for (size_t i = 0; i < resolutions.size(); ++i) at_each.push_back(placed(example, buckets[i], resolutions[i]));
    });
    if (!faults.collect([&] { caption = read_caption(image, folder); }) || !is_picture) continue;
    for (Example& example : at_each) {
      example.caption = caption.text;
      example.repeats = repeats;
    }
    const std::string& name = at_each.front().name;
    const std::string picture_hash = sha256_hex_of_file(image);
    dataset.files.insert(dataset.files.end(), {{name, picture_hash}, caption.file});
    std::string parts = name + '\0' + picture_hash + '\0' + caption.text + '\0';
    if (repeats != 1) parts += fmt::format("{}", repeats) + '\0';
    hash.update(parts.data(), parts.size());
    std::ranges::move(at_each, std::back_inserter(dataset.examples));
  }
  dataset.check_pictures(faults, progress);
  dataset.sha256 = hash.hex();
  return dataset;
}

// Once a fault is found, pictures are decoded too, so that damage behind right headers is reported at the same time.
void Dataset::check_pictures(Faults& faults, const Progress& progress) const {
  const std::vector<Example> pictures = at().examples;
  for (size_t i = 0; i < pictures.size() && !faults.empty(); ++i) {
    if (progress) progress("Decoding pictures", i, pictures.size());
    faults.collect([&] { readable([&] { return read_image(pictures[i].image); }); });
  }
  faults.check(folder.string());
  check(!examples.empty(), "--dataset {}: no picture found (.png, .jpg, .jpeg or .webp, each with a caption in a .txt)",
        folder.string());
}

Dataset Dataset::at(int64_t resolution) const {
  Dataset some = *this;
  if (resolution == 0 && !examples.empty()) resolution = examples.front().resolution;
  std::erase_if(some.examples, [&](const Example& example) { return example.resolution != resolution; });
  return some;
}

std::map<Size, std::vector<size_t>> Dataset::buckets(bool repeat) const {
  std::map<Size, std::vector<size_t>> by_size;
  for (size_t i = 0; i < examples.size(); ++i) {
    std::vector<size_t>& bucket = by_size[examples[i].placement.bucket];
    bucket.insert(bucket.end(), repeat ? size_t(examples[i].repeats) : 1, i);
  }
  return by_size;
}

std::map<std::string, std::vector<size_t>> Dataset::subsets() const {
  const fs::path own = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  std::map<std::string, std::vector<size_t>> all;
  for (size_t i = 0; i < examples.size(); ++i)
    all[repeated ? fs::path(examples[i].name).parent_path().string() : own.string()].push_back(i);
  return all;
}

size_t Dataset::shown_count() const {
  size_t count = 0;
  for (const Example& example : examples) count += size_t(example.repeats);
  return count;
}

Image load_image(const Example& example) {
  const Image image = readable([&] { return read_image(example.image); });
  const auto [bucket, scaled, left, top] = example.placement;
  check(image.width == example.size.width && image.height == example.size.height,
        "{}: the picture changed while it was in use", example.image.string());
  const bool fits = scaled == example.size;
  const Image resized = fits ? image : resize_image(image, int(scaled.width), int(scaled.height));
  if (bucket == scaled) return resized;
  return crop_image(resized, int(left), int(top), int(bucket.width), int(bucket.height));
}

}  // namespace wick
