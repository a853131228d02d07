// `wick manual`: man pages.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "commands.h"
#include "flag_table.h"
#include "man_page.h"
#include "validators.h"
#include "wick/io/file.h"

namespace wick {
namespace {

struct ManualArguments {
  std::string command, output;
};

void write_pages(const CLI::App& app, const std::filesystem::path& folder) {
  make_directories(folder);
  const auto write = [&](const CLI::App& command) {
    write_file_atomically(folder / (cli::man_page_name(command) + ".1"), cli::man_page(command));
  };
  write(app);
  for (const CLI::App* command : app.get_subcommands({})) write(*command);
}

void run_manual(const CLI::App& app, const ManualArguments& a) {
  if (!a.output.empty()) return write_pages(app, a.output);
  fmt::print("{}", cli::man_page(a.command.empty() ? app : command_called(a.command, app)));
}

}  // namespace

void add_manual_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("manual", "Print the man page of wick or of a command, or write all of them");
  const auto a = std::make_shared<ManualArguments>();
  cli::begin_group(*command, "Pages");
  CLI::Option* page = command->add_option("command", a->command, "The command whose page is printed [wick itself]")
                          ->type_name("COMMAND");
  command
      ->add_option("--output", a->output,
                   "Folder for all pages, wick.1, wick-train.1 and so on, which replace those there")
      ->type_name("FOLDER")
      ->check(cli::not_empty())
      ->excludes(page);
  command->footer(
      "Examples:\n"
      "  wick manual train | man -l -\n"
      "  wick manual --output ~/.local/share/man/man1   # then: man wick-train");
  command->callback([&app, a] { run_manual(app, *a); });
}

}  // namespace wick
