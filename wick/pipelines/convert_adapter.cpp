#include "wick/pipelines/convert_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "wick/io/count.h"
#include "wick/io/quote.h"
#include "wick/models/llama_config.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/low_rank.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

bool is_same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         std::memcmp(contiguous(a).view().data, contiguous(b).view().data, size_t(bytes_of(a.dtype(), a.shape()))) == 0;
}

// Tensors of one dtype stay as they are.
Tensor joined_tensors(std::vector<Tensor> parts, int axis) {
  const DType dtype = parts.front().dtype();
  if (!std::ranges::all_of(parts, [&](const Tensor& part) { return part.dtype() == dtype; }))
    for (Tensor& part : parts) part = cast(part, DType::f32);
  return cat(parts, axis);
}

Tensor as_matrix(const Tensor& factor) {
  return factor.rank() == 2 ? factor : reshape(factor, {factor.dim(0), factor.dim(1)});
}

// By column of an up factor, the parts between `bounds` in which it has numbers other than 0.
std::vector<std::set<size_t>> reach_of(const LoraRows& fused, const std::vector<int64_t>& bounds) {
  const Tensor up = as_matrix(fused.lora.up);
  const std::vector<float> values = up.to_vector();
  std::vector<std::set<size_t>> reach(size_t(up.dim(1)));
  for (int64_t row = 0; row < up.dim(0); ++row) {
    const size_t part = size_t(std::ranges::upper_bound(bounds, fused.first + row) - bounds.begin()) - 1;
    for (size_t column = 0; column < reach.size(); ++column)
      if (values[size_t(row) * reach.size() + column] != 0) reach[column].insert(part);
  }
  return reach;
}

struct Block {
  size_t part;
  int64_t begin, end;  // columns of up, rows of down
};

// The blocks of a block diagonal up, of several parts in their order or of one that leaves others out; none for all
// else. A column of zeros between two blocks is told by their equal ranks, or goes to the first.
std::vector<Block> blocks_of(const LoraRows& fused, const std::vector<int64_t>& bounds) {
  const std::vector<std::set<size_t>> reach = reach_of(fused, bounds);
  std::vector<Block> blocks;
  for (size_t i = 0; i < reach.size(); ++i) {
    if (reach[i].size() > 1) return {};
    if (reach[i].empty()) continue;
    const size_t part = *reach[i].begin();
    if (!blocks.empty() && part < blocks.back().part) return {};
    if (blocks.empty() || part != blocks.back().part) blocks.push_back({part, int64_t(i), 0});
    blocks.back().end = int64_t(i) + 1;
  }
  if (blocks.empty()) return {};
  const int64_t rank = int64_t(reach.size()), count = int64_t(blocks.size()), each = rank / count;
  const auto fits = [&](const Block& block) {
    const int64_t begin = each * (&block - blocks.data());
    return begin <= block.begin && block.end <= begin + each;
  };
  const bool are_equal = each * count == rank && std::ranges::all_of(blocks, fits);
  for (int64_t i = 0; i < count; ++i) {
    blocks[size_t(i)].begin = i == 0 ? 0 : blocks[size_t(i) - 1].end;
    blocks[size_t(i)].end = are_equal ? each * (i + 1) : i + 1 == count ? rank : blocks[size_t(i) + 1].begin;
  }
  return blocks;
}

// The bounds of the parts that names stand for, of a module with so many outputs.
std::vector<int64_t> bounds_of(const std::vector<const ModuleName*>& names, int64_t outputs) {
  std::vector<int64_t> bounds;
  for (const ModuleName* name : names) bounds.push_back(outputs / name->rows.of * name->rows.first());
  bounds.push_back(outputs);
  std::ranges::sort(bounds);
  return bounds;
}

struct Source {  // a file's LoRAs on rows of a module, in the order of these
  std::vector<LoraRows> loras = {};
};
struct Sources {
  const NamedModule* module = nullptr;
  std::string base = {};             // a name of it
  std::vector<Source> by_file = {};  // of the files that have it
};
using SourcesByPath = std::map<std::string, Sources>;

