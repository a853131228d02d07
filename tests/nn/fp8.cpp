// Weights in floats of 8 bits, plain and scaled. Their values are computed here by the formats' definition.
#include "wick/nn/fp8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/float8.h"
#include "wick/core/rng.h"
#include "wick/core/row_formats.h"
#include "wick/io/safetensors.h"
#include "wick/nn/weights.h"

namespace wick {
namespace {

using std::string;

using Entry = StoredEntry;

string all_codes() {
  string codes;
  for (int i = 0; i < 256; ++i) codes += char(i);
  return codes;
}

// The tensor by load(), and by its bytes from odd places on; both must be `expected`, NaN for NaN.
void expect_values(const TensorSource& source, const string& name, const std::vector<float>& expected) {
  const StoredTensor found = *source.find(name, {});
  EXPECT_EQ(found.dtype, DType::f32);
  EXPECT_TRUE(found.decoded);
  const std::vector<float> loaded = found.load(host_memory()).to_vector();
  ASSERT_EQ(loaded.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(loaded[i] == expected[i] || (std::isnan(loaded[i]) && std::isnan(expected[i]))) << name << " at " << i;
  const string whole = of_floats(loaded);
  for (const size_t begin : {0, 1, 7, 64}) {
    if (begin + 5 > whole.size()) break;
    string part(whole.size() - begin - 5, '\0');
    found.bytes(part.data(), begin, part.size());
    EXPECT_EQ(part, whole.substr(begin, part.size()));
  }
}

TEST(Fp8, EveryCodeHasItsValue) {
  const TemporaryDirectory folder;
  write_stored(folder / "m.safetensors",
               {{"a.weight", "F8_E4M3", {16, 16}, all_codes()}, {"b.weight", "F8_E5M2", {256}, all_codes()}});
  const TensorSource source = safetensors_source(folder / "m.safetensors");
  std::vector<float> a, b;
  for (int i = 0; i < 256; ++i) a.push_back(e4m3(i)), b.push_back(e5m2(i));
  EXPECT_EQ(a[0x7e], 448);
  EXPECT_EQ(b[0x7b], 57344);
  expect_values(source, "a.weight", a);
  expect_values(source, "b.weight", b);
  EXPECT_EQ(source.find("a.weight", {})->dtype_name, "F8_E4M3");
}

// Old and new markers, whatever the prefix; scales of inputs change nothing.
TEST(Fp8, ScalesMultiply) {
  const TemporaryDirectory folder;
  const string codes = all_codes().substr(0x20, 32), marker = R"({"format": "float8_e4m3fn"})";
  write_stored(folder / "m.safetensors",
               {{"scaled_fp8", "F8_E4M3", {0}, ""},
                {"p.old.weight", "F8_E4M3", {4, 8}, codes},
                {"p.old.scale_weight", "F32", {}, of_floats({0.3f})},
                {"p.old.scale_input", "F32", {}, of_floats({7})},
                {"p.bare.weight", "F8_E4M3", {4, 8}, codes},
                {"p.new.weight", "F8_E5M2", {4, 8}, codes},
                {"p.new.weight_scale", "F32", {1}, of_floats({1.7f})},
                {"p.new.input_scale", "F32", {}, of_floats({7})},
                {"p.new.comfy_quant", "U8", {int64_t(marker.size())}, marker},
                {"p.rows.weight", "F8_E4M3", {4, 8}, codes},
                {"p.rows.weight_scale", "F32", {4, 1}, of_floats({1, 2, 3, 0.1f})},
                {"p.runs.weight", "F8_E4M3", {4, 8}, codes},
                {"p.runs.scale_weight", "F32", {4, 2, 1}, of_floats({1, 2, 3, 4, 5, 6, 7, 0.1f})},
                {"p.wide.weight", "F32", {2}, of_floats({3, 5})},
                {"p.wide.scale_weight", "F32", {}, of_floats({2})}},
               R"({"_quantization_metadata":"{\"layers\":{\"rows\":{\"format\":\"float8_e4m3fn\"}}}"})");
  const TensorSource source = safetensors_source(folder / "m.safetensors");
  const float rows[] = {1, 2, 3, 0.1f}, runs[] = {1, 2, 3, 4, 5, 6, 7, 0.1f};
  std::map<string, std::vector<float>> expected;
  for (int i = 0; i < 32; ++i) {
    const float a = e4m3(0x20 + i);
    expected["p.old.weight"].push_back(a * 0.3f);
    expected["p.bare.weight"].push_back(a);
    expected["p.new.weight"].push_back(e5m2(0x20 + i) * 1.7f);
    expected["p.rows.weight"].push_back(a * rows[i / 8]);
    expected["p.runs.weight"].push_back(a * runs[i / 4]);
  }
  expected["p.wide.weight"] = {6, 10};
  for (const auto& [name, values] : expected) expect_values(source, name, values);
  const Weights weights(with_prefix(source, "p."), {.dtype = DType::bf16});
  EXPECT_EQ(weights.load("old.weight", {4, 8}).dtype(), DType::bf16);
}

// Codes and scales are the file's, whatever scales its own rows would have.
TEST(Fp8, RowsHaveTheFilesCodesAndScales) {
  const TemporaryDirectory folder;
  string codes;
  for (int i = 0; i < 4 * 256; ++i) codes += char((i * 37) % 0x70);
  const std::vector<float> rows = {1, 2, 3, 0.1f}, runs = {1, 2, 3, 4, 5, 6, 7, 0.1f};
  write_stored(folder / "m.safetensors", {{"bare.weight", "F8_E4M3", {4, 256}, codes},
                                          {"one.weight", "F8_E4M3", {4, 256}, codes},
                                          {"one.weight_scale", "F32", {}, of_floats({0.3f})},
                                          {"rows.weight", "F8_E4M3", {4, 256}, codes},
                                          {"rows.weight_scale", "F32", {4, 1}, of_floats(rows)},
                                          {"runs.weight", "F8_E4M3", {4, 256}, codes},
                                          {"runs.weight_scale", "F32", {4, 2}, of_floats(runs)},
                                          {"wide.weight", "F8_E5M2", {4, 256}, codes},
                                          {"odd.weight", "F8_E4M3", {8, 128}, codes},
                                          {"odd.weight_scale", "F32", {8, 2}, of_floats(std::vector<float>(16, 1))}});
  const TensorSource source = safetensors_source(folder / "m.safetensors");
  const auto expect = [&](const string& layer, DType dtype, const std::function<float(int64_t, int64_t)>& scale) {
    SCOPED_TRACE(layer);
    const Tensor found = Weights(source, {.dtype = dtype}).load(layer + ".weight", {4, 256});
    const RowLayout layout = row_layout(dtype, 256);
    for (int64_t i = 0; i < 4; ++i) {
      const char* row = found.data<char>() + i * layout.bytes;
      EXPECT_EQ(string(row, 256), codes.substr(size_t(i * 256), 256));
      for (int64_t k = 0; k < layout.count; ++k)
        EXPECT_EQ(reinterpret_cast<const float*>(row + layout.scales)[k], scale(i, k));
    }
  };
  for (const DType dtype : {DType::fp8, DType::fp8_block}) {
    expect("bare", dtype, [](int64_t, int64_t) { return 1.0f; });
    expect("one", dtype, [](int64_t, int64_t) { return 0.3f; });
    expect("rows", dtype, [&](int64_t i, int64_t) { return rows[size_t(i)]; });
  }
  expect("runs", DType::fp8_block, [&](int64_t i, int64_t k) { return runs[size_t(2 * i + k)]; });
  EXPECT_FALSE(source.find("runs.weight", {})->rows(DType::fp8));
  EXPECT_FALSE(source.find("odd.weight", {})->rows(DType::fp8_block));
  EXPECT_FALSE(source.find("wide.weight", {})->rows);
  EXPECT_FALSE(source.find("bare.weight", {})->rows(DType::int8));
}

TEST(Fp8, OtherFormatsAreRefusedByName) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder / "m.safetensors";
  const auto refused = [&](const std::vector<Entry>& entries, std::initializer_list<std::string_view> parts,
                           const string& metadata = "{}") {
    write_stored(path, entries, metadata);
    expect_error([&] { safetensors_source(path).find("x.weight", {}); }, parts);
  };
  const Entry codes{"x.weight", "U8", {4, 8}, string(32, 'x')}, fp8{"x.weight", "F8_E4M3", {4, 8}, string(32, 'x')};
  const auto marked = [](const string& json) { return Entry{"x.comfy_quant", "U8", {int64_t(json.size())}, json}; };
  refused({codes, marked(R"({"format":"nvfp4"})")}, {"m.safetensors", "\"x.weight\"", "\"nvfp4\"", "8 bits"});
  refused({fp8, marked(R"({"format":"mxfp8"})")}, {"\"mxfp8\""});
  refused({{"x.weight", "I8", {4, 8}, string(32, 'x')}}, {"\"int8_tensorwise\""},
          R"({"_quantization_metadata":"{\"layers\":{\"x\":{\"format\":\"int8_tensorwise\"}}}"})");
  refused({fp8, marked(R"({"format":"float8_e4m3fn"})")}, {"no tensor \"x.weight_scale\"", "float8_e4m3fn"});
  refused({fp8, marked("{}")}, {"x.comfy_quant", "format"});
  refused({fp8, marked("nothing")}, {"x.comfy_quant", "JSON"});
  refused({fp8}, {"m.safetensors: _quantization_metadata", "layers"}, R"({"_quantization_metadata":"{}"})");
  refused({fp8, {"x.weight_scale_inv", "F32", {1, 1}, of_floats({1})}}, {"\"x.weight_scale_inv\""});
  refused({fp8, {"x.weight_scale", "F32", {3}, of_floats({1, 1, 1})}}, {"\"x.weight_scale\"", "[3]", "[4, 8]"});
  refused({fp8, {"x.weight_scale", "F32", {4, 3}, of_floats(std::vector<float>(12))}}, {"[4, 3]"});
  refused({fp8, {"x.weight_scale", "F32", {}, of_floats({NAN})}}, {"\"x.weight_scale\"", "not finite"});
  refused({fp8, {"x1.weight_scale", "F32", {}, of_floats({1})}},
          {"\"x.weight\" is F8_E4M3 without a scale", "\"x1.weight_scale\""});
  refused({fp8, {"x.weight_scale", "U8", {4}, "abcd"}}, {"\"x.weight_scale\" should be F32", "U8"});
  refused({{"x.weight", "I8", {4, 8}, string(32, 'x')}, {"x.weight_scale", "F32", {}, of_floats({1})}},
          {"\"x.weight\" is I8", "\"x.weight_scale\""});
}

}  // namespace
}  // namespace wick
