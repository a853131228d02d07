// Adapters of the parts that files split fused layers into: every kind beside every other, upon every other, and in any
// mix, held against their formulas in double precision (reference_adapters.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <set>

#include "io/files.h"
#include "nn/reference_adapters.h"
#include "wick/io/safetensors.h"
#include "wick/nn/adapter.h"
#include "wick/nn/layers.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

using reference::Factors;
using reference::Kind;
using reference::kInputs;
using reference::Layer;
using reference::Matrix;

constexpr int64_t kPart = 8, kOutputs = 5 * kPart;

// As linear1 of FLUX's single blocks: q, k and v, and an mlp of two parts' width.
struct Place {
  const char* name;
  int64_t first, end;
};
constexpr Place kWhole{"lora_f", 0, kOutputs}, kQ{"part_q", 0, kPart}, kK{"part_k", kPart, 2 * kPart},
    kV{"part_v", 2 * kPart, 3 * kPart}, kMlp{"part_mlp", 3 * kPart, kOutputs};
constexpr Place kPlaces[] = {kQ, kK, kV, kMlp, kWhole};

std::vector<ModuleName> names_of_parts(const std::string&) {
  return {std::string(kWhole.name),
          {kQ.name, {{0}, 5}},
          {kK.name, {{1}, 5}},
          {kV.name, {{2}, 5}},
          {kMlp.name, {{3, 4}, 5}}};
}

uint64_t fresh_seed() {
  static const uint64_t seed =
      std::getenv("WICK_TEST_SEED") ? std::stoull(std::getenv("WICK_TEST_SEED")) : std::random_device{}();
  return seed;
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = reference::all_kinds();
  return all;
}

struct Placed {  // an adapter of a file
  const Kind* kind;
  Place place;
  float strength = 1;
  bool is_trained = false;
  uint64_t seed = 100;

  reference::Tensors tensors() const { return kind->fresh(place.end - place.first, seed); }
  Factors factors() const { return reference::factors_of(tensors()); }
  std::string file() const {
    return fmt::format("{} on {} * {}{}", kind->name, place.name, strength, is_trained ? ", trained" : "");
  }
};

class FusedParts : public testing::Test {
 protected:
  static Tensor weight() { return reference::drawn({kOutputs, kInputs}, 1); }
  static Tensor bias() { return reference::drawn({kOutputs}, 2); }
  static Tensor input() { return reference::drawn({2, 3, kInputs}, 3); }

  // Files are kept: each kind's on each place is written once.
  const std::filesystem::path& file_of(const Placed& p) {
    std::filesystem::path& path = files_[fmt::format("{} {} {}", p.kind->name, p.place.name, p.seed)];
    if (!path.empty()) return path;
    path = folder_ / std::to_string(files_.size());
    std::map<std::string, Tensor> all;
    for (const auto& [suffix, tensor] : p.tensors()) all[p.place.name + suffix] = tensor;
    save_safetensors(path, all);
    return path;
  }
  void add(Adapter& adapter, const std::vector<Placed>& all) {
    for (const Placed& p : all) adapter.add_file({file_of(p), p.strength}, p.is_trained);
  }
  static Linear linear_with(Adapter& adapter, bool has_bias = true, const WeightsOptions& options = {},
                            const Tensor& w = weight()) {
    std::map<std::string, Tensor> weights = {{"f.weight", w}};
    if (has_bias) weights["f.bias"] = bias();
    const Weights held = Weights::of(weights, options);
    Linear layer(Scope(held, "net", &adapter) / "f", w.dim(1), kOutputs, has_bias);
    return layer;
  }

  // What the formulas make of the layer, one after the other.
  static Layer expected(const std::vector<Placed>& all, bool has_bias = true) {
    Layer layer{Matrix(weight()), has_bias ? Matrix(bias()) : Matrix(kOutputs, 1)};
    for (const auto& p : all) {
      const Layer part =
          p.kind->on({rows_of(layer.w, p.place.first, p.place.end), rows_of(layer.b, p.place.first, p.place.end)},
                     p.factors(), double(p.strength));
      put_rows(layer.w, p.place.first, part.w);
      put_rows(layer.b, p.place.first, part.b);
    }
    return layer;
  }

