#include "wick/nn/source.h"

#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/nn/gguf_model.h"
#include "wick/nn/named_seed.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Safetensors = std::shared_ptr<const SafetensorsFile>;

Safetensors open_safetensors(const fs::path& path) {
  return std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
}

template <class File>
std::optional<StoredTensor> find_in(const std::shared_ptr<const File>& file, const std::string& name) {
  const auto found = file->tensors().find(name);
  if (found == file->tensors().end()) return {};
  const auto& info = found->second;
  return StoredTensor{info.shape, info.dtype_name, info.dtype, [=](Memory& memory) { return file->load(name, memory); },
                      file->bytes(name)};
}

// transformers 5 writes CLIPTextModel without the prefix that its names had before: they are found with it too.
TensorSource with_text_prefix(const TensorSource& source) {
  return renamed(source, [source](const std::string& name) {
    constexpr std::string_view kPrefix = "text_model.";
    if (!name.starts_with(kPrefix) || source.has(name)) return name;
    const std::string bare = name.substr(kPrefix.size());
    for (const char* part : {"embeddings.", "encoder.", "final_layer_norm."})
      if (bare.starts_with(part)) return bare;
    return std::string();
  });
}

// Rows [begin, begin + count) of a tensor: read alone where it is read as it lies, else copied.
StoredTensor rows_of(const StoredTensor& whole, int64_t begin, int64_t count) {
  Shape shape = whole.shape;
  const int64_t before = shape.numel() / shape[0] * begin;
  shape[0] = count;
  StoredTensor rows{shape, whole.dtype_name, whole.dtype, {}, {}};
  if (!whole.bytes || !whole.dtype) {
    rows.load = [=](Memory& to) { return clone(whole.load(to).window(shape, contiguous_strides(shape), before)); };
    return rows;
  }
  const DType dtype = *whole.dtype;
  rows.bytes = [read = whole.bytes, skipped = size_t(bytes_of(dtype, before))](void* host, size_t at, size_t bytes) {
    read(host, skipped + at, bytes);
  };
  rows.load = [shape, dtype, read = rows.bytes](Memory& memory) {
    const Tensor tensor = Tensor::empty(shape, dtype, memory);
    memory.fill({{tensor.view().data, size_t(bytes_of(dtype, shape.numel())), read}});
    return tensor;
  };
  return rows;
}

}  // namespace

TensorSource safetensors_source(const fs::path& path) {
  return {path.string(),
          [file = open_safetensors(path)](const std::string& name, const Shape&) { return find_in(file, name); }};
}

TensorSource gguf_source(std::shared_ptr<const GgufFile> file) {
  return {file->path().string(), [file](const std::string& name, const Shape&) { return find_in(file, name); }};
}

TensorSource shards_source(const fs::path& index) {
  std::map<std::string, Safetensors> shards;
  std::unordered_map<std::string, Safetensors> holders;
  for (const auto& [name, file_name] : read_safetensors_index(index)) {
    Safetensors& shard = shards[file_name];
    if (!shard) shard = open_safetensors(index.parent_path() / file_name);
    check(shard->has(name), "{}: has no tensor \"{}\", which {} says is there", shard->path().string(), name,
          index.filename().string());
    holders[name] = shard;
  }
  return {index.string(), [holders = std::move(holders)](const std::string& name, const Shape&) {
            const auto found = holders.find(name);
            return found == holders.end() ? std::nullopt : find_in(found->second, name);
          }};
}

TensorSource memory_source(std::map<std::string, Tensor> tensors) {
  return {"weights in memory",
          [all = std::move(tensors)](const std::string& name, const Shape&) -> std::optional<StoredTensor> {
            const auto found = all.find(name);
            if (found == all.end()) return {};
            const auto load = [tensor = found->second](Memory& memory) { return tensor.to(memory); };
            const DType dtype = found->second.dtype();
            return StoredTensor{found->second.shape(), std::string(name_of(dtype)), dtype, load, {}};
          }};
}

TensorSource outline_source() {
  const auto find = [](const std::string&, const Shape& wanted) { return StoredTensor{.shape = wanted}; };
  return {.name = "outline", .find = find, .has_values = false};
}

TensorSource drawn_source(uint64_t seed, float deviation) {
  return {"random weights", [=](const std::string& name, const Shape& wanted) {
            const auto draw = [=](Memory& memory) {
              if (wanted.rank() == 1) return full(wanted, name.ends_with("weight") ? 1 : 0, DType::f32, memory);
              Rng rng(named_seed(seed, name), Stream::init);
              return random_normal(wanted, rng, memory) * deviation;
            };
            return StoredTensor{wanted, "f32", DType::f32, draw, {}};
          }};
}

TensorSource renamed(const TensorSource& source, std::function<std::string(const std::string&)> stored_name) {
  TensorSource all = source;
  all.find = [find = source.find, stored_name = std::move(stored_name)](
                 const std::string& name, const Shape& wanted) -> std::optional<StoredTensor> {
    const std::string stored = stored_name(name);
    return stored.empty() ? std::nullopt : find(stored, wanted);
  };
  return all;
}

TensorSource with_parts(const TensorSource& source, std::map<std::string, Rows> parts) {
  TensorSource all = source;
  all.find = [source, parts = std::move(parts)](const std::string& name,
                                                const Shape& wanted) -> std::optional<StoredTensor> {
    const auto part = parts.find(name);
    if (part == parts.end()) return source.find(name, wanted);
    const auto& [whole_name, begin, count] = part->second;
    const std::optional<StoredTensor> whole = source.find(whole_name, wanted);
    if (!whole) return {};
    check(whole->shape.rank() > 0 && begin + count <= whole->shape[0],
          "{}: \"{}\" should have at least {} rows, found shape {}", source.name, whole_name, begin + count,
          whole->shape);
    return rows_of(*whole, begin, count);
  };
  return all;
}

std::optional<fs::path> weights_in(const fs::path& folder) {
  for (const std::string stem : {"diffusion_pytorch_model", "model"})
    for (const std::string variant : {"", ".fp16"})
      for (const std::string& name : {stem + variant + ".safetensors", stem + ".safetensors.index" + variant + ".json"})
        if (fs::exists(folder / name)) return folder / name;
  return {};
}

TensorSource open_source(const fs::path& path) {
  if (GgufFile::is_gguf(path)) return gguf_model_source(path);
  if (!fs::is_directory(path)) return with_text_prefix(safetensors_source(path));
  const std::optional<fs::path> found = weights_in(path);
  check(found.has_value(),
        "{}: should hold diffusion_pytorch_model.safetensors or model.safetensors, or an index of shards of them",
        path.string());
  return with_text_prefix(found->extension() == ".json" ? shards_source(*found) : safetensors_source(*found));
}

}  // namespace wick
