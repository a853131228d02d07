// Whole runs of `wick train` on a tiny language model.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "device.h"
#include "source_dir.h"
#include "train/process.h"
#include "train/tiny_llm.h"
#include "wick/io/safetensors.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"
#include "wick/train/config.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using std::chrono::duration;
using Clock = std::chrono::steady_clock;

const fs::path kGolden = test::source_dir() / "tests/golden";

class TextRunTest : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_llm(folder_ / "model");
    std::string lines;
    for (int i = 0; i < 15; ++i) {
      lines += "{\"text\": \"Once upon a time there was a number " + std::to_string(i) + ".\"}\n";
      lines += "{\"prompt\": \"What is it?\", \"completion\": \" It is " + std::to_string(i * i) + ".\"}\n";
    }
    write_plain(folder_ / "a.jsonl", lines);
    write_plain(folder_ / "b.jsonl", "{\"text\": \"There was a second file.\"}\n");
    write_plain(folder_ / "val.jsonl", "{\"text\": \"Once upon a time there was a number 33.\"}\n");
  }

  std::vector<std::string> arguments(const std::string& output, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"train", "--model", "model", "--dataset", "a.jsonl", "--output", output};
    for (const char* a : {"--steps", "8", "--rank", "4", "--lr", "1e-2", "--batch-size", "2", "--accumulate", "2",
                          "--sequence-length", "48", "--save-every", "2"})
      all.emplace_back(a);
    all.insert(all.end(), {"--device", std::string(test::backend().name())});
    all = with_flags(all, more);
    if (std::find(more.begin(), more.end(), "--epochs") != more.end()) all = without(all, "--steps");
    for (std::string& a : all)
      if (a == "model" || a == output || a.ends_with(".jsonl")) a = (folder_ / a).string();
    return all;
  }
  Outcome train(const std::string& output, const std::vector<std::string>& more = {}) const {
    return ChildProcess(arguments(output, more), folder_.path()).wait();
  }
  std::string result(const std::string& output) const {
    const fs::path lora = folder_ / output / "lora/adapter_model.safetensors";
    return tensors_of(fs::exists(lora) ? lora : folder_ / output / "model/model.safetensors");
  }
  // Kills the run at several moments and resumes it: the result has the bits of an undisturbed run.
  void expect_resumable(const std::vector<std::string>& flags, int kills) const {
    const auto begin = Clock::now();
    ASSERT_EQ(train("whole", flags).code, 0);
    const double length = duration<double>(Clock::now() - begin).count();
    std::vector<std::string> resumed = flags;
    resumed.emplace_back("--resume");
    std::mt19937 random(5);
    for (int i = 0; i < kills; ++i) {
      fs::remove_all(folder_ / "cut");
      const ChildProcess victim(arguments("cut", flags), folder_.path());
      std::this_thread::sleep_for(duration<double>(length * std::uniform_real_distribution(0.1, 0.99)(random)));
      victim.signal(SIGKILL);
      victim.wait();
      const Outcome outcome = train("cut", has_run(folder_ / "cut") ? resumed : flags);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_EQ(result("cut"), result("whole"));
      EXPECT_EQ(losses("cut"), losses("whole"));
    }
    // Killed while the result was written, which ends with its config; another kind's config does not count.
    const bool full = fs::exists(folder_ / "cut/model");
    fs::remove(folder_ / (full ? "cut/model/config.json" : "cut/lora/adapter_config.json"));
    write_plain(folder_ / (full ? "cut/model/adapter_config.json" : "cut/lora/config.json"), "{}");
    write_plain(folder_ / (full ? "cut/model/model.safetensors" : "cut/lora/adapter_model.safetensors"), "half");
    ASSERT_EQ(train("cut", resumed).code, 0);
    EXPECT_EQ(result("cut"), result("whole"));
  }
  std::vector<std::string> losses(const std::string& output) const { return logged(folder_ / output); }

  TemporaryDirectory folder_;
};

void expect_told(const Outcome& outcome, std::initializer_list<std::string_view> parts) {
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const std::string_view part : parts) EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out << part;
}

