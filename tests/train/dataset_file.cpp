// Data sets in kohya's TOML: what they inherit, what is refused, and what becomes of their pictures.
#include "wick/train/dataset_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "io/files.h"
#include "wick/train/batches.h"
#include "wick/train/config.h"
#include "wick/train/picture_settings.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class DatasetFileTest : public testing::Test {
 protected:
  void add(const std::string& name, int width, int height, const std::string& caption = "a red circle") {
    fs::create_directories((folder_ / name).parent_path());
    write_image(folder_ / (name + ".png"), {width, height, std::vector<uint8_t>(size_t(width * height * 3), 90)});
    if (!caption.empty()) write_plain(folder_ / (name + ".txt"), caption);
  }
  PictureSources read(const std::string& text, const TrainConfig& config = {}) const {
    write_plain(file_, text);
    return read_dataset_file(file_, config, space_);
  }
  void expect_refused(const std::string& text, std::initializer_list<std::string_view> parts) const {
    expect_error([&] { read(text); }, parts);
    expect_error([&] { read(text); }, {file_.string()});
  }

  const LatentSpace space_{.channels = 4, .factor = 8, .side_step = 8, .bucket_step = 32, .native = 128};
  TemporaryDirectory folder_;
  const fs::path file_ = folder_ / "set.toml";
};

TEST_F(DatasetFileTest, InnerTablesInheritFromOuterOnesAndAllFromTheRun) {
  TrainConfig config;
  config.caption_dropout = 0.5, config.keep_tokens = 7, config.bucket_step = 64, config.resolution = {256};
  config.batch_size = 3;
  const PictureSources sources = read(R"(
[general]
shuffle_caption = true
keep_tokens = 1
num_repeats = 2
caption_extension = ".caption"
[[datasets]]
resolution = [128, 128]
batch_size = 4
keep_tokens = 2
bucket_reso_steps = 32
min_bucket_reso = 96
max_bucket_reso = 192
  [[datasets.subsets]]
  image_dir = "cats/"
  class_tokens = "cat"
  num_repeats = 10
  [[datasets.subsets]]
  image_dir = "../dogs"
  keep_tokens = 3
  caption_prefix = "a photo,"
  caption_suffix = "on grass"
  caption_tag_dropout_rate = 0.1
  shuffle_caption = false
  trigger_word = "ohwx"
  caption_lines = true
[[datasets]]
enable_bucket = false
  [[datasets.subsets]]
  image_dir = "/else"
  caption_dropout_rate = 0
  caption_variants = 3
  caption_separator = ";"
)",
                                      config);
  ASSERT_EQ(sources.groups.size(), 2u);
  const auto& [first, second] = std::tie(sources.groups[0], sources.groups[1]);
  EXPECT_EQ(first.batch_size, 4);
  EXPECT_EQ(second.batch_size, 0) << "the run's";
  EXPECT_EQ(first.resolutions.front().resolution, Resolution(128));
  EXPECT_EQ(first.resolutions.front().step, 32);
  EXPECT_EQ(second.resolutions.front().step, 64) << "the run's";
  for (const Size size : bucket_sizes(first.resolutions.front()))
    EXPECT_TRUE(size.width >= 96 && size.height >= 96 && size.width <= 192 && size.height <= 192);
  EXPECT_EQ(bucket_sizes(second.resolutions.front()), (std::vector<Size>{{256, 256}}));
  ASSERT_EQ(first.subsets.size(), 2u);
  const PictureSubset &cats = first.subsets[0], &dogs = first.subsets[1], &others = second.subsets.at(0);
  EXPECT_EQ(cats.folder, folder_ / "cats");
  EXPECT_EQ(dogs.folder, folder_.path().parent_path() / "dogs");
  EXPECT_EQ(others.folder, "/else");
  EXPECT_EQ(cats.repeats, 10);
  EXPECT_EQ(dogs.repeats, 2);
  EXPECT_EQ(others.captions.keep_tokens, 1);
  EXPECT_EQ(cats.captions.keep_tokens, 2);
  EXPECT_EQ(dogs.captions.keep_tokens, 3);
  EXPECT_EQ(cats.captions.class_tokens, "cat");
  EXPECT_EQ(dogs.captions.class_tokens, "");
  EXPECT_TRUE(cats.captions.shuffle && others.captions.shuffle && !dogs.captions.shuffle);
  EXPECT_EQ(cats.captions.dropout, 0.5);
  EXPECT_EQ(others.captions.dropout, 0);
  EXPECT_EQ(dogs.captions.prefix, "a photo,");
  EXPECT_EQ(dogs.captions.suffix, "on grass");
  EXPECT_EQ(dogs.captions.trigger, "ohwx");
  EXPECT_EQ(dogs.captions.tag_dropout, 0.1);
  EXPECT_TRUE(dogs.captions.lines && !cats.captions.lines);
  EXPECT_EQ(others.captions.variants, 3);
  EXPECT_EQ(others.captions.separator, ";");
  EXPECT_EQ(cats.captions.extension, ".caption");
  EXPECT_EQ(dataset_folders(file_), (std::vector<fs::path>{cats.folder, dogs.folder, others.folder}));
}

