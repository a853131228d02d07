// The plan of a run against the run's memory, on the golden model.
#include "wick/train/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "device.h"
#include "io/files.h"
#include "source_dir.h"
#include "wick/train/latent_cache.h"
#include "wick/train/picture_settings.h"
#include "wick/train/step.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = test::source_dir() / "tests/golden/sdxl";
const fs::path kPictures = test::source_dir() / "data/tiny-style";

struct Measured {
  size_t weights, adapter, optimizer, encoding, step;
};

// As many pictures of one bucket as in a batch.
Dataset one_batch(const TrainConfig& config, const Resolutions& buckets, Size bucket) {
  Dataset dataset = Dataset::scan(kPictures, buckets);
  dataset.examples.resize(size_t(config.batch_size));
  apply(config, dataset.sources.groups.front().subsets.front());
  for (Example& e : dataset.examples) {
    e.placement = {.bucket = bucket, .scaled = bucket};
    if (config.alpha_mask) e.mask = e.image;
  }
  return dataset;
}

// A plan leaves out the encoded data set: it lies on the host, and on the CPU counts beside the rest.
Measured measure(const TrainConfig& config, Size bucket, const BlockSchedule& block_schedule) {
  Memory& memory = test::memory();
  const size_t before = memory.in_use();
  const auto peak = [&] { return memory.peak() - before - memory.held(Purpose::data); };
  const Resolutions buckets = bucket_options(open_diffusion(kModel)->latents(), config.resolution);
  const Dataset dataset = one_batch(config, buckets, bucket);

  memory.reset_peak();
  const auto task =
      make_task(config, kModel, test::backend(),
                {.dataset = &dataset, .progress = [](const std::string&, size_t, size_t) {}}, block_schedule);
  Measured measured{.encoding = peak()};
  Shard shard = shard_of(config, 0);
  shard.rank = largest_owner(task->parameters(), shard.count);
  Optimizer optimizer(task->parameters(), OptimizerOptions::of(config), shard);
  TrainStep step(*task, optimizer, StepOrder::of(config.accumulate * config.ranks, 0, config.ranks), !config.no_graph);
  TrainRng rng(1);
  memory.reset_peak();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(step(rng, 1e-4f).wait().halted);
  measured.step = peak();
  measured.weights = memory.held(Purpose::weights);
  measured.adapter = memory.held(Purpose::adapter);
  measured.optimizer = memory.held(Purpose::optimizer);
  return measured;
}

void expect_close(size_t planned, size_t measured, size_t allowance, const char* what) {
  std::printf("  %-10s planned %8.3f MiB, measured %8.3f MiB: %+.1f %%\n", what, double(planned) / (1 << 20),
              double(measured) / (1 << 20), 100 * (double(planned) / double(measured) - 1));
  EXPECT_GE(double(planned + allowance), 0.9 * double(measured)) << what;
  EXPECT_LE(double(planned), 1.1 * double(measured)) << what;
}

void expect_planned(TrainConfig config) {
  config.model = kModel;
  if (config.resolution == std::vector<Resolution>{0}) config.resolution = {128};
  const DeviceKind kind = device_kind(test::backend().name());
  const MemoryPlan plan = plan_memory(config, kModel, kind);
  const Measured measured = measure(config, plan.bucket, plan.block_schedule);
  EXPECT_EQ(plan.weights, measured.weights);
  EXPECT_EQ(plan.adapter, measured.adapter);
  EXPECT_EQ(plan.optimizer, measured.optimizer);
  if (!config.random_crop) expect_close(plan.encoding, measured.encoding, kind.workspace, "encoding");
  expect_close(plan.step(), measured.step, kind.workspace, "step");
  EXPECT_GE(plan.taken, std::max(plan.step(), plan.encoding));
  EXPECT_EQ(plan.total(), plan.taken + kind.workspace + kind.context + plan.collectives);
}

