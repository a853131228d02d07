#include "wick/nn/adapter_source.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "wick/io/count.h"
#include "wick/io/gguf.h"
#include "wick/io/quote.h"
#include "wick/nn/adapter_types.h"
#include "wick/nn/dora.h"
#include "wick/nn/low_rank.h"
#include "wick/nn/recognise.h"
#include "wick/nn/token_rows.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

void check_algorithm(std::string_view key, const std::string& file) {
  const std::string_view other = other_lora_algorithm(key);
  check(other.empty(), "{}: {} is {}, which Wick does not read", file, quote(key), other);
}

// Settings that PEFT keeps beside the tensors, by the algorithms that they may be of.
bool may_be_of(PeftConfig::Type type, const AdapterAlgorithm* algorithm) {
  switch (type) {
    case PeftConfig::Type::lora:
      return algorithm == &lora_algorithm() || algorithm == &embedding_algorithm() ||
             algorithm == &token_rows_algorithm();
    case PeftConfig::Type::loha:
      return algorithm == &loha_algorithm();
    case PeftConfig::Type::lokr:
      return algorithm == &lokr_algorithm();
    case PeftConfig::Type::oft:
      return algorithm == &peft_oft_algorithm();
    case PeftConfig::Type::boft:
      return algorithm == &peft_boft_algorithm();
    case PeftConfig::Type::ia3:
      return algorithm == &peft_ia3_algorithm();
  }
  return false;
}

bool starts_with_any(std::string_view name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& p) { return name.starts_with(p); });
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

float LoraFile::strength_of(const std::string& path_in_model) const {
  const auto part = parts.find(path_in_model.substr(0, path_in_model.find('.')));
  return part == parts.end() ? strength : part->second;
}

AdapterTensors::AdapterTensors(const LoraFile& read) : path_(read.path), read_(read.tensors) {
  for (const auto& [name, tensor] : *read_)
    infos_[name] = {.dtype_name = std::string(name_of(tensor.dtype())),
                    .dtype = tensor.dtype(),
                    .shape = tensor.shape(),
                    .bytes = uint64_t(bytes_of(tensor.dtype(), tensor.shape()))};
}

std::map<std::string, std::string> AdapterTensors::metadata() const {
  return file_ ? file_->metadata() : std::map<std::string, std::string>();
}

Tensor AdapterTensors::load_numbers(const std::string& name) const {
  return file_ ? file_->load_numbers(name) : cast(read_->at(name), DType::f32);
}

AdapterSource AdapterSource::open(const LoraFile& lora, bool trainable) {
  const auto check_finite = [&](float strength) {
    check(std::isfinite(strength), "{}: the strength should be a finite number, found {}", lora.path.string(),
          strength);
  };
  check_finite(lora.strength);
  for (const auto& [part, strength] : lora.parts) check_finite(strength);
  if (lora.tensors) {
    AdapterSource read(AdapterTensors(lora), lora, trainable, {});
    read.index();
    return read;
  }
  const std::filesystem::path weights = lora_weights(lora.path);
  check(!GgufFile::is_gguf(weights),
        "{}: is a GGUF file, which Wick reads as a LoRA of a language model, and not to train it further; expected a "
        "safetensors file: wick convert makes one of it",
        weights.string());
  LoraSettings settings = LoraSettings::beside(weights);  // first: tells of other kinds of adapters best
  AdapterSource opened(AdapterTensors(SafetensorsFile::open(weights)), lora, trainable, std::move(settings));
  if (!opened.settings_.config) opened.settings_.read_header(*opened.file_.file());
  opened.index();
  return opened;
}

// With the model that it seems to be for, where shapes may be those of another one.
std::string AdapterSource::in_words() const {
  return model_ ? fmt::format("{}: a LoRA for {}", name(), model_) : name();
}

