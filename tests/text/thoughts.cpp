#include "wick/text/thoughts.h"

#include <gtest/gtest.h>

#include <ostream>
#include <random>

namespace wick {

inline void PrintTo(const ThoughtPiece& piece, std::ostream* out) {
  *out << (piece.is_thought ? "thought" : "answer") << " \"" << piece.text << '"';
}

namespace {

using Pieces = std::vector<ThoughtPiece>;

// The whole in pieces, whose neighbours differ in kind.
Pieces split(const std::string& prompt, const std::vector<std::string>& fragments) {
  ThoughtSplitter splitter(prompt);
  Pieces all;
  const auto take = [&](Pieces pieces) {
    for (ThoughtPiece& piece : pieces) {
      EXPECT_FALSE(piece.text.empty());
      if (!all.empty() && all.back().is_thought == piece.is_thought)
        all.back().text += piece.text;
      else
        all.push_back(std::move(piece));
    }
  };
  for (const std::string& fragment : fragments) take(splitter.push(fragment));
  take(splitter.finish());
  return all;
}

struct SplitRow {
  const char *prompt, *text;
  Pieces want;
};

const ThoughtPiece kHm{"Hm.\n\nSo.", true}, kHi{"Hi.", false};

const SplitRow kRows[] = {
    {"", "", {}},
    {"", "Hi.", {kHi}},
    {"", "\n\n Hi.\n", {{"\n\n Hi.\n", false}}},
    {"", "\n\n", {{"\n\n", false}}},
    {"", "<think>\nHm.\n\nSo.\n</think>\n\nHi.", {kHm, kHi}},
    {"", " \n<think>Hm.\n\nSo.</think>Hi.\n\n", {kHm, {"Hi.\n\n", false}}},
    {"", "<think>\n\n</think>\n\nHi.", {kHi}},
    {"", "<think></think>", {}},
    {"", "<think> Hm. </think> Hi.", {{" Hm. ", true}, {" Hi.", false}}},
    {"", "[THINK]Hm.\n\nSo.[/THINK]Hi.", {kHm, kHi}},
    {"", "<seed:think>\nHm.\n\nSo.\n</seed:think>\nHi.", {kHm, kHi}},
    {"", "<thought>\nHm.\n\nSo.\n</thought>\n\nHi.", {kHm, kHi}},
    {"", "<|START_THINKING|>Hm.\n\nSo.<|END_THINKING|>Hi.", {kHm, kHi}},
    // A thought that does not end, or whose end was cut off.
    {"", "<think>\nHm.\n\nSo.\n\n", {kHm}},
    {"", "<think>Hm.\n</th", {{"Hm.\n</th", true}}},
    {"", "<thin", {{"<thin", false}}},
    {"", "<", {{"<", false}}},
    // Marks of another kind, or behind the start, are text.
    {"", "<think>Hm.[/THINK]</thought></think>Hi.", {{"Hm.[/THINK]</thought>", true}, kHi}},
    {"", "Hi. <think>Hm.</think>", {{"Hi. <think>Hm.</think>", false}}},
    {"", "<think>Hm.</think>Hi. <think>Ho.</think>", {{"Hm.", true}, {"Hi. <think>Ho.</think>", false}}},
    {"", "</think>Hi.", {{"</think>Hi.", false}}},
    {"", "<thinking>Hm.", {{"<thinking>Hm.", false}}},
    {"", "<think>1 < 2 </ 3 </think</think>Hi.", {{"1 < 2 </ 3 </think", true}, kHi}},
    // Opened by the prompt, or closed there.
    {"<|im_start|>assistant\n<think>\n", "Hm.\n\nSo.\n</think>\n\nHi.", {kHm, kHi}},
    {"<|im_start|>assistant\n<think>\n", "\nHm.\n\nSo.", {kHm}},
    {"x<seed:think>", "Hm.\n\nSo.</seed:think>Hi.", {kHm, kHi}},
    {"<think>\n\n</think>\n\n", "Hi.", {kHi}},
    {"<think>\n\n</think>\n\n", "<think>Hm.\n\nSo.</think>Hi.", {kHm, kHi}},
    {"<think> of it", "Hi.", {kHi}},
    // Gemma 4.
    {"", "<|channel>thought\nHm.\n\nSo.\n<channel|>Hi.", {kHm, kHi}},
    {"<|channel>thought\n", "Hm.\n\nSo.<channel|>Hi.", {kHm, kHi}},
    {"<|channel>thought\n<channel|>", "Hi.", {kHi}},
    {"",
     "<|channel>thought\nHm.<channel|>Hi.<|channel>thought\nHo.<channel|>Ha.",
     {{"Hm.", true}, kHi, {"Ho.", true}, {"Ha.", false}}},
    // gpt-oss.
    {"<|start|>assistant",
     "<|channel|>analysis<|message|>Hm.\n\nSo.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
     {kHm, kHi}},
    {"<|start|>assistant", "<|channel|>final<|message|>Hi.", {kHi}},
    {"<|start|>assistant<|channel|>analysis<|message|>",
     "Hm.\n\nSo.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
     {kHm, kHi}},
    {"",
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.analysis "
     "<|constrain|>json<|message|>{}",
     {{"Hm.", true},
      {"<|start|>assistant<|channel|>commentary to=functions.analysis <|constrain|>json<|message|>{}", false}}},
    {"",
     "<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
     {{"Wait.\n\nHi.", false}}},
    {"",
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|><|start|>",
     {{"Hm.\n\nSo.", true}}},
    {"", "<|channel|>analysis", {{"<|channel|>analysis", false}}},
    {"", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assis", {{"Hm.", true}}},
    {"", "Hi. <|channel|>analysis<|message|>", {{"Hi. <|channel|>analysis<|message|>", false}}},
};

TEST(Thoughts, AreTakenOutOfAnAnswer) {
  for (const SplitRow& row : kRows) EXPECT_EQ(split(row.prompt, {row.text}), row.want) << row.text;
}

TEST(Thoughts, AnyFragmentsGiveTheSame) {
  std::mt19937_64 random(20260727);
  for (const SplitRow& row : kRows) {
    const std::string text = row.text;
    std::vector<std::string> letters;
    for (const char c : text) letters.emplace_back(1, c);
    EXPECT_EQ(split(row.prompt, letters), row.want) << text;
    for (int times = 0; times < 50; ++times) {
      std::vector<std::string> fragments;
      for (size_t at = 0; at < text.size();) {
        const size_t size = random() % 12;
        fragments.push_back(text.substr(at, size));
        at += size;
      }
      EXPECT_EQ(split(row.prompt, fragments), row.want) << text;
    }
  }
}

// What cannot be a mark any more comes at once.
TEST(Thoughts, TextIsNotHeldBack) {
  ThoughtSplitter splitter;
  EXPECT_EQ(splitter.push("\n<thi"), Pieces{});
  EXPECT_EQ(splitter.push("nk>Hm"), (Pieces{{"Hm", true}}));
  EXPECT_EQ(splitter.push(".\n\n"), (Pieces{{".", true}}));
  EXPECT_EQ(splitter.push("So</"), (Pieces{{"\n\nSo", true}}));
  EXPECT_EQ(splitter.push("b>"), (Pieces{{"</b>", true}}));
  EXPECT_EQ(splitter.push("\n</think>\n"), Pieces{});
  EXPECT_EQ(splitter.push("\nHi <"), (Pieces{{"Hi <", false}}));
  EXPECT_EQ(splitter.finish(), Pieces{});
  ThoughtSplitter plain;
  EXPECT_EQ(plain.push("H"), (Pieces{{"H", false}}));
  EXPECT_EQ(plain.push("\n"), (Pieces{{"\n", false}}));
}

TEST(Thoughts, ThePromptsMarkIsKept) {
  EXPECT_EQ(ThoughtSplitter("assistant\n<think>\n").opening(), "<think>\n");
  EXPECT_EQ(ThoughtSplitter("[THINK]").opening(), "[THINK]");
  EXPECT_EQ(ThoughtSplitter("<think>\n\n</think>\n\n").opening(), "");
  EXPECT_EQ(ThoughtSplitter("assistant\n").opening(), "");
}

}  // namespace
}  // namespace wick
