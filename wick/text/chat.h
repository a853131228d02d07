// Chat templates: conversations to the text that a model was trained on, and to ids.
//
// Models carry a template in Jinja, which is run (text/jinja_template.h): text and ids are those of transformers'
// apply_chat_template. Three things differ:
// - The content of messages is text, so that a "<|im_end|>" in it is not the control token of that name. (Llama 2 and
//   Mistral before v0.3 mark turns with "[INST]" as plain text, which no tokenizer can tell from a user's.)
// - A template that would print a list of parts, or the arguments of a call, as Python prints them, gets them as text
// or
//   as an object, whichever it can write; vLLM and llama.cpp do that too (text/template_traits.h).
// - A role that is not known must stand in the template.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wick/text/jinja_template.h"
#include "wick/text/tokenizer.h"
#include "wick/text/train_turns.h"

namespace wick {

struct Conversation;  // text/conversation.h

// The file that holds a model's chat template, or the one that an adapter was trained with.
inline constexpr const char* kChatTemplateFile = "chat_template.jinja";

// The template and what it is given beside a conversation.
struct ChatOptions {
  static constexpr const char* kAuto = "auto";
  std::string name = kAuto;  // auto: the tokenizer's; else the name of one of the tokenizer's or Wick's, or a file
  std::string date;          // strftime_now's time: "2026-11-27", or "2026-11-27T13:04:05"; empty: the local time
  std::string variables;     // a JSON object: chat_template_kwargs for all conversations, whose own go first
};

// The time of ChatOptions::date. Throws UsageError for another text.
std::tm parse_template_date(const std::string& date);
std::string template_date_now();

// A row to learn from.
struct ChatRow {
  std::vector<int64_t> ids;
  std::vector<bool> counts;  // for each id: whether it counts in the loss
};

class ChatTemplate {
 public:
  // Throws Error if there is no such template, if it is no Jinja that chat templates use, or if the tokenizer lacks a
  // control token with which one of Wick's own marks turns. `source` names the tokenizer's files.
  ChatTemplate(const Tokenizer& tokenizer, const ChatOptions& options, const std::string& source);

  static std::vector<std::string> names();  // of Wick's own templates
  const std::string& jinja() const;         // the text of the default one
  const std::string& tool_use() const;      // the one for conversations with tools; empty if it is the same
  // Whether one of these texts has a word: "reasoning_content", "tools".
  bool mentions(std::string_view word) const;

  // The text. Throws Error where the template refuses the conversation, and for roles that neither are known nor stand
  // in the template.
  JinjaText render(const Conversation& conversation, bool add_generation_prompt = true) const;
  // Throws Error if something of the conversation would not be in the text: tools, documents, calls, thoughts, or a key
  // beside the messages that the template asks for as a variable.
  void check_takes(const Conversation& conversation) const;
  // The ids of a prompt that an answer follows.
  std::vector<int64_t> prompt(const Conversation& conversation) const;
  // A row of the whole conversation; or a row for each assistant's turn where the template writes earlier turns anew.
  // Ids count in {% generation %} blocks. A template without them is rendered up to each answer and up to the prompt
  // before it: the ids count that the answer adds.
  std::vector<ChatRow> rows(const Conversation& conversation, TrainTurns turns = TrainTurns::all) const;
  // The ids of the whole; those of {% generation %} blocks count: transformers' assistant mask.
  ChatRow generated(const Conversation& conversation) const;

 private:
  struct Loaded;
  using Range = std::pair<size_t, size_t>;  // of a text's bytes
  void check_roles(const Conversation& conversation) const;
  JinjaText render(const Conversation& conversation, bool add_generation_prompt, std::optional<size_t> given) const;
  ChatRow row(const JinjaText& text, const std::vector<Range>& counted) const;
  size_t written_before(const Conversation& conversation, size_t turn, const std::string& text) const;
  Range answer(const Conversation& conversation, size_t turn, const JinjaText& rendered) const;

  std::shared_ptr<const Loaded> loaded_;  // immutable: copies share it, threads too
};

}  // namespace wick
