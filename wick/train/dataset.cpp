#include "wick/train/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/descriptor.h"
#include "wick/io/sha256.h"
#include "wick/train/picture_folder.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

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

// 10 for "10_cat"; more than allowed where the number does not fit.
std::optional<int64_t> repeats_in_name(const std::string& name) {
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits == name.npos || name[digits] != '_') return {};
  int64_t repeats{};
  const auto [end, error] = std::from_chars(name.data(), name.data() + digits, repeats);
  return error == std::errc{} ? repeats : kMaxRepeats + 1;
}

// Kohya's class tokens: "cat" for "10_cat".
std::string class_in_name(const std::string& name) { return name.substr(name.find('_') + 1); }

// Repeats by folder if all folders give them; else empty.
std::map<std::string, int64_t> folder_repeats(const PictureFolder& found, const PictureSubset& subset,
                                              Dataset& dataset) {
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

constexpr const char* kKinds = "JPEG, PNG, WebP, GIF, BMP or TIFF";

// "JPEG, PNG, …; 1 caption has no picture and is not read: a.txt"
std::string joined(std::string text, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) text += "; " + line.substr(0, line.size() - 1);
  return text;
}

// A remark on the files of a subset; a folder may be in several data sets.
void remark_of(const PictureSubset& subset, const std::string& line, Dataset& dataset) {
  const std::string remark = subset.name.empty() ? line : subset.name + ": " + line;
  if (std::ranges::find(dataset.remarks, remark) == dataset.remarks.end()) dataset.remarks.push_back(remark);
}

// That a run reads, with those of masks.
std::vector<fs::path> folders_of(const PictureSources& sources) {
  std::vector<fs::path> all;
  for (const PictureGroup& group : sources.groups)
    for (const PictureSubset& subset : group.subsets)
      for (const fs::path& folder : {subset.folder, subset.masks})
        if (!folder.empty()) all.push_back(folder);
  return all;
}

struct Shown {
  fs::path image;
  int64_t repeats;
  std::string class_tokens = {};  // by its folder, of regularisation
};

// The pictures of each folder that are trained on, or those that are held back.
std::vector<fs::path> read_of(const std::vector<fs::path>& pictures, const Split& split) {
  if (split.held_back == 0) return pictures;
  std::map<fs::path, std::vector<fs::path>> folders;
  for (const fs::path& picture : pictures) folders[picture.parent_path()].push_back(picture);
  std::vector<fs::path> read;
  for (const auto& [folder, all] : folders)
    for (const size_t i : chosen(all.size(), split)) read.push_back(all[i]);
  std::ranges::sort(read);
  return read;
}

