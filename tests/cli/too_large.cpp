// A run that does not fit into memory ends with one line. A user who follows its advice gets a run that fits.
#include <sstream>

#include "cli/program.h"
#include "wick/io/json.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// The flags of "…; --context 512 would need 1.0 MiB, --bf16 800 KiB".
std::vector<std::string> advice_in(const std::string& error) {
  constexpr std::string_view kBefore = "are free; ", kNeeds = " would need";
  std::vector<std::string> all;
  const size_t begin = error.find(kBefore);
  if (begin == error.npos || error.compare(begin + kBefore.size(), 2, "--") != 0) return all;
  std::string rest = error.substr(begin + kBefore.size());
  if (const size_t needs = rest.find(kNeeds); needs != rest.npos) rest.erase(needs, kNeeds.size());
  for (size_t end = 0; !rest.empty(); rest.erase(0, end)) {
    end = std::min(rest.find(", "), rest.size());
    const std::string one = rest.substr(0, end);
    const size_t unit = one.rfind(' '), number = one.rfind(' ', unit - 1);
    all.push_back(one.substr(0, number));
    end = std::min(end + 2, rest.size());
  }
  return all;
}

// "--batch-size 4 --bf16" with flags that stand in the place of those of the same name.
std::string changed(const std::string& flags, const std::string& advice) {
  std::string kept;
  std::istringstream words(flags);
  bool is_kept = true;
  for (std::string word; words >> word;) {
    if (word.starts_with("--")) is_kept = (" " + advice + " ").find(" " + word + " ") == advice.npos;
    if (is_kept) kept += word + " ";
  }
  return kept + advice;
}

struct Row {
  std::string command, flags;
  int kilobytes;                     // of the process's addresses
  std::vector<std::string> advised;  // the names of the flags of each piece of advice
};

class TooLarge : public testing::Test {
 protected:
  TooLarge() {
    write_plain(folder_ / "x.jsonl", "{\"text\": \"The sun is warm.\"}\n");
    model("long", {{"max_position_embeddings", 1'000'000}});
    model("wide", {{"max_position_embeddings", 1'000'000}, {"intermediate_size", 24'576}});
  }

  // tiny-llm with another config, which its weights need not fit.
  void model(const std::string& name, const nlohmann::json& changes) {
    fs::copy(test::source_dir() / "models/tiny-llm", folder_ / name);
    nlohmann::json config = parse_json(read_plain(folder_ / name / "config.json"), "config.json");
    config.update(changes);
    write_plain(folder_ / name / "config.json", config.dump());
  }

  Outcome run(const Row& row, const std::string& flags) const {
    const std::string command = "cd '" + folder_.path().string() + "'; export MALLOC_ARENA_MAX=1; ulimit -v " +
                                std::to_string(row.kilobytes) + ";";
    return run_wick(row.command + " --device cpu " + flags, command + (row.command.starts_with("chat") ? kSaid : ""));
  }

  // Follows each piece of advice, which passes the check of memory, with so many kilobytes of addresses more than the
  // row has; the outcomes.
  std::vector<Outcome> followed(const Row& row, int beside = 0) const {
    SCOPED_TRACE("wick " + row.command + " " + row.flags);
    const Outcome refused = run(row, row.flags);
    expect_one_line(refused, {"would need", "of memory on cpu", "are free; "});
    EXPECT_EQ(refused.code, 1);
    const std::vector<std::string> advice = advice_in(refused.err);
    std::vector<std::string> names;
    for (const std::string& flags : advice) {
      std::istringstream words(flags);
      std::string& name = names.emplace_back();
      for (std::string word; words >> word;)
        if (word.starts_with("--")) name += (name.empty() ? "" : " ") + word;
    }
    EXPECT_EQ(names, row.advised) << refused.err;
    if (advice.empty()) {
      EXPECT_NE(refused.err.find("expected a smaller model"), std::string::npos) << refused.err;
    }
    std::vector<Outcome> outcomes;
    for (const std::string& flags : advice) {
      const std::string followed = changed(row.flags, flags);
      EXPECT_EQ(run(row, followed).err.find("would need"), std::string::npos) << followed;
      Row roomier = row;
      roomier.kilobytes += beside;
      outcomes.push_back(run(roomier, followed));
    }
    return outcomes;
  }

  static constexpr const char* kSaid = " echo 'What does a cow say?' |";
  const TemporaryDirectory folder_;
};

const std::string kAsk = "--temperature 0 --chat --prompt 'What does a cow say?'";

TEST_F(TooLarge, TextsAreShortened) {
  for (const Row& row : {Row{"chat --model long --temperature 0", "--context 200000", 433'000, {"--context"}},
                         {"generate --model long " + kAsk, "--max-tokens 200000", 433'000, {"--max-tokens"}},
                         {"eval --model long --dataset x.jsonl", "--context 200000", 433'000, {"--context"}}})
    for (const Outcome& outcome : followed(row)) {
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_FALSE(outcome.out.empty());
    }
}

// Weights of another shape than the config says are met behind the plan.
TEST_F(TooLarge, WeightsAreHeldInLess) {
  const std::string model = "generate --model wide " + kAsk, chat = "chat --model wide";
  for (const Row& row :
       {Row{model, "--max-tokens 10", 433'000, {"--bf16"}},
        {model, "--max-tokens 10", 313'000, {"--quantize"}},
        {model, "--max-tokens 10 --bf16", 313'000, {"--quantize"}},
        {model, "--max-tokens 10", 183'000, {}},
        {chat, "--context 100000", 433'000, {"--quantize --context"}},
        {"eval --model wide --dataset x.jsonl", "--context 100000", 433'000, {"--quantize --context"}}})
    for (const Outcome& outcome : followed(row)) expect_one_line(outcome, {"should have shape"});
}

// Heap, stacks and oneDNN's code take addresses that are no memory of a plan: 60 to 100 MB were seen beside pictures.
TEST_F(TooLarge, PicturesAreSmallerOrFewerAtATime) {
  const std::string draw = "generate --model tiny --steps 1 --overwrite --out x.png";
  std::string prompts;
  for (int i = 0; i < 16; ++i) prompts += " --prompt a" + std::to_string(i);
  for (const Row& row :
       {Row{draw + " --prompt a", "--width 1024 --height 768", 333'000, {"--width --height"}},
        {draw + prompts, "--width 256 --height 256 --batch-size 16", 301'000, {"--batch-size", "--width --height"}}})
    for (const Outcome& outcome : followed(row, 200'000)) EXPECT_EQ(outcome.code, 0) << outcome.err;
}

}  // namespace
}  // namespace wick
