// Adapters in the files of models of pictures.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "wick/backend/counting.h"
#include "wick/io/file.h"
#include "wick/io/gguf.h"
#include "wick/io/json.h"
#include "wick/io/quote.h"
#include "wick/nn/bitsandbytes.h"
#include "wick/nn/fp8.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/changed_network.h"
#include "wick/pipelines/diffusion.h"
#include "wick/pipelines/merge.h"
#include "wick/pipelines/model_folder.h"
#include "wick/pipelines/stored_tensors.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Sink = SafetensorsGroup::Sink;
using SharedNetwork = std::shared_ptr<ChangedNetwork>;

constexpr const char* kSafetensors = ".safetensors";

const char* type_in_files(DType dtype) { return dtype == DType::f32 ? "F32" : dtype == DType::f16 ? "F16" : "BF16"; }

bool is_narrow(const TensorInfo& info) { return info.dtype_name.starts_with("F8_"); }

// Does --dtype change it?
bool is_converted(const TensorInfo& info) {
  return is_narrow(info) || (info.shape.rank() > 1 && info.dtype && is_float(*info.dtype));
}

// A changed tensor of a file.
struct Rewritten {
  std::string name;
  StoredFormat format;
  bool is_converted;  // to another type, whether or not its values change
};

void write_changed(const SharedNetwork& network, const ChangedNetwork::Change& change, const SafetensorsFile& file,
                   const std::vector<Rewritten>& all, const Sink& sink) {
  const auto [before, after] = network->values(change);
  size_t entry = 0;
  for (const auto& [name, format, is_converted] : all) {
    const Tensor x = contiguous(after.at(name)), old = contiguous(before.at(name));
    const bool stays =
        !is_converted && std::memcmp(x.data<char>(), old.data<char>(), size_t(bytes_of(x.dtype(), x.shape()))) == 0;
    const size_t values = entry++, scales = format.scales ? entry++ : 0;
    if (stays) {  // without a second rounding
      copied(name, file).write([&](size_t, uint64_t at, const void* data, size_t n) { sink(values, at, data, n); });
      if (format.scales)
        copied(format.scales->name, file).write([&](size_t, uint64_t at, const void* data, size_t n) {
          sink(scales, at, data, n);
        });
      continue;
    }
    const StoredFormat::Bytes bytes = format.encoded(x);
    sink(values, 0, bytes.values.data(), bytes.values.size());
    if (format.scales) sink(scales, 0, bytes.scales.data(), bytes.scales.size());
  }
}

// The files of one network, or one file of several.
class Store {
 public:
  Store(fs::path path, std::optional<DType> dtype) : path_(std::move(path)), dtype_(dtype) {}

  const fs::path& path() const { return path_; }
  bool is_changed() const { return !changes_.empty(); }
  void add(const SharedNetwork& network) {
    for (ChangedNetwork::Change& change : network->changes()) changes_.emplace_back(network, std::move(change));
  }

  // Opens the files. Throws Error for types that nothing can be put into.
  void open() {
    check(!GgufFile::is_gguf(path_), "{}: is a GGUF file; Wick puts adapters into pictures' safetensors files alone",
          path_.string());
    tensors_ = stored_tensors(path_);
    for (const auto& [name, file] : tensors_) {
      check(!dtype_ || !goes_with_bitsandbytes(name), "{}: its tensor {} says that it is of bitsandbytes' types; {}",
            file.path().string(), quote(name), "--dtype converts floats of 32, 16 and 8 bits");
      files_.emplace(file.path(), file);
    }
    for (const auto& [network, change] : changes_)
      for (const std::string& name : change.stored) StoredFormat::of(name, tensors_.at(name));
    if (dtype_)
      decoded_ = files_.size() == 1 ? safetensors_source(files_.begin()->first) : shards_source(*weights_in(path_));
  }

  // The one file.
  void write_file(const fs::path& to) const { write(files_.begin()->second, to); }
  // Of a folder: its files or shards under their names, and their index behind them.
  std::vector<fs::path> write_into(const fs::path& folder) const {
    std::vector<fs::path> written;
    for (const auto& [path, file] : files_) write(file, written.emplace_back(folder / path.filename()));
    if (const fs::path weights = *weights_in(path_); weights.extension() == ".json") write_index(weights, folder);
    return written;
  }

