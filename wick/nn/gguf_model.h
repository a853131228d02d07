// Language models in GGUF files, as llama.cpp's converter writes them (convert_hf_to_gguf.py): its names for tensors
// and facts are turned into those of transformers. The architectures are llama (Mistral's too), qwen2 and qwen3.
#pragma once

#include <string>

#include "wick/io/gguf.h"
#include "wick/nn/source.h"

namespace wick {

// Has the file a language model's tensors, of this or of another architecture?
bool is_language_model(const GgufFile& file);
bool is_language_model(const std::filesystem::path& path);  // of a GGUF file; reads no more of it than is needed
// The tensors of such a file under transformers' names and with rows in transformers' order.
TensorSource gguf_model_source(const std::shared_ptr<const GgufFile>& file);

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; empty where there is no such tensor.
std::string gguf_name(const std::string& transformers_name);

// The text of the config.json that transformers would have for the model: model_type, sizes, eps, rope_theta and
// rope_scaling, sliding_window, biases, tied embeddings, ids that begin and end text. Throws Error for an architecture,
// a scaling of positions or experts that Wick does not know.
std::string config_json(const GgufFile& file);

// Keys, behind the architecture and a dot, of the numbers that give the factors in "rope_freqs.weight" (Llama 3).
// llama.cpp reads only the first, and for another kind of scaling.
inline constexpr const char *kOriginalPositionsKey = "rope.scaling.original_context_length",
                            *kLowFrequencyKey = "rope.scaling.low_freq_factor",
                            *kHighFrequencyKey = "rope.scaling.high_freq_factor";

// llama.cpp interleaves the features that a rotary position turns (2i, 2i + 1), transformers splits them (i, i + D/2).
// Returns how many heads' rows of this tensor have to be permuted; 0 for tensors that need none.
int64_t heads_of_pairs(const GgufMetadata& metadata, const std::string& gguf_name);
// The rows of w [heads * D, ...], of any dtype, from one order to the other; in w's memory.
Tensor pairs_to_halves(const Tensor& w, int64_t heads);
Tensor halves_to_pairs(const Tensor& w, int64_t heads);

}  // namespace wick
