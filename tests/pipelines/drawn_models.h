// Models that are drawn, of sizes that a bare file tells, and their tensors in the layouts of all kinds of files. The
// names of other layouts stand here once more.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/files.h"
#include "io/float8.h"
#include "source_dir.h"
#include "wick/core/rng.h"
#include "wick/io/gguf.h"
#include "wick/io/safetensors.h"
#include "wick/models/clip.h"
#include "wick/models/flux/transformer.h"
#include "wick/models/sd3/transformer.h"
#include "wick/models/sdxl/config.h"
#include "wick/models/t5.h"
#include "wick/models/vae.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/diffusion.h"

namespace wick {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;
using Configs = std::map<std::string, std::string>;

inline constexpr const char* kClip =
    R"({"architectures": ["CLIPTextModel"], "eos_token_id": 2, "hidden_act": "quick_gelu",
  "hidden_size": 64, "intermediate_size": 32, "max_position_embeddings": 77, "num_attention_heads": 1,
  "num_hidden_layers": 2, "vocab_size": 814})";
inline constexpr const char* kBigG = R"({"architectures": ["CLIPTextModelWithProjection"], "eos_token_id": 2,
  "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 32, "max_position_embeddings": 77,
  "num_attention_heads": 1, "num_hidden_layers": 2, "projection_dim": 64, "vocab_size": 814})";
inline constexpr const char* kT5 = R"({"model_type": "t5", "d_ff": 32, "d_kv": 8, "d_model": 128,
  "feed_forward_proj": "gated-gelu", "num_heads": 2, "num_layers": 2, "relative_attention_num_buckets": 32,
  "vocab_size": 870})";
inline constexpr const char* kVae = R"({"block_out_channels": [32, 32], "layers_per_block": 1, "latent_channels": 16,
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D"],
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"], "in_channels": 3, "out_channels": 3,
  "use_quant_conv": false, "use_post_quant_conv": false, )";

inline const Configs kFlux = {
    {"transformer", R"({"_class_name": "FluxTransformer2DModel", "attention_head_dim": 32, "guidance_embeds": true,
       "axes_dims_rope": [4, 14, 14], "in_channels": 64, "joint_attention_dim": 128, "num_attention_heads": 2,
       "num_layers": 1, "num_single_layers": 2, "pooled_projection_dim": 64})"},
    {"text_encoder", kClip},
    {"text_encoder_2", kT5},
    {"vae", std::string(kVae) + R"("scaling_factor": 0.3611, "shift_factor": 0.1159})"},
    {"scheduler", R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true})"}};
inline const Configs kSd3 = {
    {"transformer", R"({"_class_name": "SD3Transformer2DModel", "attention_head_dim": 16, "caption_projection_dim": 32,
       "dual_attention_layers": [0], "in_channels": 16, "joint_attention_dim": 128, "num_attention_heads": 2,
       "num_layers": 2, "pooled_projection_dim": 128, "pos_embed_max_size": 16, "qk_norm": "rms_norm"})"},
    {"text_encoder", kClip},
    {"text_encoder_2", kBigG},
    {"text_encoder_3", kT5},
    {"vae", std::string(kVae) + R"("scaling_factor": 1.5305, "shift_factor": 0.0609})"},
    {"scheduler", R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3})"}};

inline const std::string kSdxlVae = R"({"block_out_channels": [32, 32], "layers_per_block": 1, "latent_channels": 4,
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D"],
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"], "in_channels": 3, "out_channels": 3,
  "scaling_factor": 0.13025})";
