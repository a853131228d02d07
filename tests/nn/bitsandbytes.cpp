// Weights that bitsandbytes quantised, against its own dequantisation (tools/golden/bitsandbytes_files.py).
#include "wick/nn/bitsandbytes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "io/float8.h"
#include "source_dir.h"
#include "wick/core/row_formats.h"
#include "wick/io/safetensors.h"
#include "wick/nn/weights.h"

namespace wick {
namespace {

using std::string;

const std::filesystem::path kGolden = test::source_dir() / "tests/golden/bitsandbytes";

string bytes_of(const Tensor& tensor) {
  const auto* from = tensor.data<char>();
  return {from, size_t(bytes_of(tensor.dtype(), tensor.shape()))};
}

std::vector<float> decoded_rows(const Tensor& rows) {
  const int64_t cols = rows.dim(1), bytes = row_bytes(rows.dtype(), cols);
  std::vector<float> values(size_t(rows.numel()));
  for (int64_t i = 0; i < rows.dim(0); ++i)
    decode_row(&values[size_t(i * cols)], rows.data<char>() + i * bytes, rows.dtype(), cols);
  return values;
}

class Bitsandbytes : public testing::Test {
 protected:
  std::vector<float> values(const string& layer) const { return values_.load(layer + ".weight").to_vector(); }
  Shape shape(const string& layer) const { return values_.tensors().at(layer + ".weight").shape; }
  Tensor stored(const string& tensor) const { return file_.load(tensor); }
  Tensor rows(const string& layer, DType dtype) const {
    return Weights(source_, {.dtype = dtype}).load(layer + ".weight", shape(layer));
  }
  static string quantized(DType dtype, const std::vector<float>& x, const Shape& shape) {
    string rows(size_t(shape[0] * row_bytes(dtype, shape[1])), '\0');
    quantize_rows(rows.data(), dtype, x.data(), shape[0], shape[1]);
    return rows;
  }

