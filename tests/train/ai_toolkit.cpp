// Jobs of ai-toolkit: what Wick makes of each key.
#include "wick/train/foreign/ai_toolkit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "io/files.h"
#include "train/foreign_report.h"
#include "wick/train/foreign/yaml.h"

namespace wick {
namespace {

using test::told;

// A job of FLUX; {0} are more keys of `train`, {1} of the data set, {2} of the process.
constexpr std::string_view kJob = R"(---
job: extension
config:
  name: "fox"
  process:
    - type: 'sd_trainer'
      training_folder: "output"
      device: cuda:0
      network: {{type: lora, linear: 16, linear_alpha: 8}}
      save: {{dtype: float16, save_every: 250, max_step_saves_to_keep: 4}}
      datasets:
        - folder_path: "pictures of [name]"
          caption_ext: "txt"
          resolution: [ 512, 768, 1024 ]
{1}
      train:
        batch_size: 1
        steps: 2000
        noise_scheduler: "flowmatch"
        optimizer: "adamw8bit"
        lr: 1e-4
        ema_config:
          use_ema: true
          ema_decay: 0.99
        dtype: bf16
{0}
      model:
        name_or_path: "black-forest-labs/FLUX.1-dev"
        is_flux: true
        quantize: true
      sample:
        sample_every: 250
        prompts:
          - "[trigger] in the snow"
{2}
meta:
  name: "[name]"
  version: "1.0"
)";

class AiToolkitTest : public testing::Test {
 protected:
  ForeignConfig explain(const std::string& train, const std::string& dataset = "", const std::string& process = "") {
    write_plain(file_, fmt::format(fmt::runtime(kJob), train, dataset, process));
    EXPECT_EQ(trainer_of(file_), Trainer::ai_toolkit);
    return explain_ai_toolkit(file_);
  }

