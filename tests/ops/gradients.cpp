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
