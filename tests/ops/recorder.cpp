#include "wick/ops/recorder.h"

#include <gtest/gtest.h>

#include "device.h"
#include "wick/core/rng.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

// Whatever is replayed reads its inputs' values of that time.
TEST(Recorder, ComputesWithTheCurrentInputs) {
  Memory& memory = test::memory();
  Recorder recorder(memory.backend());
  Rng rng(5);
  const Tensor sum = zeros({7, 3}, DType::f32, memory);
  for (int turn = 0; turn < 4; ++turn)
    for (const int64_t rows : {1, 7})
      for (const bool doubles : {false, true}) {
        const NamedTensors inputs{{"a", random_normal({7, 3}, rng).to(memory)},
                                  {"b", random_normal({rows, 3}, rng).to(memory)}};
        const auto body = [&](const NamedTensors& in) {
          const Tensor product = in["a"] * in["b"];
          memory.backend().copy(sum.view(), (doubles ? product + product : product).view());
        };
        recorder.run(doubles ? "doubled" : "product", inputs, body);
        const std::vector<float> a = inputs["a"].to_vector(), b = inputs["b"].to_vector(), found = sum.to_vector();
        for (size_t i = 0; i < a.size(); ++i)
          EXPECT_EQ(found[i], a[i] * b[i % b.size()] * (doubles ? 2 : 1)) << turn << " " << rows << " " << i;
      }
}

TEST(Recorder, ForgetsWhatIsOldest) {
  Memory& memory = test::memory();
  Recorder recorder(memory.backend());
  const Tensor last = zeros({1}, DType::f32, memory);
  for (int turn = 0; turn < 3; ++turn)
    for (int64_t rows = 1; rows <= 40; ++rows) {
      const NamedTensors inputs{{"x", full({rows}, float(turn + rows), DType::f32, memory)}};
      recorder.run("", inputs, [&](const NamedTensors& in) {
        memory.backend().copy(last.view(), slice(in["x"] + 1.0f, 0, rows - 1, rows).view());
      });
      EXPECT_EQ(last.item(), float(turn + rows + 1));
    }
}

}  // namespace
}  // namespace wick
