// The way from argv to CLI11, and from an error back to the flag that it is about and to a line on standard error.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace wick::cli {

// The words for CLI11, in its order: the last one first. `help COMMAND` becomes `COMMAND --help`, underscores in the
// names of flags dashes, and a pattern behind --targets that begins with a dash is not a flag. Throws UsageError for
// the first unknown command or flag, with a suggestion.
std::vector<std::string> words_of(const CLI::App& app, int argc, char** argv);

// The message of an error as the command line puts it: one that begins with the path of a flag's value is told with the
// flag, "--val b.jsonl: line 2: …".
std::string with_flag(const CLI::App& app, const std::string& message);

// Prints "wick: MESSAGE" on standard error, as one line without terminal control. Returns the code, for the end of the
// program.
int report(int code, std::string message);

}  // namespace wick::cli