void gather(const AdapterFile& file, const AdapterModules& modules, const LoraFile& strengths, SourcesByPath& all) {
  std::map<std::string, std::map<int64_t, std::pair<std::string, LoraRows>>> found;  // by path and first row
  for (const auto& [base, stored] : file.loras) {
    const auto [module, name] = modules.find(base);
    LoraRows lora = from_stored(stored, name->rows);
    const double strength = double(strengths.strength_of(module->path));
    if (strength != 1) lora.lora.alpha *= strength, lora.lora.stored = {};
    auto& here = found[module->path];
    for (const auto& [first, other] : here)
      check(first >= lora.end() || lora.first >= other.second.end(),
            "{}: {} and {} are on the same rows of one layer; a LoRA has them once, fused or split", file.name,
            quote(other.first), quote(base));
    here.emplace(lora.first, std::pair(base, lora));
    all[module->path].module = module;
  }
  for (auto& [path, by_row] : found) {
    Sources& sources = all[path];
    sources.base = by_row.begin()->second.first;
    Source& source = sources.by_file.emplace_back();
    for (auto& [first, lora] : by_row) source.loras.push_back(std::move(lora.second));
  }
}

// A linear's factors that a file stores as a convolution's of one pixel become matrices, for programs that hold to the
// module's own kind.
StoredLora of_rank(StoredLora lora, const Shape& matrix) {
  if (matrix.rank() != 2 || lora.down.rank() == 2) return lora;
  lora.down = as_matrix(lora.down);
  lora.up = as_matrix(lora.up);
  return lora;
}

using OneOf = std::function<LoraRows(std::vector<LoraRows> by_file)>;

// The LoRAs of a module under its names in a format, where `one_of` makes one of several files'.
void put(const Sources& sources, const std::vector<const ModuleName*>& names, const OneOf& one_of, AdapterFile& to) {
  const Shape& matrix = sources.module->matrix;
  const std::vector<int64_t> bounds = bounds_of(names, matrix[0]);
  for (const ModuleName* name : names) {
    const int64_t first = matrix[0] / name->rows.of * name->rows.first(),
                  end = *std::ranges::upper_bound(bounds, first);
    std::vector<LoraRows> by_file;
    for (const Source& source : sources.by_file) {
      std::vector<LoraRows> parts;
      for (const LoraRows& lora : source.loras)
        for (LoraRows& part : split_at(lora, bounds))
          if (part.first >= first && part.end() <= end) parts.push_back(std::move(part));
      if (!parts.empty()) by_file.push_back(joined(parts, first, end));
    }
    if (by_file.empty()) continue;
    to.loras[name->name] = of_rank(to_stored(one_of(std::move(by_file)), name->rows), matrix);
  }
}

std::string first_few(const std::vector<std::string>& names) {
  const size_t shown = std::min<size_t>(names.size(), 3);
  std::vector<std::string> quoted;
  for (size_t i = 0; i < shown; ++i) quoted.push_back(quote(names[i]));
  return fmt::format("{}{}", fmt::join(quoted, ", "), shown < names.size() ? ", …" : "");
}

// Why a format lacks names.
std::string_view reason(AdapterFormat format, const std::vector<std::string>& paths) {
  const bool is_text = paths.front().starts_with("llama.");
  if (is_text) return "language models have PEFT's and llama.cpp's names alone";
  if (format == AdapterFormat::peft)
    return "a PEFT folder is of one network, here the denoiser; --to diffusers holds text encoders too";
  if (format == AdapterFormat::diffusers) return "diffusers' pipelines load LoRAs of the denoiser and CLIP alone";
  return "that program has none for them";
}

void check_named(const AdapterFile& file, AdapterFormat format, const std::vector<std::string>& bases,
                 const std::vector<std::string>& paths) {
  check(bases.empty(), "{}: --to {} has no names for {} of its modules, {}: {}", file.name,
        adapter_format_names()[size_t(format)], bases.size(), first_few(bases),
        bases.empty() ? "" : reason(format, paths));
}

bool is_same(const ModuleRows& a, const ModuleRows& b) {
  return int64_t(a.parts.size()) * b.of == int64_t(b.parts.size()) * a.of && a.first() * b.of == b.first() * a.of &&
         (a.parts == b.parts || (std::ranges::is_sorted(a.parts) && std::ranges::is_sorted(b.parts)));
}

// "KEY is LoHa": the first tensor of another kind than LoRA.
std::string other_in_words(const AdapterFile& file) {
  for (const auto& [key, tensor] : file.others) {
    const auto parsed = parse_adapter_key(key);
    const std::string_view kind = parsed ? kind_of(*parsed) : other_lora_algorithm(key);
    if (!kind.empty() && kind != lora_algorithm().name()) return fmt::format("{} is {}", quote(key), kind);
  }
  return fmt::format("{} is no plain LoRA's", quote(file.others.begin()->first));
}