 private:
  void write(const SafetensorsFile& file, const fs::path& to) const {
    std::vector<SafetensorsGroup> groups;
    std::set<std::string> done;
    for (const auto& [network, change] : changes_)
      if (SafetensorsGroup group = changed(network, change, file); !group.entries.empty()) {
        for (const SafetensorsEntry& entry : group.entries) done.insert(entry.name);
        groups.push_back(std::move(group));
      }
    std::vector<std::tuple<uint64_t, uint64_t, std::string>> order;  // empty ones before the next
    for (const auto& [name, info] : file.tensors()) {
      if (dtype_ && goes_with_fp8(name)) continue;
      order.emplace_back(info.begin, *info.bytes, name);
      if (!done.contains(name))
        groups.push_back(dtype_ && is_converted(info) ? converted(name, file) : copied(name, file));
    }
    std::ranges::sort(order);
    std::vector<std::string> names;
    for (auto& [begin, bytes, name] : order) names.push_back(std::move(name));
    save_safetensors(to, groups, metadata_of(file), names);
  }

  // Those of its tensors that lie in this file.
  SafetensorsGroup changed(const SharedNetwork& network, const ChangedNetwork::Change& change,
                           const SafetensorsFile& file) const {
    SafetensorsGroup group;
    std::vector<Rewritten> all;
    for (const std::string& name : change.stored) {
      if (tensors_.at(name).path() != file.path()) continue;
      StoredFormat format = StoredFormat::of(name, file);
      const bool converts = dtype_ && is_converted(file.tensors().at(name));
      if (converts) format = {{name, type_in_files(*dtype_), format.values.shape}};
      group.entries.push_back(format.values);
      if (format.scales) group.entries.push_back(*format.scales);
      all.push_back({name, std::move(format), converts});
    }
    group.write = [=](const Sink& sink) { write_changed(network, change, file, all, sink); };
    return group;
  }

  SafetensorsGroup converted(const std::string& name, const SafetensorsFile& file) const {
    const StoredFormat format{{name, type_in_files(*dtype_), file.tensors().at(name).shape}};
    return {{format.values}, [format, source = *decoded_](const Sink& sink) {
              const Tensor x = cast(source.find(format.values.name, {})->load(host_memory()), DType::f32);
              const StoredFormat::Bytes bytes = format.encoded(x);
              sink(0, 0, bytes.values.data(), bytes.values.size());
            }};
  }

  // Without what is not true any more.
  std::map<std::string, std::string> metadata_of(const SafetensorsFile& file) const {
    std::map<std::string, std::string> metadata = file.metadata();
    for (const char* hash : {"modelspec.hash_sha256", "sshs_model_hash", "sshs_legacy_hash"}) metadata.erase(hash);
    if (dtype_) metadata.erase("_quantization_metadata");
    return metadata;
  }

  void write_index(const fs::path& index, const fs::path& folder) const {
    nlohmann::json json = read_json(index);
    if (dtype_) {
      uint64_t total = 0;
      std::erase_if(json["weight_map"].get_ref<nlohmann::json::object_t&>(),
                    [](const auto& tensor) { return goes_with_fp8(tensor.first); });
      for (const auto& [path, file] : files_) {
        const SafetensorsFile written = SafetensorsFile::open(folder / path.filename());
        for (const auto& [name, info] : written.tensors()) total += *info.bytes;
      }
      json["metadata"]["total_size"] = total;
    }
    write_file_atomically(folder / index.filename(), to_text(std::move(json)));
  }

  fs::path path_;
  std::optional<DType> dtype_;
  StoredTensors tensors_;
  std::map<fs::path, SafetensorsFile> files_;
  std::vector<std::pair<SharedNetwork, ChangedNetwork::Change>> changes_;
  std::optional<TensorSource> decoded_;
};

