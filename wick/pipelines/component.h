// One component of a model on given tensors, for `wick forward` (forward.h).
#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "wick/autograd/tape.h"
#include "wick/io/safetensors.h"
#include "wick/models/clip.h"
#include "wick/nn/checkpoint.h"
#include "wick/nn/scope.h"
#include "wick/text/token_lines.h"

namespace wick {

class ClipTokenizer;
using Tensors = std::map<std::string, Tensor>;

// A required extent of a tensor: a number, or a letter, which stands for any number but the same one everywhere.
struct Extent {
  int64_t size = 0;
  std::string letter;
  Extent(int64_t n) : size(n) {}                                          // NOLINT: implicit
  Extent(const char* name, int64_t min = 1) : size(min), letter(name) {}  // NOLINT: implicit
};

// The tensors of the input file, checked as they are asked for.
class ComponentInputs {
 public:
  ComponentInputs(const std::filesystem::path& path, bool track, Memory& memory)
      : file_(SafetensorsFile::open(path)), track_(track), memory_(memory) {}

  // A float tensor, as f32 in the model's memory; tracked if gradients are wanted.
  Tensor variable(const std::string& name, const std::vector<Extent>& shape);
  // Numbers without a gradient, as f32; integers will do.
  Tensor constant(const std::string& name, const std::vector<Extent>& shape);
  // Whole numbers without a gradient, i64 on the host; the file may have them in F32.
  Tensor whole(const std::string& name, const std::vector<Extent>& shape,
               int64_t least = std::numeric_limits<int64_t>::min());
  // The same from 0 to `vocabulary` - 1. `ignored` is one more that may be there.
  Tensor ids(const std::string& name, const std::vector<Extent>& shape, int64_t vocabulary,
             std::optional<int64_t> ignored = {});
  // A number for each of `batch` samples, or one for all of them: [B] f32.
  Tensor number(const std::string& name, int64_t batch, const NumberRange& range = {});
  // Throw Error for a tensor that is there, and for an odd number behind one of the letters of a tensor's shape.
  void refuse(const std::string& name, const std::string& why) const;
  void check_even(const std::string& name, std::initializer_list<const char*> letters) const;

  bool has(const std::string& name) const { return file_.has(name); }
  int64_t extent(const std::string& letter) const { return letters_.at(letter); }
  Tensors gradients(const Grads& grads) const;  // of all variables; zeros where one has no part in the loss

 private:
  const TensorInfo& info(const std::string& name) const;
  Tensor load(const std::string& name, const std::vector<Extent>& shape);
  Tensor finite(const std::string& name, const Tensor& x) const;

  SafetensorsFile file_;
  bool track_;
  Memory& memory_;
  std::map<std::string, int64_t> letters_;
  Tensors variables_;
};

// The outputs of a component, and its loss against the input `target`.
struct ComponentOutputs {
  Tensors tensors;
  std::function<Tensor(ComponentInputs&)> loss;
};

// The mean-squared error to a target of the shape of `y`.
std::function<Tensor(ComponentInputs&)> squared_error(const Tensor& y);

using ComponentRun = std::function<ComponentOutputs(ComponentInputs&)>;  // the component, loaded

// What components ask for while they are loaded as outlines: tensors by the names that models have for them, and
// modules.
struct ComponentWatch {
  std::map<std::string, TensorSource> sources = {};  // by component: "unet"
  std::map<std::string, std::set<std::string>> tensors = {};
  std::vector<LoraSite> sites = {};
};

struct ComponentSource {
  Checkpoint model;
  Adapter* adapter;
  WeightsOptions weights;
  ComponentWatch* watch = nullptr;  // then nothing is read but shapes

  Scope scope(const std::string& component) const;
  Scope scope(const std::string& component, const TensorSource& tensors) const;
};

struct Component {
  std::string name;  // "vae.encoder"
  std::function<ComponentRun(const ComponentSource&)> load;
  std::vector<std::string> lora_prefixes = {};  // that the names of its modules in LoRA files start with, any spelling
  // A tokenizer has this in place of `load`: a text's ids and the tokens around them, neither cut nor padded.
  std::function<TextToIds(const Checkpoint& model)> load_tokenizer = {};
};

// Components that several families have.
Component clip_component(const std::string& name, std::vector<std::string> lora_prefixes, ClipKind kind);
Component t5_component(const std::string& name, std::vector<std::string> lora_prefixes);
Component vae_encoder_component();
Component vae_decoder_component();
// `shipped` is the tokenizer that comes with set-up, for models of files that have none.
Component clip_tokenizer_component(const std::string& name, const std::string& shipped);
Component t5_tokenizer_component(const std::string& name, const std::string& shipped = "t5");
// A tokenizer of CLIP. One that is given for both encoders is CLIP-L's; bigG's pads with the id 0 in its place.
ClipTokenizer load_clip_tokenizer(const Checkpoint& model, const std::string& name, const std::string& shipped,
                                  int64_t vocabulary);
// Throws Error where a tokenizer, of such a file, has more tokens than its encoder.
void check_vocabulary(const std::filesystem::path& tokenizer, int64_t tokens, int64_t vocabulary);
std::filesystem::path tokenizer_path(const Checkpoint& model, const std::string& name, const std::string& shipped);

}  // namespace wick
