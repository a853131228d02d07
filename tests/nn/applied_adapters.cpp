// Adapters that are applied and not trained: each is held against the weights that its formula gives, written out here
// element by element. Sizes are odd ones; files of LyCORIS and PEFT are in tests/cli/adapters.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/safetensors.h"
#include "wick/nn/adapter.h"
#include "wick/nn/layers.h"
#include "wick/nn/rotation.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

using Tensors = std::map<std::string, Tensor>;
using Floats = std::vector<float>;

Tensor random(const Shape& shape, uint64_t seed, float deviation = 1) {
  Rng rng(seed);
  return random_normal(shape, rng) * deviation;
}

void expect_near(const Tensor& a, const Tensor& b, float tolerance = 1e-5f) {
  ASSERT_EQ(a.shape(), b.shape());
  const Floats x = cast(a, DType::f32).to_vector(), y = cast(b, DType::f32).to_vector();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance * (1 + std::abs(y[i]))) << i;
}

std::vector<ModuleName> file_names(const std::string& path) {
  if (path.starts_with("net.")) return {path.substr(4)};
  return {};
}

constexpr Conv2d kStrided{.stride = 2, .top = 1, .left = 1};

// A linear without a bias and one with it, a 3x3 and a 1x1 convolution.
struct Net {
  Scope s;
  Linear a{s / "a", 6, 12, /*bias=*/false};
  Linear b{s / "b", 12, 6};
  Conv c{s / "c", 6, 4, 3, kStrided};
  Linear d = Linear::pointwise(s / "d", 6, 4);
};

Tensors base_weights() {
  return {{"a.weight", random({12, 6}, 1)}, {"b.weight", random({6, 12}, 2)},
          {"b.bias", random({6}, 3)},       {"c.weight", random({4, 6, 3, 3}, 4)},
          {"c.bias", random({4}, 5)},       {"d.weight", random({4, 6, 1, 1}, 6)},
          {"d.bias", random({4}, 7)}};
}

// Weights as a file has them, and of those with an adapter.
class AppliedAdapters : public testing::Test {
 protected:
  Net net(Adapter* adapter, const Tensors& weights, DType activations = DType::f32) const {
    return Net{Scope(Weights::of(weights, {.place = {.activations = activations}}), "net", adapter)};
  }

  // The adapter computes what the weights with `changed` in them do, and merges to them.
  void expect(const Tensors& file, const Tensors& changed, float strength = 1,
              const std::map<std::string, std::string>& metadata = {}) {
    save_safetensors(folder / "l.safetensors", file, metadata);
    Tensors weights = base_weights();
    for (const auto& [name, tensor] : changed) weights[name] = tensor;
    Adapter adapter(names);
    adapter.add_file(folder / "l.safetensors", strength);
    const Net with = net(&adapter, base_weights());
    adapter.check_complete();
    const Tensor x = random({2, 3, 6}, 20), y = random({3, 12}, 21), image = random({2, 5, 7, 6}, 22);
    const auto find = [&](const std::string& name) { return weights.contains(name) ? weights.at(name) : Tensor(); };
    expect_near(with.a(x), linear(x, weights.at("a.weight"), find("a.bias")));
    expect_near(with.b(y), linear(y, weights.at("b.weight"), weights.at("b.bias")));
    const Tensor kernel = contiguous(permute(weights.at("c.weight"), {0, 2, 3, 1})),
                 matrix = reshape(weights.at("d.weight"), {4, 6});
    expect_near(with.c(image), conv2d(image, kernel, weights.at("c.bias"), kStrided));
    expect_near(with.d(image), linear(image, matrix, weights.at("d.bias")));
    expect_merged(adapter, weights);
  }

  void expect_merged(Adapter& adapter, const Tensors& weights) {
    const auto merged = [&](const std::string& name, const LoraTarget& target, const Tensor& w, const Tensor& bias) {
      const AdapterOfLayer layer = adapter.match({{"net." + name, target}});
      if (!layer) return;
      SCOPED_TRACE(name);
      const Tensor want = weights.at(name + ".weight");
      expect_near(layer->merged(w), w.rank() == 4 ? contiguous(permute(want, {0, 2, 3, 1})) : reshape(want, w.shape()));
      const Tensor b = layer->merged_bias(bias);
      EXPECT_EQ(bool(b), weights.contains(name + ".bias"));
      if (b) expect_near(b, weights.at(name + ".bias"));
    };
    const Tensors base = base_weights();
    merged("a", {6, 12}, base.at("a.weight"), {});
    merged("b", {12, 6}, base.at("b.weight"), base.at("b.bias"));
    merged("c", {6, 4, 3, true}, contiguous(permute(base.at("c.weight"), {0, 2, 3, 1})), base.at("c.bias"));
    merged("d", {6, 4, 1, true}, reshape(base.at("d.weight"), {4, 6}), base.at("d.bias"));
  }