// Other algorithms' tensors keep their suffixes, and so stay with modules of the same rows.
void rename_others(const AdapterFile& file, const AdapterModules& modules, AdapterFile& to) {
  const bool keeps_all =
      to.format == AdapterFormat::kohya || to.format == AdapterFormat::comfy || to.format == AdapterFormat::onetrainer;
  check(keeps_all || file.others.empty(),
        "{}: {}; --to {} holds plain LoRAs alone, --to kohya, comfy and onetrainer hold it", file.name,
        file.others.empty() ? "" : other_in_words(file), adapter_format_names()[size_t(to.format)]);
  std::vector<std::string> bases, paths;
  for (const auto& [key, tensor] : file.others) {
    const bool is_embedding = is_bundled_embedding(key);
    if (is_embedding) {
      to.others[key] = tensor;
      continue;
    }
    const auto [module, name] = modules.find_owner(key);
    const std::vector<const ModuleName*> names = module->spelled(spelling_of(to.format));
    if (names.empty()) {
      bases.push_back(key), paths.push_back(module->path);
      continue;
    }
    const auto same =
        std::ranges::find_if(names, [&rows = name->rows](const ModuleName* n) { return is_same(n->rows, rows); });
    check(same != names.end(),
          "{}: {} is on other rows than a module of --to {} has, and only plain LoRAs can be split "
          "and joined",
          file.name, quote(key), adapter_format_names()[size_t(to.format)]);
    to.others[(*same)->name + key.substr(name->name.size())] = tensor;
  }
  check_named(file, to.format, bases, paths);
}

}  // namespace

LoraRows from_stored(const StoredLora& stored, const ModuleRows& rows) {
  const int64_t part = stored.up.dim(0) / int64_t(rows.parts.size());
  LoraRows lora{part * rows.first(), stored};
  if (std::ranges::is_sorted(rows.parts)) return lora;
  std::vector<int> order(rows.parts.size());
  for (size_t i = 0; i < order.size(); ++i) order[size_t(rows.parts[i] - rows.first())] = int(i);
  lora.lora.up = reordered(stored.up, order);
  return lora;
}

StoredLora to_stored(const LoraRows& lora, const ModuleRows& rows) {
  StoredLora stored = lora.lora;
  if (std::ranges::is_sorted(rows.parts)) return stored;
  std::vector<int> order;
  for (const int part : rows.parts) order.push_back(part - rows.first());
  stored.up = reordered(stored.up, order);
  return stored;
}

std::vector<LoraRows> split_at(const LoraRows& fused, const std::vector<int64_t>& bounds) {
  const size_t begin = size_t(std::ranges::upper_bound(bounds, fused.first) - bounds.begin()) - 1,
               end = size_t(std::ranges::lower_bound(bounds, fused.end()) - bounds.begin());
  if (end - begin == 1) return {fused};
  const StoredLora& lora = fused.lora;
  const Tensor up = as_matrix(lora.up), down = as_matrix(lora.down);
  const auto part_of = [&](size_t part, int64_t column, int64_t last) {
    const int64_t first = std::max(bounds[part], fused.first), rows = std::min(bounds[part + 1], fused.end()) - first,
                  rank = last - column, from = first - fused.first;
    LoraRows one{first,
                 {contiguous(slice(down, 0, column, last)),
                  contiguous(slice(slice(up, 0, from, from + rows), 1, column, last)), lora.scale() * double(rank)}};
    if (rank == lora.rank()) one.lora.alpha = lora.alpha, one.lora.stored = lora.stored;
    return one;
  };
  std::vector<LoraRows> parts;
  for (const Block& block : blocks_of(fused, bounds)) parts.push_back(part_of(block.part, block.begin, block.end));
  if (parts.empty())
    for (size_t part = begin; part < end; ++part) parts.push_back(part_of(part, 0, lora.rank()));
  return parts;
}

