#include "wick/nn/source.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "wick/core/rng.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/nn/layers.h"

namespace wick {
namespace {

Tensor noise(const Shape& shape, uint64_t seed = 1) {
  Rng rng(seed, Stream::init);
  return random_normal(shape, rng);
}

// By load(), and by the bytes from an odd place on.
void expect_stored(const TensorSource& source, const std::string& name, const Tensor& expected) {
  const std::optional<StoredTensor> found = source.find(name, {});
  ASSERT_TRUE(found.has_value()) << name;
  EXPECT_EQ(found->shape, expected.shape());
  EXPECT_EQ(found->dtype, expected.dtype());
  const Tensor loaded = found->load(host_memory());
  EXPECT_EQ(loaded.dtype(), expected.dtype());
  EXPECT_EQ(loaded.to_vector(), expected.to_vector()) << name;
  if (!found->bytes) return;
  const auto size = size_t(bytes_of(expected.dtype(), expected.numel()));
  std::vector<char> tail(size - 3);
  found->bytes(tail.data(), 3, tail.size());
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), expected.data<char>() + 3)) << name;
}

TEST(TensorSource, FilesHaveTheirOwnNames) {
  const TemporaryDirectory folder;
  const Tensor a = noise({4, 64}), b = cast(noise({3}), DType::bf16), q = cast(a, DType::q8_0);
  save_safetensors(folder / "m.safetensors", {{"a", a}, {"b", b}});
  save_gguf(folder / "m.gguf", {{"general.architecture", std::string("llama")}},
            {{"blk.0.ffn_up.weight", DType::q8_0, q.shape(), [q] { return q; }}});
  const TensorSource file = safetensors_source(folder / "m.safetensors");
  expect_stored(file, "a", a);
  expect_stored(file, "b", b);
  EXPECT_FALSE(file.has("c"));
  EXPECT_EQ(file.name, (folder / "m.safetensors").string());
  EXPECT_EQ(file.find("b", {})->dtype_name, "BF16");
  const auto gguf = std::make_shared<const GgufFile>(GgufFile::open(folder / "m.gguf"));
  expect_stored(gguf_source(gguf), "blk.0.ffn_up.weight", q);
  expect_stored(open_source(folder / "m.gguf"), "model.layers.0.mlp.up_proj.weight", q);
  expect_stored(memory_source({{"a", a}}), "a", a);
}

TEST(TensorSource, OutlinesAndDrawnOnesHaveEveryShape) {
  const TensorSource outline = outline_source(), drawn = drawn_source(7, 0.5f);
  EXPECT_EQ(outline.find("x", {2, 3})->shape, (Shape{2, 3}));
  EXPECT_FALSE(outline.has_values);
  EXPECT_EQ(drawn.find("x", {2, 3})->load(host_memory()).shape(), (Shape{2, 3}));
  EXPECT_EQ(drawn.find("norm.weight", {2})->load(host_memory()).to_vector(), (std::vector<float>{1, 1}));
}

TEST(TensorSource, RenamedOnesHaveTheNamesThatAreAskedFor) {
  const Tensor a = noise({2, 3});
  const TensorSource source = renamed(memory_source({{"first.a", a}}), [](const std::string& name) {
    return name.starts_with("one.") ? "first." + name.substr(4) : std::string();
  });
  expect_stored(source, "one.a", a);
  EXPECT_FALSE(source.has("first.a"));
  EXPECT_FALSE(source.has("one.b"));
  EXPECT_FALSE(renamed(outline_source(), [](const std::string& name) { return name; }).has_values);
}

const std::map<std::string, Rows> kParts = {
    {"q.weight", {"qkv.weight", 0, 5}}, {"k.weight", {"qkv.weight", 5, 2}}, {"v.weight", {"qkv.weight", 7, 2}}};

