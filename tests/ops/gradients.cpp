// Every op's backward against central differences, contiguous and strided, and the walk over all ops.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "device.h"
#include "ops/harness.h"

namespace wick::test {
namespace {

uint64_t fresh_seed() {
  static const uint64_t seed =
      std::getenv("WICK_TEST_SEED") ? std::stoull(std::getenv("WICK_TEST_SEED")) : std::random_device{}();
  return seed;
}

enum class Layout { contiguous, strided };

// A tensor of this shape; strided ones sit in every second column of a larger, NaN-filled storage with axes swapped.
Tensor random_input(const Shape& shape, Layout layout, const OpCase& row, Rng& rng) {
  const Tensor values = affine(random_normal(shape, rng, test::memory()), row.scale, row.shift);
  if (layout == Layout::contiguous) return values;
  Shape storage = shape;
  for (int i = 0; i < shape.rank(); ++i) storage[i] = shape[shape.rank() - 1 - i];
  storage[storage.rank() - 1] = storage.back() * 2 + 1;
  const Tensor big = full(storage, NAN, DType::f32, test::memory());
  Shape stride;
  const Shape dense = contiguous_strides(storage);
  for (int i = 0; i < shape.rank(); ++i) stride.push_back(dense[shape.rank() - 1 - i] * (i == 0 ? 2 : 1));
  const Tensor view = big.window(shape, stride, 1);
  view.backend().copy(view, values);
  return view;
}

double weighted_sum(const Tensor& y, const std::vector<float>& weights) {
  const std::vector<float> values = y.to_vector();
  double total = 0;
  for (size_t i = 0; i < values.size(); ++i) total += double(values[i]) * double(weights[i]);
  return total;
}

void check_gradients(const OpCase& row, Layout layout) {
  SCOPED_TRACE("WICK_TEST_SEED=" + std::to_string(fresh_seed()));
  Rng rng(fresh_seed());
  std::vector<Tensor> inputs;
  for (const Shape& shape : row.inputs) inputs.push_back(random_input(shape, layout, row, rng).trainable());

  Tape tape;
  const Tensor y = row.f(inputs);
  ASSERT_TRUE(y.tracked());
  const Tensor dy = random_normal(y.shape(), rng, test::memory());
  const std::vector<float> weights = dy.to_vector();
  Grads grads;
  tape.backward(y, dy, grads);

  const TapePause pause;
  for (size_t n = 0; n < inputs.size(); ++n) {
    const Tensor grad = grads[inputs[n]];
    ASSERT_TRUE(grad) << "input " << n << " got no gradient";
    ASSERT_EQ(grad.shape(), inputs[n].shape());
    const std::vector<float> analytic = grad.to_vector(), values = inputs[n].to_vector();
    double largest = 0, worst = 0;
    for (size_t i = 0; i < analytic.size(); ++i) {
      auto shifted = [&](double step) {
        std::vector<float> moved = values;
        moved[i] = float(double(values[i]) + step);
        std::vector<Tensor> arguments = inputs;
        arguments[n] = Tensor::of(moved, inputs[n].shape(), test::memory());
        return weighted_sum(row.f(arguments), weights);
      };
      // Fourth-order central difference: the truncation error is far below the f32 rounding error / step.
      const double h = row.step;
      const double numeric = (8 * (shifted(h) - shifted(-h)) - (shifted(2 * h) - shifted(-2 * h))) / (12 * h);
      largest = std::max(largest, std::abs(numeric));
      worst = std::max(worst, std::abs(numeric - double(analytic[i])));
    }
    // f32 forward values of size S differ by about S eps per evaluation, divided by the step: 1e-7 * 10 / 1e-2.
    EXPECT_LE(worst, 1e-3 * std::max(largest, 1.0)) << row.name << ", input " << n;
  }
}

class OpGradient : public testing::TestWithParam<OpCase> {
 protected:
  static void SetUpTestSuite() { cpu_backend(); }
};

TEST_P(OpGradient, AgreesWithDifferences) { check_gradients(GetParam(), Layout::contiguous); }
TEST_P(OpGradient, AgreesWithDifferencesOnStridedInputs) { check_gradients(GetParam(), Layout::strided); }

INSTANTIATE_TEST_SUITE_P(Ops, OpGradient, testing::ValuesIn(op_cases()),
                         [](const auto& instance) { return instance.param.name; });

// Inputs of a row that stay f32 where activations have 16 bits: vectors of norms and biases, and the factors of LoRAs.
bool stays_f32(const OpCase& row, size_t input) {
  const int rank = row.inputs[input].rank();
  if (row.name.find("lora") != std::string::npos) return input > 0 && rank != 3;
  static const std::set<std::string> kWithVectors = {"linear", "conv2d", "group_norm", "layer_norm", "rms_norm"};
  return rank == 1 && kWithVectors.count(row.op) > 0;
}

// The gradients of a row's inputs, whose values 16 bits of `dtype` hold, with activations in `computed`.
std::vector<std::vector<float>> gradients_in(const OpCase& row, DType dtype, DType computed) {
  Rng rng(fresh_seed());
  std::vector<Tensor> leaves, arguments;
  const auto random = [&](const Shape& shape) {
    return cast(cast(affine(random_normal(shape, rng, test::memory()), row.scale, row.shift), dtype), DType::f32);
  };
  for (const Shape& shape : row.inputs) leaves.push_back(random(shape).trainable());
  Tape tape;
  for (size_t n = 0; n < leaves.size(); ++n)
    arguments.push_back(stays_f32(row, n) ? leaves[n] : cast(leaves[n], computed));
  const Tensor y = row.f(arguments);
  Grads grads;
  tape.backward(y, cast(random(y.shape()), y.dtype()), grads);
  std::vector<std::vector<float>> all;
  for (const Tensor& leaf : leaves) all.push_back(grads[leaf].to_vector());
  return all;
}

// Against the same gradients in f32, which the rows above hold against differences.
TEST_P(OpGradient, AgreesInSixteenBits) {
  if (test::backend().computes_in(DType::bf16) == DType::f32) GTEST_SKIP() << "this device computes in f32";
  SCOPED_TRACE("WICK_TEST_SEED=" + std::to_string(fresh_seed()));
  const OpCase& row = GetParam();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const auto want = gradients_in(row, dtype, DType::f32), found = gradients_in(row, dtype, dtype);
    // A row rounds up to eight times on the way back, each time by at most half a unit in the last place of a term,
    // which may be twice as large as the sum.
    const double unit = dtype == DType::bf16 ? 1.0 / 512 : 1.0 / 4096;
    for (size_t n = 0; n < want.size(); ++n) {
      double largest = 1, worst = 0;
      for (size_t i = 0; i < want[n].size(); ++i) {
        largest = std::max(largest, std::abs(double(want[n][i])));
        worst = std::max(worst, std::abs(double(want[n][i]) - double(found[n][i])));
      }
      EXPECT_LE(worst, 16 * unit * largest) << row.name << " in " << name_of(dtype) << ", input " << n;
    }
  }
}

// Ops whose gradient is checked elsewhere than by a row, and the place.
const std::set<std::string> kCheckedElsewhere = {"cast"};  // below: a cast has no small differences

TEST(Ops, EveryOpHasAGradientCheck) {
  std::set<std::string> covered = kCheckedElsewhere;
  for (const OpCase& row : op_cases()) covered.insert(row.op);
  for (const Op* op : Op::all()) {
    if (op->differentiable()) {
      EXPECT_TRUE(covered.count(op->name())) << op->name() << " has no row in tests/ops/cases.cpp";
    }
    covered.erase(op->name());
  }
  for (const std::string& name : covered) ADD_FAILURE() << name << " is checked but no such op is registered";
}

TEST(Ops, CastPassesTheGradientInTheInputsType) {
  cpu_backend();
  const Tensor x = Tensor::of(std::vector<float>{1.5f, -2.25f, 0.125f}, {3}).trainable();
  Tape tape;
  const Grads grads = tape.backward(sum(cast(cast(x, DType::bf16), DType::f32) * 3.0f));
  EXPECT_EQ(grads[x].dtype(), DType::f32);
  EXPECT_EQ(grads[x].to_vector(), (std::vector<float>{3, 3, 3}));
}

}  // namespace
}  // namespace wick::test
