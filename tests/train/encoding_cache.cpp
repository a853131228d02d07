// Encodings on disk: found again, made again where they are not what they should be.
#include "wick/train/encoding_cache.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "wick/io/safetensors.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class EncodingCacheTest : public testing::Test {
 protected:
  EncodingCache open(const std::string& made_by = "x") {
    return {folder_ / "cache", made_by, []() -> Memory& { return host_memory(); }};
  }
  NamedTensors get(EncodingCache& cache, const std::string& key, int& made) const {
    return cache.get(key, [&]() -> NamedTensors {
      ++made;
      return {{"z", Tensor::of(std::vector<float>{1, 2}, {1, 2})}, {"a", zeros({1, 3}, DType::bf16)}};
    });
  }
  fs::path only_file() const { return fs::directory_iterator(folder_ / "cache")->path(); }

  TemporaryDirectory folder_;
};

TEST_F(EncodingCacheTest, WhatWasMadeIsFound) {
  int made = 0;
  EncodingCache first = open();
  get(first, "key", made);
  EXPECT_TRUE(first.remarks().empty());
  EncodingCache second = open();
  const NamedTensors found = get(second, "key", made);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(found.begin()->name, "z") << "in their order";
  EXPECT_EQ(found["z"].to_vector(), (std::vector<float>{1, 2}));
  EXPECT_EQ(found["a"].dtype(), DType::bf16);
  ASSERT_EQ(second.remarks().size(), 1u);
  EXPECT_TRUE(second.remarks()[0].starts_with("1 of 1 encoding were in ") ||
              second.remarks()[0].starts_with("1 of 1 encodings were in "))
      << second.remarks()[0];
  get(second, "other key", made);
  EncodingCache third = open("y");
  get(third, "key", made);
  EXPECT_EQ(made, 3) << "of another key, or made by others";
}

TEST_F(EncodingCacheTest, WhatIsStaleOrDamagedIsMadeAgainAndTold) {
  int made = 0;
  EncodingCache first = open();
  get(first, "key", made);
  const std::string whole = read_plain(only_file());
  std::string flipped = whole, older = whole;
  flipped[flipped.size() - 1] ^= 1;
  older.replace(older.find("wick encoding "), 15, "wick encoding 0");
  for (const std::string& bytes : {flipped, older, whole.substr(0, 40), std::string()}) {
    write_plain(only_file(), bytes);
    EncodingCache again = open();
    const int before = made;
    EXPECT_EQ(get(again, "key", made)["z"].to_vector(), (std::vector<float>{1, 2}));
    EXPECT_EQ(made, before + 1);
    ASSERT_EQ(again.remarks().size(), 1u);
    EXPECT_NE(again.remarks()[0].find("of another version of Wick or damaged, and made again"), std::string::npos);
    EXPECT_EQ(read_plain(only_file()), whole);
  }
}

// With the right version and hash, but not what encoders make of this picture or caption.
TEST_F(EncodingCacheTest, WhatDoesNotFitIsMadeAgain) {
  int made = 0;
  EncodingCache first = open();
  get(first, "key", made);
  const auto fits = [](const NamedTensors& found) { return found.has("z") && found["z"].shape() == Shape{1, 2}; };
  const auto make = [&]() -> NamedTensors {
    ++made;
    return {{"z", zeros({1, 2})}};
  };
  EncodingCache again = open();
  again.get("key", make, fits);
  EXPECT_EQ(made, 1) << "it fits";
  again.get("key", make, [](const NamedTensors&) { return false; });
  EXPECT_EQ(made, 2);
  EXPECT_EQ(again.file_of("key"), only_file());
  ASSERT_EQ(again.remarks().size(), 2u);
  EXPECT_NE(again.remarks()[1].find("damaged, and made again"), std::string::npos);
  // A name without its number.
  const std::map<std::string, Tensor> tensors = {{"z", zeros({1, 2})}};
  auto metadata = SafetensorsFile::open(only_file()).metadata();
  metadata["sha256"] = sha256_of_tensors(tensors);
  save_safetensors(only_file(), tensors, {metadata.begin(), metadata.end()});
  open().get("key", make, fits);
  EXPECT_EQ(made, 3);
}

TEST_F(EncodingCacheTest, WithoutADiskTheRestGoesOn) {
  int made = 0;
  EncodingCache cache = open();
  fs::remove(folder_ / "cache");
  write_plain(folder_ / "cache", "a file");
  get(cache, "key", made), get(cache, "key", made);
  EXPECT_EQ(made, 2);
  ASSERT_EQ(cache.remarks().size(), 1u);
  EXPECT_TRUE(cache.remarks()[0].starts_with("Encodings are not kept: ")) << cache.remarks()[0];
  expect_error([&] { open(); }, {"cache"});
}

}  // namespace
}  // namespace wick
