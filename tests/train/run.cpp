// Whole runs of `wick train` on the golden model: their files, and that no way of stopping them changes the result.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "device.h"
#include "source_dir.h"
#include "train/process.h"
#include "wick/io/image.h"
#include "wick/io/safetensors.h"
#include "wick/train/event_file.h"
#include "wick/train/state.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using std::chrono::duration;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

const fs::path kSource = test::source_dir();
const fs::path kModel = kSource / "tests/golden/sdxl";

// The contents of all files, by their names.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all[entry.path().string()] = read_plain(entry.path());
  return all;
}

class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("SOURCE_DATE_EPOCH", "1700000000", 1);  // equal runs leave equal files
    copy_pictures(folder_ / "pictures");
  }

  std::vector<std::string> arguments(const std::string& output, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"train",
                                    "--model",
                                    kModel.string(),
                                    "--dataset",
                                    (folder_ / "pictures").string(),
                                    "--output",
                                    (folder_ / output).string(),
                                    "--steps",
                                    "6",
                                    "--rank",
                                    "4",
                                    "--alpha",
                                    "2",
                                    "--lr",
                                    "1e-3",
                                    "--batch-size",
                                    "2",
                                    "--accumulate",
                                    "2",
                                    "--resolution",
                                    "64",
                                    "--save-every",
                                    "2",
                                    "--device",
                                    std::string(test::backend().name())};
    return with_flags(all, more);
  }
  Outcome train(const std::string& output, const std::vector<std::string>& more = {}, rlim_t largest_file = 0) const {
    return ChildProcess(arguments(output, more), folder_.path(), largest_file).wait();
  }
  std::string result(const std::string& output) const { return tensors_of(folder_ / output / "lora.safetensors"); }
  int64_t lines(const std::string& output) const {
    const std::string text = read_plain(folder_ / output / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }
  std::vector<std::string> losses(const std::string& output) const { return logged(folder_ / output); }
  std::vector<std::string> states(const std::string& output) const {
    std::vector<std::string> names;
    for (const fs::path& file : state_files(folder_ / output / "state")) names.push_back(file.filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void expect_nothing_left_over(const std::string& output) const {
    for (const auto& [file, bytes] : contents(folder_ / output)) EXPECT_FALSE(file.ends_with(".tmp-wick")) << file;
  }

  TemporaryDirectory folder_;
};

TEST_F(RunTest, LeavesEverythingItPromises) {
  const Outcome outcome = train("out");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const fs::path out = folder_ / "out";
  for (const char* file : {"lora.safetensors", "lora-000002.safetensors", "lora-000004.safetensors",
                           "lora-000006.safetensors", "config.toml", "metrics.jsonl", "index.html",
                           "state/state-000004.safetensors", "state/state-000006.safetensors", "state/dataset.sha256"})
    EXPECT_TRUE(fs::exists(out / file)) << file;
  EXPECT_EQ(lines("out"), 6);
  EXPECT_GT(read_image(out / "loss.png").width, 400);

  const fs::path events = fs::directory_iterator(out / "logs")->path();
  std::istringstream metrics(read_plain(out / "metrics.jsonl"));
  std::string expected = file_version_record(0);
  for (std::string line; std::getline(metrics, line);) {
    const auto step = nlohmann::ordered_json::parse(line);
    ScalarEvent event{.wall_time = step["time"], .step = step["step"]};
    for (const char* tag : {"loss", "lr", "grad_norm"}) event.scalars.emplace_back(tag, step[tag].get<float>());
    double squares = 0;
    for (const auto& [part, norm] : step["grad_norms"].items()) {
      event.scalars.emplace_back("grad_norm/" + part, norm.get<float>());
      squares += std::pow(norm.get<double>(), 2);
    }
    EXPECT_NEAR(std::sqrt(squares) / step["grad_norm"].get<double>(), 1, 1e-5) << "the parts are the whole";
    EXPECT_EQ(step["grad_norms"].size(), 3u);
    expected += scalar_record(event);
  }
  EXPECT_EQ(read_plain(events), expected);

  const SafetensorsFile lora = SafetensorsFile::open(out / "lora.safetensors");
  EXPECT_EQ(lora.metadata().at("ss_network_dim"), "4");
  EXPECT_EQ(lora.metadata().at("ss_base_model_version"), "sdxl_base_v1-0");
  EXPECT_EQ(lora.metadata().at("modelspec.architecture"), "stable-diffusion-xl-v1-base/lora");
  EXPECT_EQ(lora.load("lora_unet_input_blocks_4_1_proj_in.alpha").item(), 2);
  EXPECT_EQ(lora.load("lora_unet_input_blocks_4_1_proj_in.lora_down.weight").dim(0), 4);
}

TEST_F(RunTest, IsAFunctionOfItsInputsAndSettings) {
  ASSERT_EQ(train("a").code, 0);
  ASSERT_EQ(
      ChildProcess({"train", "--config", (folder_ / "a/config.toml").string(), "--output", (folder_ / "b").string()},
                   folder_.path())
          .wait()
          .code,
      0);
  EXPECT_EQ(result("a"), result("b"));
  ASSERT_EQ(train("c", {"--seed", "1"}).code, 0);
  EXPECT_NE(result("a"), result("c"));
  ASSERT_EQ(train("d", {"--gradient-checkpointing"}).code, 0);
  EXPECT_EQ(losses("a"), losses("d")) << "recomputing gives the same bits";
  ASSERT_EQ(train("f", {"--checkpoint-blocks", "5"}).code, 0);
  EXPECT_EQ(losses("a"), losses("f")) << "so does recomputing a part";
  ASSERT_EQ(train("g", {"--stream-blocks", "7", "--checkpoint-blocks", "3"}).code, 0);
  EXPECT_EQ(result("a"), result("g")) << "and weights from the host";
  ASSERT_EQ(train("e", {"--no-graph"}).code, 0);
  EXPECT_EQ(result("a"), result("e")) << "a replayed step has the bits of its calls";
}

TEST_F(RunTest, DropoutIsDrawnForEachBatchAndGoesOnWhereItWas) {
  const std::vector<std::string> dropout = {"--lora-dropout", "0.3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), dropout.begin(), dropout.end());
    return more;
  };
  ASSERT_EQ(train("whole", dropout).code, 0);
  ASSERT_EQ(train("plain").code, 0);
  EXPECT_NE(losses("whole"), losses("plain"));
  ASSERT_EQ(train("again", with({"--gradient-checkpointing"})).code, 0);
  EXPECT_EQ(losses("whole"), losses("again")) << "the mask of a recomputed block is the same";
  ASSERT_EQ(train("halves", with({"--steps", "3"})).code, 0);
  ASSERT_EQ(train("halves", with({"--resume"})).code, 0);
  EXPECT_EQ(result("whole"), result("halves"));
}

// Of rank 128, so that there are states of 8 bits.
TEST_F(RunTest, EachOptimizerGoesOnWhereItWas) {
  std::set<std::string> results;
  for (const std::string_view optimizer : split_names(names_of(OptimizerKind{}))) {
    const std::string name(optimizer), rate = name == "prodigy" ? "1" : "1e-3";
    const std::vector<std::string> flags = {"--optimizer", name,       "--lr", rate,        "--rank",
                                            "128",         "--warmup", "2",    "--targets", "unet.*.ff.*"};
    ASSERT_EQ(train(name, flags).code, 0);
    ASSERT_EQ(train("halves " + name, with_flags(flags, {"--steps", "3"})).code, 0);
    const Outcome outcome = train("halves " + name, with_flags(flags, {"--resume"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(result(name), result("halves " + name)) << name;
    EXPECT_EQ(losses(name), losses("halves " + name)) << name;
    const std::string metrics = read_plain(folder_ / name / "metrics.jsonl");
    EXPECT_EQ(metrics.find("\"d*lr\":") != std::string::npos, name == "prodigy") << metrics;
    EXPECT_EQ(outcome.out.find("  d*lr ") != std::string::npos, name == "prodigy") << outcome.out;
    ASSERT_EQ(train("calls " + name, with_flags(flags, {"--no-graph", "--save-every", "0"})).code, 0);
    EXPECT_EQ(result(name), result("calls " + name)) << name << ": replaying and saving change no bit";
    EXPECT_TRUE(results.insert(result(name)).second) << name << " learns as another does";
    const std::string other = name == "lion" ? "adamw" : "lion";
    expect_one_line(train(name, with_flags(flags, {"--resume", "--optimizer", other, "--steps", "7"})),
                    {"--resume", "--optimizer \"" + name + "\"", other, "start anew"});
  }
}

TEST_F(RunTest, EachKindOfAdapterGoesOnWhereItWas) {
  std::set<std::string> results;
  for (const std::string_view kind : split_names(names_of(AdapterKind{}))) {
    const std::string name(kind);
    const std::vector<std::string> flags = {"--adapter", name, "--conv-rank", "2"};
    ASSERT_EQ(train(name, flags).code, 0);
    ASSERT_EQ(train("halves " + name, with_flags(flags, {"--steps", "3"})).code, 0);
    const Outcome outcome = train("halves " + name, with_flags(flags, {"--resume"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(result(name), result("halves " + name)) << name;
    ASSERT_EQ(train("calls " + name, with_flags(flags, {"--no-graph", "--stream-blocks", "7"})).code, 0);
    EXPECT_EQ(result(name), result("calls " + name)) << name << ": replaying and weights from the host change no bit";
    ASSERT_EQ(train("twice " + name, with_flags(flags, {"--gradient-checkpointing"})).code, 0);
    EXPECT_EQ(losses(name), losses("twice " + name)) << name << ": recomputing gives the same bits";
    EXPECT_TRUE(results.insert(result(name)).second) << name << " learns as another does";
  }
  expect_one_line(train("x", {"--adapter", "loha", "--lora-dropout", "0.1"}), {"--lora-dropout", "--adapter lora"});
  expect_one_line(train("x", {"--lokr-factor", "4"}), {"--lokr-factor", "--adapter lokr"});
}

TEST_F(RunTest, KilledAtTwentyMomentsItEndsTheSame) {
  const auto begin = Clock::now();
  ASSERT_EQ(train("whole").code, 0);
  const double length = duration<double>(Clock::now() - begin).count();
  std::mt19937 random(5);
  for (int i = 0; i < 20; ++i) {
    fs::remove_all(folder_ / "cut");
    const ChildProcess victim(arguments("cut"), folder_.path());
    std::this_thread::sleep_for(duration<double>(length * std::uniform_real_distribution(0.1, 0.99)(random)));
    victim.signal(SIGKILL);
    victim.wait();
    const int64_t before = lines("cut");
    const Outcome outcome =
        train("cut", has_run(folder_ / "cut") ? std::vector<std::string>{"--resume"} : std::vector<std::string>{});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(result("cut"), result("whole")) << "killed after " << before << " steps";
    EXPECT_EQ(losses("cut"), losses("whole"));
    expect_nothing_left_over("cut");
  }
}

// A quantised base gives other losses than the whole one, near it, and a killed run of it ends with the same bits.
TEST_F(RunTest, AQuantisedBaseTrainsAndGoesOn) {
  const auto last = [&](const std::string& output) {
    const std::string line = losses(output).back();
    return std::stod(line.substr(line.find("\"loss\":") + 7));
  };
  ASSERT_EQ(train("whole", {"--bf16"}).code, 0);
  for (const char* type : {"fp8", "int8", "q8_0"}) {
    const Outcome outcome = train(type, {"--quantize", type});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find(std::string("base in ") + type + ": "), std::string::npos) << outcome.out;
    EXPECT_NE(last(type), last("whole")) << type;
    EXPECT_NEAR(last(type), last("whole"), 0.05 * last("whole")) << type;
  }
  const std::string part = std::string("part");
  ASSERT_EQ(train(part, {"--quantize", "fp8", "--steps", "4"}).code, 0);
  ASSERT_EQ(train(part, {"--quantize", "fp8", "--resume"}).code, 0);
  EXPECT_EQ(result(part), result("fp8"));
  const auto weights = [&](const std::string& output, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--quantize", "fp8"});
    const std::string text = train(output, flags).out, before = "base in fp8: ";
    return text.find(before) == text.npos ? 0 : std::stoi(text.substr(text.find(before) + before.size()));
  };
  const int all = weights("all", {}), some = weights("some", {"--keep-precision", "*.ff.*"}),
            rest = weights("rest", {"--keep-precision", "*attn*"});
  EXPECT_EQ(some + rest, all);
  EXPECT_GT(some, rest);
  EXPECT_NE(losses("some"), losses("all"));
  expect_one_line(train("kept", {"--quantize", "fp8", "--keep-precision", "*"}),
                  {"--keep-precision", "leaves no matrix", "UNet"});
  expect_one_line(train(part, {"--quantize", "int8", "--resume"}), {"--resume", "--quantize", "fp8", "int8"});
}

TEST_F(RunTest, ProductsInFp8TrainAndGoOn) {
  const Outcome outcome = train("whole", {"--fp8-compute"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("base in fp8, multiplied in fp8: "), std::string::npos) << outcome.out;
  ASSERT_EQ(train("decoded", {"--quantize", "fp8"}).code, 0);
  EXPECT_NE(losses("whole"), losses("decoded"));
  ASSERT_EQ(train("part", {"--fp8-compute", "--steps", "4"}).code, 0);
  ASSERT_EQ(train("part", {"--fp8-compute", "--resume"}).code, 0);
  EXPECT_EQ(result("part"), result("whole"));
  ASSERT_EQ(train("again", {"--config", (folder_ / "whole/config.toml").string()}).code, 0);
  EXPECT_EQ(result("again"), result("whole")) << "the file of settings says it";
  ASSERT_EQ(train("recomputed", {"--fp8-compute", "--gradient-checkpointing"}).code, 0);
  EXPECT_EQ(losses("recomputed"), losses("whole"));
  expect_one_line(train("part", {"--quantize", "fp8", "--resume"}), {"--resume", "--fp8-compute", "true", "false"});
}

TEST_F(RunTest, StatesAreSavedByTimeToo) {
  const std::vector<std::string> flags = {"--steps", "40", "--save-every", "0", "--state-every-minutes", "0.0001"};
  ASSERT_EQ(train("whole", flags).code, 0);
  EXPECT_EQ(states("whole").size(), 2u) << "the newest two are kept";
  const ChildProcess victim(arguments("cut", flags), folder_.path());
  while (states("cut").size() < 2) std::this_thread::sleep_for(milliseconds(5));
  victim.signal(SIGKILL);
  victim.wait();
  const Outcome outcome = train("cut", with_flags(flags, {"--resume"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("going on after step"), std::string::npos) << outcome.out;
  EXPECT_EQ(result("cut"), result("whole"));
  EXPECT_EQ(losses("cut"), losses("whole"));

  ASSERT_EQ(train("none", with_flags(flags, {"--state-every-minutes", "0"})).code, 0);
  EXPECT_EQ(states("none").size(), 1u);
  EXPECT_NE(read_plain(folder_ / "none/config.toml").find("state_every_minutes = 0.0"), std::string::npos);
}

// Epochs of these pictures end behind steps 2, 4 and 6.
TEST_F(RunTest, EpochsAreSavedAndTheNewestAreKept) {
  const auto saved = [&](const std::string& output) {
    std::string steps;
    for (int step = 1; step <= 6; ++step)
      if (fs::exists(folder_ / output / ("lora-00000" + std::to_string(step) + ".safetensors")))
        steps += std::to_string(step);
    return steps;
  };
  ASSERT_EQ(train("all", {"--save-every", "0", "--save-every-epochs", "1"}).code, 0);
  EXPECT_EQ(saved("all"), "246");
  ASSERT_EQ(train("second", {"--save-every", "0", "--save-every-epochs", "2"}).code, 0);
  EXPECT_EQ(saved("second"), "4");
  ASSERT_EQ(train("newest", {"--save-every", "1", "--keep-last", "2"}).code, 0);
  EXPECT_EQ(saved("newest"), "56");
  EXPECT_EQ(result("newest"), result("all"));
  ASSERT_EQ(train("timely", {"--save-every", "0", "--save-every-minutes", "1e-9", "--keep-last", "3"}).code, 0);
  EXPECT_EQ(saved("timely"), "345") << "the end is saved as the result";

  // A kill may come between a save and the removal of older results, and no other save behind it.
  ASSERT_EQ(train("cut", {"--steps", "4", "--save-every", "1"}).code, 0);
  EXPECT_EQ(saved("cut"), "1234");
  ASSERT_EQ(train("cut", {"--save-every", "0", "--keep-last", "2", "--resume"}).code, 0);
  EXPECT_EQ(saved("cut"), "34");
}

TEST_F(RunTest, RatesGoByPatternAndScheduleByShare) {
  ASSERT_EQ(train("plain", {"--lr", "5e-4", "--warmup", "3", "--save-every", "0"}).code, 0);
  ASSERT_EQ(train("pattern", {"--lr", "1e-3", "unet.*=5e-4", "--warmup", "0.5", "--save-every", "0"}).code, 0);
  EXPECT_EQ(result("pattern"), result("plain"));
  ASSERT_EQ(train("plus", {"--lr", "5e-4", "--warmup", "3", "--lora-plus", "8", "--save-every", "0"}).code, 0);
  EXPECT_NE(result("plus"), result("plain"));
  const Outcome nothing = train("nothing", {"--lr", "1e-3", "text_encoder.*=5e-4"});
  EXPECT_EQ(nothing.code, 1);
  EXPECT_TRUE(nothing.err.find("--lr: \"text_encoder.*\" matches no module that is trained") != nothing.err.npos)
      << nothing.err;
}

// The modules, ranks and alphas of a file, which hardly move at such a rate.
TEST_F(RunTest, ALoraIsTrainedFurther) {
  ASSERT_EQ(train("first", {"--targets", "unet.*attn1*", "--conv-rank", "0", "--save-dtype", "f32"}).code, 0);
  const std::string from = (folder_ / "first" / "lora.safetensors").string();
  std::vector<std::string> further = {"train",
                                      "--model",
                                      kModel.string(),
                                      "--dataset",
                                      (folder_ / "pictures").string(),
                                      "--output",
                                      (folder_ / "further").string(),
                                      "--from",
                                      from,
                                      "--steps",
                                      "1",
                                      "--lr",
                                      "1e-30",
                                      "--weight-decay",
                                      "0",
                                      "--resolution",
                                      "64",
                                      "--save-dtype",
                                      "f32",
                                      "--device",
                                      std::string(test::backend().name())};
  const Outcome outcome = ChildProcess(further, folder_.path()).wait();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(result("further"), result("first"));
  further[6] = (folder_ / "on").string();
  further[12] = "1e-3";
  ASSERT_EQ(ChildProcess(further, folder_.path()).wait().code, 0);
  EXPECT_NE(result("on"), result("first"));
  further.insert(further.end(), {"--rank", "4"});
  EXPECT_EQ(ChildProcess(further, folder_.path()).wait().code, 2);
}

// Convolutions of more than one pixel with a rank of their own, as kohya's conv_dim.
TEST_F(RunTest, ConvolutionsHaveARankOfTheirOwn) {
  ASSERT_EQ(train("conv", {"--conv-rank", "2", "--rslora", "--save-every", "0"}).code, 0);
  const SafetensorsFile lora = SafetensorsFile::open(folder_ / "conv" / "lora.safetensors");
  int64_t linears = 0, convolutions = 0, resnets = 0;
  for (const auto& [name, tensor] : lora.tensors()) {
    if (!name.ends_with(".lora_down.weight")) continue;
    const bool is_conv = tensor.shape.rank() == 4 && tensor.shape[2] > 1;
    ++(is_conv ? convolutions : linears);
    resnets += name.find("_emb_layers_") != name.npos;  // a linear among them
    EXPECT_EQ(tensor.shape[0], is_conv ? 2 : 4) << name;
    const float alpha = lora.load_numbers(name.substr(0, name.size() - 17) + ".alpha").item();
    EXPECT_FLOAT_EQ(alpha, is_conv ? 2 * std::sqrt(2.0f) : 2 * 2) << name;
  }
  EXPECT_GT(linears, 0);
  EXPECT_GT(convolutions, 0);
  EXPECT_GT(resnets, 0);
  EXPECT_EQ(nlohmann::json::parse(lora.metadata().at("ss_network_args")).at("conv_dim"), "2");
}

TEST_F(RunTest, AStateInTimeThatCannotBeSavedEndsNothing) {
  const Outcome outcome = train("out", {"--save-every", "0", "--state-every-minutes", "0.00001"}, 8000);
  EXPECT_NE(outcome.out.find("training goes on, without a saved state"), std::string::npos) << outcome.out;
  expect_one_line(outcome, {"out/lora.safetensors"});  // which the user may need
  EXPECT_EQ(lines("out"), 6);
}

TEST_F(RunTest, AnInterruptedRunSaysHowToGoOnAndEndsTheSame) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    fs::remove_all(folder_ / "cut");
    const ChildProcess run(arguments("cut", {"--steps", "60", "--save-every", "0"}), folder_.path());
    while (lines("cut") < 2) std::this_thread::sleep_for(milliseconds(5));
    run.signal(number);
    const Outcome outcome = run.wait();
    EXPECT_EQ(outcome.code, 75) << outcome.err;
    EXPECT_NE(outcome.out.find("--config " + (folder_ / "cut/config.toml").string() + " --resume"), std::string::npos)
        << outcome.out;
  }
  EXPECT_LT(lines("cut"), 60);
  ASSERT_EQ(ChildProcess({"train", "--config", (folder_ / "cut/config.toml").string(), "--resume"}, folder_.path())
                .wait()
                .code,
            0);
  ASSERT_EQ(train("whole", {"--steps", "60", "--save-every", "0"}).code, 0);
  EXPECT_EQ(result("cut"), result("whole"));
}

TEST_F(RunTest, AHangupThatWasIgnoredStaysSo) {
  std::vector<std::string> words = arguments("out", {"--steps", "30"});
  std::signal(SIGHUP, SIG_IGN);  // as nohup leaves it to its children
  const ChildProcess run(words, folder_.path());
  std::signal(SIGHUP, SIG_DFL);
  while (lines("out") < 2) std::this_thread::sleep_for(milliseconds(5));
  run.signal(SIGHUP);
  EXPECT_EQ(run.wait().code, 0);
  EXPECT_EQ(lines("out"), 30);
}

TEST_F(RunTest, ResumingSaysWhatItFinds) {
  expect_one_line(train("out", {"--resume"}), {"--output", "out", "holds no run to --resume", "no such folder"});
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  fs::create_directories(folder_ / "out/state");  // as a run that was killed before its first state
  write_plain(folder_ / "out/state/lock", "");
  Outcome outcome = train("out", {"--resume"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("the run begins anew"), std::string::npos) << outcome.out;
  const std::string first = result("out");

  outcome = train("out", {"--resume"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("Already finished"), std::string::npos) << outcome.out;
  EXPECT_EQ(result("out"), first);

  fs::remove(folder_ / "out/lora.safetensors");
  ASSERT_EQ(train("out", {"--resume"}).code, 0);
  EXPECT_EQ(result("out"), first) << "a lost result is written again";

  expect_one_line(train("out", {"--resume", "--rank", "8"}), {"--rank", "4", "8", "--resume"});
  expect_one_line(train("out", {"--resume", "--prediction", "v"}), {"--prediction \"auto\"", "\"v\"", "--resume"});
  write_plain(folder_ / "pictures/0001.txt", "another caption");
  fs::rename(folder_ / "pictures/0002.txt", folder_ / "pictures/new.txt");
  fs::rename(folder_ / "pictures/0002.png", folder_ / "pictures/new.png");
  expect_one_line(train("out", {"--resume"}), {"--resume", "data set", "0001.txt changed", "0002.png is gone",
                                               "0002.txt is gone", "new.png is new", "new.txt is new"});
}

// As a LoRA's file tells those who load it.
TEST_F(RunTest, WhatTheModelPredictsCanBeAskedFor) {
  ASSERT_EQ(train("noise", {"--steps", "2"}).code, 0);
  ASSERT_EQ(train("v", {"--steps", "2", "--prediction", "v"}).code, 0);
  EXPECT_NE(losses("noise"), losses("v"));
  for (const auto& [run, prediction] : {std::pair("noise", "epsilon"), {"v", "v"}}) {
    const auto metadata = SafetensorsFile::open(folder_ / run / "lora.safetensors").metadata();
    EXPECT_EQ(metadata.at("modelspec.prediction_type"), prediction);
    EXPECT_EQ(metadata.at("ss_zero_terminal_snr"), "False");
    EXPECT_EQ(metadata.at("ss_v2"), "False");  // Stable Diffusion 2
  }
  expect_one_line(train("v", {"--steps", "3", "--prediction", "epsilon", "--resume"}),
                  {"--prediction \"v\"", "\"epsilon\"", "--resume"});
  EXPECT_EQ(train("v", {"--steps", "3", "--prediction", "v", "--resume"}).code, 0);
}

TEST_F(RunTest, WhatWasMovedOrChangesNoBitsMayDiffer) {
  ASSERT_EQ(train("out", {"--steps", "4"}).code, 0);
  fs::create_directory_symlink(kModel, folder_ / "model");
  fs::rename(folder_ / "pictures", folder_ / "moved");
  const Outcome outcome =
      train("out", {"--resume", "--model", (folder_ / "model").string(), "--dataset", (folder_ / "moved").string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  fs::rename(folder_ / "moved", folder_ / "pictures");
  ASSERT_EQ(train("whole").code, 0);
  EXPECT_EQ(result("out"), result("whole"));

  const Outcome faster = train("out", {"--resume", "--steps", "8", "--lr", "2e-3"});
  ASSERT_EQ(faster.code, 0) << faster.err;
  EXPECT_NE(faster.out.find("--lr was 0.001 up to step 6, and is 0.002 from there on"), std::string::npos)
      << faster.out;
  ASSERT_EQ(train("slow", {"--steps", "8"}).code, 0);
  EXPECT_NE(result("out"), result("slow"));

  fs::remove(folder_ / "model");
  fs::copy(kModel, folder_ / "model", fs::copy_options::recursive);
  write_plain(folder_ / "model/unet/config.json", read_plain(kModel / "unet/config.json") + " ");
  expect_one_line(train("out", {"--resume", "--steps", "9", "--model", (folder_ / "model").string()}),
                  {"--resume", "model", "other contents"});
}

TEST_F(RunTest, AKilledRunFinishesWhatWasMissing) {
  ASSERT_EQ(train("out").code, 0);
  const std::string plot = read_plain(folder_ / "out/loss.png"), lora = result("out");
  const fs::path leftovers[] = {folder_ / "out/lora.safetensors.tmp-wick", folder_ / "out/loss.png.tmp-wick",
                                folder_ / "out/state/state-000006.safetensors.tmp-wick",
                                folder_ / "out/logs/x.tmp-wick"};
  const auto resume = [&] {
    const Outcome outcome = train("out", {"--resume"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("Already finished"), std::string::npos) << outcome.out;
    EXPECT_EQ(read_plain(folder_ / "out/loss.png"), plot);
    expect_nothing_left_over("out");
  };
  for (const fs::path& file : leftovers) write_plain(file, "half");
  fs::remove(folder_ / "out/loss.png");
  resume();
  write_plain(folder_ / "out/loss.png", "that of an earlier step");
  fs::last_write_time(folder_ / "out/loss.png", fs::file_time_type::clock::now() - std::chrono::hours(1));
  resume();

  // Killed after the last step's state and before its result, where an earlier, shorter run had left one.
  ASSERT_EQ(train("long", {"--steps", "7"}).code, 0);
  fs::remove(folder_ / "long/state/state-000007.safetensors");
  write_plain(folder_ / "long/lora.safetensors", read_plain(folder_ / "long/lora-000002.safetensors"));
  EXPECT_NE(result("long"), lora);
  ASSERT_EQ(train("long", {"--resume"}).code, 0);
  EXPECT_EQ(result("long"), lora);
}

// One bit of a file's middle.
void damage(const fs::path& file) {
  std::string bytes = read_plain(file);
  bytes[bytes.size() / 2] = char(bytes[bytes.size() / 2] ^ 1);
  write_plain(file, bytes);
}

TEST_F(RunTest, ADamagedStateIsPassedOver) {
  ASSERT_EQ(train("out", {"--steps", "5"}).code, 0);
  ASSERT_EQ(states("out"), (std::vector<std::string>{"state-000004.safetensors", "state-000005.safetensors"}));
  damage(folder_ / "out/state/state-000005.safetensors");
  const Outcome outcome = train("out", {"--resume"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"state-000005.safetensors: the file is damaged", "going on after step 4"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out << part;
  ASSERT_EQ(train("whole").code, 0);
  EXPECT_EQ(result("out"), result("whole"));
  EXPECT_EQ(losses("out"), losses("whole"));
  EXPECT_EQ(states("out"), (std::vector<std::string>{"state-000004.safetensors", "state-000006.safetensors"}));

  for (const std::string& file : states("out")) damage(folder_ / "out/state" / file);
  const auto before = contents(folder_ / "out");
  expect_one_line(train("out", {"--resume", "--steps", "7"}),
                  {"state-000006.safetensors: the file is damaged", "no other state is whole", "--output"});
  EXPECT_EQ(contents(folder_ / "out"), before);
}

// tests/golden/older_run is of 0fe476b, when steps were of any bucket and samples had no numbers: eight steps, with the
// state behind the fourth.
class OlderRun : public RunTest {
 protected:
  OlderRun() {
    fs::create_directories(state().parent_path());
    fs::copy_file(kRun / state().filename(), state());
  }
  fs::path state() const { return folder_ / "out/state/state-000004.safetensors"; }

  // Instead of it a file as versions without a hash wrote it, with `edit` of its metadata.
  template <class Edit>
  void write_as_before_hashes(const Edit& edit) const {
    const SafetensorsFile file = SafetensorsFile::open(kRun / state().filename());
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
    std::map<std::string, std::string> metadata;
    for (const auto& [key, value] : file.metadata())
      if (!key.starts_with("setting.") && key != "sha256" && key != "finished") metadata[key] = value;
    metadata["format"] = "wick training state 2";
    metadata["same.--model"] = "\"elsewhere\"", metadata["same.--lr"] = "0.001";
    edit(metadata);
    for (const fs::path& other : state_files(state().parent_path())) fs::remove(other);
    save_safetensors(folder_ / "out/state/state.safetensors", tensors, metadata);
  }

  Outcome resume() const {
    return ChildProcess({"train",
                         "--model",
                         kModel.string(),
                         "--dataset",
                         (kSource / "data/tiny-style").string(),
                         "--output",
                         (folder_ / "out").string(),
                         "--steps",
                         "8",
                         "--rank",
                         "1",
                         "--alpha",
                         "1",
                         "--lr",
                         "1e-3",
                         "--batch-size",
                         "3",
                         "--accumulate",
                         "2",
                         "--resolution",
                         "64",
                         "--caption-dropout",
                         "0.3",
                         "--lora-dropout",
                         "0.1",
                         "--flip-aug",
                         "--targets",
                         "unet.*attn2.to_k",
                         "--device",
                         std::string(test::backend().name()),
                         "--resume"},
                        folder_.path())
        .wait();
  }

  static std::map<int64_t, double> losses_behind_the_state(const fs::path& run) {
    std::istringstream lines(read_plain(run / "metrics.jsonl"));
    std::map<int64_t, double> losses;
    for (std::string line; std::getline(lines, line);)
      if (const auto step = nlohmann::json::parse(line); step["step"] > 4) losses[step["step"]] = step["loss"];
    return losses;
  }
  void expect_as_then() const {
    const auto expected = losses_behind_the_state(kRun), found = losses_behind_the_state(folder_ / "out");
    ASSERT_EQ(expected.size(), 4u);
    for (const auto& [step, loss] : expected) EXPECT_NEAR(found.at(step), loss, 1e-5) << step;
  }

  const fs::path kRun = kSource / "tests/golden/older_run";
};

TEST_F(OlderRun, EndsInItsOrder) {
  const Outcome outcome = resume();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_as_then();
}

TEST_F(OlderRun, OfAVersionWithoutHashesGoesOn) {
  // It knows none of the settings that came since.
  write_as_before_hashes([](auto& metadata) {
    for (const char* later : {"--prediction", "--quantize", "--fp8-compute", "--keep-precision", "--optimizer"})
      ASSERT_EQ(metadata.erase(std::string("same.") + later), 1u) << later;
  });
  const Outcome outcome = resume();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("without a hash"), std::string::npos) << outcome.out;
  expect_as_then();
  EXPECT_EQ(states("out"), (std::vector<std::string>{"state-000008.safetensors", "state.safetensors"}));
}

TEST_F(OlderRun, OfNonsenseIsRefused) {
  const std::initializer_list<std::pair<const char*, const char*>> nonsense = {{"step", "1000000000000000000"},
                                                                               {"step", "0"},
                                                                               {"step", "-4"},
                                                                               {"epoch", "-1"},
                                                                               {"epoch", "100000"},
                                                                               {"batch", "99"},
                                                                               {"batch", "-1"},
                                                                               {"batch", "x"},
                                                                               {"rng.noise", "-1"},
                                                                               {"rng.other", "0"},
                                                                               {"rng.latent", "1e99"},
                                                                               {"format", "wick training state 1"}};
  for (const auto& [key, value] : nonsense) {
    write_as_before_hashes([&](auto& metadata) { metadata[key] = value; });
    expect_one_line(resume(), {"state.safetensors"});
  }
}

TEST_F(RunTest, MoreStepsGoOn) {
  ASSERT_EQ(train("out", {"--steps", "4"}).code, 0);
  ASSERT_EQ(train("out", {"--resume"}).code, 0);
  ASSERT_EQ(train("whole").code, 0);
  EXPECT_EQ(lines("out"), 6);
  const SafetensorsFile a = SafetensorsFile::open(folder_ / "out/lora.safetensors");
  const SafetensorsFile b = SafetensorsFile::open(folder_ / "whole/lora.safetensors");
  EXPECT_EQ(a.metadata().at("sshs_model_hash"), b.metadata().at("sshs_model_hash"));
}

TEST_F(RunTest, AFullDiskIsOneLineAndLeavesNoHalfFile) {
  expect_one_line(train("out", {}, 8000), {(folder_ / "out").string()});
  EXPECT_FALSE(fs::exists(folder_ / "out/lora.safetensors"));
  EXPECT_TRUE(states("out").empty());
  ASSERT_EQ(train("out", {"--resume"}).code, 0) << "with room again";
}

TEST_F(RunTest, AnEarlierRunIsNotWrittenOver) {
  ASSERT_EQ(train("out", {"--steps", "3"}).code, 0);
  const auto before = contents(folder_ / "out");
  const std::initializer_list<std::string_view> parts = {"--output", "out", "holds an earlier run", "lora.safetensors",
                                                         "--resume"};
  expect_one_line(train("out"), parts);
  expect_one_line(train("out", {"--name", "other"}), {"out", "metrics.jsonl", "--resume"});
  // The refusal comes before anything is read.
  expect_one_line(train("out", {"--dataset", (folder_ / "none").string()}), parts);
  for (const fs::path& state : state_files(folder_ / "out/state")) fs::remove(state);
  expect_one_line(train("out"), parts);
  for (const auto& [file, bytes] : before) write_plain(file, bytes);
  EXPECT_EQ(contents(folder_ / "out"), before);
  EXPECT_EQ(train("out", {"--resume"}).code, 0);
}

TEST_F(RunTest, FilesOfOthersAreNotWrittenOver) {
  for (const char* file : {"config.toml", "index.html", "loss.png", "lora.safetensors", "lora-000002.safetensors"})
    for (const bool resume : {false, true}) {
      fs::remove_all(folder_ / "out");
      fs::create_directory(folder_ / "out");
      write_plain(folder_ / "out" / file, "mine");
      expect_one_line(train("out", resume ? std::vector<std::string>{"--resume"} : std::vector<std::string>{}),
                      {"--output", "would write over", file});
      EXPECT_EQ(contents(folder_ / "out").size(), 1u);
    }
  fs::remove_all(folder_ / "out");
  fs::create_directory(folder_ / "out");
  write_plain(folder_ / "out/lora-notes.txt", "mine");
  EXPECT_EQ(train("out", {"--steps", "1"}).code, 0);
  EXPECT_EQ(read_plain(folder_ / "out/lora-notes.txt"), "mine");
}

TEST_F(RunTest, ThePageGrowsWithTheRun) {
  const ChildProcess run(arguments("out", {"--steps", "600", "--save-every", "3"}), folder_.path());
  const fs::path page = folder_ / "out/index.html";
  const auto holds = [&](const char* text) {
    return fs::exists(page) && read_plain(page).find(text) != std::string::npos;
  };
  while (!holds("\"step\":6,") && lines("out") < 60) std::this_thread::sleep_for(milliseconds(2));
  EXPECT_TRUE(holds("\"steps\":600,"));
  EXPECT_FALSE(fs::exists(folder_ / "out/loss.png"));
  run.signal(SIGINT);
  run.wait();
  EXPECT_TRUE(holds(fmt::format("\"step\":{},\"steps\":600", lines("out")).c_str())) << "as it was stopped";
}

TEST_F(RunTest, WithoutAPageTheRunGoesOn) {
  ASSERT_EQ(train("out", {"--steps", "2"}).code, 0);
  fs::remove(folder_ / "out/index.html");
  fs::create_directory(folder_ / "out/index.html");
  const Outcome outcome = train("out", {"--resume"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"out/index.html: ", "; the run goes on without its page", "Trained "})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
}

TEST_F(RunTest, TwoAtOnceDoNotShareAFolder) {
  const ChildProcess first(arguments("out", {"--steps", "600", "--save-every", "0"}), folder_.path());
  while (lines("out") < 1) std::this_thread::sleep_for(milliseconds(5));
  const TemporaryDirectory scratch;
  expect_one_line(ChildProcess(arguments("out"), scratch.path()).wait(), {(folder_ / "out").string(), "another run"});
  first.signal(SIGKILL);
  first.wait();
  EXPECT_EQ(train("out", {"--resume"}).code, 0) << "the lock went with the run that was killed";
}

TEST_F(RunTest, ACaptionThatIsCutIsNamed) {
  std::string caption;
  for (int i = 0; i < 80; ++i) caption += "a ";
  write_plain(folder_ / "pictures/0002.txt", caption);
  write_plain(folder_ / "pictures/0009.txt", caption);
  const Outcome outcome = train("out", {"--steps", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"0002.txt", "80 tokens", "last 5", "likewise 1 other"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out << part;
  EXPECT_EQ(outcome.out.find("0009.txt"), std::string::npos) << "one line is enough";
}

// Frozen text encoders have run before the first step, and the cache keeps each length apart; trained ones read all
// chunks in each step.
TEST_F(RunTest, LongCaptionsAreReadInChunks) {
  std::string caption;
  for (int i = 0; i < 80; ++i) caption += "a ";
  write_plain(folder_ / "pictures/0002.txt", caption);
  write_plain(folder_ / "prompts.txt", caption + "--w 64 --h 64 --s 2\n");
  const std::vector<std::string> cached = {"--cache", (folder_ / "cache").string()},
                                 longer = {"--cache", (folder_ / "cache").string(), "--max-token-length", "150"};
  ASSERT_EQ(train("short", cached).code, 0);
  const Outcome first = train("long", longer);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out.find("0002.txt"), std::string::npos) << "nothing is cut: " << first.out;
  EXPECT_NE(result("short"), result("long"));
  const Outcome again = train("again", with_flags(longer, {"--sample-prompts", (folder_ / "prompts.txt").string()}));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(result("long"), result("again"));
  EXPECT_TRUE(fs::exists(folder_ / "again/samples/lora-000006-00.png"));
  ASSERT_EQ(train("halves", with_flags(longer, {"--steps", "3"})).code, 0);
  expect_one_line(train("halves", with_flags(longer, {"--resume", "--max-token-length", "225"})),
                  {"--resume", "--max-token-length"});
  ASSERT_EQ(train("halves", with_flags(longer, {"--resume"})).code, 0);
  EXPECT_EQ(result("long"), result("halves"));
  const std::vector<std::string> trained = {"--targets", "text_encoder*.q_proj", "--max-token-length", "225"};
  const Outcome text = train("text", with_flags(trained, {"--sample-prompts", (folder_ / "prompts.txt").string()}));
  ASSERT_EQ(text.code, 0) << text.err;
  ASSERT_EQ(train("calls", with_flags(trained, {"--no-graph", "--gradient-checkpointing"})).code, 0);
  EXPECT_EQ(result("text"), result("calls"));
  expect_one_line(train("x", {"--max-token-length", "100"}), {"--max-token-length", "75, 150 or 225", "100"});
  expect_one_line(train("x", {"--model", (kSource / "models/tiny-sd3").string(), "--max-token-length", "150"}),
                  {"--max-token-length", "is for SDXL"});
}

TEST_F(RunTest, TimestepsHaveARange) {
  ASSERT_EQ(train("all").code, 0);
  const Outcome late = train("late", {"--min-timestep", "900"});
  ASSERT_EQ(late.code, 0) << late.err;
  EXPECT_NE(result("all"), result("late"));
  expect_one_line(train("x", {"--min-timestep", "500", "--max-timestep", "400"}), {"--min-timestep", "400", "500"});
  expect_one_line(train("x", {"--min-timestep", "1000"}), {"--min-timestep", "less than 1000"});
  expect_one_line(train("x", {"--max-timestep", "1001"}), {"--max-timestep", "1000", "1001"});
  expect_one_line(train("x", {"--timestep-range", "drawn"}), {"--timestep-range", "no rectified flow"});
}

// The golden model with one number of one tensor replaced.
void spoil(const fs::path& model, const fs::path& file, const std::string& tensor) {
  fs::copy(kModel, model, fs::copy_options::recursive);
  const SafetensorsFile original = SafetensorsFile::open(model / file);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : original.tensors()) tensors[name] = original.load(name);
  tensors.at(tensor).data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  save_safetensors(model / file, tensors);
}

TEST_F(RunTest, ANanStopsTheRunAndIsNamed) {
  const std::string tensor = "mid_block.attentions.0.proj_in.weight";
  spoil(folder_ / "model", "unet/diffusion_pytorch_model.safetensors", tensor);
  expect_one_line(train("out", {"--model", (folder_ / "model").string()}), {"step 1", tensor, "no state"});
  EXPECT_FALSE(fs::exists(folder_ / "out/lora.safetensors"));
  EXPECT_EQ(train("out").code, 0) << "a run that did no step left nothing that would be lost";
}

TEST_F(RunTest, ARunThatBlowsUpKeepsItsLastGoodState) {
  expect_one_line(train("out", {"--lr", "1e30", "--save-every", "1"}), {"step ", "--lr", "kept in"});
  EXPECT_FALSE(fs::exists(folder_ / "out/lora.safetensors"));
  const SafetensorsFile state = SafetensorsFile::open(state_files(folder_ / "out/state").front());
  for (const auto& [name, info] : state.tensors())
    for (const float x : state.load(name).to_vector()) ASSERT_TRUE(std::isfinite(x)) << name;
}

TEST_F(RunTest, WrongInputIsOneLine) {
  expect_one_line(train("out", {"--rank", "0"}), {"--rank", "0"});
  expect_one_line(train("out", {"--lr", "nan"}), {"--lr", "nan"});
  expect_one_line(train("out", {"--lr", "-1"}), {"--lr", "-1"});
  expect_one_line(train("out", {"--stepz", "3"}), {"--stepz"});
  expect_one_line(train("out", {"--dataset", (folder_ / "none").string()}), {"--dataset", "none"});
  expect_one_line(train("out", {"--model", (folder_ / "none").string()}), {"--model", "none"});
  expect_one_line(train("out", {"--targets", "*nothing*"}), {"nothing"});
  expect_one_line(train("out", {"--bf16", "--fp16"}), {"--bf16", "--fp16"});
  expect_one_line(ChildProcess({"train"}, folder_.path()).wait(), {"--model"});
  expect_one_line(train("out", {"--lr", "1e-3", "surplus"}), {"surplus"});
  const std::string png = read_plain(folder_ / "pictures/0001.png");
  write_plain(folder_ / "pictures/0001.png", png.substr(0, png.size() / 2));
  expect_one_line(train("out"), {"0001.png", "remove the picture"});
  write_plain(folder_ / "pictures/0001.png", png);
  write_plain(folder_ / "file", "x");
  expect_one_line(train("file"), {"file"});
  expect_one_line(train("file/within"), {"file"});
}

TEST_F(RunTest, AFullRunMakesAModel) {
  ASSERT_EQ(train("out", {"--train", "full", "--ema", "0.9", "--rank", "1"}).code, 0);
  const fs::path made = folder_ / "out/model";
  EXPECT_TRUE(fs::exists(made / "model_index.json"));
  EXPECT_NE(read_plain(made / "unet/diffusion_pytorch_model.safetensors"),
            read_plain(kModel / "unet/diffusion_pytorch_model.safetensors"));
  const Outcome again = train("again", {"--model", made.string(), "--steps", "1"});
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST_F(RunTest, AVaeRunMakesAModelWithItsScale) {
  const Outcome outcome = train("out", {"--train", "vae", "--bf16"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(read_plain(folder_ / "out/model/vae/config.json"), read_plain(kModel / "vae/config.json"));
  const Outcome again = train("again", {"--model", (folder_ / "out/model").string(), "--steps", "1"});
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST_F(RunTest, ATextEncoderCanBeTrainedToo) {
  const Outcome outcome = train("out", {"--steps", "2", "--targets", "text_encoder.*q_proj", "unet.*attn1.to_q"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const SafetensorsFile lora = SafetensorsFile::open(folder_ / "out/lora.safetensors");
  const auto up = lora.load("lora_te1_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight").to_vector();
  EXPECT_TRUE(std::any_of(up.begin(), up.end(), [](float x) { return x != 0; }));
}

}  // namespace
}  // namespace wick
