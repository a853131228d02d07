// A model of the Llama kind that trains in seconds.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "io/files.h"
#include "source_dir.h"
#include "wick/core/rng.h"
#include "wick/io/safetensors.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {

// With a tokenizer, and with rows of whole quantised blocks.
inline void write_tiny_llm(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const fs::path golden = test::source_dir() / "tests/golden";
  fs::create_directory(folder);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy(golden / "tokenizers/qwen3" / file, folder / file);
  write_plain(folder / "config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1410, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": true, "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2})");
  Rng rng(3);
  std::map<std::string, Tensor> tensors;
  const auto draw = [&](const std::string& name, const Shape& shape) {
    tensors[name] = random_normal(shape, rng) * 0.18f;
  };
  draw("model.embed_tokens.weight", {1410, 32});
  tensors["model.norm.weight"] = full({32}, 1);
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      tensors[layer + norm] = full({32}, 1);
    draw(layer + "self_attn.q_proj.weight", {32, 32});
    draw(layer + "self_attn.k_proj.weight", {16, 32});
    draw(layer + "self_attn.v_proj.weight", {16, 32});
    draw(layer + "self_attn.o_proj.weight", {32, 32});
    draw(layer + "mlp.gate_proj.weight", {64, 32});
    draw(layer + "mlp.up_proj.weight", {64, 32});
    draw(layer + "mlp.down_proj.weight", {32, 64});
  }
  save_safetensors(folder / "model.safetensors", tensors);
}

}  // namespace wick
