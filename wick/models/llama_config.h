// What a decoder language model consists of, from transformers' config.json or a GGUF file: Mistral, Llama 2 and 3,
// Qwen 2, 2.5 and 3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wick/nn/checkpoint.h"

namespace wick {

// How rotary frequencies are changed for contexts longer than a model was first trained on; transformers'
// modeling_rope_utils has the formulas.
struct RopeScaling {
  enum class Kind : uint8_t { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  double low_frequency = 1, high_frequency = 4;  // llama3: between these multiples of the original wavelength it mixes
  double original_positions = 0;
};

struct LlamaConfig {
  std::string model_type;  // "llama", "mistral", "qwen2", "qwen3"
  int64_t vocab, hidden, intermediate, positions, head_dim;
  int layers, heads, kv_heads;  // kv_heads divides heads
  float eps;
  float initializer_range;   // the standard deviation of weights that are drawn anew; 0 is for models that never are
  double attention_dropout;  // in training alone
  double rope_theta;
  RopeScaling rope_scaling;
  bool qkv_bias, output_bias, mlp_bias;
  bool qk_norm;                // RMS norms of each head's queries and keys
  bool tied;                   // lm_head is the table of the embeddings, and the files have no other
  int64_t window = 0;          // a query of a windowed layer sees so many keys, itself among them; 0: none is windowed
  std::vector<bool> windowed;  // a layer
  std::vector<int64_t> bos_ids, eos_ids;  // any of eos_ids ends an answer; bos_ids holds at most one

  // Throws Error that names the first key of which Wick does not know the value, or the architecture.
  static LlamaConfig parse(const Config& config);
  // From a transformers folder, where generation_config.json may name more ids that end an answer, or a GGUF file.
  static LlamaConfig read(const Checkpoint& model);
  // Whether that is a transformers folder or a GGUF file, of whatever architecture.
  static bool is_here(const Checkpoint& model);

  int64_t query_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  // Radians a position, of each pair of a head's features: head_dim / 2 of them, rounded to f32 as transformers does.
  std::vector<float> rope_frequencies() const;
  // What llama3's scaling divides each of them by, from 1 to its factor; empty of another kind.
  std::vector<float> rope_factors() const;
};

}  // namespace wick
