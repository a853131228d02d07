// The look of --help.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace wick::cli {

// Flags by group, in the order in which they were added, with a column for their names and texts that are broken to the
// terminal's width (80 where there is none). Lines of a footer that begin with a space stay as they are.
class Help final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace wick::cli
