// How adapters change modules. An algorithm says which factors a module has, how they begin, how files spell and shape
// them, and what a layer computes with them; Adapter (nn/adapter.h) does the rest for all algorithms alike. LoRA is
// nn/lora.cpp; another one is a file like it and a line in adapter_algorithms().
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "wick/core/rng.h"
#include "wick/nn/weights.h"
#include "wick/ops/lora.h"

namespace wick {

struct LoraTarget {  // the module that asks
  int64_t in, out;
  int kernel = 1;
  bool conv = false;  // written with 4-D factors
};

struct LoraSite {  // where it stands
  std::string path;
  LoraTarget target;
  // The module's matrix as in the model's file, on the host, for files that depend on it (none in an outline); and
  // whether it is also the embedding's.
  std::function<Tensor()> base = {};
  bool tied = false;
};

struct AdapterFactor {
  std::string key;   // in the file that it came from or goes to
  Tensor value;      // f32, a leaf of the tape if it is trained
  Tensor copy = {};  // Parameter::copy: in the dtype of the activations, where that is not f32

  void place(Memory& memory);  // moves the value there; a leaf becomes a leaf there
};

class AdapterAlgorithm;

struct AdapterModule {
  std::string name;  // base name in the file that is written
  LoraTarget target;
  const AdapterAlgorithm* algorithm;
  std::vector<AdapterFactor> factors = {};  // in the algorithm's order
  float alpha = 0, scale = 1;
  bool changes_base = false;    // a part of the base is taken out again
  int64_t first = 0;            // of its outputs among those of the layer's module, of which it may be a part
  std::vector<int> order = {};  // of its outputs in the file that it came from: equal parts, unless empty

  int64_t end() const { return first + target.out; }

  bool is_trained() const { return factors.front().value.tracked(); }
};

// A module of a layer: linears that share their input, and parts of a linear, lie side by side in one.
struct PlacedModule {
  AdapterModule* module;
  int64_t column;  // of its first output
};

// The computation of a layer with an adapter on it; the layer's own weights are frozen. Arguments as in ops.
class LayerAdapter {
 public:
  virtual ~LayerAdapter() = default;
  // Without w: the residual, which is what a weight elsewhere made of x, and the adapter's own output.
  virtual Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& residual = {},
                        bool ends_block = false) const = 0;
  virtual Tensor gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias) const = 0;  // for inference
  virtual Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& conv) const = 0;
  // The weight of one module, [out, in] or [out, kh, kw, in] of a convolution, with the adapter in it; f32.
  virtual Tensor merged(const Tensor& w) const = 0;
};
using AdapterOfLayer = std::shared_ptr<const LayerAdapter>;  // null: none

class AdapterAlgorithm {
 public:
  struct Factor {
    std::string_view name;                   // "down"
    std::vector<std::string_view> suffixes;  // of keys in files: all are read, the first is written
  };

  virtual ~AdapterAlgorithm() = default;
  virtual const std::vector<Factor>& factors() const = 0;
  // The factors of a module before training, not yet leaves.
  virtual std::vector<Tensor> fresh(const LoraTarget& target, int64_t rank, Rng& rng, Memory& memory) const = 0;
  virtual int64_t rank(const AdapterModule& module) const = 0;  // what alpha is divided by
  // A factor's value, or its gradient, in the layout of files: of one whose outputs have this order
  // (AdapterModule::order).
  virtual Tensor to_file(size_t factor, const Tensor& value, const LoraTarget& target,
                         const std::vector<int>& order = {}) const = 0;
  // Brings factors that a file holds under their keys into memory's layout. Throws Error, which begins with the file's
  // name, where a shape does not fit the target.
  virtual void from_file(AdapterModule& module, const std::string& file) const = 0;
  // Scales the factors of a trained module alike so that the Frobenius norm of its change is at most `most`.
  virtual void limit_norm(const AdapterModule& module, float most) const = 0;
  // Makes of `module` one whose change is the sum of both; neither is trained.
  virtual void add(AdapterModule& module, const AdapterModule& other) const = 0;
  // Makes of `module`, which is not trained, one of these outputs that changes those that it had.
  virtual void widen(AdapterModule& module, int64_t first, int64_t outputs) const = 0;
  // Places the factors of a layer's modules, which have `outputs` columns in all, and makes their copies.
  virtual AdapterOfLayer layer(const std::vector<PlacedModule>& parts, int64_t outputs, const Residence& place,
                               const LoraDropout& dropout) const = 0;
};

const AdapterAlgorithm& lora_algorithm();
const std::vector<const AdapterAlgorithm*>& adapter_algorithms();

// How files spell the tensors of a module: the module's base name and a suffix that tells the factor.
struct AdapterKey {
  std::string_view module;
  std::string_view name;                        // "down", "up", or "alpha", which is no factor
  const AdapterAlgorithm* algorithm = nullptr;  // null of an alpha: several algorithms have one
  size_t factor = 0;                            // its place in AdapterAlgorithm::factors()
};

// None if the key is no tensor of an algorithm that Wick computes.
std::optional<AdapterKey> parse_adapter_key(std::string_view key);

// The algorithm which Wick does not compute that a key belongs to: "LoHa", "DoRA", … Empty if it is none that we know.
std::string_view other_lora_algorithm(std::string_view key);

// The model that a LoRA is for, and whose names its keys are, by the marks that they begin with: "FLUX, kohya's names".
// Null if it is none that we know.
const char* model_of_lora(const std::set<std::string>& keys);

// Whether a key is of an embedding that OneTrainer keeps in the LoRA's file.
bool is_bundled_embedding(std::string_view key);

// The module whose matrix PEFT keeps under this key beside a LoRA's factors: an embedding or the head
// (save_embedding_layers of peft/utils/save_and_load.py). Empty for any other key.
std::string_view module_of_base(std::string_view key);

}  // namespace wick