LoraRows joined(const std::vector<LoraRows>& parts, int64_t first, int64_t end) {
  const auto has_scale = [](const LoraRows& part) { return part.lora.alpha != 0; };
  const auto scaled = std::ranges::find_if(parts, has_scale);
  const StoredLora& one = (scaled == parts.end() ? parts.front() : *scaled).lora;
  if (parts.size() == 1 && parts.front().first == first && parts.front().end() == end) return parts.front();
  int64_t filled = first, rank = 0;
  bool is_shared = true, is_alike = true;
  for (const LoraRows& part : parts) {
    is_shared = is_shared && part.first == filled && part.lora.alpha == one.alpha && is_same(part.lora.down, one.down);
    is_alike = is_alike && part.lora.alpha * double(one.rank()) == one.alpha * double(part.lora.rank());
    filled = part.end();
    rank += part.lora.rank();
  }
  std::vector<Tensor> downs, ups;
  if (is_shared && filled == end) {
    for (const LoraRows& part : parts) ups.push_back(as_matrix(part.lora.up));
    return {first, {one.down, joined_tensors(ups, 0), one.alpha, one.stored}};
  }
  int64_t column = 0;
  for (const auto& [at, lora] : parts) {
    Tensor up = as_matrix(lora.up);
    if (!is_alike) up = scaled_exactly(up, lora.scale() / one.scale());
    const auto zeros_of = [&](int64_t rows, int64_t columns) { return zeros({rows, columns}, up.dtype()); };
    std::vector<Tensor> across = {up};
    if (column > 0) across.insert(across.begin(), zeros_of(up.dim(0), column));
    column += lora.rank();
    if (column < rank) across.push_back(zeros_of(up.dim(0), rank - column));
    const int64_t row = ups.empty() ? first : filled;
    if (at > row) ups.push_back(zeros_of(at - row, rank));
    ups.push_back(cat(across, 1));
    filled = at + up.dim(0);
    downs.push_back(as_matrix(lora.down));
  }
  if (filled < end) ups.push_back(zeros({end - filled, rank}, ups.back().dtype()));
  return {first, {joined_tensors(downs, 0), joined_tensors(ups, 0), one.alpha * double(rank) / double(one.rank())}};
}

LoraRows summed(const std::vector<LoraRows>& loras) {
  std::vector<Tensor> downs, ups;
  for (const auto& [first, lora] : loras) {
    downs.push_back(lora.down);
    ups.push_back(scaled_exactly(lora.up, lora.scale()));
  }
  for (std::vector<Tensor>* factors : {&downs, &ups})  // a linear may be stored as a convolution of one pixel
    if (std::ranges::any_of(*factors, [](const Tensor& x) { return x.rank() == 2; }))
      for (Tensor& factor : *factors) factor = as_matrix(factor);
  StoredLora sum{joined_tensors(downs, 0), joined_tensors(ups, 1)};
  sum.alpha = double(sum.rank());
  return {loras.front().first, sum};
}

AdapterFile converted(const AdapterFile& file, const AdapterModules& modules, AdapterFormat format) {
  modules.check_fits(file);
  AdapterFile to{.name = file.name, .format = format, .metadata = file.metadata, .base_model = file.base_model};
  rename_others(file, modules, to);
  SourcesByPath all;
  gather(file, modules, LoraFile{file.name}, all);
  std::vector<std::string> bases, paths;
  for (const auto& [path, sources] : all) {
    const std::vector<const ModuleName*> names = sources.module->spelled(spelling_of(format));
    if (names.empty()) bases.push_back(sources.base), paths.push_back(path);
  }
  check_named(file, format, bases, paths);
  const OneOf only = [](const std::vector<LoraRows>& by_file) { return by_file.front(); };
  for (const auto& [path, sources] : all) put(sources, sources.module->spelled(spelling_of(format)), only, to);
  return to;
}

namespace {

void check_loras_only(const AdapterFile& file, const char* what) {
  if (!file.others.empty()) fail("{}: {}; only plain LoRAs {}", file.name, other_in_words(file), what);
}

StoredLora resized(const StoredLora& lora, const AdapterSize& size) {
  const Shape &up = lora.up.shape(), &down = lora.down.shape();
  const SingularParts parts =
      SingularParts::of_product(reshape(lora.up, {up[0], up[1]}), reshape(lora.down, {down[0], -1}));
  int64_t rank = size.energy > 0 ? parts.rank_of_energy(size.energy) : lora.rank();
  if (size.rank > 0) rank = std::min(rank, size.rank);
  if (rank >= lora.rank()) return lora;
  rank = std::min(rank, int64_t(parts.values().size()));
  Shape new_up = up, new_down = down;
  new_up[1] = new_down[0] = rank;
  const LowRank nearest = parts.nearest(rank);
  return {cast(reshape(nearest.down, new_down), lora.down.dtype()), cast(reshape(nearest.up, new_up), lora.up.dtype()),
          lora.scale() * double(rank)};
}

// kohya's tools call sizes that differ "Dynamic".
template <class Of>
std::string size_in_words(const AdapterFile& file, Of of) {
  std::set<double> sizes;
  for (const auto& [base, lora] : file.loras) sizes.insert(of(lora));
  return sizes.size() == 1 ? fmt::format("{}", *sizes.begin()) : "Dynamic";
}

void renew_sizes(AdapterFile& file) {
  const auto renew = [&](const char* key, auto of) {
    if (const auto found = file.metadata.find(key); found != file.metadata.end())
      found->second = size_in_words(file, of);
  };
  renew("ss_network_dim", [](const StoredLora& lora) { return double(lora.rank()); });
  renew("ss_network_alpha", [](const StoredLora& lora) { return lora.alpha; });
}

}  // namespace