TEST(Plan, ALora) { expect_planned({.rank = 4, .alpha = 4}); }
// Between steps a preview takes what is planned.
TEST(Plan, Previews) {
  const TemporaryDirectory folder;
  write_plain(folder / "p.txt", "a heart --w 256 --h 128 --s 3\na star --n dull --l 3 --w 64 --h 64 --s 3\n");
  TrainConfig config{.model = kModel, .rank = 4, .alpha = 4, .resolution = {128}};
  config.sample_prompts = folder / "p.txt";
  const DeviceKind kind = device_kind(test::backend().name());
  const MemoryPlan plan = plan_memory(config, kModel, kind);
  EXPECT_GT(plan.previews, plan.step());
  EXPECT_GE(plan.taken, plan.previews);

  Memory& memory = test::memory();
  const size_t before = memory.in_use();
  const Dataset dataset =
      one_batch(config, bucket_options(open_diffusion(kModel)->latents(), config.resolution), plan.bucket);
  const auto task = make_task(config, kModel, test::backend(),
                              {.dataset = &dataset, .progress = [](const std::string&, size_t, size_t) {}}, {});
  Optimizer optimizer(task->parameters(), OptimizerOptions::of(config));
  memory.reset_peak();
  for (const size_t i : {0, 1}) task->preview(i, [](int64_t, int64_t) {});
  expect_close(plan.previews, memory.peak() - before, kind.workspace, "previews");
}
TEST(Plan, ALargerRank) { expect_planned({.rank = 64, .alpha = 64}); }
TEST(Plan, Batches) { expect_planned({.rank = 4, .alpha = 4, .batch_size = 4}); }
TEST(Plan, AHigherResolution) { expect_planned({.rank = 4, .alpha = 4, .batch_size = 2, .resolution = {256}}); }
TEST(Plan, TheLargestOfSeveralResolutions) {
  expect_planned({.rank = 4, .alpha = 4, .resolution = {256, 64}});
  const auto total = [](const TrainConfig& config) { return plan_memory(config, kModel, device_kind("cpu")).total(); };
  EXPECT_EQ(total({.rank = 4, .alpha = 4, .resolution = {64, 256, 128}}),
            total({.rank = 4, .alpha = 4, .resolution = {256}}));
}
TEST(Plan, WeightsInBf16) { expect_planned({.rank = 4, .alpha = 4, .batch_size = 2, .dtype = DType::bf16}); }
TEST(Plan, MicroBatchesAndAverages) {
  expect_planned({.rank = 16, .alpha = 16, .batch_size = 2, .accumulate = 4, .ema = 0.9});
}
// A rank has room for the sum of gradients even where a step is one batch of each.
TEST(Plan, OneOfSeveralRanks) {
  const auto optimizer = [](int64_t accumulate, int64_t ranks) {
    TrainConfig config{.model = kModel, .rank = 16, .alpha = 16, .accumulate = accumulate, .resolution = {128}};
    config.ranks = ranks;
    expect_planned(config);
    return plan_memory(config, kModel, device_kind("cuda")).optimizer;
  };
  const size_t alone = optimizer(1, 1), several = optimizer(1, 2);
  EXPECT_GT(several, alone + alone / 4) << "two moments, and the sum";
  EXPECT_EQ(optimizer(1, 8), several);
  EXPECT_EQ(optimizer(4, 2), several);
  EXPECT_EQ(optimizer(4, 1), several);
}
// Collectives take memory of a device, and the host's where light sums go through it.
TEST(Plan, CollectivesOfSeveralDevices) {
  TrainConfig config{.model = kModel, .rank = 4, .alpha = 4, .accumulate = 2, .resolution = {128}};
  for (const char* device : {"cuda", "cpu"}) {
    const DeviceKind kind = device_kind(device);
    config.ranks = 1;
    const MemoryPlan alone = plan_memory(config, kModel, kind);
    config.ranks = 4;
    const MemoryPlan four = plan_memory(config, kModel, kind);
    EXPECT_EQ(alone.collectives, 0u);
    EXPECT_EQ(four.collectives, kind.nccl);
    EXPECT_EQ(four.collectives > 0, kind.is_device);
    EXPECT_EQ(four.total(), alone.total() + four.collectives);
    config.gpus = "4";
    const MemoryPlan threads = plan_memory(config, kModel, kind);
    EXPECT_EQ(threads.collectives, kind.sums_of_threads);
    EXPECT_EQ(kind.sums_of_threads > 0, kind.is_device);
    EXPECT_EQ(threads.host_sums, threads.are_sums_light(4) ? kind.sums_of_threads : 0);
    EXPECT_EQ(threads.host_of(4), 4 * threads.host_sums);
    config.gpus.clear();
  }
}
// 7B at rank 16 and SDXL at ranks 32 and 4, with the seconds that an H200 takes.
TEST(Plan, SumsAreLightWhereTheHostsLinkHasTimeForThem) {
  const auto is_light = [](double trained, double seconds, int devices, double fetched = 0) {
    MemoryPlan plan{};
    plan.device = device_kind("cuda", "9.0");
    plan.trained = int64_t(trained);
    plan.cost = {.fetched = fetched, .seconds = seconds};
    return plan.are_sums_light(devices);
  };
  for (const int devices : {2, 4}) EXPECT_TRUE(is_light(42e6, 0.107, devices)) << devices;
  EXPECT_FALSE(is_light(42e6, 0.107, 16));
  EXPECT_FALSE(is_light(85e6, 0.056, 2));
  EXPECT_TRUE(is_light(11e6, 0.056, 4));
  EXPECT_FALSE(is_light(42e6, 0.107, 2, 1e9)) << "weights are streamed";
}
TEST(Plan, EachOptimizer) {
  std::set<size_t> sizes;
  for (size_t i = 0; i < split_names(names_of(OptimizerKind{})).size(); ++i) {
    TrainConfig config{.model = kModel, .rank = 64, .alpha = 64, .resolution = {128}};
    config.optimizer = OptimizerKind(i);
    expect_planned(config);
    sizes.insert(plan_memory(config, kModel, device_kind("cuda")).optimizer);
  }
  EXPECT_GE(sizes.size(), 5u);
}
TEST(Plan, TheWholeUNetWith8BitStates) {
  expect_planned({.train = TrainMode::full, .batch_size = 2, .optimizer = OptimizerKind::adamw8bit});
}
TEST(Plan, PicturesThatAreEncodedAsTheyComeAndMasks) {
  TrainConfig config{.rank = 4, .alpha = 4, .batch_size = 2};
  config.random_crop = config.masked_loss = config.alpha_mask = true;
  expect_planned(config);
}
TEST(Plan, Checkpointing) { expect_planned({.rank = 4, .alpha = 4, .batch_size = 4, .gradient_checkpointing = true}); }
TEST(Plan, CheckpointingOfSomeBlocks) {
  expect_planned({.rank = 4, .alpha = 4, .batch_size = 4, .checkpoint_blocks = "7"});
}
TEST(Plan, WeightsFromTheHost) {
  expect_planned({.rank = 4, .alpha = 4, .batch_size = 2, .stream_blocks = "5"});
  expect_planned({.rank = 4, .alpha = 4, .gradient_checkpointing = true, .stream_blocks = "all"});
}
TEST(Plan, CheckpointsOnTheHost) {
  TrainConfig config{.rank = 4, .alpha = 4, .batch_size = 2, .gradient_checkpointing = true};
  config.checkpoints_on_host = true;
  expect_planned(config);
}
// A step decodes each weight for its product, and in backward once.
TEST(Plan, BlocksThatRunTwiceAreDecodedOnceInBackward) {
  const auto decoded = [](const std::string& blocks) {
    TrainConfig config{.model = kModel, .rank = 4, .alpha = 4, .resolution = {128}, .dtype = DType::bf16};
    config.quantize = Quantize::int8;
    config.checkpoint_blocks = blocks;
    return plan_memory(config, kModel, device_kind("cuda")).cost.decoded;
  };
  EXPECT_GT(decoded("0"), 0);
  EXPECT_LE(decoded("all"), decoded("0"));  // there some products are made again
}
// On a device the weights are those of the blocks that are resident, and room for two.
TEST(Plan, StreamedBlocksTakeLess) {
  const auto plan = [](const std::string& blocks) {
    return plan_memory(
        {.model = kModel, .rank = 4, .alpha = 4, .resolution = {128}, .dtype = DType::bf16, .stream_blocks = blocks},
        kModel, device_kind("cuda"));
  };
  const MemoryPlan none = plan("0"), some = plan("14"), all = plan("all");
  EXPECT_EQ(none.host, 0u);
  EXPECT_EQ(none.cost.fetched, 0);
  EXPECT_GT(all.host, some.host);
  EXPECT_LT(all.weights, some.weights);
  EXPECT_LT(some.weights, none.weights);
  EXPECT_GE(all.weights + all.host, none.weights);
  EXPECT_GT(all.cost.fetched, double(all.host));  // nearly twice: two blocks wait at each turn
  EXPECT_LT(all.cost.fetched, 2 * double(all.host));
  EXPECT_THROW(plan("1000"), Error);
}
// Where less may be page-locked than streamed weights take, they lie in ordinary memory and come more slowly.
TEST(Plan, WeightsAreStagedWhereTheyMayNotBeLocked) {
  const TrainConfig config{
      .model = kModel, .rank = 4, .alpha = 4, .resolution = {128}, .dtype = DType::bf16, .stream_blocks = "all"};
  const auto plan = [&](const std::optional<HostLimit>& host) {
    return plan_memory(config, kModel, device_kind("cuda"), {}, nullptr, host);
  };
  const MemoryPlan locked = plan({}), staged = plan(HostLimit{locked.host - 1, 2 * locked.host});
  EXPECT_EQ(locked.staged, 0u);
  EXPECT_EQ(staged.staged, locked.host);
  EXPECT_LT(staged.host, locked.host / 2) << "a block's bytes, twice";
  EXPECT_GT(staged.host, 0u);
  EXPECT_EQ(staged.total(), locked.total());
  EXPECT_EQ(staged.cost.fetched, locked.cost.fetched);
  EXPECT_GT(staged.seconds(), locked.seconds());
  EXPECT_TRUE(staged.block_schedule.is_staged());
  EXPECT_EQ(plan(HostLimit{locked.host, locked.host}).staged, 0u) << "it may be locked";
  EXPECT_EQ(plan(HostLimit{locked.host - 1, locked.host - 1}).staged, 0u) << "nor is there room for it";
}
// Devices of one process have streamed weights on the host once, and inputs of blocks and rooms for staging each.
TEST(Plan, DevicesOfAProcessShareStreamedWeights) {
  TrainConfig config{
      .model = kModel, .rank = 4, .alpha = 4, .resolution = {128}, .dtype = DType::bf16, .stream_blocks = "all"};
  const auto plan = [&](const std::optional<HostLimit>& host = {}) {
    return plan_memory(config, kModel, device_kind("cuda"), {}, nullptr, host);
  };
  const MemoryPlan weights = plan();
  EXPECT_EQ(weights.host_own, 0u);
  EXPECT_EQ(weights.host_of(4), weights.host);
  const HostLimit four{weights.host, weights.host, 4};
  EXPECT_TRUE(four.allows(weights));
  const MemoryPlan staged = plan(HostLimit{weights.host - 1, 3 * weights.host, 4});
  EXPECT_EQ(staged.staged, weights.host);
  EXPECT_EQ(staged.host_own, staged.host);
  EXPECT_EQ(staged.host_of(4), 4 * staged.host);
  config.gradient_checkpointing = true;
  config.checkpoints_on_host = true;
  const MemoryPlan both = plan();
  EXPECT_EQ(both.host - both.host_own, weights.host);
  EXPECT_EQ(both.host_of(4), weights.host + 4 * both.host_own);
  EXPECT_FALSE((HostLimit{both.host_of(4) - 1, both.host_of(4) - 1, 4}).allows(both));
  EXPECT_EQ(locked_by(both, HostLimit{1, 1, 4}), both.host_of(4));
  EXPECT_EQ(locked_by(both, {}), both.host);
}
// The same bits, call by call, recorded and replayed; also from masters that another task has made.
TEST(Plan, StagedAndSharedWeightsTrainAlike) {
  const TrainConfig config{
      .model = kModel, .rank = 4, .alpha = 4, .resolution = {128}, .dtype = DType::bf16, .stream_blocks = "all"};
  const Resolutions buckets = bucket_options(open_diffusion(kModel)->latents(), config.resolution);
  const Dataset dataset = one_batch(config, buckets, {128, 128});
  const PictureData data{.dataset = &dataset, .progress = [](const std::string&, size_t, size_t) {}};
  const auto losses = [&](bool staged, const std::shared_ptr<HostCopies>& copies = {}) {
    const BlockSchedule blocks = BlockSchedule().with_streamed(BlockSchedule::kAll, staged).with_host_copies(copies);
    const auto other = copies ? make_task(config, kModel, test::backend(), data, blocks) : nullptr;
    const auto task = make_task(config, kModel, test::backend(), data, blocks);
    Optimizer optimizer(task->parameters(), OptimizerOptions::of(config));
    TrainStep step(*task, optimizer, StepOrder{}, /*graph=*/true);
    TrainRng rng(1);
    std::vector<float> all;
    for (int i = 0; i < 4; ++i) all.push_back(step(rng, 1e-3f).wait().loss);
    return all;
  };
  const std::vector<float> expected = losses(false);
  EXPECT_EQ(losses(true), expected);
  for (const bool staged : {false, true}) EXPECT_EQ(losses(staged, std::make_shared<HostCopies>(2)), expected);
}
// Each block frees something, and the first to be chosen the most for what they cost.
TEST(Plan, MoreBlocksTakeLess) {
  const auto plan = [](const std::string& blocks) {
    return plan_memory(
        {.model = kModel, .rank = 4, .alpha = 4, .batch_size = 4, .resolution = {128}, .checkpoint_blocks = blocks},
        kModel, device_kind("cpu"));
  };
  size_t before = plan("0").step();
  for (const char* blocks : {"2", "6", "12"}) {
    const size_t now = plan(blocks).step();
    EXPECT_LT(now, before) << blocks;
    before = now;
  }
  try {
    plan("1000");
    ADD_FAILURE() << "a thousand blocks";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--checkpoint-blocks: expected at most "), std::string::npos) << e.what();
  }
}
TEST(Plan, QuantisedWeights) {
  expect_planned({.rank = 4, .alpha = 4, .dtype = DType::bf16, .quantize = Quantize::nf4_double});
}
TEST(Plan, ProductsInFp8) {
  expect_planned({.rank = 4, .alpha = 4, .dtype = DType::bf16, .quantize = Quantize::fp8, .fp8_compute = true});
}

