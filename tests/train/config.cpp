// Settings: each from a flag and from TOML, and the values refused.
#include "wick/train/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "io/files.h"
#include "wick/train/dataset_file.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

const TrainOption& option(std::string_view key) {
  for (const TrainOption& o : train_options())
    if (o.key == key) return o;
  throw Error("no option " + std::string(key));
}

void set(std::string_view key, const std::string& word) {
  TrainConfig config;
  option(key).set(config, {word});
}

TEST(TrainConfig, WordsBecomeValues) {
  TrainConfig config;
  option("rank").set(config, {"32"});
  option("lr").set(config, {"3e-4"});
  option("lr_schedule").set(config, {"cosine"});
  option("dtype").set(config, {"bf16"});
  option("targets").set(config, {"*attn1*", "-*to_q"});
  EXPECT_EQ(config.rank.value, 32);
  EXPECT_EQ(config.lr.value, 3e-4);
  EXPECT_EQ(config.lr_schedule, LrSchedule::cosine);
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.targets, (std::vector<std::string>{"*attn1*", "-*to_q"}));
  option("resolution").set(config, {"512", "1024"});
  EXPECT_EQ(config.resolution, (std::vector<Resolution>{512, 1024}));
  option("resolution").set(config, {"1344,1792", "512"});
  EXPECT_EQ(config.resolution, (std::vector<Resolution>{{1344, 1792}, 512}));
  expect_error([&] { option("resolution").set(config, {"512x"}); }, {"--resolution", "WIDTHxHEIGHT", "512x"});
}

TEST(TrainConfig, WrongNumbersAreRefused) {
  for (const char* word : {"0", "-1", "nan", "inf", "1.5", "", "x", "32x", "99999999999999999999"})
    expect_error([&] { set("rank", word); }, {"--rank", "expected an integer from 1", word});
  for (const char* word : {"0", "-1e-4", "nan", "inf", "-inf", "1e400", "", "1e-4x", "0x1p3"})
    expect_error([&] { set("lr", word); }, {"--lr", "expected a number above 0", word});
  for (const char* word : {"-1", "1.5", "", "x", "16385"})
    expect_error([&] { set("resolution", word); }, {"--resolution", word});
  expect_error([&] { set("caption_dropout", "1.01"); }, {"--caption-dropout", "from 0 to 1"});
  expect_error([&] { set("ema", "1"); }, {"--ema"});
  expect_error([&] { set("lora_dropout", "1"); }, {"--lora-dropout", "from 0 to 0.999"});
  expect_error([&] { set("steps", "0"); }, {"--steps", "at least 1"});
  expect_error([&] { set("lr_schedule", "cosinus"); }, {"--lr-schedule", "constant, linear, cosine", "cosinus"});
}

// The message names a very large bound only if the number exceeds it.
TEST(TrainConfig, NumbersBeyondTheirRangeAreToldIt) {
  for (const char* word : {"18446744073709551615", "9223372036854775808", "1e30"})
    expect_error([&] { set("seed", word); }, {"--seed", "from 0 to 9223372036854775807", word});
  expect_error([&] { set("seed", "-1"); }, {"--seed", "of at least 0", "'-1'"});
  for (const char* word : {"2147483648", "99999999999999999999"}) {
    expect_error([&] { set("steps", word); }, {"--steps", "from 1 to 2147483647", word});
    expect_error([&] { set("batch_size", word); }, {"--batch-size", "auto or an integer from 1 to 65536", word});
  }
  expect_error([&] { set("max_grad_norm", "1e300"); }, {"--max-grad-norm", "from 0 to 2147483647", "1e300"});
}

TEST(TrainConfig, DtypesHaveTheirOtherNamesToo) {
  const TemporaryDirectory folder;
  for (const auto& [word, dtype] : {std::pair{"float16", DType::f16},
                                    {"fp16", DType::f16},
                                    {"half", DType::f16},
                                    {"f16", DType::f16},
                                    {"bfloat16", DType::bf16},
                                    {"bf16", DType::bf16},
                                    {"float32", DType::f32},
                                    {"fp32", DType::f32},
                                    {"float", DType::f32}}) {
    TrainConfig config;
    option("save_dtype").set(config, {word});
    EXPECT_EQ(config.save_dtype, dtype) << word;
    write_plain(folder / "a.toml", "dtype = \"" + std::string(word) + "\"");
    read_toml(config, folder / "a.toml");
    EXPECT_EQ(config.dtype, dtype) << word;
  }
  expect_error([&] { set("save_dtype", "float8"); }, {"--save-dtype", "f32, bf16, f16", "float8"});
}