// A prompt is continued as `generate` continues it with the result, and nothing else changes.
TEST_F(TextRunTest, PreviewsAreWhatGenerateWrites) {
  write_plain(folder_ / "p.txt", "Once upon a time\nWhat is --s 5\n");
  const std::string prompts = (folder_ / "p.txt").string();
  const Outcome outcome = train("out", {"--sample-prompts", prompts, "--sample-every", "4", "--save-dtype", "f32"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* step : {"000000", "000004", "000008"})
    EXPECT_TRUE(fs::exists(folder_ / "out/samples" / (std::string("lora-") + step + "-01.txt"))) << outcome.out;
  const Outcome text = ChildProcess({"generate", "--model", (folder_ / "model").string(), "--lora",
                                     (folder_ / "out/lora").string(), "--prompt", "What is", "--max-tokens", "5",
                                     "--temperature", "0", "--device", std::string(test::backend().name())},
                                    folder_.path())
                           .wait();
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(read_plain(folder_ / "out/samples/lora-000008-01.txt"), text.out);
  ASSERT_EQ(train("plain", {"--save-dtype", "f32"}).code, 0);
  EXPECT_EQ(logged(folder_ / "plain"), logged(folder_ / "out"));
  write_plain(folder_ / "p.txt", "x --w 64\n");
  expect_one_line(train("bad", {"--sample-prompts", prompts}), {"p.txt: line 1: --w", "for pictures"});
}

TEST_F(TextRunTest, LeavesAnAdapterThatGenerateTakes) {
  const Outcome outcome = train("out", {"--dataset", "a.jsonl", "b.jsonl", "--val", "val.jsonl", "--val-every", "3"});
  expect_told(outcome, {"31 documents", "in the loss", "rows of 48 tokens", "padding", "Memory on", "tokens/s",
                        "validation loss", "A LoRA of rank 4 on 14 modules"});
  for (const char* folder : {"lora", "lora-000002", "lora-000008"})
    for (const char* file : {"adapter_model.safetensors", "adapter_config.json"})
      EXPECT_TRUE(fs::exists(folder_ / "out" / folder / file)) << folder << file;
  const SafetensorsFile adapter = SafetensorsFile::open(folder_ / "out/lora/adapter_model.safetensors");
  EXPECT_EQ(adapter.tensors().size(), 28u);
  EXPECT_EQ(adapter.load("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight").shape(), (Shape{4, 64}));

  const std::vector<std::string> lines = losses("out");
  ASSERT_EQ(lines.size(), 8u);
  for (const size_t step : {3, 6, 8}) EXPECT_NE(lines[step - 1].find("val_loss"), std::string::npos) << step;
  for (const size_t step : {1, 2, 7}) EXPECT_EQ(lines[step - 1].find("val_loss"), std::string::npos) << step;

  const std::vector<std::string> base = {"generate", "--model",       (folder_ / "model").string(),
                                         "--prompt", "What is it?",   "--max-tokens",
                                         "12",       "--temperature", "0"};
  std::vector<std::string> with = base;
  with.insert(with.end(), {"--lora", (folder_ / "out/lora").string()});
  const Outcome before = ChildProcess(base, folder_.path()).wait(), after = ChildProcess(with, folder_.path()).wait();
  EXPECT_EQ(after.code, 0) << after.err;
  EXPECT_NE(before.out, after.out);
  with.back() = (kGolden / "llama/llama2/adapter").string();
  expect_one_line(ChildProcess(with, folder_.path()).wait(), {"adapter_model.safetensors", "shape"});
}

TEST_F(TextRunTest, EvalAndMergeTakeWhatItLeaves) {
  ASSERT_EQ(train("out").code, 0);
  const auto run = [&](std::vector<std::string> words, const std::string& model) {
    words.insert(words.end(), {"--model", (folder_ / model).string()});
    return ChildProcess(words, folder_.path()).wait();
  };
  const auto perplexity = [&](const std::string& model, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"eval", "--dataset", (folder_ / "a.jsonl").string(), "--json"});
    const Outcome outcome = run(more, model);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("\"documents\":30"), std::string::npos) << outcome.out;
    return std::stod(outcome.out.substr(outcome.out.find(':') + 1));
  };
  const std::string lora = (folder_ / "out/lora").string();
  const double base = perplexity("model"), trained = perplexity("model", {"--lora", lora});
  EXPECT_LT(trained, 0.7 * base);
  EXPECT_NEAR(perplexity("model", {"--lora", lora, "--batch-size", "4"}), trained, 1e-3 * trained);
  const double windowed = perplexity("model", {"--lora", lora, "--context", "10", "--stride", "4"});
  EXPECT_GT(windowed, 0.2 * trained);
  EXPECT_NE(windowed, trained);

  const Outcome merged = run({"merge", "--lora", lora, "--output", (folder_ / "merged").string()}, "model");
  EXPECT_EQ(merged.code, 0) << merged.err;
  EXPECT_NEAR(perplexity("merged"), trained, 1e-3 * trained);
  expect_one_line(run({"merge", "--lora", lora, "--output", (folder_ / "model").string()}, "model"), {"--output"});
  expect_one_line(run({"eval", "--dataset", (folder_ / "a.jsonl").string(), "--stride", "64"}, "model"), {"--stride"});
  expect_one_line(run({"eval", "--dataset", (folder_ / "a.jsonl").string(), "--context", "65"}, "model"),
                  {"--context", "64", "65"});
  const Outcome plan = run({"plan", "--rank", "4", "--batch-size", "3"}, "model");
  expect_told(plan, {"Text of up to 64 tokens", "A LoRA of rank 4 on 14 modules", "batches of 3, 64 tokens"});
}

