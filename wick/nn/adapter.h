// An adapter: factors for the modules of a model that it matches, by an algorithm (nn/adapter_algorithm.h).
//
// Layers ask the adapter once, while they are constructed; models never mention it. In a LoRA's file a module is
// NAME.lora_down.weight [r, in] ([r, in, kh, kw] for convolutions), NAME.lora_up.weight [out, r], NAME.alpha [];
// the scale is alpha / r, or 1 without an alpha (the rule of ComfyUI and kohya). PEFT and diffusers keep alphas beside
// the tensors (nn/peft.h). Names come from a ModuleNames function of the family. Where files of other programs split a
// module's rows among several of theirs, each has factors and a scale of its own.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "wick/autograd/tape.h"
#include "wick/core/tensor.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/glob.h"
#include "wick/nn/vector_change.h"

namespace wick {

struct LoraFile {  // a file, or a folder of PEFT's, as the command line names it: FILE[:STRENGTH]
  std::filesystem::path path;
  float strength = 1;
  std::map<std::string, float> parts = {};  // other strengths, by component: "text_encoder"
  // Of a format that only the model makes sense of (GGUF): its tensors, read already, under PEFT's names with alphas.
  std::shared_ptr<const std::map<std::string, Tensor>> tensors = {};

  // That of a component, or of a module by its path.
  float strength_of(const std::string& path_in_model) const;
};

// Rows of a module's matrix in the order of a file: some of `of` equal parts, one after the other. In the module they
// lie side by side.
struct ModuleRows {
  std::vector<int> parts = {0};
  int of = 1;

  int first() const { return *std::ranges::min_element(parts); }
  bool overlap(const ModuleRows& other) const;
};

// The program whose files are written with a name. Others are read alone. OneTrainer's are those of its "mixture"
// layout; where it has none of its own, kohya's are.
enum class Spelling { other, kohya, comfy, diffusers, peft, onetrainer };

// A base name in LoRA files, and what it stands for: a whole module, or for "…attn.to_k" one third of a fused one.
struct ModuleName {
  std::string name;
  ModuleRows rows;
  Spelling spelling = Spelling::other;

  ModuleName(std::string whole, Spelling of = Spelling::other)  // NOLINT: most names stand for whole modules
      : name(std::move(whole)), spelling(of) {}
  ModuleName(std::string part, ModuleRows some, Spelling of = Spelling::other)
      : name(std::move(part)), rows(std::move(some)), spelling(of) {}
};

// From a module's path in Wick ("unet.mid_block.attentions.0.proj_in") to its base names in LoRA files: the first,
// which is a whole module's, is written, all are understood. Empty for a module that files cannot name.
using ModuleNames = std::function<std::vector<ModuleName>(const std::string& path)>;

struct LoraConfig {
  ByPattern<int64_t> rank = 16;
  ByPattern<double> alpha = 0;       // the scale is alpha / rank; 0: the module's rank
  int64_t conv_rank = 0;             // of convolutions of more than one pixel; 0: as of others
  double conv_alpha = 0;             // likewise, with a conv_rank; 0: that
  bool rslora = false;               // the scale is alpha / sqrt(rank) (Kalajdzievski, 2023)
  ByPattern<double> rate = 1;        // Parameter::rate
  ByPattern<double> up_rate = 1;     // times that, of the factors that begin at zero: LoRA+ (Hayou et al., 2024)
  std::vector<std::string> targets;  // globs on module paths: * matches anything, dots included; a leading "-"
                                     // excludes; later ones win
  uint64_t seed = 0;
  float dropout = 0;  // share of its inputs that a module does not see, others at each draw; modules that share their
                      // input share what they do not see
  float rank_dropout = 0, module_dropout = 0;             // shares of ranks and modules that a batch does without
  float most_norm = 0;                                    // of what a module adds to its weight, Frobenius'; 0: any
  const AdapterAlgorithm* algorithm = &lora_algorithm();  // another one has neither dropout nor a limit
  KronOptions kron = {};                                  // AdapterAlgorithm::FreshOptions
  bool split = false;  // fused linears get an adapter for each part that diffusers has, under OneTrainer's names; and
                       // patterns may name modules as diffusers does
  bool dora = false;   // with magnitudes (nn/dora.h),
  bool magnitudes_of_inputs = false;  // of inputs instead of outputs
};

// The safetensors file that a path names: itself, or the one in it.
std::filesystem::path lora_weights(const std::filesystem::path& path);

// A word that files teach encoders by vectors of its own (OneTrainer's bundle_emb: textual inversion).
struct WordRows {
  std::string word;
  int64_t first = 0, count = 0;  // rows of Adapter::word_vectors(); none where the word is another encoder's
};

class AdapterSource;

class Adapter {
 public:
  // To train: every matching module gets fresh factors, as the algorithm begins them, drawn from a stream keyed by the
  // module's name, so that no order of construction matters. Modules of files that are added as trainable keep theirs.
  Adapter(LoraConfig config, ModuleNames names);
  // To run: factors come from files, each with a strength. Several files on the same rows of a module add up; the
  // factors of a trainable file are leaves of the tape, and share their rows with no other file.
  explicit Adapter(ModuleNames names, const std::vector<LoraFile>& files = {}, bool trainable = false);
  // The same for several sets of files, of which one is in use at a time: the first, before use() says otherwise.
  Adapter(ModuleNames names, const std::vector<std::vector<LoraFile>>& sets);
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;
  // A LoRA file, or a folder of PEFT's (adapter_model.safetensors, with adapter_config.json that tells the alphas) or
  // of diffusers' (pytorch_lora_weights.safetensors). Throws Error where a setting beside the tensors cannot be heeded.
  void add_file(const std::filesystem::path& path, float strength = 1, bool trainable = false) {
    add_file(LoraFile{path, strength}, trainable);
  }
  void add_file(const LoraFile& file, bool trainable = false, size_t set = 0);

