// What other programs interpret in a prompt, and Wick reads as words, is found; plain text is left alone.
#include "wick/text/foreign_syntax.h"

#include <gtest/gtest.h>

namespace wick {
namespace {

std::vector<std::string> texts_in(std::string_view prompt, PromptSyntax syntax = PromptSyntax::plain) {
  std::vector<std::string> all;
  for (const ForeignSyntax& piece : foreign_syntax(prompt, syntax)) all.push_back(piece.text);
  return all;
}

TEST(ForeignSyntax, EachKindIsFound) {
  const std::vector<std::pair<std::string, std::string>> kPieces{{"a fox <lora:name:0.8> in snow", "<lora:name:0.8>"},
                                                                 {"<lyco:a>", "<lyco:a>"},
                                                                 {"<hypernet:a:1>", "<hypernet:a:1>"},
                                                                 {"a (red:1.3) fox", "(red:1.3)"},
                                                                 {"a (red hat: 1.3 )", "(red hat: 1.3 )"},
                                                                 {"((red)) fox", "((red))"},
                                                                 {"(a (red:0.5) fox)", "(red:0.5)"},
                                                                 {"(a (red) fox:1.3)", "(a (red) fox:1.3)"},
                                                                 {"(red:1e-1)", "(red:1e-1)"},
                                                                 {"(red:.5)", "(red:.5)"},
                                                                 {"\\(red:1.3\\)", "\\("},
                                                                 {"fox_\\(animal)", "\\("},
                                                                 {"a \\\\(red", "\\("},
                                                                 {"embedding:bad-hands", "embedding:bad-hands"},
                                                                 {"a\tembedding:bad, b", "embedding:bad"},
                                                                 {"a (embedding:bad)", "embedding:bad"},
                                                                 {"(a)embedding:bad", "embedding:bad"},
                                                                 {"a [cat:dog:0.5]", "[cat:dog:0.5]"},
                                                                 {"a [cat::10]", "[cat::10]"},
                                                                 {"a [cat:0.5]", "[cat:0.5]"},
                                                                 {"a [cat|dog]", "[cat|dog]"},
                                                                 {"a fox BREAK in snow", "BREAK"},
                                                                 {"BREAK", "BREAK"},
                                                                 {"a fox AND a dog", "AND"},
                                                                 {"a {red|blue} fox", "{red|blue}"},
                                                                 {"a __colour__ fox", "__colour__"},
                                                                 {"__animals/cat-1__", "__animals/cat-1__"},
                                                                 {"caf\xc3\xa9 (red:1.3)", "(red:1.3)"}};
  for (const auto& [prompt, piece] : kPieces) EXPECT_EQ(texts_in(prompt), std::vector{piece}) << prompt;
}

TEST(ForeignSyntax, PlainTextHasNone) {
  for (const char* prompt : {"",
                             "a red fox",
                             "a fox (red)",
                             "fox_(animal), snow",
                             "at 10:30",
                             "a: b, c: d",
                             "(red:e1)",
                             "(red:-)",
                             "(a:b-1)",
                             "xembedding:a",
                             "embedding: a",
                             "a,embedding:b",
                             "a \\n b",
                             "BREAKFAST",
                             "OUTBREAK",
                             "a fox and a dog",
                             "ROCK AND ROLL",
                             "ANDROID",
                             "a < b > c",
                             "<3",
                             "[trigger] fox",
                             "{x}",
                             "snake_case",
                             "a__b",
                             "____",
                             "__ a __",
                             "(a:b)",
                             "(:1.3)",
                             "[a, b]",
                             "[note: red]",
                             "(",
                             ")",
                             "<lora:",
                             "{a|",
                             "__",
                             "((",
                             "\\"})
    EXPECT_EQ(texts_in(prompt), std::vector<std::string>()) << prompt;
}

TEST(ForeignSyntax, ComfyUisSyntaxHasWeights) {
  EXPECT_EQ(texts_in("(red:1.3) BREAK ((a)) \\(", PromptSyntax::comfyui), std::vector<std::string>{"BREAK"});
}

TEST(ForeignSyntax, LongTextsTakeLinearTime) {
  for (const char* piece :
       {"(", "((", "[", "{", "<", "__", "(a:", "[a:", "AND", "BREAKS", "()", "(a:b)", "\\", "embedding: "}) {
    std::string prompt;
    while (prompt.size() < (size_t{1} << 20)) prompt += piece;
    foreign_syntax(prompt);
  }
}

TEST(ForeignSyntax, IsToldWithTheFlagsThatReadIt) {
  const auto found = foreign_syntax("<lora:a:1> (b:2) BREAK (c:3)");
  EXPECT_EQ(read_as_words(found), "\"<lora:a:1>\", \"(b:2)\" and \"BREAK\" are read as plain words");
  EXPECT_EQ(read_as_words(found, true),
            "\"<lora:a:1>\", \"(b:2)\" and \"BREAK\" are read as plain words; --lora FILE loads a LoRA; "
            "--prompt-syntax comfyui reads weights");
  EXPECT_EQ(read_as_words(foreign_syntax("\\(a\\) (b:2)"), true),
            "\"(b:2)\" and \"\\(\" are read as plain words; --prompt-syntax comfyui reads weights");
  EXPECT_EQ(read_as_words(foreign_syntax("\\(a\\) embedding:b"), true),
            "\"\\(\" and \"embedding:b\" are read as plain words; --prompt-syntax comfyui reads escapes; of "
            "embeddings there are those that a --lora holds");
  EXPECT_EQ(read_as_words(foreign_syntax("BREAK"), true), "\"BREAK\" is read as plain words");
}

}  // namespace
}  // namespace wick
