#include "wick/train/foreign/command.h"

#include <algorithm>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/train/config.h"
#include "wick/train/foreign/kohya.h"

namespace wick {
namespace {

constexpr std::string_view kScriptEnding = "train_network.py";

bool is_option(std::string_view word) { return word.size() > 2 && word.starts_with("--"); }

// Splits a script into commands, and each into words.
class ShellReader {
 public:
  ShellReader(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  bool is_at_end() const { return at_ == text_.size(); }

  // The next command; empty if a separator or the end comes first.
  std::vector<std::string> command() {
    std::vector<std::string> words;
    while (!is_at_end()) {
      const char c = text_[at_];
      if (kSeparators.find(c) != kSeparators.npos) {
        ++at_;
        return words;
      }
      if (kSpaces.find(c) != kSpaces.npos)
        ++at_;
      else if (c == '#' && words.empty())
        at_ = std::min(text_.find('\n', at_), text_.size());
      else if (!skip_continuation())
        words.push_back(word());
    }
    return words;
  }

 private:
  static constexpr std::string_view kSpaces = " \t\r", kSeparators = "\n;&|";

  // At the end of a line.
  bool skip_continuation() {
    if (std::string_view("\\^`").find(text_[at_]) == std::string_view::npos) return false;
    const size_t end = std::min(text_.find_first_not_of(kSpaces, at_ + 1), text_.size());
    if (end < text_.size() && text_[end] != '\n') return false;
    at_ = std::min(end + 1, text_.size());
    return true;
  }

  std::string word() {
    std::string word;
    char quote = 0;
    bool has_variable = false;
    for (; !is_at_end(); ++at_) {
      const char c = text_[at_], next = at_ + 1 < text_.size() ? text_[at_ + 1] : '\n';
      const bool escapes = c == '\\' && quote != '\'';
      if (quote == 0 && (kSpaces.find(c) != kSpaces.npos || kSeparators.find(c) != kSeparators.npos)) break;
      if (quote == 0 && escapes && (next == '\n' || next == '\r')) break;
      if (c == quote) {
        quote = 0;
      } else if (quote == 0 && (c == '"' || c == '\'')) {
        quote = c;
      } else if (escapes && std::string_view("\"\\$ '").find(next) != std::string_view::npos) {
        word += next, ++at_;
      } else {
        has_variable = has_variable || (quote != '\'' && (c == '$' || c == '%'));
        word += c;
      }
    }
    const auto line = 1 + std::ranges::count(text_.substr(0, at_), '\n');
    check_usage(quote == 0, "{}: line {}: a quote is left open", source_, line);
    check_usage(!has_variable || !is_in_training_,
                "{}: line {}: expected a plain word, found {} with a variable; write its value", source_, line,
                wick::quote(word));
    is_in_training_ = is_in_training_ || word.ends_with(kScriptEnding);
    return word;
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  bool is_in_training_ = false;
};

// As option files spell it: "--network-dim=8" is network_dim.
std::string key_of(std::string_view word) {
  std::string key(word.substr(2, word.find('=') - 2));
  std::ranges::replace(key, '-', '_');
  return key;
}

bool is_kohya_key(std::string_view key) {
  return key != kScriptKey && std::ranges::find(kohya_keys(), key, &ForeignKey::key) != kohya_keys().end();
}

}  // namespace

std::vector<std::string> words_of_script(std::string_view text, const std::string& source) {
  ShellReader reader(text, source);
  while (!reader.is_at_end()) {
    std::vector<std::string> words = reader.command();
    const auto script = std::ranges::find_if(words, [](const auto& word) { return word.ends_with(kScriptEnding); });
    if (script != words.end()) return {script, words.end()};
  }
  fail_usage("{}: expected a command that starts a training script, as sdxl_{}, found none", source, kScriptEnding);
}

nlohmann::ordered_json tree_of_words(std::span<const std::string> words, const std::string& source) {
  nlohmann::ordered_json tree = nlohmann::ordered_json::object();
  for (size_t at = 0; at < words.size();) {
    const std::string& word = words[at++];
    check_usage(is_option(word), "{}: expected an option that begins with --, found {}", source, quote(word));
    const std::string key = key_of(word);
    check_usage(tree.size() < kMaxOptions, "{}: expected at most {} options", source, kMaxOptions);
    if (const size_t equals = word.find('='); equals != word.npos) {
      tree[key] = word.substr(equals + 1);
      continue;
    }
    nlohmann::ordered_json values = nlohmann::ordered_json::array();
    while (at < words.size() && !is_option(words[at])) values.push_back(words[at++]);
    if (values.empty())
      tree[key] = true;
    else
      tree[key] = values.size() == 1 ? values.front() : values;
  }
  return tree;
}

KohyaWords split_kohya_words(const std::vector<std::string>& words) {
  KohyaWords split;
  bool is_of_kohya = false, in_option = false;
  for (size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word.size() > 1 && word.front() == '-') {
      const std::string key = is_option(word) ? key_of(word) : "";
      const bool has_value = word.find('=') != word.npos || (at + 1 < words.size() && !is_option(words[at + 1]));
      in_option = is_kohya_key(key) && (key != "resume" || has_value);  // Wick's own --resume has no value
      const bool is_spelt_as_theirs = word.substr(0, word.find('=')).find('_') != word.npos;
      is_of_kohya = is_of_kohya || (in_option && is_spelt_as_theirs && !find_option(key));
    }
    (in_option ? split.options : split.others).push_back(word);
  }
  if (!is_of_kohya) return {{}, words};
  return split;
}

}  // namespace wick