void AdapterSource::index() {
  check(!file_.tensors().empty(), "{}: holds no tensors", name());
  for (const auto& [key, info] : file_.tensors()) check_algorithm(key, name());
  if (const SafetensorsFile* file = file_.file()) {
    check_adapter_types(*file);
    check_extents(*file);
  }
  const auto has = [this](const std::string& key) { return file_.has(key); };
  const auto is_ours = [&](const auto& tensor) { return parse_adapter_key(tensor.first, has).has_value(); };
  if (!std::ranges::any_of(file_.tensors(), is_ours))
    fail("{}: expected a LoRA, found {}", name(),
         file_.file() ? contents_in_words(safetensors_source(file_.path())) : "no LoRA of this model");
  for (const auto& [key, info] : file_.tensors()) add(key);
  // Some programs write an alpha beside a difference, which has no use for it.
  std::erase_if(entries_, [this](const auto& entry) {
    const Entry& e = entry.second;
    return !e.algorithm && e.magnitude.empty() && e.scalar.empty() && differences_.contains(entry.first);
  });
  check(!entries_.empty() || !differences_.empty(), "{}: holds no module of a LoRA", name());
  model_ = model_of_lora(module_names());
  const bool whole = tells_its_scale();
  for (const auto& [base, entry] : entries_) {
    check_factors(base, entry);
    check_setting(base, entry, whole);
  }
  for (const auto& [base, entry] : differences_) check_factors(base, entry);
}

std::set<std::string> AdapterSource::module_names() const {
  std::set<std::string> names;
  for (const Entries* entries : {&entries_, &differences_})
    for (const auto& [base, entry] : *entries) names.insert(base);
  return names;
}

// Transformers of pictures under PEFT's names in one file, for which programs take a scale of 1: diffusers for FLUX's
// own modules (fal's trainer of Kontext), ComfyUI for diffusers' modules of SD3. PEFT's own files are another thing.
bool AdapterSource::tells_its_scale() const {
  const std::set<std::string> names = module_names();
  const auto has = [&](std::string_view block) {
    const std::string stem = std::string(kPeftPrefix).append(block);
    const auto at = names.lower_bound(stem);
    return at != names.end() && at->starts_with(stem);
  };
  const bool is_sd3 = has("transformer_blocks.") && !has("single_transformer_blocks.");
  return file_.path().filename() != kPeftWeights && (is_sd3 || has("double_blocks.") || has("single_blocks."));
}

void AdapterSource::check_setting(const std::string& base, const Entry& entry, bool whole) const {
  // PEFT loads no such file either; ComfyUI's choice of alpha, the rank, is a guess.
  check(settings_.config || !entry.alpha.empty() || !base.starts_with(kPeftPrefix) ||
            (whole && entry.algorithm == &lora_algorithm()),
        "{}: PEFT keeps the alpha of {} in {}, which is not beside it; put both files into one folder, this one as "
        "adapter_model.safetensors",
        name(), quote(base), kPeftLast);
  const PeftConfig* config = settings_.of(base, name()).first;
  check(!config || may_be_of(config->type, entry.algorithm), "{}: {} is of a {}, but {} has another peft_type", name(),
        quote(first_key(entry)), entry.algorithm->name(), config ? config->source : "");
}

void AdapterSource::check_factors(const std::string& base, const Entry& entry) const {
  const auto& factors = (entry.algorithm ? *entry.algorithm : lora_algorithm()).factors();
  for (size_t i = 0; i < factors.size(); ++i) {
    const bool is_there = entry.algorithm && !entry.keys[i].empty();
    check(is_there || factors[i].optional, "{}: {} has no {} factor", name(), quote(base), factors[i].name);
    check(!is_there || !trainable_ || !factors[i].frozen_only,
          "{}: {} is a {} of a {}, which is applied, and not trained; expected a file without such", name(),
          quote(is_there ? entry.keys[i] : base), factors[i].name, entry.algorithm ? entry.algorithm->name() : "");
  }
  check(!trainable_ || entry.scalar.empty(), "{}: {} is applied, and not trained; expected a file without such", name(),
        quote(entry.scalar));
}