TEST_F(DatasetFileTest, DataSetsHaveSizesAndCaptionsOfTheirOwn) {
  const PictureSources sources = read(R"(
[general]
keep_tokens_separator = "|||"
[[datasets]]
resolution = [128, 192]
validation_split = 0.25
validation_seed = 3
  [[datasets.subsets]]
  image_dir = "a"
  enable_wildcard = true
  secondary_separator = ";;;"
  recursive = true
[[datasets]]
resolutions = [64, 128, "128x96"]
  [[datasets.subsets]]
  image_dir = "b"
  keep_tokens_separator = ""
  caption_first_line = true
)");
  const PictureGroup &first = sources.groups.at(0), &second = sources.groups.at(1);
  ASSERT_EQ(first.resolutions.size(), 1u);
  EXPECT_EQ(first.resolutions[0].resolution, Resolution(128, 192));
  ASSERT_EQ(second.resolutions.size(), 3u);
  EXPECT_EQ(second.resolutions[2].resolution, Resolution(128, 96));
  const PictureSubset &a = first.subsets.at(0), &b = second.subsets.at(0);
  EXPECT_EQ(a.captions.keep_separator, "|||");
  EXPECT_EQ(a.captions.secondary_separator, ";;;");
  EXPECT_TRUE(a.captions.wildcards && a.nested && !b.nested && b.captions.first_line);
  EXPECT_EQ(b.captions.keep_separator, "") << "taken back";
  EXPECT_EQ(a.split.held_back, 0.25);
  EXPECT_EQ(a.split.seed, 3u);
  EXPECT_EQ(b.split.held_back, 0);
}

TEST_F(DatasetFileTest, AShareOfEachFolderIsHeldBack) {
  for (const char* folder : {"cats", "dogs"})
    for (char name = 'a'; name < 'k'; ++name) add(fmt::format("{}/{}", folder, name), 64, 64);
  write_plain(file_,
              "[[datasets]]\nresolution = 64\nvalidation_split = 0.25\nvalidation_seed = 0\n[[datasets.subsets]]\n"
              "image_dir = 'cats'\nnum_repeats = 3\n[[datasets.subsets]]\nimage_dir = 'dogs'\nis_reg = true\n");
  TrainConfig config;
  config.dataset = {file_.string()};
  const auto names = [](const Dataset& dataset) {
    std::vector<std::string> all;
    for (const Example& e : dataset.examples) all.push_back(e.name);
    return all;
  };
  const Dataset trained = Dataset::scan(picture_sources(config, space_)),
                held_back = Dataset::scan(held_back_sources(config, space_));
  EXPECT_EQ(names(held_back), (std::vector<std::string>{"cats/g.png", "cats/j.png"})) << "as kohya's scripts choose";
  EXPECT_EQ(held_back.shown_count(), 2u) << "without repeats";
  EXPECT_EQ(names(trained).size(), 8u + 10u) << "all of regularisation";
  EXPECT_EQ(std::ranges::count(names(trained), "cats/g.png"), 0);
  TrainConfig other;
  other.dataset = {(folder_ / "dogs").string()};
  EXPECT_TRUE(held_back_sources(other, space_).groups.empty());
  other.validation_split = 0.01;
  expect_error([&] { Dataset::scan(held_back_sources(other, space_)); }, {"dogs", "holds back none", "larger share"});
}