  // Remarks on a file: tensors that are left aside, and slow work.
  static std::vector<std::string> notes_on(const LoraFile& file);
  // And on one that becomes a part of weights.
  static std::vector<std::string> notes_on_merging(const LoraFile& file);

  // For modules that no LoRA reaches: throws Error if a file replaces their matrix by another one.
  void check_base(const LoraSite& site) const;
  // Whether several linears that share their input are to be layers of their own, since one of them has an algorithm
  // that does not stack.
  bool stand_apart(const std::vector<LoraSite>& sites) const;
  // Called by layers, for one module or for several linears that share their input and lie side by side. The factors
  // are placed beside the model; where that computes in 16 bits, they are copied to its dtype once (Parameter::copy).
  // A second call for the same modules gives the same. Null where no module is adapted. The caller has the stack
  // rest_on() the weight when that is read.
  AdapterOfLayer match(const std::vector<LoraSite>& sites, const Residence& place = {});
  // The same for a vector of a norm, "weight" or "bias", which has `count` numbers. Null where no file changes it.
  std::shared_ptr<const VectorChange> match_vector(const std::string& path, bool is_bias, int64_t count,
                                                   const Residence& place = {});
  // A step recorded as a graph holds for its own set alone. The copies that this makes are enqueued.
  void use(size_t set);
  // The words that the set in use teaches an encoder by its short name: "clip_l", "clip_g" or "t5". And the vectors of
  // all sets, f32 [n, dim] on the host; empty where there are none.
  std::vector<WordRows> words(const std::string& encoder) const;
  Tensor word_vectors(const std::string& encoder) const;
  bool has_words() const;  // in some set, of some encoder
  // The numbers of the next dropout masks, each below 2^32: one for each sample of a batch, in equal shares of its
  // rows, or one for all. They are enqueued: earlier work sees the previous ones.
  void set_draws(const std::vector<int64_t>& draws);
  void pause_dropout(bool paused) { *dropout_paused_ = paused; }

  // After the model is constructed: throws if a file holds a module that no layer asked for, or if a file or a target
  // pattern matched nothing; patterns that fit other programs' names of modules are told their names here. Modules
  // whose names start with one of `elsewhere` belong to components that are not loaded.
  void check_complete(const std::vector<std::string>& elsewhere = {}) const;
  // The same where the components that are not loaded depend on the file.
  void check_complete_by_file(const std::function<std::vector<std::string>(const LoraFile&)>& elsewhere) const;
  // True if a module under this path prefix ("text_encoder.") is adapted.
  bool covers(const std::string& path_prefix) const;

