#include "help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace wick::cli {
namespace {

constexpr size_t kColumn = 30;  // where texts begin

size_t width() {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::clamp<size_t>(size.ws_col, 60, 120) : 80;
}

// Words in lines that begin at `column`, where the first line stands already.
std::string wrapped(const std::string& text, size_t column) {
  std::istringstream words(text);
  std::string lines;
  size_t at = column;
  for (std::string word; words >> word; at += word.size()) {
    if (at > column && at + 1 + word.size() > width()) {
      lines += "\n" + std::string(column, ' ');
      at = column;
    } else if (at > column) {
      lines += " ";
      ++at;
    }
    lines += word;
  }
  return lines + "\n";
}

std::string row(const std::string& name, const std::string& text) {
  const std::string left = "  " + name;
  const bool fits = left.size() + 2 <= kColumn;
  return left + (fits ? std::string(kColumn - left.size(), ' ') : "\n" + std::string(kColumn, ' ')) +
         wrapped(text, kColumn);
}

std::string value_of(const CLI::Option& option) {
  if (option.get_type_size() == 0 || option.get_type_name().empty()) return "";
  return " " + option.get_type_name();
}

// Further names of a flag stand behind its text.
std::string row_of(const CLI::Option& option) {
  if (option.get_positional()) return row(option.get_type_name(), option.get_description());
  std::string name, also;
  for (const std::string& letter : option.get_snames()) name += "-" + letter + ",";
  for (const std::string& word : option.get_lnames()) {
    const bool first = word == option.get_lnames().front();
    (first ? name : also) += (first || also.empty() ? "--" : ", --") + word;
  }
  return row(name + value_of(option), option.get_description() + (also.empty() ? "" : " (also " + also + ")"));
}

std::string usage(const CLI::App& app, const std::string& name) {
  std::string line = "Usage: " + name;
  for (const CLI::Option* option : app.get_options())
    if (option->get_required() && !option->get_positional()) line += " " + option->get_name() + value_of(*option);
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional()) line += value_of(*option);
  return line + (app.get_parent() ? " [FLAGS]\n" : " COMMAND [FLAGS]\n");
}

std::string paragraphs(const std::string& text) {
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);)
    all += line.empty() || line.front() == ' ' ? line + "\n" : wrapped(line, 0);
  return all;
}

}  // namespace

std::string help_of(const CLI::App* app, std::string name, CLI::AppFormatMode) {
  std::string text = wrapped(app->get_description(), 0) + "\n" + usage(*app, name);
  const auto commands = app->get_subcommands({});
  if (!commands.empty()) text += "\nCommands:\n";
  for (const CLI::App* command : commands) text += row(command->get_name(), command->get_description());
  for (const std::string& group : app->get_groups()) {
    std::string rows;
    for (const CLI::Option* option : app->get_options())
      if (option->get_group() == group && !group.empty()) rows += row_of(*option);
    if (!rows.empty()) text += "\n" + group + ":\n" + rows;
  }
  return text + (app->get_footer().empty() ? "" : "\n" + paragraphs(app->get_footer()));
}

}  // namespace wick::cli