AdapterFile resized(const AdapterFile& file, const AdapterSize& size) {
  check_loras_only(file, "are resized");
  AdapterFile to = file;
  for (auto& [base, lora] : to.loras) lora = resized(lora, size);
  renew_sizes(to);
  return to;
}

namespace {

void check_parts(const LoraFile& lora, const AdapterModules& modules) {
  for (const auto& [part, strength] : lora.parts)
    check_usage(
        std::ranges::any_of(modules.all(), [&part = part](const auto& m) { return m.path.starts_with(part + "."); }),
        "--lora {}: {} has no part {} that adapters are on", lora.path.string(), modules.model(), quote(part));
}

// Throws Error if two base names stand for the same rows.
void check_spelled_alike(const AdapterFile& all, const AdapterModules& modules) {
  std::map<std::string, std::vector<const ModuleName*>> found;  // by path
  for (const auto& [base, lora] : all.loras) {
    const auto [module, name] = modules.find(base);
    for (const ModuleName* other : found[module->path])
      check(
          !other->rows.overlap(name->rows),
          "{} and {} are one layer's in two spellings, of a model that Wick does not know by name; expected one: wick "
          "convert --model MODEL --to kohya",
          quote(other->name), quote(base));
    found[module->path].push_back(name);
  }
}

// The modules of the model that all files are for. If that is unknown the files' own names serve, in one spelling.
AdapterModules modules_of(const std::vector<AdapterFile>& files, const AdapterFile& all, AdapterFormat format) {
  std::optional<AdapterModules> known = AdapterModules::likeliest(all);
  if (known && known->fits(all)) return *std::move(known);
  const auto name_of = [](AdapterFormat spelling) { return adapter_format_names()[size_t(spelling)]; };
  for (const AdapterFile& file : files)
    check(
        file.format == format,
        "{}: is for a model that Wick does not know by name, and spelled as {}; expected {}, as the first file or the "
        "result: wick convert --model MODEL --to {}",
        file.name, name_of(file.format), name_of(format), name_of(format));
  if (known) check_spelled_alike(all, *known);
  return AdapterModules::as_named(all);
}

}  // namespace

AdapterFile merged(const AdapterMerge& merge) {
  std::vector<AdapterFile> files;
  for (const LoraFile& file : merge.files) {
    files.push_back(AdapterFile::read(file.path));
    check_loras_only(files.back(), "become one without the model");
  }
  // The file with the most modules tells the model best.
  const AdapterFile& largest = *std::ranges::max_element(files, {}, [](const auto& file) { return file.loras.size(); });
  AdapterFile all = largest;  // names of language models tell their modules, so that these need all of them
  for (const AdapterFile& file : files)
    for (const auto& [base, lora] : file.loras) all.loras.try_emplace(base, lora);
  const AdapterFormat format = merge.format.value_or(files.front().format);
  const AdapterModules modules = merge.model ? AdapterModules::of(*merge.model) : modules_of(files, all, format);
  SourcesByPath sources;
  for (size_t i = 0; i < files.size(); ++i) {
    modules.check_fits(files[i]);
    check_parts(merge.files[i], modules);
    gather(files[i], modules, merge.files[i], sources);
  }
  AdapterFile to{.name = files.front().name,
                 .format = format,
                 .metadata = files.front().metadata,
                 .base_model = files.front().base_model};
  for (const auto& [path, here] : sources) {
    const std::vector<const ModuleName*> names = here.module->spelled(spelling_of(to.format));
    if (names.empty()) check_named(files.front(), to.format, {here.base}, {path});
    put(here, names, summed, to);
  }
  if (merge.rank) to = resized(to, {.rank = *merge.rank});
  renew_sizes(to);
  return to;
}

}  // namespace wick
