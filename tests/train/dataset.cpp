// A dataset is checked whole, and its faults are one line.
#include "wick/train/dataset.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "wick/train/augment.h"
#include "wick/train/batches.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class DatasetTest : public testing::Test {
 protected:
  void add(const std::string& name, int width, int height, const std::string& caption = "a red circle") {
    fs::create_directories((folder_ / name).parent_path());
    write_image(folder_ / (name + ".png"), {width, height, std::vector<uint8_t>(size_t(width * height * 3), 90)});
    write_plain(folder_ / (name + ".txt"), caption);
  }
  Dataset scan(const Resolutions& all = {{.resolution = 128, .step = 32}}) {
    return Dataset::scan(folder_.path(), all);
  }

  TemporaryDirectory folder_;
};

TEST_F(DatasetTest, IsReadInTheOrderOfNames) {
  add("b", 128, 128, "\xef\xbb\xbf  two words \r\n");
  add("sub/a", 200, 100);
  add("a", 100, 100);
  add(".hidden/c", 100, 100);
  write_plain(folder_ / "notes.md", "not a picture");
  const Dataset dataset = scan();
  ASSERT_EQ(dataset.examples.size(), 3u);
  EXPECT_EQ(dataset.examples[0].name, "a.png");
  EXPECT_EQ(dataset.examples[1].name, "b.png");
  EXPECT_EQ(dataset.examples[2].name, "sub/a.png");
  EXPECT_EQ(dataset.examples[1].captions, std::vector<std::string>{"two words"});
  EXPECT_EQ(dataset.buckets().size(), 2u);
  EXPECT_EQ(dataset.sha256, scan().sha256);
  ASSERT_EQ(dataset.files.size(), 6u);
  EXPECT_EQ(dataset.files[5].name, "sub/a.txt");
  write_plain(folder_ / "a.txt", "another");
  EXPECT_NE(dataset.sha256, scan().sha256);
}

TEST_F(DatasetTest, LoadsPicturesIntoTheirBuckets) {
  add("wide", 240, 200);
  const Example example = scan().examples.front();
  const Image image = load_image(example);
  EXPECT_EQ(image.width, 128);
  EXPECT_EQ(image.height, 128);
  EXPECT_EQ(example.size, (Size{240, 200}));
  EXPECT_EQ(example.placement.crop_top, 0);
  EXPECT_EQ(example.placement.crop_left, 13);
  EXPECT_EQ(example.placement.bucket, (Size{128, 128}));
}

TEST_F(DatasetTest, APictureIsThereAtEveryResolution) {
  add("2_cat/a", 200, 100);
  add("1_dog/b", 64, 64);
  const Resolutions two{{.resolution = 128, .step = 32}, {.resolution = 64, .step = 16}};
  const Dataset dataset = scan(two);
  ASSERT_EQ(dataset.examples.size(), 4u);
  EXPECT_EQ(dataset.shown_count(), 6u);
  const auto buckets_of = [](const Dataset& d) {
    std::vector<Size> all;
    for (const Example& e : d.examples) all.push_back(e.placement.bucket);
    return all;
  };
  EXPECT_EQ(buckets_of(dataset), (std::vector<Size>{{128, 128}, {64, 64}, {160, 96}, {80, 48}}));
  EXPECT_EQ(buckets_of(dataset.at(64)), (std::vector<Size>{{64, 64}, {80, 48}}));
  EXPECT_EQ(buckets_of(dataset.at()), buckets_of(scan()));
  EXPECT_EQ(dataset.sha256, scan().sha256);
  EXPECT_EQ(dataset.files.size(), scan().files.size());

  Resolutions own = two;
  for (BucketOptions& options : own) options.upscale = false;
  EXPECT_EQ(buckets_of(scan(own)), (std::vector<Size>{{64, 64}, {64, 64}, {128, 64}, {64, 32}})) << "as kohya's";
}

