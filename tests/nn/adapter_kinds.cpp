// Kinds of adapters that are trained, and several on one layer. What LyCORIS and peft make of them is in
// tests/golden/adapters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "io/files.h"
#include "wick/io/safetensors.h"
#include "wick/nn/adapter.h"
#include "wick/nn/dora.h"
#include "wick/nn/layers.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

using Tensors = std::map<std::string, Tensor>;

Tensor random(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return random_normal(shape, rng);
}

double relative_error(const Tensor& found, const Tensor& want) {
  EXPECT_EQ(found.shape(), want.shape());
  const std::vector<float> x = found.to_vector(), y = want.to_vector();
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    error += std::pow(double(x[i]) - double(y[i]), 2);
    size += std::pow(double(y[i]), 2);
  }
  return std::sqrt(error / std::max(size, 1e-30));
}

std::vector<ModuleName> names(const std::string& path) {
  const std::string module = path.substr(4);
  if (module != "f") return {"lora_" + module};
  return {std::string("lora_f"), {"part_q", {{0}, 3}}, {"part_k", {{1}, 3}}, {"part_v", {{2}, 3}}};
}

// Odd sides, so that Kronecker's factors differ; two linears side by side, one that files split, and convolutions.
struct Net {
  Scope s;
  Linear a{s / "a", 15, 21};
  Linear side = Linear::side_by_side(s, 15, {{"q", 6}, {"k", 9}});
  Linear f{s / "f", 10, 12};
  Conv b{s / "b", 6, 10, 3, {.stride = 2, .top = 1, .left = 1}};
  Linear c = Linear::pointwise(s / "c", 6, 10);

  std::vector<Tensor> operator()(const Tensor& tokens, const Tensor& fused, const Tensor& image) const {
    return {a(tokens), side(tokens), f(fused), b(image), c(image)};
  }
  std::vector<Tensor> outputs() const {
    return (*this)(random({2, 3, 15}, 50), random({4, 10}, 51), random({2, 5, 6, 6}, 52));
  }
};

const Tensors& base() {
  static const Tensors all = [] {
    Tensors t;
    uint64_t seed = 1;
    const std::pair<const char*, Shape> shapes[] = {{"a", {21, 15}}, {"q", {6, 15}},       {"k", {9, 15}},
                                                    {"f", {12, 10}}, {"b", {10, 6, 3, 3}}, {"c", {10, 6, 1, 1}}};
    for (const auto& [name, shape] : shapes) {
      t[std::string(name) + ".weight"] = random(shape, seed++);
      t[std::string(name) + ".bias"] = random({shape[0]}, seed++);
    }
    return t;
  }();
  return all;
}

Net make_net(Adapter* adapter, const Tensors& weights = base(), const WeightsOptions& options = {}) {
  return Net{Scope(Weights::of(weights, options), "net", adapter)};
}

