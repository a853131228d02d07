// Decoder language models of the Llama kind (Touvron et al., 2023), with the additions of Mistral (Jiang et al., 2023)
// and Qwen 2 and 3 (Yang et al., 2024 and 2025): sliding windows, biases, norms of queries and keys.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "wick/autograd/block_schedule.h"
#include "wick/models/kv_cache.h"
#include "wick/models/llama_config.h"
#include "wick/nn/layers.h"

namespace wick {

// PEFT's base names of a module: base_model.model.model.layers.0.self_attn.q_proj, or without the second "model." where
// PEFT wrapped the model without its head.
ModuleNames llama_module_names();
// Every linear of the layers, PEFT's "all-linear".
std::vector<std::string> llama_default_targets();

class Llama;

struct LlamaOptions {
  std::optional<DType> dtype;         // storage of frozen matrices: unless given f32, or as a GGUF file has each
  Adapter* adapter = nullptr;         // outlives the model
  bool trainable = false;             // full training instead of LoRA
  Backend* backend = nullptr;         // where the model runs: the CPU unless given
  BlockSchedule block_schedule = {};  // of its layers
  std::optional<uint64_t> draw;       // random weights of this seed: the files' are not read, and need not be there
  bool outline = false;               // weights of the right shapes without values: only the config is read
  // Called while the weights are read, as Weights::read_deferred() does it.
  std::function<void(const Llama&)> rehearse = {};
};

class Llama {
 public:
  Llama(Scope s, const LlamaConfig& config, BlockSchedule block_schedule = {});

  // A transformers folder, sharded or not, or a GGUF file.
  static Llama load(const Checkpoint& files, const LlamaOptions& options = {});

  const LlamaConfig& config() const;
  const Residence& place() const;
  const Weights& weights() const;

  // ids i64 [B, T] on the host, or range-checked on the model's device -> [B, T, hidden] after the final norm. With a
  // cache, `plan` comes from its extend().
  Tensor operator()(const Tensor& ids, const TokenPlan& plan, KvCache* cache = nullptr) const;
  // Each row's last token alone, [B, 1, hidden]: the last layer gives other tokens only keys and values.
  Tensor last(const Tensor& ids, const TokenPlan& plan, KvCache* cache = nullptr) const;
  Tensor logits(const Tensor& hidden) const;  // [..., hidden] -> f32 [..., vocab]
  // cross_entropy() of the logits, which are never materialised as a whole.
  Tensor loss(const Tensor& hidden, const TokenTargets& targets) const;

 private:
  struct Model;
  std::shared_ptr<const Model> model_;
};

// How a dtype keeps the weights, on a backend. One that is quantised leaves tables and the head as they are in bf16, in
// which a device computes then; but GGUF's types, whose files have those too, take all matrices.
WeightsOptions llama_weights(DType dtype, Backend& backend);

// The tensors of its checkpoint, by transformers' names, and their shapes: in the order of the layers.
std::vector<std::pair<std::string, Shape>> llama_tensors(const LlamaConfig& config);

// Bytes that the weights take on a kind of device ("cpu", "cuda"), from a config alone.
size_t estimate_model_memory(const LlamaConfig& config, DType dtype, std::string_view device = "cpu");

}  // namespace wick
