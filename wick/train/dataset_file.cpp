#include "wick/train/dataset_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"
#include "wick/train/picture_settings.h"
#include "wick/train/toml_settings.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Section = PictureSection;

// Tables in which a key may stand. What stands further out is for all within.
enum class Reach { subset_alone, subset, dataset };

// A key that is a setting of the run too, under the same name or an alias.
struct SettingKey {
  std::string_view key;
  Reach reach;
};
constexpr SettingKey kSettings[] = {{"batch_size", Reach::dataset},
                                    {"resolution", Reach::dataset},
                                    {"bucket_no_upscale", Reach::dataset},
                                    {"bucket_reso_steps", Reach::dataset},
                                    {"min_bucket_reso", Reach::dataset},
                                    {"max_bucket_reso", Reach::dataset},
                                    {"alpha_mask", Reach::subset},
                                    {"color_aug", Reach::subset},
                                    {"flip_aug", Reach::subset},
                                    {"random_crop", Reach::subset},
                                    {"caption_extension", Reach::subset},
                                    {"caption_lines", Reach::subset},
                                    {"caption_first_line", Reach::subset},
                                    {"class_tokens", Reach::subset},
                                    {"enable_wildcard", Reach::subset},
                                    {"keep_tokens_separator", Reach::subset},
                                    {"secondary_separator", Reach::subset},
                                    {"validation_seed", Reach::dataset},
                                    {"validation_split", Reach::dataset},
                                    {"caption_prefix", Reach::subset},
                                    {"caption_suffix", Reach::subset},
                                    {"caption_separator", Reach::subset},
                                    {"caption_variants", Reach::subset},
                                    {"caption_dropout_rate", Reach::subset},
                                    {"caption_tag_dropout_rate", Reach::subset},
                                    {"keep_tokens", Reach::subset},
                                    {"shuffle_caption", Reach::subset},
                                    {"trigger_word", Reach::subset}};

// A key of data sets alone.
struct OwnKey {
  using Member = std::variant<int64_t Section::*, bool Section::*, double Section::*, std::string Section::*>;
  std::string_view key;
  Reach reach;
  Member member;
  double min = 0, max = 0;
};
const OwnKey kOwn[] = {{"image_dir", Reach::subset_alone, &Section::image_dir},
                       {"conditioning_data_dir", Reach::subset_alone, &Section::masks},
                       {"is_reg", Reach::subset_alone, &Section::is_reg},
                       {"recursive", Reach::subset, &Section::recursive},
                       {"loss_weight", Reach::subset, &Section::loss_weight, 0, kMaxLossWeight},
                       {"num_repeats", Reach::subset, &Section::repeats, 1, kMaxRepeats},
                       {"enable_bucket", Reach::dataset, &Section::has_buckets}};

constexpr const char* kSeveral = "resolutions";  // which set the resolution too

// Kohya's keys that Wick cannot honour, and the value that asks for nothing.
struct RefusedKey {
  std::string_view key, instead;
  double neutral = 0;
};
constexpr RefusedKey kRefused[] = {{"cache_info", "", 1},
                                   {"caption_dropout_every_n_epochs", "caption_dropout_rate leaves captions empty"},
                                   {"custom_attributes", ""},
                                   {"debug_dataset", ""},
                                   {"face_crop_aug_range", ""},
                                   {"metadata_file", "captions lie beside the pictures, in .txt or .caption"},
                                   {"network_multiplier", "loss_weight weighs the loss of a subset", 1},
                                   {"resize_interpolation", ""},
                                   {"skip_image_resolution", ""},
                                   {"token_warmup_min", "", 1},
                                   {"token_warmup_step", ""}};

bool asks_for_nothing(const toml::node& value, double neutral) {
  if (const auto text = value.value_exact<std::string>()) return text->empty();
  const auto number = value.value<double>();
  const auto truth = value.value_exact<bool>();
  return (truth && (!*truth || neutral == 1)) || (number && *number == neutral);
}

// Whether "" asks for nothing, and takes back what an outer table says.
bool may_be_empty(std::string_view key) {
  constexpr std::string_view kKeys[] = {"caption_prefix", "caption_suffix", "keep_tokens_separator",
                                        "secondary_separator"};
  return std::ranges::find(kKeys, key) != std::end(kKeys);
}

// Whether a key may stand in a table: those of data sets not in a subset, those of a subset alone nowhere else.
bool may_stand(Reach key, Reach table, bool general) {
  if (general) return key != Reach::subset_alone;
  if (table == Reach::dataset) return key != Reach::subset_alone;
  return key != Reach::dataset;
}

