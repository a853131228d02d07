// Chat templates: messages to the text that a model was trained on, and to ids.
//
// Models carry a template in Jinja. Wick does not run it: it recognises the family by strings in it and reads from it
// the details that differ within a family (spaces around [INST], the default system prompt, whether there is thinking).
// For messages of the roles system, user and assistant the text is that of transformers' apply_chat_template; tools are
// not supported.
//
// The content of messages is text: a "<|im_end|>" in it is not the control token of that name. (Llama 2 and Mistral
// before v0.3 mark turns with "[INST]" as plain text, which no tokenizer can tell from a user's.)
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wick/text/tokenizer.h"

namespace wick {

struct ChatMessage {
  std::string role, content;  // role: "system", "user" or "assistant"
};

struct ChatOptions {
  bool add_generation_prompt = true;  // ends the text with the opening of an answer
  bool enable_thinking = true;        // Qwen 3: else the answer starts behind an empty thought
  std::string date;                   // Llama 3.1's system prompt names it: "26 Jul 2024"; empty: the template's own
};

// A stretch of the text. Only parts with `is_template` hold control tokens. Parts with `is_reply` are an answer and the
// token that ends it, which fine-tuning learns.
struct ChatPart {
  std::string text;
  bool is_template = false, is_reply = false;
};

struct ChatIds {
  std::vector<int64_t> ids;
  std::vector<bool> is_reply;  // for each id
};

class ChatTemplate {
 public:
  // Recognises a template in Jinja. Throws Error naming `source` if there is none or its family is unknown.
  static ChatTemplate recognize(std::string_view jinja, const std::string& source);
  // A family's own template: llama2, llama3, mistral-v1, mistral-v3, mistral-tekken, chatml, qwen3.
  static ChatTemplate named(std::string_view name);
  // The template of that name, or for kAuto that of the tokenizer's files, which `source` names. Throws Error if the
  // tokenizer lacks a control token with which a named template marks turns.
  static constexpr const char* kAuto = "auto";
  static ChatTemplate of(const Tokenizer& tokenizer, std::string_view name, const std::string& source);

  // `bos` and `eos` are the tokenizer's, as text. Throws Error for roles that the family cannot express.
  std::vector<ChatPart> render(std::span<const ChatMessage> messages, const ChatOptions& options, std::string_view bos,
                               std::string_view eos) const;

  std::string text(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                   const ChatOptions& options = {}) const;
  // The ids of the rendered text. An answer starts a word of its own, as it does when it is generated.
  ChatIds encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                 const ChatOptions& options = {}) const;

 private:
  enum class Family { kLlama2, kMistral, kLlama3, kChatMl };
  enum class Thinking { kNone, kOptional, kAlways };
  class Writer;

  static ChatTemplate llama2(std::string_view jinja);
  static ChatTemplate mistral(std::string_view jinja);
  static ChatTemplate llama3(std::string_view jinja);
  static ChatTemplate chatml(std::string_view jinja);
  std::vector<ChatPart> render(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                               const ChatOptions& options) const;
  void write_inst(Writer& writer, std::span<const ChatMessage> messages) const;
  std::string inst_content(std::span<const ChatMessage> messages, size_t at, const std::string* system) const;
  void write_llama3(Writer& writer, std::span<const ChatMessage> messages, const ChatOptions& options) const;
  void write_chatml(Writer& writer, std::span<const ChatMessage> messages, const ChatOptions& options) const;
  void write_thought(Writer& writer, std::string_view content, bool is_open, bool is_last,
                     const ChatOptions& options) const;

  Family family_ = Family::kChatMl;
  // Llama 2 and Mistral.
  std::string open_, close_;                // around a user's message: "[INST] ", " [/INST]"
  std::string reply_open_, reply_close_;    // around an answer: " ", and behind its end token
  std::string system_open_, system_close_;  // around a system prompt, within a user's message
  bool bos_at_each_turn_ = false, strips_ = false, strips_reply_ = false, system_is_last_ = false;
  // Llama 3.
  bool has_dates_ = false, dates_are_today_ = false;
  std::string date_;
  // ChatML.
  std::string default_system_;
  Thinking thinking_ = Thinking::kNone;
};

}  // namespace wick
