#include "command_line.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "commands.h"
#include "flag_table.h"
#include "train_flags.h"
#include "wick/core/error.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"
#include "wick/train/foreign/command.h"

namespace wick::cli {
namespace {

bool is_dashed(std::string_view word) { return word.size() > 1 && word.front() == '-'; }

std::vector<std::string> names_of_flags(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// A command that takes flags of kohya's scripts gets each word of them with a flag of its own.
std::vector<std::string> with_kohya_words(const CLI::App& app, const std::vector<std::string>& words) {
  const auto takes_them = [&](const CLI::App* command) {
    return !words.empty() && command->get_name() == words.front() && command->get_option_no_throw(kKohyaWordFlag);
  };
  if (app.get_subcommands(takes_them).empty()) return words;
  KohyaWords split = split_kohya_words(words);
  for (const std::string& word : split.options) split.others.push_back(fmt::format("{}={}", kKohyaWordFlag, word));
  return split.others;
}

// Takes the words of one command in the order in which they were written.
class Reader {
 public:
  Reader(const CLI::App& app, std::vector<std::string> words) : app_(&app), left_(std::move(words)) {
    std::reverse(left_.begin(), left_.end());
  }

  std::vector<std::string> read() {
    if (!left_.empty() && left_.back() == "help") help();
    while (!left_.empty()) take_word();
    std::reverse(words_.begin(), words_.end());
    return words_;
  }

 private:
  bool in_command() const { return app_->get_parent() != nullptr; }
  std::string help_of() const { return in_command() ? "wick " + app_->get_name() + " --help" : "wick --help"; }

  std::string next() {
    std::string word = std::move(left_.back());
    left_.pop_back();
    return word;
  }

  // `help` and `help COMMAND`
  void help() {
    next();
    if (left_.empty()) return left_.push_back("--help");
    check_usage(left_.size() == 1, "help: expected one command, found {} words (see wick --help)", left_.size());
    left_.insert(left_.begin(), "--help");
  }

  void take_word() {
    const std::string word = next();
    if (word == "--") {  // no flag follows
      words_.push_back(word);
      while (!left_.empty()) words_.push_back(next());
    } else if (is_dashed(word)) {
      take_flag(word);
    } else {
      take_plain(word);
    }
  }

  // A command, an argument by its place, or one more value of a list.
  void take_plain(const std::string& word) {
    words_.push_back(word);
    if (!in_command()) {
      app_ = &command_called(word, *app_);
      return;
    }
    const auto options = app_->get_options([](const CLI::Option* option) { return option->get_positional(); });
    const bool is_wanted = in_list_ || positionals_++ < options.size();
    check_usage(is_wanted, "{}: expected a flag{} (see {})", word, did_you_mean(word, names_of_flags(*app_)),
                help_of());
  }

  const CLI::Option* flag_of(std::string word, std::string* name = nullptr) const {
    word.erase(std::min(word.find('='), word.size()));
    if (word.starts_with("--")) std::replace(word.begin(), word.end(), '_', '-');
    if (name) *name = word;
    return is_dashed(word) ? app_->get_option_no_throw(word) : nullptr;
  }

  void take_flag(const std::string& word) {
    const size_t equals = std::min(word.find('='), word.size());
    std::string name;
    const CLI::Option* flag = flag_of(word, &name);
    if (!flag)
      fail_usage("{}: no such flag{} (see {})", word.substr(0, equals), did_you_mean(name, names_of_flags(*app_)),
                 help_of());
    in_list_ = takes_several(*flag);
    const bool wants_value = flag->get_items_expected_min() > 0 && equals == word.size();
    if (wants_value && !left_.empty())
      check_usage(!flag_of(left_.back()), "{}: expected {}, found the flag {} (see {})", name, flag->get_type_name(),
                  left_.back(), help_of());
    if (name == "--targets" && wants_value) return take_targets();
    words_.push_back(name + word.substr(equals));
    if (wants_value && !left_.empty()) words_.push_back(next());
  }

  // CLI11 takes every word with a dash before it for a flag; here it may be a pattern that excludes. Each gets a flag
  // of its own.
  void take_targets() {
    if (left_.empty()) words_.push_back("--targets");
    while (!left_.empty() && !left_.back().starts_with("--") && !flag_of(left_.back()))
      words_.push_back("--targets=" + next());
  }

  const CLI::App* app_;            // the command, once it has been named
  std::vector<std::string> left_;  // the next one last
  std::vector<std::string> words_;
  size_t positionals_ = 0;
  bool in_list_ = false;  // behind a flag that takes several values
};

// Whether a message is about a file or folder, or about something in it.
bool is_about(std::string_view message, std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (path.empty() || !message.starts_with(path)) return false;
  message.remove_prefix(path.size());
  return message.starts_with(':') || message.starts_with('/');
}

// As a flag gave it, or a setting that was made absolute; FILE:STRENGTH stands for its file.
bool is_about_word(std::string_view message, const std::string& word) {
  for (const std::string& path : {word, word.substr(0, word.rfind(':'))}) {
    std::error_code error;
    if (is_about(message, path) ||
        is_about(message, absolute(std::filesystem::path(path), error).lexically_normal().string()))
      return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> words_of(const CLI::App& app, int argc, char** argv) {
  return Reader(app, with_kohya_words(app, {argv + 1, argv + std::max(argc, 1)})).read();
}

std::string with_flag(const CLI::App& app, const std::string& message) {
  std::string flag;
  size_t longest = 0;
  for (const CLI::App* command : app.get_subcommands())
    for (const CLI::Option* option : command->get_options())
      for (const std::string& word : option->results())
        if (word.size() > longest && option->get_name().starts_with("--") && is_about_word(message, word)) {
          flag = option->get_name() + " ";
          longest = word.size();
        }
  return flag + message;
}

int report(int code, std::string message) {
  while (!message.empty() && message.back() == '\n') message.pop_back();
  std::replace_if(
      message.begin(), message.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  std::fputs(("wick: " + printable(message) + "\n").c_str(), stderr);  // its failure cannot be reported
  return code;
}

}  // namespace wick::cli