// The sizes' sinusoids are as wide as the pooled text, 64, leaves room for.
inline const Configs kSdxl = {
    {"unet", R"({"_class_name": "UNet2DConditionModel", "addition_embed_type": "text_time",
       "addition_time_embed_dim": 16, "attention_head_dim": [1, 1, 1], "block_out_channels": [32, 64, 64],
       "cross_attention_dim": 128, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
       "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], "in_channels": 4,
       "out_channels": 4, "layers_per_block": 2, "projection_class_embeddings_input_dim": 160,
       "transformer_layers_per_block": [1, 1, 2], "use_linear_projection": true})"},
    {"text_encoder", kClip},
    {"text_encoder_2", kBigG},
    {"vae", kSdxlVae},
    {"scheduler", R"({"_class_name": "EulerDiscreteScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear",
       "beta_start": 0.00085, "set_alpha_to_one": false, "steps_offset": 1, "timestep_spacing": "leading"})"}};

// --- The same tensors in other layouts ---

// Native modules and the parts of diffusers' that they consist of, "*" being a block's number. One part in brackets has
// its halves swapped.
using Layout = std::map<std::string, std::vector<std::string>>;
inline const Layout kFluxLayout = {
    {"img_in", {"x_embedder"}},
    {"txt_in", {"context_embedder"}},
    {"time_in.in_layer", {"time_text_embed.timestep_embedder.linear_1"}},
    {"time_in.out_layer", {"time_text_embed.timestep_embedder.linear_2"}},
    {"guidance_in.in_layer", {"time_text_embed.guidance_embedder.linear_1"}},
    {"guidance_in.out_layer", {"time_text_embed.guidance_embedder.linear_2"}},
    {"vector_in.in_layer", {"time_text_embed.text_embedder.linear_1"}},
    {"vector_in.out_layer", {"time_text_embed.text_embedder.linear_2"}},
    {"double_blocks.*.img_mod.lin", {"transformer_blocks.*.norm1.linear"}},
    {"double_blocks.*.txt_mod.lin", {"transformer_blocks.*.norm1_context.linear"}},
    {"double_blocks.*.img_attn.qkv",
     {"transformer_blocks.*.attn.to_q", "transformer_blocks.*.attn.to_k", "transformer_blocks.*.attn.to_v"}},
    {"double_blocks.*.txt_attn.qkv",
     {"transformer_blocks.*.attn.add_q_proj", "transformer_blocks.*.attn.add_k_proj",
      "transformer_blocks.*.attn.add_v_proj"}},
    {"double_blocks.*.img_attn.norm.query_norm", {"transformer_blocks.*.attn.norm_q"}},
    {"double_blocks.*.img_attn.norm.key_norm", {"transformer_blocks.*.attn.norm_k"}},
    {"double_blocks.*.txt_attn.norm.query_norm", {"transformer_blocks.*.attn.norm_added_q"}},
    {"double_blocks.*.txt_attn.norm.key_norm", {"transformer_blocks.*.attn.norm_added_k"}},
    {"double_blocks.*.img_attn.proj", {"transformer_blocks.*.attn.to_out.0"}},
    {"double_blocks.*.txt_attn.proj", {"transformer_blocks.*.attn.to_add_out"}},
    {"double_blocks.*.img_mlp.0", {"transformer_blocks.*.ff.net.0.proj"}},
    {"double_blocks.*.img_mlp.2", {"transformer_blocks.*.ff.net.2"}},
    {"double_blocks.*.txt_mlp.0", {"transformer_blocks.*.ff_context.net.0.proj"}},
    {"double_blocks.*.txt_mlp.2", {"transformer_blocks.*.ff_context.net.2"}},
    {"single_blocks.*.modulation.lin", {"single_transformer_blocks.*.norm.linear"}},
    {"single_blocks.*.linear1",
     {"single_transformer_blocks.*.attn.to_q", "single_transformer_blocks.*.attn.to_k",
      "single_transformer_blocks.*.attn.to_v", "single_transformer_blocks.*.proj_mlp"}},
    {"single_blocks.*.linear2", {"single_transformer_blocks.*.proj_out"}},
    {"single_blocks.*.norm.query_norm", {"single_transformer_blocks.*.attn.norm_q"}},
    {"single_blocks.*.norm.key_norm", {"single_transformer_blocks.*.attn.norm_k"}},
    {"final_layer.adaLN_modulation.1", {"(norm_out.linear)"}},
    {"final_layer.linear", {"proj_out"}}};