TEST_F(TextRunTest, IsAFunctionOfItsInputsAndSettings) {
  ASSERT_EQ(train("a").code, 0);
  ASSERT_EQ(train("b", {"--val", "val.jsonl", "--gradient-checkpointing"}).code, 0);
  EXPECT_EQ(result("a"), result("b")) << "recomputing and validating change nothing";
  ASSERT_EQ(train("e", {"--val", "val.jsonl", "--stream-blocks", "all"}).code, 0);
  EXPECT_EQ(result("a"), result("e")) << "nor do weights from the host";
  ASSERT_EQ(train("c", {"--seed", "1"}).code, 0);
  EXPECT_NE(result("a"), result("c"));
  ASSERT_EQ(train("d", {"--no-graph"}).code, 0);
  EXPECT_EQ(result("a"), result("d")) << "a replayed step has the bits of its calls";
}

TEST_F(TextRunTest, KilledAtAnyMomentItEndsTheSame) {
  expect_resumable({"--lora-dropout", "0.2", "--val", "val.jsonl"}, 8);
}

TEST_F(TextRunTest, AFullRunKilledAtAnyMomentEndsTheSame) {
  expect_resumable({"--train", "full", "--ema", "0.9", "--val", "val.jsonl", "--save-dtype", "bf16"}, 4);
}

double number_after(const std::string& text, const std::string& key) {
  EXPECT_NE(text.find(key), std::string::npos) << text;
  return std::stod(text.substr(text.find(key) + key.size()));
}

// The loss of a folder is the loss that the run logged for its weights.
TEST_F(TextRunTest, AFullRunLeavesAModelOfTheSameLoss) {
  const std::vector<std::string> full = {"--train", "full", "--save-dtype", "f32", "--val", "val.jsonl"};
  const auto expect_reloads = [&](const std::string& output) {
    const std::string model = (folder_ / output / "model").string();
    const Outcome eval =
        ChildProcess({"eval", "--json", "--model", model, "--dataset", (folder_ / "val.jsonl").string()},
                     folder_.path())
            .wait();
    EXPECT_EQ(eval.code, 0) << eval.err;
    const double told = number_after(losses(output).back(), "\"val_loss\":");
    EXPECT_NEAR(number_after(eval.out, "\"perplexity\":"), std::exp(told), 1e-4 * std::exp(told));
    return told;
  };
  expect_told(train("out", full), {"The whole language model, 63712 parameters", "rows of 48 tokens"});
  const double trained = expect_reloads("out");

  // The same without the weights, which random ones replace.
  fs::remove(folder_ / "model/model.safetensors");
  expect_one_line(train("none", full), {"model.safetensors"});
  std::vector<std::string> scratch = full;
  scratch.emplace_back("--from-scratch");
  const Outcome outcome = train("scratch", scratch);
  expect_told(outcome, {"from random weights"});
  EXPECT_NEAR(number_after(losses("scratch").front(), "\"loss\":"), std::log(1410), 0.1) << "no token is likelier";
  EXPECT_NE(expect_reloads("scratch"), trained);
  EXPECT_NE(read_plain(folder_ / "scratch/model/config.json").find("\"dtype\": \"float32\""), std::string::npos);
  EXPECT_EQ(read_plain(folder_ / "scratch/model/tokenizer.json"), read_plain(folder_ / "model/tokenizer.json"));
  scratch.insert(scratch.end(), {"--seed", "2"});
  ASSERT_EQ(train("other", scratch).code, 0);
  EXPECT_NE(result("other"), result("scratch"));
  // The result is a model like any other.
  EXPECT_EQ(train("lora", {"--model", (folder_ / "scratch/model").string()}).code, 0);
}

