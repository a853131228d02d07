// From diffusers' configs to sizes; settings of the UNet that SdxlUNet does not compute are refused.
#include "wick/models/sdxl/config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/models/network_facts.h"
#include "wick/models/sdxl/names.h"
#include "wick/models/supported.h"

namespace wick {

namespace {

constexpr LatentScale kSdxlLatents{0.13025f, 0};

// Which of the blocks have transformers, from their diffusers class names.
std::vector<bool> read_attention(const Config& config, const std::string& key, size_t count, const std::string& plain,
                                 const std::string& cross) {
  const std::vector<std::string> types = config.texts(key);
  check(types.size() == count, "{}: {} should have {} entries, as block_out_channels, found {}", config.source(), key,
        count, types.size());
  std::vector<bool> attention;
  for (const std::string& type : types) {
    check(type == plain || type == cross, "{}: {} holds \"{}\"; Wick supports {} and {}", config.source(), key, type,
          plain, cross);
    attention.push_back(type == cross);
  }
  return attention;
}

// The purpose of a UNet that is told more than a latent; empty for others.
std::string more_inputs(int64_t channels) {
  const char* purpose = channels == 9   ? "for inpainting"
                        : channels == 8 ? "for editing"
                        : channels == 7 ? "for upscaling"
                        : channels == 5 ? "guided by depth"
                                        : nullptr;
  return purpose ? fmt::format(" {} (in_channels {})", purpose, channels) : "";
}

// A known model other than SDXL's base model and its kin, recognised by its config; empty if it may be one of those.
// `has_clip_l`: a text_encoder stands beside the UNet.
std::string other_model(const Config& config, bool has_clip_l) {
  const std::string name = config.text_or("_class_name", "UNet2DConditionModel");
  if (name != "UNet2DConditionModel") return "a model of the class " + quote(name);
  const auto size = [&](const char* key) {
    return config.has(key) ? config.integer_or_list(key, {0, kPositive.max}).front() : 0;
  };
  const int64_t channels = size("in_channels"), context = size("cross_attention_dim");
  const std::string inputs = more_inputs(channels);
  if (config.text_or("encoder_hid_dim_type", "") == "text_proj") return "Kolors" + inputs;
  if (!config.has("addition_embed_type")) {
    if (context == 768) return "Stable Diffusion 1.x" + inputs;
    if (context == 1024) return "Stable Diffusion 2.x" + inputs;
    return "a model that is told no sizes and crops (addition_embed_type is not \"text_time\")" + inputs;
  }
  // The refiner is told an aesthetic score instead of the target's height and width: 5 numbers in place of 6.
  if (!has_clip_l && size("projection_class_embeddings_input_dim") == context + 5 * size("addition_time_embed_dim"))
    return kRefiner;
  if (config.has("time_cond_proj_dim")) return "a latent consistency model (time_cond_proj_dim)";
  return inputs.empty() ? "" : "SDXL" + inputs;
}

void check_supported(const Config& config, bool has_clip_l) {
  const std::string other = other_model(config, has_clip_l);
  check(other.empty(), "{}: the UNet is that of {}; Wick supports SDXL's base model and its kin", config.source(),
        other);
  only(config, "act_fn", "silu");
  only(config, "mid_block_type", "UNetMidBlock2DCrossAttn");
  only(config, "addition_embed_type", "text_time", "none");
  only(config, "time_embedding_type", "positional");
  only(config, "resnet_time_scale_shift", "default");
  only(config, "attention_type", "default");
  only(config, "flip_sin_to_cos", true);
  for (const char* key : {"center_input_sample", "dual_cross_attention", "only_cross_attention", "upcast_attention",
                          "class_embeddings_concat", "resnet_skip_time_act", "mid_block_only_cross_attention"})
    only(config, key, false);
  only(config, "freq_shift", 0.0);
  for (const char* key : {"downsample_padding", "mid_block_scale_factor", "resnet_out_scale_factor"})
    only(config, key, 1.0);
  for (const char* key : {"conv_in_kernel", "conv_out_kernel"}) only(config, key, 3.0);
  for (const char* key : {"class_embed_type", "num_class_embeds", "encoder_hid_dim", "encoder_hid_dim_type",
                          "cross_attention_norm", "num_attention_heads", "time_cond_proj_dim", "time_embedding_dim",
                          "time_embedding_act_fn", "timestep_post_act", "reverse_transformer_layers_per_block"})
    only_absent(config, key);
}

// A number, or a list of the same one for every level.
int64_t the_same(const Config& config, const std::string& key, IntegerRange range) {
  const std::vector<int64_t> all = config.integer_or_list(key, range);
  check(!all.empty() && std::ranges::count(all, all.front()) == std::ssize(all),
        "{}: {} should be one number for all levels, found [{}]", config.source(), key, fmt::join(all, ", "));
  return all.front();
}

constexpr int64_t kUsualSizes = 256;  // the width of each size's sinusoids

UNetConfig from_config(const Config& config, bool has_clip_l) {
  check_supported(config, has_clip_l);
  UNetConfig c;
  c.in_channels = config.integer("in_channels", kExtent);
  c.out_channels = config.integer("out_channels", kExtent);
  c.channels = config.integers("block_out_channels", kExtent);
  const size_t levels = c.channels.size();
  check(levels > 0 && levels <= kMostLevels, "{}: block_out_channels should have 1 to {} entries, found {}",
        config.source(), kMostLevels, levels);
  c.down_has_attention = read_attention(config, "down_block_types", levels, "DownBlock2D", "CrossAttnDownBlock2D");
  c.up_has_attention = read_attention(config, "up_block_types", levels, "UpBlock2D", "CrossAttnUpBlock2D");
  c.heads = config.integers_or_repeated("attention_head_dim", levels, kExtent);
  c.transformer_layers = config.has("transformer_layers_per_block")
                             ? config.integers_or_repeated("transformer_layers_per_block", levels, kPartCount)
                             : std::vector<int64_t>(levels, 1);
  c.layers_per_block = config.has("layers_per_block") ? int(the_same(config, "layers_per_block", kPartCount)) : 2;
  c.groups = int(config.integer_or("norm_num_groups", 32, kPositive));
  c.eps = float(config.number_or("norm_eps", 1e-5, kEpsilon));
  c.cross_attention_dim = the_same(config, "cross_attention_dim", kExtent);
  c.time_ids_dim = config.integer("addition_time_embed_dim", kExtent);
  c.added_dim = config.integer("projection_class_embeddings_input_dim", kExtent);
  return c;
}

// A level without transformers of its own has those of the level below, which nothing reads.
UNetConfig from_tensors(const NetworkFacts& facts) {
  constexpr int64_t kHeadWidth = 64;
  UNetConfig c;
  c.in_channels = facts.extent("in_channels", "conv_in.weight", 1);
  c.out_channels = facts.extent("out_channels", "conv_out.weight", 0);
  c.channels = facts.extents("block_out_channels", "down_blocks.{}.resnets.0.conv1.weight", 0);
  c.layers_per_block = int(facts.count("layers_per_block", "down_blocks.0.resnets.{}.conv1.weight"));
  c.cross_attention_dim =
      facts.extent("cross_attention_dim", "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", 1);
  c.added_dim = facts.extent("projection_class_embeddings_input_dim", "add_embedding.linear_1.weight", 1);
  c.groups = 32;
  c.eps = 1e-5f;
  int64_t depth =
      facts.count("transformer_layers_per_block", "mid_block.attentions.0.transformer_blocks.{}.norm1.weight");
  const size_t levels = c.channels.size();
  c.down_has_attention.resize(levels);
  c.up_has_attention.resize(levels);
  c.heads.resize(levels);
  c.transformer_layers.resize(levels);
  for (size_t level = levels; level-- > 0;) {
    const size_t up = levels - 1 - level;
    c.down_has_attention[level] = facts.has(fmt::format("down_blocks.{}.attentions.0.norm.weight", level));
    c.up_has_attention[up] = facts.has(fmt::format("up_blocks.{}.attentions.0.norm.weight", up));
    if (c.down_has_attention[level])
      depth = facts.count("transformer_layers_per_block",
                          fmt::format("down_blocks.{}.attentions.0.transformer_blocks.{{}}.norm1.weight", level));
    c.transformer_layers[level] = depth;
    const bool has_heads = c.down_has_attention[level] || c.up_has_attention[up] || level + 1 == levels;
    check(!has_heads || c.channels[level] % kHeadWidth == 0,
          "{}: a level of the UNet has {} channels, which are not whole heads of {}", facts.source(), c.channels[level],
          kHeadWidth);
    c.heads[level] = has_heads ? c.channels[level] / kHeadWidth : 1;
  }
  const std::string inputs = more_inputs(c.in_channels);
  const std::string other = c.added_dim == c.cross_attention_dim + 5 * kUsualSizes ? kRefiner
                            : inputs.empty()                                       ? ""
                                                                                   : "SDXL" + inputs;
  check(other.empty(), "{}: the UNet is that of {}; Wick supports SDXL's base model and its kin", facts.source(),
        other);
  return c;
}

// How wide the sizes' sinusoids are, by what the pooled text leaves of the added vector.
int64_t time_ids_width(const Checkpoint& model, int64_t added_dim) {
  const Checkpoint text = model.component("text_encoder_2");
  if (!text.has_weights()) return kUsualSizes;
  return (added_dim - ClipConfig::read(text, ClipKind::big_g).projection) / kTimeIds;
}

UNetConfig from_files(const Checkpoint& model) {
  const Checkpoint unet = model.component("unet");
  if (unet.has_config() || !unet.has_weights()) return from_config(unet.config(), model.has("text_encoder"));
  UNetConfig c = from_tensors(NetworkFacts(unet, sdxl_source));
  c.time_ids_dim = time_ids_width(model, c.added_dim);
  return c;
}

// A level has a resnet and its transformer's layers so many times, on the way up once more.
int64_t parts_of(const UNetConfig& c) {
  int64_t parts = 0;
  for (const int64_t layers : c.transformer_layers) parts += (2 * int64_t{c.layers_per_block} + 1) * (layers + 1);
  return parts;
}

}  // namespace

UNetConfig UNetConfig::read(const Checkpoint& model) {
  const UNetConfig c = from_files(model);
  const Checkpoint unet = model.component("unet");
  const std::string source = unet.has_config() ? unet.config().source() : unet.name();
  check(c.time_ids_dim > 0 && c.added_dim > kTimeIds * c.time_ids_dim,
        "{}: projection_class_embeddings_input_dim {} leaves no room for a pooled text beside {} sizes of {}", source,
        c.added_dim, kTimeIds, c.time_ids_dim);
  check(parts_of(c) <= kPartCount.max,
        "{}: layers_per_block {} and transformer_layers_per_block [{}] would make {} blocks; expected at most {}",
        source, c.layers_per_block, fmt::join(c.transformer_layers, ", "), parts_of(c), kPartCount.max);
  for (size_t i = 0; i < c.channels.size(); ++i) {
    check(c.channels[i] % c.groups == 0, "{}: norm_num_groups {} does not divide block_out_channels' {}", source,
          c.groups, c.channels[i]);
    check(c.channels[i] % c.heads[i] == 0,
          "{}: attention_head_dim {} (the number of heads) does not divide {} channels", source, c.heads[i],
          c.channels[i]);
  }
  return c;
}

SdxlConfig SdxlConfig::read(const Checkpoint& model) {
  const std::string name = model.name();
  // The parts that distinguish other models come first; such models may lack the rest.
  const auto unet = UNetConfig::read(model);
  const auto text_encoder_2 = ClipConfig::read(model.component("text_encoder_2"), ClipKind::big_g);
  check(unet.added_dim != text_encoder_2.projection + 5 * unet.time_ids_dim,
        "{}: the UNet is that of {}; Wick supports SDXL's base model and its kin", name, kRefiner);
  const SdxlConfig c{ClipConfig::read(model.component("text_encoder"), ClipKind::l), text_encoder_2, unet,
                     VaeConfig::read(model.component("vae"), kSdxlLatents)};
  check(c.text_encoder_2.with_projection, "{}: text_encoder_2 should be a CLIPTextModelWithProjection", name);
  check(c.unet.cross_attention_dim == c.text_encoder.hidden + c.text_encoder_2.hidden,
        "{}: the unet's cross_attention_dim {} should be the sum of the text encoders' hidden_size {} and {}", name,
        c.unet.cross_attention_dim, c.text_encoder.hidden, c.text_encoder_2.hidden);
  check(
      c.unet.added_dim == c.text_encoder_2.projection + kTimeIds * c.unet.time_ids_dim,
      "{}: the unet's projection_class_embeddings_input_dim {} should be text_encoder_2's projection_dim {} + {} x {}",
      name, c.unet.added_dim, c.text_encoder_2.projection, kTimeIds, c.unet.time_ids_dim);
  check(c.unet.in_channels == c.vae.latent_channels && c.unet.out_channels == c.vae.latent_channels,
        "{}: the unet's in_channels {} and out_channels {} should be the vae's latent_channels {}", name,
        c.unet.in_channels, c.unet.out_channels, c.vae.latent_channels);
  return c;
}

}  // namespace wick