void AdapterSource::add(const std::string& key) {
  if (is_bundled_embedding(key)) return add_embedding(key);
  if (add_saved(key)) return;
  if (const std::string_view module = module_of_base(key); !module.empty()) {
    bases_[std::string(module)].key = key;
    return;
  }
  const auto found = parse_adapter_key(key, [this](const std::string& other) { return file_.has(other); });
  check(found.has_value(),
        "{}: {} is no tensor of a LoRA: names should end in .lora_down.weight, .lora_up.weight or .alpha", name(),
        quote(key));
  const AdapterKey parsed = *found;
  Entry& entry = (parsed.algorithm == &full_algorithm() ? differences_ : entries_)[std::string(parsed.module)];
  if (parsed.algorithm) {
    check(!entry.algorithm || entry.algorithm == parsed.algorithm, "{}: {} is of a {}, and others of {} are of a {}",
          name(), quote(key), parsed.algorithm->name(), quote(parsed.module),
          entry.algorithm ? entry.algorithm->name() : "");
    entry.algorithm = parsed.algorithm;
    entry.keys.resize(parsed.algorithm->factors().size());
  }
  std::string& slot = parsed.algorithm             ? entry.keys[parsed.factor]
                      : parsed.name == "scalar"    ? entry.scalar
                      : parsed.name == "magnitude" ? entry.magnitude
                                                   : entry.alpha;
  check(slot.empty(), "{}: {} and {} are the same factor of one module", name(), quote(slot), quote(key));
  slot = key;
}

// A weight or bias of the model itself that PEFT trained and saved, by its config: in place of the model's.
bool AdapterSource::add_saved(const std::string& key) {
  const size_t dot = key.rfind('.');
  if (!settings_.config || dot == key.npos || !key.starts_with(kPeftPrefix)) return false;
  const std::string module = key.substr(0, dot), kind = key.substr(dot);
  const bool is_weight = kind == ".weight" && settings_.config->saves(module),
             is_bias = kind == ".bias" && settings_.config->saves_biases && !parse_adapter_key(key);
  if (!is_weight && !is_bias) return false;
  Entry& entry = differences_[module];
  entry.algorithm = &full_algorithm();
  entry.keys.resize(entry.algorithm->factors().size());
  entry.keys[is_weight ? kWholeWeight : kWholeBias] = key;
  return true;
}

// bundle_emb.WORD.ENCODER, where a word may have dots. Of SD 1, and of an encoder's outputs ("clip_l_out"), are others.
void AdapterSource::add_embedding(const std::string& key) {
  const size_t begin = key.find('.') + 1, dot = key.rfind('.');
  const std::string encoder = key.substr(dot + 1);
  if (dot > begin && (encoder == "clip_l" || encoder == "clip_g" || encoder == "t5"))
    words_[key.substr(begin, dot - begin)][encoder] = key;
  else
    other_embeddings_.push_back(key);
}

std::vector<std::string> AdapterSource::words() const {
  std::vector<std::string> all;
  for (const auto& [word, keys] : words_) all.push_back(word);
  return all;
}

Tensor AdapterSource::word_vectors(const std::string& word, const std::string& encoder) const {
  const auto found = words_.find(word);
  if (found == words_.end() || !found->second.contains(encoder)) return {};
  const std::string& key = found->second.at(encoder);
  const Tensor vectors = read_finite(key);
  check((vectors.rank() == 1 || vectors.rank() == 2) && vectors.numel() > 0,
        "{}: {} should hold vectors, found shape {}", name(), quote(key), vectors.shape());
  return vectors.rank() == 2 ? vectors : reshape(vectors, {1, -1});
}

std::map<std::string, Tensor> AdapterSource::embeddings() const {
  std::map<std::string, Tensor> all;
  for (const auto& [key, info] : file_.tensors())
    if (is_bundled_embedding(key)) all[key] = file_.load(key);
  return all;
}

// Whether a LoRA brings a bias of the outputs.
bool AdapterSource::has_bias(const Entry& entry) {
  const auto& factors = entry.algorithm->factors();
  const auto bias = std::ranges::find(factors, "bias", &AdapterAlgorithm::Factor::name);
  return bias != factors.end() && !entry.keys[size_t(bias - factors.begin())].empty();
}

std::string AdapterSource::first_key(const Entry& entry) {
  return *std::ranges::find_if(entry.keys, [](const std::string& key) { return !key.empty(); });
}

std::vector<const ModuleName*> AdapterSource::find(const std::vector<ModuleName>& names) {
  std::vector<const ModuleName*> found;
  const auto key_of = [&](const std::string& module) { return first_key(entries_of(module).front()->second); };
  for (const ModuleName& candidate : names) {
    const auto is_known = [&](const ModuleName* other) { return other->name == candidate.name; };
    const std::vector<Entries::const_iterator> entries = entries_of(candidate.name);
    if (entries.empty() || std::ranges::any_of(found, is_known)) continue;
    for (const ModuleName* other : found)
      check(!other->rows.overlap(candidate.rows),
            "{}: {} and {} are on the same rows of one layer; a LoRA has them once, fused or split", name(),
            quote(key_of(other->name)), quote(key_of(candidate.name)));
    for (const auto& entry : entries) entry->second.used = true;
    found.push_back(&candidate);
  }
  return found;
}

