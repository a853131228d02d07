#include "wick/nn/adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "wick/io/gguf.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/nn/adapter_source.h"
#include "wick/nn/dora.h"
#include "wick/nn/glob.h"
#include "wick/nn/named_seed.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {

namespace {

constexpr int64_t kMostDraws = 4096;  // samples of a batch

// The pattern of all modules of a path's kind: "unet.*.attn1.to_q" for "unet.down_blocks.1.attentions.0.attn1.to_q".
std::string kind_of(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size(); begin += parts.back().size() + 1)
    parts.push_back(path.substr(begin, path.find('.', begin) - begin));
  const auto is_number = [](const std::string& part) { return part.find_first_not_of("0123456789") == part.npos; };
  size_t tail = parts.size();  // its last two names, and numbers among them
  for (int names = 0; tail > 1 && names < 2;) names += is_number(parts[--tail]) ? 0 : 1;
  std::string kind = parts.front() + (tail > 1 ? ".*" : "");
  for (size_t i = std::max<size_t>(tail, 1); i < parts.size(); ++i) kind += is_number(parts[i]) ? ".*" : "." + parts[i];
  return kind;
}

// The pattern of all modules like that of a path: "transformer.double_blocks.*.img_mlp.0".
std::string pattern_of(const std::string& path) {
  std::string pattern;
  for (size_t begin = 0, end = 0; end != path.npos; begin = end + 1) {
    end = path.find('.', begin);
    const std::string part = path.substr(begin, end - begin);
    const bool is_number = part.find_first_not_of("0123456789") == part.npos && end != path.npos;
    pattern += (begin == 0 ? "" : ".") + (is_number ? "*" : part);
  }
  return pattern;
}

// A target's pattern: the "-" in front of an excluding one is no part of it.
std::string without_sign(const std::string& target) { return target.substr(target.starts_with('-') ? 1 : 0); }

bool drops_out(const LoraConfig& config) {
  return config.dropout > 0 || config.rank_dropout > 0 || config.module_dropout > 0;
}

// The key under which a factor is written.
std::string key_of(const AdapterModule& module, size_t factor) {
  return module.name + std::string(module.algorithm->factors()[factor].suffixes.front());
}

}  // namespace

bool ModuleRows::overlap(const ModuleRows& other) const {
  const auto end = [](const ModuleRows& rows) { return rows.first() + int(rows.parts.size()); };
  return first() * other.of < end(other) * of && other.first() * of < end(*this) * other.of;
}

std::filesystem::path lora_weights(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return path;
  const std::filesystem::path diffusers = path / "pytorch_lora_weights.safetensors";
  const std::filesystem::path peft = path / kPeftWeights;
  return std::filesystem::exists(diffusers) && !std::filesystem::exists(peft) ? diffusers : peft;
}

std::vector<std::string> Adapter::notes_on(const LoraFile& file) {
  if (!file.tensors && GgufFile::is_gguf(file.path)) return {};  // it is read when its model is known
  return AdapterSource::open(file, /*trainable=*/false).notes();
}

std::vector<std::string> Adapter::notes_on_merging(const LoraFile& file) {
  const AdapterSource opened = AdapterSource::open(file, /*trainable=*/false);
  const std::vector<std::string> words = opened.words();
  if (words.empty()) return {};
  return {fmt::format("{}: what it teaches of the {} {} stays behind, for it is no part of any weight", opened.name(),
                      words.size() == 1 ? "word" : "words", first_few(words))};
}

Adapter::Adapter(LoraConfig config, ModuleNames names)
    : config_(std::move(config)), names_(std::move(names)), pattern_uses_(config_->targets.size()) {
  const auto check_rank = [](int64_t rank) { check(rank > 0, "LoRA: the rank should be at least 1, found {}", rank); };
  const auto check_alpha = [](double alpha) {
    check(std::isfinite(alpha) && alpha >= 0, "LoRA: alpha should be a positive number, found {}", alpha);
  };
  check_rank(config_->rank.value);
  for (const auto& other : config_->rank.others) check_rank(other.value);
  check_alpha(config_->alpha.value);
  for (const auto& other : config_->alpha.others) check_alpha(other.value);
  for (const float p : {config_->dropout, config_->rank_dropout, config_->module_dropout})
    check(p >= 0 && p < 1, "LoRA: dropout should be from 0 to below 1, found {}", p);
}