  void expect_refused(const Tensors& file, std::initializer_list<std::string_view> words, bool trainable = false) {
    save_safetensors(folder / "l.safetensors", file);
    Adapter adapter(names);
    expect_error(
        [&] {
          adapter.add_file(folder / "l.safetensors", 1, trainable);
          net(&adapter, base_weights());
          adapter.check_complete();
        },
        words);
  }

  const TemporaryDirectory folder;
  ModuleNames names = file_names;
};

Tensor base(const std::string& name) { return base_weights().at(name); }

// f(row, column) for each element of a matrix.
template <class F>
Tensor matrix_of(int64_t rows, int64_t columns, const F& f) {
  Floats all;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) all.push_back(float(f(i, j)));
  return Tensor::of(all, {rows, columns});
}

float at(const Tensor& m, int64_t i, int64_t j) { return contiguous(m).data<float>()[i * m.dim(1) + j]; }

Tensor flat(const Tensor& w) { return reshape(w, {w.dim(0), -1}); }

TEST_F(AppliedAdapters, FullDifferences) {
  const Tensor a = random({12, 6}, 30), b = random({6}, 31), c = random({4, 6, 3, 3}, 32), bias = random({12}, 33),
               d = random({4, 6, 1, 1}, 34);
  // An alpha beside a difference says nothing.
  expect({{"a.diff", a}, {"a.alpha", full({}, 4)}, {"a.diff_b", bias}, {"b.diff_b", b}, {"c.diff", c}, {"d.diff", d}},
         {{"a.weight", base("a.weight") + a * 0.5f},
          {"a.bias", bias * 0.5f},
          {"b.bias", base("b.bias") + b * 0.5f},
          {"c.weight", base("c.weight") + c * 0.5f},
          {"d.weight", base("d.weight") + d * 0.5f}},
         0.5f);
  expect({{"a.set_weight", a}, {"c.set_weight", c}}, {{"a.weight", a}, {"c.weight", c}});
  expect({{"a.set_weight", a}}, {{"a.weight", base("a.weight") * 0.75f + a * 0.25f}}, 0.25f);
}

// As ComfyUI extracts them: a LoRA of the matrix, and the difference of the bias.
TEST_F(AppliedAdapters, ADifferenceOfTheBiasBesideALora) {
  const Tensor up = random({6, 2}, 30), down = random({2, 12}, 31), bias = random({6}, 32);
  expect({{"b.lora_up.weight", up}, {"b.lora_down.weight", down}, {"b.alpha", full({}, 3)}, {"b.diff_b", bias}},
         {{"b.weight", base("b.weight") + matmul(up, down) * 1.5f}, {"b.bias", base("b.bias") + bias}});
}

TEST_F(AppliedAdapters, Ia3) {
  const Tensor a = random({12}, 30), b = random({12}, 31), c = random({6}, 32), d = random({4}, 33);
  const auto scaled = [](const Tensor& w, const Tensor& gain, bool of_inputs, float strength) {
    Shape shape{1, 1, 1, 1};
    shape[of_inputs ? 1 : 0] = gain.dim(0);
    const Tensor four = w.rank() == 4 ? w : reshape(w, {w.dim(0), w.dim(1), 1, 1});
    return reshape(four * reshape(affine(gain, strength, 1), shape), w.shape());
  };
  for (const float m : {1.0f, -0.5f}) {
    expect({{"a.weight", a},
            {"a.on_input", zeros({}, DType::i64)},
            {"b.weight", b},
            {"b.on_input", full({}, 1, DType::i64)},
            {"c.weight", reshape(c, {1, 6, 1, 1})},
            {"c.on_input", full({}, 1, DType::i64)},
            {"d.weight", reshape(d, {1, 4, 1, 1})},
            {"d.on_input", zeros({}, DType::i64)}},
           {{"a.weight", scaled(base("a.weight"), a, false, m)},
            {"b.weight", scaled(base("b.weight"), b, true, m)},
            {"c.weight", scaled(base("c.weight"), c, true, m)},
            {"d.weight", scaled(base("d.weight"), d, false, m)}},
           m);
  }
  expect_refused({{"a.weight", random({6}, 1)}, {"a.on_input", zeros({}, DType::i64)}}, {"a.weight", "[12]", "[6]"});
  expect_refused({{"a.on_input", zeros({}, DType::i64)}}, {"a", "no vector factor"});
}

