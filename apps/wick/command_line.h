// The way from argv to CLI11, and from an error back to the flag that it is about.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace wick::cli {

// The words for CLI11, which wants the last one first. `help COMMAND` is `COMMAND --help`, underscores in the names of
// flags are dashes, and a pattern behind --targets that begins with a dash is no flag. Throws UsageError for a command
// or flag that there is none of, the first that was written, with the one that may have been meant.
std::vector<std::string> words_of(const CLI::App& app, int argc, char** argv);

// The message of an error as the command line puts it: one that begins with a path which a flag gave is told with the
// flag, "--val b.jsonl: line 2: …".
std::string with_flag(const CLI::App& app, const std::string& message);

}  // namespace wick::cli