struct Kind {
  const char* name;
  LoraConfig config;
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

LoraConfig config_of(const AdapterAlgorithm& algorithm, int64_t rank, bool dora = false, bool of_inputs = false,
                     const KronOptions& kron = {}) {
  return {.rank = rank,
          .alpha = 5,
          .targets = {"net.*"},
          .seed = 3,
          .algorithm = &algorithm,
          .kron = kron,
          .dora = dora,
          .magnitudes_of_inputs = of_inputs};
}

const Kind kKinds[] = {{"lora", config_of(lora_algorithm(), 2)},
                       {"dora_of_outputs", config_of(lora_algorithm(), 2, true)},
                       {"dora_of_inputs", config_of(lora_algorithm(), 2, true, true)},
                       {"loha", config_of(loha_algorithm(), 2)},
                       {"loha_dense", config_of(loha_algorithm(), 4)},
                       {"loha_dora_of_inputs", config_of(loha_algorithm(), 2, true, true)},
                       {"loha_dora_of_outputs", config_of(loha_algorithm(), 4, true)},
                       {"lokr_dora_of_inputs", config_of(lokr_algorithm(), 1, true, true)},
                       {"lokr_dora_of_outputs", config_of(lokr_algorithm(), 4, true, false, {.factor = 2})},
                       {"lokr", config_of(lokr_algorithm(), 1)},
                       {"lokr_whole", config_of(lokr_algorithm(), 4, false, false, {.factor = 2})},
                       {"lokr_full", config_of(lokr_algorithm(), 1, false, false, {.full_second = true})},
                       {"lokr_both", config_of(lokr_algorithm(), 1, false, false, {.decompose_both = true})},
                       {"lokr_unbalanced", config_of(lokr_algorithm(), 1, false, false,
                                                     {.factor = 2, .decompose_both = true, .unbalanced = true})}};

// As training leaves it: no factor is zero.
void disturb(const Adapter& adapter, float size = 0.3f) {
  uint64_t seed = 1000;
  for (const Parameter& p : adapter.parameters())
    p.value.backend().copy(p.value, p.value.detached() + random(p.value.shape(), seed++) * size);
}

void save_disturbed(const LoraConfig& config, const std::filesystem::path& file, float size = 0.3f) {
  Adapter trained(config, names);
  make_net(&trained);
  disturb(trained, size);
  trained.save(file, {}, DType::f32);
}

class AdapterKinds : public testing::TestWithParam<Kind> {
 protected:
  const TemporaryDirectory folder_;
};

INSTANTIATE_TEST_SUITE_P(Of, AdapterKinds, testing::ValuesIn(kKinds), [](const auto& i) { return i.param.name; });

TEST_P(AdapterKinds, BeginAsTheBase) {
  Adapter adapter(GetParam().config, names);
  const std::vector<Tensor> found = make_net(&adapter).outputs(), want = make_net(nullptr).outputs();
  adapter.check_complete();
  EXPECT_EQ(adapter.module_count(), 6u);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(found[i], want[i]), 1e-6) << i;
}

// The file, its own layers, and the weights that it stands for.
TEST_P(AdapterKinds, AreSavedReadAndMerged) {
  Adapter trained(GetParam().config, names);
  const Net net = make_net(&trained);
  disturb(trained);
  trained.save(folder_ / "l.safetensors", {}, DType::f32);
  Adapter read(names, {{folder_ / "l.safetensors"}});
  const Net with_file = make_net(&read);
  read.check_complete();

  Tensors weights = base();
  for (const char* name : {"a", "q", "k", "f", "b", "c"}) {
    Adapter alone(names, {{folder_ / "l.safetensors"}});
    Tensor& w = weights.at(std::string(name) + ".weight");
    const bool pointwise = w.rank() == 4 && w.dim(2) == 1;
    const Tensor inside = w.rank() == 2 ? w : contiguous(permute(w, {0, 2, 3, 1}));
    const LoraTarget target{w.dim(1), w.dim(0), w.rank() == 4 ? int(w.dim(2)) : 1, w.rank() == 4};
    const Tensor matrix = pointwise ? reshape(inside, {w.dim(0), w.dim(1)}) : inside;
    const Tensor merged = alone.match({{std::string("net.") + name, target}})->merged(matrix);
    EXPECT_GT(relative_error(merged, matrix), 1e-2) << name;
    w = w.rank() == 2 ? merged : permute(reshape(merged, {w.dim(0), w.dim(2), w.dim(3), w.dim(1)}), {0, 3, 1, 2});
    w = contiguous(w);
  }
  const std::vector<Tensor> want = make_net(nullptr, weights).outputs(), found = with_file.outputs();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(found[i], want[i]), 1e-5) << i;
  const std::vector<Tensor> in_training = net.outputs();
  for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(in_training[i], want[i]), 1e-5) << i;
}

// Central differences of a few numbers of each factor. A DoRA's norms are constants to its gradient: of its parameters
// only the magnitudes have the differences' gradient.
TEST_P(AdapterKinds, HaveTheGradientsOfDifferences) {
  Adapter adapter(GetParam().config, names);
  const Net net = make_net(&adapter);
  disturb(adapter);
  const auto loss = [&] {
    Tensor sums;
    uint64_t seed = 90;
    for (const Tensor& y : net.outputs()) {
      const Tensor part = sum(y * random(y.shape(), seed++));
      sums = sums ? sums + part : part;
    }
    return sums;
  };
  Grads grads;
  {
    Tape tape;
    grads = tape.backward(loss());
  }
  for (const Parameter& p : adapter.parameters()) {
    if (GetParam().config.dora && !p.name.ends_with(kMagnitudeKey)) continue;
    const Tensor d = grads[p.value];
    ASSERT_TRUE(d) << p.name;
    ASSERT_EQ(d.dtype(), DType::f32);
    const double largest = [&] {
      double most = 0;
      for (const float x : d.to_vector()) most = std::max(most, std::abs(double(x)));
      return most;
    }();
    for (const int64_t at : {int64_t(0), p.value.numel() / 2, p.value.numel() - 1}) {
      float& x = p.value.data<float>()[at];
      const float kept = x, h = 1e-2f;
      x = kept + h;
      const double above = double(loss().item());
      x = kept - h;
      const double below = double(loss().item());
      x = kept;
      EXPECT_NEAR(d.to_vector()[size_t(at)], (above - below) / (2 * double(h)), 2e-2 * largest + 1e-3) << p.name;
    }
  }
}

