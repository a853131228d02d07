// Whole runs of `wick train` by several processes, as a launcher starts them: they have the bits of one device that
// does all the work, rank 0 alone writes, and where one breaks all end with one line that tells which and why.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "device.h"
#include "source_dir.h"
#include "train/process.h"
#include "train/tiny_llm.h"
#include "wick/io/safetensors.h"
#include "wick/ranks/socket.h"
#include "wick/train/state.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr unsigned kLongest = 120;  // seconds of a rank, whatever holds it up
constexpr double kToEnd = 10;       // seconds, of all ranks once one is broken

const fs::path kSource = test::source_dir();
const fs::path kModel = kSource / "tests/golden/sdxl";
// All that is drawn for each sample, in several buckets.
const Words kVaried = {
    "--resolution",   "32",  "64",         "--bucket-step", "32", "--caption-dropout", "0.3", "--shuffle-caption",
    "--lora-dropout", "0.2", "--flip-aug", "--random-crop"};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The processes of a run, by rank.
class RankProcesses {
 public:
  // The arguments of each rank; `prepare` runs in its process.
  explicit RankProcesses(const std::vector<Words>& arguments, const std::function<void(int rank)>& prepare = {},
                         int count = 0) {
    for (size_t rank = 0; rank < arguments.size(); ++rank) {
      const fs::path own = scratch_ / std::to_string(rank);
      fs::create_directory(own);
      processes_.emplace_back(arguments[rank], own, 0, [&, rank] {
        setenv("RANK", std::to_string(rank).c_str(), 1);
        setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
        setenv("WORLD_SIZE", std::to_string(count > 0 ? size_t(count) : arguments.size()).c_str(), 1);
        setenv("WICK_ID_FILE", (scratch_ / "id").c_str(), 1);
        alarm(kLongest);
        if (prepare) prepare(int(rank));
      });
    }
  }
  RankProcesses(int count, const Words& arguments, const std::function<void(int rank)>& prepare = {})
      : RankProcesses(std::vector<Words>(size_t(count), arguments), prepare) {}
  ~RankProcesses() {
    signal(SIGKILL);
    wait();
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void signal(size_t rank, int number) const { processes_[rank].signal(number); }
  void signal(int number) const {
    for (size_t rank = ended_.size(); rank < processes_.size(); ++rank) signal(rank, number);
  }
  // Of all of them.
  std::vector<Outcome> wait() {
    while (ended_.size() < processes_.size()) ended_.push_back(processes_[ended_.size()].wait());
    return ended_;
  }

 private:
  TemporaryDirectory scratch_;
  std::vector<ChildProcess> processes_;
  std::vector<Outcome> ended_;
};

class RanksTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::backend().memory().on_host()) GTEST_SKIP() << "these ranks are of the CPU";
    ::setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    copy_pictures(folder_ / "pictures");
  }

  Words pictures(const std::string& output, const Words& more = {}) const {
    return with_flags({"train",
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
                       "--resolution",
                       "64",
                       "--save-every",
                       "0",
                       "--save-dtype",
                       "f32",
                       "--device",
                       "cpu"},
                      more);
  }
  // Of documents of many lengths, so that ranks count different numbers of tokens.
  Words text(const std::string& output, const Words& more = {}) const {
    if (!fs::exists(folder_ / "model")) {
      write_tiny_llm(folder_ / "model");
      std::string lines;
      for (int i = 0; i < 20; ++i)
        lines += fmt::format("{{\"text\": \"Once upon a time there was {} number {}.\"}}\n",
                             std::string(i % 4 == 0 ? "a rather large" : "a"), i) +
                 fmt::format("{{\"prompt\": \"What is it?\", \"completion\": \" It is {}.\"}}\n", i * i * i);
      write_plain(folder_ / "a.jsonl", lines);
    }
    return with_flags({"train",
                       "--model",
                       (folder_ / "model").string(),
                       "--dataset",
                       (folder_ / "a.jsonl").string(),
                       "--output",
                       (folder_ / output).string(),
                       "--steps",
                       "8",
                       "--rank",
                       "4",
                       "--lr",
                       "1e-2",
                       "--batch-size",
                       "1",
                       "--sequence-length",
                       "48",
                       "--save-every",
                       "0",
                       "--save-dtype",
                       "f32",
                       "--device",
                       "cpu"},
                      more);
  }

  static Words whole_weights(const Words& more) { return with_flags({"--train", "full", "--lr", "1e-3"}, more); }

  // To its good end: on one device, or on so many ranks. What it said.
  std::string run(const Words& words, int ranks = 1) const {
    const std::vector<Outcome> all =
        ranks == 1 ? std::vector{ChildProcess(words, folder_.path()).wait()} : RankProcesses(ranks, words).wait();
    for (const Outcome& outcome : all) {
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_EQ(outcome.err, "");
      EXPECT_TRUE(&outcome == &all.front() || outcome.out.empty()) << "another rank than 0 says " << outcome.out;
    }
    return all.front().out;
  }

  fs::path result_file(const std::string& output) const {
    for (const char* file : {"lora.safetensors", "lora/adapter_model.safetensors"})
      if (fs::exists(folder_ / output / file)) return folder_ / output / file;
    return folder_ / output / "model/model.safetensors";
  }
  std::string result(const std::string& output) const { return tensors_of(result_file(output)); }
  std::string state(const std::string& output) const {
    return tensors_of(state_files(folder_ / output / "state").front());
  }
  std::vector<std::string> losses(const std::string& output) const { return logged(folder_ / output); }
  std::vector<double> numbers(const std::string& output, const char* key) const {
    std::vector<double> all;
    std::istringstream text(read_plain(folder_ / output / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) all.push_back(nlohmann::json::parse(line)[key]);
    return all;
  }
  void expect_same(const std::string& a, const std::string& b) const {
    EXPECT_EQ(losses(a), losses(b));
    EXPECT_EQ(result(a), result(b)) << a << ", " << b;
  }
  // Of all tensors together.
  double distance(const std::string& a, const std::string& b) const {
    const SafetensorsFile x = SafetensorsFile::open(result_file(a)), y = SafetensorsFile::open(result_file(b));
    double squares = 0, whole = 0;
    for (const auto& [name, info] : x.tensors()) {
      const std::vector<float> p = x.load(name).to_vector(), q = y.load(name).to_vector();
      for (size_t i = 0; i < p.size(); ++i) {
        squares += std::pow(double(p[i]) - double(q[i]), 2);
        whole += std::pow(double(p[i]), 2);
      }
    }
    return std::sqrt(squares / whole);
  }
  std::set<std::string> files(const std::string& output) const {
    std::set<std::string> all;
    if (fs::exists(folder_ / output))
      for (const auto& entry : fs::recursive_directory_iterator(folder_ / output))
        if (entry.is_regular_file() && entry.path().parent_path().filename() != "logs")
          all.insert(entry.path().lexically_relative(folder_ / output).string());
    return all;
  }
  void expect_nothing_left_over(const std::string& output) const {
    for (const std::string& file : files(output)) EXPECT_FALSE(file.ends_with(".tmp-wick")) << file;
  }
  void await_steps(const std::string& output, size_t count) const {
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (losses(output).size() < count && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_GE(losses(output).size(), count);
  }
  // All ranks but one, if one was killed, end soon and tell the same.
  void expect_all_end(RankProcesses& ranks, std::initializer_list<std::string_view> parts, int killed = -1) const {
    const auto began = Clock::now();
    const std::vector<Outcome> all = ranks.wait();
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - began).count(), kToEnd);
    for (int rank = 0; rank < int(all.size()); ++rank) {
      if (rank == killed) continue;
      expect_one_line(all[size_t(rank)], parts);
      EXPECT_EQ(all[size_t(rank)].code, 1) << rank;
    }
  }

  TemporaryDirectory folder_;
};

