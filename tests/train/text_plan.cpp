// The plan of training a language model against the memory that it takes.
#include <gtest/gtest.h>

#include <cstdio>

#include "device.h"
#include "source_dir.h"
#include "wick/train/plan.h"
#include "wick/train/step.h"
#include "wick/train/text_task.h"

namespace wick {
namespace {

void expect_planned(const TrainConfig& config, const char* family) {
  const std::filesystem::path model = test::source_dir() / "tests/golden/llama" / family;
  const DeviceKind kind = device_kind(test::backend().name());
  const MemoryPlan plan = plan_memory(config, model, kind);
  ASSERT_EQ(plan.bucket.width, 128);

  TextDataset data;
  const size_t row = 128;
  for (int i = 0; i < 8; ++i) data.documents.push_back({std::vector<int64_t>(row, i), std::vector<bool>(row, true)});
  Memory& memory = test::memory();
  const size_t before = memory.in_use();
  const auto task =
      make_text_task(config, model, test::backend(), {.train = &data, .row_length = 128}, plan.block_schedule);
  Optimizer optimizer(task->parameters(), {});
  TrainStep step(*task, optimizer, StepOrder::of(config.accumulate), /*graph=*/true);
  TrainRng rng(1);
  memory.reset_peak();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(step(rng, 1e-4f).wait().halted);
  EXPECT_EQ(plan.weights, memory.held(Purpose::weights));
  EXPECT_EQ(plan.adapter, memory.held(Purpose::adapter));
  EXPECT_EQ(plan.optimizer, memory.held(Purpose::optimizer));
  const double measured = double(memory.peak() - before), planned = double(plan.step());
  std::printf("  planned %.3f MiB, measured %.3f MiB: %+.1f %%\n", planned / (1 << 20), measured / (1 << 20),
              100 * (planned / measured - 1));
  EXPECT_NEAR(planned, measured, 0.05 * measured + double(kind.workspace));
}

TEST(TextTrainingPlan, ALora) { expect_planned({.rank = 4, .alpha = 4}, "llama3"); }
TEST(TextTrainingPlan, BatchesInWindows) {
  expect_planned({.rank = 8, .alpha = 8, .batch_size = 3, .accumulate = 2}, "mistral");
}
TEST(TextTrainingPlan, Checkpointing) {
  expect_planned({.rank = 4, .alpha = 4, .batch_size = 4, .gradient_checkpointing = true}, "qwen3");
}
TEST(TextTrainingPlan, CheckpointingOfSomeLayers) {
  expect_planned({.rank = 4, .alpha = 4, .batch_size = 4, .checkpoint_blocks = "1"}, "qwen3");
}
TEST(TextTrainingPlan, WeightsFromTheHost) {
  expect_planned({.rank = 4, .alpha = 4, .batch_size = 2, .stream_blocks = "all"}, "qwen3");
}
TEST(TextTrainingPlan, WeightsInBf16) { expect_planned({.rank = 4, .alpha = 4, .dtype = DType::bf16}, "llama2"); }

TEST(TextTrainingPlan, AllWeights) { expect_planned({.train = TrainMode::full, .batch_size = 2}, "qwen2"); }
TEST(TextTrainingPlan, AllWeightsWithAverages) {
  expect_planned({.train = TrainMode::full, .accumulate = 2, .gradient_checkpointing = true}, "qwen3");
}

}  // namespace
}  // namespace wick