// Its averages are saved and validated; states hold y and z, from which x follows.
TEST_F(TextRunTest, AScheduleFreeRunLeavesItsAverages) {
  const std::vector<std::string> flags = {
      "--train", "full", "--save-dtype", "f32", "--optimizer", "schedule-free", "--warmup", "3", "--val", "val.jsonl"};
  ASSERT_EQ(train("out", flags).code, 0);
  const SafetensorsFile model = SafetensorsFile::open(folder_ / "out/model/model.safetensors");
  const SafetensorsFile state = SafetensorsFile::open(folder_ / "out/state/state-000008.safetensors");
  double furthest = 0;
  for (const auto& [name, any] : model.tensors()) {
    const std::vector<float> x = model.load(name).to_vector(), y = state.load("param." + name).to_vector(),
                             z = state.load("z." + name).to_vector();
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(x[i], double(y[i]) + (1 - 1 / double(0.9f)) * (double(z[i]) - double(y[i])), 1e-6) << name;
      furthest = std::max(furthest, std::abs(double(x[i]) - double(y[i])));
    }
  }
  EXPECT_GT(furthest, 1e-4) << "or the test shows nothing";

  const Outcome eval = ChildProcess({"eval", "--json", "--model", (folder_ / "out/model").string(), "--dataset",
                                     (folder_ / "val.jsonl").string()},
                                    folder_.path())
                           .wait();
  ASSERT_EQ(eval.code, 0) << eval.err;
  const double told = std::exp(number_after(losses("out").back(), "\"val_loss\":"));
  EXPECT_NEAR(number_after(eval.out, "\"perplexity\":"), told, 1e-4 * told);
}

TEST_F(TextRunTest, EachOptimizerGoesOnWhereItWas) {
  for (const std::string_view optimizer : split_names(names_of(OptimizerKind{}))) {
    const std::string name(optimizer), rate = name == "prodigy" ? "1" : "1e-3";
    const std::vector<std::string> flags = {"--optimizer", name,    "--lr",      rate,       "--train",
                                            "full",        "--val", "val.jsonl", "--warmup", "2"};
    std::vector<std::string> half = flags, more = flags;
    half.insert(half.end(), {"--steps", "3"});
    more.emplace_back("--resume");
    ASSERT_EQ(train("whole " + name, flags).code, 0);
    ASSERT_EQ(train("cut " + name, half).code, 0);
    const Outcome outcome = train("cut " + name, more);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(result("cut " + name), result("whole " + name)) << name;
  }
}

TEST_F(TextRunTest, EpochsAreCountedInSteps) {
  expect_told(train("a", {"--epochs", "2", "--no-packing", "--batch-size", "3", "--accumulate", "1"}),
              {"30 rows of a document each", "20 steps of 3 rows"});
  ASSERT_EQ(train("b", {"--epochs", "1", "--no-packing", "--batch-size", "3", "--accumulate", "1"}).code, 0);
  ASSERT_EQ(train("b", {"--epochs", "2", "--no-packing", "--batch-size", "3", "--accumulate", "1", "--resume"}).code,
            0);
  EXPECT_EQ(result("a"), result("b"));

  std::vector<std::string> both = arguments("c");
  both.insert(both.end(), {"--epochs", "2"});
  expect_one_line(ChildProcess(both, folder_.path()).wait(), {"--steps", "--epochs", "8 and 2"});
  // A flag wins over the other one's value in the file.
  const auto again = [&](const std::string& output, const char* flag) {
    return ChildProcess({"train", "--config", (folder_ / "b/config.toml").string(), "--output",
                         (folder_ / output).string(), flag, "1"},
                        folder_.path())
        .wait();
  };
  expect_told(again("d", "--steps"), {"; 1 step of 3 rows"});
  expect_told(again("e", "--epochs"), {"10 steps of 3 rows"});
}

