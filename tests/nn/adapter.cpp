#include "wick/nn/adapter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/files.h"
#include "wick/io/safetensors.h"
#include "wick/nn/layers.h"

namespace wick {
namespace {

Tensor random(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return random_normal(shape, rng);
}

// "net.a" is lora_a in files; "a" is understood too.
std::vector<std::string> file_names(const std::string& path) {
  if (!path.starts_with("net.")) return {};
  return {"lora_" + path.substr(4), path.substr(4)};
}

void expect_near(const Tensor& a, const Tensor& b, float tolerance = 1e-5f) {
  ASSERT_EQ(a.shape(), b.shape());
  const std::vector<float> x = a.to_vector(), y = b.to_vector();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance * (1 + std::abs(y[i]))) << i;
}

// A linear, a 3x3 and a 1x1 convolution.
struct Net {
  Scope s;
  Linear a{s / "a", 5, 4};
  Conv b{s / "b", 3, 2, 3, {.stride = 2, .top = 1, .left = 1}};
  Linear c = Linear::pointwise(s / "c", 3, 2);
};

std::map<std::string, Tensor> base_weights() {
  return {{"a.weight", random({4, 5}, 1)},       {"a.bias", random({4}, 2)},
          {"b.weight", random({2, 3, 3, 3}, 3)}, {"b.bias", random({2}, 4)},
          {"c.weight", random({2, 3, 1, 1}, 5)}, {"c.bias", random({2}, 6)}};
}

Net make_net(Adapter* adapter) { return Net{Scope(Weights::of(base_weights()), "net", adapter)}; }

// A file of rank 2 for all three modules, and the weights that it amounts to with scale `alpha / 2`.
std::map<std::string, Tensor> lora_tensors(uint64_t seed) {
  return {{"lora_a.lora_down.weight", random({2, 5}, seed)},
          {"lora_a.lora_up.weight", random({4, 2}, seed + 1)},
          {"lora_b.lora_down.weight", random({2, 3, 3, 3}, seed + 2)},
          {"lora_b.lora_up.weight", random({2, 2, 1, 1}, seed + 3)},
          {"lora_c.lora_down.weight", random({2, 3, 1, 1}, seed + 4)},
          {"lora_c.lora_up.weight", random({2, 2, 1, 1}, seed + 5)}};
}

void merge(std::map<std::string, Tensor>& weights, const std::map<std::string, Tensor>& lora, float scale) {
  for (const std::string name : {"a", "b", "c"}) {
    Tensor& w = weights.at(name + ".weight");
    const Tensor& down = lora.at("lora_" + name + ".lora_down.weight");
    const Tensor& up = lora.at("lora_" + name + ".lora_up.weight");
    const Tensor delta = matmul(reshape(up, {up.dim(0), 2}), reshape(down, {2, -1}));
    w = w + scale * reshape(delta, w.shape());
  }
}

void expect_same_function(const Net& x, const Net& y) {
  const Tensor tokens = random({2, 3, 5}, 50), image = random({2, 5, 6, 3}, 51);
  expect_near(x.a(tokens), y.a(tokens));
  expect_near(x.b(image), y.b(image));
  expect_near(x.c(image), y.c(image));
}

TEST(Adapter, AFileActsAsTheMergedWeights) {
  const TemporaryDirectory folder;
  std::map<std::string, Tensor> lora = lora_tensors(10);
  lora["lora_a.alpha"] = full({}, 3);  // alpha is not the rank
  lora["lora_b.alpha"] = full({1}, 3);
  lora["lora_c.alpha"] = full({}, 3);
  save_safetensors(folder / "l.safetensors", lora);

  Adapter adapter(file_names);
  adapter.add_file(folder / "l.safetensors", 0.5f);
  const Net net = make_net(&adapter);
  adapter.check_complete();
  EXPECT_EQ(adapter.module_count(), 3u);
  EXPECT_TRUE(adapter.parameters().empty());  // not trainable
  EXPECT_TRUE(adapter.covers("net."));
  EXPECT_FALSE(adapter.covers("other."));

  std::map<std::string, Tensor> merged = base_weights();
  merge(merged, lora, 0.5f * 3 / 2);
  expect_same_function(net, Net{Scope(Weights::of(merged), "net")});
}

TEST(Adapter, SeveralFilesAddUp) {
  const TemporaryDirectory folder;
  const std::map<std::string, Tensor> first = lora_tensors(10), second = lora_tensors(20);
  save_safetensors(folder / "1.safetensors", first);  // without alpha: scale 1
  save_safetensors(folder / "2.safetensors", second);
  Adapter adapter(file_names);
  adapter.add_file(folder / "1.safetensors", 1);
  adapter.add_file(folder / "2.safetensors", -0.25f);
  const Net net = make_net(&adapter);

  std::map<std::string, Tensor> merged = base_weights();
  merge(merged, first, 1);
  merge(merged, second, -0.25f);
  expect_same_function(net, Net{Scope(Weights::of(merged), "net")});
}

TEST(Adapter, ATrainableFileIsTrainedAlone) {
  const TemporaryDirectory folder;
  save_safetensors(folder / "1.safetensors", lora_tensors(10));
  save_safetensors(folder / "2.safetensors", lora_tensors(20));
  Adapter adapter(file_names);
  adapter.add_file(folder / "1.safetensors");
  adapter.add_file(folder / "2.safetensors", 1, /*trainable=*/true);
  expect_error([&] { make_net(&adapter); }, {"2.safetensors", "1.safetensors", "lora_a"});
}

TEST(Adapter, ReadsTheSpellingsOfOtherWriters) {
  const std::pair<std::string, std::string> spellings[] = {
      {".lora_down.weight", ".lora_up.weight"},
      {".lora_A.weight", ".lora_B.weight"},
      {".lora_A.default.weight", ".lora_B.default.weight"},
      {".lora_A", ".lora_B"},
      {"_lora.down.weight", "_lora.up.weight"},
      {".lora.down.weight", ".lora.up.weight"},
      {".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"}};
  for (const auto& [down, up] : spellings)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const TemporaryDirectory folder;
      save_safetensors(folder / "l.safetensors",
                       {{"a" + down, cast(random({2, 5}, 1), dtype)}, {"a" + up, cast(random({4, 2}, 2), dtype)}});
      Adapter adapter(file_names);
      adapter.add_file(folder / "l.safetensors", 1, /*trainable=*/true);
      make_net(&adapter);
      adapter.check_complete();
      ASSERT_EQ(adapter.parameters().size(), 2u);
      EXPECT_EQ(adapter.parameters()[0].name, "a" + std::min(down, up));  // as in the file, sorted
      EXPECT_EQ(adapter.parameters()[0].value.dtype(), DType::f32);
    }
}

