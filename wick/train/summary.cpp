#include "wick/train/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "wick/io/count.h"
#include "wick/train/dataset_file.h"
#include "wick/train/progress.h"

namespace wick {
namespace {

double mean_loss(std::span<const StepRecord> records) {
  double sum = 0;
  for (const StepRecord& r : records) sum += r.loss;
  return sum / double(records.size());
}

// "; validation 0.1500 at step 10, 0.1101 at last, the least 0.1050 at step 80"; empty without validation.
std::string validation_in_words(std::span<const StepRecord> records) {
  std::vector<const StepRecord*> found;
  for (const StepRecord& r : records)
    if (r.val_loss) found.push_back(&r);
  if (found.empty()) return {};
  const StepRecord &first = *found.front(), &last = *found.back();
  if (found.size() == 1) return fmt::format("; validation {:.4f} at step {}", *last.val_loss, last.step);
  const StepRecord& least = **std::ranges::min_element(found, {}, [](const StepRecord* r) { return *r->val_loss; });
  std::string text =
      fmt::format("; validation {:.4f} at step {}, {:.4f} at last", *first.val_loss, first.step, *last.val_loss);
  if (least.step != first.step && least.step != last.step)
    text += fmt::format(", the least {:.4f} at step {}", *least.val_loss, least.step);
  return text;
}

// "0.1234 at first, 0.0987 at last, means of 50 steps": of a tenth of the run at each end, since the noise of single
// steps, which have other pictures and times, is larger than what a run learns. Fewer steps than two such windows have
// one mean.
std::string loss_in_words(std::span<const StepRecord> records) {
  constexpr size_t kFewest = 10;
  if (records.empty()) return "no step was taken";
  const size_t window = std::max(records.size() / 10, kFewest);
  std::string text;
  if (records.size() < 2 * window)
    text = fmt::format("{:.4f}{}", mean_loss(records),
                       records.size() == 1 ? "" : fmt::format(", the mean of {}", count_of(records.size(), "step")));
  else
    text = fmt::format("{:.4f} at first, {:.4f} at last, means of {}", mean_loss(records.first(window)),
                       mean_loss(records.last(window)), count_of(window, "step"));
  return text + validation_in_words(records);
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
  add("Data", fmt::format("{}: {}", run.data, fmt::join(data_paths(config), ", ")));
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
