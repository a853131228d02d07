#include "wick/pipelines/merge.h"

#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "wick/io/file.h"
#include "wick/io/safetensors.h"
#include "wick/models/llama.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/finite.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/convert.h"
#include "wick/pipelines/model_folder.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// The edits that LoRAs make, by the names of transformers.
class Changes {
 public:
  explicit Changes(const std::vector<LoraFile>& loras) : adapter_(llama_module_names(), loras) {}

  // Called once with every tensor. `load` gives it as the model has it.
  void look_at(const std::string& name, const Shape& shape, std::function<Tensor()> load) {
    constexpr std::string_view kWeight = ".weight";
    if (shape.rank() != 2 || !name.ends_with(kWeight)) return;
    if (name == "model.embed_tokens.weight") embedding_ = load;
    const std::string path = "llama." + name.substr(0, name.size() - kWeight.size());
    if (auto adapter = adapter_.match({{path, {shape[1], shape[0]}, std::move(load)}}))
      adapters_.emplace(name, std::move(adapter));
  }
  // Called when every tensor of a model of this config was looked at. One table serves a tied model's head and
  // embedding, and a LoRA on the head is not one on the embedding.
  void check_complete(const LlamaConfig& config) {
    const LoraSite head{"llama.lm_head", {config.hidden, config.vocab}, embedding_, true};
    check(!config.tied || adapters_.contains("lm_head.weight") || !adapter_.match({head}),
          "--lora: one of them is on lm_head, which has no weights of its own in this model: they are the embedding's. "
          "It runs beside the model, and cannot be merged");
    adapter_.check_complete();
  }

  // Functions by name that turn the stored matrix into the merged one, in f32.
  std::map<std::string, std::function<Tensor(const Tensor&)>> edits() const {
    std::map<std::string, std::function<Tensor(const Tensor&)>> all;
    for (const auto& [name, adapter] : adapters_)
      all[name] = [adapter = adapter](const Tensor& w) { return adapter->merged(w); };
    return all;
  }

 private:
  Adapter adapter_;
  std::map<std::string, AdapterOfLayer> adapters_;
  std::function<Tensor()> embedding_;
};

void write_merged(const Checkpoint& from, const std::vector<fs::path>& files, const Changes& changes,
                  const fs::path& to, std::optional<DType> dtype) {
  begin_folder(to, kTransformersLast);
  const auto edits = changes.edits();
  for (const fs::path& path : files) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, info] : file.tensors()) {
      const Tensor stored = file.load(name);
      const auto edit = edits.find(name);
      const DType kept = info.shape.rank() == 2 ? dtype.value_or(stored.dtype()) : stored.dtype();
      check(!is_float(stored.dtype()) || is_finite(stored),
            "{}: {} holds values that are not finite numbers: the model is damaged", path.string(), name);
      tensors[name] = cast(edit == edits.end() ? stored : edit->second(stored), kept);
      check(!is_float(kept) || is_finite(tensors[name]), "{}: {} has values too large for {}; choose f32 or bf16",
            path.string(), name, name_of(kept));
    }
    save_safetensors(to / path.filename(), tensors, file.metadata());
  }
  copy_model_files(from, to, dtype);
}

void merge_folder(const Checkpoint& from, Changes& changes, const fs::path& to, std::optional<DType> dtype) {
  check(!from.config().has("quantization_config"),
        "{}: a folder of quantised weights cannot be merged into another one; choose a GGUF file as --output",
        from.config_file().string());
  const std::vector<fs::path> files = weight_files(from);
  for (const fs::path& path : files) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const auto& [name, info] : file.tensors())
      changes.look_at(name, info.shape, [file, here = name] { return file.load(here); });
  }
  changes.check_complete(LlamaConfig::read(from));
  check_usage(!dtype || !is_block(*dtype),
              "--dtype: a transformers folder holds f32, f16 or bf16, not {}; a GGUF file does",
              dtype ? name_of(*dtype) : "");
  write_folder(to, [&] { write_merged(from, files, changes, to, dtype); });
}

Weights::Quantized merge_to_gguf(const Checkpoint& from, Changes& changes, const fs::path& to,
                                 std::optional<DType> dtype) {
  const LlamaConfig config = LlamaConfig::read(from);
  const Weights weights = from.weights();
  for (const auto& [name, shape] : llama_tensors(config))
    changes.look_at(name, shape, [weights, here = name, like = shape] { return weights.read(here, like); });
  changes.check_complete(config);
  return convert_to_gguf(from, to, {.dtype = dtype, .edits = changes.edits()});
}

}  // namespace

Weights::Quantized merge_loras(const Checkpoint& from, const std::vector<LoraFile>& loras, const fs::path& to,
                               std::optional<DType> dtype) {
  std::error_code ignored;
  check(!fs::equivalent(from.path(), to, ignored), "{}: is the model that is merged; choose another --output",
        to.string());
  Changes changes(loras);
  const bool is_gguf = from.is_gguf() || to.extension() == ".gguf";
  if (is_gguf) return merge_to_gguf(from, changes, to, dtype);
  merge_folder(from, changes, to, dtype);
  return {};
}

}  // namespace wick
