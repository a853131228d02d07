// What a run says when it has ended.
#include "wick/train/summary.h"

#include <gtest/gtest.h>

#include <map>

namespace wick {
namespace {

std::vector<std::string> lines_of(const TrainConfig& config, ModelKind kind, RunSummary run) {
  std::vector<StepRecord> records;
  for (int i = 1; i <= 40; ++i) records.push_back({.step = i, .loss = 1.0 / i, .seconds = 1});
  records[9].val_loss = 0.25, records[39].val_loss = 0.5;
  run.trained = "A LoRA of rank 4 on 7 modules";
  run.data = "3 pictures in 1 bucket";
  run.steps = "40 steps of 1 picture";
  run.speed = "1.00 steps/s";
  run.memory = "cpu: 1.0 MiB at the peak";
  run.seconds = 3723;
  return summary_of(run, config, kind, records);
}

TEST(Summary, TellsInTenLinesWhatWasTrainedHowItWentAndWhatToDo) {
  const TrainConfig config{.model = "/m/my model", .output = "/o", .dataset = {"/d"}};
  EXPECT_EQ(
      lines_of(config, ModelKind::pictures, {.result = "/o/fox.safetensors", .saved_before = 2, .prompt = "it's"}),
      (std::vector<std::string>{
          "Trained   A LoRA of rank 4 on 7 modules", "Model     /m/my model", "Data      3 pictures in 1 bucket: /d",
          "Steps     40 steps of 1 picture, in 1:02:03: 1.00 steps/s",
          "Loss      0.2929 at first, 0.0284 at last, means of 10 steps; validation 0.2500 at step 10, 0.5000 at last",
          "Memory    cpu: 1.0 MiB at the peak", "Result    /o/fox.safetensors, and 2 results from before it",
          "Page      /o/index.html", "Previews  /o/samples/sheet.png",
          "Next      wick generate --model '/m/my model' --lora /o/fox.safetensors --prompt 'it'\\''s' --out "
          "picture.png; for ComfyUI copy the LoRA to models/loras"}));
}

std::string loss_of(size_t steps, std::map<size_t, double> validations = {}) {
  std::vector<StepRecord> records;
  for (size_t i = 1; i <= steps; ++i) {
    records.push_back({.step = int64_t(i), .loss = i % 2 == 0 ? 1.0 : 0.0});
    if (validations.contains(i)) records.back().val_loss = validations[i];
  }
  const TrainConfig config{.model = "m", .output = "/o", .dataset = {"/d"}};
  return summary_of({}, config, ModelKind::text, records)[4].substr(10);
}

// Single steps have other pictures and times: what differs between two of them is noise.
TEST(Summary, LossesAreMeansOfManySteps) {
  EXPECT_EQ(loss_of(0), "no step was taken");
  EXPECT_EQ(loss_of(1), "0.0000");
  EXPECT_EQ(loss_of(2), "0.5000, the mean of 2 steps");
  EXPECT_EQ(loss_of(18), "0.5000, the mean of 18 steps");
  EXPECT_EQ(loss_of(20), "0.5000 at first, 0.5000 at last, means of 10 steps");
  EXPECT_EQ(loss_of(1000), "0.5000 at first, 0.5000 at last, means of 100 steps");
  EXPECT_EQ(loss_of(2, {{2, 0.25}}), "0.5000, the mean of 2 steps; validation 0.2500 at step 2");
  EXPECT_EQ(loss_of(4, {{1, 3}, {2, 1}, {4, 2}}),
            "0.5000, the mean of 4 steps; validation 3.0000 at step 1, 2.0000 at last, the least 1.0000 at step 2");
}

TEST(Summary, NamesTheCommandForEachKindOfResult) {
  TrainConfig config{.model = "m", .output = "/o", .dataset = {"/d"}};
  EXPECT_EQ(lines_of(config, ModelKind::text, {.result = "/o/lora"}).back(),
            "Next      wick chat --model m --lora /o/lora");
  config.train = TrainMode::full;
  EXPECT_EQ(lines_of(config, ModelKind::text, {.result = "/o/model"}).back(), "Next      wick chat --model /o/model");
  EXPECT_EQ(lines_of(config, ModelKind::pictures, {.result = "/o/model"}).back(),
            "Next      wick generate --model /o/model --prompt TEXT --out picture.png");
  config.train = TrainMode::lora, config.model = "", config.transformer = "/t.gguf", config.vae = "/v";
  EXPECT_EQ(lines_of(config, ModelKind::pictures, {.result = "/o/l"}).back(),
            "Next      wick generate --transformer /t.gguf --vae /v --lora /o/l --prompt TEXT --out picture.png; for "
            "ComfyUI copy the LoRA to models/loras");
}

}  // namespace
}  // namespace wick
