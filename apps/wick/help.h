// The look of --help.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace wick::cli {

// For CLI::App::formatter_fn(): flags by group, in the order in which they were added, with a column for their names
// and texts that are broken to the terminal's width (80 where there is none). Lines of a footer that begin with a space
// stay as they are.
std::string help_of(const CLI::App* app, std::string name, CLI::AppFormatMode mode);

}  // namespace wick::cli