bool AdapterModule::is_trained() const {
  return std::ranges::any_of(all_factors(), [](const AdapterFactor* factor) { return factor->value.tracked(); });
}

std::string AdapterModule::kind() const {
  return magnitude.factor.value && algorithm == &lora_algorithm() ? "DoRA" : algorithm->name();
}

std::vector<const AdapterFactor*> AdapterModule::all_factors() const {
  std::vector<const AdapterFactor*> all;
  for (const AdapterFactor& factor : factors) all.push_back(&factor);
  all.push_back(&magnitude.factor);
  return all;
}

void AdapterAlgorithm::limit_norm(const AdapterModule& module, float) const {
  fail("{}: the norm of a {} is not limited", module.name, name());
}

void AdapterAlgorithm::add(AdapterModule& module, const AdapterModule&) const {
  fail("{}: a {} is not added to another", module.name, name());
}

void AdapterAlgorithm::widen(AdapterModule& module, int64_t, int64_t) const {
  fail("{}: a {} is not widened", module.name, name());
}

std::vector<Tensor> AppliedAlgorithm::fresh(const LoraTarget&, const FreshOptions&, Rng&, Memory&) const {
  fail("a {} is applied, and not trained", name());
}

void check_shape(const AdapterFactor& factor, const Shape& wanted, const std::string& file) {
  check(factor.value.shape() == wanted, "{}: {} should have shape {} for this model, found {}", file, quote(factor.key),
        wanted, factor.value.shape());
}

void check_weight_shape(const AdapterFactor& factor, const LoraTarget& t, const std::string& file) {
  const Shape matrix{t.out, t.in}, convolution{t.out, t.in, t.kernel, t.kernel};
  if (t.kernel > 1 || factor.value.shape() != matrix)
    check_shape(factor, t.conv || factor.value.rank() == 4 ? convolution : matrix, file);
}

Tensor weight_from_file(const Tensor& value, const AdapterModule& module) {
  const LoraTarget& t = module.target;
  const Tensor ordered = reordered(value, inverse(module.order));
  return t.kernel > 1 ? contiguous(permute(ordered, {0, 2, 3, 1})) : reshape(ordered, {t.out, t.in});
}

void AdapterFactor::place(Memory& memory) {
  if (&value.memory() == &memory) return;
  const Tensor moved = value.to(memory);
  value = value.tracked() ? moved.trainable() : moved;
}

Adapter::Adapter(ModuleNames names, const std::vector<LoraFile>& files, bool trainable) : names_(std::move(names)) {
  for (const LoraFile& file : files) add_file(file, trainable);
}

Adapter::Adapter(ModuleNames names, const std::vector<std::vector<LoraFile>>& sets)
    : names_(std::move(names)), set_count_(sets.size()) {
  for (size_t set = 0; set < sets.size(); ++set)
    for (const LoraFile& file : sets[set]) add_file(file, /*trainable=*/false, set);
}

void Adapter::add_file(const LoraFile& file, bool trainable, size_t set) {
  files_.push_back({std::make_shared<AdapterSource>(AdapterSource::open(file, trainable)), set});
}

bool Adapter::is_targeted(const std::string& path, const std::string& also) const {
  const auto& targets = config_->targets;
  const auto last = std::find_if(targets.rbegin(), targets.rend(), [&](const std::string& target) {
    return is_targeted_by(without_sign(target), path) || (!also.empty() && is_targeted_by(without_sign(target), also));
  });
  return last != targets.rend() && !last->starts_with('-');
}

void Adapter::note_patterns(const std::string& path, const std::vector<ModuleName>& names) {
  ++kinds_[kind_of(path)];
  for (size_t i = 0; i < config_->targets.size(); ++i) {
    const std::string pattern = without_sign(config_->targets[i]);
    const auto is_diffusers = [&](const ModuleName& other) {
      return config_->split && other.spelling == Spelling::diffusers && is_targeted_by(pattern, other.name);
    };
    if (is_targeted_by(pattern, path) || std::ranges::any_of(names, is_diffusers)) {
      pattern_uses_[i].fits = true;
    } else if (std::ranges::any_of(names, [&](const ModuleName& other) {
                 return is_targeted_by(pattern, other.name) || is_targeted_by(pattern + "*", other.name);
               })) {
      pattern_uses_[i].meant.insert(pattern_of(path));
    }
  }
}

