#include "wick/nn/adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/nn/glob.h"
#include "wick/nn/low_rank.h"
#include "wick/nn/named_seed.h"
#include "wick/nn/peft.h"
#include "wick/nn/recognise.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {

namespace {

void check_algorithm(std::string_view key, const std::string& file) {
  const std::string_view other = other_lora_algorithm(key);
  check(other.empty(), "{}: {} is {}; Wick reads plain LoRA files", file, quote(key), other);
}

AdapterKey checked_key(std::string_view key, const std::string& file) {
  if (const auto parsed = parse_adapter_key(key)) return *parsed;
  fail("{}: {} is no tensor of a LoRA: names should end in .lora_down.weight, .lora_up.weight or .alpha", file,
       quote(key));
}

bool starts_with_any(std::string_view name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& p) { return name.starts_with(p); });
}

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

// Under which a factor is written.
std::string key_of(const AdapterModule& module, size_t factor) {
  return module.name + std::string(module.algorithm->factors()[factor].suffixes.front());
}

std::string first_few(const std::vector<std::string>& names, size_t few = 3) {
  const size_t shown = std::min(names.size(), few);
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + long(shown), ", "),
                     shown < names.size() ? ", …" : "");
}

LowRank part_of(const AdapterModule& module, const LoraSite& site, bool largest, const std::string& what) {
  const int64_t rank = module.algorithm->rank(module);
  if (!site.base)
    return {zeros({module.target.out, rank}), zeros({rank, module.target.in})};  // in an outline only sizes count
  const Tensor base = site.base();
  check(is_float(base.dtype()), "{}: that needs the model's own weights, and those here are quantised, {}", what,
        name_of(base.dtype()));
  const Tensor w = contiguous(slice(cast(base, DType::f32), 0, module.first, module.end()));
  return largest ? largest_part(w, rank, what) : first_columns_part(w, rank, what);
}

}  // namespace

// An open LoRA file: where the factors of each of its modules stand.
struct Adapter::Source {
  struct Entry {
    const AdapterAlgorithm* algorithm = nullptr;
    std::vector<std::string> keys = {};  // of its factors, in the algorithm's order; empty where there is none
    std::string alpha = {};              // its key
    bool used = false;
  };
  struct Base {  // the matrix of a module as PEFT had it, which it puts in the place of the model's
    std::string key;
    mutable bool used = false;
  };
  SafetensorsFile file;
  LoraFile lora;
  bool trainable;
  LoraSettings settings;
  std::map<std::string, Entry> entries = {};  // by base name
  std::map<std::string, Base> bases = {};     // by base name
  int64_t embeddings = 0;                     // tensors that teach words, beside the LoRA
  const char* model = nullptr;                // model_of_lora()

  static Source open(const LoraFile& lora, bool trainable) {
    const std::filesystem::path weights = lora_weights(lora.path);
    LoraSettings settings = LoraSettings::beside(weights);  // first: tells of other kinds of adapters best
    Source source{SafetensorsFile::open(weights), lora, trainable, std::move(settings)};
    if (!source.settings.config) source.settings.read_header(source.file);
    source.index();
    return source;
  }

  std::string name() const { return file.path().string(); }
  // With the model that it seems to be for, where shapes may be those of another one.
  std::string in_words() const { return model ? fmt::format("{}: a LoRA for {}", name(), model) : name(); }

