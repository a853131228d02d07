// The tables of the program itself.
#pragma once

#include <vector>

#include "apps/wick/commands.h"

namespace wick {

struct WholeProgram {
  WholeProgram() { set_up(app); }
  std::vector<const CLI::App*> commands() const {  // and the program itself
    std::vector<const CLI::App*> all{&app};
    for (const CLI::App* command : app.get_subcommands({})) all.push_back(command);
    return all;
  }
  CLI::App app{"", "wick"};
};

}  // namespace wick
