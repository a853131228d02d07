// Ids, masks and loss rows of two hundred conversations under templates of our own, held against transformers
// (tools/golden/chat_ids.py); tests/text/jinja_template.cpp holds the texts. The templates have, one or more each, the
// traits of public ones:
//
//   Yi, Hermes                  ChatML by concatenation; a default system prompt; macros over schemas, filter blocks
//   LLaMA-Factory               turns that the question closes: "Assistant:" stands behind the user's text; | string
//   Llama 2, Mistral v1         turns that alternate or raise; != of two comparisons; strip(); marks as plain text
//   Mistral v3, tekken          selectattr, namespaces that count, a for with a filter over items(), slices of tojson
//   Mistral Small               strftime_now, parts of content, block set
//   Llama 3, 3.1, 4             trim, tojson(indent=4), reject, messages set anew, `in` of dicts, map(attribute=)
//   Gemma 2, 3, 4               roles renamed or refused, parts, recursive macros over schemas, dictsort
//   Phi 3, 4                    templates of one line; \r\n; an end of text only where no answer is asked for
//   DeepSeek                    flags in a namespace, thoughts split off, fullwidth characters, nextitem
//   GLM                         text outside tags with all kinds of white space, a macro for parts, loops over dicts
//   gpt-oss                     macros that write types, defaults by name, raise_exception, get; channels; earlier
//                               thoughts are dropped; another end for the last answer
//   Qwen 2.5, 3, 3.5            runs of tool answers, messages[::-1], a counting macro, | items, | safe; thoughts of
//                               the last question alone; a prompt that opens a thought
//   Command, Granite            documents, dicts as tables, truncate, title, sort
//   SmolLM, OLMo, Nemotron      modes in the system prompt, message.get, list sums, break, continue, previtem
//   Alpaca, Vicuna, Zephyr      tags on lines of their own, range
//   TRL                         generation blocks: around all, in macros, in each other, in block set, with thoughts
//   others                      cycle, changed, groupby, batch, recursive loops, raw, with, call, filter blocks,
//                               varargs

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "source_dir.h"
#include "text/hash.h"
#include "wick/core/error.h"
#include "wick/text/chat.h"
#include "wick/text/conversation.h"
#include "wick/text/tokenizer.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Ids = std::vector<int64_t>;

Json ids_golden(const std::string& path) {
  return Json::parse(std::ifstream(test::source_dir() / "tests/golden" / path));
}

// A model's folder: a tokenizer with the template's marks as control tokens, and the template.
void write_model(const fs::path& folder, const std::string& family, const Json& marks, const std::string& jinja) {
  Json tokenizer = ids_golden("tokenizers/" + family + "/tokenizer.json");
  int64_t next = 0;
  for (const auto& [piece, id] : tokenizer.at("model").at("vocab").items())
    next = std::max(next, id.get<int64_t>() + 1);
  for (const Json& token : tokenizer.at("added_tokens")) next = std::max(next, token.at("id").get<int64_t>() + 1);
  for (const Json& mark : marks)
    tokenizer["added_tokens"].push_back({{"id", next++},
                                         {"content", mark},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", true}});
  write_plain(folder / "tokenizer.json", tokenizer.dump());
  write_plain(folder / "tokenizer_config.json", ids_golden("tokenizers/" + family + "/tokenizer_config.json").dump());
  write_plain(folder / "chat_template.jinja", jinja);
}

// The lists of ids and of ones and zeros that a hash is of; or why there are none.
struct Lists {
  std::vector<Ids> all;
  std::string error;

  void add(const ChatRow& row) {
    all.push_back(row.ids);
    all.emplace_back(row.counts.begin(), row.counts.end());
  }
  std::string hash() const {
    test::Fnv1a hash;
    if (!error.empty()) hash.add("failed");
    for (const Ids& ids : all) hash.add(ids);
    return hash.hex();
  }
};

template <class Make>
Lists lists_of(const Make& make) {
  Lists lists;
  try {
    make(lists);
  } catch (const Error& error) {
    lists = {{}, error.what()};
  }
  return lists;
}

struct GoldenIds : testing::Test {
  const Json ids = ids_golden("chat_templates/ids.json");
  const std::map<std::string, std::string> sources = [] {
    std::map<std::string, std::string> by_name;
    const Json chats = ids_golden("chat_templates/chats.json");
    for (const Json& row : chats.at("templates"))
      by_name[row.at("name").get<std::string>()] = row.at("source").get<std::string>();
    return by_name;
  }();

  ChatTemplate chat(const Json& row) const {
    const TemporaryDirectory folder;
    write_model(folder.path(), row.at("tokenizer"), row.at("marks"), sources.at(row.at("name")));
    return ChatTemplate(Tokenizer::load(folder.path()), {.date = "2024-07-26T13:04:05"}, "golden");
  }

  Conversation line(size_t index) const {
    Json line = ids.at("lines")[index];
    if (line.contains("tools")) line["tools"] = ids.at("tools")[line.at("tools").get<size_t>()];
    return conversation_of(line, "line " + std::to_string(index));
  }

  TrainTurns turns(size_t index) const {
    const auto last = ids.at("last").get<std::vector<size_t>>();
    return std::ranges::find(last, index) == last.end() ? TrainTurns::all : TrainTurns::last;
  }

  Lists rows(const ChatTemplate& chat, size_t index) const {
    return lists_of([&](Lists& lists) {
      for (const ChatRow& row : chat.rows(line(index), turns(index))) lists.add(row);
    });
  }
};

TEST_F(GoldenIds, AreThoseOfTransformers) {
  ASSERT_GE(ids.at("templates").size(), 40u);
  ASSERT_EQ(ids.at("lines").size(), 200u);
  size_t compared = 0;
  for (const Json& row : ids.at("templates")) {
    const ChatTemplate made = chat(row);
    const auto expect = [&](const char* what, size_t index, const Lists& lists) {
      const std::string hash = row.at(what).get<std::string>().substr(index * 8, 8);
      if (hash == "--------") return;
      EXPECT_EQ(lists.hash(), hash) << row.at("name") << ", line " << index << ", " << what << ": " << lists.error;
      compared += lists.error.empty() ? 1 : 0;
    };
    for (size_t index = 0; index < ids.at("lines").size(); ++index) {
      const Conversation given = line(index);
      expect("prompts", index, lists_of([&](Lists& lists) { lists.all.push_back(made.prompt(given)); }));
      expect("generated", index, lists_of([&](Lists& lists) { lists.add(made.generated(given)); }));
      expect("rows", index, rows(made, index));
    }
  }
  EXPECT_GT(compared, 20'000u);
}

// The first cases whole: what a hash cannot tell.
TEST_F(GoldenIds, WholeCases) {
  for (const Json& row : ids.at("templates")) {
    const ChatTemplate made = chat(row);
    for (const Json& each : row.at("whole")) {
      const size_t index = each[0];
      const std::string which = row.at("name").get<std::string>() + ", line " + std::to_string(index);
      EXPECT_EQ(made.prompt(line(index)), each[1].get<Ids>()) << which;
      Lists whole;
      whole.add(made.generated(line(index)));
      EXPECT_EQ(whole.all, each[2].get<std::vector<Ids>>()) << which;
      std::vector<Ids> expected;
      for (const Json& lists : each[3])
        for (const Json& list : lists) expected.push_back(list);
      EXPECT_EQ(rows(made, index).all, expected) << which;
    }
  }
}

}  // namespace
}  // namespace wick