  const SafetensorsFile file_ = SafetensorsFile::open(kGolden / "layers.safetensors");
  const SafetensorsFile values_ = SafetensorsFile::open(kGolden / "values.safetensors");
  const TensorSource source_ = safetensors_source(kGolden / "layers.safetensors");
};

TEST_F(Bitsandbytes, ValuesAreThoseOfItsDequantisation) {
  for (const auto& [name, info] : values_.tensors()) {
    const StoredTensor found = *source_.find(name, {});
    EXPECT_EQ(found.shape, info.shape) << name;
    EXPECT_TRUE(found.decoded);
    const std::vector<float> expected = values_.load(name).to_vector();
    EXPECT_EQ(found.load(host_memory()).to_vector(), expected) << name;
    std::vector<float> part(expected.size() - 20);
    found.bytes(part.data(), 17 * 4, part.size() * 4);
    EXPECT_EQ(part, std::vector<float>(expected.begin() + 17, expected.end() - 3)) << name;
  }
}

// No format of rows has FP4's codes: it is held as floats, or quantised anew.
TEST(BitsandbytesFiles, Fp4sValuesAreThoseOfItsDequantisation) {
  const TensorSource source = safetensors_source(kGolden / "fp4.safetensors");
  const SafetensorsFile values = SafetensorsFile::open(kGolden / "fp4.values.safetensors");
  EXPECT_EQ(values.tensors().size(), 3u);
  for (const auto& [name, info] : values.tensors()) {
    const StoredTensor found = *source.find(name, {});
    EXPECT_EQ(found.shape, info.shape) << name;
    EXPECT_TRUE(found.decoded && !found.rows) << name;
    const std::vector<float> expected = values.load(name).to_vector();
    EXPECT_EQ(found.load(host_memory()).to_vector(), expected) << name;
    std::vector<float> part(expected.size() - 20);
    found.bytes(part.data(), 17 * 4, part.size() * 4);
    EXPECT_EQ(part, std::vector<float>(expected.begin() + 17, expected.end() - 3)) << name;
  }
  const Tensor rows = Weights(source, {.dtype = DType::nf4}).load("plain.weight", {6, 128});
  EXPECT_EQ(rows.dtype(), DType::nf4);
}

// The file's numbers, and what quantising its values again gives: the largest magnitude of a block is exact.
TEST_F(Bitsandbytes, RowsHaveTheFilesCodesAndScales) {
  for (const auto& [layer, dtype] : {std::pair{"plain", DType::nf4}, {"as_bf16", DType::nf4}, {"int8", DType::int8}}) {
    const Tensor rows = this->rows(layer, dtype);
    const RowLayout layout = row_layout(dtype, rows.dim(1));
    const bool int8 = dtype == DType::int8;
    const Tensor codes = int8 ? Tensor() : stored(string(layer) + ".weight");
    const Tensor scales = stored(string(layer) + (int8 ? ".SCB" : ".weight.absmax"));
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      const char* row = rows.data<char>() + i * layout.bytes;
      EXPECT_EQ(std::memcmp(row + layout.scales, scales.data<float>() + i * layout.count, size_t(4 * layout.count)), 0);
      if (!int8) {
        EXPECT_EQ(std::memcmp(row, codes.data<char>() + i * layout.scales, size_t(layout.scales)), 0) << layer;
      }
    }
    EXPECT_EQ(decoded_rows(rows), values(layer)) << layer;
    EXPECT_EQ(quantized(dtype, values(layer), shape(layer)), bytes_of(rows)) << layer;
  }
}

// Magnitudes that were rounded have another mean, so that only the file's own numbers are nf4_double without a loss.
TEST_F(Bitsandbytes, DoubleQuantisationIsKept) {
  const Tensor rows = this->rows("double", DType::nf4_double);
  const RowLayout layout = row_layout(DType::nf4_double, rows.dim(1));
  const Tensor codes = stored("double.weight"), magnitudes = stored("double.weight.absmax"),
               scales = stored("double.weight.nested_absmax");
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    const char* row = rows.data<char>() + i * layout.bytes;
    EXPECT_EQ(std::memcmp(row, codes.data<char>() + i * 416, 416), 0) << i;
    EXPECT_EQ(std::memcmp(row + layout.scales, magnitudes.data<char>() + i * 13, 13), 0) << i;
    const int64_t first = i * 13 / kNestedRun, count = (i * 13 + 12) / kNestedRun - first + 1;
    EXPECT_EQ(std::memcmp(row + layout.nested + 8, scales.data<float>() + first, size_t(4 * count)), 0) << i;
  }
  EXPECT_EQ(decoded_rows(rows), values("double"));
  EXPECT_EQ(decoded_rows(this->rows("double", DType::nf4)), values("double"));
}

// Blocks of several runs of 64 have one magnitude for all of them.
TEST_F(Bitsandbytes, WiderBlocksAreKept) {
  EXPECT_EQ(decoded_rows(rows("wide", DType::nf4)), values("wide"));
  EXPECT_EQ(decoded_rows(rows("wide_double", DType::nf4)), values("wide_double"));
  const Tensor anew = rows("wide_double", DType::nf4_double);
  EXPECT_EQ(bytes_of(anew), quantized(DType::nf4_double, values("wide_double"), shape("wide_double")));
  EXPECT_EQ(rows("straddling", DType::nf4).dtype(), DType::f32);  // no whole blocks in a row
  EXPECT_FALSE(source_.find("straddling.weight", {})->rows(DType::nf4));
  EXPECT_FALSE(source_.find("plain.weight", {})->rows(DType::int8));
}

TEST_F(Bitsandbytes, RowsAreReadInPieces) {
  const string whole = bytes_of(rows("double", DType::nf4_double));
  const Memory::Source bytes = source_.find("double.weight", {})->rows(DType::nf4_double);
  for (const size_t begin : {size_t{0}, size_t{1}, size_t{447}, size_t{448}, size_t{3001}}) {
    string part(whole.size() - begin - 11, '\0');
    bytes(part.data(), begin, part.size());
    EXPECT_EQ(part, whole.substr(begin, part.size())) << begin;
  }
}