inline const Layout kSd3Layout = {
    {"pos_embed", {"pos_embed.pos_embed"}},
    {"x_embedder.proj", {"pos_embed.proj"}},
    {"context_embedder", {"context_embedder"}},
    {"t_embedder.mlp.0", {"time_text_embed.timestep_embedder.linear_1"}},
    {"t_embedder.mlp.2", {"time_text_embed.timestep_embedder.linear_2"}},
    {"y_embedder.mlp.0", {"time_text_embed.text_embedder.linear_1"}},
    {"y_embedder.mlp.2", {"time_text_embed.text_embedder.linear_2"}},
    {"joint_blocks.*.x_block.adaLN_modulation.1", {"transformer_blocks.*.norm1.linear"}},
    {"joint_blocks.*.x_block.attn.qkv",
     {"transformer_blocks.*.attn.to_q", "transformer_blocks.*.attn.to_k", "transformer_blocks.*.attn.to_v"}},
    {"joint_blocks.*.x_block.attn.ln_q", {"transformer_blocks.*.attn.norm_q"}},
    {"joint_blocks.*.x_block.attn.ln_k", {"transformer_blocks.*.attn.norm_k"}},
    {"joint_blocks.*.x_block.attn.proj", {"transformer_blocks.*.attn.to_out.0"}},
    {"joint_blocks.*.x_block.attn2.qkv",
     {"transformer_blocks.*.attn2.to_q", "transformer_blocks.*.attn2.to_k", "transformer_blocks.*.attn2.to_v"}},
    {"joint_blocks.*.x_block.attn2.ln_q", {"transformer_blocks.*.attn2.norm_q"}},
    {"joint_blocks.*.x_block.attn2.ln_k", {"transformer_blocks.*.attn2.norm_k"}},
    {"joint_blocks.*.x_block.attn2.proj", {"transformer_blocks.*.attn2.to_out.0"}},
    {"joint_blocks.*.x_block.mlp.fc1", {"transformer_blocks.*.ff.net.0.proj"}},
    {"joint_blocks.*.x_block.mlp.fc2", {"transformer_blocks.*.ff.net.2"}},
    {"joint_blocks.0.context_block.adaLN_modulation.1", {"transformer_blocks.0.norm1_context.linear"}},
    {"joint_blocks.1.context_block.adaLN_modulation.1", {"(transformer_blocks.1.norm1_context.linear)"}},
    {"joint_blocks.*.context_block.attn.qkv",
     {"transformer_blocks.*.attn.add_q_proj", "transformer_blocks.*.attn.add_k_proj",
      "transformer_blocks.*.attn.add_v_proj"}},
    {"joint_blocks.*.context_block.attn.ln_q", {"transformer_blocks.*.attn.norm_added_q"}},
    {"joint_blocks.*.context_block.attn.ln_k", {"transformer_blocks.*.attn.norm_added_k"}},
    {"joint_blocks.*.context_block.attn.proj", {"transformer_blocks.*.attn.to_add_out"}},
    {"joint_blocks.*.context_block.mlp.fc1", {"transformer_blocks.*.ff_context.net.0.proj"}},
    {"joint_blocks.*.context_block.mlp.fc2", {"transformer_blocks.*.ff_context.net.2"}},
    {"final_layer.adaLN_modulation.1", {"(norm_out.linear)"}},
    {"final_layer.linear", {"proj_out"}}};

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

// A name in which each of the table's parts is replaced once, in order.
template <size_t N>
inline std::string renamed(std::string name, const std::pair<const char*, const char*> (&table)[N]) {
  for (const auto& [from, to] : table) name = replaced(name, from, to);
  return name;
}