TEST_F(AppliedAdapters, Glora) {
  const int64_t r = 3;
  const auto changed = [&](const std::string& name, const Tensor& a1, const Tensor& a2, const Tensor& b1,
                           const Tensor& b2, float s) {
    const Tensor w = base(name + ".weight"), mix = matmul(a1, a2), own = matmul(b1, flat(b2));
    const int64_t pixels = w.rank() == 4 ? w.dim(2) * w.dim(3) : 1, in = w.dim(1);
    const Tensor all = flat(w);
    return reshape(matrix_of(w.dim(0), in * pixels,
                             [&](int64_t o, int64_t column) {
                               double sum = at(own, o, column);
                               for (int64_t i = 0; i < in; ++i)
                                 sum += double(at(all, o, i * pixels + column % pixels)) * at(mix, i, column / pixels);
                               return at(all, o, column) + s * sum;
                             }),
                   w.shape());
  };
  const Tensor a1 = random({6, r}, 30, 0.3f), a2 = random({r, 6}, 31), b1 = random({12, r}, 32),
               b2 = random({r, 6}, 33), c1 = random({4, r}, 34), c2 = random({r, 6, 3, 3}, 35);
  const auto four = [](const Tensor& m) { return reshape(m, {m.dim(0), m.dim(1), 1, 1}); };
  expect({{"a.a1.weight", a1},
          {"a.a2.weight", a2},
          {"a.b1.weight", b1},
          {"a.b2.weight", b2},
          {"a.alpha", full({}, 2)},
          {"c.a1.weight", four(a1)},
          {"c.a2.weight", four(a2)},
          {"c.b1.weight", four(c1)},
          {"c.b2.weight", c2}},
         {{"a.weight", changed("a", a1, a2, b1, b2, 0.5f * 2 / 3)}, {"c.weight", changed("c", a1, a2, c1, c2, 0.5f)}},
         0.5f);
  expect_refused({{"a.a1.weight", a1}, {"a.a2.weight", a2}, {"a.b1.weight", b1}, {"a.b2.weight", random({r, 7}, 1)}},
                 {"a", "do not fit", "6 to 12"});
}

// kron(W1, W2)
Tensor kronecker(const Tensor& w1, const Tensor& w2) {
  const int64_t k = w2.dim(0), n = w2.dim(1);
  return matrix_of(w1.dim(0) * k, w1.dim(1) * n,
                   [&](int64_t i, int64_t j) { return at(w1, i / k, j / n) * at(w2, i % k, j % n); });
}

// ai-toolkit's rank and alpha are 9999999999, so that both matrices are whole and the alpha counts for nothing.
TEST_F(AppliedAdapters, AnAlphaOfLokrThatF16DoesNotHold) {
  const Tensor w1 = random({3, 2}, 30), w2 = random({4, 3}, 31),
               alpha = cast(full({}, std::numeric_limits<float>::infinity()), DType::f16);
  expect({{"a.lokr_w1", w1}, {"a.lokr_w2", w2}, {"a.alpha", alpha}},
         {{"a.weight", base("a.weight") + kronecker(w1, w2) * 0.5f}}, 0.5f);
  expect_refused(
      {{"a.lokr_w1", w1}, {"a.lokr_w2_a", random({4, 1}, 32)}, {"a.lokr_w2_b", random({1, 3}, 33)}, {"a.alpha", alpha}},
      {"a.alpha", "one finite number"});
}

// LyCORIS' are matrices.
TEST_F(AppliedAdapters, OneTrainersLohaOfConvolutions) {
  const auto flat_product = [](const Tensor& a, const Tensor& b) { return matmul(flat(a), flat(b)); };
  Tensors file, changed;
  for (const auto& [name, side] : {std::pair{"c", 3}, {"d", 1}}) {
    const Tensor a1 = random({4, 2, 1, 1}, 30), b1 = random({2, 6, side, side}, 31), a2 = random({4, 2, 1, 1}, 32),
                 b2 = random({2, 6, side, side}, 33), weight = base(std::string(name) + ".weight");
    const std::string module = name;
    file[module + ".hada_w1_a"] = a1;
    file[module + ".hada_w1_b"] = b1;
    file[module + ".hada_w2_a"] = a2;
    file[module + ".hada_w2_b"] = b2;
    file[module + ".alpha"] = full({}, 3);
    changed[module + ".weight"] = weight + reshape(flat_product(a1, b1) * flat_product(a2, b2), weight.shape()) * 1.5f;
  }
  expect(file, changed);
  for (auto& [key, tensor] : file)  // the same as LyCORIS has it
    if (tensor.rank() == 4) tensor = flat(tensor);
  expect(file, changed);
}

// diffusers has the halves of some modulations in another order than SD3's own files.
std::vector<ModuleName> names_of_swapped(const std::string& path) {
  std::vector<ModuleName> all = file_names(path);
  if (path == "net.a") all.front().rows = {{1, 0}, 2};
  return all;
}

// Rows of [12, ...], with their halves swapped.
Tensor swapped(const Tensor& rows) { return cat({slice(rows, 0, 6, 12), slice(rows, 0, 0, 6)}, 0); }

