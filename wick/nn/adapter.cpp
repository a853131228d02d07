#include "wick/nn/adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string_view>
#include <utility>

#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/nn/lora_keys.h"
#include "wick/nn/lora_settings.h"
#include "wick/nn/low_rank.h"
#include "wick/nn/named_seed.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {

namespace {

LoraKey checked_key(std::string_view key, const std::string& file) {
  const std::string_view other = other_lora_algorithm(key);
  check(other.empty(), "{}: {} is {}; Wick reads plain LoRA files", file, quote(key), other);
  if (const auto parsed = parse_lora_key(key)) return *parsed;
  fail("{}: {} is no tensor of a LoRA: names should end in .lora_down.weight, .lora_up.weight or .alpha", file,
       quote(key));
}

// Whether `text` fits a pattern in which * stands for any characters. Only the last star may have to take more: what
// fitted before it goes on fitting.
bool glob(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

// A pattern without a * may also be the end of the path, as names in PEFT's target_modules are: "q_proj", "lm_head".
bool is_targeted_by(std::string_view pattern, std::string_view path) {
  const bool ends =
      path.size() > pattern.size() && path.ends_with(pattern) && path[path.size() - pattern.size() - 1] == '.';
  return glob(pattern, path) || (ends && pattern.find('*') == pattern.npos);
}

Shape down_in_memory(const LoraTarget& target, int64_t rank) {
  return target.kernel == 1 ? Shape{rank, target.in} : Shape{rank, target.kernel, target.kernel, target.in};
}

Tensor down_in_file(const Tensor& down, const LoraTarget& target) {
  if (!target.conv) return down;
  return target.kernel == 1 ? reshape(down, {down.dim(0), target.in, 1, 1}) : permute(down, {0, 3, 1, 2});
}

Tensor up_in_file(const Tensor& up, const LoraTarget& target) {
  return target.conv ? reshape(up, {target.out, up.dim(1), 1, 1}) : up;
}

bool starts_with_any(std::string_view name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& p) { return name.starts_with(p); });
}

// Of a module's path a pattern that its kind has: "unet.*.attn1.to_q" of "unet.down_blocks.1.attentions.0.attn1.to_q".
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

std::string first_few(const std::vector<std::string>& names, size_t few = 3) {
  const size_t shown = std::min(names.size(), few);
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + long(shown), ", "),
                     shown < names.size() ? ", …" : "");
}

}  // namespace

struct Adapter::Module {
  std::string name;  // base name in the file that is written
  LoraTarget target;
  Factors lora;
  float alpha = 0;
  bool changes_base = false;            // a part of the base is taken out again
  Tensor down_copy = {}, up_copy = {};  // in the dtype of the activations, where that is not f32
  std::string down_key = name + ".lora_down.weight", up_key = name + ".lora_up.weight";  // in the file it came from

  int64_t rank() const { return lora.up.dim(1); }
};

// An open LoRA file: where the factors of each of its modules stand.
struct Adapter::Source {
  struct Entry {
    std::string down, up, alpha;  // keys; empty where there is none
    bool used = false;
  };
  struct Base {  // the matrix of a module as PEFT had it, which it puts in the place of the model's
    std::string key;
    mutable bool used = false;
  };
  using Found = std::map<std::string, Entry>::iterator;

  SafetensorsFile file;
  float strength;
  bool trainable;
  LoraSettings settings;
  std::map<std::string, Entry> entries = {};  // by base name
  std::map<std::string, Base> bases = {};     // likewise
  int64_t embeddings = 0;                     // tensors that teach words, beside the LoRA

  static Source open(const std::filesystem::path& path, float strength, bool trainable);
  std::string name() const { return file.path().string(); }
  void index();
  void add(const std::string& key);
  Found find(const std::vector<std::string>& names);
  Module read(const std::string& module_name, const std::string& name_in_file, const Entry& entry,
              const LoraSite& site) const;
  float alpha_of(const std::string& name_in_file, const Entry& entry, int64_t rank) const;
  void take_part_out(Module& module, TakenFromBase taken, const std::string& name_in_file, const LoraSite& site) const;
  void check_base(const std::vector<std::string>& names, const LoraSite& site) const;
  Tensor read_finite(const std::string& key) const;
};

