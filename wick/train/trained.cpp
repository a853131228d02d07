#include "wick/train/trained.h"

#include <fmt/format.h>

#include <numeric>
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

// Settings that are not resolved have none, nor does one that is a file's.
ByPattern<int64_t> rank_of(const TrainConfig& config) {
  ByPattern<int64_t> rank = config.rank;
  if (rank.value == 0) rank.value = TrainConfig::kRank;
  return rank;
}

const AdapterAlgorithm& algorithm_of(AdapterKind kind) {
  kind = without_magnitudes(kind);
  if (kind == AdapterKind::loha) return loha_algorithm();
  return kind == AdapterKind::lokr ? lokr_algorithm() : lora_algorithm();
}

KronOptions kron_options(const TrainConfig& config) {
  return {.factor = config.lokr_factor > 0 ? config.lokr_factor : -1,
          .full_second = config.lokr_full,
          .decompose_both = config.lokr_decompose_both,
          .unbalanced = config.lokr_unbalanced};
}

// Of the learning rate, by module.
ByPattern<double> shares_of_rate(const TrainConfig& config) {
  ByPattern<double> shares = 1;
  for (const auto& other : config.lr.others) shares.others.push_back({other.pattern, other.value / config.lr.value});
  return shares;
}

// "model.layers.0.mlp.up_proj" of its weight or bias.
std::string_view module_of(std::string_view parameter) { return parameter.substr(0, parameter.rfind('.')); }

}  // namespace

Trained::Trained(const TrainConfig& config, ModuleNames names, std::vector<std::string> default_targets,
                 bool magnitudes_of_inputs)
    : adapter_(
          std::make_unique<Adapter>(LoraConfig{.rank = rank_of(config),
                                               .alpha = config.alpha,
                                               .conv_rank = config.conv_rank,
                                               .conv_alpha = config.conv_alpha,
                                               .rslora = config.rslora,
                                               .rate = shares_of_rate(config),
                                               .up_rate = config.lora_plus,
                                               .targets = !config.from.empty()     ? std::vector<std::string>()
                                                          : config.targets.empty() ? std::move(default_targets)
                                                                                   : config.targets,
                                               .seed = uint64_t(config.seed),
                                               .dropout = float(config.lora_dropout),
                                               .rank_dropout = float(config.rank_dropout),
                                               .module_dropout = float(config.module_dropout),
                                               .most_norm = float(config.scale_weight_norms),
                                               .algorithm = &algorithm_of(config.adapter),
                                               .kron = kron_options(config),
                                               .split = config.split_qkv,
                                               .dora = has_magnitudes(config.adapter),
                                               .magnitudes_of_inputs = magnitudes_of_inputs && !config.dora_on_output},
                                    std::move(names))) {
  if (!config.from.empty()) adapter_->add_file(config.from, 1, /*trainable=*/true);
}

Trained::Trained(const TrainConfig& config, std::string whole)
    : name_(std::move(whole)), rate_(shares_of_rate(config)) {}

std::vector<Parameter> Trained::parameters() const {
  if (adapter_) return adapter_->parameters();
  std::vector<Parameter> all = weights_->parameters();
  for (Parameter& p : all) p.rate = float(rate_.at(module_of(p.name)));
  return all;
}

void Trained::begin_batch(TrainRng& rng, std::optional<uint64_t> number, int64_t samples) const {
  if (!adapter_) return;
  std::vector<int64_t> draws(number ? size_t(samples) : 1);
  std::iota(draws.begin(), draws.end(), int64_t(number ? *number : rng.dropout.reserve(1)));
  adapter_->set_draws(draws);
}

bool Trained::limit() const { return adapter_ && adapter_->limit_norms(); }

void Trained::pause(bool paused) const {
  if (adapter_) adapter_->pause_dropout(paused);
}

std::filesystem::path Trained::save(DType dtype, const WriteLora& write_lora, const WriteWeights& write_weights) const {
  return adapter_ ? write_lora(adapter_->tensors(dtype)) : write_weights(*weights_);
}

std::string Trained::describe() const {
  const std::string count = parameter_count(parameters());
  if (!adapter_) return fmt::format("{}, {}", name_, count);
  const auto [least, most] = adapter_->ranks();
  const std::string rank = least == most ? fmt::format("rank {}", most) : fmt::format("ranks {} to {}", least, most);
  return fmt::format("A {}{} on {}, {}", adapter_->kind(), most > 0 ? " of " + rank : "",
                     count_of(adapter_->module_count(), "module"), count);
}

}  // namespace wick