TEST(TrainConfig, TomlSaysTheSameAsFlags) {
  const TemporaryDirectory folder;
  TrainConfig config;
  config.model = "tiny", config.dataset = {"/pictures \"x\"\n"}, config.output = "out", config.name = "cat";
  config.targets = {"unet.*", "-*.ff.*"};
  config.lr = 1, config.seed = 9007199254740993, config.no_upscale = true, config.train = TrainMode::vae;
  write_plain(folder / "a.toml", to_toml(config));
  TrainConfig back;
  read_toml(back, folder / "a.toml");
  EXPECT_EQ(to_toml(back), to_toml(config));
  EXPECT_EQ(back.seed, 9007199254740993);
  EXPECT_EQ(back.dataset, config.dataset);

  for (const auto& [text, resolutions] : {std::pair<const char*, std::vector<Resolution>>{"resolution = 512", {512}},
                                          {"resolution = \"1344x1792\"", {{1344, 1792}}},
                                          {"resolution = [512, \"512x768\"]", {512, {512, 768}}}}) {
    write_plain(folder / "b.toml", text);
    read_toml(back, folder / "b.toml");
    EXPECT_EQ(back.resolution, resolutions);
    EXPECT_NE(to_toml(back).find(text), std::string::npos) << to_toml(back);
  }
}

TEST(TrainConfig, DataSetsStandInTheFile) {
  const TemporaryDirectory folder;
  write_plain(folder / "a.toml",
              "model = 'm'\n[general]\nshuffle_caption = true\n[[datasets]]\nresolution = [512, 768]\n"
              "[[datasets.subsets]]\nimage_dir = '/cats'\n");
  TrainConfig config;
  read_toml(config, folder / "a.toml");
  EXPECT_EQ(data_paths(config), std::vector<std::string>{"/cats"});
  write_plain(folder / "b.toml", to_toml(config));
  TrainConfig back;
  read_toml(back, folder / "b.toml");
  EXPECT_EQ(back.datasets, config.datasets);
  back.dataset = {"/dogs"};
  back.output = "out";
  resolve(back);
  EXPECT_EQ(data_paths(back), std::vector<std::string>{"/dogs"}) << "a flag comes before a file";
  write_plain(folder / "c.toml", "dataset = 'x'\n[[datasets]]\n[[datasets.subsets]]\nimage_dir = '/cats'\n");
  expect_error([&] { read_toml(config = {}, folder / "c.toml"); }, {"c.toml", "dataset or [[datasets]]", "both"});
  write_plain(folder / "d.toml", "[[datasets]]\n[[datasets.subsets]]\nimage_dirs = '/cats'\n");
  expect_error([&] { read_toml(config = {}, folder / "d.toml"); }, {"d.toml", "image_dirs", "did you mean image_dir?"});
}

TEST(TrainConfig, KohyasSpellingsAreTaken) {
  const TemporaryDirectory folder;
  for (const TrainAlias& alias : train_aliases()) {
    const TrainOption* option = find_option(alias.spelling);
    ASSERT_TRUE(option) << alias.spelling;
    EXPECT_EQ(option->key, alias.key);
    EXPECT_EQ(find_option(alias.key), option) << "no setting has the name of another's alias";
  }
  EXPECT_EQ(option("caption_dropout").flags(), "--caption-dropout,--caption-dropout-rate");
  write_plain(folder / "a.toml", "network_dim = 8\nlearning_rate = 0.5\n");
  TrainConfig config;
  read_toml(config, folder / "a.toml");
  EXPECT_EQ(config.rank.value, 8);
  EXPECT_EQ(config.lr.value, 0.5);
  write_plain(folder / "b.toml", "rank = 8\nnetwork_dim = 4\n");
  expect_error([&] { read_toml(config, folder / "b.toml"); }, {"b.toml", "network_dim", "rank", "expected it once"});
}

