// Named tensors of one component of a model, from any source (nn/source.h), converted to what a model asks for.
//
// Layers ask for tensors by name and shape while they are constructed, so constructing a model is loading it. In
// trainable Weights every tensor handed out is a leaf of the tape and listed in parameters(); save() writes them back
// under their names and in the file's layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "wick/autograd/block_stream.h"
#include "wick/backend/backend.h"
#include "wick/core/tensor.h"
#include "wick/nn/source.h"

namespace wick {

struct Parameter {
  std::string name;  // as in the file
  Tensor value;      // f32, trainable
  Tensor copy = {};  // a copy in the dtype that kernels compute with; the optimizer updates both
  float rate = 1;    // times the learning rate
};

// Tensors of a checkpoint stacked along their rows.
struct StackedTensor {
  Tensor whole;
  std::vector<Tensor> parts;  // the leaves in trainable weights of more than one tensor, else none
};

// The memory of a model and the dtype of its activations.
struct Residence {
  Memory* memory = &host_memory();
  DType activations = DType::f32;

  // The CPU computes in f32 whatever weights are kept in; a device computes in the weights' dtype.
  static Residence on(Backend& backend, DType weights);
};

struct WeightsOptions {
  // The dtype of matrices, tables and convolutions; vectors (norms, biases) are f32, but see load_bias(). A quantised
  // type (core/blocks.h, core/row_formats.h) is for the matrices that `quantizes` names, or for all matrices and tables
  // without it. What it does not name, and rows that are not whole blocks, are `unquantized`, as convolutions are. With
  // fp8_product matrices whose sides are not multiples of 16, which tensor cores do not multiply, are in fp8.
  DType dtype = DType::f32;
  DType unquantized = DType::f32;
  std::function<bool(const std::string& name)> quantizes = {};
  // Matrices and tables keep the types that they have in the file instead; those that are decoded become bf16.
  bool as_stored = false;
  bool trainable = false;  // everything handed out is f32 and a leaf
  // Tensors that a file stores in the wanted dtype are not read before read_deferred(), which reads all of them in one
  // go: for models that compute nothing from their weights while they are constructed.
  bool deferred = false;
  Residence place = {};
};

class Weights {
 public:
  using Options = WeightsOptions;

  Weights(TensorSource source, Options options);
  static Weights open(const std::filesystem::path& path, Options o = {}) { return {open_source(path), o}; }
  static Weights of(std::map<std::string, Tensor> tensors, Options o = {}) { return {memory_source(tensors), o}; }
  // A model constructed on an outline in the memory of a CountingBackend lists its modules and their sizes, and the
  // memory that it takes.
  static Weights outline(Options o) { return {outline_source(), o}; }
  static Weights drawn(uint64_t seed, float deviation, Options o) {
    return {drawn_source(seed, deviation, o.place.activations), o};
  }

  bool is_outline() const;  // there are shapes and no values
  bool has(const std::string& name) const;
  bool is_copy(const std::string& name, const std::string& other) const;  // in files: the same bytes, shape and dtype
  DType dtype_of(const std::string& name, const Shape& shape) const;      // in which load() hands it out
  // A tensor as it is stored, on the host and in its own dtype, for conversions and constants; trainable Weights
  // save it as it is. And that dtype, from the file's header alone.
  Tensor read(const std::string& name, const Shape& shape) const;
  DType stored_dtype(const std::string& name, const Shape& shape) const;
  bool is_decoded(const std::string& name, const Shape& shape) const;  // from another type (nn/source.h)
  // The tensor under `name`, converted to the options' dtype (f32 for rank 1). Another shape in the file is an error
  // that names file and tensor; only a matrix [out, in] may also be stored as a 1x1 convolution [out, in, 1, 1]. A name
  // that is loaded twice gives the same tensor.
  Tensor load(const std::string& name, const Shape& shape) const;
  // Several tensors, converted and checked as load() does. None of them can be part of another stack.
  StackedTensor load_stacked(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const;
  // The frozen bias of a layer that no adapter reads, or those of several, stacked: in the dtype of activations where
  // the file has it so, which spares the libraries' products a conversion at each call. An outline has f32.
  Tensor load_bias(const std::string& name, const Shape& shape) const;
  StackedTensor load_stacked_biases(const std::vector<std::string>& names, const std::vector<Shape>& shapes) const;
  // A convolution's weight: [O, I, KH, KW] in the file, [O, KH, KW, I] in memory.
  Tensor load_conv(const std::string& name, const Shape& file_shape) const;

  // A handle on the same Weights for the tensors of the next block of the model: blocks are made in the order in which
  // they run, each at once. Within a block it is the handle itself.
  Weights next_block() const;
  // Of a block, for tensors that are read at other times than when it runs: they stay where they are.
  Weights outside_blocks() const;
  size_t blocks() const;  // handed out so far
  // Before anything is loaded: the weights of `count` blocks (all where that is kAll) of the model that `build` makes
  // are to lie on the host, in `masters`. The model runs its blocks by a BlockSchedule::Pass. Not for trainable
  // Weights.
  std::shared_ptr<BlockStream> stream(size_t count, const std::function<void(const Weights&)>& build,
                                      MasterPlace masters = {}) const;

  // Calls f when the values of all that was handed out so far are where the tensors are: at once, or in
  // read_deferred(), or before a streamed block leaves for the host. f may compute with them, not change them.
  void when_read(std::function<void()> f) const;
  // `meanwhile` runs while the weights are on their way to a device, where none may be there yet: what it computes is
  // nonsense, but kernels and libraries get loaded. Not called on the CPU, nor where blocks are streamed, nor where
  // nothing is left to read.
  void read_deferred(const std::function<void()>& meanwhile = {}) const;
  // Of the matrices that were to be quantised and are handed out: how many are, and how many have rows that are not
  // whole blocks, or of fp8_product sides that are not multiples of 16.
  struct Quantized {
    int64_t matrices = 0, kept = 0;
  };
  Quantized quantized() const;
  // "nf4: 504 weights; 3 stay bf16, as their rows are not whole blocks of 64"; empty where none was to be quantised.
  // Throws Error where none could be.
  std::string describe_quantized() const;
  const Residence& place() const;
  const std::vector<Parameter>& parameters() const;  // of trainable Weights, in the order in which they were loaded
  // Every loaded tensor under its name, in the file's layout and in `dtype`. Atomic.
  void save(const std::filesystem::path& file, DType dtype) const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // Weights is a handle: Scopes share it
  std::optional<size_t> block_;   // to which the tensors belong that are asked for
};

}  // namespace wick