TEST_F(DatasetTest, FaultsNameTheFileAndTheWayOut) {
  const auto expect = [&](std::initializer_list<std::string_view> parts) { expect_error([&] { scan(); }, parts); };
  expect({"--dataset", "no picture"});
  add("x", 64, 64, " \n");
  expect({"x.txt", "empty"});
  write_plain(folder_ / "x.txt", "caf\xe9");
  expect({"x.txt", "UTF-8"});
  fs::remove(folder_ / "x.txt");
  expect({"x.png", "no caption", "x.txt"});
  add("x", 64, 64);
  write_plain(folder_ / "y.jpg", "not a picture");
  expect({"y.jpg", "remove the picture"});
  fs::remove(folder_ / "y.jpg");
  write_plain(folder_ / "z.avif", "no AVIF");
  expect({"z.avif", "convert"});
  fs::remove(folder_ / "z.avif");
  EXPECT_EQ(scan().examples.size(), 1u);
}

TEST_F(DatasetTest, AllFaultsAreToldAtOnce) {
  for (const char* name : {"a", "b", "c", "d", "e"}) add(name, 64, 64);
  EXPECT_EQ(scan().examples.size(), 5u);
  std::string png = read_plain(folder_ / "a.png");
  png[60] = char(~png[60]);  // behind its header, which is whole
  write_plain(folder_ / "a.png", png);
  write_plain(folder_ / "b.png", "not a picture");
  fs::remove(folder_ / "c.txt");
  write_plain(folder_ / "d.txt", "");
  add("long", 20000, 1);
  expect_error([&] { scan(); },
               {folder_.path().string() + ": 5 faults: (1) b.png: expected a JPEG, PNG, WebP, GIF, BMP or TIFF image",
                "c.png: no caption", "d.txt: the caption is empty", "long.png: 20000x1 pixels", "(5) a.png: "});
  write_plain(folder_ / "e.txt", "\xff");
  add("z", 1, 20000);
  expect_error([&] { scan(); }, {": 7 faults: ", "e.txt", "(7) a.png: "});
  for (int i = 0; i < 95; ++i) write_plain(folder_ / (std::to_string(i) + ".heic"), "");
  expect_error([&] { scan(); }, {": 197 faults: ", "(100) ", " and 97 others"});
}

TEST_F(DatasetTest, FoldersSayHowOftenAnEpochShowsTheirPictures) {
  add("3_cat/a", 64, 64);
  add("3_cat/b", 128, 64);
  add("1_dog/a", 64, 64);
  add("0_left/a", 64, 64);
  add("3_cat/within/a", 64, 64);
  add("beside", 64, 64);
  add(".hidden/a", 64, 64);
  const Dataset dataset = scan();
  ASSERT_EQ(dataset.examples.size(), 3u);
  EXPECT_EQ(dataset.examples[0].name, "1_dog/a.png");
  EXPECT_EQ(dataset.examples[0].repeats, 1);
  EXPECT_EQ(dataset.examples[1].repeats, 3);
  EXPECT_EQ(dataset.shown_count(), 7u);
  // As kohya's buckets: 1 + 3 squares and 3 wide ones are 2 and 2 batches of two.
  EXPECT_EQ(BatchSampler(dataset.batch_buckets(2), 1).steps_per_epoch(), 4);
  EXPECT_EQ(dataset.subsets().at("3_cat").size(), 2u);
  ASSERT_EQ(dataset.remarks.size(), 4u);
  EXPECT_EQ(dataset.remarks[3], "1 name begins with a dot and is not read: .hidden.");
  EXPECT_EQ(dataset.remarks[0], "1_dog: 1 picture × 1");
  EXPECT_EQ(dataset.remarks[1], "3_cat: 2 pictures × 3");
  EXPECT_TRUE(dataset.remarks[2].starts_with("3 pictures left out")) << dataset.remarks[2];

  fs::create_directory(folder_ / "other");
  const Dataset plain = scan();
  EXPECT_EQ(plain.examples.size(), 6u);
  EXPECT_EQ(plain.shown_count(), 6u);
  ASSERT_EQ(plain.remarks.size(), 2u);
  EXPECT_NE(plain.remarks[0].find("0_left counts once"), std::string::npos) << plain.remarks[0];
  EXPECT_EQ(plain.subsets().size(), 1u);
  fs::remove(folder_ / "other");
  EXPECT_NE(scan().sha256, plain.sha256);
}

