// Whole runs of `wick train` on the golden model: what they leave, and that no way of stopping them changes the result.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "device.h"
#include "source_dir.h"
#include "train/process.h"
#include "wick/io/image.h"
#include "wick/io/safetensors.h"
#include "wick/train/event_file.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using std::chrono::duration;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

const fs::path kSource = test::source_dir();
const fs::path kModel = kSource / "tests/golden/sdxl";

class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("SOURCE_DATE_EPOCH", "1700000000", 1);  // runs that do the same leave the same files
    fs::create_directory(folder_ / "pictures");
    for (const char* name : {"0001", "0002", "0009", "0012", "0015"})
      for (const char* extension : {".png", ".jpg", ".webp", ".txt"}) {
        const fs::path file = kSource / "data/tiny-style" / (std::string(name) + extension);
        if (fs::exists(file)) fs::copy_file(file, folder_ / "pictures" / file.filename());
      }
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
    return Process(arguments(output, more), folder_.path(), largest_file).wait();
  }
  std::string result(const std::string& output) const { return read_plain(folder_ / output / "lora.safetensors"); }
  int64_t lines(const std::string& output) const {
    const std::string text = read_plain(folder_ / output / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }
  std::vector<std::string> losses(const std::string& output) const { return logged(folder_ / output); }

  TemporaryDirectory folder_;
};

TEST_F(RunTest, LeavesEverythingItPromises) {
  const Outcome outcome = train("out");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const fs::path out = folder_ / "out";
  for (const char* file : {"lora.safetensors", "lora-000002.safetensors", "lora-000004.safetensors",
                           "lora-000006.safetensors", "config.toml", "metrics.jsonl", "state/state.safetensors"})
    EXPECT_TRUE(fs::exists(out / file)) << file;
  EXPECT_EQ(lines("out"), 6);
  EXPECT_GT(read_image(out / "loss.png").width, 400);

  const fs::path events = fs::directory_iterator(out / "logs")->path();
  const auto scalars = parse_event_file(read_plain(events), events.string());
  ASSERT_EQ(scalars.size(), 6u);
  EXPECT_EQ(scalars[5].step, 6);
  EXPECT_EQ(scalars[5].scalars.front().first, "loss");

  const SafetensorsFile lora = SafetensorsFile::open(out / "lora.safetensors");
  EXPECT_EQ(lora.metadata().at("ss_network_dim"), "4");
  EXPECT_EQ(lora.metadata().at("ss_base_model_version"), "sdxl_base_v1-0");
  EXPECT_EQ(lora.metadata().at("modelspec.architecture"), "stable-diffusion-xl-v1-base/lora");
  EXPECT_EQ(lora.load("lora_unet_input_blocks_4_1_proj_in.alpha").item(), 2);
  EXPECT_EQ(lora.load("lora_unet_input_blocks_4_1_proj_in.lora_down.weight").dim(0), 4);
}