TEST_F(TextRunTest, QuantisedWeightsTrainAlmostTheSame) {
  const auto last = [&](const std::string& output) {
    const std::string line = losses(output).back();
    return std::stod(line.substr(line.find("\"loss\":") + 7));
  };
  ASSERT_EQ(train("f32").code, 0);
  for (const char* type : {"q8_0", "q4_0", "fp8", "int8"}) {
    const std::string output = std::string("out_") + type;
    ASSERT_EQ(train(output, {"--quantize", type}).code, 0);
    EXPECT_NEAR(last(output), last("f32"), 0.1 * last("f32")) << type;
    EXPECT_NE(last(output), last("f32")) << type;
  }
  ASSERT_EQ(train("out", {"--fp8-compute"}).code, 0);
  EXPECT_NEAR(last("out"), last("f32"), 0.1 * last("f32"));
  EXPECT_NE(last("out"), last("out_fp8"));
}

TEST_F(TextRunTest, WrongInputIsOneLine) {
  write_plain(folder_ / "bad.jsonl", "{\"text\": \"a b\"}\n{\"txt\": 1}\n");
  expect_one_line(train("out", {"--dataset", "bad.jsonl"}), {"bad.jsonl: line 2", "txt"});
  expect_one_line(train("out", {"--val", "bad.jsonl"}), {"--val ", "bad.jsonl: line 2", "txt"});
  expect_one_line(train("out", {"--dataset", "none.jsonl"}), {"--dataset ", "none.jsonl"});
  expect_one_line(train("out", {"--sequence-length", "8"}), {"a.jsonl: line", "--long-documents cut or split"});
  expect_one_line(train("out", {"--sequence-length", "65"}), {"--sequence-length", "64", "65"});
  expect_one_line(train("out", {"--resolution", "512"}), {"--resolution", "text"});
  expect_one_line(train("out", {"--caption-dropout", "0.5"}), {"--caption-dropout", "text"});
  expect_one_line(train("out", {"--train", "vae"}), {"--train vae", "language model"});
  expect_one_line(train("out", {"--train", "full", "--quantize", "q8_0"}), {"--quantize", "full"});
  expect_one_line(train("out", {"--train", "full", "--targets", "*"}), {"--targets", "full"});
  expect_one_line(train("out", {"--from-scratch"}), {"--from-scratch", "--train full", "lora"});
  expect_one_line(train("model/..", {"--train", "full"}), {"is --model itself", "--name"});
  expect_one_line(train("out", {"--quantize", "q8_0", "--fp16"}), {"--quantize", "--fp16"});
  expect_one_line(train("out", {"--targets", "*nothing*"}),
                  {"--targets", "nothing", "it has llama.*.mlp.down_proj, llama.*.mlp.gate_proj", "self_attn.v_proj"});
  expect_one_line(train("out", {"--long-documents", "drop"}), {"--long-documents", "cut", "drop"});
  expect_one_line(train("out", {"--model", (kGolden / "sdxl").string(), "--val", "val.jsonl"}),
                  {"--sequence-length", "pictures"});
  Rng rng(4);
  std::map<std::string, Tensor> loha;
  for (const auto& [suffix, shape] :
       {std::pair{"w1_a", Shape{32, 2}}, {"w1_b", {2, 32}}, {"w2_a", {32, 2}}, {"w2_b", {2, 32}}})
    loha[std::string("base_model.model.model.layers.0.self_attn.q_proj.hada_") + suffix] = random_normal(shape, rng);
  fs::create_directory(folder_ / "loha");
  save_safetensors(folder_ / "loha/adapter_model.safetensors", loha);
  write_plain(folder_ / "loha/adapter_config.json", R"({"peft_type": "LOHA", "r": 2, "alpha": 2})");
  const std::vector<std::string> flags =
      with_flags(without(arguments("out"), "--rank"), {"--from", (folder_ / "loha").string()});
  expect_one_line(ChildProcess(flags, folder_.path()).wait(), {"--from ", "loha: is a LoHa", "a LoRA or a DoRA"});
  ASSERT_EQ(train("out").code, 0);
  expect_one_line(train("out"), {"--output", "out", "holds an earlier run (lora, lora-000002, ", "--resume"});
  write_plain(folder_ / "a.jsonl", "{\"text\": \"something else\"}\n");
  expect_one_line(train("out", {"--resume"}), {"--resume", "data set", "a.jsonl changed"});
}

}  // namespace
}  // namespace wick
