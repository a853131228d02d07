#include "wick/nn/source.h"

#include <gtest/gtest.h>

#include "io/files.h"
#include "source_dir.h"
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

// Thirds of qkv, its own name, and the same rows in another order.
std::vector<Rows> thirds(const std::string& name) {
  if (name == "q.weight") return {{"qkv.weight", 0, 3}};
  if (name == "k.weight") return {{"qkv.weight", 1, 3}};
  if (name == "v.weight") return {{"qkv.weight", 2, 3}};
  if (name == "turned.weight") return {{"qkv.weight", 2, 3}, {"qkv.weight", 0, 3}, {"qkv.weight", 1, 3}};
  return {{name}};
}

Tensor rows(const Tensor& x, int64_t begin, int64_t end) {
  return clone(x.window({end - begin, x.dim(1)}, x.stride(), begin * x.dim(1)));
}

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
      const TensorSource parts = assembled(source, thirds);
      expect_stored(parts, "q.weight", rows(stored, 0, 3));
      expect_stored(parts, "k.weight", rows(stored, 3, 6));
      expect_stored(parts, "v.weight", rows(stored, 6, 9));
      expect_stored(parts, "qkv.weight", stored);
      const Tensor turned = parts.find("turned.weight", {})->load(host_memory());
      EXPECT_EQ(rows(turned, 0, 3).to_vector(), rows(stored, 6, 9).to_vector());
      EXPECT_EQ(rows(turned, 3, 9).to_vector(), rows(stored, 0, 6).to_vector());
      expect_stored(parts, "turned.weight", turned);
      EXPECT_FALSE(parts.has("o.weight"));
      EXPECT_EQ(parts.names(), std::vector<std::string>{"qkv.weight"});
    }
  }
  EXPECT_FALSE(assembled(memory_source({{"x", fused}}), thirds).has("q.weight"));
  const TensorSource few = assembled(memory_source({{"qkv.weight", noise({8, 64})}}), thirds);
  expect_error([&] { few.find("v.weight", {}); }, {"weights in memory", "\"qkv.weight\"", "3 equal parts", "[8, 64]"});
}

// Parts of one dtype are read as they lie, wherever a piece begins; parts of several are f32.
TEST(TensorSource, AFusedTensorOfSplitOnes) {
  const TemporaryDirectory folder;
  const auto fuse = [](const std::string& name) -> std::vector<Rows> {
    if (name == "linear1.weight") return {{"to_q"}, {"to_k"}, {"mlp"}};
    return {};
  };
  const Tensor q = noise({2, 64}, 1), k = noise({2, 64}, 2), mlp = noise({5, 64}, 3);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor of_k = cast(k, dtype);
    save_safetensors(folder / "m.safetensors", {{"x.to_q", q}, {"x.to_k", of_k}, {"x.mlp", mlp}});
    for (const TensorSource& file : {safetensors_source(folder / "m.safetensors"),
                                     memory_source({{"x.to_q", q}, {"x.to_k", of_k}, {"x.mlp", mlp}})}) {
      const TensorSource source = assembled(with_prefix(file, "x."), fuse);
      Tensor expected = Tensor::empty({9, 64});
      expected.backend().copy(expected.window({2, 64}, {64, 1}), q);
      expected.backend().copy(expected.window({2, 64}, {64, 1}, int64_t{2} * 64), of_k);
      expected.backend().copy(expected.window({5, 64}, {64, 1}, int64_t{4} * 64), mlp);
      expect_stored(source, "linear1.weight", expected);
      EXPECT_EQ(source.names(), (std::vector<std::string>{"mlp", "to_k", "to_q"}));
      EXPECT_EQ(bool(source.find("linear1.weight", {})->bytes), dtype == DType::f32 && file.name.ends_with("tensors"));
    }
  }
  const auto from = [&](std::map<std::string, Tensor> tensors) {
    return assembled(with_prefix(memory_source(std::move(tensors)), "x."), fuse);
  };
  EXPECT_FALSE(from({{"to_q", q}}).has("linear1.weight"));
  expect_error(
      [&] {
        Weights(from({}), {}).load("linear1.weight", {9, 64});
      },
      {"weights in memory", "no tensor \"x.to_q\" (for \"linear1.weight\")"});
  expect_error(
      [&] {
        from({{"x.to_q", q}, {"x.mlp", mlp}}).has("linear1.weight");
      },
      {"weights in memory", "no tensor \"x.to_k\"", "a part of \"linear1.weight\""});
  expect_error(
      [&] {
        from({{"x.to_q", q}, {"x.to_k", k}, {"x.mlp", noise({5, 32})}}).has("linear1.weight");
      },
      {"\"x.to_q\"", "[2, 64]", "\"x.mlp\"", "[5, 32]"});
  expect_error(
      [&] {
        Weights(from({{"x.to_q", q}, {"x.to_k", noise({3, 64})}, {"x.mlp", mlp}}), {}).load("linear1.weight", {9, 64});
      },
      {"\"x.to_q\" [2, 64], \"x.to_k\" [3, 64], \"x.mlp\" [5, 64]", "\"linear1.weight\" [9, 64]"});
  const Tensor ids = Tensor::of(std::vector<int64_t>(128), {2, 64});
  expect_error(
      [&] {
        from({{"x.to_q", q}, {"x.to_k", ids}, {"x.mlp", mlp}}).has("linear1.weight");
      },
      {"\"x.to_k\"", "a float, found i64"});
}