// Those that are targeted. Diffusers' names of a part come before OneTrainer's, which need its order of outputs.
std::vector<Adapter::Trainable> Adapter::trainable(const std::string& path,
                                                   const std::vector<ModuleName>& names) const {
  if (!config_ || names.empty()) return {};
  std::vector<Trainable> all;
  std::string also;
  for (const ModuleName& name : names) {
    if (!config_->split) break;
    if (name.spelling == Spelling::diffusers) also = name.name;
    if (name.spelling == Spelling::onetrainer && std::ranges::is_sorted(name.rows.parts)) all.push_back({name, also});
  }
  if (all.empty()) all.push_back({names.front(), also});
  std::erase_if(all, [&](const Trainable& part) { return !is_targeted(path, part.also); });
  return all;
}

AdapterModule Adapter::fresh(const Trainable& part, const LoraSite& site, Memory& memory) const {
  const LoraConfig& c = *config_;
  const std::string& name = part.name.name;
  LoraTarget target = site.target;
  target.out = target.out / part.name.rows.of * int64_t(part.name.rows.parts.size());
  const bool own = target.kernel > 1 && c.conv_rank > 0;  // a rank for convolutions
  const int64_t* const given_rank = c.rank.other(site.path, part.also);
  const double* const given_alpha = c.alpha.other(site.path, part.also);
  const int64_t rank = given_rank ? *given_rank : own ? c.conv_rank : c.rank.value;
  double alpha = given_alpha ? *given_alpha : own ? c.conv_alpha : c.alpha.value;
  if (alpha == 0) alpha = double(rank);
  Rng rng(named_seed(c.seed, name), Stream::init);
  AdapterModule module{name, target, c.algorithm};
  module.first = site.target.out / part.name.rows.of * part.name.rows.first();
  module.also = part.also;
  for (const Tensor& value : c.algorithm->fresh(target, {rank, c.kron}, rng, memory))
    module.factors.push_back(value ? AdapterFactor{key_of(module, module.factors.size()), value.trainable()}
                                   : AdapterFactor());
  if (c.dora)
    module.magnitude = fresh_magnitude(target, c.magnitudes_of_inputs, name + std::string(kMagnitudeKey), memory);
  // Files have an alpha that the rank divides.
  module.alpha = float(c.rslora ? alpha * std::sqrt(double(rank)) : alpha);
  module.scale = c.algorithm->rank(module) > 0 ? module.alpha / float(rank) : 1;
  return module;
}

void Adapter::check_base(const LoraSite& site) const {
  for (const auto& [file, set] : files_) file->check_base(names_(site.path), site);
}

// A module as some files have it; several files' if they are not trained.
struct Adapter::Part {
  AdapterModule module;
  const AdapterSource* file;

  bool overlaps(const Part& other) const {
    return module.first < other.module.end() && other.module.first < module.end();
  }
  bool contains(const Part& other) const {
    return module.first <= other.module.first && other.module.end() <= module.end();
  }
  bool adds_up() const { return module.algorithm->stacks() && !module.magnitude.factor.value; }

  // For parts of the same rows.
  static void check_apart(const Part& a, const Part& b) {
    const AdapterSource &alone = a.file->is_trainable() ? *a.file : *b.file,
                        &other = a.file->is_trainable() ? *b.file : *a.file;
    check(!alone.is_trainable(), "{}: its module {} is also in {}, but it is to be trained alone", alone.name(),
          a.module.name, other.name());
    check(!a.module.changes_base || !b.module.changes_base,
          "{}: its module {} is also in another LoRA, and PEFT takes parts out of the base for both (PiSSA, OLoRA)",
          b.file->name(), a.module.name);
  }
  static void add(Part part, std::vector<Part>& parts) {
    while (true) {
      const auto overlaps = [&](const Part& earlier) { return earlier.overlaps(part); };
      const auto last = std::find_if(parts.rbegin(), parts.rend(), overlaps);
      if (last == parts.rend()) break;
      check_apart(*last, part);
      if (!last->adds_up() || !part.adds_up()) break;
      if (last->contains(part)) {  // which stays below those behind it
        *last = sum(std::move(*last), std::move(part));
        return;
      }
      part = sum(std::move(*last), std::move(part));
      parts.erase(std::next(last).base());
    }
    parts.push_back(std::move(part));
  }
  // The changes of both, of which one lies within the rows of the other.
  static Part sum(Part a, Part b) {
    AdapterModule &sum = a.module, &rest = b.module;
    const bool grows = rest.target.out > sum.target.out;
    AdapterModule& narrow = grows ? sum : rest;
    const AdapterModule& wide = grows ? rest : sum;
    if (narrow.target.out < wide.target.out) narrow.algorithm->widen(narrow, wide.first, wide.target.out);
    if (grows) sum.name = rest.name;
    sum.algorithm->add(sum, rest);
    sum.changes_base |= rest.changes_base;
    return a;
  }
};

