#include "wick/text/chat.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "wick/core/error.h"
#include "wick/io/file.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/text/conversation.h"
#include "wick/text/named_templates.h"
#include "wick/text/template_traits.h"

namespace wick {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Range = std::pair<size_t, size_t>;

constexpr std::array kRoles{"system", "user", "assistant", "tool", "developer", "function"};
// Arguments of apply_chat_template, which no variable may stand for.
constexpr std::array kArguments{"messages", "tools", "documents", "add_generation_prompt"};

void check_variables(const OrderedJson& variables, const std::string& where) {
  for (const char* name : kArguments)
    check_usage(!variables.contains(name), "{}: the variable \"{}\" is given by Wick; expected others", where, name);
}

OrderedJson variables_of(const std::string& text) {
  if (text.empty()) return OrderedJson::object();
  constexpr const char* kFlag = "--chat-template-kwargs";
  OrderedJson variables;
  try {
    variables = parse_json_in_order(text, kFlag);
  } catch (const Error& e) {
    fail_usage("{}", e.what());
  }
  check_usage(variables.is_object(), "{}: expected a JSON object, for example {{\"enable_thinking\": false}}, found {}",
              kFlag, quote(text));
  check_variables(variables, kFlag);
  return variables;
}

// A template by the name that was asked for.
struct Chosen {
  std::string jinja, tool_use, name;  // tool_use: the text where there are tools, if it is another
};

Chosen chosen_by_model(const Tokenizer& tokenizer, const std::string& source) {
  const auto& all = tokenizer.chat_templates();
  const auto text_of = [&](const char* name) {
    const auto found = all.find(name);
    return found == all.end() ? std::string() : found->second;
  };
  Chosen chosen{text_of("default"), text_of("tool_use"), source};
  check(!chosen.jinja.empty(),
        "{}: no chat template there: choose one by --chat-template, take the model's instruction-tuned variant, or "
        "text without roles (a plain prompt)",
        source);
  return chosen;
}

std::string known_names(const Tokenizer& tokenizer) {
  std::string names;
  const auto add = [&](std::string_view name) { names += fmt::format("{}{}", names.empty() ? "" : ", ", name); };
  for (const auto& [name, text] : tokenizer.chat_templates()) add(name);
  for (const NamedTemplate& each : named_templates()) add(each.name);
  return names;
}

void check_marks(const NamedTemplate& named, const Tokenizer& tokenizer, const std::string& source) {
  for (const std::string_view mark : named.marks) {
    const auto id = tokenizer.id_of(mark);
    check(id && tokenizer.is_control(*id),
          "--chat-template {}: it marks turns with {}, which is no control token of {}", named.name, quote(mark),
          source);
  }
}

Chosen chosen_of(const Tokenizer& tokenizer, const std::string& name, const std::string& source) {
  if (name == ChatOptions::kAuto) return chosen_by_model(tokenizer, source);
  if (const auto found = tokenizer.chat_templates().find(name); found != tokenizer.chat_templates().end())
    return {found->second, "", fmt::format("{}: {}", source, name)};
  for (const NamedTemplate& each : named_templates()) {
    if (each.name != name) continue;
    check_marks(each, tokenizer, source);
    return {std::string(each.jinja), "", name};
  }
  const std::filesystem::path file = name;
  check_usage(std::filesystem::is_regular_file(file), "--chat-template {}: expected one of {}, or a file, found none",
              quote(name), known_names(tokenizer));
  return {read_file(file, jinja::kMaxSourceBytes), "", name};
}

// {% generation %}, as transformers looks for it.
bool has_generation_block(std::string_view jinja) {
  const auto skip = [&](size_t& at, std::string_view all) {
    while (at < jinja.size() && all.find(jinja[at]) != all.npos) ++at;
  };
  for (size_t at = 0; (at = jinja.find("{%", at)) != jinja.npos;) {
    at += 2;
    size_t end = at;
    if (end < jinja.size() && jinja[end] == '-') ++end;
    skip(end, " \t\r\n\v\f");
    if (!jinja.substr(end).starts_with("generation")) continue;
    end += std::string_view("generation").size();
    skip(end, " \t\r\n\v\f");
    if (end < jinja.size() && jinja[end] == '-') ++end;
    if (jinja.substr(end).starts_with("%}")) return true;
  }
  return false;
}

// Whether a text has a word that is no part of a longer name.
bool has_word(std::string_view text, std::string_view word) {
  const auto is_part = [&](size_t at) {
    const auto c = uint8_t(at < text.size() ? text[at] : ' ');
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  for (size_t at = 0; (at = text.find(word, at)) != text.npos; ++at)
    if ((at == 0 || !is_part(at) || !is_part(at - 1)) && (!is_part(at + word.size() - 1) || !is_part(at + word.size())))
      return true;
  return false;
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return size_t(std::ranges::mismatch(a, b).in1 - a.begin());
}

// The end of the last range that ends at `place` or before it.
size_t last_end(const std::vector<Range>& ranges, size_t place) {
  size_t end = 0;
  for (const Range& range : ranges)
    if (range.second <= place) end = std::max(end, range.second);
  return end;
}

std::vector<Range> intersection(const std::vector<Range>& ranges, const std::vector<Range>& others) {
  std::vector<Range> both;
  for (const auto& [start, end] : ranges)
    for (const auto& [other_start, other_end] : others)
      if (std::max(start, other_start) < std::min(end, other_end))
        both.emplace_back(std::max(start, other_start), std::min(end, other_end));
  return both;
}

Conversation first_messages(const Conversation& conversation, size_t count) {
  Conversation first = conversation;
  first.messages.erase(first.messages.begin() + ptrdiff_t(count), first.messages.end());
  return first;
}

}  // namespace

std::tm parse_template_date(const std::string& date) {
  std::tm time{};
  int used = 0;
  const auto reads = [&](const char* form, auto*... values) {
    return std::sscanf(date.c_str(), form, values..., &used) == int(sizeof...(values)) && used == int(date.size());
  };
  const bool is_day = reads("%4d-%2d-%2d%n", &time.tm_year, &time.tm_mon, &time.tm_mday);
  const bool is_time = is_day || reads("%4d-%2d-%2dT%2d:%2d:%2d%n", &time.tm_year, &time.tm_mon, &time.tm_mday,
                                       &time.tm_hour, &time.tm_min, &time.tm_sec);
  time.tm_year -= 1900, time.tm_mon -= 1;
  std::tm normal = time;
  normal.tm_isdst = -1;
  const bool exists = is_time && std::mktime(&normal) != std::time_t(-1) && normal.tm_mday == time.tm_mday &&
                      normal.tm_mon == time.tm_mon && time.tm_hour < 24 && time.tm_min < 60 && time.tm_sec < 60;
  check_usage(exists, "--template-date: expected a date such as 2026-11-27 or 2026-11-27T13:04:05, found {}",
              quote(date));
  return normal;
}

std::string template_date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &local);
  return {text.data(), size};
}