  static void expect_near(const Tensor& found, const Matrix& want, const char* what, double tolerance) {
    const std::vector<float> values = cast(found, DType::f32).to_vector();
    ASSERT_EQ(values.size(), want.values.size()) << what;
    double largest = 0, worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(want.values[i]));
      const double error = std::abs(double(values[i]) - want.values[i]);
      worst = error <= worst ? worst : error;  // NaN counts
    }
    EXPECT_LE(worst, tolerance * std::max(largest, 1e-3)) << what;
  }

  static Matrix outputs_of(const Layer& layer, const Matrix& x) {
    const Matrix y = x * transposed(layer.w);
    return reference::matrix(y.rows, y.columns, [&](int64_t i, int64_t j) { return y(i, j) + layer.b(j, 0); });
  }

  // The layer's outputs, and the weight and bias that it merges to.
  void expect(const std::vector<Placed>& all, bool has_bias = true) {
    for (const Placed& p : all) trace_ += (trace_.empty() ? "" : "; ") + p.file();
    SCOPED_TRACE(std::exchange(trace_, {}));
    Adapter adapter(names_of_parts);
    add(adapter, all);
    const Linear layer = linear_with(adapter, has_bias);
    const Layer want = expected(all, has_bias);
    expect_near(layer(input()), outputs_of(want, Matrix(input())), "outputs", 1e-5);
    const AdapterOfLayer stack = adapter.match({{"net.f", {kInputs, kOutputs}}});
    expect_near(stack->merged(weight()), want.w, "the merged weight", 1e-5);
    if (const Tensor b = stack->merged_bias(has_bias ? bias() : Tensor()))
      expect_near(b, want.b, "the merged bias", 1e-5);
    else
      expect_near(zeros({kOutputs}), want.b, "the merged bias", 0);
  }

  const TemporaryDirectory folder_;
  std::map<std::string, std::filesystem::path> files_;
  std::string trace_;
};

TEST_F(FusedParts, EveryKindOnEveryPlace) {
  for (const Kind& kind : kinds())
    for (const Place& place : kPlaces)
      for (const bool has_bias : {true, false})
        for (const float strength : {1.0f, 0.4f}) expect({{&kind, place, strength}}, has_bias);
}

TEST_F(FusedParts, EveryKindBesideEveryOther) {
  const std::pair<Place, Place> neighbours[] = {{kQ, kK}, {kK, kV}, {kV, kMlp}, {kV, kQ}};
  for (const Kind& a : kinds())
    for (const Kind& b : kinds())
      for (const auto& [first, second] : neighbours) expect({{&a, first}, {&b, second}});
}

// Also with a third on all three.
TEST_F(FusedParts, EveryKindUponEveryOther) {
  const std::pair<Place, Place> places[] = {{kK, kK}, {kWhole, kK}, {kK, kWhole}, {kWhole, kWhole}};
  for (const Kind& a : kinds())
    for (const Kind& b : kinds())
      for (const auto& [lower, upper] : places) expect({{&a, lower, 1, false, 100}, {&b, upper, 0.6f, false, 200}});
}

// A LoRA joins an earlier one only there where nothing between them is on its rows; the earlier one keeps its place.
TEST_F(FusedParts, LorasJoinInTheirPlace) {
  const Kind& lora = kinds()[0];
  for (const Kind& kind : kinds())
    for (const Place& between : {kQ, kK, kWhole})
      for (const auto& [lower, upper] : {std::pair{kWhole, kK}, {kK, kWhole}, {kK, kK}, {kWhole, kWhole}})
        expect({{&lora, lower}, {&kind, between, 1, false, 200}, {&lora, upper, 0.5f, false, 300}});
}

