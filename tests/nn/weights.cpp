#include "wick/nn/weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "device.h"
#include "io/files.h"
#include "wick/backend/counting.h"
#include "wick/core/row_formats.h"
#include "wick/io/file.h"
#include "wick/io/safetensors.h"
#include "wick/nn/layers.h"

namespace wick {
namespace {

Tensor counting(const Shape& shape) {
  std::vector<float> values(size_t(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  return Tensor::of(values, shape);
}

TEST(Weights, FindsTheFileInAFolder) {
  for (const char* name : {"diffusion_pytorch_model.safetensors", "model.safetensors", "model.fp16.safetensors"}) {
    const TemporaryDirectory folder;
    save_safetensors(folder / name, {{"a.weight", counting({2, 3})}});
    const Weights weights = Weights::open(folder.path());
    EXPECT_TRUE(weights.has("a.weight"));
    EXPECT_EQ(weights.load("a.weight", {2, 3}).to_vector(), counting({2, 3}).to_vector());
  }
  const TemporaryDirectory empty;
  expect_error([&] { Weights::open(empty.path()); }, {"diffusion_pytorch_model.safetensors"});
  expect_error([&] { Weights::open(empty / "x.safetensors"); }, {"x.safetensors"});
}

TEST(Weights, ReadsShards) {
  const TemporaryDirectory folder;
  save_safetensors(folder / "model-00001-of-00002.safetensors", {{"a", counting({4})}});
  save_safetensors(folder / "model-00002-of-00002.safetensors", {{"b", counting({2, 2})}});
  const auto write_index = [&](const std::string& map) {
    write_file_atomically(folder / "model.safetensors.index.json", "{\"weight_map\": " + map + "}");
  };
  const std::string a = "\"a\": \"model-00001-of-00002.safetensors\"";
  write_index("{" + a + ", \"b\": \"model-00002-of-00002.safetensors\"}");
  const Weights weights = Weights::open(folder.path());
  EXPECT_EQ(weights.load("b", {2, 2}).to_vector(), counting({2, 2}).to_vector());
  EXPECT_EQ(weights.load("a", {4}).to_vector(), counting({4}).to_vector());
  expect_error([&] { weights.load("c", {1}); }, {"model.safetensors.index.json", "\"c\""});

  write_index("{" + a + ", \"b\": \"model-00001-of-00002.safetensors\"}");
  expect_error([&] { Weights::open(folder.path()); }, {"model-00001-of-00002.safetensors", "\"b\""});
  write_index("{" + a + ", \"b\": \"../elsewhere.safetensors\"}");
  expect_error([&] { Weights::open(folder.path()); }, {"../elsewhere.safetensors", "plain file name"});
  write_index("{" + a + ", \"b\": \"gone.safetensors\"}");
  expect_error([&] { Weights::open(folder.path()); }, {"gone.safetensors"});
  write_index("[1]");
  expect_error([&] { Weights::open(folder.path()); }, {"model.safetensors.index.json", "weight_map"});
}

TEST(Weights, FindsATextModelThatWasSavedWithoutItsPrefix) {
  const TemporaryDirectory folder;
  const std::string name = "encoder.layers.0.self_attn.q_proj.weight";
  save_safetensors(folder / "new.safetensors", {{name, counting({2, 3})}});
  save_safetensors(folder / "old.safetensors", {{"text_model." + name, counting({2, 3})}});
  for (const char* file : {"new.safetensors", "old.safetensors"}) {
    const Weights weights = Weights::open(folder / file);
    EXPECT_TRUE(weights.has("text_model." + name)) << file;
    EXPECT_EQ(weights.load("text_model." + name, {2, 3}).to_vector(), counting({2, 3}).to_vector()) << file;
  }
  EXPECT_TRUE(Weights::open(folder / "new.safetensors").has(name));
  EXPECT_FALSE(Weights::open(folder / "old.safetensors").has(name));
}

TEST(Weights, SaysWhatIsWrongWithATensor) {
  const TemporaryDirectory folder;
  save_safetensors(folder / "m.safetensors",
                   {{"w", counting({2, 3})}, {"i", Tensor::of(std::vector<int64_t>{1}, {1})}});
  const Weights weights = Weights::open(folder / "m.safetensors");
  expect_error([&] { weights.load("v", {2, 3}); }, {"m.safetensors", "no tensor \"v\""});
  expect_error([&] { weights.load("w", {3, 2}); }, {"m.safetensors", "\"w\"", "[3, 2]", "[2, 3]"});
  expect_error([&] { weights.load("i", {1}); }, {"m.safetensors", "\"i\"", "i64"});
}

TEST(Weights, KeepsVectorsInF32) {
  const Weights weights = Weights::of({{"w", counting({2, 2})}, {"b", counting({2})}}, {.dtype = DType::bf16});
  EXPECT_EQ(weights.load("w", {2, 2}).dtype(), DType::bf16);
  EXPECT_EQ(weights.load("b", {2}).dtype(), DType::f32);
}

TEST(Weights, LaysConvolutionsOutOnce) {
  const Weights weights = Weights::of({{"w", counting({2, 3, 1, 2})}});
  const Tensor w = weights.load_conv("w", {2, 3, 1, 2});
  EXPECT_EQ(w.shape(), (Shape{2, 1, 2, 3}));
  EXPECT_TRUE(w.contiguous());
  EXPECT_EQ(w.to_vector(), (std::vector<float>{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}));
}

TEST(Weights, TrainableOnesAreLeavesAndAreSavedAsTheyWere) {
  const TemporaryDirectory folder;
  const std::map<std::string, Tensor> tensors = {
      {"conv", counting({2, 3, 3, 3})}, {"linear", counting({2, 3})}, {"pointwise", counting({2, 3, 1, 1})}};
  const Weights weights = Weights::of(tensors, {.dtype = DType::bf16, .trainable = true});
  const Tensor conv = weights.load_conv("conv", {2, 3, 3, 3});
  const Tensor linear = weights.load("linear", {2, 3});
  weights.load("pointwise", {2, 3});
  EXPECT_EQ(weights.load("linear", {2, 3}).id(), linear.id());  // one leaf a name
  ASSERT_EQ(weights.parameters().size(), 3u);
  EXPECT_EQ(weights.parameters()[0].name, "conv");
  EXPECT_EQ(weights.parameters()[0].value.id(), conv.id());
  for (const Parameter& p : weights.parameters()) {
    EXPECT_TRUE(p.value.tracked());
    EXPECT_EQ(p.value.dtype(), DType::f32);
  }
  linear.data<float>()[0] = 77;
  EXPECT_EQ(tensors.at("linear").data<float>()[0], 0);  // the caller's tensors stay as they were

  weights.save(folder / "saved.safetensors", DType::f32);
  const SafetensorsFile saved = SafetensorsFile::open(folder / "saved.safetensors");
  EXPECT_EQ(saved.tensors().size(), 3u);
  EXPECT_EQ(saved.metadata().at("format"), "pt");
  EXPECT_EQ(saved.load("conv").to_vector(), tensors.at("conv").to_vector());
  EXPECT_EQ(saved.tensors().at("pointwise").shape, (Shape{2, 3, 1, 1}));
  EXPECT_EQ(saved.load("linear").data<float>()[0], 77);
}

// Tensors that the file holds in the wanted form are read at once, others when asked for; on a device through
// page-locked memory.
TEST(Weights, DeferredOnesAreReadTogether) {
  const TemporaryDirectory folder;
  const Tensor large = cast(reshape(counting({3, 1 << 21}), {3 << 11, 1 << 10}), DType::bf16);
  save_safetensors(folder / "x.safetensors", {{"a", counting({2, 3})},
                                              {"b", counting({4, 3})},
                                              {"c", cast(counting({5, 3}), DType::f16)},
                                              {"large", large},
                                              {"v", cast(counting({7}), DType::bf16)}});
  const Weights weights = Weights::open(folder / "x.safetensors", {.deferred = true});
  const StackedTensor stack = weights.load_stacked({"a", "b", "c"}, {{2, 3}, {4, 3}, {5, 3}});
  EXPECT_EQ(weights.load("v", {7}).to_vector(), counting({7}).to_vector());
  weights.read_deferred();
  std::vector<float> want;
  for (const int64_t rows : {2, 4, 5})
    for (const float x : counting({rows, 3}).to_vector()) want.push_back(x);
  EXPECT_EQ(stack.whole.to_vector(), want);
  EXPECT_EQ(weights.load("a", {2, 3}).to_vector(), counting({2, 3}).to_vector());

  const Weights half =
      Weights::open(folder / "x.safetensors",
                    {.dtype = DType::bf16, .deferred = true, .place = Residence::on(test::backend(), DType::bf16)});
  const Tensor read = half.load("large", large.shape());
  half.read_deferred();
  EXPECT_EQ(read.to_vector(), large.to_vector());

  const Weights cut = Weights::open(folder / "x.safetensors", {.deferred = true});
  cut.load("b", {4, 3});
  std::filesystem::resize_file(folder / "x.safetensors", 300);
  expect_error([&] { cut.read_deferred(); }, {"x.safetensors", "shrank"});
}

// Converted a few rows at a time: beside a large matrix there is no copy of it in the file's type or in f32.
TEST(Weights, ConvertedOnesTakeLittleBesideThem) {
  const TemporaryDirectory folder;
  Rng rng(5, Stream::init);
  const Shape shape{8191, 1024};
  const Tensor a = cast(random_normal(shape, rng), DType::bf16), b = cast(random_normal(shape, rng), DType::bf16);
  save_safetensors(folder / "model.safetensors", {{"a", a}, {"b", b}, {"c", a}});
  Memory& memory = host_memory();
  for (const DType dtype : {DType::f32, DType::f16, DType::q8_0, DType::q4_k, DType::q4_0}) {
    const Weights weights = Weights::open(folder.path(), {.dtype = dtype});
    const size_t before = memory.in_use();
    memory.reset_peak();
    const Tensor c = weights.load("c", shape), both = weights.load_stacked({"a", "b"}, {shape, shape}).whole;
    const size_t taken = memory.in_use() - before;
    EXPECT_EQ(taken, size_t(bytes_of(dtype, 3 * shape.numel())));
    EXPECT_LE(memory.peak() - before, taken + (size_t{7} << 20)) << name_of(dtype);
    EXPECT_EQ(cast(c, DType::f32).to_vector(), cast(cast(a, dtype), DType::f32).to_vector()) << name_of(dtype);
    EXPECT_EQ(cast(both, DType::f32).to_vector(), cast(cast(cat({a, b}, 0), dtype), DType::f32).to_vector())
        << name_of(dtype);
  }
}

Tensor wavy(const Shape& shape) {
  std::vector<float> values(size_t(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(float(i) * 0.7f) * float(1 + i % 5);
  return Tensor::of(values, shape);
}

Tensor quantized(const Tensor& x, DType dtype) {
  const Tensor w = Tensor::empty(x.shape(), dtype);
  quantize_rows(w.data<void>(), dtype, x.data<float>(), x.dim(0), x.dim(1));
  return w;
}

// Each matrix of a stack is quantised on its own, as bitsandbytes does it, whatever is read at a time.
TEST(Weights, QuantisesTheMatricesThatAreNamed) {
  const TemporaryDirectory folder;
  const Tensor q = wavy({70, 192}), k = wavy({40, 192}), odd = wavy({4, 72}), table = wavy({9, 192});
  save_safetensors(folder / "x.safetensors", {{"blocks.q", q}, {"blocks.k", k}, {"blocks.odd", odd}, {"table", table}});
  for (const DType dtype : {DType::nf4, DType::nf4_double}) {
    const Weights w =
        Weights::open(folder / "x.safetensors",
                      {.dtype = dtype, .unquantized = DType::bf16, .quantizes = [](const std::string& name) {
                         return name.starts_with("blocks.");
                       }});
    const StackedTensor stack = w.load_stacked({"blocks.q", "blocks.k"}, {q.shape(), k.shape()});
    std::vector<float> want = quantized(q, dtype).to_vector();
    for (const float value : quantized(k, dtype).to_vector()) want.push_back(value);
    EXPECT_EQ(stack.whole.dtype(), dtype);
    EXPECT_EQ(stack.whole.to_vector(), want);
    EXPECT_EQ(w.load("blocks.odd", odd.shape()).dtype(), DType::bf16);
    EXPECT_EQ(w.load("table", table.shape()).dtype(), DType::bf16);
    EXPECT_EQ(w.describe_quantized(),
              std::string(name_of(dtype)) + ": 2 weights; 1 stays bf16, as its rows are not whole blocks of 64");
  }
  const Weights five = Weights::of({{"wide", wavy({4, 256})}, {"odd", wavy({4, 96})}}, {.dtype = DType::q5_k});
  EXPECT_EQ(five.load("wide", {4, 256}).dtype(), DType::q5_k);
  EXPECT_EQ(five.load("odd", {4, 96}).dtype(), DType::f32);
  EXPECT_EQ(five.describe_quantized(), "q5_k: 1 weight; 1 stays f32, as its rows are not whole blocks of 256");
  const Weights none = Weights::open(folder / "x.safetensors", {.dtype = DType::fp8_block});
  none.load("blocks.odd", odd.shape());
  expect_error([&] { none.describe_quantized(); }, {"x.safetensors", "none of 1 weight", "fp8-block", "128"});
  const Weights plain = Weights::open(folder / "x.safetensors", {.dtype = DType::bf16});
  plain.load("table", table.shape());
  EXPECT_EQ(plain.describe_quantized(), "");
}

// Matrices that tensor cores do not multiply are decoded for their products, and so are those of a stack with one.
TEST(Weights, MultipliesInFp8WhatHasSidesOf16s) {
  const TemporaryDirectory folder;
  const Tensor even = wavy({32, 48}), odd = wavy({24, 48}), narrow = wavy({16, 40});
  save_safetensors(folder / "x.safetensors",
                   {{"even", even}, {"q", even}, {"k", odd}, {"v", even}, {"narrow", narrow}});
  const auto open = [&] {
    return Weights::open(folder / "x.safetensors", {.dtype = DType::fp8_product, .unquantized = DType::bf16});
  };
  const Weights w = open();
  EXPECT_EQ(w.load("even", even.shape()).dtype(), DType::fp8_product);
  EXPECT_EQ(w.load("even", even.shape()).to_vector(), quantized(even, DType::fp8).to_vector());
  EXPECT_EQ(w.describe_quantized(), "fp8, multiplied in fp8: 1 weight");
  EXPECT_EQ(w.load("narrow", narrow.shape()).dtype(), DType::fp8);
  const Tensor stack = w.load_stacked({"q", "k", "v"}, {even.shape(), odd.shape(), even.shape()}).whole;
  EXPECT_EQ(stack.dtype(), DType::fp8);
  std::vector<float> want;
  for (const Tensor& part : {even, odd, even})
    for (const float value : quantized(part, DType::fp8).to_vector()) want.push_back(value);
  EXPECT_EQ(stack.to_vector(), want);
  EXPECT_EQ(w.describe_quantized(),
            "fp8, multiplied in fp8: 1 weight; 4 are multiplied in bf16, as their sides, or those of one beside it, "
            "are not multiples of 16");
  const Weights none = open();
  none.load("narrow", narrow.shape());
  expect_error([&] { none.describe_quantized(); }, {"x.safetensors", "none of 1 weight", "in fp8", "multiples of 16"});
}

// In 16 bits only where the file has the very same: nothing is rounded that was not.
TEST(Weights, BiasesWithoutAnAdapterAreActivations) {
  const TemporaryDirectory folder;
  const Tensor wide = counting({3}), half = cast(wide, DType::f16), brain = cast(wide, DType::bf16);
  save_safetensors(folder / "x.safetensors",
                   {{"f32", wide}, {"f16", half}, {"bf16", brain}, {"b", brain}, {"c", brain}});
  const Residence place{&host_memory(), DType::bf16};
  const Weights weights = Weights::open(folder / "x.safetensors", {.dtype = DType::bf16, .place = place});
  for (const char* name : {"f32", "f16"}) EXPECT_EQ(weights.load_bias(name, {3}).dtype(), DType::f32) << name;
  EXPECT_EQ(weights.load_bias("bf16", {3}).dtype(), DType::bf16);
  EXPECT_EQ(cast(weights.load_bias("bf16", {3}), DType::f32).to_vector(), wide.to_vector());
  EXPECT_EQ(weights.load_stacked_biases({"b", "c"}, {{3}, {3}}).whole.dtype(), DType::bf16);

  const Weights again = Weights::open(folder / "x.safetensors", {.dtype = DType::bf16, .place = place});
  const Tensor mixed = again.load_stacked_biases({"b", "f16"}, {{3}, {3}}).whole;
  EXPECT_EQ(mixed.dtype(), DType::f32);
  EXPECT_EQ(mixed.to_vector(), (std::vector<float>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(again.load("bf16", {3}).dtype(), DType::f32);
  const Weights trained = Weights::open(folder / "x.safetensors", {.trainable = true, .place = place});
  EXPECT_EQ(trained.load_bias("bf16", {3}).dtype(), DType::f32);
  const Weights outline = Weights::outline({.dtype = DType::bf16, .place = place});
  EXPECT_EQ(outline.load_bias("bf16", {3}).dtype(), DType::f32);
}

// More rows than are converted at once, on a device too.
TEST(Weights, ALargeMatrixIsConvertedInPieces) {
  const TemporaryDirectory folder;
  const Tensor x = cast(wavy({4100, 8192}), DType::bf16);
  save_safetensors(folder / "x.safetensors", {{"x", x}});
  for (const DType dtype : {DType::int8, DType::q8_0, DType::f32}) {
    const Weights w =
        Weights::open(folder / "x.safetensors", {.dtype = dtype, .place = Residence::on(test::backend(), DType::bf16)});
    const Tensor here = w.load("x", x.shape()).to(host_memory()), want = Tensor::empty(x.shape(), dtype);
    want.backend().copy(want, x);
    const auto bytes = size_t(bytes_of(dtype, x.shape()));
    EXPECT_EQ(std::memcmp(here.data<void>(), want.data<void>(), bytes), 0) << name_of(dtype);
  }
}

// What is only there while weights are converted lies apart from them and is used again.
TEST(Weights, LieSideBySideOnADevice) {
  CountingBackend backend(device_kind("cuda"));
  const Weights outline = Weights::outline({.dtype = DType::q8_0, .place = Residence::on(backend, DType::bf16)});
  constexpr size_t kUnit = Segments::kUnit;
  for (int i = 0; i < 7; ++i) outline.load(std::to_string(i), {1 << 12, 1 << 12});  // 17 MiB
  EXPECT_EQ(backend.memory().most_taken(), 2 * kUnit) << "one for the weights";
  outline.load("large", {1 << 14, 1 << 12});  // 128 MiB in bf16
  EXPECT_EQ(backend.memory().most_taken(), 4 * kUnit) << "one more, and one for pieces in f32";
}

TEST(Weights, AnOutlineHasShapesAndNoMemory) {
  CountingBackend backend(device_kind("cpu"));
  const Weights outline = Weights::outline({.dtype = DType::bf16, .place = Residence::on(backend, DType::bf16)});
  const size_t before = host_memory().in_use();
  const Tensor w = outline.load_conv("anything", {1 << 12, 1 << 12, 3, 3});
  EXPECT_EQ(w.shape(), (Shape{1 << 12, 3, 3, 1 << 12}));
  EXPECT_EQ(w.dtype(), DType::bf16);
  EXPECT_EQ(host_memory().in_use(), before);
  EXPECT_EQ(w.memory().in_use(), size_t{2} * 9 << 24);
}

TEST(Weights, DrawnOnesAreAFunctionOfSeedAndName) {
  const auto drawn = [](uint64_t seed) { return Weights::drawn(seed, 0.5f, {.trainable = true}); };
  const Weights one = drawn(7), again = drawn(7);
  again.load("b.weight", {64, 32});  // in another order
  const std::vector<float> a = one.load("a.weight", {64, 32}).to_vector();
  EXPECT_EQ(again.load("a.weight", {64, 32}).to_vector(), a);
  EXPECT_NE(one.load("b.weight", {64, 32}).to_vector(), a);
  EXPECT_NE(drawn(8).load("a.weight", {64, 32}).to_vector(), a);
  double squares = 0;
  for (const float x : a) squares += double(x) * double(x);
  EXPECT_NEAR(std::sqrt(squares / 2048), 0.5, 0.05);
  const StackedTensor stack = one.load_stacked({"q.weight", "k.weight"}, {{2, 32}, {1, 32}});
  EXPECT_EQ(stack.parts.at(1).to_vector(), again.load("k.weight", {1, 32}).to_vector());
  EXPECT_EQ(one.load("norm.weight", {3}).to_vector(), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(one.load("q.bias", {2}).to_vector(), (std::vector<float>{0, 0}));
  EXPECT_EQ(one.parameters().size(), 6u);
}

TEST(Scope, NamesLeaveTheComponentOut) {
  const Scope scope(Weights::of({{"a.0.w", counting({2})}}), "unet");
  const Scope inner = scope / "a" / 0;
  EXPECT_EQ(inner.path(), "unet.a.0");
  EXPECT_TRUE(inner.has("w"));
  EXPECT_FALSE(scope.has("w"));
  EXPECT_EQ(inner.load("w", {2}).to_vector(), (std::vector<float>{0, 1}));
}

}  // namespace
}  // namespace wick
