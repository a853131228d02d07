#include "wick/train/foreign/optimizers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "wick/train/foreign/table.h"
#include "wick/train/optimizer.h"

namespace wick {
namespace {

using Kind = OptimizerKind;

// Sources: torch.optim, bitsandbytes 0.50, lion_pytorch 0.2, transformers.optimization, prodigyopt 1.1,
// schedulefree 1.4. bitsandbytes' Adam decays as its AdamW does.
constexpr OptimizerClass kClasses[] = {{"torch", "adamw", Kind::adamw, 0.01},
                                       {"torch", "adam", Kind::adamw, 0, true},
                                       {"bitsandbytes", "adamw", Kind::adamw, 0.01},
                                       {"bitsandbytes", "adamw32bit", Kind::adamw, 0.01},
                                       {"bitsandbytes", "pagedadamw", Kind::adamw, 0.01},
                                       {"bitsandbytes", "pagedadamw32bit", Kind::adamw, 0.01},
                                       {"bitsandbytes", "adam", Kind::adamw},
                                       {"bitsandbytes", "adam32bit", Kind::adamw},
                                       {"bitsandbytes", "pagedadam", Kind::adamw},
                                       {"bitsandbytes", "pagedadam32bit", Kind::adamw},
                                       {"bitsandbytes", "adamw8bit", Kind::adamw8bit, 0.01},
                                       {"bitsandbytes", "pagedadamw8bit", Kind::adamw8bit, 0.01},
                                       {"bitsandbytes", "adam8bit", Kind::adamw8bit},
                                       {"bitsandbytes", "pagedadam8bit", Kind::adamw8bit},
                                       {"lion_pytorch", "lion", Kind::lion},
                                       {"bitsandbytes", "lion", Kind::lion},
                                       {"bitsandbytes", "lion32bit", Kind::lion},
                                       {"bitsandbytes", "pagedlion", Kind::lion},
                                       {"bitsandbytes", "pagedlion32bit", Kind::lion},
                                       {"bitsandbytes", "lion8bit", Kind::lion8bit},
                                       {"bitsandbytes", "pagedlion8bit", Kind::lion8bit},
                                       {"transformers", "adafactor", Kind::adafactor},
                                       {"prodigyopt", "prodigy", Kind::prodigy},
                                       {"schedulefree", "adamwschedulefree", Kind::schedule_free},
                                       {"schedulefree", "radamschedulefree", Kind::radam_schedule_free}};

// Optimizers that Wick lacks, by a part of their names, and what does most of the same.
struct NearestOptimizer {
  std::string_view part, nearest;
};
constexpr NearestOptimizer kNearest[] = {
    {"dadapt", "Prodigy finds the rate too"},
    {"came", "Adafactor has small states too"},
    {"prodigyplus", "Prodigy finds the rate, and AdamWScheduleFree needs no schedule"},
    {"prodigy_plus", "Prodigy finds the rate, and AdamWScheduleFree needs no schedule"},
    {"prodigy", "Prodigy is the nearest"},
    {"automagic", "Prodigy finds the rate too"},
    {"schedulefree", "AdamWScheduleFree is the nearest"},
    {"schedule_free", "AdamWScheduleFree is the nearest"},
    {"lion", "Lion is the nearest"},
    {"8bit", "AdamW8bit has states of 8 bits too"},
    {"", "AdamW is the usual one"}};

// The arguments of constructors. A row without a setting is of one that Wick has not; its value may be `only` that one,
// or any where that is empty.
constexpr int kAdam = 1, kLion = 2, kAdafactor = 4, kProdigy = 8, kFree = 16, kAll = 31, kBits = 32, kTorch = 64;
struct ArgumentRow {
  std::string_view name;
  int families;  // the sum of their numbers
  std::string_view setting, only = {};
};
constexpr ArgumentRow kOptimizerArguments[] = {{"amsgrad", kAdam, "", "false"},
                                               {"args", kBits, "", "none"},
                                               {"beta1", kAdafactor, "", "none"},
                                               {"beta3", kProdigy, "betas"},
                                               {"betas", kAdam + kLion + kProdigy + kFree, "betas"},
                                               {"block_wise", kBits, "", "true"},
                                               {"capturable", kTorch, ""},
                                               {"clip_threshold", kAdafactor, "adafactor_clip_threshold"},
                                               {"d0", kProdigy, "prodigy_d0"},
                                               {"d_coef", kProdigy, "prodigy_d_coef"},
                                               {"decay_rate", kAdafactor, "adafactor_decay_rate"},
                                               {"decouple", kProdigy, "prodigy_decouple"},
                                               {"decoupled_weight_decay", kTorch + kLion, "", "false"},
                                               {"differentiable", kTorch, ""},
                                               {"eps", kAdam + kAdafactor + kProdigy + kFree, "eps"},
                                               {"foreach", kTorch + kFree, ""},
                                               {"fsdp_in_use", kProdigy, "", "false"},
                                               {"fused", kTorch, ""},
                                               {"growth_rate", kProdigy, "prodigy_growth_rate"},
                                               {"is_paged", kBits, ""},
                                               {"maximize", kTorch, "", "false"},
                                               {"min_8bit_size", kBits, "", "4096"},
                                               {"optim_bits", kBits, "", "32"},
                                               {"percentile_clipping", kBits, "", "100"},
                                               {"r", kFree, "schedule_free_r"},
                                               {"relative_step", kAdafactor, "adafactor_relative_step"},
                                               {"safeguard_warmup", kProdigy, "prodigy_safeguard_warmup"},
                                               {"scale_parameter", kAdafactor, "adafactor_scale_parameter"},
                                               {"silent_sgd_phase", kFree, "", "true"},
                                               {"slice_p", kProdigy, "prodigy_slice_p"},
                                               {"use_bias_correction", kProdigy, "prodigy_use_bias_correction"},
                                               {"use_triton", kLion, ""},
                                               {"warmup_init", kAdafactor, "adafactor_warmup_init"},
                                               {"warmup_steps", kFree, "warmup"},
                                               {"weight_decay", kAll, "weight_decay"},
                                               {"weight_lr_power", kFree, "schedule_free_weight_lr_power"}};

int family_of(Kind kind) {
  switch (kind) {
    case Kind::adamw:
    case Kind::adamw8bit:
      return kAdam;
    case Kind::lion:
    case Kind::lion8bit:
      return kLion;
    case Kind::adafactor:
      return kAdafactor;
    case Kind::prodigy:
      return kProdigy;
    case Kind::schedule_free:
    case Kind::radam_schedule_free:
      return kFree;
  }
  return 0;
}

const ArgumentRow* find_argument(const OptimizerClass& known, std::string_view name) {
  const int families =
      family_of(known.kind) + (known.library == "bitsandbytes" ? kBits : 0) + (known.library == "torch" ? kTorch : 0);
  const auto* row = std::ranges::find_if(
      kOptimizerArguments, [&](const ArgumentRow& one) { return one.name == name && (one.families & families) != 0; });
  return row == std::end(kOptimizerArguments) ? nullptr : row;
}

std::string in_small_letters(std::string_view text) {
  std::string low(text);
  std::ranges::transform(low, low.begin(), [](char c) { return char(std::tolower(uint8_t(c))); });
  return low;
}

bool is_same_value(std::string_view a, std::string_view b) {
  const auto x = number_of(a), y = number_of(b);
  return x && y ? *x == *y : a == b;
}

std::vector<std::string> with_beta3(const TrainConfig& config, const Kind kind, const std::string& beta3) {
  const OptimizerRule rule = OptimizerOptions::of(kind).rule;
  std::vector<std::string> betas;
  for (const double beta : config.betas)
    if (betas.size() < 2) betas.push_back(fmt::format("{}", beta));
  if (betas.empty()) betas = {fmt::format("{}", rule.beta1), fmt::format("{}", rule.beta2)};
  if (beta3 != "none") betas.push_back(beta3);
  return betas;
}

}  // namespace

const OptimizerClass* find_optimizer_class(std::string_view name) {
  const std::string low = in_small_letters(name);
  const size_t first = low.find('.'), last = low.rfind('.');
  const std::string library = first == low.npos ? "" : low.substr(0, first);
  const std::string own = last == low.npos ? low : low.substr(last + 1);
  const auto* found = std::ranges::find_if(kClasses, [&](const OptimizerClass& row) {
    return row.name == own && (library.empty() || row.library == library);
  });
  return found == std::end(kClasses) ? nullptr : found;
}

std::string expected_optimizer_class(std::string_view name) {
  const std::string low = in_small_letters(name);
  const auto* nearest = std::ranges::find_if(
      kNearest, [&](const NearestOptimizer& row) { return low.find(row.part) != std::string::npos; });
  return fmt::format(
      "AdamW, AdamW8bit, Lion, Lion8bit, Adafactor, Prodigy, AdamWScheduleFree or RAdamScheduleFree ({})",
      nearest->nearest);
}

void set_optimizer_class(TrainConfig& config, const OptimizerClass& known) {
  config.optimizer = known.kind;
  config.weight_decay = known.weight_decay;
  config.betas.clear();
  config.eps.clear();
  if (known.kind == Kind::prodigy) {
    config.betas = {0.9, 0.999};
    config.prodigy_use_bias_correction = config.prodigy_safeguard_warmup = false;
  }
  if (known.kind == Kind::adafactor) config.adafactor_scale_parameter = config.adafactor_relative_step = true;
}

bool has_optimizer_argument(const OptimizerClass& known, std::string_view name) {
  return find_argument(known, name) != nullptr;
}

OptimizerArgument read_optimizer_argument(const TrainConfig& config, const OptimizerClass& known, std::string_view name,
                                          const std::vector<std::string>& words) {
  std::vector<std::string> values;
  for (const std::string& word : words) values.push_back(in_small_letters(word));
  const ArgumentRow* row = find_argument(known, name);
  const std::string said = fmt::format("{}={}", name, fmt::join(words, ","));
  if (!row) return {.refusal = fmt::format("{} has no such argument: {}", name_of(known.kind), said)};
  if (values.size() == 1 && values[0] == "none" && name != "beta3") return {};
  if (row->setting.empty()) {
    if (row->only.empty() || (values.size() == 1 && is_same_value(values[0], row->only))) return {};
    return {.refusal = fmt::format("Wick's {} has {}={} alone, found {}", name_of(known.kind), name, row->only, said)};
  }
  if (known.is_coupled && name == "weight_decay" && number_of(fmt::format("{}", fmt::join(values, ","))) != 0)
    return {.refusal = fmt::format("of {} it joins the gradients, which Wick's does not; expected 0 or AdamW, found {}",
                                   known.name, said)};
  const bool is_list = option_named(row->setting).is_list();
  const size_t most = !is_list || (name == "eps" && known.kind != Kind::adafactor) ? 1 : 2;
  if (values.size() > most || (name == "betas" && values.size() != 2))
    return {.refusal = fmt::format("{}: expected {}, found {}", name, most == 1 ? "one value" : "two", said)};
  if (name == "beta3") return {row->setting, with_beta3(config, known.kind, values.empty() ? "" : values[0])};
  if (name == "betas" && config.betas.size() == 3 && values.size() == 2)
    values.push_back(fmt::format("{}", config.betas[2]));
  if (name == "growth_rate" && values.size() == 1 && (values[0] == "inf" || values[0] == "infinity")) values = {"0"};
  return {row->setting, values};
}

}  // namespace wick
