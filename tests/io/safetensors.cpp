#include "wick/io/safetensors.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "io/files.h"
#include "wick/io/file.h"
#include "wick/io/safetensors_writer.h"

namespace wick {
namespace {

std::string file_of(std::string_view header, std::string_view data = {}) {
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes.append(header).append(data);
}

// Opens a file of these bytes.
SafetensorsFile open_bytes(const TemporaryDirectory& dir, std::string_view bytes) {
  write_plain(dir / "m.safetensors", bytes);
  return SafetensorsFile::open(dir / "m.safetensors");
}

void expect_bad_header(std::string_view header, uint64_t data_bytes, std::initializer_list<std::string_view> parts) {
  expect_error([&] { parse_safetensors_header(header, data_bytes, "m.safetensors"); }, {"m.safetensors: "});
  expect_error([&] { parse_safetensors_header(header, data_bytes, "m.safetensors"); }, parts);
}

Tensor counting(const Shape& shape, DType dtype) {
  Tensor tensor = Tensor::empty(shape, dtype);
  for (size_t i = 0; i < size_t(tensor.numel()) * size_of(dtype); ++i) tensor.data<uint8_t>()[i] = uint8_t(i * 7 + 1);
  return tensor;
}

std::string bytes_of(const Tensor& tensor) {
  return {tensor.data<char>(), size_t(tensor.numel()) * size_of(tensor.dtype())};
}

TEST(Safetensors, RoundTripKeepsEveryDtypeShapeAndMetadata) {
  TemporaryDirectory dir;
  std::map<std::string, Tensor> tensors;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    tensors[std::string(name_of(dtype)) + ".matrix"] = counting({3, 5}, dtype);
    tensors[std::string(name_of(dtype)) + ".scalar"] = counting({}, dtype);
    tensors[std::string(name_of(dtype)) + ".empty"] = counting({4, 0, 2}, dtype);
  }
  tensors["deep"] = counting({1, 2, 1, 3, 1, 2}, DType::f32);
  tensors["\"quoted\"\n\u00e9"] = counting({2}, DType::u8);
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"ss_note", "line\nbreak \"x\" \u00e9"}};
  save_safetensors(dir / "m.safetensors", tensors, metadata);

  const auto file = SafetensorsFile::open(dir / "m.safetensors");
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(file.has(name)) << name;
    const Tensor loaded = file.load(name);
    EXPECT_EQ(loaded.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(loaded.shape(), tensor.shape()) << name;
    EXPECT_EQ(bytes_of(loaded), bytes_of(tensor)) << name;
  }
  EXPECT_EQ(dir.entries(), 1u);
}

// As torch reads them: float8_e4m3fn and float8_e5m2 by their papers, integers by value.
TEST(Safetensors, NumbersOfEveryTypeAreRead) {
  const TemporaryDirectory dir;
  const auto read = [&](const std::string& type, std::string_view bytes, size_t count) {
    const std::string header =
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})", type, count, bytes.size());
    return open_bytes(dir, file_of(header, bytes)).load_numbers("a").to_vector();
  };
  const auto bytes_of_values = [](const auto& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
  };
  using Floats = std::vector<float>;
  EXPECT_EQ(read("F64", bytes_of_values(std::vector<double>{1.5, -1e-3, 1e300}), 3), (Floats{1.5f, -1e-3f, INFINITY}));
  EXPECT_EQ(read("F32", bytes_of_values(Floats{2.5f}), 1), Floats{2.5f});
  EXPECT_EQ(read("F16", bytes_of_values(std::vector<uint16_t>{0xc100}), 1), Floats{-2.5f});
  EXPECT_EQ(read("BF16", bytes_of_values(std::vector<uint16_t>{0x4020}), 1), Floats{2.5f});
  EXPECT_EQ(read("I64", bytes_of_values(std::vector<int64_t>{-4, 1 << 20}), 2), (Floats{-4, 1 << 20}));
  EXPECT_EQ(read("I32", bytes_of_values(std::vector<int32_t>{-4}), 1), Floats{-4});
  EXPECT_EQ(read("I16", bytes_of_values(std::vector<int16_t>{-300}), 1), Floats{-300});
  EXPECT_EQ(read("U8", "\xff", 1), Floats{255});
  EXPECT_EQ(read("I8", "\xff", 1), Floats{-1});
  // 1, its sign, the largest, the least, the least that is not subnormal
  EXPECT_EQ(read("F8_E4M3", "\x38\xb8\x7e\x01\x08", 5), (Floats{1, -1, 448, 0x1p-9f, 0x1p-6f}));
  EXPECT_TRUE(std::isnan(read("F8_E4M3", "\x7f", 1)[0]));
  EXPECT_EQ(read("F8_E5M2", "\x3c\xbd\x7b\x01\x7c", 5), (Floats{1, -1.25f, 57344, 0x1p-16f, INFINITY}));
  expect_error([&] { read("F8_E4M3FNUZ", "x", 1); }, {"m.safetensors", "\"a\"", "F8_E4M3FNUZ"});
  EXPECT_EQ(read("BOOL", std::string("\0\1", 2), 2), (Floats{0, 1}));
}

