// Scripts by which shells complete the command line of `wick`, made of its tables of flags.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace wick::cli {

// Each completes commands, flags with their other names, words of types such as error|forget, names of models, files
// and folders. `app` is the program with all its commands.
std::string bash_completions(const CLI::App& app);
std::string zsh_completions(const CLI::App& app);
std::string fish_completions(const CLI::App& app);

}  // namespace wick::cli
