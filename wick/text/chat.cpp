#include "wick/text/chat.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/quote.h"

namespace wick {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";

std::string_view strip(std::string_view text, std::string_view characters = kSpaces) {
  const size_t first = text.find_first_not_of(characters);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(characters) + 1 - first);
}

std::string_view strip_front(std::string_view text, std::string_view characters) {
  return text.substr(std::min(text.find_first_not_of(characters), text.size()));
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  constexpr std::array months{"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return fmt::format("{:02} {} {}", local.tm_mday, months[size_t(local.tm_mon)], 1900 + local.tm_year);
}

// Jinja takes both kinds of quotes; here they are all double.
std::string with_double_quotes(std::string_view jinja) {
  std::string out(jinja);
  std::replace(out.begin(), out.end(), '\'', '"');
  return out;
}

bool has(std::string_view jinja, std::string_view mark) { return jinja.find(mark) != jinja.npos; }

// The first text between `before` and `after` within one string literal of the template; empty if there is none.
std::string literal_between(std::string_view jinja, std::string_view before, std::string_view after) {
  for (size_t at = 0; (at = jinja.find(before, at)) != jinja.npos;) {
    const size_t opening = jinja.find_last_of("'\"", at);
    at += before.size();
    std::string text;
    for (size_t i = at; i < jinja.size() && opening != jinja.npos && jinja[i] != jinja[opening]; ++i) {
      if (jinja.substr(i).starts_with(after)) return text;
      if (jinja[i] == '\\' && i + 1 < jinja.size())
        text += jinja[++i] == 'n' ? '\n' : jinja[i];
      else
        text += jinja[i];
    }
  }
  return "";
}

}  // namespace

// Appends to the parts; a part goes on as long as it is of one kind.
class ChatTemplate::Writer {
 public:
  Writer(std::string_view bos_text, std::string_view eos_text) : bos(bos_text), eos(eos_text) {}

  void control(std::string_view text) { add(text, true); }
  void content(std::string_view text) { add(text, false); }
  void set_reply(bool is_reply) { is_reply_ = is_reply; }

  const std::string_view bos, eos;
  std::vector<ChatPart> parts;

 private:
  void add(std::string_view text, bool is_template) {
    if (text.empty()) return;
    const bool goes_on =
        !parts.empty() && parts.back().is_template == is_template && parts.back().is_reply == is_reply_;
    if (!goes_on) parts.push_back({"", is_template, is_reply_});
    parts.back().text += text;
  }

  bool is_reply_ = false;
};

ChatTemplate ChatTemplate::recognize(std::string_view jinja, const std::string& source) {
  check(
      !jinja.empty(),
      "{}: no chat template there: choose one by --chat-template, take the model's instruction-tuned variant, or text "
      "without roles (a plain prompt)",
      source);
  if (has(jinja, "[INST]") && has(jinja, "<<SYS>>")) return llama2(jinja);
  if (has(jinja, "[INST]") && !has(jinja, "[SYSTEM_PROMPT]")) return mistral(jinja);
  if (has(jinja, "<|start_header_id|>") && has(jinja, "<|end_header_id|>")) return llama3(jinja);
  // Only Qwen 3's thoughts are known: answers behind the last question show theirs.
  const bool knows_thoughts = !has(jinja, "</think>") || has(jinja, "last_query_index");
  if (has(jinja, "<|im_start|>") && has(jinja, "<|im_end|>") && knows_thoughts) return chatml(jinja);
  fail(
      "{}: the chat template {} is of no family that Wick knows (Llama 2 and 3, Mistral, ChatML, Qwen 3): choose one "
      "by --chat-template, or use text without roles (a plain prompt)",
      source, quote(jinja.substr(0, 60)));
}

ChatTemplate ChatTemplate::named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> known{{
      {"llama2", "bos_token + '[INST] ' <<SYS>> content.strip()"},
      {"llama3", "<|start_header_id|><|end_header_id|> | trim"},
      {"mistral-v1", "' [INST] ' + ' [/INST]' ' ' + message['content']"},
      {"mistral-v3", "'[INST] ' + '[/INST]' ' ' + message['content']|trim loop.last and system_message"},
      {"mistral-tekken", "'[INST]' '[/INST]' loop.last and system_message"},
      {"chatml", "<|im_start|><|im_end|>"},
      {"qwen3", "<|im_start|><|im_end|> enable_thinking last_query_index </think>"},
  }};
  std::string names;
  for (const auto& [each, marks] : known) {
    if (each == name) return recognize(marks, std::string(name));
    names += fmt::format("{}{}", names.empty() ? "" : ", ", each);
  }
  fail_usage("--chat-template {}: expected one of {}", quote(name), names);
}