// Rows of so many parts; linear1's are three of the model's width and one four times as long.
inline std::vector<Tensor> parts_of(const Tensor& whole, size_t count) {
  const int64_t unit = whole.dim(0) / (count == 4 ? 7 : int64_t(count));
  std::vector<Tensor> parts;
  for (size_t i = 0; i < count; ++i)
    parts.push_back(slice(whole, 0, int64_t(i) * unit, i + 1 == count ? whole.dim(0) : int64_t(i + 1) * unit));
  return parts;
}

inline Tensors in_diffusers_layout(const Tensors& native, const Layout& layout) {
  Tensors all;
  for (const auto& [name, value] : native) {
    const size_t dot = name.rfind('.');
    const std::string last = dot == name.npos ? "" : name.substr(dot);
    const bool has_suffix = last == ".weight" || last == ".bias" || last == ".scale";
    const std::string stem = has_suffix ? name.substr(0, dot) : name, suffix = last == ".scale" ? ".weight" : last;
    const size_t digit = stem.find("blocks.") == stem.npos ? stem.npos : stem.find("blocks.") + 7;
    const std::string number = digit == stem.npos ? "" : stem.substr(digit, 1);
    auto row = layout.find(stem);
    if (row == layout.end() && !number.empty()) row = layout.find(replaced(stem, "." + number + ".", ".*."));
    if (row == layout.end()) throw std::runtime_error("no row for " + name);
    const std::vector<Tensor> parts = parts_of(value, row->second.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string part = replaced(row->second[i], "*", number);
      const bool swapped = part.starts_with('(');
      if (swapped) part = part.substr(1, part.size() - 2);
      const std::vector<Tensor> halves = parts_of(parts[i], 2);
      all[part + (has_suffix ? suffix : "")] = swapped ? cat({halves[1], halves[0]}, 0) : contiguous(parts[i]);
    }
  }
  return all;
}

// As the authors of latent diffusion name it; attention is of convolutions there.
inline Tensors in_ldm_layout(const Tensors& vae) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"mid_block.resnets.0.", "mid.block_1."},
                                                            {"mid_block.resnets.1.", "mid.block_2."},
                                                            {"mid_block.attentions.0.group_norm", "mid.attn_1.norm"},
                                                            {"mid_block.attentions.0.to_out.0", "mid.attn_1.proj_out"},
                                                            {"mid_block.attentions.0.to_", "mid.attn_1."},
                                                            {"conv_norm_out", "norm_out"},
                                                            {"down_blocks.", "down."},
                                                            {"up_blocks.0.", "up.1."},
                                                            {"up_blocks.1.", "up.0."},
                                                            {".resnets.", ".block."},
                                                            {"downsamplers.0.", "downsample."},
                                                            {"upsamplers.0.", "upsample."}};
  Tensors all;
  for (const auto& [name, value] : vae) {
    const std::string there = renamed(name, kNames);
    const bool matrix = value.shape().rank() == 2;
    all[there] = matrix ? reshape(value, {value.dim(0), value.dim(1), 1, 1}) : value;
  }
  return all;
}