// The same bytes as safetensors 0.8.0 (Python) for the same tensors.
TEST(Safetensors, WritesTheBytesOfTheReferenceImplementation) {
  TemporaryDirectory dir;
  Tensor half = Tensor::empty({2}, DType::f16), alpha = Tensor::of(std::vector<float>{4}, {1});
  half.data<uint16_t>()[0] = 0x3c00;
  half.data<uint16_t>()[1] = 0xc000;
  Tensor byte = Tensor::empty({1}, DType::u8);
  byte.data<uint8_t>()[0] = 9;
  save_safetensors(dir / "m.safetensors",
                   {{"a", half}, {"z", alpha}, {"b", Tensor::of(std::vector<int64_t>{-1}, {})}, {"0", byte}},
                   {{"format", "pt"}});
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                             R"("z":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                             R"("a":{"dtype":"F16","shape":[2],"data_offsets":[12,16]},)"
                             R"("0":{"dtype":"U8","shape":[1],"data_offsets":[16,17]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  const std::string data("\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x80\x40\x00\x3c\x00\xc0\x09", 17);
  EXPECT_EQ(read_plain(dir / "m.safetensors"), file_of(header + padding, data));
}

TEST(Safetensors, SavesStridedTensorsInRowMajorOrder) {
  TemporaryDirectory dir;
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  const Tensor base = Tensor::of(values, {2, 3, 4});
  const Tensor transposed = base.window({4, 2, 3}, {1, 12, 4});
  const Tensor column = base.window({6}, {4}, 1);
  const Tensor rows = base.window({2, 4}, {12, 1}, 4);
  const Tensor repeated = base.window({3, 2}, {0, 1}, 5);
  const std::map<std::string, Tensor> tensors{{"t", transposed}, {"c", column}, {"r", rows}, {"x", repeated}};
  save_safetensors(dir / "m.safetensors", tensors);
  const auto file = SafetensorsFile::open(dir / "m.safetensors");
  for (const auto& [name, tensor] : tensors) EXPECT_EQ(file.load(name).to_vector(), tensor.to_vector()) << name;
}

// Made together, in any order of bytes and by several threads, they lie where tensors at hand do.
TEST(Safetensors, GroupsAreWrittenWhereverTheirTensorsLie) {
  TemporaryDirectory dir;
  const std::map<std::string, Tensor> tensors{{"a", counting({3, 5}, DType::f16)},
                                              {"a.scale", counting({3}, DType::f32)},
                                              {"b", counting({7}, DType::u8)},
                                              {"empty", counting({0}, DType::u8)}};
  save_safetensors(dir / "at hand", tensors, {{"k", "v"}});
  const auto put = [&](const SafetensorsGroup::Sink& sink, size_t entry, const std::string& name, size_t from) {
    const std::string bytes = bytes_of(tensors.at(name));
    sink(entry, from, bytes.data() + from, bytes.size() - from);
    sink(entry, 0, bytes.data(), from);
  };
  const std::vector<SafetensorsGroup> groups = {
      {{{"b", "U8", {7}}, {"empty", "U8", {0}}}, [&](const auto& sink) { put(sink, 0, "b", 3); }},
      {{{"a", "F16", {3, 5}}, {"a.scale", "F32", {3}}}, [&](const auto& sink) {
         std::thread other([&] { put(sink, 1, "a.scale", 4); });
         put(sink, 0, "a", 20);
         other.join();
       }}};
  save_safetensors(dir / "made", groups, {{"k", "v"}});
  EXPECT_EQ(read_plain(dir / "made"), read_plain(dir / "at hand"));

  const auto fails = [](const SafetensorsGroup::Sink& sink) {
    sink(0, 0, "x", 1);
    fail("no more");
  };
  expect_error([&] { save_safetensors(dir / "made", {{{{"x", "U8", {9}}}, fails}}, {}); }, {"no more"});
  EXPECT_EQ(read_plain(dir / "made"), read_plain(dir / "at hand"));
  EXPECT_EQ(dir.entries(), 2u);
}