void set_own(Section& section, const OwnKey& own, const toml::node& value, const std::string& where) {
  std::visit(
      [&](auto member) {
        using T = std::decay_t<decltype(section.*member)>;
        const char* kind = std::is_same_v<T, bool>      ? "true or false"
                           : std::is_same_v<T, int64_t> ? "an integer"
                           : std::is_same_v<T, double>  ? "a number"
                                                        : "a string";
        std::optional<T> found = value.value_exact<T>();
        if constexpr (std::is_same_v<T, double>)
          if (const auto whole = value.value_exact<int64_t>()) found = double(*whole);
        check_usage(found.has_value(), "{}: expected {}, found {}", where, kind, told(value));
        if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>)
          check_usage(double(*found) >= own.min && double(*found) <= own.max, "{}: expected {} from {} to {}, found {}",
                      where, kind, own.min, own.max, *found);
        if constexpr (std::is_same_v<T, std::string>)
          check_usage(!found->empty(), "{}: expected a text, found \"\"", where);
        section.*member = *found;
      },
      own.member);
}

// Kohya's is one side or [width, height]; of `resolutions` there are several such.
void set_resolution(TrainConfig& settings, const toml::node& value, const std::string& where) {
  const toml::array* sides = value.as_array();
  if (!sides) return set_from_toml(settings, option_named("resolution"), value, where);
  const auto extent = [&](size_t i) { return sides->get(i) ? sides->get(i)->value_exact<int64_t>() : std::nullopt; };
  check_usage(sides->size() == 2 && extent(0) && extent(1),
              "{}: expected a side or [width, height]; resolutions names several", where);
  const Resolution size(*extent(0), *extent(1));
  option_named("resolution").set(settings, {size.text()}, where);
}

class Reader {
 public:
  explicit Reader(fs::path file) : file_(std::move(file)), table_(parse_toml(file_)) {}
  Reader(const std::string& text, const std::string& source) : file_(source), table_(parse_toml(text, source)) {}

  // Where a data set stands, and its subsets that are left out: of those with one image_dir kohya's scripts take the
  // first (DreamBoothDataset, library/train_util.py, where they compare it as it is written).
  struct Place {
    std::string where;
    std::vector<std::string> left_out;
  };

  // Calls visit(dataset's section, its subsets' sections, place) for each data set.
  template <class Visit>
  void read(const TrainConfig& config, const Visit& visit) const {
    for (const auto& [key, value] : table_)
      check_usage(key == "general" || key == "datasets", "{}: {}: expected [general] and [[datasets]] alone",
                  file_.string(), printable(key.str()));
    Section general{.settings = config, .has_buckets = !config.no_bucket};
    general.settings.batch_size = 0;  // not told: the run's
    if (const toml::node* node = table_.get("general"))
      set(general, table_of(*node, "[general]"), "[general]", Reach::dataset, /*is_general=*/true);
    const std::vector<const toml::table*> datasets = tables(table_, "datasets", "[[datasets]]");
    for (size_t i = 0; i < datasets.size(); ++i) {
      const std::string where = fmt::format("[[datasets]] {}", i + 1);
      Section dataset = general;
      set(dataset, *datasets[i], where, Reach::dataset);
      std::vector<Section> sections;
      std::vector<std::string> repeated;
      size_t number = 0;
      for (const toml::table* subset : tables(*datasets[i], "subsets", where + ": [[datasets.subsets]]")) {
        const std::string subset_where = fmt::format("{}, subset {}", where, ++number);
        Section section = dataset;
        set(section, *subset, subset_where, Reach::subset);
        check_usage(!section.image_dir.empty(), "{}: {}: expected image_dir, the folder of its pictures",
                    file_.string(), subset_where);
        if (const auto first = std::ranges::find(sections, section.image_dir, &Section::image_dir);
            first == sections.end())
          sections.push_back(section);
        else
          repeated.push_back(
              fmt::format("{}: left out, as kohya's scripts do: its image_dir {} is that of another subset before it.",
                          subset_where, quote(section.image_dir)));
      }
      visit(dataset, sections, Place{where, repeated});
    }
  }

  const fs::path& file() const { return file_; }

 private:
  const toml::table& table_of(const toml::node& node, const std::string& where) const {
    check_usage(node.is_table(), "{}: {}: expected a table, found {}", file_.string(), where, told(node));
    return *node.as_table();
  }

