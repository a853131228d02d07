// `wick completions`: a script for a shell.
#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "completion_scripts.h"
#include "flag_table.h"
#include "validators.h"

namespace wick {

void add_completions_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("completions", "Print a script by which a shell completes wick's command line");
  const auto shell = std::make_shared<std::string>();
  cli::begin_group(*command, "Shell");
  CLI::Option* shells = command->add_option("shell", *shell, "The shell that is to read it")->required();
  cli::set_choices(shells, {"bash", "zsh", "fish"});
  command->footer(
      "A shell that begins later finds its script in such a file; zsh where .zshrc has fpath+=~/.zfunc before "
      "compinit.\n"
      "\n"
      "Examples:\n"
      "  wick completions bash > ~/.local/share/bash-completion/completions/wick\n"
      "  wick completions zsh > ~/.zfunc/_wick\n"
      "  wick completions fish > ~/.config/fish/completions/wick.fish\n"
      "  source <(wick completions bash)   # for this shell alone");
  command->callback([&app, shell] {
    const auto script = *shell == "bash"  ? cli::bash_completions
                        : *shell == "zsh" ? cli::zsh_completions
                                          : cli::fish_completions;
    fmt::print("{}", script(app));
  });
}

}  // namespace wick