// A model's networks, with the edits of adapters.
class Merge {
 public:
  Merge(const Checkpoint& from, const std::vector<LoraFile>& loras)
      : from_(from), loras_(loras), adapter_(diffusion_family(from).module_names(from), loras) {
    std::vector<std::string> lacking;
    for (const Component& component : diffusion_family(from).components) {
      if (component.lora_prefixes.empty()) continue;
      if (from.has(component.name) && from.component(component.name).has_weights())
        look_at(component);
      else
        lacking.push_back(component.name);
    }
    check_complete(lacking);
  }

  const std::map<std::string, SharedNetwork>& networks() const { return networks_; }  // by component
  int64_t modules() const { return modules_; }

 private:
  void look_at(const Component& component) {
    ComponentWatch watch;
    CountingBackend counting(device_kind("cpu"));
    component.load({from_, nullptr, {.place = Residence::on(counting, DType::f32)}, &watch});
    const auto network =
        std::make_shared<ChangedNetwork>(watch.sources.at(component.name), watch.tensors.at(component.name));
    for (LoraSite& site : watch.sites) {
      const std::string tensor = site.path.substr(component.name.size() + 1) + ".weight";
      site.base = [network, tensor] { return network->in_memory(tensor); };
      const AdapterOfLayer adapter = adapter_.match({site});
      if (!adapter || has_no_strength(component.name)) continue;
      network->edit(tensor, [adapter](const Tensor& w) { return adapter->merged(w); });
      edit_bias(*network, site.path, watch.tensors.at(component.name), adapter);
      ++modules_;
    }
    look_at_norms(component.name, watch, *network);
    if (network->edits() > 0) networks_[component.name] = network;
  }

  static void edit_bias(ChangedNetwork& network, const std::string& path, const std::set<std::string>& tensors,
                        const AdapterOfLayer& adapter) {
    if (!adapter->changes_bias()) return;
    const std::string bias = path.substr(path.find('.') + 1) + ".bias";
    check(tensors.contains(bias) || !adapter->merged_bias({}),
          "--lora: one of them gives {} a bias, which it does not have in this model. It runs beside the model, and "
          "cannot be merged",
          quote(path));
    if (tensors.contains(bias)) network.edit(bias, [adapter](const Tensor& b) { return adapter->merged_bias(b); });
  }

  // Vectors of which no layer with a matrix asks.
  void look_at_norms(const std::string& component, const ComponentWatch& watch, ChangedNetwork& network) {
    std::set<std::string> layers;
    for (const LoraSite& site : watch.sites) layers.insert(site.path);
    for (const std::string& tensor : watch.tensors.at(component)) {
      const size_t dot = tensor.rfind('.');
      const std::string path = component + "." + tensor.substr(0, dot);
      const std::optional<StoredTensor> stored = watch.sources.at(component).find(tensor, {});
      if (layers.contains(path) || !stored || stored->shape.rank() != 1) continue;
      const auto change = adapter_.match_vector(path, tensor.ends_with(".bias"), stored->shape[0]);
      if (!change || has_no_strength(component)) continue;
      network.edit(tensor, [change](const Tensor& base) { return change->merged(base); });
      ++modules_;
    }
  }

  bool has_no_strength(const std::string& component) const {
    return std::ranges::all_of(loras_, [&](const LoraFile& lora) { return lora.strength_of(component) == 0; });
  }

  // What a LoRA has for parts that are not there may stay behind where its strength there is 0.
  std::vector<std::string> left_behind(const LoraFile& lora, const std::vector<std::string>& lacking) const {
    std::vector<std::string> prefixes;
    for (const Component& component : diffusion_family(from_).components)
      if (std::ranges::count(lacking, component.name) > 0 && lora.strength_of(component.name) == 0)
        prefixes.insert(prefixes.end(), component.lora_prefixes.begin(), component.lora_prefixes.end());
    return prefixes;
  }

  void check_complete(const std::vector<std::string>& lacking) const {
    try {
      adapter_.check_complete_by_file([&](const LoraFile& lora) { return left_behind(lora, lacking); });
    } catch (const Error& e) {
      if (lacking.empty()) throw;
      fail("{}; it may be for {}, which is not among the files of the model; a strength of 0 there leaves it out",
           e.what(), fmt::join(lacking, " or "));
    }
    check(modules_ > 0, "--lora: with these strengths nothing of {} would change", from_.name());
  }

