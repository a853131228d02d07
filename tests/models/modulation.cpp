// Modulations that are made ahead of the steps, against those of the steps themselves.
#include <gtest/gtest.h>

#include <cmath>

#include "device.h"
#include "io/files.h"
#include "pipelines/golden.h"
#include "wick/models/flux/names.h"
#include "wick/models/flux/transformer.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

const std::filesystem::path kModel = kGolden / "flux/dev/transformer";

struct Outcome {
  Tensor y;
  std::map<std::string, Tensor> gradients;
};

FluxInput input(const FluxConfig& config) {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "flux/dev/wide_grad.in.safetensors");
  const auto load = [&](const char* name) { return in.load(name).to(test::memory()); };
  return {.tokens = load("hidden_states"),
          .timestep = load("timestep") * 1000.0f,
          .guidance = load("guidance"),
          .pooled = load("pooled_projections"),
          .text = load("encoder_hidden_states"),
          .rotary = flux_rotary(flux_places(5, 4, 14), config, test::memory())};
}

Outcome run(FlowTransformerOptions options, bool given, const std::vector<LoraFile>& loras, bool trainable) {
  const FluxConfig config = FluxConfig::read(kModel);
  Adapter adapter(flux_module_names(), loras, trainable);
  const WeightsOptions place{.place = Residence::on(test::backend(), DType::f32)};
  const Weights weights(flux_source(Checkpoint(kModel).source()), place);
  const auto build = [&](const Weights& shapes) { FluxTransformer(Scope(shapes, "transformer"), config, options); };
  if (const size_t count = options.block_schedule.streamed())
    options.block_schedule.stream(weights.stream(count, build));
  const FluxTransformer model(Scope(weights, "transformer", &adapter), config, options);
  weights.read_deferred();
  EXPECT_EQ(model.modulates_ahead(), options.modulations_ahead);
  FluxInput x = input(config);
  if (given) x.modulations = model.modulations(x).to(test::memory());
  Tape tape;
  const Tensor y = model(x), loss = mean(square(y));
  return {y.detached(), adapter.gradients(tape.backward(loss))};
}

// With a LoRA on every module of the blocks, modulations among them.
Outcome run(FlowTransformerOptions options, bool given) {
  return run(std::move(options), given, {{kGolden / "flux/dev/lora.safetensors"}}, /*trainable=*/true);
}

class ModulationsAhead : public testing::TestWithParam<bool> {};

TEST_P(ModulationsAhead, AreThoseOfTheStep) {
  const Outcome resident = run({.block_schedule = BlockSchedule::recomputing_all(GetParam())}, false);
  EXPECT_GT(resident.gradients.size(), 0u);
  for (const bool given : {true, false}) {
    const Outcome ahead =
        run({.block_schedule = BlockSchedule::recomputing_all(GetParam()), .modulations_ahead = true}, given);
    EXPECT_LE(relative_error(ahead.y, resident.y), 1e-5);
    ASSERT_EQ(ahead.gradients.size(), resident.gradients.size());
    for (const auto& [name, gradient] : resident.gradients)
      EXPECT_LE(relative_error(ahead.gradients.at(name), gradient), 1e-4) << name;
  }
}
// Modulations read their biases while no block runs, whatever lies in the slots.
TEST_P(ModulationsAhead, OfStreamedBlocksHaveTheSameBits) {
  const BlockSchedule blocks = BlockSchedule::recomputing_all(GetParam());
  for (const bool given : {true, false}) {
    const Outcome resident = run({.block_schedule = blocks, .modulations_ahead = true}, given);
    const Outcome streamed =
        run({.block_schedule = blocks.with_streamed(BlockSchedule::kAll), .modulations_ahead = true}, given);
    EXPECT_EQ(streamed.y.to_vector(), resident.y.to_vector());
    for (const auto& [name, gradient] : resident.gradients)
      EXPECT_EQ(streamed.gradients.at(name).to_vector(), gradient.to_vector()) << name;
  }
}
INSTANTIATE_TEST_SUITE_P(Flux, ModulationsAhead, testing::Bool());

// Biases that adapters change are added to what was made ahead.
TEST(ModulationsAheadOfBiases, AreThoseOfTheStep) {
  const TemporaryDirectory folder;
  const int64_t dim = 48;
  const auto drawn = [](const Shape& shape, uint64_t seed) {
    Rng rng(seed);
    return random_normal(shape, rng) * 0.3f;
  };
  const std::string first = "diffusion_model.double_blocks.0.img_mod.lin",
                    second = "diffusion_model.double_blocks.1.txt_mod.lin";
  save_safetensors(folder / "1", {{first + ".diff_b", drawn({6 * dim}, 1)},
                                  {second + ".lora_A.weight", drawn({2, dim}, 2)},
                                  {second + ".lora_B.weight", drawn({6 * dim, 2}, 3)},
                                  {second + ".lora_B.bias", drawn({6 * dim}, 4)}});
  save_safetensors(folder / "2", {{first + ".lora_A.weight", drawn({2, dim}, 5)},
                                  {first + ".lora_B.weight", drawn({6 * dim, 2}, 6)},
                                  {second + ".diff_b", drawn({6 * dim}, 7)}});
  const std::vector<LoraFile> files = {{folder / "1"}, {folder / "2", 0.5f}};
  const Tensor resident = run({}, false, files, false).y;
  EXPECT_GT(relative_error(resident, run({}, false, {files[0]}, false).y), 1e-3);
  EXPECT_LE(relative_error(run({.modulations_ahead = true}, true, files, false).y, resident), 1e-5);
}

// To squares of a millionth the norms add as much.
TEST(Modulations, NormsAddAMillionth) {
  const auto tensor = [](const std::vector<float>& values, const Shape& shape) {
    return Tensor::of(values, shape, test::memory());
  };
  constexpr float kSmall = 1e-3f;
  const Tensor none = zeros({1, 2}, DType::f32, test::memory());
  const std::vector<float> normed = modulated_norm(tensor({kSmall, -kSmall}, {1, 1, 2}), none, none).to_vector();
  EXPECT_NEAR(normed[0], std::sqrt(0.5), 1e-5);
  EXPECT_NEAR(normed[1], -std::sqrt(0.5), 1e-5);

  // Queries and keys become 1/sqrt(2) in both features; the second key is zero.
  const Tensor qkv = tensor({kSmall, kSmall, kSmall, kSmall, 1, 0, kSmall, kSmall, 0, 0, 0, 1}, {1, 2, 6}),
               scale = tensor({1, 1}, {2});
  const double share = 1 / (1 + std::exp(-std::sqrt(0.5)));
  for (const float value : slice(joint_attention({{qkv, scale, scale}}, {.heads = 1}), 2, 0, 1).to_vector())
    EXPECT_NEAR(value, share, 1e-5);
}

// The vector's gradient would need the weights.
TEST(Modulations, StayWhereTheirInputsAreTrained) {
  const FluxConfig config = FluxConfig::read(kModel);
  Adapter adapter({.rank = 2, .targets = {"transformer.vector_in.*"}}, flux_module_names());
  const Weights weights(flux_source(Checkpoint(kModel).source()), {});
  const FluxTransformer model(Scope(weights, "transformer", &adapter), config, {.modulations_ahead = true});
  EXPECT_FALSE(model.modulates_ahead());
}

}  // namespace
}  // namespace wick
