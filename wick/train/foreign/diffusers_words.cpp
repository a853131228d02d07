#include "wick/train/foreign/diffusers_words.h"

#include <algorithm>
#include <span>

#include "wick/models/flux/names.h"
#include "wick/models/sd3/names.h"

namespace wick {
namespace {

// A module of each kind.
constexpr std::string_view kOfFlux[] = {"img_in",
                                        "txt_in",
                                        "time_in.in_layer",
                                        "time_in.out_layer",
                                        "vector_in.in_layer",
                                        "vector_in.out_layer",
                                        "guidance_in.in_layer",
                                        "guidance_in.out_layer",
                                        "double_blocks.0.img_mod.lin",
                                        "double_blocks.0.txt_mod.lin",
                                        "double_blocks.0.img_attn.qkv",
                                        "double_blocks.0.txt_attn.qkv",
                                        "double_blocks.0.img_attn.proj",
                                        "double_blocks.0.txt_attn.proj",
                                        "double_blocks.0.img_mlp.0",
                                        "double_blocks.0.img_mlp.2",
                                        "double_blocks.0.txt_mlp.0",
                                        "double_blocks.0.txt_mlp.2",
                                        "single_blocks.0.modulation.lin",
                                        "single_blocks.0.linear1",
                                        "single_blocks.0.linear2",
                                        "final_layer.adaLN_modulation.1",
                                        "final_layer.linear"};
constexpr std::string_view kOfSd3[] = {"x_embedder.proj",
                                       "context_embedder",
                                       "t_embedder.mlp.0",
                                       "t_embedder.mlp.2",
                                       "y_embedder.mlp.0",
                                       "y_embedder.mlp.2",
                                       "joint_blocks.0.x_block.adaLN_modulation.1",
                                       "joint_blocks.0.x_block.attn.qkv",
                                       "joint_blocks.0.x_block.attn.proj",
                                       "joint_blocks.0.x_block.attn2.qkv",
                                       "joint_blocks.0.x_block.attn2.proj",
                                       "joint_blocks.0.x_block.mlp.fc1",
                                       "joint_blocks.0.x_block.mlp.fc2",
                                       "joint_blocks.0.context_block.adaLN_modulation.1",
                                       "joint_blocks.0.context_block.attn.qkv",
                                       "joint_blocks.0.context_block.attn.proj",
                                       "joint_blocks.0.context_block.mlp.fc1",
                                       "joint_blocks.0.context_block.mlp.fc2",
                                       "final_layer.adaLN_modulation.1",
                                       "final_layer.linear"};

}  // namespace

std::optional<std::string> pattern_of_word(DiffusersModel model, std::string_view word) {
  const std::string pattern = "*" + std::string(word) + "*";
  if (model == DiffusersModel::sdxl) return pattern;
  constexpr int kBlocks = 24;  // of SD3, whose last one alone has other names
  const bool is_flux = model == DiffusersModel::flux;
  const ModuleNames names = is_flux ? flux_module_names() : sd3_module_names(kBlocks);
  for (const std::string_view kind : is_flux ? std::span<const std::string_view>(kOfFlux) : std::span(kOfSd3)) {
    const std::string path = "transformer." + std::string(kind);
    if (!is_targeted_by(pattern, path)) continue;
    for (const ModuleName& name : names(path))
      if (name.spelling == Spelling::diffusers && !is_targeted_by(pattern, name.name)) return {};
  }
  return pattern;
}

}  // namespace wick
