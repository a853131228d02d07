// Each kind of file of the same weights gives the same bits: what every component computes and what is drawn from given
// noise. The models are drawn here, of sizes that a bare file tells; the names of other layouts stand here once more.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

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
#include "wick/pipelines/forward.h"
#include "wick/pipelines/model_defaults.h"
#include "wick/pipelines/noise_schedule.h"
#include "wick/pipelines/text_to_image.h"

namespace wick {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, Tensor>;
using Configs = std::map<std::string, std::string>;

constexpr const char* kClip = R"({"architectures": ["CLIPTextModel"], "eos_token_id": 2, "hidden_act": "quick_gelu",
  "hidden_size": 64, "intermediate_size": 32, "max_position_embeddings": 77, "num_attention_heads": 1,
  "num_hidden_layers": 2, "vocab_size": 814})";
constexpr const char* kBigG = R"({"architectures": ["CLIPTextModelWithProjection"], "eos_token_id": 2,
  "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 32, "max_position_embeddings": 77,
  "num_attention_heads": 1, "num_hidden_layers": 2, "projection_dim": 64, "vocab_size": 814})";
constexpr const char* kT5 = R"({"model_type": "t5", "d_ff": 32, "d_kv": 8, "d_model": 128,
  "feed_forward_proj": "gated-gelu", "num_heads": 2, "num_layers": 2, "relative_attention_num_buckets": 32,
  "vocab_size": 870})";
constexpr const char* kVae = R"({"block_out_channels": [32, 32], "layers_per_block": 1, "latent_channels": 16,
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D"],
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"], "in_channels": 3, "out_channels": 3,
  "use_quant_conv": false, "use_post_quant_conv": false, )";

const Configs kFlux = {
    {"transformer", R"({"_class_name": "FluxTransformer2DModel", "attention_head_dim": 32, "guidance_embeds": true,
       "axes_dims_rope": [4, 14, 14], "in_channels": 64, "joint_attention_dim": 128, "num_attention_heads": 2,
       "num_layers": 1, "num_single_layers": 2, "pooled_projection_dim": 64})"},
    {"text_encoder", kClip},
    {"text_encoder_2", kT5},
    {"vae", std::string(kVae) + R"("scaling_factor": 0.3611, "shift_factor": 0.1159})"},
    {"scheduler", R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true})"}};
const Configs kSd3 = {
    {"transformer", R"({"_class_name": "SD3Transformer2DModel", "attention_head_dim": 16, "caption_projection_dim": 32,
       "dual_attention_layers": [0], "in_channels": 16, "joint_attention_dim": 128, "num_attention_heads": 2,
       "num_layers": 2, "pooled_projection_dim": 128, "pos_embed_max_size": 16, "qk_norm": "rms_norm"})"},
    {"text_encoder", kClip},
    {"text_encoder_2", kBigG},
    {"text_encoder_3", kT5},
    {"vae", std::string(kVae) + R"("scaling_factor": 1.5305, "shift_factor": 0.0609})"},
    {"scheduler", R"({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3})"}};

const std::string kSdxlVae = R"({"block_out_channels": [32, 32], "layers_per_block": 1, "latent_channels": 4,
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D"],
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D"], "in_channels": 3, "out_channels": 3,
  "scaling_factor": 0.13025})";
