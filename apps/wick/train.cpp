// `wick train`: the table of settings as flags. A TOML file comes first, flags win.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "model_path.h"
#include "wick/core/error.h"
#include "wick/train/trainer.h"

namespace wick {
namespace {

constexpr int kInterrupted = 75;  // EX_TEMPFAIL: run it again with --resume

struct TrainFlags {
  std::string config_file;
  std::map<std::string_view, std::vector<std::string>> words;  // by key, for those that were given
  bool bf16 = false, fp16 = false;
};

void add_flag(CLI::App& command, const TrainOption& option, TrainFlags& flags) {
  static const TrainConfig defaults;
  std::string help(option.help);
  const std::string value = option.toml(defaults);
  if (help.back() != ']' && value != "\"\"" && !option.is_switch()) help += fmt::format(" [{}]", value);
  if (option.is_switch()) {
    command.add_flag_callback(
        option.flag(), [&flags, key = option.key] { flags.words[key] = {"true"}; }, help);
    return;
  }
  const auto remember = [&flags, key = option.key](const std::vector<std::string>& words) { flags.words[key] = words; };
  CLI::Option* flag = command.add_option_function<std::vector<std::string>>(option.flag(), remember, help);
  flag->type_name(std::string(option.type()))->type_size(1)->expected(1, option.is_list() ? 4096 : 1);
  flag->allow_extra_args(option.is_list());
  flag->multi_option_policy(option.is_list() ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
}

TrainConfig configured(TrainFlags& flags) {
  check(!(flags.bf16 && flags.fp16), "--bf16 and --fp16: expected one of them");
  if (flags.bf16 || flags.fp16) {
    check(!flags.words.contains("dtype"), "--dtype: expected it, --bf16 or --fp16, found two of them");
    flags.words["dtype"] = {flags.bf16 ? "bf16" : "f16"};
  }
  TrainConfig config;
  if (!flags.config_file.empty()) read_toml(config, flags.config_file);
  for (const TrainOption& option : train_options())
    if (const auto given = flags.words.find(option.key); given != flags.words.end()) option.set(config, given->second);
  return config;
}

void run_train(TrainFlags& flags) {
  TrainConfig config = configured(flags);
  resolve(config);
  if (train(config, cli::resolve_model(config.model)) == RunResult::finished) return;
  std::fflush(stdout);
  std::exit(kInterrupted);
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a LoRA, the UNet or the VAE on a folder of pictures");
  const auto flags = std::make_shared<TrainFlags>();
  command->add_option("--config", flags->config_file, "TOML file of settings, as config.toml of a run; flags win")
      ->type_name("FILE");
  for (const TrainOption& option : train_options()) add_flag(*command, option, *flags);
  command->add_flag("--bf16", flags->bf16, "Frozen weights in bf16, and on a device all arithmetic on them");
  command->add_flag("--fp16", flags->fp16, "Likewise in fp16");
  command->footer("Ends with code 75 where SIGINT or SIGTERM stopped it: --resume goes on with the same bits.");
  command->callback([flags] { run_train(*flags); });
}

}  // namespace wick