TEST_F(DatasetTest, RepeatsHaveALimit) {
  add("1000_cat/a", 64, 64);
  EXPECT_EQ(scan().shown_count(), 1000u);
  for (const char* name : {"1001_x", "2024_holiday", "99999999999999999999_x"}) {
    fs::create_directory(folder_ / name);
    expect_error([&] { scan(); }, {"--dataset", name, "at most 1000"});
    fs::remove(folder_ / name);
  }
  for (const char* name : {"cat", "7", "_7", "-3_x", "+3_x", "3x_y"}) {  // not N_name
    fs::create_directory(folder_ / name);
    EXPECT_EQ(scan().shown_count(), 1u) << name;
    fs::remove(folder_ / name);
  }
  fs::rename(folder_ / "1000_cat", folder_ / "0_cat");
  expect_error([&] { scan(); }, {"--dataset", "no picture"});
}

TEST_F(DatasetTest, ALinkToAFolderIsToldAndNotRead) {
  add("a", 64, 64);
  fs::create_directory_symlink(folder_.path(), folder_ / "loop");
  const Dataset dataset = scan();
  EXPECT_EQ(dataset.examples.size(), 1u);
  ASSERT_EQ(dataset.remarks.size(), 1u);
  EXPECT_NE(dataset.remarks[0].find("loop is a link"), std::string::npos);
}

// Browsers save JPEGs as .jfif, the scripts of a network of pictures as .png_large; Windows writes capitals.
TEST_F(DatasetTest, APictureIsToldByItsFirstBytesWhateverItsName) {
  const auto as = [&](const std::string& name, const char* format) {
    const Image image{64, 64, std::vector<uint8_t>(64 * 64 * 3, 90)};
    write_image(folder_ / (std::string("x") + format), image);
    fs::rename(folder_ / (std::string("x") + format), folder_ / name);
    write_plain(fs::path(folder_ / name).replace_extension(".txt"), "a red circle");
  };
  as("a.jfif", ".jpg");
  as("b.jpe", ".jpg");
  as("c.png_large", ".png");
  as("D.JFIF", ".jpg");
  as("e.jpg_large", ".webp");
  as("f.gif", ".png");
  as("g", ".png");
  as("h.WEBP", ".webp");
  fs::rename(folder_ / "h.txt", folder_ / "h.TXT");
  const Dataset dataset = scan();
  EXPECT_EQ(dataset.examples.size(), 8u);
  EXPECT_EQ(dataset.files.size(), 16u);
  EXPECT_EQ(dataset.remarks, std::vector<std::string>());
  EXPECT_EQ(load_image(dataset.examples.front()).width, 128);
  write_plain(folder_ / "h.txt", "another");
  expect_error([&] { scan(); }, {"h.WEBP: two captions, h.txt and h.TXT"});
}

