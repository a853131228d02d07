#include "wick/train/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "wick/io/count.h"
#include "wick/train/progress.h"

namespace wick {
namespace {

double mean_loss(std::span<const StepRecord> records) {
  double sum = 0;
  for (const StepRecord& r : records) sum += r.loss;
  return sum / double(records.size());
}

// "0.1234 at first, 0.0987 at last, means of 50 steps; validation 0.1101"
std::string loss_in_words(std::span<const StepRecord> records) {
  if (records.empty()) return "no step was taken";
  const size_t window = std::max<size_t>(records.size() / 20, 1);
  std::string text =
      fmt::format("{:.4f} at first, {:.4f} at last", mean_loss(records.first(window)), mean_loss(records.last(window)));
  if (window > 1) text += fmt::format(", means of {}", count_of(window, "step"));
  const StepRecord *least = nullptr, *last = nullptr;
  for (const StepRecord& r : records)
    if (r.val_loss) {
      last = &r;
      if (!least || *r.val_loss < *least->val_loss) least = &r;
    }
  if (last) text += fmt::format("; validation {:.4f}", *last->val_loss);
  if (least != last) text += fmt::format(", the least {:.4f} at step {}", *least->val_loss, least->step);
  return text;
}

}  // namespace

std::string command_for_result(const TrainConfig& config, ModelKind kind, const std::filesystem::path& result,
                               const std::string& prompt) {
  std::string model;
  if (config.train != TrainMode::lora) {
    model = " --model " + shell_word(result.string());
  } else {
    if (!config.model.empty()) model = " --model " + shell_word(config.model);
    for (const auto& [part, path] : model_files(config).parts) model += " " + part_flag(part) + " " + shell_word(path);
    model += " --lora " + shell_word(result.string());
  }
  if (kind == ModelKind::text) return "wick chat" + model;
  return fmt::format("wick generate{} --prompt {} --out picture.png", model,
                     prompt.empty() ? "TEXT" : shell_word(prompt));
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::vector<std::string> summary_of(const RunSummary& run, const TrainConfig& config, ModelKind kind,
                                    std::span<const StepRecord> records) {
  const std::filesystem::path output = config.output;
  const auto in_output = [&](const char* file) { return (output / file).string(); };
  std::vector<std::string> lines;
  const auto add = [&](const char* what, const std::string& text) {
    lines.push_back(fmt::format("{:<9} {}", what, text));
  };
  add("Trained", run.trained);
  add("Model", config.model.empty() ? config.transformer : config.model);
  add("Data", fmt::format("{}: {}", run.data, fmt::join(config.dataset, ", ")));
  add("Steps", fmt::format("{}, in {}: {}", run.steps, duration(run.seconds), run.speed));
  add("Loss", loss_in_words(records));
  add("Memory", run.memory);
  add("Result",
      run.result.string() +
          (run.saved_before > 0 ? fmt::format(", and {} from before it", count_of(run.saved_before, "result")) : ""));
  add("Page", in_output("index.html"));
  if (!run.prompt.empty()) add("Previews", in_output(kind == ModelKind::text ? "samples" : "samples/sheet.png"));
  const bool is_for_comfyui = kind == ModelKind::pictures && config.train == TrainMode::lora;
  add("Next", command_for_result(config, kind, run.result, run.prompt) +
                  (is_for_comfyui ? "; for ComfyUI copy the LoRA to models/loras" : ""));
  return lines;
}

}  // namespace wick
