#include "defaults_help.h"

#include <fmt/format.h>

#include "wick/pipelines/model_defaults.h"
#include "wick/train/optimizer.h"

namespace wick::cli {

std::string defaults_help() {
  const TrainConfig training;
  std::string text = fmt::format(
      "Models are trained with rank {0}, alpha {0}, a learning rate of {1} and {2} steps unless told otherwise. The "
      "rest goes by the model (docs/defaults.md):\n",
      TrainConfig::kRank, default_lr(training.optimizer), TrainConfig::kSteps);
  const auto row = [&](auto... cells) {
    text += fmt::format("  {:<18} {:>10}  {:>4}  {:<8}  {:>5}  {:>3}  {:>8}", cells...);
  };
  row("model", "resolution", "T5", "sampler", "steps", "cfg", "guidance");
  for (const auto& [model, resolution, t5_tokens, drawing] : model_defaults()) {
    text += "\n";
    row(model, resolution, t5_tokens > 0 ? fmt::format("{}", t5_tokens) : "-", name_of(drawing.sampler), drawing.steps,
        drawing.cfg, drawing.guidance ? fmt::format("{}", *drawing.guidance) : "-");
  }
  return text;
}

}  // namespace wick::cli