TEST_F(DatasetTest, EveryFileThatIsLeftOutIsCountedByItsReason) {
  add("a", 64, 64);
  for (const char* name : {"b.txt", "c.caption", "D.TXT", "sub/e.txt"}) {
    fs::create_directories((folder_ / name).parent_path());
    write_plain(folder_ / name, "no picture");
  }
  write_plain(folder_ / "phone.pic", "....ftypheic....");
  write_plain(folder_ / "x.png_large", std::string("\0\0\0\x1c"
                                                   "ftypavif....",
                                                   16));
  write_plain(folder_ / "BMW.md", "BMW is no bitmap");
  write_plain(folder_ / ".DS_Store", "");
  write_plain(folder_ / "empty", "");
  fs::create_symlink(folder_ / "nowhere", folder_ / "dangling");
  const std::vector<std::string> left_out{
      "1 name begins with a dot and is not read: .DS_Store.",
      "4 captions have no picture and are not read: D.TXT, b.txt, c.caption, ….",
      "2 images are of formats that Wick does not read, and are left out: phone.pic (a HEIF image), x.png_large "
      "(an AVIF image)."};
  std::vector<std::string> found = scan().remarks;
  ASSERT_EQ(found.size(), 4u);
  EXPECT_TRUE(found[3].starts_with("3 files are neither pictures nor captions and are not read: ")) << found[3];
  for (const char* name : {"BMW.md", "empty", "dangling"}) EXPECT_NE(found[3].find(name), std::string::npos);
  found.pop_back();
  std::ranges::sort(found);
  std::vector<std::string> expected = left_out;
  std::ranges::sort(expected);
  EXPECT_EQ(found.size(), expected.size());
  EXPECT_EQ(found[0], expected[0]);
  fs::remove(folder_ / "a.png");
  expect_error([&] { scan(); }, {"no picture found", "5 captions have no picture", "2 images are of formats"});
}

// Of another extension, all others are no captions.
TEST_F(DatasetTest, AnotherExtensionOfCaptionsLeavesOutTheUsualOnes) {
  add("a", 64, 64);
  write_plain(folder_ / "a.tags", "red");
  write_plain(folder_ / "b.tags", "blue");
  PictureSubset subset{.folder = folder_.path(), .source = "--dataset x", .captions = {.extension = ".tags"}};
  const Dataset dataset = Dataset::scan(
      {.path = folder_.path(), .groups = {{.resolutions = {{.resolution = 128, .step = 32}}, .subsets = {subset}}}});
  EXPECT_EQ(dataset.examples.front().captions, std::vector<std::string>{"red"});
  EXPECT_EQ(dataset.remarks,
            (std::vector<std::string>{"1 caption has no picture and is not read: b.tags.",
                                      "1 file is neither picture nor caption and is not read: a.txt."}));
}

TEST_F(DatasetTest, MasksMayHaveAnyNameOfAPictureAndUnusedOnesAreTold) {
  const TemporaryDirectory masks;
  const auto mask = [&](const std::string& name) {
    write_image(masks / "x.png", {64, 64, std::vector<uint8_t>(64 * 64 * 3)});
    fs::rename(masks / "x.png", masks / name);
  };
  for (const char* name : {"a", "b", "c"}) add(name, 64, 64);
  mask("a.png");
  mask("b.PNG");
  mask("c.jfif");
  mask("d.png");
  PictureSubset subset{.folder = folder_.path(), .source = "--dataset x", .masks = masks.path()};
  const auto with_masks = [&] {
    return Dataset::scan(
        {.path = folder_.path(), .groups = {{.resolutions = {{.resolution = 128, .step = 32}}, .subsets = {subset}}}});
  };
  const Dataset dataset = with_masks();
  EXPECT_EQ(dataset.examples[1].mask, masks / "b.PNG");
  EXPECT_EQ(dataset.examples[2].mask, masks / "c.jfif");
  EXPECT_EQ(dataset.remarks, std::vector<std::string>{"1 mask has no picture and is not read: d.png."});
  fs::remove(masks / "b.PNG");
  expect_error([&] { with_masks(); }, {"b.png: no mask"});
}