TEST_F(AppliedAdapters, LokrOfSwappedHalves) {
  names = names_of_swapped;
  for (const int64_t l : {4, 2, 1, 3}) {  // of 3 the halves are no blocks of rows
    const Tensor w1 = random({l, 2}, 30), w2 = random({12 / l, 3}, 31), a1 = random({l, 2}, 32),
                 b1 = random({2, 2}, 33);
    expect({{"a.lokr_w1", w1}, {"a.lokr_w2", w2}}, {{"a.weight", base("a.weight") + swapped(kronecker(w1, w2)) * 0.5f}},
           0.5f);
    const Tensors low = {{"a.lokr_w1_a", a1}, {"a.lokr_w1_b", b1}, {"a.lokr_w2", w2}, {"a.alpha", full({}, 3)}};
    expect(low, {{"a.weight", base("a.weight") + swapped(kronecker(matmul(a1, b1), w2)) * 1.5f}});
    if (l % 2 != 0) expect_refused(low, {"a", "another order", "not trained"}, /*trainable=*/true);
  }
}

TEST_F(AppliedAdapters, AWrittenLokrHasTheModelsOrder) {
  const Tensor w1 = random({4, 2}, 30), w2 = random({3, 3}, 31);
  save_safetensors(folder / "l.safetensors", {{"a.lokr_w1", w1}, {"a.lokr_w2", w2}});
  Adapter adapter(names_of_swapped);
  adapter.add_file(folder / "l.safetensors", 1, /*trainable=*/true);
  net(&adapter, base_weights());
  const Tensors written = adapter.tensors();
  expect_near(kronecker(written.at("a.lokr_w1"), written.at("a.lokr_w2")), swapped(kronecker(w1, w2)));
}

// (I + S) (I - S)^-1 in double precision by its series, of a small S.
Tensor cayley_by_series(const Tensor& skew, int64_t n) {
  std::vector<double> s, power(size_t(n * n)), sum(size_t(n * n));
  for (const float value : skew.to_vector()) s.push_back(value);
  for (int64_t i = 0; i < n; ++i) power[size_t(i * n + i)] = sum[size_t(i * n + i)] = 1;
  for (int term = 0; term < 200; ++term) {
    std::vector<double> next(power.size());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t k = 0; k < n; ++k) next[size_t(i * n + j)] += power[size_t(i * n + k)] * s[size_t(k * n + j)];
    power = next;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += 2 * power[i];
  }
  return matrix_of(n, n, [&](int64_t i, int64_t j) { return sum[size_t(i * n + j)]; });
}

TEST(Rotation, CayleysTransform) {
  for (const int64_t n : {2, 3, 7}) {
    const Tensor skew = skew_part(random({1, n, n}, uint64_t(n), 0.1f)), whole = cayley(skew);
    const Tensor eye = matrix_of(n, n, [](int64_t i, int64_t j) { return i == j; });
    const Tensor r = reshape(whole, {n, n}) + eye;
    expect_near(r, cayley_by_series(reshape(skew, {n, n}), n), 1e-6f);
    expect_near(matmul(r, transpose(r, 0, 1)), eye, 1e-6f);
    expect_near(reshape(cayley_neumann(skew, 60), {n, n}) + eye, r, 1e-6f);
  }
  // Far from the identity, with pivots: [[0, 30], [-30, 0]] turns by twice the arc tangent.
  const Tensor far = cayley(Tensor::of(Floats{0, 30, -30, 0}, {1, 2, 2}));
  EXPECT_NEAR(far.to_vector()[0], (1 - 900.0) / 901 - 1, 1e-6);
  EXPECT_NEAR(far.to_vector()[1], 60.0 / 901, 1e-6);
  EXPECT_EQ(side_of_entries(6), 4);
  EXPECT_EQ(side_of_entries(5), std::nullopt);
  EXPECT_EQ(side_of_entries(0), std::nullopt);
}

// peft's own, for every number of terms (tools/golden/adapter_kinds.py).
TEST(Rotation, PeftsSeries) {
  const SafetensorsFile golden = SafetensorsFile::open(test::source_dir() / "tests/golden/peft_cayley.safetensors");
  const Tensor skew = skew_of_entries(golden.load("entries"));
  const Tensor eye = matrix_of(5, 5, [](int64_t i, int64_t j) { return i == j; });
  for (const int64_t terms : {0, 1, 2, 3, 4, 5, 6, 7, 8})
    expect_near(cayley_neumann(skew, terms) + reshape(eye, {1, 5, 5}), golden.load(fmt::format("R.{}", terms)), 1e-6f);
}

// R of block k with a strength.
Tensor block_of_rotation(const Tensor& changes, int64_t k, float strength) {
  const int64_t n = changes.dim(-1);
  const Tensor block = reshape(slice(reshape(changes, {-1, n, n}), 0, k, k + 1), {n, n});
  return matrix_of(n, n, [&](int64_t i, int64_t j) { return (i == j) + strength * at(block, i, j); });
}

