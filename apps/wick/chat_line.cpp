#include "chat_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "wick/core/error.h"
#include "wick/io/nearest.h"
#include "wick/io/quote.h"

namespace wick::cli {
namespace {

struct Command {
  const char *name, *also;
  ChatAction action;
  const char *argument, *text;  // in brackets where it may be left out
};

constexpr Command kCommands[] = {
    {"/help", "", ChatAction::help, "", "Show these commands"},
    {"/reset", "/new", ChatAction::reset, "", "Forget all that was said, but --system, tools and documents"},
    {"/tools", "", ChatAction::tools, "[FILE]", "Let the model call the tools of a JSON file; alone, name them"},
    {"/result", "", ChatAction::result, "TEXT", "Tell the result of a tool that the model called, which it answers"},
    {"/documents", "", ChatAction::documents, "[FILE]",
     "Give the model the documents of a JSON file; alone, count them"},
    {"/save", "", ChatAction::save, "FILE", "Write what was said as a line of JSON, as `wick train` reads it"},
    {"/exit", "/quit", ChatAction::exit, "", "End the chat, as Ctrl-D does"},
};

const Command& chat_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (name == command.name || name == command.also) return command;
    for (const std::string one : {command.name, command.also})
      if (!one.empty()) names.push_back(one);
  }
  fail("{}: no such command{} (/help lists them; a message that begins with a slash is written with two)",
       excerpt(name), did_you_mean(name, names));
}

}  // namespace

ChatLine parse_chat_line(const std::string& line) {
  if (line.starts_with("//") || line.starts_with(" /")) return {ChatAction::say, line.substr(1)};
  if (!line.starts_with('/')) return {ChatAction::say, line};
  const size_t end = std::min(line.find(' '), line.size());
  const Command& command = chat_command(line.substr(0, end));
  const size_t begin = line.find_first_not_of(' ', end);
  std::string argument = begin == line.npos ? "" : line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
  const bool takes_one = *command.argument != '\0', needs_one = takes_one && *command.argument != '[';
  check(argument.empty() ? !needs_one : takes_one, "{}: expected {} behind it, found {}", command.name,
        takes_one ? command.argument : "nothing", argument.empty() ? "none" : quote(argument));
  return {command.action, std::move(argument)};
}

std::string chat_help() {
  std::string text;
  for (const Command& c : kCommands)
    text += fmt::format("{:<17} {}{}\n", fmt::format("{} {}", c.name, c.argument), c.text,
                        *c.also ? fmt::format(" (also {})", c.also) : "");
  return text + "//etc             Say \"/etc\"\n";
}

}  // namespace wick::cli