TEST(Adapter, RefusesOtherAlgorithmsAndOtherTensors) {
  const TemporaryDirectory folder;
  const auto expect_refused = [&](const std::string& key, const std::string& reason) {
    save_safetensors(folder / "l.safetensors", {{key, random({2, 2}, 1)}});
    Adapter adapter(file_names);
    expect_error([&] { adapter.add_file(folder / "l.safetensors"); }, {"l.safetensors", key, reason});
  };
  expect_refused("a.hada_w1_a", "LoHa");
  expect_refused("a.lokr_w1", "LoKr");
  expect_refused("a.dora_scale", "DoRA");
  expect_refused("a.lora_magnitude_vector", "DoRA");
  expect_refused("a.lora_mid.weight", "Tucker");
  expect_refused("a.diff", "full difference");
  expect_refused("unet.conv_in.weight", "no tensor of a LoRA");
}

TEST(Adapter, SaysWhatIsWrongWithAFile) {
  const TemporaryDirectory folder;
  const auto expect_wrong = [&](std::map<std::string, Tensor> lora, std::initializer_list<std::string_view> parts) {
    save_safetensors(folder / "l.safetensors", lora);
    Adapter adapter(file_names);
    expect_error(
        [&] {
          adapter.add_file(folder / "l.safetensors");
          make_net(&adapter);
          adapter.check_complete();
        },
        parts);
  };
  const Tensor down = random({2, 5}, 1), up = random({4, 2}, 2);
  expect_wrong({}, {"l.safetensors", "no tensors"});
  expect_wrong({{"a.lora_A.weight", down}}, {"l.safetensors", "\"a\"", "no up factor"});
  expect_wrong({{"a.lora_A.weight", down}, {"a.lora_down.weight", down}, {"a.lora_up.weight", up}},
               {"a.lora_A.weight", "a.lora_down.weight"});
  expect_wrong({{"a.lora_A.weight", random({2, 6}, 1)}, {"a.lora_B.weight", up}},
               {"l.safetensors", "a.lora_A.weight", "[2, 5]", "[2, 6]"});
  expect_wrong({{"a.lora_A.weight", down}, {"a.lora_B.weight", random({3, 2}, 1)}},
               {"a.lora_B.weight", "[4, rank]", "[3, 2]"});
  expect_wrong({{"a.lora_A.weight", down}, {"a.lora_B.weight", up}, {"a.alpha", full({}, NAN)}},
               {"a.alpha", "one finite number"});
  expect_wrong({{"a.lora_A.weight", down}, {"a.lora_B.weight", up}, {"a.alpha", full({2}, 1)}},
               {"a.alpha", "one finite number"});
  expect_wrong({{"a.lora_A.weight", down}, {"a.lora_B.weight", up}, {"d.lora_A.weight", down}, {"d.lora_B.weight", up}},
               {"l.safetensors", "1 of its 2 modules", "\"d\""});

  Adapter adapter(file_names);
  expect_error([&] { adapter.add_file(folder / "missing.safetensors"); }, {"missing.safetensors"});
  expect_error([&] { adapter.add_file(folder / "l.safetensors", NAN); }, {"l.safetensors", "strength"});
}