// What option files of other trainers become.
TEST_F(DatasetFileTest, TablesSayWhatIsBesideTheRuns) {
  TrainConfig run;
  run.resolution = {512}, run.keep_tokens = 1;
  PictureSection cats{.settings = run, .image_dir = "/cats"}, dogs = cats, more = cats;
  dogs.image_dir = "/dogs", dogs.repeats = 4, dogs.loss_weight = 0.5, dogs.recursive = true;
  dogs.settings.shuffle_caption = true, dogs.settings.caption_prefix = "a \"b\"";
  more.settings.resolution = {64, {64, 96}}, more.settings.no_bucket = true;
  run.datasets = dataset_tables(run, {cats, dogs, more});
  EXPECT_EQ(run.datasets,
            "[[datasets]]\n\n  [[datasets.subsets]]\n  image_dir = \"/cats\"\n\n  [[datasets.subsets]]\n"
            "  image_dir = \"/dogs\"\n  recursive = true\n  num_repeats = 4\n  loss_weight = 0.5\n"
            "  caption_prefix = \"a \\\"b\\\"\"\n  shuffle_caption = true\n\n"
            "[[datasets]]\nresolutions = [64, \"64x96\"]\nenable_bucket = false\n\n  [[datasets.subsets]]\n"
            "  image_dir = \"/cats\"\n");
  const PictureSources sources = read_datasets(run, space_);
  ASSERT_EQ(sources.groups.size(), 2u);
  EXPECT_EQ(sources.groups[0].subsets[1].repeats, 4);
  EXPECT_EQ(sources.groups[0].resolutions[0].resolution, Resolution(512));
  EXPECT_TRUE(sources.groups[1].resolutions[1].one);
  EXPECT_EQ(data_paths(run), (std::vector<std::string>{"/cats", "/dogs", "/cats"}));
}

// As in kohya's scripts, which compare the texts.
TEST_F(DatasetFileTest, OfSubsetsWithOneFolderTheFirstCounts) {
  add("cats/a", 64, 64);
  add("dogs/b", 64, 64);
  const std::string cats = "[[datasets.subsets]]\nimage_dir = 'cats'\n",
                    dogs = "[[datasets.subsets]]\nimage_dir = 'dogs'\n";
  const PictureSources sources = read("[[datasets]]\nresolution = 64\n" + cats + "num_repeats = 3\n" + dogs + cats +
                                      "num_repeats = 5\n[[datasets]]\nresolution = 64\n" + cats);
  ASSERT_EQ(sources.groups.size(), 2u);
  ASSERT_EQ(sources.groups[0].subsets.size(), 2u);
  EXPECT_EQ(sources.groups[0].subsets[0].repeats, 3);
  EXPECT_EQ(sources.groups[0].subsets[1].folder, folder_ / "dogs");
  EXPECT_EQ(sources.groups[1].subsets.size(), 1u) << "another data set has it too";
  const Dataset dataset = Dataset::scan(sources);
  EXPECT_EQ(dataset.shown_count(), 5u);
  ASSERT_FALSE(dataset.remarks.empty());
  EXPECT_EQ(
      dataset.remarks[0],
      "[[datasets]] 1, subset 3: left out, as kohya's scripts do: its image_dir \"cats\" is that of another subset "
      "before it.");
  EXPECT_EQ(dataset_folders(file_).size(), 3u);
}

const std::string kSubset = "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'x'\n";