struct ChatTemplate::Loaded {
  struct Template {
    std::string text;
    JinjaTemplate jinja;
    bool has_generation;
    TemplateTraits traits;
  };

  Template parse(const std::string& text, const std::string& name) const {
    JinjaTemplate jinja = JinjaTemplate::parse(text, name);
    TemplateTraits traits = traits_of(jinja, variables, now);
    return {text, std::move(jinja), has_generation_block(text), traits};
  }
  const Template& of(const Conversation& conversation) const {
    return tool_use && !conversation.tools.is_null() ? *tool_use : *plain;
  }

  Tokenizer tokenizer;
  OrderedJson variables;  // special tokens' texts and the options'
  std::tm now;
  std::optional<Template> plain, tool_use;  // the latter for conversations with tools, if it is another
};

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, const ChatOptions& options, const std::string& source) {
  const Chosen chosen = chosen_of(tokenizer, options.name, source);
  OrderedJson variables = OrderedJson::object();
  for (const auto& [name, text] : tokenizer.special_texts()) variables[name] = text;
  variables.update(variables_of(options.variables));
  const std::string date = options.date.empty() ? template_date_now() : options.date;
  Loaded loaded{tokenizer, std::move(variables), parse_template_date(date), {}, {}};
  loaded.plain = loaded.parse(chosen.jinja, chosen.name);
  if (!chosen.tool_use.empty()) loaded.tool_use = loaded.parse(chosen.tool_use, chosen.name + ": tool_use");
  loaded_ = std::make_shared<const Loaded>(std::move(loaded));
}

