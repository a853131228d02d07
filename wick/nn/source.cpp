#include "wick/nn/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "wick/core/blocks.h"
#include "wick/core/error.h"
#include "wick/io/count.h"
#include "wick/io/gguf.h"
#include "wick/io/gguf_blocks.h"
#include "wick/io/safetensors.h"
#include "wick/nn/bitsandbytes.h"
#include "wick/nn/fp8.h"
#include "wick/nn/gguf_model.h"
#include "wick/nn/layout.h"
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
      if (bare.starts_with(part) && source.has(bare)) return bare;
    return name;
  });
}

template <class Map>
std::vector<std::string> keys_of(const Map& map) {
  std::vector<std::string> names;
  for (const auto& [name, value] : map) names.push_back(name);
  return names;
}

// Reads the whole of a tensor that has bytes.
std::function<Tensor(Memory&)> loading(const Shape& shape, DType dtype, const Memory::Source& bytes) {
  return [=](Memory& memory) {
    const Tensor tensor = Tensor::empty(shape, dtype, memory);
    memory.fill({{tensor.view().data, size_t(bytes_of(dtype, shape)), bytes}});
    return tensor;
  };
}

// `bytes` from byte `skipped` on.
Memory::Source behind(const Memory::Source& bytes, int64_t skipped) {
  if (!bytes) return {};
  return [=](void* host, size_t at, size_t count) { bytes(host, size_t(skipped) + at, count); };
}

// One of equal parts of a tensor's rows: read alone where it is read as it lies, else copied.
StoredTensor rows_of(const StoredTensor& whole, int index, int of) {
  Shape shape = whole.shape;
  shape[0] /= of;
  const int64_t before = shape.numel() * index;
  StoredTensor rows = whole;
  rows.shape = shape;
  if (!whole.bytes || !whole.dtype) {
    rows.load = [=](Memory& to) { return clone(whole.load(to).window(shape, contiguous_strides(shape), before)); };
    return rows;
  }
  rows.bytes = behind(whole.bytes, bytes_of(*whole.dtype, before));
  if (whole.rows)
    rows.rows = [=, all = whole.rows](DType dtype) { return behind(all(dtype), index * bytes_of(dtype, shape)); };
  rows.load = loading(shape, *whole.dtype, rows.bytes);
  return rows;
}

// The bytes of several tensors in `dtype`, one after the other; none where `bytes_of_part` gives none of one of them.
template <class F>
Memory::Source joined_bytes(const std::vector<StoredTensor>& parts, DType dtype, const F& bytes_of_part) {
  std::vector<std::pair<size_t, Memory::Source>> pieces;  // with their sizes
  for (const StoredTensor& part : parts) {
    const Memory::Source source = bytes_of_part(part);
    if (!source) return {};
    pieces.emplace_back(size_t(bytes_of(dtype, part.shape)), source);
  }
  return [pieces = std::move(pieces)](void* host, size_t at, size_t bytes) {
    auto* to = static_cast<char*>(host);
    for (const auto& [size, read] : pieces) {
      const size_t count = at < size ? std::min(bytes, size - at) : 0;
      if (count > 0) read(to, at, count);
      to += count, bytes -= count, at -= std::min(at, size);
    }
  };
}

// Tensors whose rows are alike, one after the other: in their dtype, or in f32 where they have several.
StoredTensor joined(const std::vector<StoredTensor>& parts) {
  StoredTensor all{parts.front().shape, parts.front().dtype_name, parts.front().dtype, {}, {}};
  bool readable = true;
  all.shape[0] = 0;
  for (const StoredTensor& part : parts) {
    all.shape[0] += part.shape[0];
    if (part.dtype != parts.front().dtype) all.dtype = DType::f32;
    all.decoded = all.decoded || part.decoded || part.dtype != parts.front().dtype;
    readable = readable && part.bytes && part.dtype == parts.front().dtype;
  }
  for (const StoredTensor& part : parts)
    if (!part.dtype) return {all.shape, part.dtype_name, {}, part.load, {}};
  if (readable) {
    all.bytes = joined_bytes(parts, *all.dtype, [](const StoredTensor& part) { return part.bytes; });
    if (std::ranges::all_of(parts, [](const StoredTensor& part) { return bool(part.rows); }))
      all.rows = [parts](DType dtype) {
        return joined_bytes(parts, dtype, [&](const StoredTensor& part) { return part.rows(dtype); });
      };
    all.load = loading(all.shape, *all.dtype, all.bytes);
    return all;
  }
  all.load = [parts, shape = all.shape, dtype = *all.dtype](Memory& memory) {
    const Tensor whole = Tensor::empty(shape, dtype, memory);
    int64_t begin = 0;
    for (const StoredTensor& part : parts) {
      const Tensor rows = part.load(memory);
      whole.backend().copy(whole.window(rows.shape(), contiguous_strides(rows.shape()), begin), rows);
      begin += rows.numel();
    }
    return whole;
  };
  return all;
}

