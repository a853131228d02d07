// How adapters change modules. An algorithm says which factors a module has, how they begin, how files spell and shape
// them, and what a layer computes with them (nn/layer_adapter.h); Adapter (nn/adapter.h) does the rest for all
// algorithms alike. LoRA is nn/lora.cpp; another one is a file like it and a line in adapter_algorithms(). DoRA's
// magnitude (nn/dora.h) goes with any of them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "wick/core/rng.h"
#include "wick/io/tensor_file.h"
#include "wick/nn/layer_adapter.h"
#include "wick/nn/weights.h"
#include "wick/ops/lora.h"

namespace wick {

struct LoraTarget {  // the module that asks
  int64_t in, out;
  int kernel = 1;
  bool conv = false;       // written with 4-D factors
  bool is_lookup = false;  // an embedding's table [out, in], of which rows are looked up
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
  std::string key = {};  // in the file that it came from or goes to
  Tensor value = {};     // f32, a leaf of the tape if it is trained; none where the algorithm can do without
  Tensor copy = {};      // Parameter::copy: in the dtype of the activations, where that is not f32

  void place(Memory& memory);  // moves the value there; a leaf becomes a leaf there
};

class AdapterAlgorithm;

// The sizes of a LoKr's matrices, as LyCORIS chooses them.
struct KronOptions {
  int64_t factor = -1;       // the rows and columns of the first matrix, at most; -1: near the root
  bool full_second = false;  // the second matrix is whole, whatever the rank (full_matrix)
  bool decompose_both =
      false;                // the first matrix is a product of two too, where its sides are more than twice the rank
  bool unbalanced = false;  // the first matrix has the larger part of the rows (unbalanced_factorization)
};

// DoRA's (nn/dora.h).
struct Magnitude {
  AdapterFactor factor = {};  // [out], or [in] where it is of inputs; none without DoRA
  bool of_inputs = false;
  bool is_fresh = false;  // becomes the norms of the weight when that is there
  float strength = 1;
};

// The settings of rotations (nn/oft.cpp, nn/boft.cpp) that a file keeps outside its factors.
struct RotationSettings {
  float constraint = 0;                  // times the outputs: the largest norm that generators may have
  bool constrains_always = false;        // kohya's OFT: with a constraint of 0 nothing is left of it
  std::optional<int64_t> neumann_terms;  // of PEFT's Cayley-Neumann series; none: Cayley's transform itself
  std::optional<double> coft_bound;      // PEFT's coft: eps, which bounds a block's generator
  bool shares_blocks = false;            // PEFT's block_share: one block serves for all
  bool is_onetrainers = false;           // a file without settings
};

struct AdapterModule {
  std::string name;  // base name in the file that is written
  LoraTarget target;
  const AdapterAlgorithm* algorithm;
  std::vector<AdapterFactor> factors = {};  // in the algorithm's order
  Magnitude magnitude = {};
  float alpha = 0, scale = 1;   // scale: alpha / rank
  float strength = 1;           // times that
  size_t set = 0;               // Adapter::use()
  bool changes_base = false;    // a part of the base is taken out again
  int64_t first = 0;            // of its outputs among those of the layer's module, of which it may be a part
  std::vector<int> order = {};  // of its outputs in the file that it came from: equal parts, unless empty
  RotationSettings rotation = {};
  std::string also = {};  // its path in diffusers, where patterns may name it by that

  int64_t end() const { return first + target.out; }
  float total_scale() const { return scale * strength; }
  bool is_trained() const;
  std::string kind() const;  // "LoRA", "DoRA", …
  // Its factors, and the magnitude behind them.
  std::vector<const AdapterFactor*> all_factors() const;
};

// A module of a layer: linears that share their input, and parts of a linear, lie side by side in one.
struct PlacedModule {
  AdapterModule* module;
  int64_t column;  // of its first output

  int64_t end() const { return column + module->target.out; }
};

class AdapterAlgorithm {
 public:
  struct Factor {
    std::string_view name;                   // "down"
    std::vector<std::string_view> suffixes;  // of keys in files: all are read, the first is written
    bool optional = false;
    bool frozen_only = false;  // becomes a part of other factors, or is not trained
    bool begins_at_zero = false;
    std::string_view beside = {};  // the suffixes count only where the module has a key with this one
  };
  struct FreshOptions {
    int64_t rank = 0;
    KronOptions kron = {};
  };