// In the order in which they apply. LoRAs on the same rows with nothing else between them become one.
Adapter::Modules Adapter::from_files(const std::vector<ModuleName>& names, const LoraSite& site, size_t set) {
  std::vector<Part> parts;
  for (const auto& [file, its_set] : files_) {
    if (its_set != set) continue;
    for (const ModuleName* found : file->find(names))
      for (AdapterModule& module : file->read(names.front().name, *found, site))
        Part::add({std::move(module), file.get()}, parts);
    if (site.tied)
      for (AdapterModule& module : file->read_tied(names.front().name, site))
        Part::add({std::move(module), file.get()}, parts);
  }
  Modules modules;
  for (Part& part : parts) {
    part.module.set = set;
    modules.push_back(std::move(part.module));
  }
  return modules;
}

Adapter::Modules* Adapter::modules_at(const LoraSite& site, Memory& memory) {
  check(!modules_.contains(site.path), "LoRA: {} was asked for before, in other company", site.path);
  if (site.target.is_lookup && files_.empty()) return nullptr;  // is never trained
  const std::vector<ModuleName> names = names_(site.path);
  if (names.empty()) return nullptr;
  check_base(site);
  Modules modules;
  for (size_t set = 0; set < set_count_; ++set)
    for (AdapterModule& module : from_files(names, site, set)) modules.push_back(std::move(module));
  if (config_ && !site.target.is_lookup) note_patterns(site.path, names);
  if (!site.target.is_lookup) {
    const std::vector<Trainable> parts = trainable(site.path, names);
    check(parts.empty() || modules.empty(), "LoRA: {} is to be trained, but a LoRA file holds it too", site.path);
    for (const Trainable& part : parts) modules.push_back(fresh(part, site, memory));
  }
  return modules.empty() ? nullptr : &modules_.emplace(site.path, std::move(modules)).first->second;
}

bool Adapter::stand_apart(const std::vector<LoraSite>& sites) const {
  const bool trained_apart = config_ && (config_->dora || !config_->algorithm->stacks());
  return std::ranges::any_of(sites, [&](const LoraSite& site) {
    const std::vector<ModuleName> names = names_(site.path);
    return (trained_apart && !trainable(site.path, names).empty()) ||
           std::ranges::any_of(files_, [&](const GivenFile& f) { return f.file->stands_apart(names); });
  });
}

namespace {

// Modules in the order in which they apply; those of a group are on different outputs.
std::vector<std::vector<PlacedModule>> grouped(const std::vector<PlacedModule>& parts) {
  std::vector<std::vector<PlacedModule>> groups;
  for (const PlacedModule& part : parts) {
    const auto meets = [&](const std::vector<PlacedModule>& group) {
      return std::ranges::any_of(
          group, [&](const PlacedModule& other) { return other.column < part.end() && part.column < other.end(); });
    };
    const auto behind = std::find_if(groups.rbegin(), groups.rend(), meets).base();
    if (behind == groups.end())
      groups.push_back({part});
    else
      behind->push_back(part);
  }
  for (auto& group : groups) std::ranges::sort(group, {}, &PlacedModule::column);
  return groups;
}

}  // namespace