  TemporaryDirectory folder_;
  const std::filesystem::path file_ = folder_ / "job.yaml";
};

TEST_F(AiToolkitTest, AJobIsReadAsAiToolkitReadsIt) {
  const ForeignConfig read = explain("");
  read.check();
  const TrainConfig& c = read.config;
  EXPECT_EQ(c.output, "output/fox");
  EXPECT_EQ(c.name, "fox");
  EXPECT_EQ(c.model, "black-forest-labs/FLUX.1-dev");
  EXPECT_EQ(c.dataset, std::vector<std::string>{"pictures of fox"});
  EXPECT_EQ(c.rank.value, 16);
  EXPECT_EQ(c.alpha.value, 16) << "the scale is 1 with FLUX, whatever linear_alpha says";
  EXPECT_EQ(c.save_every, 250);
  EXPECT_EQ(c.keep_last, 4);
  EXPECT_EQ(c.save_dtype, DType::f16);
  EXPECT_EQ(c.resolution, (std::vector<Resolution>{512, 768, 1024}));
  EXPECT_EQ(c.caption_extension, ".txt");
  EXPECT_EQ(c.steps, 2000);
  EXPECT_EQ(c.optimizer, OptimizerKind::adamw8bit);
  EXPECT_EQ(c.lr.value, 1e-4);
  EXPECT_EQ(c.ema, 0.99);
  EXPECT_EQ(c.ema_warmup, AverageWarmup::none);
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_EQ(c.quantize, Quantize::fp8);
  EXPECT_EQ(c.timestep_mean, "0");
  EXPECT_TRUE(c.gradient_checkpointing);
  EXPECT_TRUE(c.targets.empty()) << "the family's own";
  EXPECT_EQ(c.sample_prompts, file_.string());
  EXPECT_EQ(c.sample_every, 250);
  EXPECT_EQ(c.min_timestep, 0) << "drawn all the way";
}

struct JobRow {
  const char *train, *dataset, *process, *key, *told;
};
constexpr JobRow kJobRows[] = {
    {"", "", "", "network.linear", "honoured: rank = 16"},
    {"", "", "", "train.lr", "honoured: lr = 0.0001"},
    {"", "", "", "config.name", "honoured: name = \"fox\", output = \"output/fox\""},
    {"        disable_sampling: true", "", "", "sample.sample_every", "idle: disable_sampling is set"},
    {"", "", "", "meta.name", "honoured: metadata_title = \"fox\""},
    {"", "", "", "meta.version", "idle: Wick's files have no such field"},
    {"        max_denoising_steps: 600", "", "", "train.max_denoising_steps",
     "refused: with timestep_type: sigmoid it takes a share of the times drawn; linear and shift have a range"},
    {"        timestep_type: shift\n        max_denoising_steps: 600\n        min_denoising_steps: 100", "", "",
     "train.max_denoising_steps", "honoured: min_timestep = 400, timestep_range = \"drawn\""},
    {"        timestep_type: shift\n        max_denoising_steps: 600\n        min_denoising_steps: 100", "", "",
     "train.min_denoising_steps", "honoured: max_timestep = 900"},
    {"        timestep_type: linear\n        min_denoising_steps: 700\n        max_denoising_steps: 600", "", "",
     "train.max_denoising_steps", "refused: expected more than two steps between them, found \"700 to 600\""},
    {"        snr_gamma: 5", "", "", "train.snr_gamma",
     "refused: Wick has no such setting; it weighs by gamma / SNR without a bound; min_snr_gamma has one"},
    {"        lr_scheduler: cosine_with_restarts", "", "", "train.lr_scheduler", "honoured: lr_schedule = \"cosine\""},
    {"        timestep_type: linear", "", "", "train.timestep_type",
     "honoured: timesteps = \"uniform\", timestep_shift = \"1\""},
    {"        timestep_type: weighted", "", "", "train.timestep_type",
     "refused: expected sigmoid, linear or shift, found \"weighted\""},
    {"        lr_scheduler: linear", "", "", "train.lr_scheduler",
     "refused: linear climbs there from a third of the rate to all of it; Wick has no such schedule"},
    {"        optimizer_params: {weight_decay: 1e-4}", "", "", "train.optimizer_params.weight_decay",
     "honoured: weight_decay = 0.0001"},
    {"        optimizer_params: {betas: [0.9, 0.99]}", "", "", "train.optimizer_params.betas",
     "honoured: betas = [0.9, 0.99]"},
    {"        optimizer_params: {eps: 1e-8}", "", "", "train.optimizer_params.eps",
     "refused: ai-toolkit gives 1e-06 itself, and fails where it is given again"},
    {"        optimizer_params: {d_coef: 2}", "", "", "train.optimizer_params.d_coef",
     "refused: adamw8bit has no such argument: d_coef=2"},
    {"        optimizer_params: {decouple: true, weight_decay: 0.01, d_coef: 2}", "", "",
     "train.optimizer_params.weight_decay", "honoured: weight_decay = 0.01"},
    {"        diff_output_preservation: false", "", "", "train.diff_output_preservation", "empty: asks for nothing"},
    {"        diff_output_preservation: yes", "", "", "train.diff_output_preservation",
     "refused: Wick has no such setting; leave it out"},
    {"        learning_rate: 1", "", "", "train.learning_rate",
     "idle: not a key of ai-toolkit, so it does nothing there"},
    {"        max_grad_norm: ''", "", "", "train.max_grad_norm", "empty: says nothing"},
    {"", "          flip_x: true", "", "datasets[0].flip_x", "honoured: flip_aug = true"},
    {"", "          default_caption: a fox", "", "datasets[0].default_caption",
     "honoured: default_caption = \"a fox\""},
    {"", "          num_repeats: 0", "", "datasets[0].num_repeats",
     "refused: expected an integer from 1 to 1000, found \"0\""},
    {"", "          replacements: ['a|b']", "", "datasets[0].replacements",
     "idle: ai-toolkit reads it and replaces nothing"},
    {"", "        - {folder_path: more, shuffle_tokens: true}", "", "datasets[1].shuffle_tokens",
     "honoured: shuffle_caption = true"},
    {"", "        - {folder_path: more, caption_ext: txt, resolution: [512, 768, 1024]}", "", "datasets[1].folder_path",
     "honoured: dataset = [\"more\"]"},
    {"", "", "      trigger_word: null", "trigger_word", "empty: says nothing"},
    {"", "", "      trigger_word: p3r", "trigger_word", "honoured: trigger_word = \"p3r\""},
    {"", "", "      slider: {target_class: dog}", "slider.target_class",
     "refused: Wick has no such setting; leave it out"}};

TEST_F(AiToolkitTest, OptimizersAreThoseOfAiToolkit) {
  const auto read = [&](const std::string& optimizer, const std::string& params = "") {
    std::string job =
        fmt::format(fmt::runtime(kJob), params.empty() ? "" : "        optimizer_params: {" + params + "}", "", "");
    job.replace(job.find("\"adamw8bit\""), 11, optimizer);
    write_plain(file_, job);
    return explain_ai_toolkit(file_);
  };
  EXPECT_EQ(read("adamw").config.eps, std::vector<double>{1e-6});
  EXPECT_EQ(read("lion8bit").config.eps, std::vector<double>{});
  const ForeignConfig prodigy = read("prodigy", "decouple: true, d_coef: 2, betas: [0.9, 0.99], safeguard_warmup: yes");
  prodigy.check();
  EXPECT_EQ(prodigy.config.optimizer, OptimizerKind::prodigy);
  EXPECT_EQ(prodigy.config.lr.value, 1) << "where the job says less than 0.1";
  EXPECT_EQ(prodigy.config.eps, std::vector<double>{1e-6});
  EXPECT_EQ(prodigy.config.betas, (std::vector<double>{0.9, 0.99}));
  EXPECT_EQ(prodigy.config.prodigy_d_coef, 2);
  EXPECT_TRUE(prodigy.config.prodigy_safeguard_warmup);
  EXPECT_FALSE(prodigy.config.prodigy_use_bias_correction);
  EXPECT_EQ(read("prodigy8bit").config.optimizer, OptimizerKind::prodigy);
  EXPECT_EQ(read("Prodigy_8bit").config.optimizer, OptimizerKind::prodigy) << "it begins so";
  const TrainConfig adafactor = read("adafactor", "scale_parameter: true").config;
  EXPECT_TRUE(adafactor.adafactor_scale_parameter && !adafactor.adafactor_relative_step);
  expect_error([&] { read("adafactor", "relative_step: true").check(); }, {"relative_step", "expected false"});
  expect_error([&] { read("adam8bit", "weight_decay: x").check(); }, {"weight_decay", "a number", "'x'"});
  expect_error([&] { read("automagic").check(); }, {"train.optimizer", "Prodigy finds the rate too", "automagic"});
  EXPECT_EQ(read("adam8bit").config.weight_decay, 0);
}

TEST_F(AiToolkitTest, EachKeyIsToldOf) {
  for (const JobRow& row : kJobRows) {
    SCOPED_TRACE(fmt::format("{}{}{}", row.train, row.dataset, row.process));
    EXPECT_EQ(told(explain(row.train, row.dataset, row.process), row.key), row.told);
  }
}

TEST_F(AiToolkitTest, EachDataSetHasSettingsOfItsOwn) {
  const ForeignConfig read =
      explain("",
              "          num_repeats: 3\n          trigger_word: fx\n"
              "        - {folder_path: /more, resolution: 512, caption_ext: .md, batch_size: 2,\n"
              "           loss_multiplier: 0.5, keep_tokens: 2, flip_x: true}\n"
              "        - {folder_path: /foxes, is_reg: true, resolution: 512, batch_size: 2}\n",
              "      trigger_word: p3r");
  read.check();
  const TrainConfig& c = read.config;
  EXPECT_TRUE(c.dataset.empty());
  EXPECT_EQ(c.trigger_word, "p3r");
  EXPECT_EQ(c.batch_size, 1);
  const PictureSources sources = read_datasets(
      c, {.channels = 16, .factor = 8, .side_step = 16, .bucket_step = 16, .native = 1024, .largest = 4096});
  ASSERT_EQ(sources.groups.size(), 2u);
  const PictureSubset &fox = sources.groups[0].subsets.at(0), &more = sources.groups[1].subsets.at(0),
                      &reg = sources.groups[1].subsets.at(1);
  EXPECT_EQ(sources.groups[0].resolutions.size(), 3u);
  EXPECT_EQ(sources.groups[1].resolutions.at(0).resolution, Resolution(512));
  EXPECT_EQ(sources.groups[1].batch_size, 2);
  EXPECT_EQ(fox.repeats, 3);
  EXPECT_EQ(fox.captions.trigger, "fx");
  EXPECT_EQ(fox.captions.extension, ".txt");
  EXPECT_TRUE(fox.nested);
  EXPECT_EQ(more.folder, "/more");
  EXPECT_EQ(more.captions.trigger, "p3r") << "the job's";
  EXPECT_EQ(more.captions.extension, ".md");
  EXPECT_EQ(more.captions.keep_tokens, 2);
  EXPECT_EQ(more.loss_weight, 0.5);
  EXPECT_TRUE(more.augmentation.flip && !fox.augmentation.flip);
  EXPECT_TRUE(reg.is_reg && !more.is_reg);
}

// As PyYAML's safe loader, but for 1e-4, which ai-toolkit makes a number.
TEST(Yaml, ScalarsAreAsInPython) {
  const auto parsed = [](const std::string& value) { return parse_yaml("a: " + value + "\n", "f.yaml")["a"].dump(); };
  const std::pair<const char*, const char*> kCases[] = {
      {"1", "1"},       {"+1_000", "1000"},    {"1e-4", "0.0001"}, {".5", "0.5"},
      {"yes", "true"},  {"Off", "false"},      {"~", "null"},      {"", "null"},
      {"'1'", "\"1\""}, {"017", "\"017\""},    {"x", "\"x\""},     {"[1, [a]]", "[1,[\"a\"]]"},
      {"{}", "{}"},     {"1.2.3", "\"1.2.3\""}};
  for (const auto& [text, json] : kCases) EXPECT_EQ(parsed(text), json) << text;
}

TEST(Yaml, WhatIsNotReadEndsInOneLine) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    expect_error([&] { parse_yaml(text, "f.yaml"); }, parts);
  };
  refused("a: &x 1\nb: *x\n", {"f.yaml: line 2", "aliases"});
  refused("a: !!python/name:os.system x\n", {"f.yaml: line 1", "tags"});
  refused("a: 1\na: 2\n", {"f.yaml: line 2", "a: expected it once"});
  refused("a: 1\n---\nb: 2\n", {"f.yaml: line 2", "one document"});
  refused("- a\n", {"f.yaml: line 1", "a mapping"});
  refused("", {"f.yaml", "found nothing"});
  refused("a: [1\n", {"f.yaml: line"});
  refused("a: \x01\n", {"f.yaml: line"});
  refused("a: " + std::string(200, '['), {"f.yaml: line 1", "100 levels"});
}

}  // namespace
}  // namespace wick
