#include "wick/pipelines/plan.h"

#include <gtest/gtest.h>

#include "source_dir.h"
#include "wick/pipelines/memory_fit.h"
#include "wick/pipelines/text_generation.h"

namespace wick {
namespace {

// A plan's bytes are those that a run takes on the host, where memory is counted too.
TEST(TextPlan, IsWhatARunTakes) {
  Memory& host = cpu_backend().memory();
  const std::filesystem::path folder = test::source_dir() / "tests/golden/llama/llama3";
  const LlamaConfig config = LlamaConfig::read(folder);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const InferencePlan plan = plan_text(config, dtype, 100, device_kind("cpu"));
    const size_t before = host.in_use();
    const Llama model = Llama::load(folder, {.dtype = dtype});
    Generator generator(model, 100);
    EXPECT_EQ(host.in_use() - before, plan.weights + plan.cache);
    host.reset_peak();
    TextRequest request;
    request.prompt.assign(99, 7);
    request.max_tokens = 1;
    generator(request, {[](int64_t) { return std::string(); }, [] { return std::string(); }});
    const double measured = double(host.peak() - before), planned = double(plan.taken);
    EXPECT_NEAR(planned, measured, 0.05 * measured);
  }
}

TEST(TextPlan, WeightsAreStagedWhereTheyMayNotBeLocked) {
  LlamaConfig config = LlamaConfig::read(test::source_dir() / "tests/golden/llama/llama3");
  config.layers = 8;
  config.windowed.assign(8, false);
  const auto plan = [&](const std::optional<HostLimit>& host) {
    return plan_held({.streamed = BlockSchedule::kAll}, host, [&](const Holding& held) {
      return plan_text(config, DType::bf16, 100, device_kind("cuda"), held.block_schedule());
    });
  };
  const InferencePlan locked = plan({}).plan;
  EXPECT_GT(locked.host, 0u);
  const HostLimit less{locked.host - 1, 3 * locked.host};
  const auto [held, staged] = plan(less);
  EXPECT_TRUE(held.staged);
  EXPECT_EQ(staged.staged, locked.host);
  EXPECT_GT(staged.host, 0u) << "a block's bytes, for each slot";
  EXPECT_EQ(staged.total(), locked.total());
  EXPECT_GT(staged.seconds(), locked.seconds());
  EXPECT_FALSE(plan(HostLimit{locked.host, locked.host}).holding.staged) << "it may be locked";
}

}  // namespace
}  // namespace wick