// The stored parts of a tensor; none where all of them lack.
std::optional<std::vector<StoredTensor>> find_parts(const TensorSource& source, const std::string& name,
                                                    const std::vector<Rows>& rows) {
  std::vector<StoredTensor> parts;
  const std::string* lacking = nullptr;
  for (const auto& [whole, index, of] : rows) {
    const std::optional<StoredTensor> found = source.find(whole, {});
    if (!found) {
      lacking = &whole;
      continue;
    }
    check(found->shape.rank() > 0 && found->shape[0] % of == 0,
          "{}: {} should have rows in {} equal parts, found shape {}", source.name, source.in_words(whole), of,
          found->shape);
    parts.push_back(of == 1 ? *found : rows_of(*found, index, of));
  }
  if (parts.empty()) return {};
  check(!lacking, "{}: has no tensor {}, a part of \"{}\"", source.name, lacking ? source.in_words(*lacking) : "",
        name);
  return parts;
}

void check_rows_alike(const TensorSource& source, const std::vector<Rows>& rows,
                      const std::vector<StoredTensor>& parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    Shape expected = parts.front().shape;
    if (parts[i].shape.rank() == expected.rank()) expected[0] = parts[i].shape[0];
    check(parts[i].shape == expected, "{}: {} has rows of shape {}, and {} of {}: they make no one tensor", source.name,
          source.in_words(rows.front().whole), parts.front().shape, source.in_words(rows[i].whole), parts[i].shape);
    check(!parts[i].dtype || is_float(*parts[i].dtype) || is_block(*parts[i].dtype),
          "{}: {} should be a float, found {}", source.name, source.in_words(rows[i].whole), parts[i].dtype_name);
  }
}

// "to_q" [16, 8], "to_k" [16, 8]
std::string in_words(const TensorSource& source, const std::vector<Rows>& rows,
                     const std::vector<StoredTensor>& parts) {
  std::vector<std::string> words;
  for (size_t i = 0; i < parts.size(); ++i)
    words.push_back(fmt::format("\"{}\" {}", source.stored_name(rows[i].whole), parts[i].shape));
  return fmt::format("{}", fmt::join(words, ", "));
}

// The end of an error about a folder without weights: the link or pickle in it, and the way out.
std::string instead_of_weights(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& file = entry->path();
    const std::string extension = file.extension().string(), name = file.filename().string();
    std::error_code ignored;
    if (fs::is_symlink(file, ignored) && !fs::exists(file, ignored))
      return "; " + name + " is a link to a file that is not there: fetch the model again";
    for (const char* pickled : {".bin", ".ckpt", ".pt", ".pth"})
      if (extension == pickled)
        return "; " + name + " is a PyTorch pickle, which can run code when opened: convert it to safetensors";
  }
  return "; copy the model again";
}

// city96's converter flattens tensors that GGUF's blocks do not fit, and keeps their shape in the metadata.
std::optional<Shape> original_shape(const GgufFile& file, const std::string& name, const Shape& stored) {
  const std::string key = "comfy.gguf.orig_shape." + name;
  if (!file.metadata().has(key)) return {};
  const std::vector<int64_t> extents = file.metadata().integers(key, kPositive);
  const std::optional<Shape> shape = checked_shape(std::vector<uint64_t>(extents.begin(), extents.end()), 8);
  check(extents.size() <= kMaxRank && shape && shape->numel() == stored.numel(),
        "{}: {} should have the {} of tensor \"{}\"", file.path().string(), key, count_of(stored.numel(), "element"),
        name);
  return shape;
}

// Blocks that are no rows of a matrix, or that have no kernels, are decoded.
std::optional<StoredTensor> find_in_gguf(const std::shared_ptr<const GgufFile>& file, const std::string& name) {
  std::optional<StoredTensor> found = find_in(file, name);
  if (!found) return {};
  const std::optional<Shape> shape = original_shape(*file, name, found->shape);
  if (shape) found->shape = *shape;
  if (const GgufBlocks* blocks = gguf_blocks(found->dtype_name))
    return decoded(*found, blocks->block, [blocks](const std::byte* from, float* to, int64_t, int64_t count) {
      blocks->decode(from, to, count / blocks->block.elements);
    });
  if (!shape || !found->dtype) return found;
  if (is_block(*found->dtype))
    return decoded(*found, block_of(*found->dtype),
                   [dtype = *found->dtype](const std::byte* from, float* to, int64_t, int64_t count) {
                     for (int64_t i = 0; i < count; ++i) to[i] = block_element(from, dtype, i);
                   });
  found->load = loading(found->shape, *found->dtype, found->bytes);
  return found;
}

}  // namespace

