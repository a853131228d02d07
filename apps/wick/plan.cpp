// `wick plan`: what memory `wick train` would take with the same flags.
#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "model_path.h"
#include "train_flags.h"
#include "wick/backend/registry.h"
#include "wick/train/plan.h"

namespace wick {
namespace {

void print_row(std::string_view name, size_t bytes, const std::string& note = "") {
  fmt::print("  {:<12} {:>10}{}\n", name, readable_bytes(bytes), note.empty() ? "" : "  " + note);
}

void print_plan(const MemoryPlan& plan, const TrainConfig& config, const std::string& device) {
  fmt::print("{}; batches of {}, {}x{} pixels; {}, on {}\n", plan.what, config.batch_size, plan.bucket.width,
             plan.bucket.height, name_of(config.dtype), device);
  print_row("weights", plan.weights);
  print_row("adapter", plan.adapter);
  print_row("optimizer", plan.optimizer);
  print_row("activations", plan.activations, "forward and backward, gradients and scratch among them");
  if (plan.encoding > plan.step())
    print_row("encoding", plan.encoding, "the pictures, before the first step, which takes less");
  if (plan.gaps() > 0) print_row("gaps", plan.gaps(), "between tensors");
  if (plan.device.workspace > 0) print_row("workspace", plan.device.workspace, "allowance for the kernels");
  print_row("beside them", plan.device.context, std::string(plan.device.context_of));
  const std::optional<size_t> free = free_memory(device);
  print_row("total", plan.total(),
            fmt::format("{}; {}", plan.device.is_device ? "what nvidia-smi shows at the peak" : "of the process",
                        free ? readable_bytes(*free) + " are free" : "no such device here"));
}

void run_plan(cli::TrainFlags& flags) {
  TrainConfig config = flags.config();
  resolve(config, {"model"});
  const std::filesystem::path model = cli::resolve_model(config.model);
  // A device is planned for whether it is here or not.
  const std::string device = config.device == "auto"   ? std::string(open_backend("auto").name())
                             : config.device == "cuda" ? "cuda:0"
                                                       : config.device;
  const MemoryPlan plan = plan_memory(config, model, device_kind(device));
  print_plan(plan, config, device);
  for (const Alternative& a : alternatives(config, model, plan))
    fmt::print("with {}: {}\n", a.flags, readable_bytes(a.total));
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plan", "Show what memory a training run would take, without loading it");
  const auto flags = std::make_shared<cli::TrainFlags>();
  flags->add_to(*command);
  command->footer("Takes the flags of `wick train`; --model is enough. Nothing is written.");
  command->callback([flags] { run_plan(*flags); });
}

}  // namespace wick