TEST(Plan, ATextEncoderToo) {
  expect_planned({.targets = {"text_encoder.*q_proj", "unet.*attn1.to_q"}, .rank = 4, .alpha = 4, .batch_size = 2});
}
TEST(Plan, TheWholeUNet) { expect_planned({.train = TrainMode::full, .batch_size = 2}); }
// Each of four ranks keeps a quarter of the moments; a state file has them all, and to save it rank 0 fetches the
// others'.
TEST(Plan, ShardsOfTheWholeUNet) {
  const auto plan = [](int64_t ranks, OptimizerKind kind) {
    TrainConfig config{.model = kModel, .train = TrainMode::full, .accumulate = ranks > 1 ? 1 : 2, .optimizer = kind};
    config.resolution = {64};
    config.ranks = ranks;
    if (ranks > 1 && kind == OptimizerKind::adamw) expect_planned(config);
    return plan_memory(config, kModel, device_kind("cpu"));
  };
  const MemoryPlan alone = plan(1, OptimizerKind::adamw), sharded = plan(4, OptimizerKind::adamw);
  const double moments = 8 * double(alone.trained), saved = double(alone.optimizer) - double(sharded.optimizer);
  EXPECT_NEAR(saved / moments, 0.75, 0.05);
  EXPECT_EQ(alone.state, sharded.state);
  EXPECT_NEAR(double(sharded.saving) / moments, 0.75, 0.05);
  EXPECT_EQ(alone.saving, 0u);
  const MemoryPlan prodigy = plan(4, OptimizerKind::prodigy);
  EXPECT_EQ(plan(1, OptimizerKind::prodigy).optimizer, prodigy.optimizer);
  EXPECT_EQ(prodigy.saving, 0u) << "each has all states";

  const size_t saving = sharded.saving;
  EXPECT_NO_THROW(check_host(sharded, {}));
  EXPECT_NO_THROW(check_host(sharded, HostLimit{0, saving}));
  try {
    check_host(sharded, HostLimit{0, saving - 1});
    FAIL() << "it does not fit";
  } catch (const Error& e) {
    for (const char* word : {"rank 0", "--optimizer adamw8bit", "--host-memory"})
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}
TEST(Plan, TheVae) { expect_planned({.train = TrainMode::vae, .batch_size = 2}); }

TEST(Plan, WhatSavesMemoryIsFound) {
  const TrainConfig config{.model = kModel, .rank = 4, .alpha = 4, .batch_size = 4096};
  const MemoryPlan plan = plan_memory(config, kModel, device_kind("cuda"));
  const std::vector<Alternative> found = alternatives(config, kModel, plan);
  ASSERT_EQ(found.size(), 4u);
  for (const Alternative& a : found) EXPECT_LT(a.total, plan.total()) << a.flags;
  EXPECT_LE(found.back().total, found.front().total) << "all together";

  EXPECT_NO_THROW(check_fits(config, kModel, plan, "cuda:0", plan.total()));
  try {
    check_fits(config, kModel, plan, "cuda:0", plan.total() - 1);
    FAIL() << "it does not fit";
  } catch (const Error& e) {
    for (const char* word :
         {"cuda:0", "would need", "are free", "--gradient-checkpointing", "--batch-size 1", "--bf16"})
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what();
  }
}

// Of a few bytes that are missing any change is a way out; of many, only those that save a quarter of them.
TEST(Plan, AdviceIsWorthFollowing) {
  const TrainConfig config{.model = kModel, .rank = 4, .alpha = 4, .batch_size = 8};
  const MemoryPlan plan = plan_memory(config, kModel, device_kind("cpu"));
  std::vector<Alternative> found = alternatives(config, kModel, plan);
  ASSERT_GT(found.size(), 2u);
  const Alternative all = found.back();
  found.pop_back();
  const auto saved = [&](const Alternative& a) { return plan.total() - a.total; };
  const auto has = [](const std::string& text, const std::string& word) { return text.find(word) != text.npos; };

  const std::string little = savings(config, kModel, plan, 1);
  for (const Alternative& a : found) EXPECT_TRUE(has(little, a.flags)) << little;
  EXPECT_TRUE(little.starts_with(found.front().flags)) << "the most saving first";
  EXPECT_FALSE(has(little, all.flags)) << "one is enough";
  EXPECT_FALSE(has(little, "--resolution"));

  const size_t least = saved(found.back());
  const std::string without = savings(config, kModel, plan, 4 * least + 4);
  EXPECT_FALSE(has(without, found.back().flags + " " + readable_bytes(least))) << without;

  const std::string together = savings(config, kModel, plan, saved(all));
  EXPECT_TRUE(together.starts_with(all.flags + " would save ")) << together;

  const std::string choice = savings(config, kModel, plan, saved(all) + 1);
  const std::string flags = "--gradient-checkpointing --bf16 --batch-size 1 --resolution 64";
  TrainConfig followed = config;
  followed.gradient_checkpointing = true, followed.dtype = DType::bf16, followed.batch_size = 1;
  followed.resolution = {64};
  const size_t total = plan_memory(followed, kModel, device_kind("cpu")).total();
  EXPECT_LT(total, all.total);
  EXPECT_TRUE(choice.ends_with("; " + flags + " would need " + readable_bytes(total))) << choice;

  EXPECT_EQ(savings(config, kModel, plan, plan.total()), "expected a smaller model, or a device with more memory");
  EXPECT_EQ(savings(config, kModel, plan, 2 * plan.total()), "expected a smaller model, or a device with more memory");
}

// Where weights take most, they may be held in fewer bits.
TEST(Plan, MemoryAutoIsAdvised) {
  const fs::path model = test::source_dir() / "models/tiny-llm";
  TrainConfig config{.model = model, .rank = 4, .alpha = 4, .batch_size = 1};
  config.dtype = DType::bf16;
  config.gradient_checkpointing = true;
  config.sequence_length = 64;
  TrainConfig narrow = config;
  narrow.quantize = Quantize::int8;
  const MemoryPlan plan = plan_memory(config, model, device_kind("cpu"));
  const size_t room = plan_memory(narrow, model, device_kind("cpu")).total();
  ASSERT_LT(room, plan.total());
  const std::string advice = savings(config, model, plan, plan.total() - room);
  EXPECT_TRUE(advice.starts_with("--memory auto would need ")) << advice;
}

// The number that is named fits, and the next one does not.
TEST(Plan, SmallerExamplesFit) {
  for (const bool is_text : {false, true}) {
    const fs::path model = is_text ? test::source_dir() / "models/tiny-llm" : kModel;
    // All else was tried already.
    TrainConfig config{.model = model, .rank = 4, .alpha = 4, .batch_size = 1};
    config.dtype = DType::bf16;
    config.gradient_checkpointing = true;
    config.memory = "1GiB";
    config.resolution = {512};
    config.sequence_length = 512;
    const auto total = [&](int64_t size) {
      TrainConfig changed = config;
      if (is_text)
        changed.sequence_length = size;
      else
        changed.resolution = {size};
      return plan_memory(changed, model, device_kind("cpu")).total();
    };
    const MemoryPlan plan = plan_memory(config, model, device_kind("cpu"));
    ASSERT_LT(total(192), total(256));
    EXPECT_EQ(savings(config, model, plan, plan.total() - total(192)),
              fmt::format("{} 192 would need {}", is_text ? "--sequence-length" : "--resolution",
                          readable_bytes(total(192))));
  }
}

TEST(Plan, TensorsOfADeviceHaveGapsBetweenThem) {
  CountingMemory memory(device_kind("cuda"));
  constexpr size_t kUnit = Segments::kUnit;
  void* const first = memory.allocate(kUnit / 2);
  void* const second = memory.allocate(kUnit);
  EXPECT_EQ(memory.in_use(), kUnit + kUnit / 2);
  EXPECT_EQ(memory.most_taken(), 2 * kUnit);
  memory.release(second, kUnit);
  memory.trim();
  memory.enter_arena();
  memory.release(memory.allocate(kUnit + 1), kUnit + 1);
  memory.leave_arena();
  memory.release(first, kUnit / 2);
  EXPECT_EQ(memory.in_use(), 0u);
  EXPECT_EQ(memory.most_taken(), 3 * kUnit) << "the first's, and two in the arena";
}

// Transfers run beside the computation until something waits for them, one after the other in each direction.
TEST(Plan, TheClockKnowsWhatWaits) {
  DeviceKind kind = device_kind("cuda");
  kind.rates = {.flops = 100, .bytes = 10, .fetched = 1, .copied_on_host = 1};
  CountingMemory memory(kind);
  const auto fetch = memory.make_transfer(Direction::to_device), other = memory.make_transfer(Direction::to_device),
             send = memory.make_transfer(Direction::to_host);
  fetch->begin(nullptr, nullptr, 4);
  send->begin(nullptr, nullptr, 5);
  memory.compute(300, 0);
  EXPECT_EQ(memory.now(), 3);
  fetch->await();
  EXPECT_EQ(memory.now(), 4);
  fetch->begin(nullptr, nullptr, 2);
  other->begin(nullptr, nullptr, 2);
  memory.compute(0, 10);
  send->await();
  EXPECT_EQ(memory.now(), 5);
  other->await();
  EXPECT_EQ(memory.now(), 8) << "behind the other";
  EXPECT_EQ(memory.fetched(), 8);
}

// cuDNN pads alike on opposite sides, and has channels of 16 bits in eights: what is not so is copied.
TEST(Plan, ConvolutionsCopyWhatTheyPad) {
  CountingBackend backend(device_kind("cuda"));
  const auto made = [&](Shape shape) { return Tensor::empty(shape, DType::bf16, backend.memory()); };
  const auto added = [&](int64_t channels, Conv2d conv) {
    const int64_t side = conv.stride == 2 ? 64 : 128;
    const Tensor x = made({1, 128, 128, channels}), y = made({1, side, side, 64}), w = made({64, 3, 3, channels});
    backend.memory().reset_peak();
    const size_t before = backend.memory().peak();
    backend.conv2d(y, x, w, {}, {}, conv);
    return int64_t(backend.memory().peak() - before);
  };
  EXPECT_EQ(added(64, {1, 1, 1, 1, 1}), 0);
  EXPECT_EQ(added(64, {2, 0, 0, 1, 1}) / 512, 129 * 129 * 64 * 2 / 512 + 1);
  EXPECT_GE(added(3, {1, 1, 1, 1, 1}), 128 * 128 * 8 * 2);
}

// cuDNN keeps the gradients of queries for each 128 keys; our kernels a number for each query.
TEST(Plan, AttentionBackwardTakesWhatItsArchitectureDoes) {
  const auto added = [](const char* architecture, int64_t features) {
    CountingBackend backend(device_kind("cuda", architecture));
    const Tensor q = Tensor::empty({1, 4096, 24, features}, DType::bf16, backend.memory());
    const size_t before = backend.memory().peak();
    backend.attention_backward({.q = q, .k = q, .v = q}, {});
    return backend.memory().peak() - before;
  };
  for (const char* architecture : {"8.0", "8.6", "8.9", "9.0", ""}) EXPECT_EQ(added(architecture, 128), 4u * 4096 * 24);
  EXPECT_GT(added("9.0", 256), size_t{200} << 20);
  for (const char* architecture : {"10.0", "12.0"}) EXPECT_GT(added(architecture, 128), size_t{200} << 20);
}

TEST(Plan, ArenasNest) {
  CountingMemory memory(device_kind("cuda"));
  {
    const Arena outer(memory);
    { const Arena inner(memory); }
    memory.release(memory.allocate(Segments::kUnit), Segments::kUnit);
  }
  memory.release(memory.allocate(1), 1);
  EXPECT_EQ(memory.most_taken(), 2 * Segments::kUnit) << "one in the arena";
}

TEST(Plan, NothingCanBeReadFromMemoryThatOnlyCounts) {
  CountingBackend backend(device_kind("cuda"));
  const Tensor x = Tensor::of(std::vector<float>{1, 2}, {2}, backend.memory());
  EXPECT_EQ(backend.memory().in_use(), 512u);
  EXPECT_THROW(x.to_vector(), Error);
}

}  // namespace
}  // namespace wick
