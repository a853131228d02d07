#include "wick/train/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/sha256.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxRepeats = 1000;
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

void check_is_folder(const PictureSubset& subset) {
  const fs::path& folder = subset.folder;
  std::error_code error;
  check(fs::exists(folder, error), "{}: no such folder", subset.source);
  if (fs::is_directory(folder, error)) return;
  std::string found = "a file";
  if (fs::is_regular_file(folder, error)) {
    const FileDescriptor file(folder);
    std::array<char, kForeignBytes> start{};
    const std::string foreign = foreign_format({start.data(), file.read_at(0, start.data(), start.size())});
    if (!foreign.empty()) found = foreign;
  }
  fail("{}: expected a folder of pictures, found {}", subset.source, found);
}

struct Scanned {
  std::vector<fs::path> pictures;                    // by their extensions
  std::vector<std::string> folders, linked_folders;  // directly within
};

Scanned scan_folder(const PictureSubset& subset) {
  Scanned found;
  std::error_code error;
  fs::recursive_directory_iterator entry(subset.folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const std::string name = path.filename().string();
    if (name.starts_with('.') || !subset.nested) entry.disable_recursion_pending();
    if (name.starts_with('.')) continue;
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      if (!subset.nested) continue;
      if (entry->is_symlink(ignored))
        found.linked_folders.push_back(path.lexically_relative(subset.folder).string());
      else if (entry.depth() == 0)
        found.folders.push_back(name);
      continue;
    }
    const std::string extension = lower_extension(path);
    if (is_one_of(extension, kReadable) || is_one_of(extension, kUnreadable)) found.pictures.push_back(path);
  }
  check(!error, "{}: cannot be read: {}", subset.source, error.message());
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
std::map<std::string, int64_t> folder_repeats(const Scanned& found, const PictureSubset& subset, Dataset& dataset) {
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
          "{}: the folder {} says that an epoch shows its pictures {} times, expected at most {}; rename it, "
          "so that its name does not begin with a number and _",
          subset.source, name, name.substr(0, name.find('_')), kMaxRepeats);
  return repeats;
}

