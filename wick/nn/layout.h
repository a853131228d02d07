// Names of one layout of a model's tensors in another, as data: a table for each pair of layouts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "wick/nn/source.h"

namespace wick {

// A tensor or module and the rows that it consists of in files. A "*" stands for a block's number, in order; a name
// that ends with a dot stands for everything below it. A row for "x" is for x, x.weight and x.bias.
struct LayoutRow {
  std::string name;
  std::vector<Rows> parts;
};

// The first row that fits a name gives its parts. Names that no row fits do not exist.
Assembly assembly_of(std::vector<LayoutRow> rows);

// How many blocks a layout has: one more than the largest number behind `stem` ("transformer_blocks.") in the names.
int blocks_in(const TensorSource& source, const std::string& stem);
// A denoiser's tensors, whose names may begin with ComfyUI's "model.diffusion_model.", without it.
TensorSource without_comfyui_prefix(const TensorSource& stored);

// The tensors of CLIP, T5 and VAE files under the names of transformers and diffusers, in which Wick knows them:
// OpenCLIP's names (SDXL's single files), llama.cpp's for T5, those of latent diffusion's VAE (FLUX's
// ae.safetensors). Tensors of other names stay as they are.
TensorSource with_library_names(const TensorSource& source);

}  // namespace wick
