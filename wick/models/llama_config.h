// The sizes and variations of a decoder language model, from transformers' config.json or a GGUF file: Mistral, Llama 2
// and 3, Qwen 2, 2.5 and 3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wick/nn/checkpoint.h"

namespace wick {

// The change of rotary frequencies for contexts longer than a model was first trained on; transformers'
// modeling_rope_utils has the formulas.
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  double low_frequency = 1, high_frequency = 4;  // llama3: mixes between these multiples of the original wavelength
  double original_positions = 0;
};

struct LlamaConfig {
  std::string model_type;  // "llama", "mistral", "qwen2", "qwen3"
  int64_t vocab, hidden, intermediate, positions, head_dim;
  int layers, heads, kv_heads;  // kv_heads divides heads
  float eps;
  float initializer_range;   // standard deviation of newly drawn weights; 0 for models that are never drawn
  double attention_dropout;  // in training alone
  double rope_theta;
  RopeScaling rope_scaling;
  bool qkv_bias, output_bias, mlp_bias;
  bool qk_norm;                // RMS norms of each head's queries and keys
  bool tied;                   // lm_head is the embeddings' table, and the files have no other
  int64_t window = 0;          // a query of a windowed layer sees this many keys, itself included; 0: no windows
  std::vector<bool> windowed;  // by layer
  std::vector<int64_t> bos_ids, eos_ids;  // any of eos_ids ends an answer; bos_ids holds at most one

  // Throws Error that names the first key of which Wick does not know the value, or the architecture.
  static LlamaConfig parse(const Config& config);
  // Reads a transformers folder, where generation_config.json may name more ids that end an answer, or a GGUF file.
  static LlamaConfig read(const Checkpoint& model);
  // Whether that is a transformers folder or a GGUF file, of any architecture.
  static bool is_here(const Checkpoint& model);

  int64_t query_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  // Radians per position for each pair of a head's features: head_dim / 2 of them, rounded to f32 as in transformers.
  std::vector<float> rope_frequencies() const;
  // The divisors of llama3's scaling for them, from 1 to its factor; empty for other kinds.
  std::vector<float> rope_factors() const;
};

}  // namespace wick