std::vector<AdapterSource::Entries::const_iterator> AdapterSource::entries_of(const std::string& module) const {
  std::vector<Entries::const_iterator> all;
  for (const Entries* entries : {&entries_, &differences_})
    if (const auto entry = entries->find(module); entry != entries->end()) all.push_back(entry);
  return all;
}

bool AdapterSource::stands_apart(const std::vector<ModuleName>& names) const {
  const auto is_apart = [](const Entries::const_iterator& entry) {
    return !entry->second.algorithm->stacks() || !entry->second.magnitude.empty();
  };
  return std::ranges::any_of(
      names, [&](const ModuleName& candidate) { return std::ranges::any_of(entries_of(candidate.name), is_apart); });
}

std::vector<AdapterFactor> AdapterSource::read_factors(const Entry& entry) const {
  std::vector<AdapterFactor> factors;
  for (const std::string& key : entry.keys)
    factors.push_back(key.empty() ? AdapterFactor() : AdapterFactor{key, read_finite(key)});
  return factors;
}

std::vector<AdapterModule> AdapterSource::read(const std::string& written_name, const ModuleName& found,
                                               const LoraSite& site) const {
  std::vector<AdapterModule> modules;
  for (const auto& entry : entries_of(found.name))
    modules.push_back(read_entry(written_name, found, site, entry->second));
  return modules;
}

// Which layers an algorithm may be on.
void AdapterSource::check_layer(const Entry& entry, const LoraTarget& target) const {
  const bool of_lookup = entry.algorithm == &embedding_algorithm(), of_norm = entry.algorithm == &norm_algorithm(),
             of_both = entry.algorithm == &full_algorithm();
  check((of_lookup == target.is_lookup || of_both) && !of_norm, "{}: {} is of a {}, and this model has {} there",
        in_words(), quote(first_key(entry)), entry.algorithm->name(),
        target.is_lookup    ? "an embedding"
        : target.kernel > 1 ? "a convolution"
                            : "a linear layer");
  check(!target.is_lookup || entry.magnitude.empty(), "{}: {} is a magnitude of an embedding, which Wick does not read",
        name(), quote(entry.magnitude));
}

AdapterModule AdapterSource::read_entry(const std::string& written_name, const ModuleName& found, const LoraSite& site,
                                        const Entry& entry) const {
  const std::string& name_in_file = found.name;
  const ModuleRows& rows = found.rows;
  if (entry.algorithm == &token_rows_algorithm()) return read_token_rows(written_name, name_in_file, site, entry);
  check_layer(entry, site.target);
  AdapterModule module{int(rows.parts.size()) == rows.of ? written_name : name_in_file, site.target, entry.algorithm};
  const int64_t part = site.target.out / rows.of;
  check(part * rows.of == site.target.out, "{}: {} is {} of {} equal parts of {} outputs", name(), quote(name_in_file),
        rows.parts.size(), rows.of, site.target.out);
  module.target.out = part * int64_t(rows.parts.size());
  module.first = part * rows.first();
  if (!std::ranges::is_sorted(rows.parts))
    for (const int index : rows.parts) module.order.push_back(index - rows.first());
  module.rotation = rotation_of(name_in_file, entry);
  module.factors = read_factors(entry);
  module.algorithm->from_file(module, in_words());
  read_scale(module, name_in_file, entry);
  module.strength = given_.strength_of(site.path);
  check(std::isfinite(module.total_scale()), "{}: {} has an alpha of {}, too large for its rank and strength", name(),
        quote(name_in_file), module.alpha);
  if (!entry.magnitude.empty()) {
    module.magnitude.factor = {entry.magnitude, read_finite(entry.magnitude)};
    module.magnitude.strength = std::exchange(module.strength, 1);
    read_magnitude(module, in_words());
  }
  const PeftConfig* config = settings_.of(name_in_file, name()).first;
  if (config && entry.algorithm != &full_algorithm()) {
    check(!config->dora || module.magnitude.factor.value, "{}: {} has no magnitude, but {} says use_dora", name(),
          quote(name_in_file), config->source);
    check(!config->bias || entry.algorithm != &lora_algorithm() || has_bias(entry),
          "{}: {} has no bias, but {} says lora_bias", name(), quote(name_in_file), config->source);
    take_part_out(module, config->taken, name_in_file, site);
  }
  if (trainable_) make_trainable(module);
  return module;
}