TEST_F(DatasetFileTest, WrongKeysAreRefusedByName) {
  expect_refused("", {"[[datasets]]", "at least one", "none"});
  expect_refused("datasets = 3", {"[[datasets]]", "the integer 3"});
  expect_refused("datasets = [3]", {"[[datasets]]", "the integer 3"});
  expect_refused("[[dataset]]", {"dataset", "[general] and [[datasets]]"});
  expect_refused("[[datasets]]", {"[[datasets]] 1: [[datasets.subsets]]", "at least one"});
  expect_refused("[[datasets]]\n[[datasets.subsets]]", {"[[datasets]] 1, subset 1", "image_dir"});
  expect_refused("[general]\nx = {", {"line 2"});
  expect_refused("[general]\nshuffle_caption = t\n\n[[datasets]]", {"line 2"});  // of one line itself
  expect_refused(kSubset + "num_repeat = 3", {"subset 1: num_repeat", "no such key", "did you mean num_repeats?"});
  expect_refused(kSubset + "num_repeats = 0", {"num_repeats", "from 1 to 1000", "0"});
  expect_refused(kSubset + "num_repeats = '3'", {"num_repeats", "an integer", "the string \"3\""});
  expect_refused(kSubset + "shuffle_caption = 1", {"shuffle_caption", "true or false", "the integer 1"});
  expect_refused(kSubset + "caption_dropout_rate = 1.5", {"caption_dropout_rate", "from 0 to 1", "1.5"});
  expect_refused(kSubset + "class_tokens = ''", {"class_tokens", "expected"});
  expect_refused(kSubset + "batch_size = 2", {"subset 1: batch_size", "[general] or [[datasets]]"});
  expect_refused("[general]\nimage_dir = 'x'\n" + kSubset, {"[general]: image_dir", "[[datasets.subsets]]"});
  expect_refused("[[datasets]]\nimage_dir = 'x'", {"[[datasets]] 1: image_dir", "[[datasets.subsets]]"});
  expect_refused("[general]\nresolution = [512, 768, 1024]\n" + kSubset, {"resolution", "[width, height]"});
  expect_refused("[general]\nresolution = 'x'\n" + kSubset, {"resolution", "WIDTHxHEIGHT", "x"});
  expect_refused("[general]\nbucket_reso_steps = 40\n" + kSubset, {"[[datasets]] 1", "multiple of 32", "40"});
  expect_refused("[general]\nenable_bucket = false\nbucket_no_upscale = true\n" + kSubset,
                 {"[[datasets]] 1", "bucket_no_upscale", "enable_bucket"});
}

TEST_F(DatasetFileTest, KohyasOtherKeysAreRefusedWhereTheyAskForSomething) {
  for (const char* key : {"token_warmup_step = 5", "caption_dropout_every_n_epochs = 2",
                          "face_crop_aug_range = [1.0, 2.0]", "metadata_file = 'x.json'", "network_multiplier = 0.5",
                          "custom_attributes = {a = 1}", "resize_interpolation = 'area'"}) {
    const std::string text(key);
    expect_refused(kSubset + text, {text.substr(0, text.find(' ')), "Wick has no such setting"});
  }
  read(kSubset +
       "enable_wildcard = false\nkeep_tokens_separator = ''\ntoken_warmup_step = 0\ntoken_warmup_min = 1\n"
       "network_multiplier = 1.0\ncache_info = true\ndebug_dataset = false\ncaption_dropout_every_n_epochs = 0");
}

TEST_F(DatasetFileTest, EachDataSetHasItsBatchesAndEachSubsetItsCaptions) {
  add("cats/a", 128, 128, "x, y");
  add("cats/b", 128, 128, "");
  add("cats/within/c", 128, 128);
  add("dogs/a", 128, 128);
  const PictureSources sources = read(
      "[[datasets]]\nresolution = 128\nbatch_size = 4\n[[datasets.subsets]]\nimage_dir = 'cats'\nclass_tokens = 'cat'\n"
      "num_repeats = 3\n[[datasets]]\nresolution = 64\n[[datasets.subsets]]\nimage_dir = 'dogs'\n"
      "[[datasets.subsets]]\nimage_dir = 'cats'\ncaption_prefix = 'p'\nclass_tokens = 'q'\n");
  const Dataset dataset = Dataset::scan(sources);
  std::vector<std::string> names, captions;
  for (const Example& e : dataset.examples) names.push_back(e.name), captions.push_back(e.captions.front());
  EXPECT_EQ(names, (std::vector<std::string>{"cats/a.png", "cats/b.png", "dogs/a.png", "cats/a.png", "cats/b.png"}));
  EXPECT_EQ(captions, (std::vector<std::string>{"x, y", "cat", "a red circle", "p x, y", "p q"}));
  const std::vector<BatchBucket> buckets = dataset.batch_buckets(2);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].batch_size, 4);
  EXPECT_EQ(buckets[0].examples.size(), 6u);
  EXPECT_EQ(buckets[1].batch_size, 2);
  EXPECT_EQ(buckets[1].examples.size(), 3u);
  EXPECT_EQ(dataset.shown_count(), 9u);
  EXPECT_EQ(dataset.remarks,
            (std::vector<std::string>{"cats: 2 pictures × 3", "cats: 1 folder within an image_dir is not read: within.",
                                      "dogs: 1 picture × 1", "cats: 2 pictures × 1"}));
  EXPECT_EQ(dataset.at(64, 1).examples.size(), 3u);
  EXPECT_EQ(dataset.at().examples.size(), 5u);
  EXPECT_EQ(dataset.files.front().name, "set.toml");
  EXPECT_EQ(dataset.files.size(), 6u) << "the file, three pictures and two captions";

  const auto hash_with = [&](const std::string& change) {
    return Dataset::scan(read(read_plain(file_) + change)).sha256;
  };
  EXPECT_EQ(hash_with("# a remark\n"), dataset.sha256);
  EXPECT_NE(hash_with("caption_dropout_rate = 0.25\n"), dataset.sha256);
}