  std::vector<const toml::table*> tables(const toml::table& within, std::string_view key,
                                         const std::string& where) const {
    const toml::node* node = within.get(key);
    check_usage(node && node->is_array() && !node->as_array()->empty(), "{}: {}: expected at least one, found {}",
                file_.string(), where, node ? told(*node) : "none");
    std::vector<const toml::table*> all;
    for (const toml::node& item : *node->as_array()) all.push_back(&table_of(item, where));
    return all;
  }

  void set(Section& section, const toml::table& table, const std::string& where, Reach reach,
           bool is_general = false) const {
    for (const auto& [name, value] : table) {
      if (name == "subsets" && reach == Reach::dataset && !is_general) continue;
      set(section, std::string(name.str()), value,
          fmt::format("{}: {}: {}", file_.string(), where, printable(name.str())), reach, is_general);
    }
  }

  void set(Section& section, const std::string& key, const toml::node& value, const std::string& where, Reach reach,
           bool is_general) const {
    const auto check_place = [&](Reach of_key) {
      check_usage(may_stand(of_key, reach, is_general), "{}: expected it in {}", where,
                  of_key == Reach::dataset ? "[general] or [[datasets]]" : "[[datasets.subsets]]");
    };
    if (const auto row = std::ranges::find(kRefused, key, &RefusedKey::key); row != std::end(kRefused)) {
      check_usage(asks_for_nothing(value, row->neutral), "{}: Wick has no such setting{}{}", where,
                  row->instead.empty() ? "; leave it out" : "; ", row->instead);
      return;
    }
    if (const auto row = std::ranges::find(kOwn, key, &OwnKey::key); row != std::end(kOwn)) {
      check_place(row->reach);
      return set_own(section, *row, value, where);
    }
    if (key == kSeveral) {
      check_place(Reach::dataset);
      return set_from_toml(section.settings, option_named("resolution"), value, where);
    }
    const auto row = std::ranges::find(kSettings, key, &SettingKey::key);
    check_usage(row != std::end(kSettings), "{}: no such key{}", where, did_you_mean(key, dataset_keys()));
    check_place(row->reach);
    if (key == "resolution") return set_resolution(section.settings, value, where);
    if (const auto text = value.value_exact<std::string>(); text && text->empty() && may_be_empty(key))
      return option_named(key).copy({}, section.settings);
    set_from_toml(section.settings, option_named(key), value, where);
  }

  fs::path file_;
  toml::table table_;
};