// The copies of a LoRA's factors in 16 bits have padded ranks, of which a part takes its rows and columns. Upon them
// are the kinds whose products the CPU has in 16 bits.
TEST_F(FusedParts, LorasInSixteenBitsUnderOthers) {
  const WeightsOptions half{.dtype = DType::bf16, .place = {.activations = DType::bf16}};
  const Kind &lora = kinds()[0], &bias = kinds()[1];
  const std::set<std::string> upper = {"difference",     "difference_of_bias", "set_weight",
                                       "ia3_of_outputs", "ia3_of_inputs",      "peft_ia3_of_outputs"};
  for (const Kind& kind : kinds())
    for (const Place& place : {kQ, kK, kMlp})
      for (const std::vector<Placed>& all :
           {std::vector<Placed>{{&lora, kWhole}, {&kind, place, 1, false, 200}},
            std::vector<Placed>{{&lora, kQ}, {&bias, kK}, {&lora, kMlp}, {&kind, place, 1, false, 200}}}) {
        if (!upper.contains(kind.name)) continue;
        SCOPED_TRACE(kind.name);
        Adapter adapter(names_of_parts);
        add(adapter, all);
        const Tensor y = linear_with(adapter, true, half)(cast(input(), DType::bf16));
        expect_near(y, outputs_of(expected(all), Matrix(cast(cast(input(), DType::bf16), DType::f32))), "outputs",
                    3e-2);
      }
}

TEST_F(FusedParts, AnyMix) {
  std::mt19937_64 random(fresh_seed());
  SCOPED_TRACE("WICK_TEST_SEED=" + std::to_string(fresh_seed()));
  for (int i = 0; i < 500; ++i) {
    std::vector<Placed> all;
    for (uint64_t count = 2 + random() % 5; count > 0; --count)
      all.push_back({&kinds()[random() % kinds().size()], kPlaces[random() % 5], random() % 2 ? 1.0f : 0.5f, false,
                     100 * (1 + random() % 3)});
    expect(all, random() % 4 > 0);
  }
}

// The gradients of <y, g> for x [.., in]: by the change of a weight they are those of <g^T x, W>.
struct Gradients {
  Matrix x, g, dw;  // dw [out, in] = g^T x
};

class TrainedParts : public FusedParts {
 protected:
  // Of each number of each factor: central differences in double precision, with DoRA's norms as they are.
  static Matrix differences(const Placed& p, const Layer& below, const Gradients& loss, const std::string& suffix) {
    const Matrix w = rows_of(below.w, p.place.first, p.place.end), dw = rows_of(loss.dw, p.place.first, p.place.end);
    const Factors still = p.factors();
    const auto value = [&](const Factors& f) {
      const Matrix changed = p.kind->weight(w, f, double(p.strength), still);
      double sum = 0;
      for (size_t i = 0; i < changed.values.size(); ++i) sum += changed.values[i] * dw.values[i];
      return sum;
    };
    const Matrix& factor = still.at(suffix);
    Matrix all(factor.rows, factor.columns);
    for (size_t i = 0; i < factor.values.size(); ++i) {
      const double h = 1e-4;
      Factors f = still;
      f[suffix].values[i] += h;
      const double above = value(f);
      f[suffix].values[i] -= 2 * h;
      all.values[i] = (above - value(f)) / (2 * h);
    }
    return all;
  }

  // Outputs and gradients while it is trained. Modules that are trained have no others on their rows.
  void expect_trained(const std::vector<Placed>& all, const WeightsOptions& options = {}) {
    for (const Placed& p : all) trace_ += (trace_.empty() ? "" : "; ") + p.file();
    SCOPED_TRACE(std::exchange(trace_, {}));
    Adapter adapter(names_of_parts);
    add(adapter, all);
    const Linear layer = linear_with(adapter, true, options);
    const Tensor x = input().trainable(), g = reference::drawn({2, 3, kOutputs}, 4);
    Grads grads;
    Tensor y;
    {
      Tape tape;
      y = layer(x);
      grads = tape.backward(sum(y * g));
    }
    const Layer want = expected(all);
    expect_near(y, outputs_of(want, Matrix(x)), "outputs", 1e-5);
    const Gradients loss{Matrix(x), Matrix(g), transposed(Matrix(g)) * Matrix(x)};
    expect_near(grads[x], loss.g * want.w, "the input's gradient", 1e-5);
    const std::map<std::string, Tensor> found = adapter.gradients(grads);
    for (const Placed& p : all)
      for (const auto& [suffix, factor] : p.tensors())
        if (p.is_trained && suffix != ".alpha")
          expect_near(found.at(p.place.name + suffix), differences(p, {Matrix(weight()), {}}, loss, suffix),
                      suffix.c_str(), 1e-5);
  }
};