std::string rank_here(int rank) { return fmt::format("rank {} on {}: ", rank, host_name()); }

TEST_F(RanksTest, HaveTheBitsOfOneDeviceThatAccumulates) {
  for (const int count : {2, 4}) {
    const std::string of = std::to_string(count);
    run(pictures("one" + of, kVaried + Words{"--accumulate", of}));
    run(pictures("ranks" + of, kVaried), count);
    expect_same("one" + of, "ranks" + of);
  }
  EXPECT_NE(losses("one2"), losses("one4"));
}

TEST_F(RanksTest, AreNearWhereSumsAreAddedInAnotherOrder) {
  const Words flags = kVaried + Words{"--steps", "10"};
  run(pictures("one", flags + Words{"--accumulate", "4"}));
  run(pictures("ranks", flags + Words{"--accumulate", "2"}), 2);
  EXPECT_NE(result("one"), result("ranks")) << "or there is nothing to test";
  EXPECT_NEAR(numbers("ranks", "grad_norm")[0] / numbers("one", "grad_norm")[0], 1, 1e-6);
  EXPECT_LT(distance("one", "ranks"), 1e-5);
}

TEST_F(RanksTest, TrainLanguageModels) {
  const std::map<std::string, Words> kinds = {{"lora", {"--lora-dropout", "0.2"}},
                                              {"full", {"--train", "full", "--lr", "1e-3"}}};
  for (const auto& [kind, flags] : kinds) {
    run(text(kind + "-one", flags + Words{"--accumulate", "2"}));
    run(text(kind + "-ranks", flags), 2);
    expect_same(kind + "-one", kind + "-ranks");
  }
}