// SDXL's UNet as its authors name it; the projections of its transformers may be convolutions.
inline Tensors in_sgm_layout(const Tensors& unet, bool convolutions) {
  constexpr std::pair<const char*, const char*> kBlocks[] = {
      {"conv_in", "input_blocks.0.0"},
      {"down_blocks.0.resnets.0", "input_blocks.1.0"},
      {"down_blocks.0.resnets.1", "input_blocks.2.0"},
      {"down_blocks.0.downsamplers.0.conv", "input_blocks.3.0.op"},
      {"down_blocks.1.resnets.0", "input_blocks.4.0"},
      {"down_blocks.1.attentions.0", "input_blocks.4.1"},
      {"down_blocks.1.resnets.1", "input_blocks.5.0"},
      {"down_blocks.1.attentions.1", "input_blocks.5.1"},
      {"down_blocks.1.downsamplers.0.conv", "input_blocks.6.0.op"},
      {"down_blocks.2.resnets.0", "input_blocks.7.0"},
      {"down_blocks.2.attentions.0", "input_blocks.7.1"},
      {"down_blocks.2.resnets.1", "input_blocks.8.0"},
      {"down_blocks.2.attentions.1", "input_blocks.8.1"},
      {"mid_block.resnets.0", "middle_block.0"},
      {"mid_block.attentions.0", "middle_block.1"},
      {"mid_block.resnets.1", "middle_block.2"},
      {"up_blocks.0.resnets.0", "output_blocks.0.0"},
      {"up_blocks.0.attentions.0", "output_blocks.0.1"},
      {"up_blocks.0.resnets.1", "output_blocks.1.0"},
      {"up_blocks.0.attentions.1", "output_blocks.1.1"},
      {"up_blocks.0.resnets.2", "output_blocks.2.0"},
      {"up_blocks.0.attentions.2", "output_blocks.2.1"},
      {"up_blocks.0.upsamplers.0.conv", "output_blocks.2.2.conv"},
      {"up_blocks.1.resnets.0", "output_blocks.3.0"},
      {"up_blocks.1.attentions.0", "output_blocks.3.1"},
      {"up_blocks.1.resnets.1", "output_blocks.4.0"},
      {"up_blocks.1.attentions.1", "output_blocks.4.1"},
      {"up_blocks.1.resnets.2", "output_blocks.5.0"},
      {"up_blocks.1.attentions.2", "output_blocks.5.1"},
      {"up_blocks.1.upsamplers.0.conv", "output_blocks.5.2.conv"},
      {"up_blocks.2.resnets.0", "output_blocks.6.0"},
      {"up_blocks.2.resnets.1", "output_blocks.7.0"},
      {"up_blocks.2.resnets.2", "output_blocks.8.0"},
      {"time_embedding.linear_1", "time_embed.0"},
      {"time_embedding.linear_2", "time_embed.2"},
      {"add_embedding.linear_1", "label_emb.0.0"},
      {"add_embedding.linear_2", "label_emb.0.2"},
      {"conv_norm_out", "out.0"},
      {"conv_out", "out.2"}};
  constexpr std::pair<const char*, const char*> kInside[] = {
      {".norm1.", ".in_layers.0."},  {".conv1.", ".in_layers.2."},  {".time_emb_proj.", ".emb_layers.1."},
      {".norm2.", ".out_layers.0."}, {".conv2.", ".out_layers.3."}, {".conv_shortcut.", ".skip_connection."}};
  Tensors all;
  for (const auto& [name, value] : unet) {
    std::string there;
    for (const auto& [from, to] : kBlocks)
      if (name.starts_with(std::string(from) + ".")) there = to + name.substr(std::string(from).size());
    if (there.empty()) throw std::runtime_error("no row for " + name);
    if (name.find(".resnets.") != name.npos) there = renamed(there, kInside);
    const bool projects = convolutions && (name.ends_with("proj_in.weight") || name.ends_with("proj_out.weight"));
    all[there] = projects ? reshape(value, {value.dim(0), value.dim(1), 1, 1}) : value;
  }
  return all;
}