// The pictures that an epoch shows, with their repeats. Adds remarks about those shown and left out.
std::vector<Shown> shown_pictures(const PictureSubset& subset, Dataset& dataset) {
  check_is_folder(subset);
  const PictureFolder found =
      PictureFolder::scan(subset.folder, subset.nested, subset.captions, folders_of(dataset.sources), subset.source);
  std::vector<Shown> kept;
  const std::map<std::string, int64_t> repeats = folder_repeats(found, subset, dataset);
  const bool repeated = !repeats.empty();
  dataset.repeated = dataset.repeated || repeated;
  std::map<std::string, size_t> count;
  size_t left_out = 0;
  for (const fs::path& picture : read_of(found.pictures, subset.split)) {
    if (!repeated) {
      kept.push_back({picture, subset.repeats});
      continue;
    }
    const fs::path within = picture.lexically_relative(subset.folder);
    const auto folder = repeats.find(within.parent_path().string());
    if (folder == repeats.end() || folder->second == 0) {
      ++left_out;
      continue;
    }
    kept.push_back(
        {picture, subset.split.validates ? 1 : folder->second, subset.is_reg ? class_in_name(folder->first) : ""});
    ++count[folder->first];
  }
  for (const auto& [folder, pictures] : count)
    dataset.remarks.push_back(fmt::format("{}: {} × {}", folder, count_of(pictures, "picture"), repeats.at(folder)));
  const std::vector<std::string> lines = found.left_out.lines();
  if (subset.split.validates) return kept;
  if (!subset.name.empty()) {
    check(!kept.empty(), "{}: no picture found ({})", subset.source, joined(kKinds, lines));
    dataset.remarks.push_back(fmt::format("{}: {} × {}{}", subset.name, count_of(kept.size(), "picture"),
                                          subset.repeats, subset.is_reg ? ", of regularisation" : ""));
  }
  if (left_out > 0)
    dataset.remarks.push_back(
        fmt::format("{} left out, as kohya's scripts do: not directly in a folder named N_name, "
                    "or N is 0.",
                    count_of(left_out, "picture")));
  for (const std::string& link : found.linked_folders)
    dataset.remarks.push_back(fmt::format("{} is a link to a folder and is not read.", link));
  for (const std::string& line : lines) remark_of(subset, line, dataset);
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
  check(!is_foreign_picture(image) || image_start(image).is_read,
        "{}: {} is not a format Wick reads; convert it to PNG", image.string(), image.extension().string());
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

// As kohya's DreamBoothDataset does it: pictures of regularisation are shown as often as the others together, the first
// of them once more than the last where that does not divide.
void balance(const PictureGroup& group, std::vector<std::vector<Shown>>& shown) {
  int64_t wanted = 0, count = 0;
  std::vector<Shown*> regularising;
  for (size_t i = 0; i < shown.size(); ++i)
    for (Shown& picture : shown[i]) {
      if (group.subsets[i].is_reg)
        regularising.push_back(&picture);
      else
        wanted += picture.repeats;
    }
  for (Shown* picture : regularising) {
    if (count >= wanted) picture->repeats = 0;  // left out
    count += picture->repeats;
  }
  for (size_t i = 0; count < wanted && !regularising.empty(); i = (i + 1) % regularising.size(), ++count)
    ++regularising[i]->repeats;
}

template <class Holds>
bool any_subset(const PictureSources& sources, const Holds& holds) {
  return std::ranges::any_of(sources.groups,
                             [&](const PictureGroup& group) { return std::ranges::any_of(group.subsets, holds); });
}

// A picture's mask in a folder: OneTrainer's name for it, or the picture's.
fs::path mask_in(const fs::path& folder, const Example& example, const PictureSubset& subset) {
  std::error_code ignored;
  const fs::path stem = (folder / example.image.lexically_relative(subset.folder)).replace_extension();
  const fs::path label = fs::path(stem).concat(kMaskLabel), file = picture_of_stem(stem);
  if (fs::exists(label, ignored)) return label;
  const bool is_beside = fs::equivalent(file, example.image, ignored);
  check(!file.empty() && !is_beside, "{}: no mask; put one into {}", example.image.string(),
        is_beside ? label.string() : fs::path(stem).concat(".png").string());
  return file;
}

// The mask of a picture; it has the picture's size.
fs::path mask_of(const Example& example, const PictureSubset& subset) {
  if (subset.alpha_mask) return example.image;
  const fs::path file = mask_in(subset.masks, example, subset);
  const ImageInfo info = readable([&] { return probe_image(file); });
  check(Size{info.width, info.height} == example.size,
        "{}: a mask has the size of its picture, {}x{} pixels, found {}x{}", file.string(), example.size.width,
        example.size.height, info.width, info.height);
  return file;
}

// Reads the pictures of one subset after the other into a data set.
class Scan {
 public:
  Scan(Dataset& dataset, const Progress& progress) : dataset_(dataset), progress_(progress) {}

  void add(const PictureGroup& group) {
    check(!group.resolutions.empty(), "Dataset: expected a resolution, found none");
    std::vector<std::vector<Size>> buckets;
    for (const BucketOptions& options : group.resolutions) buckets.push_back(bucket_sizes(options));
    std::vector<std::vector<Shown>> shown(group.subsets.size());
    for (size_t i = 0; i < shown.size(); ++i)
      faults_.collect([&] { shown[i] = shown_pictures(group.subsets[i], dataset_); });
    balance(group, shown);
    faults_.collect([&] {
      check(std::ranges::any_of(group.subsets, [](const PictureSubset& subset) { return !subset.is_reg; }),
            "{}: expected pictures beside those of regularisation", group.subsets.front().source);
    });
    for (size_t i = 0; i < shown.size(); ++i)
      for (const Shown& picture : shown[i]) {
        if (progress_) progress_("Looking at pictures", size_t(&picture - shown[i].data()), shown[i].size());
        if (picture.repeats > 0) add(picture, group, group.subsets[i], buckets);
      }
    for (const PictureSubset& subset : group.subsets) tell_unused_masks(subset);
  }

  // Of a file of data sets.
  void add_settings() {
    const PictureSources& sources = dataset_.sources;
    if (sources.settings.empty()) return;
    std::error_code ignored;
    if (fs::is_regular_file(sources.path, ignored))
      list({sources.path.filename().string(), sha256_hex_of_file(sources.path)});
    hash_.update(sources.settings.data(), sources.settings.size());
  }

  Faults& faults() { return faults_; }
  std::string hash() { return hash_.hex(); }

 private:
  void add(const Shown& picture, const PictureGroup& group, const PictureSubset& subset,
           const std::vector<std::vector<Size>>& buckets) {
    Example example;
    std::vector<Example> at_each;
    PictureCaptions captions;
    const bool is_picture = faults_.collect([&] {
      example = examine(picture.image, subset);
      for (size_t i = 0; i < buckets.size(); ++i) at_each.push_back(placed(example, buckets[i], group.resolutions[i]));
    });
    const std::string picture_hash = is_picture ? sha256_hex_of_file(picture.image) : "";
    CaptionOptions options = subset.captions;
    if (!picture.class_tokens.empty()) options.class_tokens = picture.class_tokens;
    bool is_sound = faults_.collect([&] { captions = read_captions(picture.image, subset.folder, options); });
    if (is_picture && subset.has_masks())
      is_sound = faults_.collect([&] { example.mask = mask_of(example, subset); }) && is_sound;
    masks_.insert(example.mask);
    if (!is_sound || !is_picture) return;
    for (Example& place : at_each) {
      place.captions = captions.texts;
      if (captions.file) place.caption_file = subset.folder / captions.file->name;
      place.mask = example.mask;
      place.sha256 = picture_hash;
      place.repeats = picture.repeats;
      place.group = size_t(&group - dataset_.sources.groups.data());
      place.subset = size_t(&subset - group.subsets.data());
    }
    hash(at_each.front(), captions, subset);
    std::ranges::move(at_each, std::back_inserter(dataset_.examples));
  }

  void hash(const Example& example, const PictureCaptions& captions, const PictureSubset& subset) {
    std::string parts = example.name + '\0' + example.sha256 + '\0';
    list({example.name, example.sha256});
    if (captions.file) list({name_in(subset, captions.file->name), captions.file->sha256});
    for (const std::string& caption : captions.texts) parts += caption + '\0';
    if (example.repeats != 1) parts += fmt::format("{}", example.repeats) + '\0';
    if (subset.has_masks() && !subset.alpha_mask) {
      const DataFile mask{"mask of " + example.name, sha256_hex_of_file(example.mask)};
      list(mask);
      parts += mask.sha256 + '\0';
    }
    hash_.update(parts.data(), parts.size());
  }

  void tell_unused_masks(const PictureSubset& subset) {
    std::error_code ignored;
    if (!fs::is_directory(subset.masks, ignored) || fs::equivalent(subset.masks, subset.folder, ignored)) return;
    LeftOut unused;
    for (const fs::path& mask : PictureFolder::scan(subset.masks, subset.nested, {}, {}, subset.source).pictures)
      if (!masks_.contains(mask))
        unused.add(LeftOut::Reason::mask, mask.lexically_relative(subset.masks).generic_string());
    for (const std::string& line : unused.lines()) remark_of(subset, line, dataset_);
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
  std::set<fs::path> masks_;  // in use
};

}  // namespace

Dataset Dataset::scan(PictureSources sources, const Progress& progress) {
  Dataset dataset{.sources = std::move(sources)};
  dataset.remarks = dataset.sources.remarks;
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
    faults.collect([&] { readable_picture(pictures[i].image); });
  }
  faults.check(sources.path.string());
  check(!examples.empty() || !any_subset(sources, [](const PictureSubset& s) { return s.split.validates; }),
        "{}: the validation split holds back none of the pictures; expected a larger share, or more pictures",
        sources.path.string());
  check(!examples.empty(), "{}: no picture found ({})", sources.groups.front().subsets.front().source,
        joined(std::string(kKinds) + ", each with a caption in a .txt or .caption", remarks));
}

const PictureSubset& Dataset::subset_of(const Example& example) const {
  return sources.groups.at(example.group).subsets.at(example.subset);
}

Dataset Dataset::at(Resolution resolution, size_t group) const {
  Dataset some = *this;
  std::map<size_t, Resolution> first;  // by group
  for (const Example& example : examples) first.emplace(example.group, example.resolution);
  std::erase_if(some.examples, [&](const Example& example) {
    return resolution.width == 0 ? example.resolution != first.at(example.group)
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

bool Dataset::is_augmented_endlessly() const {
  return any_subset(sources, [](const PictureSubset& subset) { return subset.augmentation.is_endless(); });
}

bool Dataset::has_masks() const { return any_subset(sources, &PictureSubset::has_masks); }

bool Dataset::has_weights() const {
  return has_masks() || any_subset(sources, [](const PictureSubset& subset) { return subset.loss_weight != 1; });
}

Image readable_picture(const fs::path& path) {
  return readable([&] { return read_image(path); });
}

}  // namespace wick