  void index() {
    check(!file.tensors().empty(), "{}: holds no tensors", name());
    for (const auto& [key, info] : file.tensors()) check_algorithm(key, name());
    const auto is_ours = [](const auto& tensor) { return parse_adapter_key(tensor.first).has_value(); };
    check(std::ranges::any_of(file.tensors(), is_ours), "{}: expected a LoRA, found {}", name(),
          contents_in_words(safetensors_source(file.path())));
    for (const auto& [key, info] : file.tensors()) add(key);
    check(!entries.empty(), "{}: holds no module of a LoRA", name());
    std::set<std::string> names;
    for (const auto& [base, entry] : entries) names.insert(base);
    model = model_of_lora(names);
    for (const auto& [base, entry] : entries) {
      const auto& factors = (entry.algorithm ? *entry.algorithm : lora_algorithm()).factors();
      for (size_t i = 0; i < factors.size(); ++i)
        check(entry.algorithm && !entry.keys[i].empty(), "{}: {} has no {} factor", name(), quote(base),
              factors[i].name);
      // PEFT loads no such file either; ComfyUI's choice of alpha, the rank, is a guess.
      check(settings.config || !entry.alpha.empty() || !base.starts_with(kPeftPrefix),
            "{}: PEFT keeps the alpha of {} in {}, which is not beside it; put both files into one folder, this one as "
            "adapter_model.safetensors",
            name(), quote(base), kPeftLast);
    }
  }

  void add(const std::string& key) {
    if (is_bundled_embedding(key)) {
      ++embeddings;
      return;
    }
    if (const std::string_view module = module_of_base(key); !module.empty()) {
      bases[std::string(module)].key = key;
      return;
    }
    const AdapterKey parsed = checked_key(key, name());
    Entry& entry = entries[std::string(parsed.module)];
    if (parsed.algorithm) {
      entry.algorithm = parsed.algorithm;
      entry.keys.resize(parsed.algorithm->factors().size());
    }
    std::string& slot = parsed.algorithm ? entry.keys[parsed.factor] : entry.alpha;
    check(slot.empty(), "{}: {} and {} are the same factor of one module", name(), quote(slot), quote(key));
    slot = key;
  }

  // The names among these that the file has. Throws Error where two of them stand for the same rows.
  std::vector<const ModuleName*> find(const std::vector<ModuleName>& names) {
    std::vector<const ModuleName*> found;
    for (const ModuleName& candidate : names) {
      const auto entry = entries.find(candidate.name);
      const auto is_known = [&](const ModuleName* other) { return other->name == candidate.name; };
      if (entry == entries.end() || std::ranges::any_of(found, is_known)) continue;
      for (const ModuleName* other : found)
        check(!other->rows.overlap(candidate.rows),
              "{}: {} and {} are on the same rows of one layer; a LoRA has them once, fused or split", name(),
              quote(entries.at(other->name).keys.front()), quote(entry->second.keys.front()));
      entry->second.used = true;
      found.push_back(&candidate);
    }
    return found;
  }

  AdapterModule read(const std::string& written_name, const ModuleName& found, const LoraSite& site) const {
    const std::string& name_in_file = found.name;
    const Entry& entry = entries.at(name_in_file);
    const ModuleRows& rows = found.rows;
    AdapterModule module{int(rows.parts.size()) == rows.of ? written_name : name_in_file, site.target, entry.algorithm};
    const int64_t part = site.target.out / rows.of;
    check(part * rows.of == site.target.out, "{}: {} is {} of {} equal parts of {} outputs", name(),
          quote(name_in_file), rows.parts.size(), rows.of, site.target.out);
    module.target.out = part * int64_t(rows.parts.size());
    module.first = part * rows.first();
    if (!std::ranges::is_sorted(rows.parts))
      for (const int index : rows.parts) module.order.push_back(index - rows.first());
    for (const std::string& key : entry.keys) module.factors.push_back({key, read_finite(key)});
    module.algorithm->from_file(module, in_words());
    const int64_t rank = module.algorithm->rank(module);
    module.alpha = alpha_of(name_in_file, entry, rank);
    module.scale = lora.strength_of(site.path) * module.alpha / float(rank);
    check(std::isfinite(module.scale), "{}: {} has an alpha of {}, too large for its rank and strength", name(),
          quote(name_in_file), module.alpha);
    if (const PeftConfig* config = settings.of(name_in_file, name()).first)
      take_part_out(module, config->taken, name_in_file, site);
    if (trainable)
      for (AdapterFactor& factor : module.factors) factor.value = factor.value.trainable();
    return module;
  }

