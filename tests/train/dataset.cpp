// A dataset is checked whole, and what is wrong with it is one line.
#include "wick/train/dataset.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "wick/train/batches.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class DatasetTest : public testing::Test {
 protected:
  void add(const std::string& name, int width, int height, const std::string& caption = "a red circle") {
    fs::create_directories((folder_ / name).parent_path());
    write_png(folder_ / (name + ".png"), {width, height, std::vector<uint8_t>(size_t(width * height * 3), 90)});
    write_plain(folder_ / (name + ".txt"), caption);
  }
  Dataset scan() { return Dataset::scan(folder_.path(), {.resolution = 128, .step = 32}); }

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
  EXPECT_EQ(dataset.examples[1].caption, "two words");
  EXPECT_EQ(dataset.buckets().size(), 2u);
  EXPECT_EQ(dataset.sha256, scan().sha256);
  write_plain(folder_ / "a.txt", "another");
  EXPECT_NE(dataset.sha256, scan().sha256);
}

TEST_F(DatasetTest, LoadsPicturesIntoTheirBuckets) {
  add("wide", 240, 200);
  const Example example = scan().examples.front();
  const Image image = load_image(example);
  EXPECT_EQ(image.width, 128);
  EXPECT_EQ(image.height, 128);
  EXPECT_EQ(time_ids(example), (std::vector<float>{200, 240, 0, 13, 128, 128}));
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
  write_plain(folder_ / "z.gif", "GIF89a");
  expect({"z.gif", "convert"});
  fs::remove(folder_ / "z.gif");
  EXPECT_EQ(scan().examples.size(), 1u);
}

TEST_F(DatasetTest, AMissingFolderOrAFileIsRefused) {
  expect_error([&] { Dataset::scan(folder_ / "none", {}); }, {"--dataset", "none", "no such folder"});
  write_plain(folder_ / "file", "x");
  expect_error([&] { Dataset::scan(folder_ / "file", {}); }, {"--dataset", "expected a folder"});
}

TEST_F(DatasetTest, AnAbsurdlyLargePictureIsRefusedByItsHeader) {
  add("huge", 1, 1);
  std::string png = read_plain(folder_ / "huge.png");
  const std::string side("\x00\x01\x86\xa0", 4);  // 100000
  png.replace(16, 8, side + side);
  write_plain(folder_ / "huge.png", png);
  expect_error([&] { scan(); }, {"huge.png"});
}

TEST(BatchSampler, ShowsEachExampleOnceAnEpoch) {
  BatchSampler sampler({{{128, 128}, {0, 1, 2, 3, 4}}, {{160, 96}, {5, 6}}}, 2, 7);
  EXPECT_EQ(sampler.batches_per_epoch(), 4);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int> seen(7);
    for (int batch = 0; batch < 4; ++batch)
      for (const size_t i : sampler.next()) {
        ++seen[i];
        EXPECT_EQ(sampler.epoch(), epoch);
      }
    EXPECT_EQ(seen, std::vector<int>(7, 1));
  }
}

TEST(BatchSampler, GoesOnWhereItStood) {
  const std::map<Size, std::vector<size_t>> buckets{{{128, 128}, {0, 1, 2, 3, 4, 5, 6, 7}}};
  BatchSampler first(buckets, 3, 11), second(buckets, 3, 11);
  for (int i = 0; i < 7; ++i) first.next();
  second.seek(first.epoch(), first.batch());
  for (int i = 0; i < 9; ++i) EXPECT_EQ(first.next(), second.next());
}

}  // namespace
}  // namespace wick