// Queries, keys and values are one matrix in OpenCLIP, and the projection is transposed.
inline Tensors in_open_clip_layout(const Tensors& clip) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"text_model.embeddings.token_embedding", "token_embedding"},
      {"text_model.embeddings.position_embedding.weight", "positional_embedding"},
      {"text_model.encoder.layers.", "transformer.resblocks."},
      {"layer_norm1", "ln_1"},
      {"layer_norm2", "ln_2"},
      {"self_attn.out_proj", "attn.out_proj"},
      {"mlp.fc1", "mlp.c_fc"},
      {"mlp.fc2", "mlp.c_proj"},
      {"text_model.final_layer_norm", "ln_final"}};
  Tensors all{{"logit_scale", full({1}, 4.6f)}};
  for (const auto& [name, value] : clip) {
    const std::string there = renamed(name, kNames);
    if (name == "text_projection.weight") {
      all["text_projection"] = contiguous(permute(value, {1, 0}));
    } else if (const size_t at = there.find("self_attn.q_proj."); at != there.npos) {
      const std::string kind = there.substr(there.rfind('.') + 1);
      all[there.substr(0, at) + "attn.in_proj_" + kind] =
          cat({value, clip.at(replaced(name, "q_proj", "k_proj")), clip.at(replaced(name, "q_proj", "v_proj"))}, 0);
    } else if (there.find("self_attn.") == there.npos) {
      all[there] = value;
    }
  }
  return all;
}

inline Tensors in_gguf_layout(const Tensors& t5) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"shared", "token_embd"},
      {"encoder.final_layer_norm", "enc.output_norm"},
      {"encoder.block.", "enc.blk."},
      {"layer.0.SelfAttention.relative_attention_bias", "attn_rel_b"},
      {"layer.0.SelfAttention.", "attn_"},
      {"layer.0.layer_norm", "attn_norm"},
      {"layer.1.layer_norm", "ffn_norm"},
      {"layer.1.DenseReluDense.wi_0", "ffn_gate"},
      {"layer.1.DenseReluDense.wi_1", "ffn_up"},
      {"layer.1.DenseReluDense.wo", "ffn_down"}};
  Tensors all;
  for (const auto& [name, value] : t5) {
    const std::string there = renamed(name, kNames);
    all[there] = value;
  }
  return all;
}

inline Tensors behind(const std::string& prefix, const Tensors& tensors) {
  Tensors all;
  for (const auto& [name, value] : tensors) all[prefix + name] = value;
  return all;
}

// --- Values that floats of 8 bits and f16 hold exactly ---

inline int code_of(float value) {
  static const std::vector<float> all = [] {
    std::vector<float> values;
    for (int code = 0; code < 0x7f; ++code) values.push_back(e4m3(code));
    return values;
  }();
  const float size = std::abs(value);
  const auto above = std::min(std::ranges::lower_bound(all, size), all.end() - 1);
  const auto best = above == all.begin() || *above - size < size - above[-1] ? above : above - 1;
  return int(best - all.begin()) | (value < 0 ? 0x80 : 0);
}

inline Tensors rounded(Tensors tensors) {
  for (auto& [name, value] : tensors) {
    if (value.shape().rank() < 2) continue;
    std::vector<float> values = value.to_vector();
    for (float& v : values) v = e4m3(code_of(v));
    value = Tensor::of(values, value.shape());
  }
  return tensors;
}

// --- Kinds of files ---

class DrawnModels : public testing::Test {
 protected:
  // The tensors that a network asks for, drawn, under its own names.
  template <class Build>
  Tensors drawn(uint64_t seed, const Build& build) {
    const Weights weights = Weights::drawn(seed, 0.125f, {});
    build(Scope(weights, "drawn"));
    weights.save(folder_ / "drawn", DType::f32);
    const SafetensorsFile file = SafetensorsFile::open(folder_ / "drawn");
    Tensors tensors;
    for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
    return tensors;
  }
  Checkpoint config(const std::string& text) {
    return Checkpoint::of_configs("x", "FLUX", {{"x", text}}).component("x");
  }