TEST(Adapter, LeavesOtherComponentsAlone) {
  const TemporaryDirectory folder;
  const Tensor down = random({2, 5}, 1), up = random({4, 2}, 2);
  save_safetensors(folder / "l.safetensors", {{"lora_a.lora_down.weight", down},
                                              {"lora_a.lora_up.weight", up},
                                              {"te_a.lora_down.weight", down},
                                              {"te_a.lora_up.weight", up}});
  Adapter adapter(file_names);
  adapter.add_file(folder / "l.safetensors");
  expect_error([&] { adapter.check_complete({"te_", "lora_"}); }, {"none of its 2 modules"});
  make_net(&adapter);
  adapter.check_complete({"te_"});
  expect_error([&] { adapter.check_complete(); }, {"te_a"});
}

TEST(Adapter, FreshFactorsDependOnSeedAndNameAlone) {
  const LoraConfig config{.rank = 3, .alpha = 1.5f, .targets = {"net.*"}, .seed = 42};
  Adapter adapter(config, file_names), again(config, file_names),
      other({.rank = 3, .targets = {"*"}, .seed = 43}, file_names);
  make_net(&adapter);
  again.match("net.c", {3, 2, 1, true});  // another order
  again.match("net.b", {3, 2, 3, true});
  again.match("net.a", {5, 4});
  make_net(&other);

  const auto tensors = adapter.tensors(), same = again.tensors(), different = other.tensors();
  ASSERT_EQ(tensors.size(), 9u);
  for (const auto& [name, tensor] : tensors) EXPECT_EQ(tensor.to_vector(), same.at(name).to_vector()) << name;
  EXPECT_NE(tensors.at("lora_a.lora_down.weight").to_vector(), different.at("lora_a.lora_down.weight").to_vector());
  EXPECT_EQ(tensors.at("lora_a.alpha").item(), 1.5f);
  EXPECT_EQ(tensors.at("lora_a.lora_down.weight").shape(), (Shape{3, 5}));
  EXPECT_EQ(tensors.at("lora_b.lora_down.weight").shape(), (Shape{3, 3, 3, 3}));
  EXPECT_EQ(tensors.at("lora_b.lora_up.weight").shape(), (Shape{2, 3, 1, 1}));
  EXPECT_EQ(tensors.at("lora_c.lora_down.weight").shape(), (Shape{3, 3, 1, 1}));

  const float bound = 1 / std::sqrt(27.0f);  // 3 x 3 x 3 inputs
  float largest = 0;
  for (const float v : tensors.at("lora_b.lora_down.weight").to_vector()) largest = std::max(largest, std::abs(v));
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.9f * bound);
  for (const float v : tensors.at("lora_b.lora_up.weight").to_vector()) EXPECT_EQ(v, 0);
}