// Of modules on different outputs of a layer.
std::shared_ptr<const LayerAdapter> Adapter::adapter_of(const std::vector<PlacedModule>& group, int64_t outputs,
                                                        const Residence& place) {
  const AdapterAlgorithm& first = *group.front().module->algorithm;
  const auto stacks = [&](const PlacedModule& part) {
    return part.module->algorithm == &first && first.stacks() && !part.module->magnitude.factor.value;
  };
  if (std::ranges::all_of(group, stacks)) return first.layer(group, outputs, place, dropout(group, *place.memory));
  std::vector<OutputsAdapter> parts;
  for (const auto& [module, column] : group)
    parts.push_back({column, column + module->target.out, adapter_of_part(*module, place)});
  return on_outputs(std::move(parts), outputs);
}

std::shared_ptr<const LayerAdapter> Adapter::adapter_of_part(AdapterModule& module, const Residence& place) const {
  const bool is_plain = module.algorithm->stacks() && !module.magnitude.factor.value;
  check(is_plain || !config_ || (!drops_out(*config_) && config_->most_norm == 0),
        "{}: {} is a {}, and only plain LoRAs have dropout and a limit of norms; expected none of --lora-dropout, "
        "--rank-dropout, --module-dropout and --scale-weight-norms",
        files_.empty() ? "LoRA" : files_.front().file->name(), quote(module.name), module.kind());
  auto adapter = module.algorithm->layer({{&module, 0}}, module.target.out, place, {});
  return module.magnitude.factor.value ? with_magnitude(std::move(adapter), module, place) : adapter;
}

AdapterOfLayer Adapter::match(const std::vector<LoraSite>& sites, const Residence& place) {
  const std::string& first = sites.front().path;
  if (const auto known = layers_.find(first); known != layers_.end()) return known->second;
  const MemoryScope scope(Purpose::adapter);
  std::vector<PlacedModule> parts;
  int64_t outputs = 0;
  for (const LoraSite& site : sites) {
    if (Modules* modules = modules_at(site, *place.memory))
      for (AdapterModule& module : *modules) parts.push_back({&module, outputs + module.first});
    outputs += site.target.out;
  }
  if (parts.empty()) return nullptr;
  std::vector<AdapterStack::Adapters> sets(set_count_);
  for (size_t set = 0; set < set_count_; ++set) {
    std::vector<PlacedModule> in_set;
    std::ranges::copy_if(parts, std::back_inserter(in_set), [&](const auto& part) { return part.module->set == set; });
    for (const auto& group : grouped(in_set)) sets[set].push_back(adapter_of(group, outputs, place));
  }
  return layers_[first] = std::make_shared<AdapterStack>(std::move(sets), set_in_use_);
}

std::shared_ptr<const VectorChange> Adapter::match_vector(const std::string& path, bool is_bias, int64_t count,
                                                          const Residence& place) {
  const std::string key = path + (is_bias ? ".bias" : ".weight");
  if (const auto known = vectors_.find(key); known != vectors_.end()) return known->second;
  const std::vector<ModuleName> names = files_.empty() ? std::vector<ModuleName>() : names_(path);
  std::vector<Tensor> changes(set_count_);
  for (const auto& [file, set] : files_)
    for (const ModuleName* found : file->find(names))
      if (const Tensor change = file->read_vector(*found, path, is_bias, count))
        changes[set] = changes[set] ? changes[set] + change : change;
  if (std::ranges::none_of(changes, [](const Tensor& change) { return bool(change); })) return nullptr;
  const MemoryScope scope(Purpose::adapter);
  return vectors_[key] = std::make_shared<VectorChange>(std::move(changes), set_in_use_, count, *place.memory);
}

std::vector<WordRows> Adapter::words(const std::string& encoder) const {
  std::vector<WordRows> all;
  int64_t first = 0;
  for (const auto& [file, set] : files_)
    for (const std::string& word : file->words()) {
      const Tensor vectors = file->word_vectors(word, encoder);
      const int64_t count = vectors ? vectors.dim(0) : 0;
      if (set == *set_in_use_) {
        check(std::ranges::find(all, word, &WordRows::word) == all.end(),
              "{}: it teaches the word {}, as another LoRA does; expected one of both", file->name(), quote(word));
        all.push_back({word, first, count});
      }
      first += count;
    }
  return all;
}

bool Adapter::has_words() const {
  return std::ranges::any_of(files_, [](const GivenFile& given) { return !given.file->words().empty(); });
}

