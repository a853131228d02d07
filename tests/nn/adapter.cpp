#include "wick/nn/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/files.h"
#include "wick/io/safetensors.h"
#include "wick/nn/layers.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

Tensor random(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return random_normal(shape, rng);
}

// "net.a" is lora_a in files; "a" is understood too.
std::vector<ModuleName> file_names(const std::string& path) {
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

// A file of rank 2 for all three modules, and the change of weights that it stands for with scale `alpha / 2`.
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
      EXPECT_EQ(adapter.parameters()[0].name, "a" + std::min(down, up));  // named as in the file, sorted
      EXPECT_EQ(adapter.parameters()[0].value.dtype(), DType::f32);
    }
}

TEST(Adapter, RefusesOtherAlgorithmsAndOtherTensors) {
  const TemporaryDirectory folder;
  const auto expect_refused = [&](const std::string& key, const std::string& reason) {
    save_safetensors(folder / "l.safetensors", {{key, random({2, 2}, 1)}});
    Adapter adapter(file_names);
    expect_error([&] { adapter.add_file(folder / "l.safetensors"); }, {"l.safetensors", "\"", reason});
  };
  expect_refused("a.hada_w1_a", "no B1 factor");
  expect_refused("a.dora_scale", "no down factor");
  expect_refused("a.lora_magnitude_vector", "no down factor");
  expect_refused("a.lora_mid.weight", "no down factor");
  expect_refused("a.reshape_weight", "a reshaping LoRA");
  expect_refused("unet.conv_in.weight", "expected a LoRA, found tensors of an unknown kind");
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
  again.match({{"net.c", {3, 2, 1, true}}});  // another order
  again.match({{"net.b", {3, 2, 3, true}}});
  again.match({{"net.a", {5, 4}}});
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

// Ranks, alphas and rates by pattern; convolutions of more than one pixel have their own; files have alphas that ranks
// divide.
TEST(Adapter, ModulesDifferInRankAlphaAndRate) {
  LoraConfig config{.rank = 4, .alpha = 2, .conv_rank = 3, .conv_alpha = 6, .up_rate = 16, .targets = {"*"}};
  config.rank.others = {{"net.*", 1}, {"c", 2}, {"b", 4}};
  config.rate.others = {{"*.a", 0.5}};
  const auto tensors_of = [](const LoraConfig& c) {
    Adapter adapter(c, file_names);
    make_net(&adapter);
    adapter.check_complete();
    return adapter.tensors();
  };
  const auto rank_and_alpha = [&](const LoraConfig& c, const std::string& module) {
    const auto tensors = tensors_of(c);
    return std::pair(tensors.at("lora_" + module + ".lora_down.weight").dim(0),
                     tensors.at("lora_" + module + ".alpha").item());
  };
  EXPECT_EQ(rank_and_alpha(config, "a"), std::pair(int64_t{1}, 2.0f));
  EXPECT_EQ(rank_and_alpha(config, "b"), std::pair(int64_t{4}, 6.0f)) << "a pattern goes before --conv-rank";
  EXPECT_EQ(rank_and_alpha(config, "c"), std::pair(int64_t{2}, 2.0f)) << "of one pixel";
  config.rank.others.clear();
  EXPECT_EQ(rank_and_alpha(config, "b"), std::pair(int64_t{3}, 6.0f));
  config.conv_alpha = 0;
  EXPECT_EQ(rank_and_alpha(config, "b"), std::pair(int64_t{3}, 3.0f));
  config.alpha = 0;
  config.alpha.others = {{"net.a", 5}};
  EXPECT_EQ(rank_and_alpha(config, "a"), std::pair(int64_t{4}, 5.0f));
  EXPECT_EQ(rank_and_alpha(config, "c"), std::pair(int64_t{4}, 4.0f)) << "the rank";
  config.rslora = true;
  EXPECT_EQ(rank_and_alpha(config, "a"), std::pair(int64_t{4}, 10.0f)) << "alpha / sqrt(rank)";

  Adapter adapter(config, file_names);
  make_net(&adapter);
  EXPECT_EQ(adapter.ranks(), std::pair(int64_t{3}, int64_t{4}));
  for (const Parameter& p : adapter.parameters())
    EXPECT_EQ(p.rate, (p.name.starts_with("lora_a") ? 0.5f : 1) * (p.name.ends_with("up.weight") ? 16 : 1)) << p.name;

  for (auto* others : {&config.alpha.others, &config.rate.others}) {
    others->push_back({"net.q", 1});
    expect_error([&] { tensors_of(config); }, {others == &config.alpha.others ? "--alpha" : "--lr", "net.q"});
    others->pop_back();
  }
  config.rank.others = {{"*.q", 1}};
  expect_error([&] { tensors_of(config); }, {"--rank", "*.q", "no module"});
}

// What a file begins is trained on.
TEST(Adapter, AFilesModulesAreTrainedOn) {
  const TemporaryDirectory folder;
  std::map<std::string, Tensor> lora = lora_tensors(10);
  lora["lora_a.alpha"] = full({}, 3);
  save_safetensors(folder / "l.safetensors", lora);
  Adapter adapter(LoraConfig{.up_rate = 4}, file_names), frozen(file_names, {{folder / "l.safetensors"}});
  adapter.add_file(folder / "l.safetensors", 1, /*trainable=*/true);
  expect_same_function(make_net(&adapter), make_net(&frozen));
  adapter.check_complete();
  EXPECT_EQ(adapter.parameters().size(), 6u);
  for (const Parameter& p : adapter.parameters()) EXPECT_EQ(p.rate, p.name.ends_with("up.weight") ? 4 : 1) << p.name;
  EXPECT_EQ(adapter.tensors().at("lora_a.alpha").item(), 3);
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
  EXPECT_EQ(matched({"*e*.*a*", "**b"}), "ab");
  EXPECT_EQ(matched({"net.c*", "*net.b", "net.*a*"}), "abc");
  EXPECT_EQ(matched({"*a*b"}), "");
  EXPECT_EQ(matched({std::string(100000, '*') + "q", "*n*e*t*.*q*", "-" + std::string(64, '*') + "q", "net.a"}), "a");
  EXPECT_EQ(matched({"a", "c"}), "ac");  // as PEFT's target_modules
  EXPECT_EQ(matched({"*", "-b"}), "ac");

  Adapter adapter({.rank = 1, .targets = {"*.a", "*.attn.*"}}, file_names);
  make_net(&adapter);
  expect_error([&] { adapter.check_complete(); }, {"*.attn.*", "matches no module", "it has net.a, net.b, net.c"});
  Adapter none({.rank = 1, .targets = {"*", "-*"}}, file_names);
  make_net(&none);
  expect_error([&] { none.check_complete(); }, {"no module to train"});
  Adapter unnameable({.rank = 1, .targets = {"*"}}, [](const std::string&) { return std::vector<ModuleName>{}; });
  make_net(&unnameable);
  EXPECT_EQ(unnameable.module_count(), 0u);
}

// A fused linear of seven parts of two outputs, the last four of which are one in other programs; and one whose halves
// they have the other way round.
struct FusedNet {
  Scope s;
  Linear f{s / "f", 5, 14};
  Linear g{s / "g", 3, 6};
};

std::vector<ModuleName> fused_names(const std::string& path) {
  if (path == "net.g") return {std::string("lora_g"), {"turned", {{1, 0}, 2}}};
  return {std::string("lora_f"),    {"layer.to_q", {{0}, 7}},         {"layer.to_k", {{1}, 7}},
          {"layer.to_v", {{2}, 7}}, {"layer.mlp", {{3, 4, 5, 6}, 7}}, {"layer.qkv", {{0, 1, 2}, 7}}};
}

std::map<std::string, Tensor> fused_weights() {
  return {{"f.weight", random({14, 5}, 1)},
          {"f.bias", random({14}, 2)},
          {"g.weight", random({6, 3}, 3)},
          {"g.bias", random({6}, 4)}};
}

FusedNet make_fused(Adapter* adapter) { return {Scope(Weights::of(fused_weights()), "net", adapter)}; }

// A module's tensors in a file, of a rank and an alpha that differ.
std::map<std::string, Tensor> pair_of(const std::string& name, int64_t out, int64_t in, int64_t rank, float alpha,
                                      uint64_t seed) {
  return {{name + ".lora_A.weight", random({rank, in}, seed)},
          {name + ".lora_B.weight", random({out, rank}, seed + 1)},
          {name + ".alpha", full({}, alpha)}};
}

// `rows` of w, from row `first` on, with the pair's product added.
Tensor with_pair(const Tensor& w, const std::map<std::string, Tensor>& pair, int64_t first, float strength = 1) {
  const auto find = [&](const char* end) {
    return std::ranges::find_if(pair, [&](const auto& entry) { return entry.first.ends_with(end); })->second;
  };
  const Tensor down = find("lora_A.weight"), up = find("lora_B.weight");
  const Tensor delta = matmul(up, down) * (strength * find(".alpha").item() / float(down.dim(0)));
  const int64_t behind = w.dim(0) - first - up.dim(0);
  return w + cat({zeros({first, w.dim(1)}), delta, zeros({behind, w.dim(1)})}, 0);
}

using Pair = std::map<std::string, Tensor>;

Pair joined(const std::vector<Pair>& pairs) {
  Pair all;
  for (const Pair& pair : pairs) all.insert(pair.begin(), pair.end());
  return all;
}

TEST(Adapter, PartsOfAFusedModuleAreAddedToTheirRows) {
  const TemporaryDirectory folder;
  const Pair k = pair_of("layer.to_k", 2, 5, 3, 2, 10), mlp = pair_of("layer.mlp", 8, 5, 1, 5, 20);
  save_safetensors(folder / "l.safetensors", joined({mlp, k}));
  Adapter adapter(fused_names);
  adapter.add_file(folder / "l.safetensors", 0.5f);
  const FusedNet net = make_fused(&adapter);
  adapter.check_complete();
  EXPECT_EQ(adapter.module_count(), 1u);

  Tensor w = fused_weights().at("f.weight");
  const Tensor sum = with_pair(with_pair(w, k, 2, 0.5f), mlp, 6, 0.5f), x = random({2, 3, 5}, 30);
  expect_near(net.f(x), linear(x, sum, fused_weights().at("f.bias")));
  const AdapterOfLayer layer = adapter.match({{"net.f", {5, 14}}});
  expect_near(layer->merged(w), sum);
}

TEST(Adapter, FusedAndSplitFilesAddUpInAnyOrder) {
  const TemporaryDirectory folder;
  const Pair whole = pair_of("lora_f", 14, 5, 2, 3, 10), q = pair_of("layer.to_q", 2, 5, 1, 4, 20),
             mlp = pair_of("layer.mlp", 8, 5, 3, 1, 30), qkv = pair_of("layer.qkv", 6, 5, 2, 1, 40);
  const Tensor x = random({4, 5}, 50);
  const auto expect_sum = [&](const std::vector<Pair>& files) {
    Tensor w = fused_weights().at("f.weight");
    Adapter adapter(fused_names);
    float strength = 1;
    for (const Pair& file : files) {
      const std::string path = (folder / (std::to_string(strength) + ".safetensors")).string();
      save_safetensors(path, file);
      adapter.add_file(path, strength);
      w = with_pair(w, file, file.contains("layer.mlp.alpha") ? 6 : 0, strength);
      strength *= -0.5f;
    }
    const FusedNet net = make_fused(&adapter);
    adapter.check_complete();
    expect_near(net.f(x), linear(x, w, fused_weights().at("f.bias")));
  };
  expect_sum({whole, q});
  expect_sum({q, whole});
  expect_sum({q, mlp, whole});
  expect_sum({mlp, qkv, q, mlp});
  expect_sum({q, qkv, whole, mlp, q});
}

TEST(Adapter, AFileIsFusedOrSplitButNotBoth) {
  const TemporaryDirectory folder;
  const auto expect_twice = [&](const Pair& a, const Pair& b, std::initializer_list<std::string_view> keys) {
    save_safetensors(folder / "l.safetensors", joined({a, b}));
    Adapter adapter(fused_names);
    adapter.add_file(folder / "l.safetensors");
    expect_error([&] { make_fused(&adapter); }, keys);
  };
  const Pair whole = pair_of("lora_f", 14, 5, 2, 3, 10), q = pair_of("layer.to_q", 2, 5, 1, 4, 20),
             qkv = pair_of("layer.qkv", 6, 5, 2, 1, 40);
  expect_twice(whole, q, {"l.safetensors", "lora_f.lora_A.weight", "layer.to_q.lora_A.weight", "same rows"});
  expect_twice(qkv, q, {"l.safetensors", "layer.qkv.lora_A.weight", "layer.to_q.lora_A.weight"});
  expect_twice(q, pair_of("layer.mlp", 2, 5, 1, 3, 20), {"layer.mlp.lora_B.weight", "[8, rank]", "[2, 1]"});
}

TEST(Adapter, PartsHaveTheGradientsOfTheirRowsInTheFilesOrder) {
  const TemporaryDirectory folder;
  const Pair q = pair_of("layer.to_q", 2, 5, 2, 3, 10), mlp = pair_of("layer.mlp", 8, 5, 1, 5, 20);
  Pair turned = pair_of("turned", 6, 3, 2, 5, 30), straight;
  for (const auto& [key, value] : turned)
    straight["lora_g" + key.substr(6)] =
        key.ends_with("lora_B.weight") ? cat({slice(value, 0, 3, 6), slice(value, 0, 0, 3)}, 0) : value;
  save_safetensors(folder / "1.safetensors", joined({q, turned}));
  save_safetensors(folder / "2.safetensors", mlp);
  save_safetensors(folder / "3.safetensors", straight);
  const Tensor x = random({4, 5}, 50), z = random({4, 3}, 51), dy = random({4, 14}, 52), dz = random({4, 6}, 53);
  const auto gradients = [&](const std::vector<LoraFile>& files) {
    Adapter adapter(fused_names, files, /*trainable=*/true);
    const FusedNet net = make_fused(&adapter);
    adapter.check_complete();
    Tape tape;
    return adapter.gradients(tape.backward(sum(net.f(x) * dy) + sum(net.g(z) * dz)));
  };
  const auto all = gradients({{folder / "1.safetensors"}, {folder / "2.safetensors"}});
  EXPECT_EQ(all.size(), 6u);
  const auto expect_pair = [&](const Pair& pair, const std::string& name, int64_t first) {
    const Tensor& down = pair.at(name + ".lora_A.weight");
    const Tensor& up = pair.at(name + ".lora_B.weight");
    const float scale = pair.at(name + ".alpha").item() / float(down.dim(0));
    const Tensor rows = slice(dy, 1, first, first + up.dim(0));
    expect_near(all.at(name + ".lora_B.weight"),
                matmul(transpose(rows, 0, 1), matmul(x, transpose(down, 0, 1))) * scale);
    expect_near(all.at(name + ".lora_A.weight"), matmul(transpose(matmul(rows, up), 0, 1), x) * scale);
  };
  expect_pair(q, "layer.to_q", 0);
  expect_pair(mlp, "layer.mlp", 6);
  const auto as_stored = gradients({{folder / "3.safetensors"}});
  const Tensor& up = as_stored.at("lora_g.lora_B.weight");
  expect_near(all.at("turned.lora_B.weight"), cat({slice(up, 0, 3, 6), slice(up, 0, 0, 3)}, 0), 0);
  expect_near(all.at("turned.lora_A.weight"), as_stored.at("lora_g.lora_A.weight"), 0);
}

TEST(Adapter, TellsTargetsInOtherProgramsNamesTheirOwn) {
  for (const char* pattern : {"layer.*", "layer.to_q", "to_q", "*.mlp", "lay"}) {
    Adapter adapter({.rank = 1, .targets = {pattern}}, fused_names);
    make_fused(&adapter);
    expect_error([&] { adapter.check_complete(); }, {"--targets", pattern, "here it is net.f"});
  }
}

TEST(Adapter, SaysWhichModelAFileIsFor) {
  const TemporaryDirectory folder;
  const auto expect_model = [&](const std::string& name, std::string_view model) {
    save_safetensors(folder / "l.safetensors", pair_of(name, 2, 2, 1, 2, 1));
    Adapter adapter(fused_names);
    adapter.add_file(folder / "l.safetensors");
    make_fused(&adapter);
    expect_error([&] { adapter.check_complete(); }, {"l.safetensors", name, "looks like a LoRA for", model});
  };
  expect_model("lora_unet_input_blocks_4_1_proj_in", "SDXL");
  expect_model("transformer.single_transformer_blocks.0.attn.to_q", "FLUX");
  expect_model("lora_unet_joint_blocks_0_x_block_attn_qkv", "SD3");
  expect_model("lora_unet_single_blocks_0_linear1", "FLUX");
}

TEST(Adapter, RefusesFactorsThatAreNotFinite) {
  const TemporaryDirectory folder;
  for (const char* key : {"lora_a.lora_down.weight", "lora_b.lora_up.weight"})
    for (const float value : {NAN, INFINITY, -INFINITY}) {
      std::map<std::string, Tensor> lora = lora_tensors(10);
      std::vector<float> values = lora.at(key).to_vector();
      values.back() = value;
      lora[key] = Tensor::of(values, lora.at(key).shape());
      save_safetensors(folder / "l.safetensors", lora);
      Adapter adapter(file_names);
      adapter.add_file(folder / "l.safetensors");
      expect_error([&] { make_net(&adapter); }, {"l.safetensors", key, "damaged"});
    }
  std::map<std::string, Tensor> lora = lora_tensors(10);
  lora["lora_a.alpha"] = full({}, 3e38f);
  save_safetensors(folder / "l.safetensors", lora);
  Adapter adapter(file_names);
  adapter.add_file(folder / "l.safetensors", 10);
  expect_error([&] { make_net(&adapter); }, {"lora_a", "alpha", "too large"});
}

TEST(Adapter, RefusesBadNumbers) {
  expect_error([] { Adapter({.rank = 0}, file_names); }, {"rank", "0"});
  expect_error([] { Adapter({.rank = 4, .alpha = -1.0f}, file_names); }, {"alpha", "-1"});
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
  const SafetensorsFile half = SafetensorsFile::open(folder / "half.safetensors");
  EXPECT_EQ(half.tensors().at("lora_a.lora_up.weight").dtype_name, "F16");
  EXPECT_EQ(half.tensors().at("lora_a.alpha").dtype_name, "F32");  // f16 may be too small for it
}

TEST(Adapter, GradientsComeUnderTheNamesOfTheFile) {
  Adapter adapter({.rank = 2, .targets = {"*"}}, file_names);
  const Net net = make_net(&adapter);
  Tape tape;
  const Tensor image = random({1, 4, 4, 3}, 1);
  const Tensor loss = sum(square(net.b(image))) + sum(square(net.c(image)));
  const auto gradients = adapter.gradients(tape.backward(loss));
  EXPECT_EQ(gradients.size(), 6u);
  for (const float d : gradients.at("lora_a.lora_up.weight").to_vector()) EXPECT_EQ(d, 0);  // nothing flowed to a
  EXPECT_EQ(gradients.at("lora_b.lora_down.weight").shape(), (Shape{2, 3, 3, 3}));
  EXPECT_EQ(gradients.at("lora_b.lora_up.weight").shape(), (Shape{2, 2, 1, 1}));
}

// Three linears of one input, of which "b" may have no LoRA, and the same ones apart.
struct Together {
  Scope s;
  Linear all = Linear::side_by_side(s, 6, {{"a", 4}, {"b", 3}, {"c", 5}});
};
struct Apart {
  Scope s;
  Linear a{s / "a", 6, 4}, b{s / "b", 6, 3}, c{s / "c", 6, 5};
  Tensor operator()(const Tensor& x) const { return cat({a(x), b(x), c(x)}, -1); }
};

std::map<std::string, Tensor> three_weights() {
  std::map<std::string, Tensor> weights;
  uint64_t seed = 60;
  for (const auto& [name, width] : {std::pair{"a", 4}, {"b", 3}, {"c", 5}}) {
    weights[std::string(name) + ".weight"] = random({width, 6}, ++seed);
    weights[std::string(name) + ".bias"] = random({width}, ++seed);
  }
  return weights;
}

void expect_same_training(const std::vector<std::string>& targets) {
  const LoraConfig config{.rank = 3, .alpha = 2.0f, .targets = targets, .seed = 5};
  Adapter adapters[2] = {{config, file_names}, {config, file_names}};
  const Together together{Scope(Weights::of(three_weights()), "net", &adapters[0])};
  const Apart apart{Scope(Weights::of(three_weights()), "net", &adapters[1])};
  std::map<std::string, Tensor> fresh = adapters[0].tensors(), same = adapters[1].tensors();
  ASSERT_EQ(fresh.size(), same.size());
  for (const auto& [name, tensor] : fresh) EXPECT_EQ(tensor.to_vector(), same.at(name).to_vector()) << name;

  for (Adapter& adapter : adapters) {
    uint64_t seed = 80;
    for (const Parameter& p : adapter.parameters()) p.value.backend().copy(p.value, random(p.value.shape(), ++seed));
  }
  const Tensor x = random({2, 3, 6}, 70), dy = random({2, 3, 12}, 71);
  std::vector<std::map<std::string, Tensor>> gradients;
  std::vector<Tensor> dx;
  const auto run = [&](const auto& net, const Adapter& adapter) {
    Tape tape;
    const Tensor input = x.trainable(), y = net(input);
    expect_near(y, apart(x));
    Grads grads;
    tape.backward(y, dy, grads);
    gradients.push_back(adapter.gradients(grads));
    dx.push_back(grads[input]);
  };
  run(together.all, adapters[0]);
  run(apart, adapters[1]);
  expect_near(dx[0], dx[1]);
  ASSERT_EQ(gradients[0].size(), adapters[1].parameters().size());
  for (const auto& [name, gradient] : gradients[0]) expect_near(gradient, gradients[1].at(name));
}

TEST(Linear, SideBySideIsTheSameAsApart) {
  expect_same_training({"*"});
  expect_same_training({"*", "-*.b"});
  expect_same_training({"*.b"});
  const Together together{Scope(Weights::of(three_weights()), "net")};
  const Apart apart{Scope(Weights::of(three_weights()), "net")};
  expect_near(together.all(random({4, 6}, 1)), apart(random({4, 6}, 1)));
}

TEST(Linear, SideBySideTrainsEachWeight) {
  const Weights weights = Weights::of(three_weights(), {.trainable = true});
  const Together together{Scope(weights, "net")};
  ASSERT_EQ(weights.parameters().size(), 6u);
  const Tensor x = random({4, 6}, 1);
  Tape tape;
  const Grads grads = tape.backward(sum(together.all(x)));
  for (const Parameter& p : weights.parameters()) {
    ASSERT_TRUE(grads[p.value]) << p.name;
    EXPECT_EQ(grads[p.value].shape(), p.value.shape());
    if (p.value.rank() == 1) {
      EXPECT_EQ(grads[p.value].to_vector(), std::vector<float>(size_t(p.value.dim(0)), 4));
    }
    EXPECT_EQ(p.value.to_vector(), three_weights().at(p.name).to_vector());
  }
}

TEST(Adapter, FilesOfSeveralRanksServeOneGroup) {
  const TemporaryDirectory folder;
  save_safetensors(folder / "l.safetensors", {{"a.lora_A.weight", random({2, 6}, 1)},
                                              {"a.lora_B.weight", random({4, 2}, 2)},
                                              {"c.lora_A.weight", random({5, 6}, 3)},
                                              {"c.lora_B.weight", random({5, 5}, 4)},
                                              {"c.alpha", full({}, 2)}});
  Adapter one(file_names), other(file_names);
  for (Adapter* adapter : {&one, &other}) adapter->add_file(folder / "l.safetensors", 0.5f);
  const Together together{Scope(Weights::of(three_weights()), "net", &one)};
  const Apart apart{Scope(Weights::of(three_weights()), "net", &other)};
  expect_near(together.all(random({4, 6}, 7)), apart(random({4, 6}, 7)));
}

// Where a device computes in 16 bits, it gets copies: rows of 16 bytes, ranks padded with zeros to multiples of them.
TEST(Adapter, CopiesAreAligned) {
  const LoraConfig config{.rank = 3, .targets = {"*", "-*.b"}, .seed = 5};
  Adapter adapter(config, file_names);
  const Residence half{.activations = DType::bf16};
  const auto lora = adapter.match({{"net.a", {8, 4}}, {"net.b", {8, 3}}, {"net.c", {8, 5}}}, half);
  ASSERT_TRUE(lora);

  const std::vector<Parameter> parameters = adapter.parameters();  // a's down and up, c's down and up
  ASSERT_EQ(parameters.size(), 4u);
  const auto between = [&](size_t first, size_t second) {
    return parameters[second].copy.data<uint16_t>() - parameters[first].copy.data<uint16_t>();
  };
  EXPECT_EQ(between(0, 2), 8 * 8);  // a's 3 rows of 8 columns, padded to 8 rows
  EXPECT_EQ(between(1, 3), 7 * 8);  // the outputs of a and b, of 8 columns each
  for (const Parameter& p : parameters) {
    EXPECT_EQ(p.copy.dtype(), DType::bf16);
    EXPECT_EQ(p.copy.to_vector(), cast(p.value, DType::bf16).to_vector()) << p.name;
  }
  EXPECT_EQ(parameters[3].copy.stride()[0], 8);
  const std::vector<float> down = parameters[0].copy.window({16, 8}, {8, 1}).to_vector();
  for (size_t i = 0; i < down.size(); ++i) EXPECT_TRUE(i / 8 % 8 < 3 || down[i] == 0) << i;
}

TEST(Adapter, DropoutHasAMaskForEachDraw) {
  Adapter adapter({.rank = 2, .targets = {"*.a"}, .seed = 5, .dropout = 0.5f}, file_names);
  const Net net = make_net(&adapter);
  for (const Parameter& p : adapter.parameters()) p.value.backend().copy(p.value, random(p.value.shape(), 3));
  const Tensor x = random({4, 5}, 1);
  const auto at = [&](int64_t draw) {
    adapter.set_draws({draw});
    return net.a(x).to_vector();
  };
  const std::vector<float> first = at(0), second = at(1);
  EXPECT_NE(first, second);
  EXPECT_EQ(at(0), first);
  expect_error([] { Adapter({.rank = 4, .dropout = 1.0f}, file_names); }, {"dropout", "1"});
}

}  // namespace
}  // namespace wick