Adapter::Source Adapter::Source::open(const std::filesystem::path& path, float strength, bool trainable) {
  const std::filesystem::path weights = lora_weights(path);
  LoraSettings settings = LoraSettings::beside(weights);  // tells of other kinds of adapters better than their tensors
  Source source{SafetensorsFile::open(weights), strength, trainable, std::move(settings)};
  if (!source.settings.config) source.settings.read_header(source.file);
  source.index();
  return source;
}

void Adapter::Source::index() {
  for (const auto& [key, info] : file.tensors()) add(key);
  check(!file.tensors().empty(), "{}: holds no tensors", name());
  check(!entries.empty(), "{}: holds no module of a LoRA", name());
  for (const auto& [base, entry] : entries) {
    check(!entry.down.empty() && !entry.up.empty(), "{}: {} has no {} factor", name(), quote(base),
          entry.down.empty() ? "down" : "up");
    // PEFT loads no such file either; what ComfyUI takes for its alpha, the rank, is a guess.
    check(settings.config || !entry.alpha.empty() || !base.starts_with(kPeftPrefix),
          "{}: PEFT keeps the alpha of {} in {}, which is not beside it; put both files into one folder, this one as "
          "adapter_model.safetensors",
          name(), quote(base), kPeftLast);
  }
}

void Adapter::Source::add(const std::string& key) {
  if (is_bundled_embedding(key)) {
    ++embeddings;
    return;
  }
  if (const std::string_view module = module_of_base(key); !module.empty()) {
    bases[std::string(module)].key = key;
    return;
  }
  const LoraKey parsed = checked_key(key, name());
  Entry& entry = entries[std::string(parsed.module)];
  std::string& slot = parsed.factor == LoraFactor::down ? entry.down
                      : parsed.factor == LoraFactor::up ? entry.up
                                                        : entry.alpha;
  check(slot.empty(), "{}: {} and {} are the same factor of one module", name(), quote(slot), quote(key));
  slot = key;
}

Adapter::Source::Found Adapter::Source::find(const std::vector<std::string>& names) {
  for (const std::string& candidate : names)
    if (const auto found = entries.find(candidate); found != entries.end()) return found;
  return entries.end();
}

Tensor Adapter::Source::read_finite(const std::string& key) const {
  const Tensor values = file.load_numbers(key);
  const float* data = values.data<float>();
  for (int64_t i = 0; i < values.numel(); ++i)
    check(std::isfinite(data[i]), "{}: {} holds {}; the LoRA is damaged", name(), quote(key), data[i]);
  return values;
}

Adapter::Module Adapter::Source::read(const std::string& module_name, const std::string& name_in_file,
                                      const Entry& entry, const LoraSite& site) const {
  const LoraTarget& target = site.target;
  const int64_t kernel = target.kernel;
  const Tensor up = read_finite(entry.up), down = read_finite(entry.down);
  const int64_t rank = up.rank() >= 2 ? up.dim(1) : 0;
  const Shape matrix{rank, target.in}, convolution{rank, target.in, kernel, kernel};
  check(rank > 0 && (up.shape() == Shape{target.out, rank} || up.shape() == Shape{target.out, rank, 1, 1}),
        "{}: {} should have shape [{}, rank] for this model, found {}", name(), quote(entry.up), target.out,
        up.shape());
  check(down.shape() == convolution || (kernel == 1 && down.shape() == matrix),
        "{}: {} should have shape {} for this model, found {}", name(), quote(entry.down),
        target.conv ? convolution : matrix, down.shape());

  Module module{module_name, target, {}};
  module.down_key = entry.down;
  module.up_key = entry.up;
  module.alpha = alpha_of(name_in_file, entry, rank);
  module.lora.down = kernel == 1 ? reshape(down, matrix) : contiguous(permute(down, {0, 2, 3, 1}));
  module.lora.up = reshape(up, {target.out, rank});
  module.lora.scale = strength * module.alpha / float(rank);
  check(std::isfinite(module.lora.scale), "{}: {} has an alpha of {}, too large for its rank and strength", name(),
        quote(name_in_file), module.alpha);
  if (const PeftConfig* config = settings.of(name_in_file, name()).first)
    take_part_out(module, config->taken, name_in_file, site);
  if (trainable) {
    module.lora.down = module.lora.down.trainable();
    module.lora.up = module.lora.up.trainable();
  }
  return module;
}

