#include "wick/train/trained.h"

#include <fmt/format.h>

#include <utility>

#include "wick/io/count.h"

namespace wick {
namespace {

std::string parameter_count(const std::vector<Parameter>& parameters) {
  int64_t count = 0;
  for (const Parameter& p : parameters) count += p.value.numel();
  return count < 1'000'000 ? fmt::format("{}", count_of(count, "parameter"))
                           : fmt::format("{:.2f} M parameters", double(count) / 1e6);
}

}  // namespace

Trained::Trained(const TrainConfig& config, ModuleNames names, std::vector<std::string> default_targets)
    : name_(fmt::format("A LoRA of rank {}", config.rank)),
      adapter_(std::make_unique<Adapter>(
          LoraConfig{.rank = int(config.rank),
                     .alpha = float(config.alpha),
                     .targets = config.targets.empty() ? std::move(default_targets) : config.targets,
                     .seed = uint64_t(config.seed),
                     .dropout = float(config.lora_dropout)},
          std::move(names))) {}

Trained::Trained(std::string whole) : name_(std::move(whole)) {}

std::vector<Parameter> Trained::parameters() const {
  return adapter_ ? adapter_->parameters() : weights_->parameters();
}

void Trained::begin_batch(TrainRng& rng) const {
  if (adapter_) adapter_->set_draw(int64_t(rng.dropout.reserve(1)));
}

void Trained::pause(bool paused) const {
  if (adapter_) adapter_->pause_dropout(paused);
}

std::filesystem::path Trained::save(DType dtype, const WriteLora& write_lora, const WriteWeights& write_weights) const {
  return adapter_ ? write_lora(adapter_->tensors(dtype)) : write_weights(*weights_);
}

std::string Trained::describe() const {
  const std::string count = parameter_count(parameters());
  if (!adapter_) return fmt::format("{}, {}", name_, count);
  return fmt::format("{} on {}, {}", name_, count_of(adapter_->module_count(), "module"), count);
}

}  // namespace wick