// Linears whose rows are whole blocks of every quantised type.
struct QuantisedNet {
  static constexpr int64_t kIn = 256;
  static const Tensors& base() {
    static const Tensors all = {
        {"a.weight", random({96, kIn}, 1)}, {"q.weight", random({64, kIn}, 2)}, {"k.weight", random({32, kIn}, 3)}};
    return all;
  }

  Scope s;
  Linear a{s / "a", kIn, 96, false};
  Linear side = Linear::side_by_side(s, kIn, {{"q", 64}, {"k", 32}}, false);

  QuantisedNet(Adapter* adapter, const Tensors& weights, DType dtype)
      : s(Weights::of(weights, {.dtype = dtype}), "net", adapter) {}

  // Outputs, and the gradients of the parameters.
  std::vector<Tensor> results(const Adapter& adapter) const {
    Tape tape;
    const Tensor x = random({5, kIn}, 50);
    std::vector<Tensor> all = {a(x), side(x)};
    const Grads grads = tape.backward(sum(all[0] * random({5, 96}, 51)) + sum(all[1] * random({5, 96}, 52)));
    for (const Parameter& p : adapter.parameters()) all.push_back(grads[p.value]);
    return all;
  }
};

class QuantisedBase : public AdapterKinds {};
INSTANTIATE_TEST_SUITE_P(Of, QuantisedBase, testing::ValuesIn(kKinds), [](const auto& i) { return i.param.name; });

// Each kind computes the same over a quantised weight as over its decoded values. The tolerances are those of products
// that round x: to 8 bits beside blocks, to fp8 in fp8_product.
TEST_P(QuantisedBase, IsTheWeightThatItHolds) {
  {
    Adapter trained(GetParam().config, names);
    const QuantisedNet net(&trained, QuantisedNet::base(), DType::f32);
    disturb(trained, 0.05f);
    trained.save(folder_ / "l.safetensors", {}, DType::f32);
  }
  const std::pair<DType, double> types[] = {{DType::int8, 1e-5},       {DType::fp8, 1e-5},  {DType::nf4, 1e-5},
                                            {DType::nf4_double, 1e-5}, {DType::q8_0, 1e-2}, {DType::q4_0, 1e-2},
                                            {DType::q4_k, 1e-2},       {DType::q6_k, 1e-2}, {DType::fp8_product, 1e-1}};
  for (const auto& [type, tolerance] : types) {
    Tensors held = QuantisedNet::base();
    for (auto& [name, w] : held) w = cast(cast(w, type), DType::f32);
    std::vector<std::vector<Tensor>> results;
    for (const bool quantised : {true, false}) {
      Adapter adapter(names);
      adapter.add_file(folder_ / "l.safetensors", 1, /*trainable=*/true);
      const QuantisedNet net(&adapter, quantised ? QuantisedNet::base() : held, quantised ? type : DType::f32);
      results.push_back(net.results(adapter));
    }
    EXPECT_GT(results[0].size(), 2u);
    for (size_t i = 0; i < results[1].size(); ++i)
      EXPECT_LE(relative_error(results[0][i], results[1][i]), tolerance) << name_of(type) << " " << i;
  }
}