TEST(Safetensors, HashesTheDataThatItWouldWrite) {
  TemporaryDirectory dir;
  const std::map<std::string, Tensor> tensors{{"b", counting({3}, DType::u8)}, {"a", counting({4}, DType::f32)}};
  save_safetensors(dir / "m.safetensors", tensors, {{"k", "v"}});
  const std::string bytes = read_plain(dir / "m.safetensors");
  EXPECT_EQ(sha256_of_tensors(tensors), sha256_hex(std::string_view(bytes).substr(bytes.size() - 19)));
}

TEST(Safetensors, ReadsWhatOthersMayWrite) {
  TemporaryDirectory dir;
  EXPECT_TRUE(open_bytes(dir, file_of("{}")).tensors().empty());
  EXPECT_TRUE(open_bytes(dir, file_of("{\"__metadata__\":null}   ")).metadata().empty());
  const auto spaced =
      open_bytes(dir, file_of("{ \"w\" : {\"shape\":[2],\n\"data_offsets\":[0,2],\"extra\":{\"x\":[{}]},"
                              "\"dtype\":\"U8\"} }  ",
                              "ab"));
  EXPECT_EQ(spaced.load("w").to_vector(), (std::vector<float>{'a', 'b'}));
}

TEST(Safetensors, ListsDtypesThatItCannotLoad) {
  TemporaryDirectory dir;
  const auto file = open_bytes(dir, file_of(R"({"x":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                                            R"("y":{"dtype":"F4","shape":[3,2],"data_offsets":[2,5]}})",
                                            "abcde"));
  EXPECT_EQ(file.tensors().at("x").dtype_name, "F8_E4M3");
  EXPECT_FALSE(file.tensors().at("x").dtype.has_value());
  expect_error([&] { file.load("x"); }, {"m.safetensors: tensor \"x\" is F8_E4M3", "convert it"});
  expect_error([&] { file.load("absent"); }, {"m.safetensors: there is no tensor \"absent\""});
}

TEST(Safetensors, RefusesHeadersThatAreNotTheFormat) {
  expect_bad_header("", 0, {"does not start with '{'"});
  expect_bad_header(" {}", 0, {"does not start with '{'"});
  expect_bad_header("{", 0, {"not valid JSON", "line 1"});
  expect_bad_header("{} {}", 0, {"not valid JSON"});
  expect_bad_header(std::string_view("{}\0{}", 5), 0, {"NUL"});
  expect_bad_header("{\"\xff\":1}", 0, {"not valid JSON"});
  expect_bad_header(R"({"w":5})", 0, {"tensor \"w\": expected an object, found a number"});
  expect_bad_header(R"({"w":null})", 0, {"tensor \"w\": expected an object, found null"});
  expect_bad_header(R"({"w":[]})", 0, {"tensor \"w\": expected an object, found a list"});
  expect_bad_header(R"({"__metadata__":{"k":1}})", 0, {"__metadata__: \"k\": expected a string, found a number"});
  expect_bad_header(R"({"__metadata__":{"k":{}}})", 0, {"\"k\": expected a string, found an object"});
  expect_bad_header(R"({"__metadata__":"x"})", 0, {"__metadata__: expected an object, found a string"});
}