ChatTemplate ChatTemplate::of(const Tokenizer& tokenizer, std::string_view name, const std::string& source) {
  if (name == kAuto) return recognize(tokenizer.chat_template(), source);
  const ChatTemplate made = named(name);
  std::vector<const char*> marks;
  if (made.family_ == Family::kChatMl) marks = {"<|im_start|>", "<|im_end|>"};
  if (made.family_ == Family::kLlama3) marks = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  for (const char* mark : marks) {
    const auto id = tokenizer.id_of(mark);
    check(id && tokenizer.is_control(*id),
          "--chat-template {}: it marks turns with {}, which is no control token of {}", name, quote(mark), source);
  }
  return made;
}

ChatTemplate ChatTemplate::llama2(std::string_view jinja) {
  const std::string text = with_double_quotes(jinja);
  ChatTemplate made;
  made.family_ = Family::kLlama2;
  made.open_ = "[INST] ", made.close_ = " [/INST]";
  made.reply_open_ = " ", made.reply_close_ = "";
  made.system_open_ = "<<SYS>>\n", made.system_close_ = "\n<</SYS>>\n\n";
  made.bos_at_each_turn_ = has(text, "bos_token + \"[INST]");
  made.strips_ = has(text, "content.strip()");
  return made;
}

ChatTemplate ChatTemplate::mistral(std::string_view jinja) {
  const std::string text = with_double_quotes(jinja);
  ChatTemplate made;
  made.family_ = Family::kMistral;
  made.open_ = has(text, "\" [INST] \"") ? " [INST] " : has(text, "\"[INST] \"") ? "[INST] " : "[INST]";
  made.close_ = has(text, "\" [/INST]\"") ? " [/INST]" : "[/INST]";
  made.reply_open_ = has(text, "\" \" + message[\"content\"]") ? " " : "";
  made.reply_close_ = has(text, "eos_token + \" \"") ? " " : "";
  made.system_close_ = "\n\n";
  made.strips_reply_ = has(text, "message[\"content\"]|trim") || has(text, "message[\"content\"] | trim");
  made.system_is_last_ = has(text, "loop.last and system_message");
  return made;
}

ChatTemplate ChatTemplate::llama3(std::string_view jinja) {
  const std::string text = with_double_quotes(jinja);
  ChatTemplate made;
  made.family_ = Family::kLlama3;
  made.strips_ = has(text, "trim");
  made.has_dates_ = has(text, "Cutting Knowledge Date: December 2023");
  made.dates_are_today_ = has(text, "strftime_now");
  made.date_ = "26 Jul 2024";
  return made;
}

ChatTemplate ChatTemplate::chatml(std::string_view jinja) {
  ChatTemplate made;
  made.family_ = Family::kChatMl;
  made.default_system_ = literal_between(jinja, "<|im_start|>system\\n", "<|im_end|>");
  if (has(jinja, "</think>")) {
    const bool always = has(jinja, "<|im_start|>assistant\\n<think>\\n'") && !has(jinja, "enable_thinking");
    made.thinking_ = always ? Thinking::kAlways : Thinking::kOptional;
  }
  return made;
}

std::vector<ChatPart> ChatTemplate::render(std::span<const ChatMessage> messages, const ChatOptions& options,
                                           std::string_view bos, std::string_view eos) const {
  check(!messages.empty(), "chat: expected at least one message");
  for (const ChatMessage& message : messages)
    check(message.role == "system" || message.role == "user" || message.role == "assistant",
          "chat: the role {} is not supported; expected system, user or assistant", quote(message.role));
  Writer writer(bos, eos);
  if (family_ == Family::kLlama3)
    write_llama3(writer, messages, options);
  else if (family_ == Family::kChatMl)
    write_chatml(writer, messages, options);
  else
    write_inst(writer, messages);
  return std::move(writer.parts);
}

// A user's message; the first or the last one carries the system prompt too.
std::string ChatTemplate::inst_content(std::span<const ChatMessage> messages, size_t at,
                                       const std::string* system) const {
  std::string content = messages[at].content;
  const bool has_system = system && (system_is_last_ ? at + 1 == messages.size() : at == 0);
  if (has_system) content = system_open_ + *system + system_close_ + content;
  return strips_ ? std::string(strip(content)) : content;
}

// Llama 2 and Mistral: turns in [INST] and [/INST].
void ChatTemplate::write_inst(Writer& writer, std::span<const ChatMessage> messages) const {
  const std::string* system = messages[0].role == "system" ? &messages[0].content : nullptr;
  const auto turns = messages.subspan(system ? 1 : 0);
  check(!turns.empty(), "chat: this model's template has no place for a system prompt without a user's message");
  if (!bos_at_each_turn_) writer.control(writer.bos);
  for (size_t i = 0; i < turns.size(); ++i) {
    const char* expected = i % 2 == 0 ? "user" : "assistant";
    check(turns[i].role == expected, "chat: expected user and assistant in turn, found {} as message {}", turns[i].role,
          i + (system ? 2 : 1));
    if (i % 2 == 0) {
      if (bos_at_each_turn_) writer.control(writer.bos);
      writer.control(open_);
      writer.content(inst_content(turns, i, system));
      writer.control(close_);
      continue;
    }
    writer.set_reply(true);
    writer.control(reply_open_);
    writer.content(strips_ || strips_reply_ ? strip(turns[i].content) : turns[i].content);
    if (family_ == Family::kLlama2) writer.control(" ");
    writer.control(writer.eos);
    writer.set_reply(false);
    writer.control(reply_close_);
  }
}