// Only plain LoRAs have dropout and a limit of norms, whether new or read from a file.
TEST_P(AdapterKinds, AreLimitedWherePlain) {
  save_disturbed(GetParam().config, folder_ / "l.safetensors");
  const bool plain = std::string(GetParam().name) == "lora";
  for (const LoraConfig& limits : {LoraConfig{.dropout = 0.1f}, LoraConfig{.rank_dropout = 0.1f},
                                   LoraConfig{.module_dropout = 0.1f}, LoraConfig{.most_norm = 1}}) {
    const auto further = [&] {
      Adapter adapter(limits, names);
      adapter.add_file(folder_ / "l.safetensors", 1, /*trainable=*/true);
      make_net(&adapter);
      return adapter.limit_norms();
    };
    const auto fresh = [&] {
      LoraConfig config = GetParam().config;
      config.dropout = limits.dropout, config.most_norm = limits.most_norm;
      config.rank_dropout = limits.rank_dropout, config.module_dropout = limits.module_dropout;
      Adapter adapter(config, names);
      make_net(&adapter);
      return adapter.limit_norms();
    };
    if (plain) {
      EXPECT_EQ(further(), limits.most_norm > 0);
      EXPECT_EQ(fresh(), limits.most_norm > 0);
    } else {
      expect_error([&] { further(); }, {"l.safetensors", "\"lora_a\"", "plain LoRAs", "--lora-dropout"});
      expect_error([&] { fresh(); }, {"LoRA: \"lora_a\"", "plain LoRAs", "--lora-dropout"});
    }
  }
}

// Linears side by side are built apart only if one of them is targeted by an algorithm that does not stack.
TEST(AdaptersTogether, StandApartWhereTargeted) {
  const std::vector<LoraSite> side = {{"net.q", {15, 6}}, {"net.k", {15, 9}}};
  LoraConfig loha = config_of(loha_algorithm(), 2);
  EXPECT_TRUE(Adapter(loha, names).stand_apart(side));
  loha.targets = {"net.*", "-net.q"};
  EXPECT_TRUE(Adapter(loha, names).stand_apart(side));
  loha.targets = {"net.a"};
  EXPECT_FALSE(Adapter(loha, names).stand_apart(side));
  EXPECT_FALSE(Adapter(config_of(lora_algorithm(), 2), names).stand_apart(side));
  EXPECT_TRUE(Adapter(config_of(lora_algorithm(), 2, true), names).stand_apart(side));
}

// Layers under several files compute what the weight does after each file changed it in turn.
TEST(AdaptersTogether, ApplyInTheirOrder) {
  const TemporaryDirectory folder;
  std::vector<LoraFile> files;
  float strength = 0.7f;
  for (const Kind& kind : kKinds) {
    files.push_back({folder / (std::string(kind.name) + ".safetensors"), strength});
    save_disturbed(kind.config, files.back().path, 0.1f);
    strength *= -0.9f;
  }
  Adapter together(names, files);
  const Net net = make_net(&together);
  const AdapterOfLayer layer = together.match({{"net.a", {15, 21}}});
  Tensor w = base().at("a.weight");
  for (const LoraFile& file : files) w = Adapter(names, {file}).match({{"net.a", {15, 21}}})->merged(w);
  EXPECT_LE(relative_error(layer->merged(base().at("a.weight")), w), 1e-6);
  const Tensor x = random({3, 15}, 60);
  EXPECT_LE(relative_error(net.a(x), linear(x, w, base().at("a.bias"))), 1e-5);
}

TEST(AdaptersTogether, PartsOfALayerHaveKindsOfTheirOwn) {
  const TemporaryDirectory folder;
  // A LoKr of k, a DoRA of v, and a LoRA of the whole.
  const Tensors lokr = {{"part_k.lokr_w1", random({2, 5}, 1)},
                        {"part_k.lokr_w2", random({2, 2}, 2)},
                        {"part_v.lora_down.weight", random({2, 10}, 3)},
                        {"part_v.lora_up.weight", random({4, 2}, 4)},
                        {"part_v.dora_scale", random({1, 10}, 5)}},
                lora = {{"lora_f.lora_down.weight", random({3, 10}, 6)}, {"lora_f.lora_up.weight", random({12, 3}, 7)}};
  save_safetensors(folder / "1.safetensors", lokr);
  save_safetensors(folder / "2.safetensors", lora);
  Adapter adapter(names, {{folder / "1.safetensors", 0.5f}, {folder / "2.safetensors", 2}});
  const Net net = make_net(&adapter);
  adapter.check_complete();
  const AdapterOfLayer layer = adapter.match({{"net.f", {10, 12}}});
  const Tensor merged = layer->merged(base().at("f.weight")), x = random({5, 10}, 60);
  EXPECT_LE(relative_error(net.f(x), linear(x, merged, base().at("f.bias"))), 1e-5);

  const Tensor change = merged - base().at("f.weight");
  const Tensor of_lora = 2 * matmul(lora.at("lora_f.lora_up.weight"), lora.at("lora_f.lora_down.weight"));
  EXPECT_LE(relative_error(slice(change, 0, 0, 4), slice(of_lora, 0, 0, 4)), 1e-5);  // q has no other
  const Tensor first = reshape(lokr.at("part_k.lokr_w1"), {2, 1, 5, 1}), second = lokr.at("part_k.lokr_w2");
  const Tensor of_lokr = 0.5f * reshape(first * reshape(second, {1, 2, 1, 2}), {4, 10});
  EXPECT_LE(relative_error(slice(change, 0, 4, 8), slice(of_lora, 0, 4, 8) + of_lokr), 1e-5);
}