// As kohya counts them: as many of regularisation as of the others, the first ones once more.
TEST_F(DatasetFileTest, PicturesOfRegularisationAreShownAsOftenAsOthers) {
  for (const char* name : {"cats/a", "cats/b", "few/a", "few/b", "few/c", "many/a", "many/b", "many/c", "many/d"})
    add(name, 128, 128);
  const auto repeats = [&](const std::string& regularising, int64_t times) {
    TrainConfig config;
    config.prior_loss_weight = 0.25;
    const Dataset dataset = Dataset::scan(
        read("[[datasets]]\n[[datasets.subsets]]\nimage_dir = '" + regularising +
                 "'\nis_reg = true\nloss_weight = 2\n[[datasets.subsets]]\nimage_dir = 'cats'\nnum_repeats = " +
                 std::to_string(times),
             config));
    std::vector<int64_t> all;
    for (const Example& e : dataset.examples) {
      const bool is_reg = dataset.subset_of(e).is_reg;
      if (is_reg) all.push_back(e.repeats);
      EXPECT_EQ(dataset.subset_of(e).loss_weight, is_reg ? 0.5 : 1);
      EXPECT_TRUE(is_reg || e.repeats == times);
    }
    EXPECT_TRUE(dataset.has_weights());
    return all;
  };
  EXPECT_EQ(repeats("few", 1), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(repeats("few", 2), (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(repeats("few", 4), (std::vector<int64_t>{3, 3, 2}));
  EXPECT_EQ(repeats("many", 2), (std::vector<int64_t>{1, 1, 1, 1}));
  expect_error([&] { Dataset::scan(read(kSubset + "is_reg = true")); }, {"image_dir", "x: no such folder"});
  expect_error([&] { Dataset::scan(read("[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'few'\nis_reg = true")); },
               {"few: expected pictures beside those of regularisation"});
}

TEST_F(DatasetFileTest, MasksAreOfThePicturesNamesAndSizes) {
  add("cats/a", 128, 128);
  const std::string text = kSubset + "conditioning_data_dir = 'masks'";
  const auto scan = [&] { return Dataset::scan(read(std::string(text).replace(text.find("'x'"), 3, "'cats'"))); };
  expect_error([&] { scan(); }, {"cats/a.png: no mask; put one into ", "masks/a.png"});
  add("masks/a", 128, 64);
  expect_error([&] { scan(); }, {"masks/a.png: a mask has the size of its picture, 128x128 pixels, found 128x64"});
  add("masks/a", 128, 128);
  const Dataset dataset = scan();
  EXPECT_EQ(dataset.examples.front().mask, folder_ / "masks/a.png");
  EXPECT_TRUE(dataset.has_masks());
  EXPECT_EQ(dataset.files.back().name, "mask of cats/a.png");
  const std::string before = dataset.sha256;
  write_image(folder_ / "masks/a.png", {128, 128, std::vector<uint8_t>(size_t(128 * 128 * 3), 9)});
  EXPECT_NE(scan().sha256, before);
}

TEST_F(DatasetFileTest, FaultsOfAllItsFoldersAreToldAtOnce) {
  add("cats/a", 128, 128, "");
  fs::create_directory(folder_ / "empty");
  const PictureSources sources = read(
      "[[datasets]]\n[[datasets.subsets]]\nimage_dir = 'cats'\n[[datasets.subsets]]\nimage_dir = 'none'\n"
      "[[datasets.subsets]]\nimage_dir = 'empty'\n");
  expect_error([&] { Dataset::scan(sources); },
               {"set.toml: 3 faults: (1) image_dir ", "none: no such folder", "(2) image_dir ",
                "empty: no picture found", "(3) ", "cats/a.png: no caption"});
}

}  // namespace
}  // namespace wick
