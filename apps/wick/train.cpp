// `wick train`.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "commands.h"
#include "model_path.h"
#include "train_flags.h"
#include "wick/train/trainer.h"

namespace wick {
namespace {

constexpr int kInterrupted = 75;  // EX_TEMPFAIL: run it again with --resume

void run_train(cli::TrainFlags& flags) {
  TrainConfig config = flags.config();
  resolve(config);
  if (train(config, cli::resolve_model(config.model)) == RunResult::finished) return;
  std::fflush(stdout);
  std::exit(kInterrupted);
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "train", "Train a LoRA, the UNet or the VAE on pictures, or a LoRA or all of a language model on text");
  const auto flags = std::make_shared<cli::TrainFlags>();
  flags->add_to(*command);
  command->footer("Ends with code 75 where SIGINT, SIGTERM or SIGHUP stopped it: --resume goes on with the same bits.");
  command->callback([flags] { run_train(*flags); });
}

}  // namespace wick