// The sizes' sinusoids are as wide as the pooled text, 64, leaves room for.
const Configs kSdxl = {
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
const Layout kFluxLayout = {
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
const Layout kSd3Layout = {
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

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

// A name in which each of the table's parts is replaced once, in order.
template <size_t N>
std::string renamed(std::string name, const std::pair<const char*, const char*> (&table)[N]) {
  for (const auto& [from, to] : table) name = replaced(name, from, to);
  return name;
}

// Rows of so many parts; linear1's are three of the model's width and one four times as long.
std::vector<Tensor> parts_of(const Tensor& whole, size_t count) {
  const int64_t unit = whole.dim(0) / (count == 4 ? 7 : int64_t(count));
  std::vector<Tensor> parts;
  for (size_t i = 0; i < count; ++i)
    parts.push_back(slice(whole, 0, int64_t(i) * unit, i + 1 == count ? whole.dim(0) : int64_t(i + 1) * unit));
  return parts;
}

Tensors in_diffusers_layout(const Tensors& native, const Layout& layout) {
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
Tensors in_ldm_layout(const Tensors& vae) {
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
Tensors in_sgm_layout(const Tensors& unet, bool convolutions) {
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
Tensors in_open_clip_layout(const Tensors& clip) {
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

Tensors in_gguf_layout(const Tensors& t5) {
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

Tensors behind(const std::string& prefix, const Tensors& tensors) {
  Tensors all;
  for (const auto& [name, value] : tensors) all[prefix + name] = value;
  return all;
}

// --- Values that floats of 8 bits and f16 hold exactly ---

int code_of(float value) {
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

Tensors rounded(Tensors tensors) {
  for (auto& [name, value] : tensors) {
    if (value.shape().rank() < 2) continue;
    std::vector<float> values = value.to_vector();
    for (float& v : values) v = e4m3(code_of(v));
    value = Tensor::of(values, value.shape());
  }
  return tensors;
}

// --- Kinds of files ---

class FileKinds : public testing::Test {
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

  std::vector<float> picture(const Checkpoint& files, const std::vector<SamplerKind>& samplers = {SamplerKind::euler},
                             std::optional<Prediction> prediction = {}) const {
    const std::unique_ptr<Diffusion> diffusion =
        open_diffusion(files, {.t5 = {.tokens = 12}, .prediction = prediction});
    diffusion->load({}, kDrawingParts);
    TextToImage text_to_image(*diffusion);
    ImageRequest request{.prompt = "a red fox", .negative = "blurry", .width = 16, .height = 24, .cfg = 3};
    request.guidance = 2.5f;
    request.sampling.steps = 3;
    std::vector<float> pictures;
    for (const SamplerKind sampler : samplers) {
      request.sampling.kind = sampler;
      const Tensor latents = text_to_image.denoise({request}, random(5, {1, 12, 8, diffusion->latents().channels}));
      const std::vector<float> pixels = text_to_image.decode(latents).to_vector();
      pictures.insert(pictures.end(), pixels.begin(), pixels.end());
    }
    return pictures;
  }

  std::string forward(const Checkpoint& files, const std::string& component, const Tensors& in) const {
    save_safetensors(folder_ / "in", in);
    run_forward(files, component, folder_ / "in", folder_ / "out");
    return read_plain(folder_ / "out");
  }

  struct Result {
    std::vector<float> picture;
    std::map<std::string, std::string> components;
  };
  Result results(const Checkpoint& files, const std::map<std::string, Tensors>& inputs) const {
    Result all{picture(files), {}};
    for (const auto& [component, in] : inputs) all.components[component] = forward(files, component, in);
    return all;
  }
  void expect_same(const Result& found, const Result& expected) const {
    EXPECT_TRUE(found.picture == expected.picture) << "the pictures differ";
    for (const auto& [component, bytes] : expected.components)
      EXPECT_TRUE(found.components.at(component) == bytes) << component;
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

TEST_F(FileKinds, OfFluxGiveTheSameBits) {
  const Tensors transformer =
      rounded(drawn(8, [&](const Scope& s) { FluxTransformer(s, FluxConfig::read(config(kFlux.at("transformer")))); }));
  std::map<std::string, Tensors> inputs = shared_inputs_;
  inputs["text_encoder_2"] = {{"input_ids", ids_}};
  inputs["transformer"] = {{"hidden_states", random(9, {1, 6, 64})},
                           {"encoder_hidden_states", random(10, {1, 4, 128})},
                           {"pooled_projections", random(11, {1, 64})},
                           {"timestep", Tensor::of(std::vector<float>{0.7f}, {1})},
                           {"guidance", Tensor::of(std::vector<float>{3.5f}, {1})},
                           {"img_ids", random(12, {6, 3})},
                           {"txt_ids", zeros({4, 3})}};

  const std::map<std::string, fs::path> parts = {{"transformer", save("flux", transformer)},
                                                 {"clip_l", save("clip_l", clip_l_)},
                                                 {"t5", save("t5", t5_)},
                                                 {"vae", save("vae", vae_)}};
  const Result expected = results(model({.parts = parts}), inputs);
  const auto with = [&](const std::string& part, const fs::path& file) {
    std::map<std::string, fs::path> others = parts;
    others[part] = file;
    SCOPED_TRACE(file.filename().string());
    expect_same(results(model({.parts = others}), inputs), expected);
  };
  with("transformer", save("flux, prefixed", behind("model.diffusion_model.", transformer)));
  const Tensors diffusers = in_diffusers_layout(transformer, kFluxLayout);
  with("transformer", save("flux, diffusers", diffusers));
  for (const DType dtype : {DType::f32, DType::f16}) {
    with("transformer", save_gguf_file("flux.gguf", transformer, dtype));
    with("t5", save_gguf_file("t5.gguf", in_gguf_layout(t5_), dtype));
  }
  for (const float scale : {1.0f, 0.0625f}) {
    with("transformer", save_fp8("flux, fp8", transformer, scale));
    with("t5", save_fp8("t5, fp8", t5_, scale));
  }
  with("vae", save("ae", in_ldm_layout(vae_)));
  expect_same(
      results(
          model({.model = save_folder(
                     kFlux,
                     {{"transformer", diffusers}, {"text_encoder", clip_l_}, {"text_encoder_2", t5_}, {"vae", vae_}})}),
          inputs),
      expected);

  Tensors all = behind("model.diffusion_model.", transformer);
  all.merge(behind("text_encoders.clip_l.transformer.", clip_l_));
  all.merge(behind("text_encoders.t5xxl.transformer.", t5_));
  all.merge(behind("vae.", in_ldm_layout(vae_)));
  expect_same(results(model({.model = save("all in one", all)}), inputs), expected);
}

TEST_F(FileKinds, OfSd3GiveTheSameBits) {
  Tensors transformer =
      rounded(drawn(8, [&](const Scope& s) { Sd3Transformer(s, Sd3Config::read(config(kSd3.at("transformer")))); }));
  // Exact in f16, as published.
  transformer["pos_embed"] = cast(cast(random(13, {1, 256, 32}), DType::f16), DType::f32);
  std::map<std::string, Tensors> inputs = shared_inputs_;
  inputs["text_encoder_2"] = {{"input_ids", ids_}};
  inputs["text_encoder_3"] = {{"input_ids", ids_}};
  inputs["transformer"] = {{"hidden_states", random(9, {1, 16, 4, 6})},
                           {"encoder_hidden_states", random(10, {1, 4, 128})},
                           {"pooled_projections", random(11, {1, 128})},
                           {"timestep", Tensor::of(std::vector<float>{700}, {1})}};

  const std::map<std::string, fs::path> parts = {{"transformer", save("sd3", transformer)},
                                                 {"clip_l", save("clip_l", clip_l_)},
                                                 {"clip_g", save("clip_g", big_g_)},
                                                 {"t5", save("t5", t5_)},
                                                 {"vae", save("vae", vae_)}};
  const Result expected = results(model({.parts = parts}), inputs);
  const auto with = [&](const fs::path& file) {
    std::map<std::string, fs::path> others = parts;
    others["transformer"] = file;
    SCOPED_TRACE(file.filename().string());
    expect_same(results(model({.parts = others}), inputs), expected);
  };
  with(save("sd3, prefixed", behind("model.diffusion_model.", transformer)));
  const Tensors diffusers = in_diffusers_layout(transformer, kSd3Layout);
  with(save("sd3, diffusers", diffusers));
  with(save_fp8("sd3, fp8", transformer, 0.0625f));
  for (const DType dtype : {DType::f32, DType::f16}) with(save_gguf_file("sd3.gguf", transformer, dtype));
  expect_same(results(model({.model = save_folder(kSd3, {{"transformer", diffusers},
                                                         {"text_encoder", clip_l_},
                                                         {"text_encoder_2", big_g_},
                                                         {"text_encoder_3", t5_},
                                                         {"vae", vae_}})}),
                      inputs),
              expected);

  Tensors all = behind("model.diffusion_model.", transformer);
  all.merge(behind("text_encoders.clip_l.transformer.", clip_l_));
  all.merge(behind("text_encoders.clip_g.transformer.", big_g_));
  all.merge(behind("text_encoders.t5xxl.transformer.", t5_));
  all.merge(behind("first_stage_model.", in_ldm_layout(vae_)));
  expect_same(results(model({.model = save("all in one", all)}), inputs), expected);
}

class SdxlKinds : public FileKinds {
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

TEST_F(SdxlKinds, GiveTheSameBits) {
  std::map<std::string, Tensors> inputs = {{"text_encoder", {{"input_ids", ids_}}},
                                           {"text_encoder_2", {{"input_ids", ids_}}},
                                           {"vae.encoder", {{"sample", random(6, {1, 3, 8, 12})}}},
                                           {"vae.decoder", {{"latent", random(7, {1, 4, 3, 5})}}}};
  inputs["unet"] = {{"sample", random(9, {1, 4, 4, 6})},
                    {"encoder_hidden_states", random(10, {1, 4, 128})},
                    {"text_embeds", random(11, {1, 64})},
                    {"time_ids", Tensor::of(std::vector<float>{16, 24, 0, 0, 16, 24}, {1, 6})},
                    {"timestep", Tensor::of(std::vector<float>{700}, {1})}};

  const Result expected = results(model({.model = folder()}, false), inputs);
  const Tensors original = in_sgm_layout(unet_, /*convolutions=*/false);
  const fs::path whole = save("all in one", in_one_file());
  expect_same(results(model({.model = whole}, false), inputs), expected);
  expect_same(
      results(model({.model = whole, .parts = {{"vae", save("vae", in_ldm_layout(sdxl_vae_))}}}, false), inputs),
      expected);
  const fs::path in_fp8 = save_fp8("unet, fp8", behind("model.diffusion_model.", original), 1);
  expect_same(results(model({.model = whole, .parts = {{"transformer", in_fp8}}}, false), inputs), expected);

  const std::map<std::string, fs::path> parts = {{"transformer", save("unet", original)},
                                                 {"clip_l", save("clip_l", clip_l_)},
                                                 {"clip_g", save("clip_g", big_g_)},
                                                 {"vae", save("vae", sdxl_vae_)}};
  for (const auto& [name, tensors] : {std::pair("unet, prefixed", behind("model.diffusion_model.", original)),
                                      {"unet, diffusers", unet_},
                                      {"unet, convolutions", in_sgm_layout(unet_, /*convolutions=*/true)}}) {
    std::map<std::string, fs::path> others = parts;
    others["transformer"] = save(name, tensors);
    SCOPED_TRACE(name);
    expect_same(results(model({.parts = others}, false), inputs), expected);
  }
}

// A folder tells what the model predicts by its scheduler, a file by markers.
TEST_F(SdxlKinds, AreDrawnAlikeByAllSamplers) {
  std::vector<SamplerKind> samplers;
  for (const auto& [name, kind] : kSamplers) samplers.push_back(kind);
  const auto with = [](const std::string& changes) {
    Configs configs = kSdxl;
    std::string& scheduler = configs.at("scheduler");
    scheduler = scheduler.substr(0, scheduler.rfind('}')) + changes + "}";
    return configs;
  };
  const std::string v = R"(, "prediction_type": "v_prediction")";
  const Configs zero = [&] {
    Configs configs = with(v + R"(, "rescale_betas_zero_snr": true)");
    std::string& scheduler = configs.at("scheduler");
    scheduler = replaced(scheduler, "leading", "trailing");
    return configs;
  }();
  std::vector<std::vector<float>> all;
  for (const auto& [configs, markers] : std::vector<std::pair<Configs, std::vector<std::string>>>{
           {kSdxl, {}}, {with(v), {"v_pred"}}, {zero, {"v_pred", "ztsnr"}}}) {
    SCOPED_TRACE(markers.size());
    Tensors file = in_one_file();
    for (const std::string& marker : markers) file[marker] = zeros({0});
    all.push_back(picture(model({.model = folder(configs)}, false), samplers));
    const Checkpoint whole = model({.model = save("all in one", file)}, false);
    EXPECT_TRUE(picture(whole, samplers) == all.back()) << "the pictures differ";
    for (const float value : all.back()) ASSERT_TRUE(std::isfinite(value));
  }
  // In place of what the file says.
  const Checkpoint plain = model({.model = save("all in one", in_one_file())}, false);
  EXPECT_TRUE(picture(plain, samplers, Prediction::v) == all[1]);
  // No sampler's picture is that of another one, or of a model that predicts something else.
  std::set<std::vector<float>> distinct;
  const size_t size = all[0].size() / samplers.size();
  for (const std::vector<float>& pictures : all)
    for (size_t i = 0; i < samplers.size(); ++i)
      distinct.emplace(pictures.begin() + ptrdiff_t(i * size), pictures.begin() + ptrdiff_t((i + 1) * size));
  EXPECT_EQ(distinct.size(), all.size() * samplers.size());
}

TEST_F(SdxlKinds, TellLorasWhatTheyPredict) {
  const auto told = [&](const std::vector<std::string>& markers, std::optional<Prediction> prediction = {}) {
    Tensors all = in_one_file();
    for (const std::string& marker : markers) all[marker] = zeros({0});
    const auto metadata =
        open_diffusion(model({.model = save("all in one", all)}, false), {.prediction = prediction})->lora().metadata;
    return metadata.at("modelspec.prediction_type") + ", " + metadata.at("ss_zero_terminal_snr");
  };
  EXPECT_EQ(told({}), "epsilon, False");
  EXPECT_EQ(told({}, Prediction::v), "v, False");
  EXPECT_EQ(told({"v_pred"}), "v, False");
  EXPECT_EQ(told({"v_pred", "ztsnr"}), "v, True");
}

// Only where some tensor stands for a part of the UNet that Wick does not compute.
TEST_F(SdxlKinds, TellWhatIsNotRead) {
  const auto remarks = [&](const std::vector<std::string>& more) {
    Tensors all = in_one_file();
    for (const std::string& name : more) all[name] = zeros({1});
    return open_diffusion(model({.model = save("all in one", all)}, false))->remarks();
  };
  EXPECT_TRUE(open_diffusion(model({.model = folder()}, false))->remarks().empty());
  EXPECT_TRUE(remarks({}).empty());
  EXPECT_TRUE(remarks({"v_pred", "ztsnr", "alphas_cumprod", "model_ema.decay", "model_ema.diffusion_modelout2bias",
                       "conditioner.embedders.0.transformer.text_model.embeddings.position_ids",
                       "conditioner.embedders.1.model.logit_scale", "first_stage_model.loss.discriminator.main.0.bias",
                       "denoiser.sigmas", "model.diffusion_model.v_pred", "model.diffusion_model.ztsnr"})
                  .empty());
  const auto told = remarks({"model.diffusion_model.time_embed.cond_proj.weight", "model.diffusion_model.zero.bias"});
  ASSERT_EQ(told.size(), 1);
  for (const char* word :
       {"all in one: 2 tensors of no part of the UNet", "\"time_embed.cond_proj.weight\"", "left out"})
    EXPECT_NE(told.front().find(word), std::string::npos) << told.front();

  const std::map<std::string, fs::path> parts = {{"transformer", save("bare",
                                                                      [&] {
                                                                        Tensors unet = in_sgm_layout(unet_, false);
                                                                        unet["v_pred"] = zeros({0});
                                                                        return unet;
                                                                      }())},
                                                 {"clip_l", save("clip_l", clip_l_)},
                                                 {"clip_g", save("clip_g", big_g_)},
                                                 {"vae", save("vae", sdxl_vae_)}};
  EXPECT_TRUE(open_diffusion(model({.parts = parts}, false))->remarks().empty());
}

// Tensors without meaning that say how a single file of SDXL was trained.
TEST_F(FileKinds, MarkersOfSdxlTellItsNoise) {
  const Tensor mark = zeros({1});
  const auto schedule = [&](const std::vector<std::string>& markers) {
    Tensors unet = {{"model.diffusion_model.input_blocks.0.0.weight", zeros({32, 4, 3, 3})},
                    {"model.diffusion_model.label_emb.0.0.weight", zeros({128, 160})}};
    for (const std::string& marker : markers) unet[marker] = mark;
    return NoiseSchedule::read(Checkpoint(save("marked.safetensors", unet)));
  };
  EXPECT_EQ(schedule({}).prediction, Prediction::noise);
  EXPECT_EQ(schedule({}).spacing, TimestepSpacing::leading);
  EXPECT_EQ(schedule({"v_pred"}).prediction, Prediction::v);
  EXPECT_GT(schedule({"v_pred"}).alpha_cumprod(999), 0);
  EXPECT_EQ(schedule({"v_pred", "ztsnr"}).alpha_cumprod(999), 0);
  EXPECT_EQ(schedule({"model.diffusion_model.v_pred", "ztsnr"}).spacing, TimestepSpacing::trailing);
  expect_error([&] { schedule({"edm_mean", "edm_std"}); }, {"marked.safetensors", "edm_mean", "Playground"});
  EXPECT_GT(schedule({"ztsnr"}).alpha_cumprod(999), 0);
}

}  // namespace
}  // namespace wick
