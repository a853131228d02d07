// The look of --help.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace wick::cli {

// For CLI::App::formatter_fn(): flags by group, in the order in which they were added, with a column for their names;
// where there are fewer than 70 columns their texts stand below the names. Lines are broken to the columns that the
// environment variable COLUMNS names, else to the terminal's, else to 80; from 40 to 120. Lines of a footer that begin
// with a space stay as they are.
std::string help_of(const CLI::App* app, std::string name, CLI::AppFormatMode mode);

}  // namespace wick::cli