std::vector<std::string> ChatTemplate::names() {
  std::vector<std::string> names;
  for (const NamedTemplate& each : named_templates()) names.emplace_back(each.name);
  return names;
}

const std::string& ChatTemplate::jinja() const { return loaded_->plain->text; }

const std::string& ChatTemplate::tool_use() const {
  static const std::string none;
  return loaded_->tool_use ? loaded_->tool_use->text : none;
}

bool ChatTemplate::mentions(std::string_view word) const {
  return has_word(jinja(), word) || has_word(tool_use(), word);
}

void ChatTemplate::check_roles(const Conversation& conversation) const {
  for (const OrderedJson& message : conversation.messages) {
    const auto& role = message.at("role").get_ref<const std::string&>();
    const bool is_known = std::ranges::find(kRoles, role) != kRoles.end() || mentions(fmt::format("'{}'", role)) ||
                          mentions(fmt::format("\"{}\"", role));
    check(is_known, "chat: expected a role that the chat template names, or one of {}, found {}",
          fmt::join(kRoles, ", "), quote(role));
  }
}

JinjaText ChatTemplate::render(const Conversation& conversation, bool add_generation_prompt,
                               std::optional<size_t> given) const {
  check(!conversation.messages.empty(), "chat: expected at least one message");
  check_roles(conversation);
  const Loaded::Template& chosen = loaded_->of(conversation);
  OrderedJson variables = OrderedJson::object();
  variables["messages"] = chosen.traits.fitted(conversation.messages);
  variables["tools"] = conversation.tools;
  variables["documents"] = conversation.documents;
  variables["add_generation_prompt"] = add_generation_prompt;
  variables.update(loaded_->variables);
  if (conversation.variables.is_object()) {
    check_variables(conversation.variables, "\"chat_template_kwargs\"");
    variables.update(conversation.variables);
  }
  JinjaOptions options{.now = loaded_->now};
  options.message = given;
  return chosen.jinja.render(variables, options);
}

JinjaText ChatTemplate::render(const Conversation& conversation, bool add_generation_prompt) const {
  return render(conversation, add_generation_prompt, std::nullopt);
}

void ChatTemplate::check_takes(const Conversation& conversation) const {
  const auto check_place = [&](std::string_view key, bool is_given) {
    check(!is_given || mentions(key), "the chat template has no place for {}; take it out, or choose another template",
          quote(key));
  };
  const auto is_given = [](const OrderedJson& value) { return !value.is_null() && !value.empty(); };
  check_place("tools", is_given(conversation.tools));
  check_place("documents", is_given(conversation.documents));
  for (const OrderedJson& message : conversation.messages) {
    const bool has_calls = message.contains("tool_calls") && is_given(message.at("tool_calls"));
    check_place("tool_calls", has_calls);
    const auto thought = message.find("reasoning_content");
    const bool has_thought = thought != message.end() && is_given(*thought) && *thought != "";
    check(!has_thought || mentions("reasoning_content") || mentions("thinking") || mentions("reasoning"),
          "the chat template has no place for \"reasoning_content\"; take it out, or choose another template");
  }
  if (conversation.others.empty()) return;
  for (const std::string& name : render(conversation, false).missing)
    check(std::ranges::find(conversation.others, name) == conversation.others.end(),
          "found the key {}, which the chat template asks for: write it into \"chat_template_kwargs\"", quote(name));
}

// The ids of a text, of which those that overlap the ranges count.
ChatRow ChatTemplate::row(const JinjaText& text, const std::vector<Range>& counted) const {
  std::vector<TextPart> parts;
  size_t from = 0;
  const auto add = [&](size_t end, bool is_given) {
    if (end > from) parts.push_back({std::string_view(text.text).substr(from, end - from), !is_given});
    from = end;
  };
  for (const auto& [start, end] : text.given) add(start, false), add(end, true);
  add(text.text.size(), false);
  std::vector<TextMark> marks;
  size_t done = 0;  // blocks within blocks: as transformers, which looks at the ranges one after the other
  for (const auto& [start, end] : counted) {
    if (end <= done) continue;
    marks.push_back({std::max(start, done)}), marks.push_back({end});
    done = end;
  }
  ChatRow row{loaded_->tokenizer.encode(parts, {.add_special = false}, marks), {}};
  row.counts.resize(row.ids.size(), false);
  for (size_t i = 0; i < marks.size(); i += 2)
    for (size_t token = marks[i].tokens; token < marks[i + 1].end(); ++token) row.counts[token] = true;
  return row;
}

