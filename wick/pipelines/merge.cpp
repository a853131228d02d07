#include "wick/pipelines/merge.h"

#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "wick/io/file.h"
#include "wick/io/quote.h"
#include "wick/io/safetensors.h"
#include "wick/io/safetensors_writer.h"
#include "wick/models/llama.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/finite.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/convert.h"
#include "wick/pipelines/convert_adapter.h"
#include "wick/pipelines/model_folder.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

using Edits = std::map<std::string, std::function<Tensor(const Tensor&)>>;

constexpr const char *kEmbedding = "model.embed_tokens.weight", *kHead = "lm_head.weight";

// The edits that LoRAs make, by the names of transformers.
class Changes {
 public:
  explicit Changes(const std::vector<LoraFile>& loras) : adapter_(llama_module_names(), loras) {}

  // Called once with every tensor. `load` gives it as the model has it.
  void look_at(const std::string& name, const Shape& shape, std::function<Tensor()> load) {
    names_.insert(name);
    const std::string path = "llama." + name.substr(0, name.rfind('.'));
    if (shape.rank() == 1 && name.ends_with(kNorm))
      if (auto change = adapter_.match_vector(path, /*is_bias=*/false, shape[0]))
        vectors_.emplace(name, std::move(change));
    if (shape.rank() != 2 || !name.ends_with(kWeight)) return;
    const bool is_embedding = name == kEmbedding;
    if (is_embedding) embedding_ = load;
    const LoraTarget target{.in = shape[1], .out = shape[0], .is_lookup = is_embedding};
    if (auto adapter = adapter_.match({{path, target, std::move(load)}})) adapters_.emplace(name, std::move(adapter));
  }
  // Called when every tensor of a model of this config was looked at. One table serves a tied model's head and
  // embedding: a LoRA on the one is none on the other, and takes them apart.
  void check_complete(const LlamaConfig& config) {
    const bool has_head = names_.contains(kHead);
    AdapterOfLayer of_head;
    if (config.tied && !has_head)
      of_head = adapter_.match({{"llama.lm_head", {config.hidden, config.vocab}, embedding_, true}});
    unties_ = config.tied && (of_head || adapters_.contains(kHead) || adapters_.contains(kEmbedding));
    adds_head_ = unties_ && !has_head;
    if (of_head) adapters_.emplace(kHead, std::move(of_head));
    adapter_.check_complete();
    for (const auto& [name, adapter] : adapters_)
      check(names_.contains(bias_of(name)) || !adapter->merged_bias({}),
            "--lora: one of them gives {} a bias, which it does not have in this model. It runs beside the model, and "
            "cannot be merged",
            quote(name));
  }
  // The head gets weights of its own, which begin as the embeddings' table and may be edited.
  bool unties() const { return unties_; }
  bool adds_head() const { return adds_head_; }

  // Functions by name that turn the stored matrix into the merged one, in f32.
  Edits edits() const {
    Edits all;
    for (const auto& [name, adapter] : adapters_) {
      all[name] = [adapter = adapter](const Tensor& w) { return adapter->merged(w); };
      if (const std::string bias = bias_of(name); names_.contains(bias) && adapter->changes_bias())
        all[bias] = [adapter = adapter](const Tensor& b) { return adapter->merged_bias(b); };
    }
    for (const auto& [name, change] : vectors_)
      all[name] = [change = change](const Tensor& base) { return change->merged(base); };
    return all;
  }

 private:
  static constexpr std::string_view kWeight = ".weight", kNorm = "norm.weight";

  static std::string bias_of(const std::string& weight) {
    return weight.substr(0, weight.size() - kWeight.size()) + ".bias";
  }

  Adapter adapter_;
  std::map<std::string, AdapterOfLayer> adapters_;
  std::map<std::string, std::shared_ptr<const VectorChange>> vectors_;  // of norms
  std::set<std::string> names_;                                         // of all tensors
  std::function<Tensor()> embedding_;
  bool unties_ = false, adds_head_ = false;
};

// A file's tensor, edited under a name.
Tensor merged_tensor(const SafetensorsFile& file, const std::string& stored_name, const std::string& name,
                     const Edits& edits, std::optional<DType> dtype) {
  const Tensor stored = file.load(stored_name);
  const auto edit = edits.find(name);
  const DType kept = stored.rank() == 2 ? dtype.value_or(stored.dtype()) : stored.dtype();
  check(!is_float(stored.dtype()) || is_finite(stored),
        "{}: {} holds values that are not finite numbers: the model is damaged", file.path().string(), stored_name);
  const Tensor merged = cast(edit == edits.end() ? stored : edit->second(stored), kept);
  check(!is_float(kept) || is_finite(merged), "{}: {} has values too large for {}; choose f32 or bf16",
        file.path().string(), name, name_of(kept));
  return merged;
}

void write_merged(const Checkpoint& from, const std::vector<fs::path>& files, const Changes& changes,
                  const fs::path& to, std::optional<DType> dtype, const std::optional<std::string>& chat_template) {
  begin_folder(to, kTransformersLast);
  const Edits edits = changes.edits();
  std::optional<std::string> head;  // its file, where it is not the embeddings' table any more
  for (const fs::path& path : files) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, info] : file.tensors()) tensors[name] = merged_tensor(file, name, name, edits, dtype);
    if (changes.adds_head() && file.has(kEmbedding))
      tensors[kHead] = merged_tensor(file, kEmbedding, kHead, edits, dtype);
    save_safetensors(to / path.filename(), tensors, file.metadata());
    if (changes.unties() && tensors.contains(kHead)) head = path.filename().string();
  }
  copy_model_files(from, to, dtype, chat_template, head);
}