// The pictures that an epoch shows, with their repeats. Adds remarks about those shown and left out.
std::vector<std::pair<fs::path, int64_t>> shown_pictures(const PictureSubset& subset, Dataset& dataset) {
  check_is_folder(subset);
  const Scanned found = scan_folder(subset);
  std::vector<std::pair<fs::path, int64_t>> kept;
  const std::map<std::string, int64_t> repeats = folder_repeats(found, subset, dataset);
  const bool repeated = !repeats.empty();
  dataset.repeated = dataset.repeated || repeated;
  std::map<std::string, size_t> count;
  size_t left_out = 0;
  for (const fs::path& picture : found.pictures) {
    if (!repeated) {
      kept.emplace_back(picture, subset.repeats);
      continue;
    }
    const fs::path within = picture.lexically_relative(subset.folder);
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
  if (!subset.name.empty()) {
    check(!kept.empty(), "{}: no picture found (.png, .jpg, .jpeg or .webp)", subset.source);
    dataset.remarks.push_back(
        fmt::format("{}: {} × {}", subset.name, count_of(kept.size(), "picture"), subset.repeats));
  }
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

// A path of a picture or caption as lists of files have it.
std::string name_in(const PictureSubset& subset, const std::string& within) {
  return subset.name.empty() ? within : subset.name + "/" + within;
}

// The picture's header, as an example of no resolution yet.
Example examine(const fs::path& image, const PictureSubset& subset) {
  const std::string extension = lower_extension(image);
  check(is_one_of(extension, kReadable), "{}: {} is not a format Wick reads; convert it to PNG, JPEG or WebP",
        image.string(), extension);
  const ImageInfo info = readable([&] { return probe_image(image); });
  return {.image = image,
          .name = name_in(subset, image.lexically_relative(subset.folder).generic_string()),
          .size = {info.width, info.height}};
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

// Reads the pictures of one subset after the other into a data set.
class Scan {
 public:
  Scan(Dataset& dataset, const Progress& progress) : dataset_(dataset), progress_(progress) {}

  void add(const PictureGroup& group) {
    check(!group.resolutions.empty(), "Dataset: expected a resolution, found none");
    std::vector<std::vector<Size>> buckets;
    for (const BucketOptions& options : group.resolutions) buckets.push_back(bucket_sizes(options));
    for (const PictureSubset& subset : group.subsets) {
      std::vector<std::pair<fs::path, int64_t>> pictures;
      faults_.collect([&] { pictures = shown_pictures(subset, dataset_); });
      for (size_t i = 0; i < pictures.size(); ++i) {
        if (progress_) progress_("Looking at pictures", i, pictures.size());
        add(pictures[i].first, pictures[i].second, group, subset, buckets);
      }
    }
  }

  // Of a file of data sets.
  void add_settings() {
    const PictureSources& sources = dataset_.sources;
    if (sources.settings.empty()) return;
    list({sources.path.filename().string(), sha256_hex_of_file(sources.path)});
    hash_.update(sources.settings.data(), sources.settings.size());
  }

  Faults& faults() { return faults_; }
  std::string hash() { return hash_.hex(); }

 private:
  void add(const fs::path& image, int64_t repeats, const PictureGroup& group, const PictureSubset& subset,
           const std::vector<std::vector<Size>>& buckets) {
    std::vector<Example> at_each;
    PictureCaptions captions;
    const bool is_picture = faults_.collect([&] {
      const Example example = examine(image, subset);
      for (size_t i = 0; i < buckets.size(); ++i) at_each.push_back(placed(example, buckets[i], group.resolutions[i]));
    });
    if (!faults_.collect([&] { captions = read_captions(image, subset.folder, subset.captions); }) || !is_picture)
      return;
    for (Example& example : at_each) {
      example.captions = captions.texts;
      if (captions.file) example.caption_file = subset.folder / captions.file->name;
      example.repeats = repeats;
      example.group = size_t(&group - dataset_.sources.groups.data());
      example.subset = size_t(&subset - group.subsets.data());
    }
    const std::string& name = at_each.front().name;
    const std::string picture_hash = sha256_hex_of_file(image);
    list({name, picture_hash});
    if (captions.file) list({name_in(subset, captions.file->name), captions.file->sha256});
    std::string parts = name + '\0' + picture_hash + '\0';
    for (const std::string& caption : captions.texts) parts += caption + '\0';
    if (repeats != 1) parts += fmt::format("{}", repeats) + '\0';
    hash_.update(parts.data(), parts.size());
    std::ranges::move(at_each, std::back_inserter(dataset_.examples));
  }

  // A folder may be in several data sets.
  void list(const DataFile& file) {
    if (listed_.insert(file.name).second) dataset_.files.push_back(file);
  }

  Dataset& dataset_;
  const Progress& progress_;
  Sha256 hash_;
  Faults faults_;
  std::set<std::string> listed_;
};

}  // namespace

Dataset Dataset::scan(PictureSources sources, const Progress& progress) {
  Dataset dataset{.sources = std::move(sources)};
  Scan scan(dataset, progress);
  scan.add_settings();
  for (const PictureGroup& group : dataset.sources.groups) scan.add(group);
  dataset.check_pictures(scan.faults(), progress);
  dataset.sha256 = scan.hash();
  return dataset;
}

Dataset Dataset::scan(const fs::path& folder, const Resolutions& resolutions, const Progress& progress) {
  const PictureSubset subset{.folder = folder, .source = "--dataset " + folder.string()};
  return scan({.path = folder, .groups = {{.resolutions = resolutions, .subsets = {subset}}}}, progress);
}

// Once a fault is found, pictures are decoded too, so that damage behind right headers is reported at the same time.
void Dataset::check_pictures(Faults& faults, const Progress& progress) const {
  const std::vector<Example> pictures = at().examples;
  for (size_t i = 0; i < pictures.size() && !faults.empty(); ++i) {
    if (progress) progress("Decoding pictures", i, pictures.size());
    faults.collect([&] { readable([&] { return read_image(pictures[i].image); }); });
  }
  faults.check(sources.path.string());
  check(!examples.empty(),
        "--dataset {}: no picture found (.png, .jpg, .jpeg or .webp, each with a caption in a .txt or .caption)",
        sources.path.string());
}

const PictureSubset& Dataset::subset_of(const Example& example) const {
  return sources.groups.at(example.group).subsets.at(example.subset);
}

Dataset Dataset::at(int64_t resolution, size_t group) const {
  Dataset some = *this;
  std::map<size_t, int64_t> first;  // by group
  for (const Example& example : examples) first.emplace(example.group, example.resolution);
  std::erase_if(some.examples, [&](const Example& example) {
    return resolution == 0 ? example.resolution != first.at(example.group)
                           : example.resolution != resolution || example.group != group;
  });
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

std::vector<BatchBucket> Dataset::batch_buckets(int64_t batch_size) const {
  std::map<std::pair<size_t, Size>, BatchBucket> by_group;
  for (size_t i = 0; i < examples.size(); ++i) {
    const Example& example = examples[i];
    BatchBucket& bucket = by_group[{example.group, example.placement.bucket}];
    const int64_t own = sources.groups.at(example.group).batch_size;
    bucket.batch_size = own > 0 ? own : batch_size;
    bucket.examples.insert(bucket.examples.end(), size_t(example.repeats), i);
  }
  std::vector<BatchBucket> all;
  for (auto& [place, bucket] : by_group) all.push_back(std::move(bucket));
  return all;
}

std::map<std::string, std::vector<size_t>> Dataset::subsets() const {
  const fs::path& root = sources.path;
  const fs::path own = root.has_filename() ? root.filename() : root.parent_path().filename();
  const bool several =
      sources.groups.size() > 1 || (!sources.groups.empty() && sources.groups.front().subsets.size() > 1);
  std::map<std::string, std::vector<size_t>> all;
  for (size_t i = 0; i < examples.size(); ++i)
    all[repeated || several ? fs::path(examples[i].name).parent_path().string() : own.string()].push_back(i);
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