// As OneTrainer has them; a picture of such a name is one where no other goes with it.
TEST_F(DatasetTest, MasksMayLieBesideTheirPictures) {
  for (const char* name : {"a", "a-masklabel", "b", "b-masklabel", "b-condlabel", "c-masklabel"}) add(name, 64, 64);
  PictureSubset subset{.folder = folder_.path(), .source = "--dataset x"};
  const auto scan = [&] {
    return Dataset::scan(
        {.path = folder_.path(), .groups = {{.resolutions = {{.resolution = 128, .step = 32}}, .subsets = {subset}}}});
  };
  const auto names = [](const Dataset& dataset) {
    std::vector<std::string> all;
    for (const Example& example : dataset.examples) all.push_back(example.name);
    return all;
  };
  const Dataset without = scan();
  EXPECT_EQ(names(without), (std::vector<std::string>{"a.png", "b.png", "c-masklabel.png"}));
  EXPECT_EQ(without.remarks,
            std::vector<std::string>{"3 labels beside pictures are none of the pictures: a-masklabel.png, "
                                     "b-condlabel.png, b-masklabel.png."});
  EXPECT_TRUE(without.examples[0].mask.empty());

  fs::remove(folder_ / "c-masklabel.png");
  subset.masks = folder_.path();
  const Dataset with = scan();
  EXPECT_EQ(with.examples[0].mask, folder_ / "a-masklabel.png");
  EXPECT_EQ(with.examples[1].mask, folder_ / "b-masklabel.png");
  fs::remove(folder_ / "b-masklabel.png");
  expect_error([&] { scan(); }, {"b.png: no mask", "b-masklabel.png"});
}

// Of an image_dir, kohya reads the pictures directly in it.
TEST_F(DatasetTest, FoldersWithinAnImageDirAreTold) {
  add("in/a", 64, 64);
  add("in/sub/b", 64, 64);
  add("in/masks/a", 64, 64);
  const auto subset_of = [&](const char* name) {
    return PictureSubset{.folder = folder_ / name, .source = "x", .name = name, .nested = false};
  };
  PictureSubset first = subset_of("in");
  first.masks = folder_ / "in/masks";
  const Dataset dataset = Dataset::scan(
      {.path = folder_.path(), .groups = {{.resolutions = {{.resolution = 128, .step = 32}}, .subsets = {first}}}});
  EXPECT_EQ(dataset.remarks,
            (std::vector<std::string>{"in: 1 picture × 1", "in: 1 folder within an image_dir is not read: sub."}));
}

TEST(DataFiles, TellWhatChanged) {
  const TemporaryDirectory folder;
  const std::string a(64, 'a'), b(64, 'b');
  write_data_files(folder / "list", {{"same", a}, {"other", a}, {"gone", a}});
  EXPECT_EQ(read_plain(folder / "list").substr(0, 71), a + "  same\n");
  EXPECT_EQ(changes_of(read_data_files(folder / "list"), {{"same", a}, {"other", b}, {"new", b}}),
            "gone is gone, new is new, other changed");
  EXPECT_TRUE(read_data_files(folder / "none").empty());
  std::vector<DataFile> many;
  for (int i = 0; i < 9; ++i) many.push_back({std::to_string(i), a});
  EXPECT_EQ(changes_of({}, many), "0 is new, 1 is new, 2 is new, 3 is new, 4 is new and 4 others");
}

TEST_F(DatasetTest, AMissingFolderOrAFileIsRefused) {
  expect_error([&] { Dataset::scan(folder_ / "none", {BucketOptions{}}); }, {"--dataset", "none", "no such folder"});
  write_plain(folder_ / "file", "x");
  expect_error([&] { Dataset::scan(folder_ / "file", {BucketOptions{}}); }, {"--dataset", "expected a folder"});
  write_plain(folder_ / "file", "PK\x03\x04");
  expect_error([&] { Dataset::scan(folder_ / "file", {BucketOptions{}}); },
               {"--dataset", "expected a folder", "ZIP", "unpack"});
}

TEST_F(DatasetTest, AnAbsurdlyLargePictureIsRefusedByItsHeader) {
  add("huge", 1, 1);
  std::string png = read_plain(folder_ / "huge.png");
  const std::string side("\x00\x01\x86\xa0", 4);  // 100000
  png.replace(16, 8, side + side);
  write_plain(folder_ / "huge.png", png);
  expect_error([&] { scan(); }, {"huge.png"});
}

const std::vector<BatchBucket> kBuckets{{{0, 1, 2, 3, 4}, 2}, {{5, 6}, 2}, {{7}, 1}};

std::set<size_t> bucket_of(size_t example) {
  for (const BatchBucket& bucket : kBuckets)
    if (std::ranges::count(bucket.examples, example)) return {bucket.examples.begin(), bucket.examples.end()};
  return {};
}