AdapterModule AdapterSource::read_token_rows(const std::string& written_name, const std::string& name_in_file,
                                             const LoraSite& site, const Entry& entry) const {
  static const std::vector<int64_t> none;
  const auto [config, in_model] = settings_.of(name_in_file, name());
  const std::string& key = entry.keys.front();
  const std::vector<int64_t>& tokens = config ? config->tokens_of(in_model) : none;
  check(!tokens.empty(), "{}: {} holds rows of tokens, of which no trainable_token_indices tells", name(), quote(key));
  check(!site.target.conv, "{}: {} is of tokens, and this model has a convolution there", name(), quote(key));
  AdapterModule module = lora_of_token_rows(written_name, site.target, {key, read_finite(key)}, tokens,
                                            site.base ? site.base() : Tensor(), name());
  module.strength = given_.strength_of(site.path);
  return module;
}

std::vector<AdapterModule> AdapterSource::read_tied(const std::string& written_name, const LoraSite& head) const {
  const auto is_rows = [](const auto& entry) { return entry.second.algorithm == &token_rows_algorithm(); };
  const bool has_own = std::ranges::any_of(
      entries_, [&](const auto& entry) { return is_rows(entry) && entry.first.ends_with("lm_head"); });
  std::vector<AdapterModule> modules;
  for (const auto& entry : entries_)
    if (is_rows(entry) && !has_own) modules.push_back(read_token_rows(written_name, entry.first, head, entry.second));
  return modules;
}

void AdapterSource::read_scale(AdapterModule& module, const std::string& name_in_file, const Entry& entry) const {
  const int64_t rank = module.algorithm->rank(module);
  const float scalar = entry.scalar.empty() ? 1 : number(entry.scalar);
  module.alpha = scalar * alpha_of(name_in_file, entry, rank);
  module.scale = rank > 0 ? module.alpha / float(rank) : scalar;
  const auto [config, in_model] = settings_.of(name_in_file, name());
  if (rank > 0 || !config || entry.algorithm != &lokr_algorithm()) return;
  // PEFT has a scale where LyCORIS has none, of two whole matrices.
  const auto told = int64_t(config->rank_of(in_model).value_or(0));
  check(told > 0, "{}: r is missing, on which the scale of {} depends", config->source, quote(name_in_file));
  Tensor& first = module.factors.front().value;
  first = first * (config->alpha_of(in_model, told) / float(told));
}

RotationSettings AdapterSource::rotation_of(const std::string& name_in_file, const Entry& entry) const {
  RotationSettings rotation;
  if (const PeftConfig* config = settings_.of(name_in_file, name()).first) return config->rotation;
  constexpr int64_t kOneTrainersTerms = 5;
  rotation.is_onetrainers = entry.algorithm == &peft_oft_algorithm();
  if (rotation.is_onetrainers) rotation.neumann_terms = kOneTrainersTerms;
  if (entry.algorithm != &oft_algorithm()) return rotation;
  const std::map<std::string, std::string> metadata = file_.metadata();
  const auto module = metadata.find("ss_network_module");
  rotation.constrains_always = module != metadata.end() && module->second.starts_with("networks.oft");
  if (!entry.alpha.empty()) rotation.constraint = number(entry.alpha);
  return rotation;
}

Tensor AdapterSource::read_vector(const ModuleName& found, const std::string& path, bool is_bias, int64_t count) const {
  Tensor sum;
  for (const auto& entry : entries_of(found.name)) {
    const auto& [algorithm, keys, alpha, scalar, magnitude, used, vectors] = entry->second;
    check(algorithm == &norm_algorithm() || algorithm == &full_algorithm(),
          "{}: {} is of a {}, and this model has a norm there", in_words(), quote(first_key(entry->second)),
          algorithm->name());
    for (const size_t whole : {kWholeWeight, kWholeBias})
      check(algorithm != &full_algorithm() || keys[whole].empty(),
            "{}: {} takes the place of a norm's numbers, and Wick adds to them alone; merge it with the program that "
            "wrote it",
            name(), quote(algorithm == &full_algorithm() ? keys[whole] : ""));
    const std::string& key = keys[is_bias ? kDifferenceOfBias : kDifference];
    if (key.empty()) continue;
    const Tensor change = read_finite(key);
    check(change.shape() == Shape{count}, "{}: {} should have shape {} for this model, found {}", in_words(),
          quote(key), Shape{count}, change.shape());
    vectors.insert(key);
    const Tensor share = change * given_.strength_of(path);
    sum = sum ? sum + share : share;
  }
  return sum;
}