// Parts of a tensor, and tensors put together, keep their codes too.
TEST_F(Bitsandbytes, AssembledTensorsAreKept) {
  const TensorSource source = assembled(source_, [](const string& name) {
    return name == "fused" ? std::vector<Rows>{{"as_bf16.weight"}, {"plain.weight", 1, 3}, {"plain.weight", 0, 3}}
                           : std::vector<Rows>{{"double.weight", 2, 4}};
  });
  const std::vector<float> plain = values("plain"), as_bf16 = values("as_bf16"), whole = values("double");
  std::vector<float> fused = as_bf16;
  fused.insert(fused.end(), plain.begin() + 256, plain.begin() + 512);
  fused.insert(fused.end(), plain.begin(), plain.begin() + 256);
  EXPECT_EQ(decoded_rows(Weights(source, {.dtype = DType::nf4}).load("fused", {10, 128})), fused);
  EXPECT_EQ(decoded_rows(Weights(source, {.dtype = DType::nf4_double}).load("part", {6, 832})),
            std::vector<float>(whole.begin() + 12 * 832, whole.begin() + 18 * 832));
  const Weights stack(source_, {.dtype = DType::nf4, .deferred = true});
  const Tensor stacked = stack.load_stacked({"plain.weight", "as_bf16.weight"}, {{6, 128}, {6, 128}}).whole;
  stack.read_deferred();
  std::vector<float> both = plain;
  both.insert(both.end(), as_bf16.begin(), as_bf16.end());
  EXPECT_EQ(decoded_rows(stacked), both);
}

// Programs that store all vectors of a file in 16 bits round NF4's own map too.
TEST(BitsandbytesFiles, MapsOfSixteenBitsAreNf4s) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder / "m.safetensors";
  const string json = R"({"quant_type":"nf4","blocksize":64,"shape":[2,64]})";
  for (const auto& [dtype, round] : {std::pair{"F16", &f32_to_f16}, {"BF16", &f32_to_bf16}}) {
    string map;
    for (const float value : kNf4Map.values) {
      const uint16_t bits = round(value);
      map.append(reinterpret_cast<const char*>(&bits), 2);
    }
    write_stored(path, {{"x.weight", "U8", {64, 1}, string(64, 'x')},
                        {"x.weight.absmax", "F32", {2}, of_floats({1, 2})},
                        {"x.weight.quant_map", dtype, {16}, map},
                        {"x.weight.quant_state.bitsandbytes__nf4", "U8", {int64_t(json.size())}, json}});
    EXPECT_EQ(safetensors_source(path).find("x.weight", {})->load(host_memory()).to_vector()[0], kNf4Map.values[7]);
  }
}

