// Named tensors of one component of a model: a safetensors file, a folder of them (sharded or not), a GGUF file of a
// language model under transformers' names, or a map in memory.
//
// Layers ask for tensors by name and shape while they are constructed, so constructing a model is loading it. In
// trainable Weights every tensor handed out is a leaf of the tape and listed in parameters(); save() writes them back
// under their names and in the file's layout.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "wick/backend/backend.h"
#include "wick/core/tensor.h"

namespace wick {

struct Parameter {
  std::string name;  // as in the file
  Tensor value;      // f32, trainable
  Tensor copy = {};  // of the value, in the dtype that kernels compute with; whoever changes one refreshes the other
};

// Tensors of a checkpoint one above the other: the whole, whose rows are theirs.
struct StackedTensor {
  Tensor whole;
  std::vector<Tensor> parts;  // the leaves in trainable weights of more than one tensor, else none
};

// Where a model lives and what it computes in.
struct Residence {
  Memory* memory = &host_memory();
  DType activations = DType::f32;

  // The CPU computes in f32 whatever weights are kept in; a device computes in the weights' dtype.
  static Residence on(Backend& backend, DType weights);
};

struct WeightsOptions {
  // Matrices, tables and convolutions are kept so; vectors (norms, biases) always in f32. A block type (core/blocks.h)
  // is for matrices and tables: q8_0 and q4_0 quantise what is stored otherwise; convolutions are f32 then.
  DType dtype = DType::f32;
  bool as_stored = false;  // matrices and tables stay in the file's own type instead, whichever each is of
  bool trainable = false;  // everything handed out is f32 and a leaf
  // What a file holds as it is wanted is read at once by read_deferred(), and until then is not there: for models that
  // compute nothing of their weights while they are constructed.
  bool deferred = false;
  Residence place = {};
};

class Weights {
 public:
  using Options = WeightsOptions;

  // `path` is a safetensors or GGUF file, or a folder that holds one (diffusion_pytorch_model /
  // model[.fp16].safetensors, or shards with their index.json).
  static Weights open(const std::filesystem::path& path, Options options = {});
  static Weights of(std::map<std::string, Tensor> tensors, Options options = {});
  // No weights at all: every name is there in whatever shape a layer asks for, and the values are anything. What a
  // model consists of (its modules, their sizes) and what it takes are found by constructing it on these, in the memory
  // of a CountingBackend.
  static Weights outline(Options options);
  // Likewise whatever a layer asks for, to be trained from nothing: vectors named *weight (of norms) are 1, other
  // vectors (biases) 0, all else is drawn from a normal distribution, each tensor by its name and the seed.
  static Weights drawn(uint64_t seed, float deviation, Options options);

  static bool is_here(const std::filesystem::path& folder);  // whether open() finds files there

  bool is_outline() const;  // there are shapes and no values
  bool has(const std::string& name) const;
  bool is_copy(const std::string& name, const std::string& other) const;  // in files: the same bytes, shape and dtype
  DType dtype_of(const std::string& name, const Shape& shape) const;      // in which load() hands it out
  // For who passes tensors on instead of running a model: one as its file has it, on the host and in its own dtype, and
  // not kept; and that dtype, from the file's header alone.
  Tensor read(const std::string& name, const Shape& shape) const;
  DType stored_dtype(const std::string& name, const Shape& shape) const;
  void check_storable(const std::string& name, const Shape& shape, DType dtype) const;  // throws if it cannot be such
  // The tensor under `name`, converted to the options' dtype (f32 for rank 1). Another shape in the file is an error
  // that names file and tensor; only a matrix [out, in] may also be stored as a 1x1 convolution [out, in, 1, 1]. A name
  // that is loaded twice gives the same tensor.
  Tensor load(const std::string& name, const Shape& shape) const;
  // Several, which are converted and checked likewise. They cannot be loaded in other company too.
  StackedTensor load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const;
  // A convolution's weight: [O, I, KH, KW] in the file, [O, KH, KW, I] in memory.
  Tensor load_conv(const std::string& name, const Shape& file_shape) const;

  void read_deferred() const;
  const Residence& place() const;
  const std::vector<Parameter>& parameters() const;  // of trainable Weights, in the order in which they were loaded
  // Every loaded tensor under its name, in the file's layout and in `dtype`. Atomic.
  void save(const std::filesystem::path& file, DType dtype) const;

 private:
  struct State;
  explicit Weights(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // Weights is a handle: Scopes share it
};

}  // namespace wick