TEST(AdaptersTogether, SetsAreSwitched) {
  const TemporaryDirectory folder;
  std::vector<std::vector<LoraFile>> sets = {{}};
  for (const Kind& kind : kKinds) {
    sets.push_back({{folder / (std::string(kind.name) + ".safetensors"), 0.5f}});
    save_disturbed(kind.config, sets.back().front().path, 0.1f);
  }
  Adapter all(names, sets);
  const Net net = make_net(&all);
  all.check_complete();
  for (const size_t set : {size_t(3), size_t(0), size_t(5), size_t(1), sets.size() - 1}) {
    all.use(set);
    Adapter alone(names, sets[set]);
    const std::vector<Tensor> want = make_net(set == 0 ? nullptr : &alone).outputs(), found = net.outputs();
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LE(relative_error(found[i], want[i]), 1e-6) << set << " " << i;
  }
}

TEST(AdaptersTogether, SayWhatIsWrongWithAFile) {
  const TemporaryDirectory folder;
  const auto expect_wrong = [&](const Tensors& tensors, std::initializer_list<std::string_view> parts,
                                bool trainable = false) {
    save_safetensors(folder / "l.safetensors", tensors);
    expect_error(
        [&] {
          Adapter adapter(names, {{folder / "l.safetensors"}}, trainable);
          make_net(&adapter);
        },
        parts);
  };
  const Tensor w1 = random({3, 3}, 1), w2 = random({7, 5}, 2);
  expect_wrong({{"lora_a.lokr_w1", w1}}, {"l.safetensors", "lora_a", ".lokr_w2"});
  expect_wrong({{"lora_a.lokr_w1", w1}, {"lora_a.lokr_w2", random({7, 4}, 2)}}, {"lora_a", "21 x 12", "21 x 15"});
  expect_wrong({{"lora_a.lokr_w1", w1}, {"lora_a.lokr_w2", w2}, {"lora_a.lokr_w1_a", w1}}, {"lora_a", ".lokr_w1"});
  expect_wrong({{"lora_a.hada_w1_a", random({21, 2}, 1)},
                {"lora_a.hada_w1_b", random({2, 15}, 2)},
                {"lora_a.hada_w2_a", random({21, 3}, 3)},
                {"lora_a.hada_w2_b", random({2, 15}, 4)}},
               {"hada_w2_a", "[21, 2]", "[21, 3]"});
  const Tensors lora = {{"lora_a.lora_down.weight", random({2, 15}, 1)}, {"lora_a.lora_up.weight", random({21, 2}, 2)}};
  const auto with = [&](const std::string& key, const Tensor& value) {
    Tensors more = lora;
    more[key] = value;
    return more;
  };
  expect_wrong(with("lora_a.dora_scale", random({20, 1}, 3)), {"dora_scale", "[21, 1] or [1, 15]", "[20, 1]"});
  expect_wrong(with("lora_a.lokr_w1", w1), {"lora_a", "LoKr", "LoRA"});
  expect_wrong(with("lora_a.scalar", full({}, 2)), {"lora_a.scalar", "not trained"}, /*trainable=*/true);
  expect_wrong(with("lora_a.lora_mid.weight", random({2, 2, 3, 3}, 3)), {"lora_mid", "[2, rank, 1, 1]"});
}

}  // namespace
}  // namespace wick
