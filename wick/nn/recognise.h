// The contents of a file, told from the names of its tensors.
#pragma once

#include <map>
#include <string>

#include "wick/nn/source.h"

namespace wick {

// The networks that models of pictures consist of; the first three denoise.
enum class Network { flux, sd3, sdxl, clip_l, clip_g, t5, vae };
const char* in_words(Network network);  // "FLUX's transformer", "a T5 encoder"

// The name of the FLUX.1 whose tokens have so many channels because it reads pictures beside latents (Fill, Canny,
// Depth), which Wick does not support; null for all others.
const char* flux_variant(int64_t channels);

// The networks in a file and the prefix of each one's names: none in a file of one network, "text_encoders.t5xxl." and
// the like in ComfyUI's files of all. `source` has the file's own names.
std::map<Network, std::string> networks_in(const TensorSource& source);

// For errors: "FLUX's transformer and a VAE", "a LoRA", "the model Chroma", or the first of its tensors.
std::string contents_in_words(const TensorSource& source);

}  // namespace wick
