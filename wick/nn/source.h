// Where weights come from: a function from a tensor's name to the tensor as it is stored. A format of files is a source
// of its own (nn/gguf_model.h has llama.cpp's); a checkpoint with other names, fused or otherwise transformed tensors
// is a source around the one of its file.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "wick/core/tensor.h"

namespace wick {

class GgufFile;

struct StoredTensor {
  Shape shape;
  std::string dtype_name;      // as the file spells it
  std::optional<DType> dtype;  // none where Wick cannot load it
  // The whole tensor in `dtype`, in any memory. Throws Error where there is no dtype.
  std::function<Tensor(Memory& memory)> load;
  // Reads its bytes, row-major in `dtype`. Empty where load() does more than read: the tensor is then read neither
  // later (WeightsOptions::deferred) nor in pieces.
  Memory::Source bytes;
  bool decoded = false;  // the file has it in another type, which Wick keeps nowhere
  // Where the file has codes and scales: the bytes of the same tensor in a dtype with such rows (core/row_formats.h),
  // with the file's numbers. Empty for all other dtypes.
  std::function<Memory::Source(DType dtype)> rows = {};
};

// A stored tensor whose type Wick does not compute with, as f32: its bytes are decoded as they are read, `count`
// elements from element `first` on at a time, both whole units.
using Decode = std::function<void(const std::byte* from, float* to, int64_t first, int64_t count)>;
StoredTensor decoded(const StoredTensor& stored, BlockSize unit, const Decode& decode);

struct TensorSource {
  std::string name;  // the file or folder, for errors
  // None where there is no such tensor. `wanted` is the shape that a layer asks for; only sources that have every
  // tensor in whatever shape heed it.
  std::function<std::optional<StoredTensor>(const std::string& name, const Shape& wanted)> find;
  bool has_values = true;  // else tensors have neither load nor bytes
  // All that is stored, under the names that files have, sorted. Empty where every name is there.
  std::function<std::vector<std::string>()> names = [] { return std::vector<std::string>(); };
  // The name in the files behind a name that is asked for, whether or not it is there.
  std::function<std::string(const std::string&)> stored_name = [](const std::string& tensor) { return tensor; };

  // All tensors of a network, under the names that are asked for, as the files have them.
  using Tensors = std::map<std::string, Tensor>;
  std::function<Tensors(const Tensors&)> as_stored = [](const Tensors& tensors) { return tensors; };

  bool has(const std::string& tensor) const { return find(tensor, {}).has_value(); }
  // For errors: the stored name, quoted, and the one that is asked for where that is another.
  std::string in_words(const std::string& tensor) const;
};

// A file, under its own names. Types without a dtype are decoded: floats of 8 bits (nn/fp8.h), bitsandbytes' types
// (nn/bitsandbytes.h), and GGUF's blocks that have no kernels (io/gguf_blocks.h).
TensorSource safetensors_source(const std::filesystem::path& path);
TensorSource gguf_source(std::shared_ptr<const GgufFile> file);
// The files that an index of shards names. Throws Error if one is missing or lacks a tensor.
TensorSource shards_source(const std::filesystem::path& index);
TensorSource memory_source(std::map<std::string, Tensor> tensors);
// Every name in whatever shape: shapes without values, and values for training from nothing. Drawn vectors named
// *weight (norms) are 1, other vectors (biases) 0, both in the dtype `vectors`; all else is f32 and normally
// distributed, each tensor by its name and the seed.
TensorSource outline_source();
TensorSource drawn_source(uint64_t seed, float deviation, DType vectors = DType::f32);

// The tensors of `source` under other names: `stored_name` turns a name that is asked for into the stored one, or into
// an empty string where there is none.
TensorSource renamed(const TensorSource& source, std::function<std::string(const std::string&)> stored_name);
// The tensors whose names begin with `prefix`, without it.
TensorSource with_prefix(const TensorSource& source, const std::string& prefix);

// The same source, which adds the name of every tensor that is asked for to `asked`.
TensorSource watched(const TensorSource& source, std::set<std::string>& asked);

// Rows of a stored tensor: part `index` of `of` equal parts.
struct Rows {
  std::string whole;
  int index = 0, of = 1;
};
// The stored rows that make up a tensor, one after the other; none where there is no such tensor.
using Assembly = std::function<std::vector<Rows>(const std::string& name)>;
// Fused tensors of split ones, split ones of a fused one, parts in another order. Tensors of one dtype stay as they
// are, those of several are joined in f32. Throws Error where some of a tensor's rows are stored and others are not.
// Only names that are one whole tensor reach a `source` that has every name.
TensorSource assembled(const TensorSource& source, Assembly assembly);

// The file of a folder that holds all weights, or the index of its shards: diffusion_pytorch_model or
// model[.fp16].safetensors.
std::optional<std::filesystem::path> weights_in(const std::filesystem::path& folder);
// The weights of one network: a safetensors or GGUF file, or a folder that holds a safetensors file or shards. Language
// models, CLIP, T5 and VAE have the names of transformers and diffusers, whatever the file; all else has its own. A
// file of several networks gives the one whose names begin with `prefix`.
TensorSource open_source(const std::filesystem::path& path, const std::string& prefix = "");

}  // namespace wick