void ChatTemplate::write_llama3(Writer& writer, std::span<const ChatMessage> messages,
                                const ChatOptions& options) const {
  const auto header = [&](std::string_view role) {
    writer.control(fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role));
  };
  const auto content = [&](std::string_view text) { writer.content(strips_ ? strip(text) : text); };
  writer.control(writer.bos);
  if (has_dates_) {
    const std::string date = !options.date.empty() ? options.date : dates_are_today_ ? today() : date_;
    header("system");
    writer.control(fmt::format("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n", date));
    if (messages[0].role == "system") {
      content(messages[0].content);
      messages = messages.subspan(1);
    }
    writer.control("<|eot_id|>");
  }
  for (const ChatMessage& message : messages) {
    header(message.role);
    writer.set_reply(message.role == "assistant");
    content(message.content);
    writer.control("<|eot_id|>");
    writer.set_reply(false);
  }
  if (options.add_generation_prompt) header("assistant");
}

void ChatTemplate::write_chatml(Writer& writer, std::span<const ChatMessage> messages,
                                const ChatOptions& options) const {
  if (!default_system_.empty() && messages[0].role != "system")
    writer.control("<|im_start|>system\n" + default_system_ + "<|im_end|>\n");
  size_t last_user = messages.size();  // answers behind it keep their thoughts
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].role == "user") last_user = i;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_reply = messages[i].role == "assistant";
    writer.control("<|im_start|>" + messages[i].role + "\n");
    if (is_reply && thinking_ != Thinking::kNone) {
      write_thought(writer, messages[i].content, last_user < i, i + 1 == messages.size(), options);
    } else {
      writer.set_reply(is_reply);
      writer.content(messages[i].content);
    }
    writer.control("<|im_end|>");
    writer.set_reply(false);
    writer.control("\n");
  }
  if (!options.add_generation_prompt) return;
  writer.control("<|im_start|>assistant\n");
  if (thinking_ == Thinking::kAlways) writer.control("<think>\n");
  if (thinking_ == Thinking::kOptional && !options.enable_thinking) writer.control("<think>\n\n</think>\n\n");
}

// Qwen 3: behind the user's last message, the last answer has a thought, possibly empty, and other answers have one if
// it is given; earlier answers are shown without.
void ChatTemplate::write_thought(Writer& writer, std::string_view content, bool is_open, bool is_last,
                                 const ChatOptions& options) const {
  std::string_view thought;
  if (const size_t end = content.rfind("</think>"); end != content.npos) {
    thought = content.substr(0, content.find("</think>"));
    if (const size_t start = thought.rfind("<think>"); start != thought.npos) thought = thought.substr(start + 7);
    content = strip_front(content.substr(end + 8), "\n");
  }
  thought = strip(thought, "\n");
  if (is_open && (is_last || !thought.empty())) {
    // Without thinking, the empty thought is part of the prompt.
    writer.set_reply(options.enable_thinking || !thought.empty());
    writer.control("<think>\n");
    writer.content(thought);
    writer.control("\n</think>\n\n");
    content = strip_front(content, "\n");
  }
  writer.set_reply(true);
  writer.content(content);
}

std::vector<ChatPart> ChatTemplate::render(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                           const ChatOptions& options) const {
  const auto spelling = [&](std::optional<int64_t> id) { return id ? tokenizer.piece(*id) : std::string_view(); };
  return render(messages, options, spelling(tokenizer.bos_id()), spelling(tokenizer.eos_id()));
}

std::string ChatTemplate::text(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                               const ChatOptions& options) const {
  std::string all;
  for (const ChatPart& part : render(tokenizer, messages, options)) all += part.text;
  return all;
}

ChatIds ChatTemplate::encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                             const ChatOptions& options) const {
  const auto parts = render(tokenizer, messages, options);
  ChatIds chat;
  for (size_t first = 0, last = 0; first < parts.size(); first = last) {
    std::vector<TextPart> run;
    for (; last < parts.size() && parts[last].is_reply == parts[first].is_reply; ++last)
      run.push_back({parts[last].text, parts[last].is_template});
    const auto preceding = chat.ids.empty()                        ? Preceding::kNothing
                           : tokenizer.is_control(chat.ids.back()) ? Preceding::kControl
                                                                   : Preceding::kText;
    const auto ids = tokenizer.encode(run, {.add_special = false, .preceding = preceding});
    chat.ids.insert(chat.ids.end(), ids.begin(), ids.end());
    chat.is_reply.resize(chat.ids.size(), parts[first].is_reply);
  }
  return chat;
}

}  // namespace wick