void AdapterSource::make_trainable(AdapterModule& module) const {
  check(
      module.algorithm->keeps_order(module),
      "{}: {} has its outputs in another order than this model, which a {} of these sizes cannot be written in: it is "
      "applied, and not trained; expected a file without that module",
      name(), quote(module.name), module.algorithm->name());
  for (AdapterFactor& factor : module.factors)
    if (factor.value) factor.value = factor.value.trainable();
  if (Tensor& magnitude = module.magnitude.factor.value) magnitude = magnitude.trainable();
}

float AdapterSource::number(const std::string& key) const {
  const Tensor value = file_.load_numbers(key);
  check(value.numel() == 1 && std::isfinite(value.item()), "{}: {} should be one finite number", name(), quote(key));
  return value.item();
}

// ai-toolkit writes an alpha of 9999999999 beside the whole matrices of a LoKr, which f16 does not hold. Where there is
// no rank, no alpha counts.
bool AdapterSource::is_infinite(const std::string& key) const {
  const Tensor value = file_.load_numbers(key);
  return value.numel() == 1 && std::isinf(value.item());
}

float AdapterSource::alpha_of(const std::string& name_in_file, const Entry& entry, int64_t rank) const {
  const auto [config, module] = settings_.of(name_in_file, name());
  if (config && rank > 0) {
    const std::optional<double> told = config->rank_of(module);
    check(!told || *told == double(rank), "{}: {} has rank {}, but {} says {}", name(), quote(name_in_file), rank,
          config->source, told.value_or(0));
  }
  if (entry.alpha.empty()) return config ? config->alpha_of(module, rank) : float(rank);
  if (rank == 0 && is_infinite(entry.alpha)) return 1;
  const float alpha = number(entry.alpha);
  check(!config || config->alpha_of(module, rank) == alpha, "{}: {} is {}, but {} makes it {}", name(),
        quote(entry.alpha), alpha, config ? config->source : "", config ? config->alpha_of(module, rank) : 0);
  return alpha;
}

// PEFT takes a part out of the base when it loads such an adapter; here the module takes it out, which is the same:
// W - P + s B A is W and a LoRA of twice the rank (as PEFT itself writes it on request: subtract_mutated_init).
void AdapterSource::take_part_out(AdapterModule& module, TakenFromBase taken, const std::string& name_in_file,
                                  const LoraSite& site) const {
  if (taken == TakenFromBase::nothing) return;
  const std::string what = fmt::format("{}: {} belongs to a base of which PEFT took a part out ({})", name(),
                                       quote(name_in_file), taken == TakenFromBase::largest_part ? "PiSSA" : "OLoRA");
  check(module.algorithm == &lora_algorithm() && !module.magnitude.factor.value, "{}, which it does of plain LoRAs",
        what);
  check(site.target.kernel == 1 && !site.target.conv, "{}, which it does of linear layers alone", what);
  check(!site.tied, "{}, which would change this model's embedding too", what);
  const float strength = given_.strength_of(site.path);
  check(strength == 1, "{}: its strength is 1, and not {}", what, strength);
  check(!trainable_, "{}: it has no gradients here; have PEFT save it with path_initial_model_for_weight_conversion",
        what);
  const int64_t rank = module.algorithm->rank(module);
  check(rank <= std::min(module.target.in, module.target.out), "{}: its rank {} is more than the layer's", what, rank);
  const bool largest = taken == TakenFromBase::largest_part;
  const LowRank part = part_of(module, site, largest, what);
  AdapterModule removed{module.name, module.target, &lora_algorithm(), {{"", part.down}, {"", part.up}}};
  removed.scale = largest ? -1 : -module.scale;
  module.algorithm->add(module, removed);
  module.changes_base = true;
}

