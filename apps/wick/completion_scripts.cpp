#include "completion_scripts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "commands.h"
#include "flag_table.h"
#include "wick/pipelines/known_models.h"

namespace wick::cli {
namespace {

// The completions of a value: words, names of models and commands among them, and paths.
struct Offer {
  std::vector<std::string> words;
  bool files, folders;

  bool is_empty() const { return words.empty() && !files && !folders; }
  std::string in_words() const { return fmt::format("{}", fmt::join(words, " ")); }
};

Offer offer_of(const std::string& value, const CLI::App& app) {
  ValueKinds kinds = kinds_of(value);
  const auto add = [&](const std::vector<std::string>& names) {
    kinds.words.insert(kinds.words.end(), names.begin(), names.end());
  };
  if (kinds.models) add(known_model_names());
  if (kinds.commands) add(names_of_commands(app));
  return {.words = std::move(kinds.words), .files = kinds.files, .folders = kinds.folders};
}

// A command's own and those that every command has.
std::vector<FlagRow> rows_of(const CLI::App& command) {
  std::vector<FlagRow> rows = flag_table(command);
  for (FlagRow& row : flag_table(*command.get_parent())) rows.push_back(std::move(row));
  return rows;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size()) text.replace(at, what.size(), by);
  return text;
}

constexpr const char* kBashBegin = R"(_wick() {
  local word=${COMP_WORDS[COMP_CWORD]} command= flags= valued= several= flag= words= paths= at
  ((COMP_CWORD == 1)) || command=${COMP_WORDS[1]}
  [[ $word != = ]] || word=  # of --flag=value, which bash cuts in three
  case $command in
)";

// The flag that the word is a value of, or none.
constexpr const char* kBashFlag = R"(  esac
  for ((at = 2; at < COMP_CWORD; at++)); do
    case ${COMP_WORDS[at]} in
      =) ;;
      -*)
        flag=${COMP_WORDS[at]//_/-}
        [[ " $valued " == *" $flag "* ]] || flag= ;;
      *) [[ " $several " == *" $flag "* ]] || flag= ;;
    esac
  done
  case "$command $flag" in
)";

constexpr const char* kBashEnd = R"(    *) [[ $flag ]] || words=$flags ;;
  esac
  [[ $word != -* ]] || { words=$flags paths=; }
  mapfile -t COMPREPLY < <(
    compgen -W "$words" -- "$word"
    [[ $paths != files ]] || compgen -f -- "$word"
    [[ $paths != folders ]] || compgen -d -- "$word"
  )
  [[ ! $paths ]] || compopt -o filenames 2>/dev/null
}
complete -F _wick wick
)";

std::string bash_flags(const CLI::App& command) {
  std::vector<std::string> flags, valued, several;
  for (const FlagRow& row : rows_of(command)) {
    flags.insert(flags.end(), row.names.begin(), row.names.end());
    if (!row.value.empty()) valued.insert(valued.end(), row.names.begin(), row.names.end());
    if (row.takes_several) several.insert(several.end(), row.names.begin(), row.names.end());
  }
  return fmt::format("    {})\n      flags='{}'\n      valued='{}'\n      several='{}' ;;\n", command.get_name(),
                     fmt::join(flags, " "), fmt::join(valued, " "), fmt::join(several, " "));
}

std::string bash_values(const CLI::App& command) {
  std::string cases;
  for (const FlagRow& row : rows_of(command)) {
    const Offer offer = offer_of(row.value, *command.get_parent());
    if (offer.is_empty()) continue;
    std::vector<std::string> places;
    for (const std::string& name : row.names) places.push_back(fmt::format("'{} {}'", command.get_name(), name));
    if (row.is_positional()) places = {fmt::format("'{} '", command.get_name())};
    const char* paths = offer.files ? " paths=files" : offer.folders ? " paths=folders" : "";
    cases += fmt::format("    {}) words='{}'{} ;;\n", fmt::join(places, " | "), offer.in_words(), paths);
  }
  return cases;
}

std::string zsh_quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