// Each example at least once, none twice before all of its bucket have come, each step of one bucket.
TEST(BatchSampler, AStepIsOfOneBucketAndFull) {
  for (const int64_t batches : {1, 2, 3}) {
    BatchSampler sampler(kBuckets, 7, StepOrder::of(batches));
    uint64_t number = 0;
    for (int epoch = 0; epoch < 3; ++epoch) {
      std::map<size_t, int> seen;
      int64_t count = 0;
      for (int64_t step = 0; step < sampler.steps_per_epoch(); ++step)
        for (int64_t batch = 0; batch < batches; ++batch) {
          const auto [items, first] = sampler.next();
          EXPECT_EQ(sampler.epoch(), epoch);
          EXPECT_EQ(first, number);
          number += items.size();
          EXPECT_EQ(items.size(), items.front() == 7 ? 1 : 2);
          for (const size_t i : items) {
            EXPECT_TRUE(bucket_of(sampler.step().front()).contains(i));
            ++seen[i], ++count;
          }
        }
      EXPECT_EQ(seen.size(), 8u);
      EXPECT_EQ(count - 8, sampler.repeated());
      EXPECT_EQ(sampler.sample(), number);
      for (const BatchBucket& bucket : kBuckets) {
        const auto of = [&](size_t a, size_t b) { return seen[a] < seen[b]; };
        const auto [least, most] = std::ranges::minmax_element(bucket.examples, of);
        EXPECT_LE(seen[*most] - seen[*least], 1);
      }
    }
  }
}

// What ranks see together is what one sees alone, with the same numbers.
TEST(BatchSampler, RanksShareAStep) {
  for (const auto& [batches, ranks] : {std::pair<int64_t, int64_t>{4, 2}, {2, 2}, {4, 3}, {5, 4}, {3, 1}}) {
    BatchSampler alone(kBuckets, 3, StepOrder::of(batches));
    std::vector<BatchSampler> group;
    for (int64_t rank = 0; rank < ranks; ++rank) group.emplace_back(kBuckets, 3, StepOrder::of(batches, rank, ranks));
    for (int64_t step = 0; step < 9; ++step)
      for (int64_t rank = 0; rank < ranks; ++rank)
        for (int64_t i = 0; i < StepOrder::of(batches, rank, ranks).count; ++i) {
          const auto [items, number] = group[size_t(rank)].next();
          const auto expected = alone.next();
          EXPECT_EQ(items, expected.items);
          EXPECT_EQ(number, expected.number);
        }
  }
}

// As versions before had it: each example once an epoch, the last batch of a bucket with what is left.
TEST(BatchSampler, OlderRunsKeepTheirOrder) {
  StepOrder order = StepOrder::of(3);
  order.is_older = true;
  BatchSampler sampler(kBuckets, 7, order);
  EXPECT_EQ(sampler.steps_per_epoch(), 5);  // batches
  std::map<size_t, int> seen;
  for (int i = 0; i < 15; ++i) {
    const auto [items, number] = sampler.next();
    EXPECT_FALSE(number);
    for (const size_t example : items) ++seen[example];
  }
  for (const auto& [example, times] : seen) EXPECT_EQ(times, 3) << example;
  EXPECT_EQ(sampler.epoch(), 2);
}

TEST(BatchSampler, GoesOnWhereItStood) {
  for (const bool is_older : {false, true}) {
    StepOrder order = StepOrder::of(2);
    order.is_older = is_older;
    BatchSampler first(kBuckets, 11, order), second(kBuckets, 11, order);
    for (int i = 0; i < 14; ++i) first.next();
    second.seek(first.epoch(), first.batch(), first.sample());
    EXPECT_EQ(first.place(), second.place());
    for (int i = 0; i < 18; ++i) {
      const auto expected = first.next(), found = second.next();
      EXPECT_EQ(expected.items, found.items);
      EXPECT_EQ(expected.number, found.number);
    }
  }
}

}  // namespace
}  // namespace wick