// Rows of W, turned by R_k^T or R_k.
Tensor rows_turned(const Tensor& w, const Tensor& changes, float strength, bool transposed) {
  const int64_t n = changes.dim(-1);
  std::vector<Tensor> rows;
  for (int64_t k = 0; k * n < w.dim(0); ++k) {
    const Tensor r = block_of_rotation(changes, changes.numel() == n * n ? 0 : k, strength);
    rows.push_back(matmul(transposed ? transpose(r, 0, 1) : r, slice(w, 0, k * n, (k + 1) * n)));
  }
  return cat(rows, 0);
}

TEST_F(AppliedAdapters, OftOfOutputs) {
  const Tensor blocks = random({4, 3, 3}, 30), conv = random({2, 2, 2}, 31), gain = random({12, 1}, 32);
  const auto turned = [&](const std::string& name, const Tensor& b, float m, double most = 0) {
    const Tensor w = base(name), skew = most > 0 ? bounded_norm(skew_part(b), most) : skew_part(b);
    return reshape(rows_turned(flat(w), cayley(skew), m, true), w.shape());
  };
  for (const float m : {1.0f, 0.3f}) {
    expect({{"a.oft_blocks", blocks}, {"a.rescale", gain}, {"c.oft_blocks", conv}, {"c.alpha", full({}, 0)}},
           {{"a.weight", turned("a.weight", blocks, m) * affine(gain, m, 1 - m)},
            {"c.weight", turned("c.weight", conv, m)}},
           m);
  }
  expect({{"a.oft_blocks", blocks}, {"a.alpha", full({}, 0.05f)}}, {{"a.weight", turned("a.weight", blocks, 1, 0.6)}});
  // kohya's holds back always, LyCORIS' never with an alpha of 0.
  expect({{"a.oft_blocks", blocks}, {"a.alpha", full({}, 0)}}, {{"a.weight", base("a.weight")}}, 1,
         {{"ss_network_module", "networks.oft"}});
  expect_refused({{"a.oft_blocks", random({3, 3, 3}, 1)}}, {"a.oft_blocks", "12 outputs", "[3, 3, 3]"});
  expect_refused({{"a.oft_blocks", random({3, 4, 3, 3}, 1)}}, {"a.oft_blocks", "do not pair"});
  expect_refused({{"a.oft_blocks.0", random({3, 4, 4}, 1)}}, {"OFT in parts"});
}

// With 3 blocks, one block crosses the border between the halves.
TEST_F(AppliedAdapters, OftOfSwappedHalves) {
  names = names_of_swapped;
  const Tensor gain = random({12, 1}, 32);
  for (const int64_t n : {3, 4}) {
    const Tensor blocks = random({12 / n, n, n}, 30), w = swapped(base("a.weight"));
    const Tensor turned = rows_turned(w, cayley(skew_part(blocks)), 0.3f, true) * affine(gain, 0.3f, 1 - 0.3f);
    expect({{"a.oft_blocks", blocks}, {"a.rescale", gain}}, {{"a.weight", swapped(turned)}}, 0.3f);
  }
}

TEST_F(AppliedAdapters, BoftOfOutputs) {
  const int64_t n = 4;
  const Tensor blocks = random({2, 3, n, n}, 30, 0.3f);
  // With pairs 2 and 4 rows apart; 12 rows do not allow 8.
  const Tensor changes = cayley(skew_part(reshape(blocks, {-1, n, n})));
  Tensor w = base("a.weight");
  const auto with_order = [&](const Tensor& rows, int64_t h, bool back) {
    std::vector<Tensor> all(size_t(rows.dim(0)));
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      const int64_t group = i / (2 * h), half = i % (2 * h) / h, place = i % h, to = group * 2 * h + place * 2 + half;
      (back ? all[size_t(i)] : all[size_t(to)]) = slice(rows, 0, back ? to : i, (back ? to : i) + 1);
    }
    return cat(all, 0);
  };
  expect_refused({{"a.oft_blocks", random({3, 3, n, n}, 30)}}, {"do not pair"});
  const Tensor first = slice(changes, 0, 0, 3);
  w = with_order(rows_turned(with_order(w, 2, false), first, 1, false), 2, true);
  expect({{"a.oft_blocks", reshape(slice(blocks, 0, 0, 1), {1, 3, n, n})}}, {{"a.weight", w}});
}