Tensor Adapter::word_vectors(const std::string& encoder) const {
  std::vector<Tensor> all;
  for (const auto& [file, set] : files_)
    for (const std::string& word : file->words())
      if (const Tensor vectors = file->word_vectors(word, encoder)) {
        check(all.empty() || all.front().dim(1) == vectors.dim(1),
              "{}: its vectors of {} for {} have {} numbers, and another LoRA's {}", file->name(), quote(word), encoder,
              vectors.dim(1), all.empty() ? 0 : all.front().dim(1));
        all.push_back(vectors);
      }
  return all.empty() ? Tensor() : cat(all, 0);
}

void Adapter::use(size_t set) {
  *set_in_use_ = set;
  for (const auto& [path, vector] : vectors_) vector->refresh();
}

// One mask for linears that share their input.
LoraDropout Adapter::dropout(const std::vector<PlacedModule>& parts, Memory& memory) {
  if (!config_ || !drops_out(*config_)) return {};
  if (!all_draws_) {
    all_draws_ = zeros({kMostDraws}, DType::i64, memory);
    *draws_ = all_draws_.window({1}, {1});
  }
  LoraDropout dropout{.p = config_->dropout,
                      .rank_p = config_->rank_dropout,
                      .part_p = config_->module_dropout,
                      .draws = draws_,
                      .paused = dropout_paused_};
  for (const PlacedModule& part : parts) {
    check(part.module->is_trained(), "LoRA: dropout in {}, which is not trained", part.module->name);
    dropout.seeds.push_back(named_seed(config_->seed, part.module->name));
  }
  return dropout;
}

void Adapter::set_draws(const std::vector<int64_t>& draws) {
  if (!all_draws_) return;
  const auto count = int64_t(draws.size());
  check(1 <= count && count <= kMostDraws, "LoRA: dropout: expected at most {} samples a batch, found {}", kMostDraws,
        count);
  for (const int64_t draw : draws)
    check(draw >= 0 && draw < int64_t{1} << 32, "LoRA: dropout has no mask of number {}", draw);
  *draws_ = all_draws_.window({count}, {1});
  all_draws_.memory().write(all_draws_.view().data, draws.data(), draws.size() * sizeof(int64_t));
}

void Adapter::check_complete(const std::vector<std::string>& elsewhere) const {
  check_complete_by_file([&](const LoraFile&) { return elsewhere; });
}

void Adapter::check_complete_by_file(const std::function<std::vector<std::string>(const LoraFile&)>& elsewhere) const {
  for (const auto& [file, set] : files_) file->check_complete(elsewhere(file->given()));
  if (config_) check_targets();
}

void Adapter::check_targets() const {
  for (size_t i = 0; i < pattern_uses_.size(); ++i) {
    const auto& [fits, meant] = pattern_uses_[i];
    if (fits) continue;
    check(meant.empty(), "--targets: {} is another program's name; here it is {}", quote(config_->targets[i]),
          first_few({meant.begin(), meant.end()}, 8));
    fail("--targets: {} matches no module of this model; it has {}", quote(config_->targets[i]), commonest_kinds());
  }
  check(!modules_.empty(), "LoRA: the target patterns leave no module to train");
  check_patterns("--rank", config_->rank);
  check_patterns("--alpha", config_->alpha);
  check_patterns("--lr", config_->rate);
  check_patterns("--lora-plus", config_->up_rate);
}

template <class T>
void Adapter::check_patterns(std::string_view flag, const ByPattern<T>& numbers) const {
  const auto fits = [](const std::string& pattern, const auto& at_path) {
    return is_targeted_by(pattern, at_path.first) ||
           std::ranges::any_of(at_path.second, [&](const AdapterModule& module) {
             return !module.also.empty() && is_targeted_by(pattern, module.also);
           });
  };
  for (const auto& other : numbers.others)
    check(std::ranges::any_of(modules_, [&](const auto& m) { return fits(other.pattern, m); }),
          "{}: {} matches no module that is trained; those are of {}; --targets '{}' '{}' would train it too", flag,
          quote(other.pattern), commonest_kinds(), fmt::join(config_->targets, "' '"), other.pattern);
}

std::pair<int64_t, int64_t> Adapter::ranks() const {
  std::pair<int64_t, int64_t> found{std::numeric_limits<int64_t>::max(), 0};
  for (const AdapterModule* module : all_modules()) {
    const int64_t rank = module->algorithm->rank(*module);
    found = {std::min(found.first, rank), std::max(found.second, rank)};
  }
  return found;
}