  float alpha_of(const std::string& name_in_file, const Entry& entry, int64_t rank) const {
    const auto [config, module] = settings.of(name_in_file, name());
    if (config) {
      const std::optional<double> told = config->rank_of(module);
      check(!told || *told == double(rank), "{}: {} has rank {}, but {} says {}", name(), quote(name_in_file), rank,
            config->source, told.value_or(0));
    }
    if (entry.alpha.empty()) return config ? config->alpha_of(module, rank) : float(rank);
    const Tensor alpha = file.load_numbers(entry.alpha);
    check(alpha.numel() == 1 && std::isfinite(alpha.item()), "{}: {} should be one finite number", name(),
          quote(entry.alpha));
    check(!config || config->alpha_of(module, rank) == alpha.item(), "{}: {} is {}, but {} makes it {}", name(),
          quote(entry.alpha), alpha.item(), config ? config->source : "", config ? config->alpha_of(module, rank) : 0);
    return alpha.item();
  }

  // PEFT takes a part out of the base when it loads such an adapter; here the module takes it out, which is the same:
  // W - P + s B A is W and a LoRA of twice the rank (as PEFT itself writes it on request: subtract_mutated_init).
  void take_part_out(AdapterModule& module, TakenFromBase taken, const std::string& name_in_file,
                     const LoraSite& site) const {
    if (taken == TakenFromBase::nothing) return;
    const std::string what = fmt::format("{}: {} belongs to a base of which PEFT took a part out ({})", name(),
                                         quote(name_in_file), taken == TakenFromBase::largest_part ? "PiSSA" : "OLoRA");
    check(site.target.kernel == 1 && !site.target.conv, "{}, which it does of linear layers alone", what);
    check(!site.tied, "{}, which would change this model's embedding too", what);
    const float strength = lora.strength_of(site.path);
    check(strength == 1, "{}: its strength is 1, and not {}", what, strength);
    check(!trainable, "{}: it has no gradients here; have PEFT save it with path_initial_model_for_weight_conversion",
          what);
    const int64_t rank = module.algorithm->rank(module);
    check(rank <= std::min(module.target.in, module.target.out), "{}: its rank {} is more than the layer's", what,
          rank);
    const bool largest = taken == TakenFromBase::largest_part;
    const LowRank part = part_of(module, site, largest, what);
    AdapterModule removed{module.name, module.target, &lora_algorithm(), {{"", part.down}, {"", part.up}}};
    removed.scale = largest ? -1 : -module.scale;
    module.algorithm->add(module, removed);
    module.changes_base = true;
  }

  // PEFT puts the file's matrix in the model's place (set_peft_model_state_dict). Mostly they are one.
  void check_base(const std::vector<ModuleName>& names, const LoraSite& site) const {
    for (const ModuleName& candidate : names) {
      const auto found = bases.find(candidate.name);
      if (found == bases.end()) continue;
      found->second.used = true;
      if (!site.base) continue;
      const Tensor theirs = file.load_numbers(found->second.key);
      const Shape shape{site.target.out, site.target.in};
      check(theirs.shape() == shape, "{}: {} has shape {}, and the model's has {}: Wick keeps the model's vocabulary",
            name(), quote(found->second.key), theirs.shape(), shape);
      const Tensor ours = site.base();
      const std::optional<DType> dtype = file.tensors().at(found->second.key).dtype;
      const bool comparable = is_float(ours.dtype()) && dtype && is_float(*dtype);
      // Rounded as theirs are.
      check(comparable && cast(cast(ours, *dtype), DType::f32).to_vector() == theirs.to_vector(),
            "{}: {} is not the model's own: Wick adds LoRAs to a model, and replaces none of its weights", name(),
            quote(found->second.key));
    }
  }

  Tensor read_finite(const std::string& key) const {
    const Tensor values = file.load_numbers(key);
    const float* data = values.data<float>();
    const float* end = data + values.numel();
    const float* odd = std::find_if_not(data, end, [](float value) { return std::isfinite(value); });
    if (odd != end) fail("{}: {} holds {}; the LoRA is damaged", name(), quote(key), *odd);
    return values;
  }
};