TEST_F(AppliedAdapters, OftOfInputs) {
  const Tensor entries = random({2, 3}, 30, 0.2f), shared = random({1, 3}, 31, 0.2f),
               kernel = random({18, 3}, 32, 0.2f);
  // Without settings it is OneTrainer's, of five terms: W R^T of linears, W R of convolutions, in their columns.
  const auto turned = [&](const std::string& name, const Tensor& e, float m, bool by_itself) {
    const Tensor w = base(name), changes = cayley_neumann(skew_of_entries(e), 5);
    const Tensor columns = contiguous(transpose(flat(w), 0, 1));
    return reshape(contiguous(transpose(rows_turned(columns, changes, m, by_itself), 0, 1)), w.shape());
  };
  for (const float m : {1.0f, 0.3f}) {
    expect({{"a.oft_R.weight", entries},
            {"b.oft_R.weight", shared},
            {"c.oft_R.weight", kernel},
            {"d.oft_R.weight", entries}},
           {{"a.weight", turned("a.weight", entries, m, false)},
            {"b.weight", turned("b.weight", shared, m, false)},
            {"c.weight", turned("c.weight", kernel, m, true)},
            {"d.weight", turned("d.weight", entries, m, true)}},
           m);
  }
  expect({{"a.oft_R.weight", entries}, {"a.oft_R.scaled_oft", full({}, 1, DType::u8)}},
         {{"a.weight", turned("a.weight", entries * float(1 / (2 * std::sqrt(2.0))), 1, false)}});
  expect_refused({{"a.oft_R.weight", random({2, 4}, 1)}}, {"a.oft_R.weight", "6 inputs", "[2, 4]"});
  expect_refused({{"a.oft_r", random({2, 4}, 1)}}, {"OFT of PEFT before 0.16"});
}

// Each is a function around those before it.
TEST_F(AppliedAdapters, SeveralOnOneLayer) {
  const Tensor gain = random({12}, 30), blocks = random({4, 3, 3}, 31), up = random({12, 2}, 32),
               down = random({2, 6}, 33), entries = random({2, 3}, 34, 0.2f), difference = random({12, 6}, 35),
               kernel = random({18, 3}, 36, 0.2f), conv = random({4, 6, 3, 3}, 37);
  const std::vector<Tensors> files = {{{"a.lora_up.weight", up}, {"a.lora_down.weight", down}, {"c.diff", conv}},
                                      {{"a.oft_blocks", blocks}},
                                      {{"a.oft_R.weight", entries}, {"c.oft_R.weight", kernel}},
                                      {{"a.weight", gain}, {"a.on_input", zeros({}, DType::i64)}},
                                      {{"a.diff", difference}},
                                      {{"a.a1.weight", random({6, 1}, 38, 0.3f)},
                                       {"a.a2.weight", random({1, 6}, 39)},
                                       {"a.b1.weight", random({12, 1}, 40)},
                                       {"a.b2.weight", random({1, 6}, 41)}}};
  Adapter adapter(file_names);
  for (size_t i = 0; i < files.size(); ++i) {
    save_safetensors(folder / std::to_string(i), files[i]);
    adapter.add_file(folder / std::to_string(i));
  }
  const Net with = net(&adapter, base_weights());
  adapter.check_complete();
  const AdapterOfLayer a = adapter.match({{"net.a", {6, 12}}}), c = adapter.match({{"net.c", {6, 4, 3, true}}});
  const Tensor x = random({2, 3, 6}, 20), image = random({2, 5, 7, 6}, 22),
               kernels = contiguous(permute(base("c.weight"), {0, 2, 3, 1}));
  expect_near(with.a(x), linear(x, a->merged(base("a.weight"))), 2e-5f);
  expect_near(with.c(image), conv2d(image, c->merged(kernels), base("c.bias"), kStrided), 2e-5f);
}

// Gradients pass through them to what is below.
TEST_F(AppliedAdapters, AreDifferentiable) {
  save_safetensors(folder / "l", {{"a.oft_blocks", random({4, 3, 3}, 31)},
                                  {"b.oft_R.weight", random({4, 3}, 34, 0.2f)},
                                  {"c.weight", random({1, 6, 1, 1}, 35)},
                                  {"c.on_input", full({}, 1, DType::i64)},
                                  {"d.diff", random({4, 6, 1, 1}, 36)}});
  Adapter adapter(file_names);
  adapter.add_file(folder / "l");
  const Net with = net(&adapter, base_weights());
  const auto gradient = [](const Tensor& from, const auto& function) {
    Tape tape;
    const Tensor x = from.trainable();
    const Tensor y = function(x);
    return tape.backward(sum(y * random(y.shape(), 60)))[x];
  };
  const AdapterOfLayer a = adapter.match({{"net.a", {6, 12}}}), b = adapter.match({{"net.b", {12, 6}}});
  const Tensor wa = a->merged(base("a.weight")), wb = b->merged(base("b.weight"));
  const Tensor x = random({2, 3, 6}, 20), y = random({3, 12}, 21);
  expect_near(gradient(x, [&](const Tensor& t) { return with.a(t); }),
              gradient(x, [&](const Tensor& t) { return linear(t, wa); }));
  expect_near(gradient(y, [&](const Tensor& t) { return with.b(t); }),
              gradient(y, [&](const Tensor& t) { return linear(t, wb); }));
}

