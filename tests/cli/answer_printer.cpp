// How an answer with thoughts is shown, and what becomes of it.
#include "apps/wick/answer_printer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "apps/wick/chat_messages.h"
#include "io/files.h"
#include "source_dir.h"

namespace wick {
namespace {

using cli::AnswerPrinter;

struct Shown {
  std::string out, err;  // of one screen: out alone, with thoughts in braces

  AnswerPrinter::Screen screen(bool is_one) {
    const auto thought = [this, is_one](std::string_view text) {
      is_one ? void(out += "{" + std::string(text) + "}") : void(err += text);
    };
    return {[this](std::string_view text) { out += text; }, thought, is_one};
  }
};

AnswerPrinter show(Shown& shown, bool is_one, const std::vector<std::string>& fragments,
                   const std::string& prompt = "") {
  AnswerPrinter printer(prompt, shown.screen(is_one));
  for (const std::string& fragment : fragments) printer.push(fragment);
  printer.finish();
  return printer;
}

TEST(AnswerPrinter, ThoughtsAndAnswersHaveTheirPlaces) {
  const std::vector<std::string> text{"<think>\nA cow", ".\nOr two.", "\n</think>\n\nMoo", ".\n"};
  Shown one, apart;
  const AnswerPrinter printer = show(one, /*is_one=*/true, text);
  EXPECT_EQ(one.out, "{A cow}{.\nOr two.}\n\nMoo.\n\n");
  show(apart, /*is_one=*/false, text);
  EXPECT_EQ(apart.out, "Moo.\n\n");
  EXPECT_EQ(apart.err, "A cow.\nOr two.\n");
  EXPECT_EQ(printer.thought(), "A cow.\nOr two.");
  EXPECT_EQ(printer.answer(), "Moo.\n");
  EXPECT_EQ(printer.whole(), "<think>\nA cow.\nOr two.\n</think>\n\nMoo.\n");
}

TEST(AnswerPrinter, EitherMayBeMissing) {
  for (const bool is_one : {true, false}) {
    Shown plain, thought, nothing;
    show(plain, is_one, {"Moo."});
    EXPECT_EQ(plain.out + plain.err, "Moo.\n");
    const AnswerPrinter printer = show(thought, is_one, {"A cow.\n"}, "assistant\n<think>\n");
    EXPECT_EQ(thought.out, is_one ? "{A cow.}\n" : "\n");
    EXPECT_EQ(thought.err, is_one ? "" : "A cow.\n");
    EXPECT_EQ(printer.whole(), "<think>\nA cow.\n") << "with the mark of the prompt";
    show(nothing, is_one, {});
    EXPECT_EQ(nothing.out + nothing.err, "\n");
  }
}

TEST(AnswerPrinter, ThoughtsMayComeAgain) {
  const std::string text =
      "<|channel>thought\nA cow.<channel|>Moo.<|channel>thought\nA dog.<channel|>Woof.<|channel>thought\nBoth.";
  Shown one, apart;
  const AnswerPrinter printer = show(one, /*is_one=*/true, {text});
  EXPECT_EQ(one.out, "{A cow.}\n\nMoo.\n\n{A dog.}\n\nWoof.\n\n{Both.}\n");
  show(apart, /*is_one=*/false, {text});
  EXPECT_EQ(apart.out, "Moo.\n\nWoof.\n");
  EXPECT_EQ(apart.err, "A cow.\nA dog.\nBoth.\n");
  EXPECT_EQ(printer.thought(), "A cow.\n\nA dog.\n\nBoth.");
  EXPECT_EQ(printer.answer(), "Moo.\n\nWoof.");
}

// The template says which key a thought has in a conversation.
TEST(AnswerPrinter, MessagesAreAsTheTemplateKnowsThem) {
  const Tokenizer tokenizer = Tokenizer::load(test::source_dir() / "models/tiny-llm");
  const TemporaryDirectory folder;
  const auto message = [&](const std::string& jinja, const std::string& text) {
    write_plain(folder / "template.jinja", jinja);
    const ChatTemplate chat_template(tokenizer, {.name = (folder / "template.jinja").string()}, "tiny-llm");
    Shown shown;
    return assistant_message(show(shown, /*is_one=*/true, {text}), chat_template).dump();
  };
  const std::string thinks = "<think>\nA cow.\n</think>\n\nMoo.";
  EXPECT_EQ(message("{{ messages[0].reasoning_content }}", thinks),
            R"({"role":"assistant","content":"Moo.","reasoning_content":"A cow."})");
  EXPECT_EQ(message("{{ messages[0].thinking }}", thinks),
            R"({"role":"assistant","content":"Moo.","thinking":"A cow."})");
  EXPECT_EQ(message("{{ enable_thinking }}", thinks),
            R"({"role":"assistant","content":"<think>\nA cow.\n</think>\n\nMoo."})");
  for (const char* jinja : {"{{ messages[0].reasoning_content }}", "{{ messages[0].content }}"})
    EXPECT_EQ(message(jinja, "Moo."), R"({"role":"assistant","content":"Moo."})");
}

}  // namespace
}  // namespace wick
