#include "commands.h"

#include "help.h"
#include "wick/core/error.h"
#include "wick/io/nearest.h"

namespace wick {

void set_up(CLI::App& app) {
  app.description("Wick trains LoRA adapters for diffusion models and language models, and runs them.");
  app.formatter_fn(cli::help_of);
  app.option_defaults()->group("Flags");
  app.set_help_flag("-h,--help", "Show what there is, of a command too: wick COMMAND --help")->group("Flags");
  app.set_version_flag("-V,--version", "wick " WICK_VERSION, "Show the version")->group("Flags");
  app.require_subcommand(0, 1);
  for (const auto add : {add_train_command, add_plan_command, add_generate_command, add_chat_command, add_eval_command,
                         add_merge_command, add_convert_command, add_inspect_command, add_forward_command,
                         add_doctor_command, add_completions_command, add_manual_command})
    add(app);
  for (CLI::App* command : app.get_subcommands({})) {  // every command gets these flags
    command->get_help_ptr()->group("");
    command->set_version_flag("-V,--version", "wick " WICK_VERSION)->group("");
  }
  app.footer(
      "Ends with 0, with 2 where the command line or a file of settings is wrong in itself, with 1 for files, "
      "models and devices, with 75 where a signal stopped a training run that can go on.\n"
      "\n"
      "Examples:\n"
      "  wick train --model tiny --dataset data/tiny-style --output out --steps 100\n"
      "  wick generate --model tiny --lora out/lora.safetensors \\\n"
      "    --prompt \"a red heart\" --out heart.png\n"
      "  wick train --model flux-dev --dataset pictures --output flux --bf16\n"
      "  wick plan --model sd3.5-large --bf16 --device cuda\n"
      "  wick chat --model tiny-llm");
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

const CLI::App& command_called(const std::string& name, const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands({}))
    if (command->get_name() == name) return *command;
  std::vector<std::string> names = names_of_commands(app);
  names.push_back("help");
  fail_usage("{}: no such command{} (see wick --help)", name, did_you_mean(name, names));
}

}  // namespace wick