// None of them is trained.
TEST_F(AppliedAdapters, AreNotTrained) {
  const Tensors files[] = {
      {{"a.diff", random({12, 6}, 1)}},        {{"a.oft_blocks", random({4, 3, 3}, 1)}},
      {{"a.oft_R.weight", random({2, 3}, 1)}}, {{"a.weight", random({12}, 1)}, {"a.on_input", zeros({}, DType::i64)}},
      {{"a.ia3_l", random({12, 1}, 1)}},       {{"a.w_norm", random({12}, 1)}}};
  for (const Tensors& file : files) {
    save_safetensors(folder / "l", file);
    Adapter adapter(file_names);
    expect_error([&] { adapter.add_file(folder / "l", 1, /*trainable=*/true); }, {"a", "is applied, and not trained"});
  }
}

struct Norms {
  Scope s;
  LayerNorm layer{s / "layer", 5};
  GroupNorm group{s / "group", 6, 2, 1e-5f};
  RmsNorm rms{s / "rms", 5, 1e-5f};
};

Tensors norm_weights() {
  return {{"layer.weight", random({5}, 1)},
          {"layer.bias", random({5}, 2)},
          {"group.weight", random({6}, 3)},
          {"group.bias", random({6}, 4)},
          {"rms.weight", random({5}, 5)}};
}

TEST_F(AppliedAdapters, NormsOfTheSetInUse) {
  const Tensor weight = random({5}, 30), bias = random({5}, 31), group = random({6}, 32), rms = random({5}, 33);
  save_safetensors(folder / "0", {{"layer.w_norm", weight}, {"layer.b_norm", bias}, {"rms.diff", rms}});
  save_safetensors(folder / "1", {{"group.diff", group}, {"group.diff_b", group}, {"layer.w_norm", weight}});
  const Tensors stored = norm_weights();
  for (const bool deferred : {false, true}) {
    Adapter adapter(file_names, {{{folder / "0", 0.5f}, {folder / "1", 1}}, {}, {{folder / "1", -1}}});
    const Weights weights = Weights::of(norm_weights(), {.deferred = deferred});
    const Norms with{Scope(weights, "net", &adapter)};
    weights.read_deferred();
    adapter.check_complete();
    expect_near(with.layer.weight, stored.at("layer.weight") + weight * 1.5f);
    expect_near(with.layer.bias, stored.at("layer.bias") + bias * 0.5f);
    expect_near(with.group.bias, stored.at("group.bias") + group);
    expect_near(with.rms.weight, stored.at("rms.weight") + rms * 0.5f);
    adapter.use(1);
    expect_near(with.layer.weight, stored.at("layer.weight"), 0);
    expect_near(with.rms.weight, stored.at("rms.weight"), 0);
    adapter.use(2);
    expect_near(with.layer.weight, stored.at("layer.weight") - weight);
    expect_near(with.layer.bias, stored.at("layer.bias"), 0);
    EXPECT_TRUE(adapter.covers("net."));
  }
  EXPECT_EQ(norm_weights().at("layer.weight").to_vector(), stored.at("layer.weight").to_vector());
}

TEST_F(AppliedAdapters, NormsThatDoNotFit) {
  const auto refuse = [&](const Tensors& file, std::initializer_list<std::string_view> words) {
    save_safetensors(folder / "l", file);
    Adapter adapter(file_names);
    adapter.add_file(folder / "l");
    expect_error(
        [&] {
          Norms{Scope(Weights::of(norm_weights()), "net", &adapter)};
          adapter.check_complete();
        },
        words);
  };
  refuse({{"layer.w_norm", random({4}, 1)}}, {"layer.w_norm", "[5]", "[4]"});
  refuse({{"rms.w_norm", random({5}, 1)}, {"rms.b_norm", random({5}, 1)}}, {"rms.b_norm", "fits no vector"});
  refuse({{"rms.lora_up.weight", random({5, 1}, 1)}, {"rms.lora_down.weight", random({1, 5}, 1)}},
         {"rms", "a norm there"});
  expect_refused({{"a.w_norm", random({12}, 1)}}, {"a.w_norm", "linear layer there"});
}

TEST_F(AppliedAdapters, EmbeddingsAreLookedUp) {
  const Tensor table = random({7, 5}, 1), down = random({2, 7}, 30), up = random({5, 2}, 31);
  save_safetensors(folder / "l", {{"e.lora_embedding_A", down}, {"e.lora_embedding_B", up}, {"e.alpha", full({}, 3)}});
  Adapter adapter(file_names);
  adapter.add_file(folder / "l", 0.5f);
  const Scope s(Weights::of({{"e.weight", table}}), "net", &adapter);
  const Embedding with(s / "e", 7, 5);
  adapter.check_complete();
  const Tensor ids = Tensor::of(std::vector<int64_t>{6, 0, 3, 3}, {2, 2}),
               changed = table + matmul(transpose(down, 0, 1), transpose(up, 0, 1)) * 0.75f;
  expect_near(with(ids), embedding(changed, ids, DType::f32));
  const AdapterOfLayer layer = adapter.match({{"net.e", {.in = 5, .out = 7, .is_lookup = true}}});
  expect_near(layer->merged(table), changed);
  expect_refused({{"a.lora_embedding_A", random({2, 12}, 1)}, {"a.lora_embedding_B", random({6, 2}, 1)}},
                 {"a.lora_embedding_A", "linear layer there"});
}