// A file's rows are read alone, whatever its type; a map's are copied.
TEST(TensorSource, RowsOfAFusedTensor) {
  const TemporaryDirectory folder;
  const Tensor fused = noise({9, 64});
  for (const DType dtype : {DType::f32, DType::bf16, DType::q8_0, DType::q4_0}) {
    const Tensor stored = cast(fused, dtype);
    save_gguf(folder / "m.gguf", {{"general.architecture", std::string("llama")}},
              {{"qkv.weight", dtype, stored.shape(), [stored] { return stored; }}});
    const auto file = std::make_shared<const GgufFile>(GgufFile::open(folder / "m.gguf"));
    for (const TensorSource& source : {gguf_source(file), memory_source({{"qkv.weight", stored}})}) {
      const TensorSource parts = with_parts(source, kParts);
      expect_stored(parts, "q.weight", clone(stored.window({5, 64}, {64, 1})));
      expect_stored(parts, "k.weight", clone(stored.window({2, 64}, {64, 1}, int64_t{5} * 64)));
      expect_stored(parts, "v.weight", clone(stored.window({2, 64}, {64, 1}, int64_t{7} * 64)));
      expect_stored(parts, "qkv.weight", stored);
      EXPECT_FALSE(parts.has("o.weight"));
    }
  }
  const TensorSource other = with_parts(memory_source({{"x", fused}}), kParts);
  EXPECT_FALSE(other.has("q.weight"));
  const TensorSource few = with_parts(memory_source({{"qkv.weight", noise({8, 64})}}), kParts);
  EXPECT_TRUE(few.has("k.weight"));
  expect_error([&] { few.find("v.weight", {}); }, {"weights in memory", "\"qkv.weight\"", "9 rows", "[8, 64]"});
}

// The same linear from a fused file with other names as from three tensors: converted, quantised and read later too.
TEST(TensorSource, WeightsDoNotTellAFusedFileFromASplitOne) {
  const TemporaryDirectory folder;
  const Tensor fused = noise({9, 64}), x = noise({2, 64}, 2);
  const std::map<std::string, Tensor> apart = {
      {"q.weight", slice(fused, 0, 0, 5)}, {"k.weight", slice(fused, 0, 5, 7)}, {"v.weight", slice(fused, 0, 7, 9)}};
  save_safetensors(folder / "fused.safetensors", {{"attn.qkv.weight", fused}});
  save_safetensors(folder / "apart.safetensors", apart);
  const TensorSource split = with_parts(
      renamed(safetensors_source(folder / "fused.safetensors"), [](const std::string& name) { return "attn." + name; }),
      kParts);
  for (const WeightsOptions& options :
       {WeightsOptions{}, WeightsOptions{.dtype = DType::bf16}, WeightsOptions{.dtype = DType::q8_0},
        WeightsOptions{.trainable = true}, WeightsOptions{.deferred = true}}) {
    const auto run = [&](const Weights& weights) {
      const Scope s(weights, "model");
      const Linear qkv = Linear::side_by_side(s, 64, {{"q", 5}, {"k", 2}, {"v", 2}}, false);
      weights.read_deferred();
      return qkv(x).to_vector();
    };
    EXPECT_EQ(run(Weights(split, options)), run(Weights::open(folder / "apart.safetensors", options)));
  }
  const Weights weights(split, {});
  expect_error([&] { weights.load("k.weight", {3, 64}); }, {"fused.safetensors", "\"k.weight\"", "[3, 64]", "[2, 64]"});
  expect_error([&] { weights.load("o.weight", {3, 64}); }, {"fused.safetensors", "no tensor \"o.weight\""});
}

// Where a tensor is made of what the file has, it is not read later but when it is asked for.
TEST(TensorSource, WhatIsNotReadAsItLiesIsThereAtOnce) {
  const Weights weights = Weights::of({{"a", noise({3, 4})}}, {.deferred = true});
  EXPECT_EQ(weights.load("a", {3, 4}).to_vector(), noise({3, 4}).to_vector());
}

}  // namespace
}  // namespace wick