TEST(BitsandbytesFiles, WrongOnesAreRefused) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder / "m.safetensors";
  const auto refused = [&](const std::vector<StoredEntry>& entries, std::initializer_list<std::string_view> parts) {
    write_stored(path, entries);
    SCOPED_TRACE(*parts.begin());
    expect_error([&] { safetensors_source(path).find("x.weight", {})->load(host_memory()); }, parts);
  };
  const StoredEntry codes{"x.weight", "U8", {64, 1}, string(64, 'x')};
  const StoredEntry scales{"x.weight.absmax", "F32", {2}, of_floats({1, 2})};
  const auto state = [](const string& json) {
    return StoredEntry{"x.weight.quant_state.bitsandbytes__nf4", "U8", {int64_t(json.size())}, json};
  };
  const StoredEntry plain = state(R"({"quant_type":"nf4","blocksize":64,"shape":[2,64]})");
  refused({codes, plain}, {"m.safetensors: has no tensor \"x.weight.absmax\"", "\"x.weight\""});
  refused({codes, plain, {"x.weight.absmax", "F32", {3}, of_floats({1, 2, 3})}},
          {"\"x.weight.absmax\" should have 2 values in F32", "[3]"});
  refused({codes, plain, {"x.weight.absmax", "U8", {2}, "ab"}}, {"2 values in F32", "U8"});
  refused({codes, plain, {"x.weight.absmax", "F32", {2}, of_floats({1, INFINITY})}},
          {"\"x.weight.absmax\"", "not finite"});
  refused({{"x.weight", "U8", {63, 1}, string(63, 'x')}, plain, scales}, {"\"x.weight\" should have 64 bytes", "63"});
  refused({{"x.weight", "I8", {64, 1}, string(64, 'x')}, plain, scales}, {"\"x.weight\" should have 64 bytes", "I8"});
  refused({codes, state("{"), scales}, {"bitsandbytes__nf4", "JSON"});
  refused({codes, state(R"({"quant_type":"fp4","blocksize":64,"shape":[2,64]})"), scales}, {"quant_type", "\"fp4\""});
  refused({codes, state(R"({"quant_type":"nf4","blocksize":0,"shape":[2,64]})"), scales}, {"blocksize", "0"});
  refused({codes, state(R"({"quant_type":"nf4","blocksize":3,"shape":[2,64]})"), scales}, {"blocksize", "even"});
  refused({codes, state(R"({"quant_type":"nf4","blocksize":64,"shape":[4294967296,4294967296]})"), scales},
          {"shape", "larger"});
  refused({codes, state(R"({"quant_type":"nf4","blocksize":64,"shape":[-2,64]})"), scales}, {"shape"});
  refused({codes, state(R"({"quant_type":"nf4","blocksize":64})"), scales}, {"\"shape\""});
  const std::string map_name = "x.weight.quant_map";
  std::vector<float> reversed(std::rbegin(kNf4Map.values), std::rend(kNf4Map.values)), damaged(reversed);
  refused({codes, plain, scales, {map_name, "F32", {16}, of_floats(reversed)}},
          {"\"x.weight.quant_map\" has 1 for code 0, where nf4 has -1", "bitsandbytes"});
  refused({codes, plain, scales, {map_name, "F32", {15}, of_floats(std::vector<float>(15, 0))}},
          {"\"x.weight.quant_map\" should have 16 values", "[15]"});
  refused({codes, plain, scales, {map_name, "U8", {16}, string(16, 'x')}}, {"quant_map", "U8"});
  damaged.assign(std::begin(kNf4Map.values), std::end(kNf4Map.values));
  damaged[3] = NAN;
  refused({codes, plain, scales, {map_name, "F32", {16}, of_floats(damaged)}}, {"quant_map", "nan for code 3"});
  const StoredEntry nested =
      state(R"({"quant_type":"nf4","blocksize":64,"shape":[2,64],"nested_blocksize":256,"nested_offset":0.5})");
  const StoredEntry inner{"x.weight.absmax", "U8", {2}, "ab"},
      outer{"x.weight.nested_absmax", "F32", {1}, of_floats({1})},
      map{"x.weight.nested_quant_map", "F32", {256}, of_floats(std::vector<float>(256, 0.5f))};
  refused({codes, nested, inner, outer}, {"has no tensor \"x.weight.nested_quant_map\""});
  refused({codes, nested, inner, map}, {"has no tensor \"x.weight.nested_absmax\""});
  refused({codes, nested, scales, outer, map}, {"\"x.weight.absmax\" should have 2 values in U8", "F32"});
  refused({codes, plain, inner, outer, map}, {"nested_offset"});
  refused({codes, nested, inner, map, {"x.weight.nested_absmax", "F32", {1}, of_floats({NAN})}},
          {"\"x.weight.nested_absmax\"", "not finite"});
  const StoredEntry int8{"x.weight", "I8", {2, 64}, string(128, 'x')};
  refused({int8}, {"\"x.weight\" is I8 and has no scales \"x.SCB\""});
  refused({int8, {"x.SCB", "F32", {1}, of_floats({1})}}, {"\"x.SCB\" should have 2 values", "[1]"});
  refused({int8, {"x.SCB", "F32", {2}, of_floats({1, NAN})}}, {"\"x.SCB\"", "not finite"});
  refused({int8, {"x.SCB", "F32", {2}, of_floats({1, 1})}, {"x.weight_format", "U8", {}, "\2"}},
          {"\"x.weight_format\" should be 0", "2"});
  const string json = R"({"quant_type":"fp4","blocksize":64,"shape":[2,64]})";
  const StoredEntry fp4{"x.weight.quant_state.bitsandbytes__fp4", "U8", {int64_t(json.size())}, json};
  refused({codes, fp4}, {"has no tensor \"x.weight.absmax\""});
  refused({codes, fp4, scales, {map_name, "F32", {16}, of_floats(reversed)}}, {"has 1 for code 0, where fp4 has 0"});
  refused({codes, {"x.weight.quant_state.bitsandbytes__fp4", "U8", {2}, "{}"}}, {"bitsandbytes__fp4", "quant_type"});
  refused({codes, scales}, {"bitsandbytes", "quant_state"});
}

}  // namespace
}  // namespace wick