  fs::path save(const std::string& name, const Tensors& tensors) {
    save_safetensors(folder_ / name, tensors);
    return folder_ / name;
  }
  fs::path save_gguf_file(const std::string& name, const Tensors& tensors, DType dtype) {
    std::vector<GgufEntry> entries;
    for (const auto& [tensor, value] : tensors) {
      const DType kept = value.shape().rank() < 2 ? DType::f32 : dtype;
      entries.push_back({tensor, kept, value.shape(), [value = value, kept] { return cast(value, kept); }});
    }
    save_gguf(folder_ / name, {}, entries);
    return folder_ / name;
  }
  // Linears in e4m3, times `scale` where there is one (ComfyUI's older marker).
  fs::path save_fp8(const std::string& name, const Tensors& tensors, float scale) {
    std::vector<StoredEntry> entries;
    if (scale != 1) entries.push_back({"scaled_fp8", "F8_E4M3", {0}, ""});
    for (const auto& [tensor, value] : tensors) {
      const std::vector<int64_t> shape(value.shape().begin(), value.shape().end());
      if (shape.size() != 2 || !tensor.ends_with(".weight")) {
        entries.push_back({tensor, "F32", shape, of_floats(value.to_vector())});
        continue;
      }
      std::string codes;
      for (const float v : value.to_vector()) codes += char(code_of(v / scale));
      entries.push_back({tensor, "F8_E4M3", shape, codes});
      const std::string stem = tensor.substr(0, tensor.size() - 7);
      if (scale != 1) entries.push_back({stem + ".scale_weight", "F32", {}, of_floats({scale})});
    }
    write_stored(folder_ / name, entries);
    return folder_ / name;
  }

  fs::path save_folder(const Configs& configs, const std::map<std::string, Tensors>& networks) {
    const fs::path root = folder_ / "diffusers";
    fs::create_directories(root);
    write_plain(root / "model_index.json", "{}");
    for (const auto& [component, text] : configs) {
      fs::create_directories(root / component);
      write_plain(root / component / (component == "scheduler" ? "scheduler_config.json" : "config.json"), text);
    }
    for (const auto& [component, tensors] : networks) {
      const bool is_text = component.starts_with("text_encoder");
      save_safetensors(root / component / (is_text ? "model.safetensors" : "diffusion_pytorch_model.safetensors"),
                       tensors);
    }
    return root;
  }

  Checkpoint model(ModelFiles files, bool has_t5 = true) const {
    files.parts["clip_tokenizer"] = test::source_dir() / "tests/golden/sdxl/tokenizer";
    if (has_t5) files.parts["t5_tokenizer"] = test::source_dir() / "tests/golden/t5_tokenizer/tokenizer.json";
    return files;
  }

  static Tensor random(uint64_t seed, const Shape& shape) {
    Rng rng(seed, Stream::init);
    return random_normal(shape, rng);
  }

  Tensors drawn_flux() {
    return rounded(
        drawn(8, [&](const Scope& s) { FluxTransformer(s, FluxConfig::read(config(kFlux.at("transformer")))); }));
  }
  Tensors drawn_sd3() {
    Tensors transformer =
        rounded(drawn(8, [&](const Scope& s) { Sd3Transformer(s, Sd3Config::read(config(kSd3.at("transformer")))); }));
    // Exact in f16, as published.
    transformer["pos_embed"] = cast(cast(random(13, {1, 256, 32}), DType::f16), DType::f32);
    return transformer;
  }
  // FLUX's tensors, by component.
  using Inputs = std::map<std::string, Tensors>;
  Inputs flux_inputs() const {
    std::map<std::string, Tensors> inputs = shared_inputs_;
    inputs["text_encoder_2"] = {{"input_ids", ids_}};
    inputs["transformer"] = {{"hidden_states", random(9, {1, 6, 64})},
                             {"encoder_hidden_states", random(10, {1, 4, 128})},
                             {"pooled_projections", random(11, {1, 64})},
                             {"timestep", Tensor::of(std::vector<float>{0.7f}, {1})},
                             {"guidance", Tensor::of(std::vector<float>{3.5f}, {1})},
                             {"img_ids", random(12, {6, 3})},
                             {"txt_ids", zeros({4, 3})}};
    return inputs;
  }
  Inputs sd3_inputs() const {
    std::map<std::string, Tensors> inputs = shared_inputs_;
    inputs["text_encoder_2"] = {{"input_ids", ids_}};
    inputs["text_encoder_3"] = {{"input_ids", ids_}};
    inputs["transformer"] = {{"hidden_states", random(9, {1, 16, 4, 6})},
                             {"encoder_hidden_states", random(10, {1, 4, 128})},
                             {"pooled_projections", random(11, {1, 128})},
                             {"timestep", Tensor::of(std::vector<float>{700}, {1})}};
    return inputs;
  }

