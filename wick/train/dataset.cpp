#include "wick/train/dataset.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/sha256.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxScaledPixels = 200'000'000;
constexpr size_t kMaxCaptionBytes = size_t{1} << 20;
constexpr std::array kReadable = {".jpg", ".jpeg", ".png", ".webp"};
// Pictures that Wick cannot read are not skipped in silence.
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

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = uint8_t(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t point = length == 1 ? lead : lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      if (uint8_t(text[i + k]) >> 6 != 2) return false;
      point = point << 6 | (uint8_t(text[i + k]) & 0x3fu);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // no longer than needed
    if (point < kLeast[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    i += length;
  }
  return true;
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string read_caption(const fs::path& image) {
  fs::path file = image;
  file.replace_extension(".txt");
  std::error_code ignored;
  check(fs::exists(file, ignored), "{}: no caption; write what the picture shows into {}", image.string(),
        file.string());
  std::string text = read_file(file, kMaxCaptionBytes);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte-order mark
  check(is_valid_utf8(text), "{}: the caption is not UTF-8; save it with that encoding", file.string());
  std::string caption = trimmed(text);
  check(!caption.empty(), "{}: the caption is empty; write what the picture shows, or remove the picture",
        file.string());
  check(caption.find('\0') == std::string::npos, "{}: expected a caption, found a NUL character", file.string());
  return caption;
}

std::vector<fs::path> find_images(const fs::path& folder) {
  std::error_code error;
  check(fs::exists(folder, error), "--dataset {}: no such folder", folder.string());
  check(fs::is_directory(folder, error), "--dataset {}: expected a folder, found a file", folder.string());
  std::vector<fs::path> images;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
      continue;
    }
    if (entry->is_directory(error)) continue;
    const std::string extension = lower_extension(path);
    check(!is_one_of(extension, kUnreadable), "{}: {} is not a format Wick reads; convert it to PNG, JPEG or WebP",
          path.string(), extension);
    if (is_one_of(extension, kReadable)) images.push_back(path);
  }
  check(!error, "--dataset {}: cannot be read: {}", folder.string(), error.message());
  check(!images.empty(), "--dataset {}: no picture found (.png, .jpg, .jpeg or .webp, each with a caption in a .txt)",
        folder.string());
  std::sort(images.begin(), images.end());
  return images;
}

// A picture that cannot be read: what is wrong, and the way out.
template <class Read>
auto readable(const Read& read) {
  try {
    return read();
  } catch (const Error& e) {
    fail("{}; repair or remove the picture", e.what());
  }
}

Example examine(const fs::path& image, const fs::path& folder, const std::vector<Size>& buckets,
                const BucketOptions& options) {
  const ImageInfo info = readable([&] { return probe_image(image); });
  Example example{.image = image,
                  .name = image.lexically_relative(folder).generic_string(),
                  .caption = read_caption(image),
                  .size = {info.width, info.height}};
  try {
    example.placement = place(example.size, buckets, options);
  } catch (const Error& e) {
    fail("{}: {}; remove the picture or lower --resolution", image.string(), e.what());
  }
  const Size scaled = example.placement.scaled;
  check(scaled.width * scaled.height <= kMaxScaledPixels,
        "{}: {}x{} pixels are too long and thin for any bucket; crop the picture", image.string(), info.width,
        info.height);
  return example;
}

}  // namespace

Dataset Dataset::scan(const fs::path& folder, const BucketOptions& options) {
  const std::vector<Size> buckets = bucket_sizes(options);
  Dataset dataset{.folder = folder};
  Sha256 hash;
  for (const fs::path& image : find_images(folder)) {
    dataset.examples.push_back(examine(image, folder, buckets, options));
    const Example& example = dataset.examples.back();
    const std::string parts = example.name + '\0' + sha256_hex_of_file(image) + '\0' + example.caption + '\0';
    hash.update(parts.data(), parts.size());
  }
  dataset.sha256 = hash.hex();
  return dataset;
}

std::map<Size, std::vector<size_t>> Dataset::buckets() const {
  std::map<Size, std::vector<size_t>> by_size;
  for (size_t i = 0; i < examples.size(); ++i) by_size[examples[i].placement.bucket].push_back(i);
  return by_size;
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

std::vector<float> time_ids(const Example& example) {
  const Placement& p = example.placement;
  return {float(example.size.height), float(example.size.width), float(p.crop_top),
          float(p.crop_left),         float(p.bucket.height),    float(p.bucket.width)};
}

}  // namespace wick
