// Language models in GGUF files, as llama.cpp's converter writes them (convert_hf_to_gguf.py): its names for tensors
// and facts, told as transformers tells them. The architectures are llama (Mistral's too), qwen2 and qwen3.
#pragma once

#include <string>

#include "wick/io/gguf.h"

namespace wick {

// "blk.3.attn_q.weight" <-> "model.layers.3.self_attn.q_proj.weight"; empty where there is no such tensor.
std::string transformers_name(const std::string& gguf_name);
std::string gguf_name(const std::string& transformers_name);

// The text of the config.json that transformers would have for the model: model_type, sizes, eps, rope_theta and
// rope_scaling, sliding_window, biases, tied embeddings, ids that begin and end text. Throws Error for an architecture,
// a scaling of positions or experts that Wick does not know.
std::string config_json(const GgufFile& file);

// Keys behind the architecture and a dot: what the factors in "rope_freqs.weight" (Llama 3) come from. llama.cpp asks
// for the first where it serves another kind of scaling, and for none of the others.
inline constexpr const char *kOriginalPositionsKey = "rope.scaling.original_context_length",
                            *kLowFrequencyKey = "rope.scaling.low_freq_factor",
                            *kHighFrequencyKey = "rope.scaling.high_freq_factor";

// Rotary positions turn features 2i and 2i + 1 of a head in llama files, but i and i + D/2 in transformers: the rows of
// q and k stand in the order of pairs there, of halves here. How many heads' rows of this tensor do; 0 of others.
int64_t heads_of_pairs(const GgufMetadata& metadata, const std::string& gguf_name);
// The rows of w [heads * D, ...], of any type, from one order to the other; in w's memory.
Tensor pairs_to_halves(const Tensor& w, int64_t heads);
Tensor halves_to_pairs(const Tensor& w, int64_t heads);

}  // namespace wick