TEST(Adapter, TargetsAreGlobsAndLaterOnesWin) {
  const auto matched = [](std::vector<std::string> targets) {
    Adapter adapter({.rank = 1, .targets = std::move(targets)}, file_names);
    make_net(&adapter);
    std::string names;
    for (const auto& [name, tensor] : adapter.tensors())
      if (name.ends_with(".alpha")) names += name[5];
    return names;
  };
  EXPECT_EQ(matched({"*"}), "abc");
  EXPECT_EQ(matched({"net.a"}), "a");
  EXPECT_EQ(matched({"*.b", "*c"}), "bc");
  EXPECT_EQ(matched({"*", "-net.*", "net.b"}), "b");
  EXPECT_EQ(matched({"n*t.*"}), "abc");
  EXPECT_EQ(matched({"net"}), "");

  Adapter adapter({.rank = 1, .targets = {"*.a", "*.attn.*"}}, file_names);
  make_net(&adapter);
  expect_error([&] { adapter.check_complete(); }, {"*.attn.*", "matches no module"});
  Adapter none({.rank = 1, .targets = {"*", "-*"}}, file_names);
  make_net(&none);
  expect_error([&] { none.check_complete(); }, {"no module to train"});
  Adapter unnameable({.rank = 1, .targets = {"*"}}, [](const std::string&) { return std::vector<std::string>{}; });
  make_net(&unnameable);
  EXPECT_EQ(unnameable.module_count(), 0u);
}

TEST(Adapter, RefusesBadNumbers) {
  expect_error([] { Adapter({.rank = 0}, file_names); }, {"rank", "0"});
  expect_error([] { Adapter({.rank = 4, .alpha = 0.0f}, file_names); }, {"alpha", "0"});
  expect_error([] { Adapter({.rank = 4, .alpha = NAN}, file_names); }, {"alpha", "nan"});
}

TEST(Adapter, WhatIsSavedIsReadBack) {
  const TemporaryDirectory folder;
  Adapter trained({.rank = 2, .alpha = 5.0f, .targets = {"*"}, .seed = 7}, file_names);
  const Net net = make_net(&trained);
  uint64_t seed = 100;
  for (const Parameter& p : trained.parameters()) p.value.backend().copy(p.value, random(p.value.shape(), ++seed));
  trained.save(folder / "l.safetensors", {{"ss_network_dim", "2"}}, DType::f32);
  EXPECT_EQ(SafetensorsFile::open(folder / "l.safetensors").metadata().at("ss_network_dim"), "2");

  Adapter loaded(file_names);
  loaded.add_file(folder / "l.safetensors");
  expect_same_function(make_net(&loaded), net);

  trained.save(folder / "half.safetensors", {});
  EXPECT_EQ(SafetensorsFile::open(folder / "half.safetensors").tensors().at("lora_a.alpha").dtype_name, "F16");
}

TEST(Adapter, GradientsComeUnderTheNamesOfTheFile) {
  Adapter adapter({.rank = 2, .targets = {"*"}}, file_names);
  const Net net = make_net(&adapter);
  Tape tape;
  const Tensor image = random({1, 4, 4, 3}, 1);
  const Tensor loss = sum(square(net.b(image))) + sum(square(net.c(image)));
  const auto gradients = adapter.gradients(tape.backward(loss));
  EXPECT_EQ(gradients.size(), 4u);  // nothing flowed to a
  EXPECT_EQ(gradients.at("lora_b.lora_down.weight").shape(), (Shape{2, 3, 3, 3}));
  EXPECT_EQ(gradients.at("lora_b.lora_up.weight").shape(), (Shape{2, 2, 1, 1}));
}

}  // namespace
}  // namespace wick
