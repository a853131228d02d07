// The table of flags behind --help, completions and man pages, made from CLI11's options.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace wick::cli {

struct FlagRow {
  std::vector<std::string> names;  // "-h", "--help"; none of an argument that is told by its place
  std::string value;               // "INT", "FILE", "error|forget", "PATH ..."; empty for a switch
  std::string text;                // what it does
  std::string otherwise;           // what holds where it is not given; empty where there is nothing to tell
  std::string group;
  bool is_required, takes_several;  // several words behind one flag

  bool is_positional() const { return names.empty(); }
};

// The flags of a command that help shows, in their order. An option's description is its text with, at the end and in
// brackets, what holds otherwise: "Draw from so many of the likeliest tokens [0]".
std::vector<FlagRow> flag_table(const CLI::App& command);

bool takes_several(const CLI::Option& option);

// " --lora FILE --output PATH [FLAGS]": what must be given, for a line of usage behind the name of the command.
std::string usage_of(const CLI::App& command);

// The alternatives of a value, by its name in the table, where bars divide them: those in lower case are words as they
// are ("none" of "FOLDER|none").
struct ValueKinds {
  std::vector<std::string> words;
  bool files = false, folders = false, models = false, commands = false;
};
ValueKinds kinds_of(const std::string& value);

// Flags that a command adds from here on are of this group.
void begin_group(CLI::App& command, const std::string& name);

}  // namespace wick::cli