std::string Adapter::kind() const {
  std::set<std::string> kinds;
  for (const AdapterModule* module : all_modules()) kinds.insert(module->kind());
  return kinds.size() == 1 ? *kinds.begin() : "adapter";
}

std::vector<const AdapterModule*> Adapter::all_modules() const {
  std::vector<const AdapterModule*> all;
  for (const auto& [path, modules] : modules_)
    for (const AdapterModule& module : modules) all.push_back(&module);
  return all;
}

std::vector<std::string> Adapter::written_names() const {
  std::vector<std::string> names;
  for (const AdapterModule* module : all_modules()) names.push_back(module->name);
  return names;
}

std::string Adapter::commonest_kinds() const {
  std::vector<std::pair<std::string, int64_t>> kinds(kinds_.begin(), kinds_.end());
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> names;
  for (const auto& [kind, count] : kinds) names.push_back(kind);
  return first_few(names, 8);
}

bool Adapter::covers(const std::string& path_prefix) const {
  const auto begins_some = [&](const auto& all) {
    const auto first = all.lower_bound(path_prefix);
    return first != all.end() && first->first.starts_with(path_prefix);
  };
  return begins_some(modules_) || begins_some(vectors_);
}

bool Adapter::limit_norms() const {
  if (!config_ || config_->most_norm == 0) return false;
  for (const AdapterModule* module : all_modules())
    if (module->is_trained()) module->algorithm->limit_norm(*module, config_->most_norm);
  return true;
}

std::vector<Parameter> Adapter::parameters() const {
  std::vector<Parameter> all;
  for (const auto& [path, modules] : modules_)
    for (const AdapterModule& module : modules) {
      const std::vector<const AdapterFactor*> factors = module.all_factors();
      for (size_t i = 0; i < factors.size(); ++i) {
        const auto& [key, value, copy] = *factors[i];
        if (!value.tracked()) continue;
        const auto& kinds = module.algorithm->factors();
        const double up =
            config_ && i < kinds.size() && kinds[i].begins_at_zero ? config_->up_rate.at(path, module.also) : 1;
        all.push_back({key, value, copy, float(config_ ? config_->rate.at(path, module.also) * up : 1)});
      }
    }
  std::sort(all.begin(), all.end(), [](const Parameter& a, const Parameter& b) { return a.name < b.name; });
  return all;
}

std::map<std::string, Tensor> Adapter::tensors(DType dtype) const {
  // Converted on the host: a device that training has filled may have no room for copies.
  const auto converted = [dtype](const Tensor& factor) {
    return dtype == DType::f32 ? factor : cast(factor.to(host_memory()), dtype);
  };
  std::map<std::string, Tensor> all;
  for (const AdapterModule* module : all_modules()) {
    for (size_t i = 0; i < module->factors.size(); ++i)
      if (const Tensor value = module->factors[i].value.detached())
        all[key_of(*module, i)] = converted(module->algorithm->to_file(i, value, *module));
    if (const Tensor magnitude = module->magnitude.factor.value.detached())
      all[module->name + std::string(kMagnitudeKey)] = converted(magnitude_to_file(magnitude, *module));
    all[module->name + ".alpha"] = full({}, module->alpha);
  }
  for (const auto& [file, set] : files_)
    if (file->is_trainable()) all.merge(file->embeddings());
  return all;
}

std::map<std::string, Tensor> Adapter::gradients(const Grads& grads) const {
  std::map<std::string, Tensor> all;
  const auto gradient_of = [&](const Tensor& value) {
    const Tensor d = grads[value];
    return d ? d : zeros(value.shape(), DType::f32, value.memory());
  };
  for (const AdapterModule* module : all_modules()) {
    for (size_t i = 0; i < module->factors.size(); ++i)
      if (const auto& [key, value, copy] = module->factors[i]; value.tracked())
        all[key] = module->algorithm->to_file(i, gradient_of(value), *module, module->order);
    if (const auto& [key, value, copy] = module->magnitude.factor; value.tracked())
      all[key] = magnitude_to_file(gradient_of(value), *module, module->order);
  }
  return all;
}

void Adapter::save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata,
                   DType dtype) const {
  save_safetensors(file, tensors(dtype), metadata);
}

}  // namespace wick