  // Scales the factors of modules so that the norm of what they add to their weight is at most LoraConfig::most_norm.
  // Enqueued; copies are not refreshed. False where it is any, and nothing changed.
  bool limit_norms() const;

  // The trainable factors, named as in the file ("lora_unet_….lora_down.weight"), sorted by name.
  std::vector<Parameter> parameters() const;
  size_t module_count() const { return modules_.size(); }  // norms aside
  std::pair<int64_t, int64_t> ranks() const;               // the smallest and the largest; 0 of a LoKr that has none
  std::string kind() const;                                // "LoRA", "DoRA", …; "adapter" of several kinds
  std::vector<std::string> written_names() const;          // base names of the modules
  // The file that ComfyUI loads: factors in `dtype`, alphas in f32, since an f16 ends at 65504. Atomic; the bytes
  // depend on values and metadata alone.
  void save(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata,
            DType dtype = DType::f16) const;
  // The tensors of that file; those of another dtype than f32 are on the host.
  std::map<std::string, Tensor> tensors(DType dtype = DType::f32) const;
  // The gradients of parameters(), under the keys and in the layout of the file that they came from; zeros of those
  // that have no part in the output.
  std::map<std::string, Tensor> gradients(const Grads& grads) const;

 private:
  struct Part;

  // Modules that a target pattern fitted.
  struct PatternUse {
    bool fits = false;
    std::set<std::string> meant = {};  // patterns of the modules of which it fits another program's name
  };
  using Modules = std::vector<AdapterModule>;  // of one path, in the order of their outputs

  Modules* modules_at(const LoraSite& site, Memory& memory);
  // A module that may be trained: a whole one, or with LoraConfig::split a part of one.
  struct Trainable {
    ModuleName name;
    std::string also = {};  // AdapterModule::also
  };
  std::vector<Trainable> trainable(const std::string& path, const std::vector<ModuleName>& names) const;
  AdapterModule fresh(const Trainable& part, const LoraSite& site, Memory& memory) const;
  bool is_targeted(const std::string& path, const std::string& also) const;
  void note_patterns(const std::string& path, const std::vector<ModuleName>& names);
  std::shared_ptr<const LayerAdapter> adapter_of(const std::vector<PlacedModule>& group, int64_t outputs,
                                                 const Residence& place);
  std::shared_ptr<const LayerAdapter> adapter_of_part(AdapterModule& module, const Residence& place) const;
  std::string commonest_kinds() const;
  LoraDropout dropout(const std::vector<PlacedModule>& parts, Memory& memory);
  Modules from_files(const std::vector<ModuleName>& names, const LoraSite& site, size_t set);
  void check_targets() const;
  template <class T>
  void check_patterns(std::string_view flag, const ByPattern<T>& numbers) const;
  std::vector<const AdapterModule*> all_modules() const;

  std::optional<LoraConfig> config_;
  ModuleNames names_;
  std::vector<PatternUse> pattern_uses_;          // one per target pattern
  std::map<std::string, int64_t> kinds_;          // modules that patterns were held against: how many of each kind
  std::map<std::string, Modules> modules_;        // by module path
  std::map<std::string, AdapterOfLayer> layers_;  // handed out, by the path of the first of their modules
  std::map<std::string, std::shared_ptr<const VectorChange>> vectors_;  // handed out, by path and "weight" or "bias"
  Tensor all_draws_;                                                    // i64 [kMostDraws]; none without dropout
  std::shared_ptr<Tensor> draws_ = std::make_shared<Tensor>();          // those of the batch
  std::shared_ptr<bool> dropout_paused_ = std::make_shared<bool>(false);
  size_t set_count_ = 1;
  std::shared_ptr<size_t> set_in_use_ = std::make_shared<size_t>(0);
  struct GivenFile {
    std::shared_ptr<AdapterSource> file;
    size_t set;
  };
  std::vector<GivenFile> files_;
};

}  // namespace wick