// Averages are validated, shown and saved on the way. ShardsTest has the other optimizers.
TEST_F(RanksTest, ShardTheStatesOfWholeWeights) {
  text("data");
  const std::string prompts = (folder_ / "p.txt").string();
  write_plain(prompts, "Once upon a time --s 5\n");
  const Words validated = {"--steps", "4", "--val", (folder_ / "a.jsonl").string(), "--val-every", "2"};
  const std::vector<std::pair<Words, int>> rows = {
      {{"adamw", "--ema", "0.9", "--sample-prompts", prompts, "--sample-every", "2"}, 2},
      {{"adamw8bit"}, 3},
      {{"adafactor"}, 2},
      {{"prodigy", "--lr", "1"}, 2},
      {{"schedule-free"}, 3}};
  for (const auto& [optimizer, count] : rows) {
    const std::string name = optimizer[0], one = name + "-one", ranks = name + "-ranks";
    const Words flags = with_flags(whole_weights(validated), Words{"--optimizer"} + optimizer);
    run(text(one, flags + Words{"--accumulate", std::to_string(count)}));
    run(text(ranks, flags), count);
    EXPECT_EQ(numbers(one, "grad_norm"), numbers(ranks, "grad_norm")) << name;
    if (count == 2) {  // a third of a loss is rounded
      EXPECT_EQ(losses(one), losses(ranks)) << name;
    }
    EXPECT_EQ(result(one), result(ranks)) << name;
    EXPECT_EQ(state(one), state(ranks)) << name;
    EXPECT_EQ(files(one), files(ranks)) << name;
    for (const std::string& file : files(one))
      if (file.ends_with(".txt")) {
        EXPECT_EQ(read_plain(folder_ / one / file), read_plain(folder_ / ranks / file)) << file;
      }
  }
}

// Stopped, from one device to several and back: all have the bits of a run that nobody stopped.
TEST_F(RanksTest, ShardsGoOnOnOtherNumbersOfRanks) {
  const Words flags = whole_weights({"--ema", "0.9"});
  RankProcesses ranks(2, text("stopped", with_flags(flags, {"--steps", "10000"})));
  await_steps("stopped", 2);
  ranks.signal(1, SIGINT);
  for (const Outcome& outcome : ranks.wait()) EXPECT_EQ(outcome.code, 75) << outcome.err;
  const size_t steps = losses("stopped").size();
  fs::copy(folder_ / "stopped", folder_ / "alone", fs::copy_options::recursive);
  const Words to_end = with_flags(flags, {"--steps", std::to_string(steps + 2)});
  run(text("stopped", to_end + Words{"--resume"}), 2);
  run(text("alone", to_end + Words{"--resume"}));
  run(text("whole", with_flags(to_end, {"--accumulate", "2"})));
  expect_same("stopped", "whole");
  expect_same("alone", "whole");
  const Words further = {"--steps", std::to_string(steps + 4)};
  run(text("whole", with_flags(to_end, further + Words{"--accumulate", "2", "--resume"})), 2);
  run(text("alone", with_flags(to_end, further) + Words{"--resume"}));
  expect_same("alone", "whole");
  EXPECT_EQ(state("alone"), state("whole"));
}