// The part of a specification of _arguments that tells a value: its name, and what is offered.
std::string zsh_value(const FlagRow& row, const CLI::App& app) {
  const Offer offer = offer_of(row.value, app);
  std::string action = " ";
  if (offer.files || offer.folders)
    action = fmt::format(" _wick_{} {}", offer.files ? "files" : "folders", offer.in_words());
  else if (!offer.words.empty())
    action = "(" + offer.in_words() + ")";
  return (row.takes_several ? ":*-*:" : ":") + replaced(row.value, ":", "\\:") + ":" + action;
}

std::string zsh_arguments(const CLI::App& command) {
  const CLI::App& app = *command.get_parent();
  std::string text = fmt::format("    {})\n      _arguments", command.get_name());
  for (const FlagRow& row : rows_of(command)) {
    if (row.is_positional()) text += " \\\n        " + zsh_quoted(zsh_value(row, app));
    const std::string what = "[" + replaced(replaced(replaced(row.text, "\\", "\\\\"), "[", "\\["), "]", "\\]") + "]";
    for (const std::string& name : row.names)
      text += " \\\n        " + zsh_quoted("*" + name + what + (row.value.empty() ? "" : zsh_value(row, app)));
  }
  return text + " ;;\n";
}

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_row(const FlagRow& row, const CLI::App& command) {
  std::string line = fmt::format("complete -c wick -n '__fish_seen_subcommand_from {}'", command.get_name());
  for (const std::string& name : row.names)
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  const Offer offer = offer_of(row.value, *command.get_parent());
  if (!row.value.empty() && !row.is_positional()) line += " -r";
  line += offer.files ? " -F" : " -f";
  if (!offer.words.empty() || offer.folders)
    line += " -a " + fish_quoted(offer.in_words() + (offer.folders ? " (__fish_complete_directories)" : ""));
  return line + " -d " + fish_quoted(row.text) + "\n";
}

std::string title_of(const char* shell) {
  return fmt::format("# Completions of wick {0} for {1}, made by `wick completions {1}`.\n", WICK_VERSION, shell);
}

}  // namespace

std::string bash_completions(const CLI::App& app) {
  std::vector<std::string> own;
  for (const FlagRow& row : flag_table(app)) own.insert(own.end(), row.names.begin(), row.names.end());
  const std::string commands = fmt::format("{}", fmt::join(names_of_commands(app), " "));
  std::string flags = fmt::format("    '') flags='{} help {}' ;;\n", commands, fmt::join(own, " "));
  std::string values = fmt::format("    'help ') words='{}' ;;\n", commands);
  for (const CLI::App* command : app.get_subcommands({})) {
    flags += bash_flags(*command);
    values += bash_values(*command);
  }
  return title_of("bash") + kBashBegin + flags + kBashFlag + values + kBashEnd;
}

std::string zsh_completions(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands +=
        "    " + zsh_quoted(command->get_name() + ":" + replaced(command->get_description(), ":", "\\:")) + "\n";
    cases += zsh_arguments(*command);
  }
  return "#compdef wick\n" + title_of("zsh") + R"(
_wick_files() { compadd -- "$@"; _files }
_wick_folders() { compadd -- "$@"; _files -/ }

_wick() {
  local -a commands=(
)" + commands +
         R"(    'help:Show the flags of a command'
  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  shift words
  ((CURRENT--))
  case $words[1] in
    help) ((CURRENT != 2)) || _describe command commands ;;
)" + cases +
         R"(  esac
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _wick "$@"
else
  compdef _wick wick
fi
)";
}

std::string fish_completions(const CLI::App& app) {
  std::string text = title_of("fish") + "complete -c wick -f\n";
  const std::string first = "complete -c wick -n __fish_use_subcommand -a ";
  for (const CLI::App* command : app.get_subcommands({}))
    text += first + command->get_name() + " -d " + fish_quoted(command->get_description()) + "\n";
  text += first + "help -d 'Show the flags of a command'\n";
  text += fmt::format("complete -c wick -n '__fish_seen_subcommand_from help' -a '{}'\n",
                      fmt::join(names_of_commands(app), " "));
  for (const CLI::App* command : app.get_subcommands({}))
    for (const FlagRow& row : rows_of(*command)) text += fish_row(row, *command);
  return text;
}

}  // namespace wick::cli