TEST(Safetensors, RefusesBrokenEntries) {
  const auto entry = [](std::string_view fields) { return "{\"w\":{" + std::string(fields) + "}}"; };
  expect_bad_header(entry(""), 0, {"tensor \"w\" has no dtype"});
  expect_bad_header(entry(R"("dtype":"U8","data_offsets":[0,0])"), 0, {"tensor \"w\" has no shape"});
  expect_bad_header(entry(R"("dtype":"U8","shape":[0])"), 0, {"tensor \"w\" has no data_offsets"});
  expect_bad_header(entry(R"("dtype":"U9","shape":[0],"data_offsets":[0,0])"), 0, {"unknown dtype \"U9\""});
  expect_bad_header(entry(R"("dtype":8)"), 0, {"tensor \"w\": dtype: expected a string, found a number"});
  expect_bad_header(entry(R"("shape":"x")"), 0, {"shape: expected a list of integers, found a string"});
  expect_bad_header(entry(R"("shape":[1.5])"), 0, {"shape: expected non-negative integers, found a fraction"});
  expect_bad_header(entry(R"("shape":[-1])"), 0, {"shape: expected non-negative integers, found a negative number"});
  expect_bad_header(entry(R"("shape":[[1]])"), 0, {"shape: expected non-negative integers, found a list"});
  expect_bad_header(entry(R"("shape":[99999999999999999999])"), 0, {"beyond 64 bits"});
  expect_bad_header(entry(R"("shape":[1,1,1,1,1,1,1])"), 0, {"tensor \"w\" has more than 6 dimensions"});
  expect_bad_header(entry(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 0, {"1 entries, not two"});
  expect_bad_header(entry(R"("data_offsets":[0,1,2])"), 0, {"more than two entries"});
  expect_bad_header(entry(R"("dtype":"U8","dtype":"U8")"), 0, {"tensor \"w\": the key \"dtype\" stands twice"});
}

TEST(Safetensors, RefusesDuplicateNames) {
  expect_bad_header(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                    R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                    0, {"tensor \"w\" stands twice"});
  expect_bad_header(R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__ stands twice"});
  expect_bad_header(R"({"__metadata__":{"a":"1","a":"2"}})", 0, {"the key \"a\" stands twice"});
}

TEST(Safetensors, RefusesSizesThatDoNotAgree) {
  const auto tensor = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return fmt::format(R"({{"w":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}}}})", dtype, shape, offsets);
  };
  expect_bad_header(tensor("F32", "2,3", "0,20"), 20,
                    {"tensor \"w\": shape [2, 3] of F32 takes 24 bytes, but data_offsets [0, 20] give it 20"});
  expect_bad_header(tensor("U8", "4", "4,0"), 4, {"end at 0, before they begin at 4"});
  expect_bad_header(tensor("F4", "3", "0,1"), 1, {"takes 2 bytes"});  // half a byte is left over
  expect_bad_header(tensor("F32", "4294967296,4294967296", "0,0"), 0, {"larger than any memory"});
  expect_bad_header(tensor("F32", "4611686018427387904", "0,0"), 0, {"larger than any memory"});
  expect_bad_header(tensor("U8", "18446744073709551615", "0,0"), 0, {"larger than any memory"});
  expect_bad_header(tensor("U8", "0,4294967296,4294967296", "0,0"), 0, {"larger than any memory"});  // by its strides
  expect_bad_header(tensor("U8", "4611686018427387904", "0,4611686018427387904"), 4, {"larger than any memory"});
  expect_bad_header(tensor("U8", "1152921504606846975", "0,1152921504606846975"), 4, {"the file is truncated"});
}

TEST(Safetensors, RefusesHolesOverlapsAndLeftovers) {
  const auto two = [](std::string_view a, std::string_view b) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[{}]}},)"
                       R"("b":{{"dtype":"U8","shape":[4],"data_offsets":[{}]}}}})",
                       a, b);
  };
  EXPECT_EQ(parse_safetensors_header(two("4,8", "0,4"), 8, "m").tensors.size(), 2u);
  expect_bad_header(two("0,4", "5,9"), 9, {"tensor \"b\" begins at byte 5", "expected 4", "hole"});
  expect_bad_header(two("1,5", "5,9"), 9, {"tensor \"a\" begins at byte 1", "hole"});
  expect_bad_header(two("0,4", "3,7"), 7, {"tensor \"b\" begins at byte 3", "overlaps"});
  expect_bad_header(two("0,4", "0,4"), 4, {"overlaps"});
  expect_bad_header(two("0,4", "4,8"), 9, {"1 byte after the last tensor"});
  expect_bad_header(two("0,4", "4,8"), 7, {"truncated", "declares 8 bytes", "found 7"});
}