TEST_F(RunTest, IsAFunctionOfItsInputsAndSettings) {
  ASSERT_EQ(train("a").code, 0);
  ASSERT_EQ(Process({"train", "--config", (folder_ / "a/config.toml").string(), "--output", (folder_ / "b").string()},
                    folder_.path())
                .wait()
                .code,
            0);
  EXPECT_EQ(result("a"), result("b"));
  ASSERT_EQ(train("c", {"--seed", "1"}).code, 0);
  EXPECT_NE(result("a"), result("c"));
  ASSERT_EQ(train("d", {"--gradient-checkpointing"}).code, 0);
  EXPECT_EQ(losses("a"), losses("d")) << "recomputing gives the same bits";
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

TEST_F(RunTest, KilledAtTwentyMomentsItEndsTheSame) {
  const auto begin = Clock::now();
  ASSERT_EQ(train("whole").code, 0);
  const double length = duration<double>(Clock::now() - begin).count();
  std::mt19937 random(5);
  for (int i = 0; i < 20; ++i) {
    fs::remove_all(folder_ / "cut");
    const Process victim(arguments("cut"), folder_.path());
    std::this_thread::sleep_for(duration<double>(length * std::uniform_real_distribution(0.1, 0.99)(random)));
    victim.signal(SIGKILL);
    victim.wait();
    const int64_t before = lines("cut");
    const Outcome outcome = train("cut", {"--resume"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(result("cut"), result("whole")) << "killed after " << before << " steps";
    EXPECT_EQ(losses("cut"), losses("whole"));
  }
}

TEST_F(RunTest, AnInterruptedRunSaysHowToGoOnAndEndsTheSame) {
  for (const int number : {SIGINT, SIGTERM}) {
    fs::remove_all(folder_ / "cut");
    const Process run(arguments("cut", {"--steps", "60", "--save-every", "0"}), folder_.path());
    while (lines("cut") < 2) std::this_thread::sleep_for(milliseconds(5));
    run.signal(number);
    const Outcome outcome = run.wait();
    EXPECT_EQ(outcome.code, 75) << outcome.err;
    EXPECT_NE(outcome.out.find("--config " + (folder_ / "cut/config.toml").string() + " --resume"), std::string::npos)
        << outcome.out;
  }
  EXPECT_LT(lines("cut"), 60);
  ASSERT_EQ(
      Process({"train", "--config", (folder_ / "cut/config.toml").string(), "--resume"}, folder_.path()).wait().code,
      0);
  ASSERT_EQ(train("whole", {"--steps", "60", "--save-every", "0"}).code, 0);
  EXPECT_EQ(result("cut"), result("whole"));
}

TEST_F(RunTest, ResumingSaysWhatItFinds) {
  Outcome outcome = train("out", {"--resume"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("starting from the beginning"), std::string::npos) << outcome.out;
  const std::string first = result("out");

  outcome = train("out", {"--resume"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("Already finished"), std::string::npos) << outcome.out;
  EXPECT_EQ(result("out"), first);

  fs::remove(folder_ / "out/lora.safetensors");
  ASSERT_EQ(train("out", {"--resume"}).code, 0);
  EXPECT_EQ(result("out"), first) << "a lost result is written again";

  expect_one_line(train("out", {"--resume", "--rank", "8"}), {"--rank", "4", "8", "--resume"});
  write_plain(folder_ / "pictures/0001.txt", "another caption");
  expect_one_line(train("out", {"--resume"}), {"dataset"});
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
  EXPECT_FALSE(fs::exists(folder_ / "out/state/state.safetensors"));
  ASSERT_EQ(train("out", {"--resume"}).code, 0) << "with room again";
}

// Of all files, by their names.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) all[entry.path().string()] = read_plain(entry.path());
  return all;
}

TEST_F(RunTest, AnEarlierRunIsNotWrittenOver) {
  ASSERT_EQ(train("out", {"--steps", "3"}).code, 0);
  const auto before = contents(folder_ / "out");
  const std::initializer_list<std::string_view> parts = {"--output", "out", "holds an earlier run", "lora.safetensors",
                                                         "--resume"};
  expect_one_line(train("out"), parts);
  expect_one_line(train("out", {"--name", "other"}), {"out", "metrics.jsonl", "--resume"});
  // Before anything is read.
  expect_one_line(train("out", {"--dataset", (folder_ / "none").string()}), parts);
  fs::remove(folder_ / "out/state/state.safetensors");
  expect_one_line(train("out"), parts);
  write_plain(folder_ / "out/state/state.safetensors", before.at(folder_ / "out/state/state.safetensors"));
  EXPECT_EQ(contents(folder_ / "out"), before);
  EXPECT_EQ(train("out", {"--resume"}).code, 0);
}

TEST_F(RunTest, FilesOfOthersAreNotWrittenOver) {
  for (const char* file : {"config.toml", "loss.png", "lora.safetensors", "lora-000002.safetensors"})
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

TEST_F(RunTest, TwoAtOnceDoNotShareAFolder) {
  const Process first(arguments("out", {"--steps", "600", "--save-every", "0"}), folder_.path());
  while (lines("out") < 1) std::this_thread::sleep_for(milliseconds(5));
  const TemporaryDirectory scratch;
  expect_one_line(Process(arguments("out"), scratch.path()).wait(), {(folder_ / "out").string(), "another run"});
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
  const SafetensorsFile state = SafetensorsFile::open(folder_ / "out/state/state.safetensors");
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
  expect_one_line(Process({"train"}, folder_.path()).wait(), {"--model"});
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