StoredTensor decoded(const StoredTensor& stored, BlockSize unit, const Decode& decode) {
  StoredTensor f32{stored.shape, stored.dtype_name, DType::f32, {}, {}, true};
  f32.bytes = [unit, decode, read = stored.bytes](void* host, size_t at, size_t bytes) {
    constexpr int64_t kPiece = 1 << 16;  // elements, of which every unit is a part
    std::vector<std::byte> raw;
    std::vector<float> values;
    auto* to = static_cast<std::byte*>(host);
    const auto begin = int64_t(at), end = int64_t(at + bytes);
    for (int64_t first = begin / 4 / unit.elements * unit.elements; 4 * first < end; first += kPiece) {
      const int64_t left = ((end + 3) / 4 - first + unit.elements - 1) / unit.elements;
      const int64_t units = std::min(left, kPiece / unit.elements), count = units * unit.elements;
      raw.resize(size_t(units * unit.bytes));
      values.resize(size_t(count));
      read(raw.data(), size_t(first / unit.elements * unit.bytes), raw.size());
      decode(raw.data(), values.data(), first, count);
      const int64_t from = std::max(begin, 4 * first), until = std::min(end, 4 * (first + count));
      std::memcpy(to + (from - begin), reinterpret_cast<const std::byte*>(values.data()) + (from - 4 * first),
                  size_t(until - from));
    }
  };
  f32.load = loading(f32.shape, DType::f32, f32.bytes);
  return f32;
}

std::string TensorSource::in_words(const std::string& tensor) const {
  const std::string stored = stored_name(tensor);
  return stored == tensor ? fmt::format("\"{}\"", tensor) : fmt::format("\"{}\" (for \"{}\")", stored, tensor);
}

TensorSource safetensors_source(const fs::path& path) {
  const Safetensors file = open_safetensors(path);
  return with_bitsandbytes(
      with_fp8({.name = path.string(),
                .find = [file](const std::string& name, const Shape&) { return find_in(file, name); },
                .names = [file] { return keys_of(file->tensors()); }},
               file->metadata()));
}

TensorSource gguf_source(std::shared_ptr<const GgufFile> file) {
  return {.name = file->path().string(),
          .find = [file](const std::string& name, const Shape&) { return find_in_gguf(file, name); },
          .names = [file] { return keys_of(file->tensors()); }};
}

TensorSource shards_source(const fs::path& index) {
  std::map<std::string, Safetensors> shards;
  std::map<std::string, Safetensors> holders;
  for (const auto& [name, file_name] : read_safetensors_index(index)) {
    Safetensors& shard = shards[file_name];
    if (!shard) shard = open_safetensors(index.parent_path() / file_name);
    check(shard->has(name), "{}: has no tensor \"{}\", which {} says is there", shard->path().string(), name,
          index.filename().string());
    holders[name] = shard;
  }
  const auto find = [holders](const std::string& name, const Shape&) {
    const auto found = holders.find(name);
    return found == holders.end() ? std::nullopt : find_in(found->second, name);
  };
  return with_bitsandbytes(
      with_fp8({.name = index.string(), .find = find, .names = [holders] { return keys_of(holders); }}));
}

TensorSource memory_source(std::map<std::string, Tensor> tensors) {
  const auto find = [tensors](const std::string& name, const Shape&) -> std::optional<StoredTensor> {
    const auto found = tensors.find(name);
    if (found == tensors.end()) return {};
    const auto load = [tensor = found->second](Memory& memory) { return tensor.to(memory); };
    const DType dtype = found->second.dtype();
    return StoredTensor{found->second.shape(), std::string(name_of(dtype)), dtype, load, {}};
  };
  return {.name = "weights in memory", .find = find, .names = [tensors] { return keys_of(tensors); }};
}

TensorSource outline_source() {
  const auto find = [](const std::string&, const Shape& wanted) { return StoredTensor{.shape = wanted}; };
  return {.name = "outline", .find = find, .has_values = false};
}

