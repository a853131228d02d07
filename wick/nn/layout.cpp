#include "wick/nn/layout.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "wick/ops/shape.h"

namespace wick {
namespace {

// How a name fits a row: the numbers of its blocks, and what follows the row's name.
struct Fit {
  std::vector<std::string_view> numbers;
  std::string_view rest;
};

std::optional<Fit> fit(std::string_view row, std::string_view name) {
  Fit fit;
  const bool open = row.ends_with('.');
  for (; !row.empty(); row.remove_prefix(1)) {
    if (row.front() == '*') {
      const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
      if (digits == 0) return {};
      fit.numbers.push_back(name.substr(0, digits));
      name.remove_prefix(digits);
      continue;
    }
    if (!name.starts_with(row.front())) return {};
    name.remove_prefix(1);
  }
  fit.rest = name;
  const bool fits = open ? !name.empty() : name.empty() || name == ".weight" || name == ".bias";
  return fits ? std::optional(fit) : std::nullopt;
}

std::string filled(std::string_view stem, const Fit& fit) {
  std::string name;
  size_t next = 0;
  for (const char c : stem) {
    if (c == '*')
      name += fit.numbers.at(next++);
    else
      name += c;
  }
  return name.append(fit.rest);
}

// transformers' CLIP <- OpenCLIP.
const std::vector<LayoutRow>& open_clip_rows() {
  static const std::vector<LayoutRow> rows = {
      {"text_model.embeddings.token_embedding", {{"token_embedding"}}},
      {"text_model.embeddings.position_embedding.weight", {{"positional_embedding"}}},
      {"text_model.encoder.layers.*.layer_norm1", {{"transformer.resblocks.*.ln_1"}}},
      {"text_model.encoder.layers.*.layer_norm2", {{"transformer.resblocks.*.ln_2"}}},
      {"text_model.encoder.layers.*.self_attn.q_proj.weight", {{"transformer.resblocks.*.attn.in_proj_weight", 0, 3}}},
      {"text_model.encoder.layers.*.self_attn.k_proj.weight", {{"transformer.resblocks.*.attn.in_proj_weight", 1, 3}}},
      {"text_model.encoder.layers.*.self_attn.v_proj.weight", {{"transformer.resblocks.*.attn.in_proj_weight", 2, 3}}},
      {"text_model.encoder.layers.*.self_attn.q_proj.bias", {{"transformer.resblocks.*.attn.in_proj_bias", 0, 3}}},
      {"text_model.encoder.layers.*.self_attn.k_proj.bias", {{"transformer.resblocks.*.attn.in_proj_bias", 1, 3}}},
      {"text_model.encoder.layers.*.self_attn.v_proj.bias", {{"transformer.resblocks.*.attn.in_proj_bias", 2, 3}}},
      {"text_model.encoder.layers.*.self_attn.out_proj", {{"transformer.resblocks.*.attn.out_proj"}}},
      {"text_model.encoder.layers.*.mlp.fc1", {{"transformer.resblocks.*.mlp.c_fc"}}},
      {"text_model.encoder.layers.*.mlp.fc2", {{"transformer.resblocks.*.mlp.c_proj"}}},
      {"text_model.final_layer_norm", {{"ln_final"}}},
      {"text_projection.weight", {{"text_projection"}}}};
  return rows;
}

// transformers' T5 encoder <- llama.cpp's.
const std::vector<LayoutRow>& gguf_t5_rows() {
  static const std::vector<LayoutRow> rows = {
      {"shared", {{"token_embd"}}},
      {"encoder.final_layer_norm", {{"enc.output_norm"}}},
      {"encoder.block.*.layer.0.layer_norm", {{"enc.blk.*.attn_norm"}}},
      {"encoder.block.*.layer.0.SelfAttention.q", {{"enc.blk.*.attn_q"}}},
      {"encoder.block.*.layer.0.SelfAttention.k", {{"enc.blk.*.attn_k"}}},
      {"encoder.block.*.layer.0.SelfAttention.v", {{"enc.blk.*.attn_v"}}},
      {"encoder.block.*.layer.0.SelfAttention.o", {{"enc.blk.*.attn_o"}}},
      {"encoder.block.*.layer.0.SelfAttention.relative_attention_bias", {{"enc.blk.*.attn_rel_b"}}},
      {"encoder.block.*.layer.1.layer_norm", {{"enc.blk.*.ffn_norm"}}},
      {"encoder.block.*.layer.1.DenseReluDense.wi_0", {{"enc.blk.*.ffn_gate"}}},
      {"encoder.block.*.layer.1.DenseReluDense.wi_1", {{"enc.blk.*.ffn_up"}}},
      {"encoder.block.*.layer.1.DenseReluDense.wo", {{"enc.blk.*.ffn_down"}}}};
  return rows;
}

// diffusers' AutoencoderKL <- latent diffusion's, whose decoder counts its levels from the picture on.
std::vector<LayoutRow> vae_rows(int levels) {
  std::vector<LayoutRow> rows;
  for (const std::string half : {"encoder.", "decoder."}) {
    const std::string middle = half + "mid_block.attentions.0.";
    rows.push_back({half + "conv_norm_out", {{half + "norm_out"}}});
    rows.push_back({half + "mid_block.resnets.0.", {{half + "mid.block_1."}}});
    rows.push_back({half + "mid_block.resnets.1.", {{half + "mid.block_2."}}});
    rows.push_back({middle + "group_norm", {{half + "mid.attn_1.norm"}}});
    for (const std::string p : {"q", "k", "v"}) rows.push_back({middle + "to_" + p, {{half + "mid.attn_1." + p}}});
    rows.push_back({middle + "to_out.0", {{half + "mid.attn_1.proj_out"}}});
    const bool down = half == "encoder.";
    for (int i = 0; i < levels; ++i) {
      const std::string level = half + (down ? "down_blocks." : "up_blocks.") + std::to_string(i) + ".";
      const std::string stored =
          half + (down ? "down." + std::to_string(i) : "up." + std::to_string(levels - 1 - i)) + ".";
      rows.push_back({level + "resnets.*.conv_shortcut", {{stored + "block.*.nin_shortcut"}}});
      rows.push_back({level + "resnets.*.", {{stored + "block.*."}}});
      rows.push_back({level + (down ? "downsamplers.0.conv" : "upsamplers.0.conv"),
                      {{stored + (down ? "downsample.conv" : "upsample.conv")}}});
    }
    rows.push_back({half + "conv_in", {{half + "conv_in"}}});
    rows.push_back({half + "conv_out", {{half + "conv_out"}}});
  }
  rows.push_back({"quant_conv", {{"quant_conv"}}});
  rows.push_back({"post_quant_conv", {{"post_quant_conv"}}});
  return rows;
}

bool has_names_below(const TensorSource& source, const std::string& stem) {
  return std::ranges::any_of(source.names(), [&](const std::string& name) { return name.starts_with(stem); });
}

// A stored matrix, with rows and columns exchanged.
TensorSource with_transposed(const TensorSource& source, const std::string& matrix) {
  TensorSource all = source;
  all.find = [find = source.find, matrix](const std::string& name, const Shape& wanted) {
    std::optional<StoredTensor> found = find(name, wanted);
    if (!found || name != matrix || found->shape.rank() != 2) return found;
    found->shape = {found->shape[1], found->shape[0]};
    found->bytes = {};
    found->load = [load = found->load](Memory& memory) { return contiguous(permute(load(memory), {1, 0})); };
    return found;
  };
  all.as_stored = [as_stored = source.as_stored, matrix](TensorSource::Tensors tensors) {
    if (const auto found = tensors.find(matrix); found != tensors.end())
      found->second = contiguous(transpose(found->second, 0, 1));
    return as_stored(tensors);
  };
  return all;
}

}  // namespace

Assembly assembly_of(std::vector<LayoutRow> rows) {
  return [rows = std::move(rows)](const std::string& name) {
    std::vector<Rows> parts;
    for (const LayoutRow& row : rows) {
      const std::optional<Fit> found = fit(row.name, name);
      if (!found) continue;
      for (const auto& [whole, index, of] : row.parts) parts.push_back({filled(whole, *found), index, of});
      break;
    }
    return parts;
  };
}

int blocks_in(const TensorSource& source, const std::string& stem) {
  int blocks = 0;
  for (const std::string& name : source.names()) {
    int number = 0;
    if (!name.starts_with(stem)) continue;
    const auto [end, error] = std::from_chars(name.data() + stem.size(), name.data() + name.size(), number);
    if (error == std::errc() && number < 1000) blocks = std::max(blocks, number + 1);
  }
  return blocks;
}

TensorSource without_comfyui_prefix(const TensorSource& stored) {
  const std::string prefix = "model.diffusion_model.";
  return has_names_below(stored, prefix) ? with_prefix(stored, prefix) : stored;
}

TensorSource with_library_names(const TensorSource& source) {
  if (has_names_below(source, "transformer.resblocks.")) {
    if (source.has("text_projection.weight"))
      return assembled(source, [rows = assembly_of(open_clip_rows())](const std::string& name) {
        return name == "text_projection.weight" ? std::vector<Rows>{{name}} : rows(name);
      });
    return with_transposed(assembled(source, assembly_of(open_clip_rows())), "text_projection.weight");
  }
  if (has_names_below(source, "enc.blk.")) return assembled(source, assembly_of(gguf_t5_rows()));
  if (has_names_below(source, "decoder.up."))
    return assembled(source, assembly_of(vae_rows(blocks_in(source, "decoder.up."))));
  if (has_names_below(source, "encoder.down."))
    return assembled(source, assembly_of(vae_rows(blocks_in(source, "encoder.down."))));
  return source;
}

}  // namespace wick