fs::path folder_beside(const fs::path& file, const std::string& folder) {
  const fs::path path = (file.parent_path() / folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// All that decides the numbers of a run, beside the pictures and captions.
std::string settings_in_words(const Section& section) {
  std::string text;
  for (const SettingKey& row : kSettings)
    text += fmt::format("{} = {}\n", row.key, option_named(row.key).toml(section.settings));
  for (const OwnKey& own : kOwn)
    std::visit([&](auto member) { text += fmt::format("{} = {}\n", own.key, section.*member); }, own.member);
  return text;
}

Resolutions resolutions_of(const Section& dataset, const LatentSpace& space) {
  check_usage(dataset.has_buckets || !dataset.settings.no_upscale,
              "bucket_no_upscale: expected enable_bucket = true with it");
  TrainConfig settings = dataset.settings;
  settings.no_bucket = !dataset.has_buckets;
  return bucket_options(settings, space);
}

PictureSubset subset_of(const Section& section, const fs::path& file) {
  const fs::path folder = folder_beside(file, section.image_dir);
  PictureSubset subset{.folder = folder,
                       .source = fmt::format("{}: image_dir {}", file.string(), folder.string()),
                       .name = fs::path(section.image_dir).lexically_normal().generic_string(),
                       .nested = section.recursive,
                       .repeats = section.repeats,
                       .is_reg = section.is_reg,
                       .loss_weight = section.loss_weight};
  apply(section.settings, subset);
  if (!section.masks.empty()) subset.masks = folder_beside(file, section.masks);
  return subset;
}

}  // namespace

bool is_dataset_file(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".toml" && !fs::is_directory(path, ignored);
}

namespace {

PictureSources sources_of(const Reader& reader, const TrainConfig& config, const LatentSpace& space) {
  const fs::path& file = reader.file();
  PictureSources sources{.path = file};
  reader.read(config, [&](const Section& dataset, const std::vector<Section>& subsets, const Reader::Place& place) {
    PictureGroup group{.batch_size = dataset.settings.batch_size};
    try {
      group.resolutions = resolutions_of(dataset, space);
    } catch (const Error& e) {
      fail_usage("{}: {}: {}", file.string(), place.where, e.what());
    }
    sources.remarks.insert(sources.remarks.end(), place.left_out.begin(), place.left_out.end());
    sources.settings += settings_in_words(dataset);
    for (const Section& subset : subsets) {
      group.subsets.push_back(subset_of(subset, file));
      sources.settings += settings_in_words(subset);
    }
    sources.groups.push_back(std::move(group));
  });
  return sources;
}

constexpr const char* kOwnTables = "--config";  // for messages: the tables are of the run's settings

}  // namespace

PictureSources read_dataset_file(const fs::path& file, const TrainConfig& config, const LatentSpace& space) {
  return sources_of(Reader(file), config, space);
}

PictureSources read_datasets(const TrainConfig& config, const LatentSpace& space) {
  return sources_of(Reader(config.datasets, kOwnTables), config, space);
}

std::vector<std::string> dataset_keys() {
  std::vector<std::string> all;
  for (const SettingKey& row : kSettings) all.emplace_back(row.key);
  for (const OwnKey& row : kOwn) all.emplace_back(row.key);
  all.emplace_back(kSeveral);
  for (const RefusedKey& row : kRefused) all.emplace_back(row.key);
  return all;
}

namespace {

std::vector<fs::path> folders_of(const Reader& reader) {
  std::vector<fs::path> folders;
  reader.read({}, [&](const Section&, const std::vector<Section>& subsets, const Reader::Place&) {
    for (const Section& subset : subsets)
      for (const std::string* folder : {&subset.image_dir, &subset.masks})
        if (!folder->empty()) folders.push_back(folder_beside(reader.file(), *folder));
  });
  return folders;
}

// Keys and values of the settings that a section has beside the run's.
std::string settings_beside(const TrainConfig& run, const Section& section, Reach reach, std::string_view indent) {
  std::string text;
  for (const SettingKey& row : kSettings) {
    const TrainOption& option = option_named(row.key);
    const std::string value = option.toml(section.settings);
    if (row.reach != reach || value == option.toml(run)) continue;
    if (row.key == "resolution")
      text += fmt::format("{}{} = {}\n", indent, kSeveral, value.starts_with('[') ? value : "[" + value + "]");
    else
      text += fmt::format("{}{} = {}\n", indent, row.key, value);
  }
  if (reach == Reach::dataset && section.settings.no_bucket != run.no_bucket)
    text += fmt::format("{}enable_bucket = {}\n", indent, !section.settings.no_bucket);
  return text;
}

std::string subset_table(const TrainConfig& run, const Section& section) {
  constexpr const char* kIndent = "  ";
  std::string text = "\n  [[datasets.subsets]]\n";
  const auto add = [&](const char* key, const std::string& value) {
    text += fmt::format("{}{} = {}\n", kIndent, key, value);
  };
  const auto absolute = [](const std::string& folder) {
    return toml_string(fs::absolute(folder).lexically_normal().string());
  };
  add("image_dir", absolute(section.image_dir));
  if (!section.masks.empty()) add("conditioning_data_dir", absolute(section.masks));
  if (section.is_reg) add("is_reg", "true");
  if (section.recursive) add("recursive", "true");
  if (section.repeats != 1) add("num_repeats", fmt::format("{}", section.repeats));
  if (section.loss_weight != 1) add("loss_weight", float_text(section.loss_weight));
  return text + settings_beside(run, section, Reach::subset, kIndent);
}

}  // namespace

std::string dataset_tables(const TrainConfig& run, const std::vector<Section>& subsets) {
  struct Group {
    std::string settings, text;
    std::vector<std::string> folders;
  };
  std::vector<Group> groups;
  for (const Section& subset : subsets) {
    const std::string settings = settings_beside(run, subset, Reach::dataset, "");
    auto group = std::ranges::find_if(groups, [&](const Group& one) {
      return one.settings == settings && std::ranges::find(one.folders, subset.image_dir) == one.folders.end();
    });
    if (group == groups.end()) group = groups.insert(group, {settings, "[[datasets]]\n" + settings, {}});
    group->text += subset_table(run, subset);
    group->folders.push_back(subset.image_dir);
  }
  std::string text;
  for (const Group& group : groups) text += (text.empty() ? "" : "\n") + group.text;
  return text;
}

std::vector<fs::path> dataset_folders(const fs::path& file) { return folders_of(Reader(file)); }

std::vector<fs::path> dataset_folders(const std::string& text, const std::string& source) {
  return folders_of(Reader(text, source));
}

std::vector<std::string> data_paths(const TrainConfig& config) {
  if (config.datasets.empty()) return config.dataset;
  std::vector<std::string> all;
  for (const fs::path& folder : dataset_folders(config.datasets, kOwnTables)) all.push_back(folder.string());
  return all;
}

}  // namespace wick