TEST_F(RanksTest, AreAFunctionOfTheirInputs) {
  const Words flags = kVaried + Words{"--batch-size", "2", "--accumulate", "2"};
  for (const char* output : {"a", "b"}) run(pictures(output, kVaried), 3);
  expect_same("a", "b");
  run(pictures("c", flags), 2);
  run(pictures("one", with_flags(flags, {"--accumulate", "4"})));
  EXPECT_NEAR(numbers("c", "grad_norm")[0] / numbers("one", "grad_norm")[0], 1, 1e-6);
}

TEST_F(RanksTest, SeeTheSameSamplesHoweverAStepIsCut) {
  for (const auto& [size, accumulate, ranks] : {std::tuple{4, 1, 1}, {2, 2, 1}, {1, 4, 1}, {2, 1, 2}, {1, 2, 2}}) {
    const std::string output = fmt::format("{} {} {}", size, accumulate, ranks);
    run(pictures(output, kVaried + Words{"--batch-size", std::to_string(size), "--accumulate",
                                         std::to_string(accumulate), "--steps", "3"}),
        ranks);
    EXPECT_NEAR(numbers(output, "loss")[0] / numbers("4 1 1", "loss")[0], 1, 1e-5) << output;
    EXPECT_NEAR(numbers(output, "loss")[2] / numbers("4 1 1", "loss")[2], 1, 1e-4) << output;
  }
}

TEST_F(RanksTest, StopTogetherAndGoOnWithTheSameBits) {
  const Words flags = {"--lora-dropout", "0.2", "--accumulate", "2", "--steps", "16"};
  run(pictures("whole", flags), 2);
  for (const int to : {1, 2}) {  // 2: to all, as a terminal does
    fs::remove_all(folder_ / "cut");
    RankProcesses ranks(2, pictures("cut", flags));
    await_steps("cut", 2);
    to == 2 ? ranks.signal(SIGINT) : ranks.signal(size_t(to), SIGINT);
    const std::vector<Outcome> all = ranks.wait();
    for (const Outcome& outcome : all) EXPECT_EQ(outcome.code, 75) << outcome.err;
    EXPECT_NE(all[0].out.find("--resume"), std::string::npos) << all[0].out;
    EXPECT_EQ(all[1].out + all[1].err, "");
    EXPECT_LT(losses("cut").size(), 16u);
    expect_nothing_left_over("cut");
    for (const char* elsewhere : {"alone", "four", "five"}) {
      fs::remove_all(folder_ / elsewhere);
      fs::copy(folder_ / "cut", folder_ / elsewhere, fs::copy_options::recursive);
    }
    run(pictures("cut", flags + Words{"--resume"}), 2);
    expect_same("cut", "whole");
  }
  for (const auto& [output, count] : {std::pair{"alone", 1}, {"four", 4}}) {
    const size_t before = losses(output).size();
    const std::string said = run(pictures(output, flags + Words{"--resume"}), count);
    EXPECT_NE(said.find("in another order"), std::string::npos) << said;
    const std::vector<double> all = numbers(output, "loss"), whole = numbers("whole", "loss");
    ASSERT_EQ(all.size(), whole.size());
    for (size_t i = before; i < all.size(); ++i) EXPECT_NEAR(all[i] / whole[i], 1, 1e-4) << output << " step " << i + 1;
  }
  RankProcesses ranks(5, pictures("five", flags + Words{"--resume"}));
  expect_all_end(ranks, {"--resume", "five has 4 batches", "at most as many devices, found 5"});
}

TEST_F(RanksTest, StopBeforeTheFirstStep) {
  const Words flags = {
      "--dataset", (kSource / "data/tiny-style").string(), "--flip-aug", "--resolution", "64", "128", "--steps",
      "1000"};
  for (const int to : {1, 2}) {  // 2: to all
    fs::remove_all(folder_ / "out");
    RankProcesses ranks(2, pictures("out", flags));
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (files("out/cache").empty() && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    to == 2 ? ranks.signal(SIGINT) : ranks.signal(size_t(to), SIGINT);
    const auto began = Clock::now();
    for (const Outcome& outcome : ranks.wait()) {
      EXPECT_EQ(outcome.code, 75) << outcome.err;
      EXPECT_EQ(outcome.err, "");
    }
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - began).count(), kToEnd);
    EXPECT_EQ(losses("out").size(), 0u) << "it was to stop before";
    expect_nothing_left_over("out");
    EXPECT_TRUE(state_files(folder_ / "out/state").empty());
  }
}