  const Checkpoint& from_;
  const std::vector<LoraFile>& loras_;
  Adapter adapter_;
  std::map<std::string, SharedNetwork> networks_;
  int64_t modules_ = 0;
};

// By the paths of their files.
using Stores = std::map<fs::path, Store>;

Stores stores_of(const Checkpoint& from, const Merge& merge, std::optional<DType> dtype) {
  Stores stores;
  const auto store_of = [&](const std::string& component) -> Store& {
    const fs::path path = from.component(component).path();
    return stores.try_emplace(path, path, dtype).first->second;
  };
  for (const auto& [component, network] : merge.networks()) store_of(component).add(network);
  if (dtype && !from.is_assembled())
    for (const auto& [name, component] : from.components())
      if (component.has_weights()) store_of(name);
  for (auto& [path, store] : stores) store.open();
  return stores;
}

std::vector<fs::path> write_pipeline(const Checkpoint& from, const Stores& stores, const fs::path& to,
                                     std::optional<DType> dtype) {
  std::set<std::string> components;
  std::vector<fs::path> files;
  for (const auto& [path, store] : stores) components.insert(path.filename().string());
  write_folder(to, [&] {
    write_model_folder(from, to, components, [&](const std::string& component, const fs::path& folder) {
      const Store& store = stores.at(from.component(component).path());
      for (const fs::path& file : store.write_into(folder))
        if (store.is_changed()) files.push_back(file);
      if (dtype && from.component(component).has_config())
        write_file_atomically(folder / kNetworkConfig, config_of(from.component(component), *dtype));
    });
  });
  return files;
}

std::vector<fs::path> write_parts(const Checkpoint& from, const Stores& stores, const fs::path& to) {
  const auto name_of = [](const fs::path& path) {
    return (path.has_filename() ? path : path.parent_path()).filename();
  };
  const auto is_file = [](const auto& store) { return !fs::is_directory(store.first); };
  const bool is_one_file = stores.size() == 1 && is_file(*stores.begin());
  const bool wants_file = to.extension() == kSafetensors && !fs::is_directory(to);
  std::vector<std::string> names;
  for (const auto& [path, store] : stores) names.push_back(name_of(path).string());
  check_usage(!wants_file || is_one_file, "--output {}: expected the name of a folder, for the parts that change: {}",
              to.string(), fmt::join(names, ", "));
  const bool is_whole = is_one_file && std::ranges::all_of(from.components(), [&](const auto& component) {
                          return component.second.path() == stores.begin()->first;
                        });
  check_usage(wants_file || !is_whole, "--output {}: expected a name that ends in {}, for {} is one file", to.string(),
              kSafetensors, from.name());
  if (wants_file) {
    stores.begin()->second.write_file(to);
    return {to};
  }
  const std::set<std::string> unlike(names.begin(), names.end());
  check(unlike.size() == names.size(), "--output {}: several parts that change have one name: {}; rename them",
        to.string(), fmt::join(names, ", "));
  std::vector<fs::path> files;
  write_folder(to, [&] {
    make_directories(to);
    for (const auto& [path, store] : stores) {
      const fs::path part = files.emplace_back(to / name_of(path));
      check_elsewhere(path, part);
      if (!fs::is_directory(path)) {
        store.write_file(part);
        continue;
      }
      make_directories(part);
      store.write_into(part);
      copy_without_weights(path, part);
    }
  });
  return files;
}

}  // namespace

MergedPictures merge_into_pictures(const Checkpoint& from, const std::vector<LoraFile>& loras, const fs::path& to,
                                   std::optional<DType> dtype) {
  check_usage(!dtype || (is_float(*dtype) && !is_block(*dtype)),
              "--dtype: models of pictures are written in f32, f16 or bf16, not {}", dtype ? name_of(*dtype) : "");
  check_elsewhere(from.path(), to);
  for (const auto& [name, component] : from.components()) check_elsewhere(component.path(), to);
  const Merge merge(from, loras);
  const Stores stores = stores_of(from, merge, dtype);
  return {merge.modules(),
          from.is_assembled() ? write_parts(from, stores, to) : write_pipeline(from, stores, to, dtype)};
}

}  // namespace wick
