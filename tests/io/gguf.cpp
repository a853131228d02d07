#include "wick/io/gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cctype>
#include <cstring>

#include "io/files.h"
#include "source_dir.h"
#include "wick/core/blocks.h"
#include "wick/io/gguf_blocks.h"
#include "wick/io/safetensors.h"

namespace wick {
namespace {

using std::string;

const std::filesystem::path kGolden = test::source_dir() / "tests/golden/gguf";
constexpr DType kBlockTypes[] = {DType::q8_0, DType::q4_0, DType::q4_k, DType::q5_k, DType::q6_k};

template <class T>
string le(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
string text(std::string_view value) { return le(uint64_t(value.size())) + string(value); }
string entry(std::string_view key, uint32_t type, const string& value) { return text(key) + le(type) + value; }
string tensor(std::string_view name, const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset) {
  string bytes = text(name) + le(uint32_t(extents.size()));
  for (const uint64_t extent : extents) bytes += le(extent);
  return bytes + le(type) + le(offset);
}

struct Parts {
  uint32_t version = 3;
  std::vector<string> entries, tensors;
  size_t data = 0;  // bytes of the header, which is padded to 32 bytes
};

string file_of(const Parts& p) {
  string bytes = "GGUF" + le(p.version) + le(uint64_t(p.tensors.size())) + le(uint64_t(p.entries.size()));
  for (const string& e : p.entries) bytes += e;
  for (const string& t : p.tensors) bytes += t;
  bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
  for (size_t i = 0; i < p.data; ++i) bytes += char(i);
  return bytes;
}

void expect_refused(const string& bytes, std::initializer_list<std::string_view> parts) {
  const TemporaryDirectory folder;
  write_plain(folder / "bad.gguf", bytes);
  expect_error([&] { GgufFile::open(folder / "bad.gguf"); }, {"bad.gguf"});
  expect_error([&] { GgufFile::open(folder / "bad.gguf"); }, parts);
}

TEST(Gguf, ReadsWhatGgufPyWrote) {
  const GgufFile file = GgufFile::open(kGolden / "model.gguf");
  EXPECT_EQ(file.version(), 3u);
  const GgufMetadata& m = file.metadata();
  EXPECT_EQ(m.text("general.architecture"), "llama");
  EXPECT_EQ(m.integer("test.uint8"), 200);
  EXPECT_EQ(m.integer("test.int8"), -100);
  EXPECT_EQ(m.integer("test.uint16"), 60000);
  EXPECT_EQ(m.integer("test.int16"), -30000);
  EXPECT_EQ(m.integer("test.uint32"), 4000000000);
  EXPECT_EQ(m.integer("test.int32"), -2000000000);
  EXPECT_EQ(m.integer("test.int64"), -(int64_t{1} << 62));
  EXPECT_EQ(m.number("test.float32"), 0.25);
  EXPECT_EQ(m.number("test.float64"), 0.1);
  EXPECT_EQ(m.number("test.uint64"), 0x1p63);
  EXPECT_TRUE(m.boolean_or("test.bool", false));
  EXPECT_EQ(m.text("test.string"), "häuser");
  EXPECT_EQ(m.texts("test.strings"), (std::vector<string>{"a", "", "ß"}));
  EXPECT_EQ(m.integers("test.integers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(m.numbers("test.numbers"), (std::vector<float>{0.5, -1.5}));
  EXPECT_EQ(m.numbers("test.integers"), (std::vector<float>{1, -2, 3}));
  EXPECT_EQ(m.integer_or("test.none", 7), 7);
  expect_error([&] { m.integer("test.uint64"); }, {"model.gguf", "test.uint64", "an integer", "9223372036854775808"});
  expect_error([&] { m.integer("test.uint8", {0, 100}); }, {"test.uint8", "from 0 to 100", "200"});
  expect_error([&] { m.integer("test.float32"); }, {"test.float32", "an integer", "0.25"});
  expect_error([&] { m.text("test.bool"); }, {"test.bool", "a string", "true"});
  expect_error([&] { m.texts("test.integers"); }, {"test.integers", "an array of strings", "3 integers"});
  expect_error([&] { m.integers("test.integers", {0, 9}); }, {"test.integers", "from 0 to 9"});
  expect_error([&] { m.numbers("test.bools"); }, {"test.bools", "2 bools"});
  expect_error([&] { m.number("nobody"); }, {"model.gguf", "\"nobody\"", "missing"});
}

TEST(Gguf, LoadsEveryType) {
  const GgufFile file = GgufFile::open(kGolden / "model.gguf");
  const Tensor x = file.load("f32");
  EXPECT_EQ(x.shape(), (Shape{3, 256}));
  EXPECT_EQ(file.load("vector").to_vector(), x.window({5}, {1}).to_vector());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor half = file.load(string(name_of(dtype)));
    ASSERT_EQ(half.dtype(), dtype);
    for (size_t i = 0; i < 768; ++i) {
      const float value = x.to_vector()[i];
      EXPECT_EQ(half.data<uint16_t>()[i], dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value));
    }
  }
  for (const DType dtype : kBlockTypes) {
    const Tensor w = file.load(string(name_of(dtype)));
    EXPECT_EQ(w.dtype(), dtype);
    EXPECT_EQ(w.shape(), (Shape{3, 256}));
  }
  EXPECT_EQ(file.tensors().at("unknown").dtype_name, "Q2_K");
  expect_error([&] { file.load("unknown"); }, {"model.gguf", "\"unknown\"", "Q2_K"});
  expect_error([&] { file.load("nobody"); }, {"model.gguf", "\"nobody\""});
}

// The types that are decoded as they are read, block by block: gguf-py's bits.
TEST(Gguf, DecodedBlocksHaveTheReferencesBits) {
  const auto golden = SafetensorsFile::open(kGolden / "decoded.safetensors");
  for (const string type : {"Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0"}) {
    const GgufBlocks* blocks = gguf_blocks(type);
    ASSERT_TRUE(blocks) << type;
    string name = type;
    for (char& c : name) c = char(std::tolower(c));
    const Tensor stored = golden.load(name + ".blocks"), expected = golden.load(name + ".values");
    ASSERT_EQ(stored.dim(1), blocks->block.bytes);
    ASSERT_EQ(expected.dim(1), blocks->block.elements);
    const Tensor values = Tensor::empty(expected.shape());
    blocks->decode(stored.data<std::byte>(), values.data<float>(), stored.dim(0));
    for (int64_t i = 0; i < values.numel(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(values.data<float>()[i]), std::bit_cast<uint32_t>(expected.data<float>()[i]))
          << type << " at " << i;
  }
  EXPECT_FALSE(gguf_blocks("IQ2_XXS"));
  EXPECT_FALSE(gguf_blocks("Q8_0"));
}

// Names as llama.cpp's gguf-split has them.
class SplitGguf : public testing::Test {
 protected:
  static GgufEntry entry(const string& name, float value) {
    return {name, DType::f32, {3}, [value] { return Tensor::of(std::vector<float>(3, value), {3}); }};
  }
  void write(int number, int count, const std::vector<GgufEntry>& entries, int tensors = 3) const {
    GgufMetadata::Entries facts{
        {"split.no", uint16_t(number)}, {"split.count", uint16_t(count)}, {"split.tensors.count", int32_t(tensors)}};
    if (number == 0) facts.emplace_back("general.architecture", string("llama"));
    save_gguf(part(number, 3), facts, entries);
  }
  std::filesystem::path part(int number, int count) const {
    return folder_ / fmt::format("m-{:05}-of-{:05}.gguf", number + 1, count);
  }
  void write_all() const {
    write(0, 3, {});
    write(1, 3, {entry("a", 1), entry("b", 2)});
    write(2, 3, {entry("c", 3)});
  }
  TemporaryDirectory folder_;
};

TEST_F(SplitGguf, EachPartStandsForAll) {
  write_all();
  for (int i = 0; i < 3; ++i) {
    const GgufFile file = GgufFile::open(part(i, 3));
    EXPECT_EQ(file.path(), part(0, 3));
    EXPECT_EQ(file.metadata().text("general.architecture"), "llama");
    ASSERT_EQ(file.tensors().size(), 3u);
    for (const auto& [name, value] : {std::pair("a", 1.f), {"b", 2.f}, {"c", 3.f}})
      EXPECT_EQ(file.load(name).to_vector(), std::vector<float>(3, value)) << name;
  }
}

TEST_F(SplitGguf, PartsThatDoNotBelongTogether) {
  write_all();
  const auto open = [&] { GgufFile::open(part(1, 3)); };
  write(2, 3, {entry("a", 3)});
  expect_error(open, {"m-00003-of-00003.gguf", "\"a\"", "m-00001-of-00003.gguf"});
  write(2, 3, {});
  expect_error(open, {"m-00001-of-00003.gguf", "2 tensors", "split.tensors.count", "3"});
  write(2, 4, {entry("c", 3)});
  expect_error(open, {"m-00003-of-00003.gguf", "part 3 of 3", "part 3 of 4"});
  std::filesystem::remove(part(2, 3));
  expect_error(open, {"m-00003-of-00003.gguf"});
  std::filesystem::rename(part(1, 3), folder_ / "x.gguf");
  expect_error([&] { GgufFile::open(folder_ / "x.gguf"); }, {"x.gguf", "part 2 of 3", "-00002-of-00003.gguf"});
}

// Every block of the golden file decodes to gguf-py's bits, and values encode to its bytes.
TEST(Gguf, BlocksHaveTheReferencesBits) {
  const SafetensorsFile golden = SafetensorsFile::open(kGolden / "blocks.safetensors");
  for (const DType dtype : kBlockTypes) {
    const string name(name_of(dtype));
    const Tensor blocks = golden.load(name + ".blocks"), values = golden.load(name + ".values");
    ASSERT_EQ(blocks.dim(1), block_of(dtype).bytes);
    for (int64_t i = 0; i < values.numel(); ++i) {
      const float got = block_element(blocks.data<void>(), dtype, i), want = values.data<float>()[i];
      ASSERT_EQ(std::memcmp(&got, &want, sizeof got), 0) << name << " at " << i << ": " << got << ", want " << want;
    }
    if (dtype != DType::q8_0 && dtype != DType::q4_0) continue;  // others are of our own encoders
    const Tensor input = golden.load(name + ".input"), encoded = golden.load(name + ".encoded");
    const Tensor got = Tensor::empty(input.shape(), dtype);
    quantize_blocks(got.data<void>(), dtype, input.data<float>(), input.numel());
    for (int64_t row = 0; row < input.dim(0); ++row)
      EXPECT_EQ(std::memcmp(got.data<char>() + row * encoded.dim(1), encoded.data<char>() + row * encoded.dim(1),
                            size_t(encoded.dim(1))),
                0)
          << name << " row " << row;
  }
}

TEST(Gguf, WritesWhatItReads) {
  const TemporaryDirectory folder;
  const GgufFile file = GgufFile::open(kGolden / "model.gguf");
  std::vector<GgufEntry> entries;
  for (const auto& [name, info] : file.tensors())
    if (info.dtype) entries.push_back({name, *info.dtype, info.shape, [&, here = name] { return file.load(here); }});
  save_gguf(folder / "copy.gguf", file.metadata().entries(), entries);
  save_gguf(folder / "again.gguf", file.metadata().entries(), entries);
  EXPECT_EQ(read_plain(folder / "copy.gguf"), read_plain(folder / "again.gguf"));
  EXPECT_EQ(folder.entries(), 2u);

  const GgufFile copy = GgufFile::open(folder / "copy.gguf");
  EXPECT_EQ(copy.metadata().entries(), file.metadata().entries());
  EXPECT_EQ(copy.tensors().size(), entries.size());
  for (const GgufEntry& e : entries) {
    const Tensor a = file.load(e.name), b = copy.load(e.name);
    ASSERT_TRUE(a.shape() == b.shape() && a.dtype() == b.dtype()) << e.name;
    EXPECT_EQ(std::memcmp(a.data<void>(), b.data<void>(), size_t(bytes_of(a.dtype(), a.numel()))), 0) << e.name;
  }
  expect_error([&] { save_gguf(folder / "x.gguf", {}, {entries[0], entries[0]}); }, {"x.gguf", "twice"});
  expect_error(
      [&] {
        save_gguf(folder / "x.gguf", {}, {{"bytes", DType::u8, {1}, [] { return Tensor::empty({1}, DType::u8); }}});
      },
      {"x.gguf", "\"bytes\"", "u8"});
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(Gguf, VersionTwoAndOtherAlignments) {
  const TemporaryDirectory folder;
  write_plain(folder / "a.gguf", file_of({.version = 2, .tensors = {tensor("w", {4, 2}, 0, 0)}, .data = 32}));
  const GgufFile two = GgufFile::open(folder / "a.gguf");
  EXPECT_EQ(two.version(), 2u);
  EXPECT_EQ(two.load("w").shape(), (Shape{2, 4}));
  write_plain(folder / "b.gguf", file_of({.entries = {entry("general.alignment", 4, le(uint32_t{8}))},
                                          .tensors = {tensor("w", {2}, 0, 8), tensor("none", {0, 3}, 0, 0)},
                                          .data = 16}));
  const GgufFile eight = GgufFile::open(folder / "b.gguf");
  EXPECT_EQ(eight.load("none").shape(), (Shape{3, 0}));
  // The header ends on a multiple of 8 before the padding of this test: the data begin there.
  EXPECT_EQ(eight.tensors().at("w").begin % 8, 0u);
}

TEST(Gguf, SaysWhatIsWrong) {
  const string weight = tensor("w", {4}, 0, 0);
  expect_refused("", {"GGUF"});
  expect_refused("GGML....", {"expected a GGUF file"});
  expect_refused("GGUF", {"truncated"});
  expect_refused(file_of({.version = 1}), {"version 2 or 3", "version 1"});
  expect_refused(file_of({.version = 4}), {"version 4"});
  expect_refused(file_of({.version = 3u << 24}), {"big-endian"});
  expect_refused("GGUF" + le(uint32_t{3}) + le(uint64_t{1} << 60) + le(uint64_t{0}), {"number of tensors"});
  expect_refused("GGUF" + le(uint32_t{3}) + le(uint64_t{0}) + le(uint64_t{1} << 40), {"metadata entries"});
  const auto bad_entry = [&](const string& e, std::initializer_list<std::string_view> parts) {
    expect_refused(file_of({.entries = {e}}), parts);
  };
  bad_entry(entry("k", 13, ""), {"\"k\"", "unknown type 13"});
  bad_entry(entry("k", 7, le(uint8_t{2})), {"\"k\"", "0 or 1"});
  bad_entry(entry("k", 8, le(uint64_t{1} << 63)), {"\"k\"", "bytes"});
  bad_entry(entry("k", 9, le(uint32_t{9}) + le(uint64_t{1})), {"\"k\"", "array of arrays"});
  bad_entry(entry("k", 9, le(uint32_t{99}) + le(uint64_t{1})), {"\"k\"", "unknown type 99"});
  bad_entry(entry("k", 9, le(uint32_t{12}) + le(uint64_t{1} << 61)), {"length of metadata \"k\""});
  bad_entry(le(~uint64_t{0}) + string(8, 'k'), {"key of metadata entry 0"});
  expect_refused(file_of({.entries = {entry("k", 0, "1"), entry("k", 0, "1")}}), {"\"k\" stands twice"});
  for (const uint32_t alignment : {0u, 3u, 48u})
    bad_entry(entry("general.alignment", 4, le(alignment)), {"general.alignment"});
  const auto bad_tensor = [&](const string& t, std::initializer_list<std::string_view> parts) {
    expect_refused(file_of({.tensors = {t}, .data = 64}), parts);
  };
  bad_tensor(tensor("w", {1, 1, 1, 1, 1}, 0, 0), {"\"w\"", "5 dimensions"});
  bad_tensor(tensor("w", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0), {"\"w\"", "larger than any memory"});
  bad_tensor(tensor("w", {~uint64_t{0}}, 0, 0), {"\"w\"", "larger than any memory"});
  bad_tensor(tensor("w", {33}, 8, 0), {"\"w\"", "33", "Q8_0"});
  bad_tensor(tensor("w", {}, 8, 0), {"\"w\"", "Q8_0"});
  bad_tensor(tensor("w", {4}, 0, 8), {"\"w\"", "byte 8", "multiple of 32"});
  bad_tensor(tensor("w", {17}, 0, 0), {"truncated", "\"w\"", "68", "64"});
  bad_tensor(tensor("w", {1}, 0, uint64_t{1} << 62), {"truncated", "\"w\""});
  expect_refused(file_of({.tensors = {weight, weight}, .data = 64}), {"\"w\" stands twice"});
  expect_refused(file_of({.tensors = {tensor("a", {9}, 0, 0), tensor("b", {4}, 0, 32)}, .data = 64}), {"overlaps"});
}

TEST(Gguf, EveryPrefixOfAFileIsRefused) {
  const TemporaryDirectory folder;
  const string whole = read_plain(kGolden / "model.gguf");
  for (size_t n = 0; n < whole.size(); n += n < 1600 ? 1 : 97) {
    write_plain(folder / "cut.gguf", whole.substr(0, n));
    expect_error([&] { GgufFile::open(folder / "cut.gguf"); }, {"cut.gguf"});
  }
}

TEST(Gguf, AFileThatShrinksIsAnError) {
  const TemporaryDirectory folder;
  write_plain(folder / "a.gguf", file_of({.tensors = {tensor("w", {16}, 0, 0)}, .data = 64}));
  const GgufFile file = GgufFile::open(folder / "a.gguf");
  std::filesystem::resize_file(folder / "a.gguf", 70);
  expect_error([&] { file.load("w"); }, {"a.gguf", "\"w\"", "shrank"});
}

TEST(Gguf, ATypeOfTheFutureIsNamedOnlyWhenItIsWanted) {
  const TemporaryDirectory folder;
  write_plain(folder / "a.gguf",
              file_of({.tensors = {tensor("new", {64}, 99, 0), tensor("w", {4}, 0, 32)}, .data = 64}));
  const GgufFile file = GgufFile::open(folder / "a.gguf");
  EXPECT_EQ(file.load("w").numel(), 4);
  expect_error([&] { file.load("new"); }, {"a.gguf", "\"new\"", "type 99"});
}

TEST(Gguf, IsToldByItsFirstBytes) {
  const TemporaryDirectory folder;
  write_plain(folder / "a", "GGUF");
  write_plain(folder / "b", "GGU");
  EXPECT_TRUE(GgufFile::is_gguf(folder / "a"));
  EXPECT_FALSE(GgufFile::is_gguf(folder / "b"));
  EXPECT_FALSE(GgufFile::is_gguf(folder / "c"));
  EXPECT_FALSE(GgufFile::is_gguf(folder.path()));
}

}  // namespace
}  // namespace wick