std::vector<int64_t> ChatTemplate::prompt(const Conversation& conversation) const {
  return row(render(conversation), {}).ids;
}

ChatRow ChatTemplate::generated(const Conversation& conversation) const {
  const JinjaText text = render(conversation, false);
  return row(text, text.generated);
}

// The end of what the messages before `turn` wrote, where `text` begins with it.
size_t ChatTemplate::written_before(const Conversation& conversation, size_t turn, const std::string& text) const {
  try {
    const std::string before = turn > 0 ? render(first_messages(conversation, turn), false).text : "";
    return text.starts_with(before) ? before.size() : 0;
  } catch (const Error&) {  // a template may refuse a conversation that ends so
    return 0;
  }
}

// What the message at `turn`, the last one of `text`, added to the prompt that it answers.
ChatTemplate::Range ChatTemplate::answer(const Conversation& conversation, size_t turn,
                                         const JinjaText& rendered) const {
  const std::string& text = rendered.text;
  std::optional<JinjaText> prompt;
  if (turn > 0) {
    try {
      prompt = render(first_messages(conversation, turn), true);
    } catch (const Error&) {  // a template may refuse a conversation that ends so
    }
  }
  if (prompt && text.starts_with(prompt->text)) return {prompt->text.size(), text.size()};
  const std::vector<Range> own = render(first_messages(conversation, turn + 1), false, turn).given;
  const size_t begin = own.empty() ? text.size() : own.front().first;
  if (!prompt) return {begin, text.size()};
  // The template writes the messages before in another way: compare what it writes behind their last text.
  const size_t before = last_end(rendered.given, begin), before_answer = last_end(prompt->given, prompt->text.size());
  const size_t same = common_prefix(std::string_view(text).substr(before, begin - before),
                                    std::string_view(prompt->text).substr(before_answer));
  return {std::max(before + same, written_before(conversation, turn, text)), text.size()};
}

std::vector<ChatRow> ChatTemplate::rows(const Conversation& conversation, TrainTurns turns) const {
  std::vector<size_t> learnt;
  size_t assistants = 0;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    if (conversation.messages[i].at("role") != "assistant") continue;
    ++assistants;
    if (turns == TrainTurns::last) learnt.clear();
    if (conversation.learns.empty() || conversation.learns[i]) learnt.push_back(i);
  }
  check(assistants > 0, "expected a message of the role \"assistant\" to learn from, found none");
  const JinjaText whole = render(conversation, false);
  const bool has_generation = loaded_->of(conversation).has_generation;
  if (has_generation && learnt.size() == assistants) return {row(whole, whole.generated)};
  struct Turn {
    JinjaText text;
    Range answer;
  };
  std::vector<Turn> all;
  bool is_one = true;
  for (const size_t turn : learnt) {
    const bool is_last = turn + 1 == conversation.messages.size();
    JinjaText text = is_last ? whole : render(first_messages(conversation, turn + 1), false);
    const Range range = answer(conversation, turn, text);
    is_one = is_one && whole.text.starts_with(text.text);
    all.push_back({std::move(text), range});
  }
  const auto counted = [&](const JinjaText& text, std::vector<Range> ranges) {
    return has_generation ? intersection(text.generated, ranges) : std::move(ranges);
  };
  std::vector<Range> ranges;
  for (const Turn& turn : all) ranges.push_back(turn.answer);
  if (is_one) return {row(whole, counted(whole, std::move(ranges)))};
  std::vector<ChatRow> rows;
  for (const Turn& turn : all) rows.push_back(row(turn.text, counted(turn.text, {turn.answer})));
  return rows;
}

}  // namespace wick