// Words with vectors of their own, behind the table's rows; of all sets, so that ids stay.
TEST_F(AppliedAdapters, AddedWords) {
  const Tensor table = random({7, 5}, 1), cat_l = random({2, 5}, 30), dog_l = random({5}, 31),
               cat_g = random({1, 3}, 32);
  const Tensors lora = {{"a.diff", random({12, 6}, 1)}};
  Tensors first = lora, second = lora;
  first["bundle_emb.big cat.v1.clip_l"] = cat_l;
  first["bundle_emb.big cat.v1.clip_g"] = cat_g;
  first["bundle_emb.big cat.v1.clip_l_out"] = cat_l;
  second["bundle_emb.dog.clip_l"] = dog_l;
  save_safetensors(folder / "0", first);
  save_safetensors(folder / "1", second);
  const LoraFile of_cat{folder / "0"}, of_dog{folder / "1"};
  using Sets = std::vector<std::vector<LoraFile>>;
  Adapter adapter(file_names, Sets{{of_cat}, {of_dog}, {}});
  Embedding with(Scope(Weights::of({{"weight", table}}), "other", &adapter), 7, 5);
  with.add_words(Scope(Weights::of({{"weight", table}}), "other", &adapter), "clip_l");
  EXPECT_EQ(with.ids(), 10);
  const Tensor ids = Tensor::of(std::vector<int64_t>{9, 0, 7, 8}, {1, 4});
  const Tensor want = cat({reshape(dog_l, {1, 5}), slice(table, 0, 0, 1), cat_l}, 0);
  expect_near(with(ids), reshape(want, {1, 4, 5}), 0);
  ASSERT_EQ(adapter.words("clip_l").size(), 1u);
  EXPECT_EQ(adapter.words("clip_l")[0].word, "big cat.v1");
  EXPECT_EQ(adapter.words("clip_l")[0].count, 2);
  EXPECT_EQ(adapter.words("t5")[0].count, 0);
  adapter.use(1);
  EXPECT_EQ(adapter.words("clip_l")[0].first, 2);
  adapter.use(2);
  EXPECT_TRUE(adapter.words("clip_l").empty());
  EXPECT_NE(Adapter::notes_on({folder / "0"}).front().find("clip_l_out"), std::string::npos);
  EXPECT_NE(Adapter::notes_on_merging({folder / "0"}).front().find("big cat.v1"), std::string::npos);
  EXPECT_TRUE(Adapter::notes_on({folder / "1"}).empty());

  Adapter twice(file_names, Sets{{of_cat, of_cat}});
  expect_error([&] { twice.words("clip_l"); }, {"big cat.v1", "another LoRA"});
  Embedding wide(Scope(Weights::of({{"weight", table}}), "other", &adapter), 7, 5);
  expect_error(
      [&] {
        wide.add_words(Scope(Weights::of({{"weight", table}}), "other", &adapter), "clip_g");
      },
      {"clip_g", "3 numbers", "5"});
}

// A file that is trained further keeps its bundled embeddings, value and dtype.
TEST_F(AppliedAdapters, AddedWordsAreHandedOn) {
  const Tensor cat = cast(random({2, 5}, 30), DType::f16), output = random({2, 5}, 31);
  save_safetensors(folder / "l.safetensors", {{"a.lora_down.weight", random({2, 6}, 1)},
                                              {"a.lora_up.weight", random({12, 2}, 2)},
                                              {"bundle_emb.cat.clip_l", cat},
                                              {"bundle_emb.cat.clip_l_out", output}});
  Adapter further(LoraConfig(), file_names);
  further.add_file(folder / "l.safetensors", 1, /*trainable=*/true);
  further.match({{"net.a", {6, 12}}});
  further.save(folder / "m.safetensors", {}, DType::bf16);
  const SafetensorsFile written = SafetensorsFile::open(folder / "m.safetensors");
  EXPECT_EQ(written.load("a.lora_up.weight").dtype(), DType::bf16);
  EXPECT_EQ(written.load("bundle_emb.cat.clip_l").dtype(), DType::f16);
  expect_near(written.load_numbers("bundle_emb.cat.clip_l"), cast(cat, DType::f32), 0);
  expect_near(written.load_numbers("bundle_emb.cat.clip_l_out"), output, 0);
}

}  // namespace
}  // namespace wick