TEST(TrainConfig, WrongTomlIsOneLine) {
  const TemporaryDirectory folder;
  const auto read = [&](const char* text) {
    write_plain(folder / "c.toml", text);
    TrainConfig config;
    read_toml(config, folder / "c.toml");
  };
  expect_error([&] { read("rnak = 3"); }, {"c.toml", "rnak", "no such setting"});
  expect_error([&] { read("rank = 0"); }, {"c.toml: rank", "from 1", "'0'"});
  expect_error([&] { read("rank = \"8\""); }, {"c.toml: rank", "an integer", "the string \"8\""});
  expect_error([&] { read("rank = 1.5"); }, {"c.toml: rank", "an integer"});
  expect_error([&] { read("lr = nan"); }, {"c.toml: lr", "a number above 0"});
  expect_error([&] { read("batch_size = true"); }, {"c.toml: batch_size", "an integer or \"auto\"", "found true"});
  expect_error([&] { read("batch_size = [1]"); }, {"c.toml: batch_size", "an integer or \"auto\"", "a list"});
  expect_error([&] { read("timestep_shift = true"); }, {"c.toml: timestep_shift", "a number or \"auto\"", "true"});
  expect_error([&] { read("warmup = \"x\""); }, {"c.toml: warmup", "a number", "the string \"x\""});
  expect_error([&] { read("targets = \"x\""); }, {"c.toml: targets", "list"});
  expect_error([&] { read("resolution = []"); }, {"c.toml: resolution", "at least one", "none"});
  expect_error([&] { read("resolution = [512, \"x\"]"); }, {"c.toml: resolution", "WIDTHxHEIGHT", "'x'"});
  expect_error([&] { read("resolution = true"); }, {"c.toml: resolution", "WIDTHxHEIGHT", "true"});
  expect_error([&] { read("name = 3"); }, {"c.toml: name", "a string", "the integer 3"});
  expect_error([&] { read("targets = [1]"); }, {"c.toml: targets", "a string", "the integer 1"});
  expect_error([&] { read("no_upscale = \"yes\""); }, {"c.toml: no_upscale", "true or false", "the string \"yes\""});
  expect_error([&] { read("lr = 1979-05-27"); }, {"c.toml: lr", "a number", "a date"});
  expect_error([&] { read("rank = \n"); }, {"c.toml", "line 1"});
  expect_error([&] { read("[rank]\nx = 1"); }, {"c.toml: rank", "table"});
  expect_error(
      [&] {
        TrainConfig config;
        read_toml(config, folder / "none.toml");
      },
      {"none.toml"});
}

TEST(TrainConfig, StatesInTimeAreLeftOutOfFullTrainingUnlessAsked) {
  const auto minutes = [](TrainMode mode, double given) {
    TrainConfig config;
    config.train = mode, config.state_every_minutes = given;
    resolve(config, {});
    return config.state_every_minutes;
  };
  EXPECT_EQ(minutes(TrainMode::lora, -1), 10);
  EXPECT_EQ(minutes(TrainMode::vae, -1), 10);
  EXPECT_EQ(minutes(TrainMode::full, -1), 0);
  EXPECT_EQ(minutes(TrainMode::full, 5), 5);
  EXPECT_EQ(minutes(TrainMode::lora, 0), 0);
}

TEST(TrainConfig, StepsOrEpochs) {
  const TemporaryDirectory folder;
  const auto resolved = [&](const char* text) {
    write_plain(folder / "c.toml", text);
    TrainConfig config;
    read_toml(config, folder / "c.toml");
    resolve(config, {});
    return config;
  };
  EXPECT_EQ(resolved("").steps, 1000);
  EXPECT_EQ(resolved("steps = 7").steps, 7);
  expect_error([&] { resolved("steps = 7\nepochs = 2"); }, {"--steps", "--epochs", "7 and 2"});
  TrainConfig config = resolved("epochs = 2");
  config.model = "tiny", config.output = "out", config.steps = 31;  // as a run counts them
  EXPECT_EQ(resolved(to_toml(config).c_str()).epochs, 2);
}