TEST(Safetensors, ErrorsStayOneLineWhateverTheNames) {
  expect_bad_header(R"({"evil\nname\u0007":1})", 0, {"tensor \"evil\\x0aname\\x07\""});
  const std::string long_name(100'000, 'n');
  try {
    parse_safetensors_header("{\"" + long_name + "\":1}", 0, "m");
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(std::string_view(error.what()).size(), 500u);
  }
}

TEST(Safetensors, RefusesFilesThatAreSomethingElse) {
  TemporaryDirectory dir;
  expect_error([&] { SafetensorsFile::open(dir / "absent"); }, {"absent: cannot open the file: No such file"});
  expect_error([&] { SafetensorsFile::open(dir.path()); }, {"expected a file, found a directory"});
  expect_error([&] { open_bytes(dir, ""); }, {"m.safetensors: expected a safetensors file", "it has 0 bytes"});
  expect_error([&] { open_bytes(dir, "PK\x03\x04" + std::string(100, 'x')); }, {"PyTorch pickle", "convert"});
  expect_error([&] { open_bytes(dir, "version https://git-lfs.github.com/spec/v1\n"); }, {"Git LFS pointer"});
  expect_error([&] { open_bytes(dir, "<!DOCTYPE html><html></html>"); }, {"web page"});
  expect_error([&] { open_bytes(dir, "GGUF" + std::string(100, '\1')); }, {"GGUF"});
  expect_error([&] { open_bytes(dir, std::string(100, '\xff')); }, {"18446744073709551615 bytes", "limit"});
}

TEST(Safetensors, RefusesTruncatedFiles) {
  TemporaryDirectory dir;
  const std::string whole = file_of(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  EXPECT_EQ(open_bytes(dir, whole).load("w").numel(), 2);
  for (size_t size = 0; size < whole.size(); ++size)
    expect_error([&] { open_bytes(dir, std::string_view(whole).substr(0, size)); }, {"m.safetensors: "});
  expect_error([&] { open_bytes(dir, whole.substr(0, whole.size() - 1)); }, {"truncated", "8 bytes", "found 7"});
  expect_error([&] { open_bytes(dir, whole.substr(0, 20)); }, {"truncated", "the header alone takes"});
}

TEST(Safetensors, AFileThatShrinksIsAnError) {
  TemporaryDirectory dir;
  const auto file = open_bytes(dir, file_of(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "12345678"));
  std::filesystem::resize_file(dir / "m.safetensors", std::filesystem::file_size(dir / "m.safetensors") - 4);
  expect_error([&] { file.load("w"); }, {"m.safetensors: tensor \"w\": the file shrank"});
}

TEST(Safetensors, AReplacedFileIsReadAsItWasOpened) {
  TemporaryDirectory dir;
  save_safetensors(dir / "m.safetensors", {{"w", Tensor::of(std::vector<float>{1}, {1})}});
  const auto file = SafetensorsFile::open(dir / "m.safetensors");
  save_safetensors(dir / "m.safetensors", {{"other", Tensor::of(std::vector<float>{2, 3}, {2})}});
  EXPECT_EQ(file.load("w").item(), 1);
}

TEST(Safetensors, RefusesToSaveWhatNobodyCouldRead) {
  TemporaryDirectory dir;
  const Tensor one = Tensor::of(std::vector<float>{1}, {1});
  const auto path = dir / "m.safetensors";
  expect_error([&] { save_safetensors(path, {{"__metadata__", one}}); }, {"m.safetensors", "__metadata__"});
  expect_error([&] { save_safetensors(path, {{"\xff", one}}); }, {"m.safetensors", "UTF-8"});
  expect_error([&] { save_safetensors(path, {{"w", one}}, {{"k", "\xc3"}}); }, {"m.safetensors", "UTF-8"});
  expect_error([&] { save_safetensors(path, {{"w", Tensor()}}); }, {"m.safetensors", "\"w\""});
  EXPECT_EQ(dir.entries(), 0u);
}

}  // namespace
}  // namespace wick