TEST_F(TrainedParts, EveryKindBesideEveryOther) {
  const std::pair<Place, Place> neighbours[] = {{kQ, kK}, {kV, kMlp}, {kK, kQ}};
  for (const Kind& a : kinds())
    for (const Kind& b : kinds())
      for (const auto& [first, second] : neighbours) {
        if (!a.is_trained) continue;
        expect_trained({{&a, first, 1, true}, {&b, second, 1, b.is_trained}});
        expect_trained({{&b, second, 0.7f, false}, {&a, first, 1, true}});
      }
}

TEST_F(TrainedParts, AllPartsAtOnce) {
  std::vector<const Kind*> trained;
  for (const Kind& kind : kinds())
    if (kind.is_trained) trained.push_back(&kind);
  for (size_t i = 0; i < trained.size(); ++i) {
    const auto kind = [&](size_t at) { return trained[(i + at) % trained.size()]; };
    expect_trained({{kind(0), kQ, 1, true}, {kind(0), kK, 1, true}, {kind(0), kV, 1, true}, {kind(0), kMlp, 1, true}});
    expect_trained({{kind(0), kQ, 1, true}, {kind(1), kK, 1, true}, {kind(2), kV, 1, true}, {kind(3), kMlp, 1, true}});
    expect_trained({{kind(0), kWhole, 1, true}});
  }
}

// Frozen ones in twos on a part, beside a trained one.
TEST_F(TrainedParts, BesideStacks) {
  std::mt19937_64 random(fresh_seed());
  SCOPED_TRACE("WICK_TEST_SEED=" + std::to_string(fresh_seed()));
  for (const Kind& kind : kinds()) {
    if (!kind.is_trained) continue;
    for (int i = 0; i < 20; ++i) {
      std::vector<Placed> all = {{&kind, kK, 1, true}};
      for (const Place& place : {kQ, kV, kQ, kMlp, kV})
        all.insert(all.begin() + ptrdiff_t(random() % (all.size() + 1)),
                   {&kinds()[random() % kinds().size()], place, 0.7f, false, 100 * (1 + random() % 3)});
      expect_trained(all);
    }
  }
}

// Over a quantised weight parts compute the same as over its decoded values.
TEST_F(TrainedParts, RestOnQuantisedRows) {
  std::vector<const Kind*> trained;
  for (const Kind& kind : kinds())
    if (kind.is_trained) trained.push_back(&kind);
  for (const DType type : {DType::int8, DType::fp8})
    for (size_t i = 0; i < trained.size(); ++i) {
      std::vector<Placed> all;
      for (size_t at = 0; at < 4; ++at)
        all.push_back({trained[(i + at) % trained.size()], std::array{kQ, kK, kV, kMlp}[at], 1, true});
      std::vector<std::map<std::string, Tensor>> results;
      for (const bool quantised : {true, false}) {
        Adapter adapter(names_of_parts);
        add(adapter, all);
        const Tensor w = quantised ? weight() : cast(cast(weight(), type), DType::f32);
        const Linear layer = linear_with(adapter, true, {.dtype = quantised ? type : DType::f32}, w);
        Tape tape;
        const Tensor y = layer(input());
        results.push_back(adapter.gradients(tape.backward(sum(y * reference::drawn(y.shape(), 4)))));
        results.back()["y"] = y;
      }
      for (const auto& [name, want] : results[1]) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(type), all.front().kind->name, name));
        expect_near(results[0].at(name), Matrix(want), "over quantised rows", 1e-5);
      }
    }
}

}  // namespace
}  // namespace wick