// PEFT puts the file's matrix in the model's place (set_peft_model_state_dict). Mostly they are one.
void AdapterSource::check_base(const std::vector<ModuleName>& names, const LoraSite& site) const {
  for (const ModuleName& candidate : names) {
    const auto found = bases_.find(candidate.name);
    if (found == bases_.end()) continue;
    found->second.used = true;
    if (!site.base) continue;
    const Tensor theirs = file_.load_numbers(found->second.key);
    const Shape shape{site.target.out, site.target.in};
    check(theirs.shape() == shape, "{}: {} has shape {}, and the model's has {}: Wick keeps the model's vocabulary",
          name(), quote(found->second.key), theirs.shape(), shape);
    const Tensor ours = site.base();
    const std::optional<DType> dtype = file_.tensors().at(found->second.key).dtype;
    const bool comparable = is_float(ours.dtype()) && dtype && is_float(*dtype);
    // Rounded as theirs are.
    check(comparable && cast(cast(ours, *dtype), DType::f32).to_vector() == theirs.to_vector(),
          "{}: {} is not the model's own: Wick adds LoRAs to a model, and replaces none of its weights", name(),
          quote(found->second.key));
  }
}

void AdapterSource::check_complete(const std::vector<std::string>& elsewhere) const {
  std::vector<std::string> unknown;
  std::set<std::string> used, others;
  const std::set<std::string> all = module_names();
  for (const std::string& base : all) {
    const bool is_used = entries_of(base).front()->second.used;
    if (is_used) used.insert(base);
    if (is_used || starts_with_any(base, elsewhere)) continue;
    others.insert(base);
    unknown.push_back(quote(base));
  }
  const char* model = model_of_lora(others);
  check(unknown.empty(), "{}: {} of its {} fit no layer of this model: {}{}", name(), unknown.size(),
        count_of(all.size(), "module"), first_few(unknown),
        model && model != model_of_lora(used) ? fmt::format("; it looks like a LoRA for {}", model) : "");
  check(!used.empty(), "{}: none of its {} is in the component that was loaded", name(),
        count_of(all.size(), "module"));
  for (const auto& [base, matrix] : bases_)
    check(matrix.used, "{}: {} fits no layer of this model", name(), quote(matrix.key));
  for (const std::string& base : used)
    for (const auto& entry : entries_of(base)) check_vectors(entry->second);
}

// Whether a norm has all that the file changes of it.
void AdapterSource::check_vectors(const Entry& entry) const {
  if (entry.vectors.empty() && entry.algorithm != &norm_algorithm()) return;
  for (const std::string& key : entry.keys)
    check(key.empty() || entry.vectors.contains(key), "{}: {} fits no vector of this model's norm", name(), quote(key));
}

std::vector<std::string> AdapterSource::notes() const {
  std::vector<std::string> all;
  if (!other_embeddings_.empty())
    all.push_back(fmt::format("{}: {} of embeddings {} not applied, which replace no tokens: {}", name(),
                              count_of(other_embeddings_.size(), "tensor"),
                              other_embeddings_.size() == 1 ? "is" : "are", first_few(other_embeddings_)));
  double numbers = 0;  // in the matrices of which parts are computed
  for (const auto& [base, entry] : entries_) {
    const PeftConfig* config = settings_.of(base, name()).first;
    if (!config || config->taken != TakenFromBase::largest_part) continue;
    const Shape &down = file_.tensors().at(entry.keys[0]).shape, &up = file_.tensors().at(entry.keys[1]).shape;
    if (up.rank() == 2 && down.rank() == 2) numbers += double(up[0]) * double(down[1]);
  }
  if (numbers > 2e8)
    all.push_back(
        fmt::format("{}: PiSSA: the largest singular vectors of its {} are computed first, which takes minutes", name(),
                    count_of(entries_.size(), "layer")));
  return all;
}

Tensor AdapterSource::read_finite(const std::string& key) const {
  const Tensor values = file_.load_numbers(key);
  const float* data = values.data<float>();
  const float* end = data + values.numel();
  const float* odd = std::find_if_not(data, end, [](float value) { return std::isfinite(value); });
  if (odd != end) fail("{}: {} holds {}; the LoRA is damaged", name(), quote(key), *odd);
  return values;
}

}  // namespace wick