// The same linear from a fused file with other names as from three tensors: converted, quantised and read later too.
TEST(TensorSource, WeightsDoNotTellAFusedFileFromASplitOne) {
  const TemporaryDirectory folder;
  const Tensor fused = noise({9, 64}), x = noise({2, 64}, 2);
  const std::map<std::string, Tensor> apart = {
      {"q.weight", slice(fused, 0, 0, 3)}, {"k.weight", slice(fused, 0, 3, 6)}, {"v.weight", slice(fused, 0, 6, 9)}};
  save_safetensors(folder / "fused.safetensors", {{"attn.qkv.weight", fused}});
  save_safetensors(folder / "apart.safetensors", apart);
  const TensorSource split = assembled(with_prefix(safetensors_source(folder / "fused.safetensors"), "attn."), thirds);
  for (const WeightsOptions& options :
       {WeightsOptions{}, WeightsOptions{.dtype = DType::bf16}, WeightsOptions{.dtype = DType::q8_0},
        WeightsOptions{.trainable = true}, WeightsOptions{.deferred = true}}) {
    const auto run = [&](const Weights& weights) {
      const Scope s(weights, "model");
      const Linear qkv = Linear::side_by_side(s, 64, {{"q", 3}, {"k", 3}, {"v", 3}}, false);
      weights.read_deferred();
      return qkv(x).to_vector();
    };
    EXPECT_EQ(run(Weights(split, options)), run(Weights::open(folder / "apart.safetensors", options)));
  }
  const Weights weights(split, {});
  expect_error(
      [&] {
        weights.load("k.weight", {2, 64});
      },
      {"fused.safetensors", "\"attn.qkv.weight\" (for \"k.weight\")", "[2, 64]", "[3, 64]"});
  expect_error([&] { weights.load("o.weight", {3, 64}); }, {"fused.safetensors", "no tensor \"attn.o.weight\""});
}

// Blocks without kernels are f32 for whoever asks for the stored type's values, and 16 bits in a model's memory.
TEST(TensorSource, BlocksWithoutKernelsAreDecoded) {
  const auto file =
      std::make_shared<const GgufFile>(GgufFile::open(test::source_dir() / "tests/golden/gguf/model.gguf"));
  const TensorSource source = gguf_source(file);
  EXPECT_EQ(source.find("unknown", {})->dtype_name, "Q2_K");
  expect_stored(source, "unknown", full({3, 256}, 0));
  EXPECT_EQ(Weights(source, {}).load("unknown", {3, 256}).dtype(), DType::f32);
  EXPECT_EQ(Weights(source, {.as_stored = true}).load("unknown", {3, 256}).dtype(), DType::bf16);
  EXPECT_EQ(Weights(source, {.as_stored = true}).load("q8_0", {3, 256}).dtype(), DType::q8_0);
  EXPECT_EQ(Weights(source, {.dtype = DType::f16}).load("q8_0", {3, 256}).dtype(), DType::f16);
}

// Where a tensor is made of what the file has, it is not read later but when it is asked for.
TEST(TensorSource, WhatIsNotReadAsItLiesIsThereAtOnce) {
  const Weights weights = Weights::of({{"a", noise({3, 4})}}, {.deferred = true});
  EXPECT_EQ(weights.load("a", {3, 4}).to_vector(), noise({3, 4}).to_vector());
}

}  // namespace
}  // namespace wick