  virtual ~AdapterAlgorithm() = default;
  virtual const char* name() const = 0;  // "LoRA"
  virtual const std::vector<Factor>& factors() const = 0;
  // The factors of a module before training, not yet leaves.
  virtual std::vector<Tensor> fresh(const LoraTarget& target, const FreshOptions& options, Rng& rng,
                                    Memory& memory) const = 0;
  // The scale is alpha / rank; a rank of 0 means a scale of 1, whatever alpha says.
  virtual int64_t rank(const AdapterModule& module) const = 0;
  // A factor's value, or its gradient, in the layout of files: of one whose outputs have this order
  // (AdapterModule::order).
  virtual Tensor to_file(size_t factor, const Tensor& value, const AdapterModule& module,
                         const std::vector<int>& order = {}) const = 0;
  // Whether the factors of a module can be written with its outputs in the model's order, whatever
  // AdapterModule::order.
  virtual bool keeps_order(const AdapterModule&) const { return true; }
  // Brings factors that a file holds under their keys into memory's layout. Throws Error, which begins with the file's
  // name, where a shape does not fit the target, or where factors are missing.
  virtual void from_file(AdapterModule& module, const std::string& file) const = 0;
  // The adapter of a layer's modules; places their factors and makes copies. There is one module, whose outputs are all
  // of the layer's, unless the algorithm stacks.
  virtual std::shared_ptr<const LayerAdapter> layer(const std::vector<PlacedModule>& parts, int64_t outputs,
                                                    const Residence& place, const LoraDropout& dropout) const = 0;

  // Whether modules that lie side by side share one LayerAdapter, and modules of several files on the same outputs
  // become one. What follows is for such algorithms.
  virtual bool stacks() const { return false; }
  // Scales the factors of a trained module alike so that the Frobenius norm of its change is at most `most`.
  virtual void limit_norm(const AdapterModule& module, float most) const;
  // Makes of `module` one whose change is the sum of both; neither is trained.
  virtual void add(AdapterModule& module, const AdapterModule& other) const;
  // Makes of `module`, which is not trained, one of these outputs that changes those that it had.
  virtual void widen(AdapterModule& module, int64_t first, int64_t outputs) const;
};

// An algorithm whose modules are applied as files have them, and not trained.
class AppliedAlgorithm : public AdapterAlgorithm {
 public:
  std::vector<Tensor> fresh(const LoraTarget&, const FreshOptions&, Rng&, Memory&) const final;
  int64_t rank(const AdapterModule&) const override { return 0; }
  Tensor to_file(size_t, const Tensor& value, const AdapterModule&, const std::vector<int>&) const final {
    return value;
  }
};

const AdapterAlgorithm& lora_algorithm();
const AdapterAlgorithm& loha_algorithm();
const AdapterAlgorithm& lokr_algorithm();
// Those are AppliedAlgorithms.
const AdapterAlgorithm& full_algorithm();
const AdapterAlgorithm& norm_algorithm();
inline constexpr size_t kDifference = 0, kDifferenceOfBias = 1;  // factors of these two
inline constexpr size_t kWholeWeight = 2, kWholeBias = 3;        // and of the first
const AdapterAlgorithm& glora_algorithm();
const AdapterAlgorithm& ia3_algorithm();
const AdapterAlgorithm& peft_ia3_algorithm();
const AdapterAlgorithm& oft_algorithm();
const AdapterAlgorithm& peft_oft_algorithm();
const AdapterAlgorithm& peft_boft_algorithm();
const AdapterAlgorithm& embedding_algorithm();
const AdapterAlgorithm& token_rows_algorithm();
const std::vector<const AdapterAlgorithm*>& adapter_algorithms();

// Throws Error, which begins with the file's name, unless a factor has this shape.
void check_shape(const AdapterFactor& factor, const Shape& wanted, const std::string& file);
// The same for a factor of the weight's own shape: [out, in], or [out, in, kh, kw] of a convolution. For a 1x1
// convolution both shapes pass.
void check_weight_shape(const AdapterFactor& factor, const LoraTarget& target, const std::string& file);
// And brought into memory's layout, with its rows in the module's order.
Tensor weight_from_file(const Tensor& value, const AdapterModule& module);
// Equal parts of a factor's rows in another order: row block i of the result is block order[i]; and the way back. Or
// parts along another axis than that of rows.
Tensor reordered(const Tensor& rows, const std::vector<int>& order, int axis = 0);
std::vector<int> inverse(const std::vector<int>& order);
// A convolution of low rank in Tucker's form (LyCORIS' use_tucker), a pointwise down [R', in] and its core
// [R, R', KH, KW], as one down [R, KH, KW, in].
Tensor with_core(const Tensor& down, const Tensor& core);

// How files spell the tensors of a module: the module's base name and a suffix that tells the factor.
struct AdapterKey {
  std::string_view module;
  std::string_view name;  // "down", "up", or what any algorithm may have: "alpha", "scalar" (LyCORIS'), "magnitude"
  const AdapterAlgorithm* algorithm = nullptr;  // null of those
  size_t factor = 0;                            // its place in AdapterAlgorithm::factors()
};

// None if the key is no tensor of an algorithm that Wick computes. `has` tells whether a key stands beside it: without
// it factors that are known by that alone (Factor::beside) are none.
std::optional<AdapterKey> parse_adapter_key(std::string_view key,
                                            const std::function<bool(const std::string&)>& has = {});

// Throws Error if some tensor of an adapter's file has no elements: no program writes such factors, and a rank or a
// width of 0 would be divided by.
void check_extents(const TensorFile& file);

// The kind that a key tells of its module: "LoRA", "DoRA" by a magnitude, … Empty of an alpha or a scalar.
std::string_view kind_of(const AdapterKey& key);

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