// All tensors that a model of this config has, whatever the types of its files. They are read again when they are
// written.
std::vector<std::pair<std::string, Shape>> look_at_all(const Weights& weights, const LlamaConfig& config,
                                                       Changes& changes) {
  std::vector<std::pair<std::string, Shape>> tensors = llama_tensors(config);
  for (const auto& [name, shape] : tensors)
    changes.look_at(name, shape, [weights, here = name, like = shape] { return weights.read(here, like); });
  changes.check_complete(config);
  return tensors;
}

const char* name_of_floats(DType dtype) { return dtype == DType::f32 ? "F32" : dtype == DType::f16 ? "F16" : "BF16"; }

// The tensors of a model in a type of floats.
struct DecodedTensors {
  std::string model;  // for errors
  Weights weights;
  Edits edits;
  DType dtype;

  // One that begins as that under a stored name.
  SafetensorsGroup group(const std::string& stored, const std::string& name, const Shape& shape) const {
    const auto write = [=, *this](const SafetensorsGroup::Sink& sink) {
      const Tensor base = cast(weights.read(stored, shape), DType::f32);
      check(is_finite(base), "{}: {} holds values that are not finite numbers: the model is damaged", model, stored);
      const auto edit = edits.find(name);
      const Tensor merged = contiguous(cast(edit == edits.end() ? base : edit->second(base), dtype));
      check(is_finite(merged), "{}: {} has values too large for {}; choose f32 or bf16", model, name, name_of(dtype));
      sink(0, 0, merged.data<char>(), size_t(bytes_of(dtype, shape)));
    };
    return {{{name, name_of_floats(dtype), shape}}, write};
  }
};

// A folder of floats, made of one of quantised weights.
void merge_quantized_folder(const Checkpoint& from, Changes& changes, const fs::path& to, DType dtype,
                            const std::optional<std::string>& chat_template) {
  const LlamaConfig config = LlamaConfig::read(from);
  const Weights weights = from.weights();
  std::vector<SafetensorsGroup> groups;
  const std::vector<std::pair<std::string, Shape>> tensors = look_at_all(weights, config, changes);
  const DecodedTensors decoded{from.name(), weights, changes.edits(), dtype};
  for (const auto& [name, shape] : tensors) groups.push_back(decoded.group(name, name, shape));
  if (changes.adds_head()) groups.push_back(decoded.group(kEmbedding, kHead, {config.vocab, config.hidden}));
  std::string text = config_of(from, dtype);
  if (changes.unties()) text = untied_config(text, from.config_file());
  const auto write = [&](const fs::path& file) { save_shards(file, groups, {{"format", "pt"}}); };
  write_folder(to, [&] { write_language_model(from, to, text, write, chat_template); });
}

void merge_folder(const Checkpoint& from, Changes& changes, const fs::path& to, std::optional<DType> dtype,
                  const std::optional<std::string>& chat_template) {
  check_usage(!dtype || !is_block(*dtype),
              "--dtype: a transformers folder holds f32, f16 or bf16, not {}; a GGUF file does",
              dtype ? name_of(*dtype) : "");
  if (from.config().has("quantization_config")) {
    check(dtype.has_value(),
          "{}: a folder of quantised weights becomes one of floats; say by --dtype which ones, as bf16, or choose a "
          "GGUF file as --output",
          from.config_file().string());
    return merge_quantized_folder(from, changes, to, *dtype, chat_template);
  }
  const std::vector<fs::path> files = weight_files(from);
  for (const fs::path& path : files) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [name, info] : file.tensors())
      changes.look_at(name, info.shape, [file, here = name] { return file.load(here); });
  }
  changes.check_complete(LlamaConfig::read(from));
  write_folder(to, [&] { write_merged(from, files, changes, to, dtype, chat_template); });
}

Weights::Quantized merge_to_gguf(const Checkpoint& from, Changes& changes, const fs::path& to,
                                 std::optional<DType> dtype, const std::optional<std::string>& chat_template) {
  look_at_all(from.weights(), LlamaConfig::read(from), changes);
  return convert_to_gguf(
      from, to,
      {.dtype = dtype, .edits = changes.edits(), .chat_template = chat_template, .unties = changes.adds_head()});
}

}  // namespace

Weights::Quantized merge_loras(const Checkpoint& from, const std::vector<LoraFile>& loras, const fs::path& to,
                               std::optional<DType> dtype, const std::optional<std::string>& chat_template) {
  std::error_code ignored;
  check(!fs::equivalent(from.path(), to, ignored), "{}: is the model that is merged; choose another --output",
        to.string());
  Changes changes(with_gguf_read(loras, from));
  const bool is_gguf = from.is_gguf() || to.extension() == ".gguf";
  if (is_gguf) return merge_to_gguf(from, changes, to, dtype, chat_template);
  merge_folder(from, changes, to, dtype, chat_template);
  return {};
}

}  // namespace wick