TEST_F(RanksTest, WriteByRank0AloneAndShareEncodings) {
  run(pictures("one", {"--save-every", "2", "--accumulate", "2", "--flip-aug"}));
  // A umask for each tells who made a file.
  const std::string cache = (folder_ / "cache").string();
  const Words flags = {"--save-every", "2", "--flip-aug", "--cache", cache};
  RankProcesses ranks({pictures("ranks", flags), pictures("elsewhere", flags)},
                      [](int rank) { umask(rank == 0 ? 0077 : 0027); });
  const std::vector<Outcome> all = ranks.wait();
  for (const Outcome& outcome : all) EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(all[1].out + all[1].err, "");
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere")) << "rank 1 has nothing to write";
  std::set<std::string> with_cache = files("ranks");
  for (const std::string& name : files("cache")) with_cache.insert("cache/" + name);
  EXPECT_EQ(with_cache, files("one"));
  expect_same("ranks", "one");

  std::map<fs::perms, size_t> by_rank;
  for (const std::string& name : files("cache")) ++by_rank[fs::status(folder_ / "cache" / name).permissions()];
  ASSERT_EQ(by_rank.size(), 2u);
  for (const auto& [mode, count] : by_rank) EXPECT_GE(2 * count, files("cache").size() - 2) << "not its share";

  const size_t count = files("cache").size();
  EXPECT_EQ(all[0].out.find("encodings were in"), std::string::npos) << all[0].out;
  const std::string again = run(pictures("again", flags), 2);
  EXPECT_NE(again.find(fmt::format("{0} of {0} encodings were in {1}", count, cache)), std::string::npos) << again;
  EXPECT_EQ(files("cache").size(), count);
}