TensorSource drawn_source(uint64_t seed, float deviation, DType vectors) {
  const auto find = [=](const std::string& name, const Shape& wanted) {
    const auto draw = [=](Memory& memory) {
      if (wanted.rank() == 1) return full(wanted, name.ends_with("weight") ? 1 : 0, vectors, memory);
      Rng rng(named_seed(seed, name), Stream::init);
      return random_normal(wanted, rng, memory) * deviation;
    };
    const DType dtype = wanted.rank() == 1 ? vectors : DType::f32;
    return StoredTensor{wanted, std::string(name_of(dtype)), dtype, draw, {}};
  };
  return {.name = "random weights", .find = find};
}

namespace {

// The inverse of an assembly: the stored tensors whose rows are those of the assembled ones.
TensorSource::Tensors taken_apart(const TensorSource& source, const Assembly& assembly,
                                  const TensorSource::Tensors& tensors) {
  std::map<std::string, std::map<int, Tensor>> pieces;  // of a stored tensor, by their index
  for (const auto& [name, tensor] : tensors) {
    const std::vector<Rows> rows = assembly(name);
    int64_t begin = 0;
    for (const auto& [whole, index, of] : rows) {
      const bool is_alone = rows.size() == 1 && of == 1;
      const int64_t count = is_alone ? tensor.dim(0) : source.find(whole, {}).value().shape[0] / of;
      pieces[whole][index] = is_alone ? tensor : slice(tensor, 0, begin, begin + count);
      begin += count;
    }
  }
  TensorSource::Tensors stored;
  for (const auto& [whole, parts] : pieces) {
    std::vector<Tensor> in_order;
    for (const auto& [index, part] : parts) in_order.push_back(part);
    stored[whole] = in_order.size() == 1 ? in_order.front() : cat(in_order, 0);
  }
  return stored;
}

}  // namespace

TensorSource renamed(const TensorSource& source, std::function<std::string(const std::string&)> stored_name) {
  return assembled(source, [stored_name = std::move(stored_name)](const std::string& name) {
    const std::string stored = stored_name(name);
    return stored.empty() ? std::vector<Rows>() : std::vector<Rows>{{stored}};
  });
}

TensorSource with_prefix(const TensorSource& source, const std::string& prefix) {
  TensorSource all = renamed(source, [prefix](const std::string& name) { return prefix + name; });
  all.names = [names = source.names, prefix] {
    std::vector<std::string> bare;
    for (const std::string& name : names())
      if (name.starts_with(prefix)) bare.push_back(name.substr(prefix.size()));
    return bare;
  };
  return all;
}

TensorSource watched(const TensorSource& source, std::set<std::string>& asked) {
  TensorSource all = source;
  all.find = [find = source.find, &asked](const std::string& name, const Shape& wanted) {
    asked.insert(name);
    return find(name, wanted);
  };
  return all;
}

TensorSource assembled(const TensorSource& source, Assembly assembly) {
  TensorSource all = source;
  all.find = [source, assembly](const std::string& name, const Shape& wanted) -> std::optional<StoredTensor> {
    const std::vector<Rows> rows = assembly(name);
    if (rows.empty()) return {};
    if (rows.size() == 1 && rows.front().of == 1) return source.find(rows.front().whole, wanted);
    const std::optional<std::vector<StoredTensor>> parts = find_parts(source, name, rows);
    if (!parts) return {};
    check_rows_alike(source, rows, *parts);
    if (parts->size() == 1) return parts->front();
    StoredTensor whole = joined(*parts);
    check(wanted.rank() == 0 || whole.shape == wanted, "{}: {} should make up \"{}\" {}", source.name,
          in_words(source, rows, *parts), name, wanted);
    return whole;
  };
  all.stored_name = [stored_name = source.stored_name, assembly](const std::string& name) {
    const std::vector<Rows> rows = assembly(name);
    return rows.empty() ? name : stored_name(rows.front().whole);
  };
  all.as_stored = [source, assembly](const TensorSource::Tensors& tensors) {
    return source.as_stored(taken_apart(source, assembly, tensors));
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

TensorSource open_source(const fs::path& path, const std::string& prefix) {
  const auto named = [&](const TensorSource& source) {
    return with_text_prefix(with_library_names(prefix.empty() ? source : with_prefix(source, prefix)));
  };
  if (GgufFile::is_gguf(path)) {
    const auto file = std::make_shared<const GgufFile>(GgufFile::open(path));
    return is_language_model(*file) ? gguf_model_source(file) : named(gguf_source(file));
  }
  if (!fs::is_directory(path)) return named(safetensors_source(path));
  const std::optional<fs::path> found = weights_in(path);
  check(found.has_value(),
        "{}: should hold diffusion_pytorch_model.safetensors or model.safetensors, or an index of shards of them{}",
        path.string(), instead_of_weights(path));
  return named(found->extension() == ".json" ? shards_source(*found) : safetensors_source(*found));
}

}  // namespace wick
