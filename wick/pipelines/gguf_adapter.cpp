// LoRAs of language models in GGUF files (general.type "adapter"): llama.cpp adds alpha / rank * b a x, with one alpha
// for all modules and the rank of each; an alpha of 0 stands for a scale of 1. Source: llama-adapter.cpp and
// convert_lora_to_gguf.py of ggml-org/llama.cpp.
#include <algorithm>
#include <memory>

#include "wick/io/gguf.h"
#include "wick/io/quote.h"
#include "wick/models/llama_config.h"
#include "wick/nn/adapter_algorithm.h"
#include "wick/nn/gguf_model.h"
#include "wick/nn/peft.h"
#include "wick/ops/shape.h"
#include "wick/pipelines/convert_adapter.h"

namespace wick {
namespace {

constexpr const char *kArchitecture = "general.architecture", *kType = "general.type", *kAdapter = "adapter.type",
                     *kAlpha = "adapter.lora.alpha";
constexpr std::string_view kWeight = ".weight", kA = ".lora_a", kB = ".lora_b";

std::string architecture_of(const LlamaConfig& config) {
  return config.model_type == "mistral" ? "llama" : config.model_type;
}

// The facts that order the rows of queries and keys.
GgufMetadata facts_of(const LlamaConfig& config, const std::string& source) {
  return {source,
          {{kArchitecture, architecture_of(config)},
           {"llama.attention.head_count", uint32_t(config.heads)},
           {"llama.attention.head_count_kv", uint32_t(config.kv_heads)}}};
}

// That of most modules, and not 0.
double commonest_alpha(const AdapterFile& file) {
  std::map<double, int64_t> counts;
  for (const auto& [base, lora] : file.loras)
    if (lora.alpha != 0) ++counts[lora.alpha];
  if (counts.empty()) return 1;
  return std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
}

GgufEntry entry(std::string name, const Tensor& value) {
  return {std::move(name), value.dtype(), value.shape(), [value] { return value; }};
}

}  // namespace

void write_gguf_adapter(const AdapterFile& file, const Checkpoint& model, const std::filesystem::path& path) {
  const AdapterModules modules = AdapterModules::of(model);
  const AdapterFile plain = converted(file, modules, AdapterFormat::peft);  // refuses all but LoRAs of its modules
  const LlamaConfig config = LlamaConfig::read(model);
  const GgufMetadata facts = facts_of(config, model.name());
  const double alpha = commonest_alpha(plain);
  std::vector<GgufEntry> tensors;
  for (const auto& [base, lora] : plain.loras) {
    const std::string module = base.substr(kPeftPrefix.size());
    const std::string name = gguf_name(module + std::string(kWeight));
    check(!name.empty() && module != "model.embed_tokens", "{}: {} has no name in llama.cpp's adapters", file.name,
          quote(base));
    check(module != "lm_head" || !config.tied,
          "{}: {} has no weights of its own in this model, whose head is the embedding: llama.cpp knows no such module",
          file.name, quote(base));
    Tensor up = scaled_exactly(lora.up, lora.alpha / alpha);
    if (const int64_t heads = heads_of_pairs(facts, name); heads > 0) up = halves_to_pairs(up, heads);
    tensors.push_back(entry(name + std::string(kA), lora.down));
    tensors.push_back(entry(name + std::string(kB), up));
  }
  save_gguf(path,
            {{kArchitecture, architecture_of(config)},
             {kType, std::string("adapter")},
             {kAdapter, std::string("lora")},
             {kAlpha, float(alpha)}},
            tensors);
}

AdapterFile read_gguf_adapter(const std::filesystem::path& path, const Checkpoint& model) {
  const GgufFile file = GgufFile::open(path);
  check_extents(file);
  const GgufMetadata& metadata = file.metadata();
  check(metadata.text_or(kType, "") == "adapter" && metadata.text_or(kAdapter, "") == "lora",
        "{}: expected a LoRA, found a GGUF file of the type {}", path.string(),
        quote(metadata.text_or(kType, "model")));
  const LlamaConfig config = LlamaConfig::read(model);
  const GgufMetadata facts = facts_of(config, model.name());
  check(metadata.text_or(kArchitecture, "") == architecture_of(config), "{}: is for {}, and {} is {}", path.string(),
        quote(metadata.text_or(kArchitecture, "")), model.name(), quote(architecture_of(config)));
  const double alpha = metadata.number_or(kAlpha, 0);
  AdapterFile all{.name = path.string(), .format = AdapterFormat::gguf};
  size_t read = 0;
  const AdapterModules modules = AdapterModules::of(model);
  for (const NamedModule& module : modules.all()) {
    const std::string name = gguf_name(module.path.substr(module.path.find('.') + 1) + std::string(kWeight)),
                      a = name + std::string(kA), b = name + std::string(kB);
    if (name.empty() || !file.has(a) || !file.has(b)) continue;
    StoredLora lora{file.load(a), file.load(b)};
    check(lora.down.rank() == 2 && lora.up.rank() == 2 && lora.up.dim(1) == lora.down.dim(0) &&
              Shape{lora.up.dim(0), lora.down.dim(1)} == module.matrix,
          "{}: {} and {} should make a matrix {}, found {} and {}", path.string(), quote(a), quote(b), module.matrix,
          lora.down.shape(), lora.up.shape());
    if (const int64_t heads = heads_of_pairs(facts, name); heads > 0) lora.up = pairs_to_halves(lora.up, heads);
    lora.alpha = alpha == 0 ? double(lora.rank()) : alpha;
    all.loras[module.names.front().name] = std::move(lora);
    read += 2;
  }
  check(read == file.tensors().size(), "{}: {} of its {} tensors are on modules that {} does not have", path.string(),
        file.tensors().size() - read, file.tensors().size(), model.name());
  return all;
}

std::vector<LoraFile> with_gguf_read(std::vector<LoraFile> loras, const Checkpoint& model) {
  for (LoraFile& file : loras) {
    if (!GgufFile::is_gguf(file.path)) continue;
    std::map<std::string, Tensor> tensors;
    for (const auto& [base, lora] : read_gguf_adapter(file.path, model).loras) {
      tensors[base + ".lora_A.weight"] = lora.down;
      tensors[base + ".lora_B.weight"] = lora.up;
      tensors[base + ".alpha"] = full({}, float(lora.alpha));
    }
    file.tensors = std::make_shared<const std::map<std::string, Tensor>>(std::move(tensors));
  }
  return loras;
}

}  // namespace wick