float Adapter::Source::alpha_of(const std::string& name_in_file, const Entry& entry, int64_t rank) const {
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

namespace {

LowRank part_of(const LoraSite& site, int64_t rank, bool largest, const std::string& what) {
  if (!site.base)
    return {zeros({site.target.out, rank}), zeros({rank, site.target.in})};  // in an outline only sizes count
  const Tensor base = site.base();
  check(is_float(base.dtype()), "{}: that needs the model's own weights, and those here are quantised, {}", what,
        name_of(base.dtype()));
  const Tensor w = cast(base, DType::f32);
  return largest ? largest_part(w, rank, what) : first_columns_part(w, rank, what);
}

}  // namespace

// PEFT takes a part out of the base when it loads such an adapter; here the module takes it out, which is the same:
// W - P + s B A is W and a LoRA of twice the rank (as PEFT itself writes it on request: subtract_mutated_init).
void Adapter::Source::take_part_out(Module& module, TakenFromBase taken, const std::string& name_in_file,
                                    const LoraSite& site) const {
  if (taken == TakenFromBase::nothing) return;
  const std::string what = fmt::format("{}: {} belongs to a base of which PEFT took a part out ({})", name(),
                                       quote(name_in_file), taken == TakenFromBase::largest_part ? "PiSSA" : "OLoRA");
  check(site.target.kernel == 1 && !site.target.conv, "{}, which it does of linear layers alone", what);
  check(!site.tied, "{}, which would change this model's embedding too", what);
  check(strength == 1, "{}: its strength is 1, and not {}", what, strength);
  check(!trainable, "{}: it has no gradients here; have PEFT save it with path_initial_model_for_weight_conversion",
        what);
  check(module.rank() <= std::min(site.target.in, site.target.out), "{}: its rank {} is more than the layer's", what,
        module.rank());
  const bool largest = taken == TakenFromBase::largest_part;
  const LowRank part = part_of(site, module.rank(), largest, what);
  const float factor = largest ? -1 : -module.lora.scale;
  module.lora.up = cat({affine(module.lora.up, module.lora.scale, 0), affine(part.up, factor, 0)}, 1);
  module.lora.down = cat({module.lora.down, part.down}, 0);
  module.lora.scale = 1;
  module.alpha = float(module.rank());
  module.changes_base = true;
}

// PEFT puts the file's matrix in the model's place (set_peft_model_state_dict). Mostly they are one.
void Adapter::Source::check_base(const std::vector<std::string>& names, const LoraSite& site) const {
  for (const std::string& candidate : names) {
    const auto found = bases.find(candidate);
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

std::filesystem::path lora_weights(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return path;
  const std::filesystem::path diffusers = path / "pytorch_lora_weights.safetensors";
  const std::filesystem::path peft = path / "adapter_model.safetensors";
  return std::filesystem::exists(diffusers) && !std::filesystem::exists(peft) ? diffusers : peft;
}

std::vector<std::string> Adapter::notes_on(const LoraFile& lora) {
  const Source source = Source::open(lora.path, lora.strength, false);
  std::vector<std::string> notes;
  if (source.embeddings > 0)
    notes.push_back(fmt::format("{}: {} of embeddings are not applied, its LoRA is", source.name(),
                                count_of(source.embeddings, "tensor")));
  double numbers = 0;  // in the matrices of which parts are computed
  for (const auto& [name, entry] : source.entries) {
    const PeftConfig* config = source.settings.of(name, source.name()).first;
    const Shape &up = source.file.tensors().at(entry.up).shape, &down = source.file.tensors().at(entry.down).shape;
    if (config && config->taken == TakenFromBase::largest_part && up.rank() == 2 && down.rank() == 2)
      numbers += double(up[0]) * double(down[1]);
  }
  if (numbers > 2e8)
    notes.push_back(
        fmt::format("{}: PiSSA: the largest singular vectors of its {} are computed first, which takes minutes",
                    source.name(), count_of(source.entries.size(), "layer")));
  return notes;
}

Adapter::Adapter(LoraConfig config, ModuleNames names)
    : config_(std::move(config)), names_(std::move(names)), pattern_used_(config_->targets.size()) {
  check(config_->rank > 0, "LoRA: the rank should be at least 1, found {}", config_->rank);
  const float alpha = config_->alpha.value_or(float(config_->rank));
  check(std::isfinite(alpha) && alpha > 0, "LoRA: alpha should be a positive number, found {}", alpha);
  check(config_->dropout >= 0 && config_->dropout < 1, "LoRA: dropout should be from 0 to below 1, found {}",
        config_->dropout);
}

Adapter::Adapter(ModuleNames names, const std::vector<LoraFile>& files, bool trainable) : names_(std::move(names)) {
  for (const LoraFile& file : files) add_file(file.path, file.strength, trainable);
}
Adapter::~Adapter() = default;

void Adapter::add_file(const std::filesystem::path& path, float strength, bool trainable) {
  check(std::isfinite(strength), "{}: the strength should be a finite number, found {}", path.string(), strength);
  sources_.push_back(std::make_unique<Source>(Source::open(path, strength, trainable)));
}

bool Adapter::targeted(const std::string& path) {
  ++kinds_[kind_of(path)];
  bool wanted = false;
  for (size_t i = 0; i < config_->targets.size(); ++i) {
    const std::string_view pattern = config_->targets[i];
    const bool exclude = pattern.starts_with('-');
    if (!is_targeted_by(pattern.substr(exclude ? 1 : 0), path)) continue;
    wanted = !exclude;
    pattern_used_[i] = true;
  }
  return wanted;
}

Adapter::Module Adapter::fresh(const std::string& name, const LoraTarget& target, Memory& memory) const {
  const int64_t rank = config_->rank;
  const float bound = 1 / std::sqrt(float(target.in * target.kernel * target.kernel));
  Rng rng(named_seed(config_->seed, name), Stream::init);
  Module module{name, target, {}, config_->alpha.value_or(float(rank))};
  module.lora.down = affine(random_uniform(down_in_memory(target, rank), rng, memory), 2 * bound, -bound).trainable();
  module.lora.up = zeros({target.out, rank}, DType::f32, memory).trainable();
  module.lora.scale = module.alpha / float(rank);
  return module;
}

void Adapter::check_base(const LoraSite& site) const {
  for (const auto& source : sources_)
    if (!source->bases.empty()) source->check_base(names_(site.path), site);
}

std::optional<Adapter::Module> Adapter::from_files(const std::vector<std::string>& names, const LoraSite& site) {
  std::vector<Module> found;
  std::vector<const Source*> owners;
  for (const auto& source : sources_)
    if (const Source::Found entry = source->find(names); entry != source->entries.end()) {
      entry->second.used = true;
      found.push_back(source->read(names.front(), entry->first, entry->second, site));
      owners.push_back(source.get());
    }
  check(std::count_if(found.begin(), found.end(), [](const Module& m) { return m.changes_base; }) <= 1,
        "{}: its module {} is also in another LoRA, and PEFT takes parts out of the base for both (PiSSA, OLoRA)",
        owners.empty() ? "" : owners.back()->name(), names.front());
  if (found.size() <= 1) return found.empty() ? std::nullopt : std::optional(std::move(found.front()));

  // (x A1^T) B1^T + (x A2^T) B2^T is one LoRA of the summed rank.
  std::vector<Tensor> down, up;
  for (size_t i = 0; i < found.size(); ++i) {
    check(!owners[i]->trainable, "{}: its module {} is also in {}, but it is to be trained alone", owners[i]->name(),
          names.front(), owners[i == 0 ? 1 : 0]->name());
    down.push_back(found[i].lora.down);
    up.push_back(affine(found[i].lora.up, found[i].lora.scale, 0));
  }
  Module sum{names.front(), site.target, {cat(down, 0), cat(up, 1), 1}};
  sum.alpha = float(sum.rank());
  return sum;
}

// In `memory`; trainable factors become leaves there.
void Adapter::place(Factors& factors, Memory& memory) {
  for (Tensor* factor : {&factors.down, &factors.up}) {
    if (&factor->memory() == &memory) continue;
    const Tensor moved = factor->to(memory);
    *factor = factor->tracked() ? moved.trainable() : moved;
  }
}

Adapter::Module* Adapter::module_at(const LoraSite& site, Memory& memory) {
  check(!modules_.contains(site.path), "LoRA: {} was asked for before, in other company", site.path);
  const std::vector<std::string> names = names_(site.path);
  if (names.empty()) return nullptr;
  check_base(site);
  std::optional<Module> module = from_files(names, site);
  if (config_ && targeted(site.path)) {
    check(!module, "LoRA: {} is to be trained, but a LoRA file holds it too", site.path);
    module = fresh(names.front(), site.target, memory);
  }
  return module ? &modules_.emplace(site.path, std::move(*module)).first->second : nullptr;
}

std::optional<Lora> Adapter::match(const std::vector<LoraSite>& sites, const Residence& place) {
  const std::string& first = sites.front().path;
  if (const auto known = loras_.find(first); known != loras_.end()) return known->second;
  const MemoryScope scope(Purpose::adapter);
  std::vector<Placed> parts;
  int64_t outputs = 0;
  for (const LoraSite& site : sites) {
    if (Module* module = module_at(site, *place.memory)) parts.push_back({module, outputs});
    outputs += site.target.out;
  }
  if (parts.empty()) return std::nullopt;
  Lora lora = place.activations == DType::f32 ? joined(parts, *place.memory) : copied(parts, outputs, place);
  lora.dropout = dropout(parts, *place.memory);
  return loras_.emplace(first, std::move(lora)).first->second;
}

// Computes with the factors themselves: several downs become rows of one tensor.
Lora Adapter::joined(const std::vector<Placed>& parts, Memory& memory) {
  Shape shape = parts.front().module->lora.down.shape();
  shape[0] = 0;
  for (const Placed& part : parts) shape[0] += part.module->rank();
  Lora lora;
  if (parts.size() > 1) lora.down = Tensor::empty(shape, DType::f32, memory);
  int64_t row = 0;
  for (const auto& [module, column] : parts) {
    Factors& factors = module->lora;
    place(factors, memory);
    if (!lora.down) {
      lora.down = factors.down;
    } else {
      const Shape& down = factors.down.shape();
      const Tensor rows = lora.down.window(down, contiguous_strides(down), row * lora.down.stride()[0]);
      rows.backend().copy(rows, factors.down);
      factors.down = factors.down.tracked() ? rows.trainable() : rows;
    }
    lora.parts.push_back({factors.down, factors.up, factors.up, column, row, factors.scale});
    row += module->rank();
  }
  return lora;
}

// Computes with copies. The kernels want rows of 16 bytes: each down begins at a multiple of so many rows, and each up
// is padded to so many columns, with zeros. The ups lie one above the other, as their outputs do.
Lora Adapter::copied(const std::vector<Placed>& parts, int64_t outputs, const Residence& place) {
  const int64_t unit = 16 / int64_t(size_of(place.activations));
  const auto padded = [unit](int64_t rank) { return (rank + unit - 1) / unit * unit; };
  Shape shape = parts.front().module->lora.down.shape();
  shape[0] = 0;
  int64_t widest = 0;
  for (const Placed& part : parts) {
    shape[0] += padded(part.module->rank());
    widest = std::max(widest, padded(part.module->rank()));
  }
  Lora lora{zeros(shape, place.activations, *place.memory), {}};
  const Tensor ups = zeros({outputs, widest}, place.activations, *place.memory);
  int64_t row = 0;
  for (const auto& [module, column] : parts) {
    Factors& factors = module->lora;
    if (factors.up.tracked()) Adapter::place(factors, *place.memory);  // what is not trained is done with
    const Shape& down = factors.down.shape();
    module->down_copy = lora.down.window(down, contiguous_strides(down), row * lora.down.stride()[0]);
    module->up_copy = ups.window(factors.up.shape(), ups.stride(), column * widest);
    module->down_copy.backend().copy(module->down_copy, factors.down.to(*place.memory));
    module->up_copy.backend().copy(module->up_copy, factors.up.to(*place.memory));
    lora.parts.push_back({factors.down, factors.up, module->up_copy, column, row, factors.scale});
    row += padded(module->rank());
  }
  return lora;
}

// One mask for linears that share their input.
LoraDropout Adapter::dropout(const std::vector<Placed>& parts, Memory& memory) {
  if (!config_ || config_->dropout == 0) return {};
  for (const Placed& part : parts)
    check(part.module->lora.up.tracked(), "LoRA: dropout in {}, which is not trained", part.module->name);
  if (!draw_) draw_ = Tensor::of(std::vector<int64_t>{0}, {1}, memory);
  return {config_->dropout, named_seed(config_->seed, parts.front().module->name), draw_, dropout_paused_};
}

void Adapter::set_draw(int64_t draw) {
  if (!draw_) return;
  check(draw >= 0 && draw < int64_t{1} << 32, "LoRA: dropout has no mask of number {}", draw);
  draw_.memory().write(draw_.view().data, &draw, sizeof draw);
}

void Adapter::check_complete(const std::vector<std::string>& elsewhere) const {
  for (const auto& source : sources_) {
    std::vector<std::string> unknown;
    size_t used = 0;
    for (const auto& [name, entry] : source->entries) {
      if (entry.used)
        ++used;
      else if (!starts_with_any(name, elsewhere))
        unknown.push_back(quote(name));
    }
    check(unknown.empty(), "{}: {} of its {} fit no layer of this model: {}", source->name(), unknown.size(),
          count_of(source->entries.size(), "module"), first_few(unknown));
    check(used > 0, "{}: none of its {} is in the component that was loaded", source->name(),
          count_of(source->entries.size(), "module"));
    for (const auto& [name, base] : source->bases)
      check(base.used, "{}: {} fits no layer of this model", source->name(), quote(base.key));
  }
  if (!config_) return;
  for (size_t i = 0; i < pattern_used_.size(); ++i)
    if (!pattern_used_[i])
      fail("--targets: {} matches no module of this model; it has {}", quote(config_->targets[i]), commonest_kinds());
  check(!modules_.empty(), "LoRA: the target patterns leave no module to train");
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

std::vector<Parameter> Adapter::parameters() const {
  std::vector<Parameter> all;
  for (const auto& [path, module] : modules_) {
    if (!module.lora.up.tracked()) continue;
    all.push_back({module.down_key, module.lora.down, module.down_copy});
    all.push_back({module.up_key, module.lora.up, module.up_copy});
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
  for (const auto& [path, module] : modules_) {
    all[module.name + ".lora_down.weight"] = converted(down_in_file(module.lora.down.detached(), module.target));
    all[module.name + ".lora_up.weight"] = converted(up_in_file(module.lora.up.detached(), module.target));
    all[module.name + ".alpha"] = full({}, module.alpha);
  }
  return all;
}

std::map<std::string, Tensor> Adapter::gradients(const Grads& grads) const {
  std::map<std::string, Tensor> all;
  for (const auto& [path, module] : modules_) {
    if (const Tensor d = grads[module.lora.down]) all[module.down_key] = down_in_file(d, module.target);
    if (const Tensor d = grads[module.lora.up]) all[module.up_key] = up_in_file(d, module.target);
  }
  return all;
}

void Adapter::save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata,
                   DType dtype) const {
  save_safetensors(file, tensors(dtype), metadata);
}

}  // namespace wick