  const TemporaryDirectory folder_;
  const Tensors clip_l_ = drawn(1, [&](const Scope&s) { ClipText(s, ClipConfig::read(config(kClip))); }),
                big_g_ = drawn(2, [&](const Scope&s) { ClipText(s, ClipConfig::read(config(kBigG))); }),
                t5_ = rounded(drawn(3, [&](const Scope&s) { T5Encoder(s, T5Config::read(config(kT5))); })),
                vae_ = drawn(4, [&](const Scope&s) {
                  const VaeConfig c = VaeConfig::read(config(kFlux.at("vae")));
                  VaeEncoder(s, c), VaeDecoder(s, c);
                });
  const Tensor ids_ = Tensor::of(std::vector<int64_t>{812, 5, 300, 40, 813, 813}, {1, 6});
  const std::map<std::string, Tensors> shared_inputs_ = {{"text_encoder", {{"input_ids", ids_}}},
                                                         {"vae.encoder", {{"sample", random(6, {1, 3, 8, 12})}}},
                                                         {"vae.decoder", {{"latent", random(7, {1, 16, 3, 5})}}}};
};

class DrawnSdxl : public DrawnModels {
 protected:
  fs::path folder(const Configs& configs = kSdxl) {
    return save_folder(configs,
                       {{"unet", unet_}, {"text_encoder", clip_l_}, {"text_encoder_2", big_g_}, {"vae", sdxl_vae_}});
  }
  // As its authors write it.
  Tensors in_one_file() const {
    Tensors all = behind("model.diffusion_model.", in_sgm_layout(unet_, /*convolutions=*/false));
    all.merge(behind("conditioner.embedders.0.transformer.", clip_l_));
    all.merge(behind("conditioner.embedders.1.model.", in_open_clip_layout(big_g_)));
    all.merge(behind("first_stage_model.", in_ldm_layout(sdxl_vae_)));
    return all;
  }

  Inputs sdxl_inputs() const {
    std::map<std::string, Tensors> inputs = {{"text_encoder", {{"input_ids", ids_}}},
                                             {"text_encoder_2", {{"input_ids", ids_}}},
                                             {"vae.encoder", {{"sample", random(6, {1, 3, 8, 12})}}},
                                             {"vae.decoder", {{"latent", random(7, {1, 4, 3, 5})}}}};
    inputs["unet"] = {{"sample", random(9, {1, 4, 4, 6})},
                      {"encoder_hidden_states", random(10, {1, 4, 128})},
                      {"text_embeds", random(11, {1, 64})},
                      {"time_ids", Tensor::of(std::vector<float>{16, 24, 0, 0, 16, 24}, {1, 6})},
                      {"timestep", Tensor::of(std::vector<float>{700}, {1})}};
    return inputs;
  }

  const Tensors unet_ = rounded(drawn(
                    8,
                    [&](const Scope&s) {
                      SdxlUNet(s, UNetConfig::read(Checkpoint::of_configs("x", "SDXL", {{"unet", kSdxl.at("unet")}})));
                    })),
                sdxl_vae_ = drawn(4, [&](const Scope&s) {
                  const VaeConfig c = VaeConfig::read(config(kSdxlVae));
                  VaeEncoder(s, c), VaeDecoder(s, c);
                });
};

}  // namespace wick
