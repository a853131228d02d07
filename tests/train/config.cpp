// Settings: each from a flag and from TOML, and the values refused.
#include "wick/train/config.h"

#include <gtest/gtest.h>

#include "io/files.h"

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
  EXPECT_EQ(config.resolution, (std::vector<int64_t>{512, 1024}));
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

  for (const auto& [text, resolutions] : {std::pair<const char*, std::vector<int64_t>>{"resolution = 512", {512}},
                                          {"resolution = [512, 768]", {512, 768}}}) {
    write_plain(folder / "b.toml", text);
    read_toml(back, folder / "b.toml");
    EXPECT_EQ(back.resolution, resolutions);
    EXPECT_NE(to_toml(back).find(text), std::string::npos) << to_toml(back);
  }
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
  expect_error([&] { read("resolution = [512, \"x\"]"); }, {"c.toml: resolution", "an integer", "the string \"x\""});
  expect_error([&] { read("resolution = \"512\""); }, {"c.toml: resolution", "an integer", "the string \"512\""});
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