TEST(TrainConfig, OptimizersHaveRatesOfTheirOwn) {
  const auto resolved = [](const char* optimizer) {
    TrainConfig config;
    option("optimizer").set(config, {optimizer});
    resolve(config, {});
    return config.lr.value;
  };
  EXPECT_EQ(resolved("adamw"), 1e-4);
  EXPECT_EQ(resolved("lion8bit"), 3e-5);
  EXPECT_EQ(resolved("prodigy"), 1);
  TrainConfig config{.optimizer = OptimizerKind::schedule_free, .lr_schedule = LrSchedule::cosine};
  expect_error([&] { resolve(config, {}); }, {"--lr-schedule", "schedule-free", "constant", "cosine"});
  config.lr_schedule = LrSchedule::constant, config.ema = 0.99;
  expect_error([&] { resolve(config, {}); }, {"--ema", "schedule-free", "0.99"});
  expect_error([&] { set("optimizer", "adam"); }, {"--optimizer", "adamw, adamw8bit", "schedule-free", "'adam'"});
}

// A setting that the optimizer does not have is refused, and one that it has is in its rule.
TEST(TrainConfig, ArgumentsAreThoseOfTheOptimizer) {
  using Settings = std::vector<std::pair<const char*, std::vector<std::string>>>;
  const auto resolved = [](const char* optimizer, const Settings& settings) {
    TrainConfig config;
    option("optimizer").set(config, {optimizer});
    for (const auto& [key, words] : settings) option(key).set(config, words);
    resolve(config, {});
    return config;
  };
  const auto expect_refused = [&](const char* optimizer, const Settings& settings,
                                  std::initializer_list<std::string_view> parts) {
    expect_error([&] { resolved(optimizer, settings); }, parts);
  };
  expect_refused("adamw", {{"prodigy_d_coef", {"2"}}}, {"--prodigy-d-coef", "--optimizer prodigy", "found adamw"});
  expect_refused("lion", {{"schedule_free_r", {"1"}}}, {"--schedule-free-r", "radam-schedule-free", "found lion"});
  expect_refused("prodigy", {{"adafactor_scale_parameter", {"true"}}}, {"--adafactor-scale-parameter", "prodigy"});
  expect_refused("adafactor", {{"betas", {"0.9", "0.99"}}}, {"--betas", "adafactor has none"});
  expect_refused("adamw", {{"betas", {"0.9", "0.99", "0.9"}}}, {"--betas", "adamw has two; found 3"});
  expect_refused("prodigy", {{"betas", {"0.9"}}}, {"--betas", "two or three; found 1"});
  expect_refused("lion8bit", {{"eps", {"1e-6"}}}, {"--eps", "lion8bit has none"});
  expect_refused("adamw", {{"eps", {"1e-6", "1e-3"}}}, {"--eps", "one; found 2"});
  expect_refused("prodigy", {{"prodigy_growth_rate", {"0.9"}}}, {"--prodigy-growth-rate", "at least 1", "0.9"});
  expect_refused("schedule-free", {{"betas", {"0", "0.9"}}}, {"--betas", "above 0"});
  expect_refused("radam-schedule-free", {{"betas", {"0.9", "0.5"}}}, {"--betas", "0.6", "0.5"});
  expect_refused("radam-schedule-free", {{"ema", {"0.9"}}}, {"--ema", "radam-schedule-free"});
  expect_refused("adafactor", {{"adafactor_warmup_init", {"true"}}}, {"--adafactor-warmup-init", "relative-step"});
  expect_refused("adafactor", {{"adafactor_relative_step", {"true"}}, {"warmup", {"5"}}},
                 {"--adafactor-relative-step", "no --warmup", "5"});
  expect_error([&] { set("betas", "1"); }, {"--betas", "from 0 to 0.9999999", "'1'"});
  expect_error([&] { set("eps", "0"); }, {"--eps", "above 0", "'0'"});
  expect_error([&] { set("prodigy_decouple", "no"); }, {"--prodigy-decouple", "true or false", "'no'"});

  const OptimizerRule prodigy = OptimizerOptions::of(resolved("prodigy", {{"betas", {"0.8", "0.95", "0.9"}},
                                                                          {"eps", {"1e-6"}},
                                                                          {"prodigy_d0", {"1e-5"}},
                                                                          {"prodigy_d_coef", {"2"}},
                                                                          {"prodigy_growth_rate", {"1.02"}},
                                                                          {"prodigy_safeguard_warmup", {"false"}},
                                                                          {"prodigy_use_bias_correction", {"false"}},
                                                                          {"prodigy_decouple", {"false"}},
                                                                          {"prodigy_slice_p", {"11"}}}))
                                    .rule;
  EXPECT_EQ(std::tuple(prodigy.beta1, prodigy.beta2, prodigy.prodigy.beta3, prodigy.eps),
            std::tuple(0.8f, 0.95f, 0.9f, 1e-6f));
  EXPECT_EQ(std::tuple(prodigy.prodigy.d0, prodigy.prodigy.d_coef, prodigy.prodigy.growth_rate),
            std::tuple(1e-5f, 2.0f, 1.02f));
  EXPECT_FALSE(prodigy.prodigy.safeguard_warmup || prodigy.prodigy.use_bias_correction || prodigy.prodigy.decouple);
  EXPECT_EQ(prodigy.prodigy.slice_p, 11);
  const OptimizerRule plain = OptimizerOptions::of(resolved("prodigy", {})).rule;
  EXPECT_EQ(scalars_of(prodigy), scalars_of(plain) + 1) << "a limit of growth has a scalar of its own";
  EXPECT_TRUE(std::isinf(plain.prodigy.growth_rate));
  EXPECT_EQ(std::tuple(plain.beta1, plain.beta2, plain.eps), std::tuple(0.9f, 0.99f, 1e-8f));
}

