// The commands of `wick`. Each adds its flags to the program and runs when the command line names it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace wick {

void add_train_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_chat_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_merge_command(CLI::App& app);
void add_convert_command(CLI::App& app);
void add_inspect_command(CLI::App& app);
void add_forward_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_completions_command(CLI::App& app);
void add_manual_command(CLI::App& app);

// Makes an empty app the program: all commands in the order of --help, and the flags that every command has.
void set_up(CLI::App& app);
std::vector<std::string> names_of_commands(const CLI::App& app);
// Throws UsageError, with a suggestion, where there is none of that name.
const CLI::App& command_called(const std::string& name, const CLI::App& app);

}  // namespace wick