bool ModuleRows::overlap(const ModuleRows& other) const {
  const auto end = [](const ModuleRows& rows) { return rows.first() + int(rows.parts.size()); };
  return first() * other.of < end(other) * of && other.first() * of < end(*this) * other.of;
}

std::filesystem::path lora_weights(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return path;
  const std::filesystem::path diffusers = path / "pytorch_lora_weights.safetensors";
  const std::filesystem::path peft = path / "adapter_model.safetensors";
  return std::filesystem::exists(diffusers) && !std::filesystem::exists(peft) ? diffusers : peft;
}

std::vector<std::string> Adapter::notes_on(const LoraFile& lora) {
  const Source source = Source::open(lora, false);
  std::vector<std::string> notes;
  if (source.embeddings > 0)
    notes.push_back(fmt::format("{}: {} of embeddings {} not applied, its LoRA is", source.name(),
                                count_of(source.embeddings, "tensor"), source.embeddings == 1 ? "is" : "are"));
  double numbers = 0;  // in the matrices of which parts are computed
  for (const auto& [name, entry] : source.entries) {
    const PeftConfig* config = source.settings.of(name, source.name()).first;
    if (!config || config->taken != TakenFromBase::largest_part) continue;
    const Shape &down = source.file.tensors().at(entry.keys[0]).shape,
                &up = source.file.tensors().at(entry.keys[1]).shape;
    if (up.rank() == 2 && down.rank() == 2) numbers += double(up[0]) * double(down[1]);
  }
  if (numbers > 2e8)
    notes.push_back(
        fmt::format("{}: PiSSA: the largest singular vectors of its {} are computed first, which takes minutes",
                    source.name(), count_of(source.entries.size(), "layer")));
  return notes;
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

void AdapterFactor::place(Memory& memory) {
  if (&value.memory() == &memory) return;
  const Tensor moved = value.to(memory);
  value = value.tracked() ? moved.trainable() : moved;
}

Adapter::Adapter(ModuleNames names, const std::vector<LoraFile>& files, bool trainable) : names_(std::move(names)) {
  for (const LoraFile& file : files) add_file(file, trainable);
}

float LoraFile::strength_of(const std::string& path_in_model) const {
  const auto part = parts.find(path_in_model.substr(0, path_in_model.find('.')));
  return part == parts.end() ? strength : part->second;
}

void Adapter::add_file(const LoraFile& file, bool trainable) {
  const auto check_finite = [&](float strength) {
    check(std::isfinite(strength), "{}: the strength should be a finite number, found {}", file.path.string(),
          strength);
  };
  check_finite(file.strength);
  for (const auto& [part, strength] : file.parts) check_finite(strength);
  sources_.push_back(std::make_shared<Source>(Source::open(file, trainable)));
}

bool Adapter::targeted(const std::string& path, const std::vector<ModuleName>& names) {
  ++kinds_[kind_of(path)];
  bool wanted = false;
  for (size_t i = 0; i < config_->targets.size(); ++i) {
    const bool exclude = config_->targets[i].starts_with('-');
    const std::string pattern = config_->targets[i].substr(exclude ? 1 : 0);
    if (is_targeted_by(pattern, path)) {
      wanted = !exclude;
      pattern_uses_[i].fits = true;
    } else if (std::ranges::any_of(names, [&](const ModuleName& other) {
                 return is_targeted_by(pattern, other.name) || is_targeted_by(pattern + "*", other.name);
               })) {
      pattern_uses_[i].meant.insert(pattern_of(path));
    }
  }
  return wanted;
}

AdapterModule Adapter::fresh(const std::string& name, const LoraSite& site, Memory& memory) const {
  const LoraConfig& c = *config_;
  const bool own = site.target.kernel > 1 && c.conv_rank > 0;  // a rank for convolutions
  const int64_t* const given_rank = c.rank.other(site.path);
  const double* const given_alpha = c.alpha.other(site.path);
  const int64_t rank = given_rank ? *given_rank : own ? c.conv_rank : c.rank.value;
  double alpha = given_alpha ? *given_alpha : own ? c.conv_alpha : c.alpha.value;
  if (alpha == 0) alpha = double(rank);
  Rng rng(named_seed(c.seed, name), Stream::init);
  AdapterModule module{name, site.target, c.algorithm};
  for (const Tensor& value : c.algorithm->fresh(site.target, rank, rng, memory))
    module.factors.push_back({key_of(module, module.factors.size()), value.trainable()});
  // Files have an alpha that the rank divides.
  module.alpha = float(c.rslora ? alpha * std::sqrt(double(rank)) : alpha);
  module.scale = module.alpha / float(rank);
  return module;
}

void Adapter::check_base(const LoraSite& site) const {
  for (const auto& source : sources_)
    if (!source->bases.empty()) source->check_base(names_(site.path), site);
}

// A module as some files have it; several files' if they are not trained.
struct Adapter::Part {
  AdapterModule module;
  const Source* source;

  bool overlaps(const Part& other) const {
    return module.first < other.module.end() && other.module.first < module.end();
  }
  // The changes of both, of which one lies within the rows of the other.
  static Part sum(Part a, Part b) {
    const Source &alone = a.source->trainable ? *a.source : *b.source,
                 &other = a.source->trainable ? *b.source : *a.source;
    AdapterModule &sum = a.module, &rest = b.module;
    check(!alone.trainable, "{}: its module {} is also in {}, but it is to be trained alone", alone.name(), sum.name,
          other.name());
    check(!sum.changes_base || !rest.changes_base,
          "{}: its module {} is also in another LoRA, and PEFT takes parts out of the base for both (PiSSA, OLoRA)",
          b.source->name(), sum.name);
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

Adapter::Modules Adapter::from_files(const std::vector<ModuleName>& names, const LoraSite& site) {
  std::vector<Part> parts;
  for (const auto& source : sources_)
    for (const ModuleName* found : source->find(names)) {
      Part part{source->read(names.front().name, *found, site), source.get()};
      const auto is_apart = [&](const Part& p) { return !p.overlaps(part); };
      const auto earlier = std::stable_partition(parts.begin(), parts.end(), is_apart);
      for (auto it = earlier; it != parts.end(); ++it) part = Part::sum(std::move(*it), std::move(part));
      parts.erase(earlier, parts.end());
      parts.push_back(std::move(part));
    }
  std::ranges::sort(parts, {}, [](const Part& part) { return part.module.first; });
  Modules modules;
  for (Part& part : parts) modules.push_back(std::move(part.module));
  return modules;
}

Adapter::Modules* Adapter::modules_at(const LoraSite& site, Memory& memory) {
  check(!modules_.contains(site.path), "LoRA: {} was asked for before, in other company", site.path);
  const std::vector<ModuleName> names = names_(site.path);
  if (names.empty()) return nullptr;
  check_base(site);
  Modules modules = from_files(names, site);
  if (config_ && targeted(site.path, names)) {
    check(modules.empty(), "LoRA: {} is to be trained, but a LoRA file holds it too", site.path);
    modules.push_back(fresh(names.front().name, site, memory));
  }
  return modules.empty() ? nullptr : &modules_.emplace(site.path, std::move(modules)).first->second;
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
  const AdapterAlgorithm& algorithm = *parts.front().module->algorithm;
  assert(std::ranges::all_of(parts, [&](const PlacedModule& part) { return part.module->algorithm == &algorithm; }));
  return layers_[first] = algorithm.layer(parts, outputs, place, dropout(parts, *place.memory));
}

// One mask for linears that share their input.
LoraDropout Adapter::dropout(const std::vector<PlacedModule>& parts, Memory& memory) {
  if (!config_ || (config_->dropout == 0 && config_->rank_dropout == 0 && config_->module_dropout == 0)) return {};
  if (!draw_) draw_ = Tensor::of(std::vector<int64_t>{0}, {1}, memory);
  LoraDropout dropout{.p = config_->dropout,
                      .rank_p = config_->rank_dropout,
                      .part_p = config_->module_dropout,
                      .draw = draw_,
                      .paused = dropout_paused_};
  for (const PlacedModule& part : parts) {
    check(part.module->is_trained(), "LoRA: dropout in {}, which is not trained", part.module->name);
    dropout.seeds.push_back(named_seed(config_->seed, part.module->name));
  }
  return dropout;
}

void Adapter::set_draw(int64_t draw) {
  if (!draw_) return;
  check(draw >= 0 && draw < int64_t{1} << 32, "LoRA: dropout has no mask of number {}", draw);
  draw_.memory().write(draw_.view().data, &draw, sizeof draw);
}

void Adapter::check_complete(const std::vector<std::string>& elsewhere) const {
  for (const auto& source : sources_) {
    std::vector<std::string> unknown;
    std::set<std::string> used, others;
    for (const auto& [name, entry] : source->entries) {
      if (entry.used || starts_with_any(name, elsewhere)) {
        if (entry.used) used.insert(name);
        continue;
      }
      others.insert(name);
      unknown.push_back(quote(name));
    }
    const char* model = model_of_lora(others);
    check(unknown.empty(), "{}: {} of its {} fit no layer of this model: {}{}", source->name(), unknown.size(),
          count_of(source->entries.size(), "module"), first_few(unknown),
          model && model != model_of_lora(used) ? fmt::format("; it looks like a LoRA for {}", model) : "");
    check(!used.empty(), "{}: none of its {} is in the component that was loaded", source->name(),
          count_of(source->entries.size(), "module"));
    for (const auto& [name, base] : source->bases)
      check(base.used, "{}: {} fits no layer of this model", source->name(), quote(base.key));
  }
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
}

template <class T>
void Adapter::check_patterns(std::string_view flag, const ByPattern<T>& numbers) const {
  for (const auto& other : numbers.others)
    check(std::ranges::any_of(modules_, [&](const auto& m) { return is_targeted_by(other.pattern, m.first); }),
          "{}: {} matches no module that is trained; those are of {}", flag, quote(other.pattern), commonest_kinds());
}

std::pair<int64_t, int64_t> Adapter::ranks() const {
  std::pair<int64_t, int64_t> found{std::numeric_limits<int64_t>::max(), 0};
  for (const AdapterModule* module : all_modules()) {
    const int64_t rank = module->algorithm->rank(*module);
    found = {std::min(found.first, rank), std::max(found.second, rank)};
  }
  return found;
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
  const auto first = modules_.lower_bound(path_prefix);
  return first != modules_.end() && first->first.starts_with(path_prefix);
}

void Adapter::limit_norms(float most) const {
  for (const AdapterModule* module : all_modules())
    if (module->is_trained()) module->algorithm->limit_norm(*module, most);
}

std::vector<Parameter> Adapter::parameters() const {
  std::vector<Parameter> all;
  for (const auto& [path, modules] : modules_)
    for (const AdapterModule& module : modules)
      for (size_t i = 0; i < module.factors.size(); ++i) {
        const AdapterFactor& factor = module.factors[i];
        if (!factor.value.tracked()) continue;
        const double up = config_ && module.algorithm->factors()[i].name == "up" ? config_->up_rate : 1;
        all.push_back({factor.key, factor.value, factor.copy, float(config_ ? config_->rate.at(path) * up : 1)});
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
      all[key_of(*module, i)] =
          converted(module->algorithm->to_file(i, module->factors[i].value.detached(), module->target));
    all[module->name + ".alpha"] = full({}, module->alpha);
  }
  return all;
}

std::map<std::string, Tensor> Adapter::gradients(const Grads& grads) const {
  std::map<std::string, Tensor> all;
  for (const AdapterModule* module : all_modules())
    for (size_t i = 0; i < module->factors.size(); ++i) {
      const Tensor& value = module->factors[i].value;
      if (!value.tracked()) continue;
      const Tensor d = grads[value];
      all[module->factors[i].key] = module->algorithm->to_file(
          i, d ? d : zeros(value.shape(), DType::f32, value.memory()), module->target, module->order);
    }
  return all;
}

void Adapter::save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata,
                   DType dtype) const {
  save_safetensors(file, tensors(dtype), metadata);
}

}  // namespace wick