// As transformers' Adafactor has it, at 0.01; --lr is the most.
TEST(TrainConfig, RelativeStepsAreAdafactors) {
  TrainConfig config{.optimizer = OptimizerKind::adafactor, .adafactor_relative_step = true};
  resolve(config, {});
  EXPECT_EQ(config.lr.value, 0.01);
  EXPECT_EQ(learning_rate(config, 0), 0.01);
  EXPECT_EQ(learning_rate(config, 39999), 1 / std::sqrt(40000.0));
  config.adafactor_warmup_init = true;
  EXPECT_EQ(learning_rate(config, 0), 1e-6);
  EXPECT_EQ(learning_rate(config, 999), 1e-3);
  EXPECT_EQ(learning_rate(config, 39999), 1 / std::sqrt(40000.0));
  config.lr = 5e-4;
  EXPECT_EQ(learning_rate(config, 999), 5e-4);
}

TEST(TrainConfig, ArgumentsOfOptimizersAreReadBack) {
  TrainConfig config{
      .optimizer = OptimizerKind::prodigy, .betas = {0.9, 0.999}, .eps = {1e-6}, .prodigy_decouple = false};
  const TemporaryDirectory folder;
  write_plain(folder / "c.toml", to_toml(config));
  TrainConfig again;
  read_toml(again, folder / "c.toml");
  EXPECT_EQ(to_toml(again), to_toml(config));
  EXPECT_EQ(again.betas, config.betas);
  EXPECT_FALSE(again.prodigy_decouple);
  write_plain(folder / "d.toml", "betas = 0.9");
  expect_error([&] { read_toml(again, folder / "d.toml"); }, {"d.toml: betas", "a list of numbers", "0.9"});
}

TEST(TrainConfig, ResolvingChecksAndFillsIn) {
  TrainConfig config;
  expect_error([&] { resolve(config); }, {"--model"});
  config.model = "tiny", config.dataset = {"pictures"}, config.output = "out";
  resolve(config);
  EXPECT_EQ(config.name, "lora");
  EXPECT_EQ(config.alpha.value, 16);
  EXPECT_TRUE(config.dataset.front().starts_with('/'));
  EXPECT_EQ(config.model, "tiny");
  config.name = "a/b";
  expect_error([&] { resolve(config); }, {"--name", "a/b"});
  config.name = "a", config.train = TrainMode::vae, config.targets = {"*"};
  expect_error([&] { resolve(config); }, {"--targets", "vae"});
}

}  // namespace
}  // namespace wick