// What is chosen is the same for all, and that of a run that goes on is what rank 0 finds, which alone has its folder.
TEST_F(RanksTest, ChooseAlike) {
  const auto train = [&](const std::string& batch, const std::string& output, const Words& more) {
    const Words words = Words{"--batch-size", batch, "--memory", "auto"} + more;
    for (const Outcome& outcome : RankProcesses({pictures(output, words), pictures("elsewhere", words)}).wait())
      EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read_plain(folder_ / output / "config.toml");
  };
  EXPECT_NE(train("3", "out", {"--steps", "1"}).find("batch_size = 3\n"), std::string::npos);
  EXPECT_NE(train("auto", "out", {"--steps", "2", "--resume"}).find("batch_size = 3\n"), std::string::npos);
  EXPECT_EQ(train("auto", "anew", {"--steps", "1"}).find("batch_size = 3\n"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere/config.toml"));
}

// Rank 1 of two has other arguments.
TEST_F(RanksTest, ThatWereStartedOtherwiseAreRefused) {
  const auto expect_refused = [&](const Words& other, std::initializer_list<std::string_view> parts) {
    RankProcesses ranks({pictures("out"), pictures("out", other)});
    expect_all_end(ranks, parts);
    EXPECT_FALSE(fs::exists(folder_ / "out/metrics.jsonl"));
  };
  expect_refused({"--lr", "2e-3"},
                 {"rank 1 was started otherwise than rank 0: --lr is 0.002 there, and 0.001 on rank 0"});
  expect_refused({"--rank", "8"}, {"rank 1 was", "--rank is 8 there, and 4 on rank 0"});
  expect_refused({"--accumulate", "2"}, {"rank 1 was", "--accumulate is 2 there, and 1 on rank 0"});

  fs::copy(folder_ / "pictures", folder_ / "fewer");
  fs::remove(folder_ / "fewer/0012.webp");
  expect_refused({"--dataset", (folder_ / "fewer").string()}, {"rank 1 was", "dataset contents"});

  fs::copy(kModel, folder_ / "other", fs::copy_options::recursive);
  const fs::path weights = folder_ / "other/unet/diffusion_pytorch_model.safetensors";
  std::string bytes = read_plain(weights);
  bytes.back() = char(bytes.back() ^ 1);
  write_plain(weights, bytes);
  expect_refused({"--model", (folder_ / "other").string()}, {"rank 1 was", "model contents"});
  expect_refused({"--dataset", (folder_ / "none").string()}, {rank_here(1), "none"});
}

TEST_F(RanksTest, WrongUsageIsOneLine) {
  const auto expect_refused = [&](const Words& more, const std::map<std::string, std::string>& variables, int code,
                                  std::initializer_list<std::string_view> parts) {
    const Outcome outcome = ChildProcess(pictures("out", more), folder_.path(), 0, [&] {
                              for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
                              alarm(kLongest);
                            }).wait();
    expect_one_line(outcome, parts);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_TRUE(files("out").empty());
  };
  const std::map<std::string, std::string> launched = {{"RANK", "1"},
                                                       {"WORLD_SIZE", "2"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"WICK_RANK_TIMEOUT", "1"}};
  expect_refused({"--gpus", "2"}, launched, 2, {"--gpus"});
  expect_refused({"--gpus", "2", "--device", "auto"}, launched, 2, {"--gpus", "rank 1 of 2", "expected none"});
  expect_refused({"--device", "cuda:1"}, launched, 2, {"--device cuda:1", "expected auto, cuda or cpu"});
  expect_refused({}, {{"RANK", "0"}}, 2, {"WORLD_SIZE", "RANK is set"});
  expect_refused({"--gpus", "2"}, {}, 2, {"--gpus", "--device"});
  for (const char* wrong : {"x", "0,0", "-1", "0", "1,", "2x"})
    expect_refused({"--gpus", wrong, "--device", "auto"}, {}, 2, {"--gpus", wrong});
}

TEST_F(RanksTest, RemarksOnAnOptionFileAreMadeOnce) {
  write_plain(folder_ / "kohya.toml",
              fmt::format("train_data_dir = '{}'\nresolution = 64\ncaption_extension = '.txt'\n"
                          "pretrained_model_name_or_path = '{}'\noutput_dir = '{}'\n"
                          "max_train_steps = 1\nnetwork_module = 'networks.lora'\n",
                          (folder_ / "pictures").string(), kModel.string(), (folder_ / "out").string()));
  const std::string said = run({"train", "--kohya-config", (folder_ / "kohya.toml").string(), "--device", "cpu"}, 2);
  EXPECT_NE(said.find("kohya.toml: taken: "), std::string::npos) << said;
}

TEST_F(RanksTest, OneThatNeverComesIsNamed) {
  const std::vector<Words> both(2, pictures("out"));
  RankProcesses ranks(
      both, [](int) { setenv("WICK_RANK_TIMEOUT", "1", 1); }, 3);
  expect_all_end(ranks, {"rank 2", "WICK_RANK_TIMEOUT"});
  EXPECT_TRUE(files("out").empty());
}

TEST_F(RanksTest, AllEndWhereOneLosesItsDevice) {
  RankProcesses ranks(3, pictures("out"), [](int) { setenv("WICK_FAULT", "device:1:3", 1); });
  expect_all_end(ranks, {rank_here(1), "the device is lost"});
  expect_nothing_left_over("out");
  run(pictures("out", {"--resume"}), 3);
  run(pictures("whole"), 3);
  EXPECT_EQ(result("out"), result("whole"));
}

TEST_F(RanksTest, AllEndWhereOneIsKilled) {
  const Words flags = kVaried + Words{"--steps", "1000", "--save-every", "4"};
  for (const int victim : {0, 1}) {
    const std::string output = fmt::format("out{}", victim);
    RankProcesses ranks(3, pictures(output, flags));
    await_steps(output, 6);
    ranks.signal(size_t(victim), SIGKILL);
    expect_all_end(ranks, {rank_here(victim), "killed or cut off"}, victim);
  }
  const auto step = SavedState::open(state_files(folder_ / "out1/state").front()).state().step;
  EXPECT_EQ(step % 4, 0);
  const Words to_end = {"--resume", "--steps", std::to_string(step + 3)};
  run(pictures("out1", with_flags(flags, to_end)), 3);
  run(pictures("whole", with_flags(flags, {"--steps", std::to_string(step + 3)})), 3);
  expect_same("out1", "whole");
}

TEST_F(RanksTest, ABlownUpRunIsOneLineThatTellsWhatIsKept) {
  RankProcesses ranks(2, pictures("out", {"--lr", "1e30", "--save-every", "1"}));
  expect_all_end(ranks, {"step ", "not a finite number, first in", "is kept in"});
  EXPECT_FALSE(fs::exists(folder_ / "out/lora.safetensors"));
  const SafetensorsFile state = SafetensorsFile::open(state_files(folder_ / "out/state").front());
  for (const auto& [name, info] : state.tensors())
    for (const float x : state.load(name).to_vector()) ASSERT_TRUE(std::isfinite(x)) << name;

  RankProcesses sharded(2, text("sharded", whole_weights({"--lr", "1e30", "--state-every-minutes", "0"})));
  expect_all_end(sharded, {"step 2: not a finite number, first in", "state of step 1 is kept in"});
}

// The word of one caption, of which CLIP makes numbers so large that their products in the UNet overflow.
TEST_F(RanksTest, ANanOfOneRankIsNamedByAll) {
  fs::copy(kModel, folder_ / "large", fs::copy_options::recursive);
  const fs::path file = folder_ / "large/text_encoder/model.safetensors";
  const SafetensorsFile original = SafetensorsFile::open(file);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : original.tensors()) tensors[name] = original.load(name);
  const std::string embedding = "text_model.embeddings.token_embedding.weight";
  Tensor& rows = tensors.at(embedding);
  const auto words = nlohmann::json::parse(read_plain(kModel / "tokenizer/vocab.json"));
  const std::string word = "z</w>";
  const int64_t width = rows.dim(1), row = words.at(word);
  for (int64_t i = 0; i < width; ++i) rows.data<float>()[row * width + i] = i % 2 ? 3e38f : -3e38f;
  save_safetensors(file, tensors);
  write_plain(folder_ / "pictures/0009.txt", "z");
  RankProcesses ranks(2, pictures("out", {"--model", (folder_ / "large").string(), "--save-every", "1"}));
  expect_all_end(ranks,
                 {rank_here(1) + "step 2: not a finite number, first in the output", "state of step 1 is kept in"});
}

TEST_F(RanksTest, AFullDiskIsOneLineOfAll) {
  const Words flags = {"--save-every", "2", "--steps", "8"};
  run(pictures("whole", flags), 2);
  run(pictures("out", with_flags(flags, {"--steps", "2"})), 2);
  const std::string before = read_plain(folder_ / "out/state/state-000002.safetensors");
  RankProcesses ranks(2, pictures("out", flags + Words{"--resume"}), [](int rank) {
    const rlimit limit{8000, 8000};
    if (rank == 0) setrlimit(RLIMIT_FSIZE, &limit);
  });
  expect_all_end(ranks, {rank_here(0), "out/lora-000004.safetensors"});
  EXPECT_EQ(files("out").count("lora-000004.safetensors"), 0u);
  expect_nothing_left_over("out");
  EXPECT_EQ(read_plain(folder_ / "out/state/state-000002.safetensors"), before);
  run(pictures("out", flags + Words{"--resume"}), 2);
  expect_same("out", "whole");
}

// Room for a model, but for no state, which takes the shards of all.
TEST_F(RanksTest, AFullDiskLeavesNoneWaitingWithItsShard) {
  const auto small_disk = [](int rank) {
    const rlimit limit{400'000, 400'000};
    if (rank == 0) setrlimit(RLIMIT_FSIZE, &limit);
  };
  RankProcesses asked(2, text("asked", whole_weights({"--save-every", "2"})), small_disk);
  expect_all_end(asked, {rank_here(0), "asked/state/state-000002.safetensors"});
  RankProcesses in_time(2, text("in-time", whole_weights({"--state-every-minutes", "0.00001"})), small_disk);
  expect_all_end(in_time, {rank_here(0), "in-time/state/state-000008.safetensors"});
  EXPECT_EQ(losses("in-time").size(), 8u) << "a state that nobody asked for ends nothing";
  for (const char* output : {"asked", "in-time"}) expect_nothing_left_over(output);
}

}  // namespace
}  // namespace wick
