// From diffusers' configs to sizes; settings of the UNet that SdxlUNet does not compute are refused.
#include "wick/models/sdxl/config.h"

#include "wick/core/error.h"
#include "wick/io/quote.h"
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

// A known model other than SDXL's base model and its kin, recognised by its config; empty if it may be one of those.
// `has_clip_l`: a text_encoder stands beside the UNet.
std::string other_model(const Config& config, bool has_clip_l) {
  const std::string name = config.text_or("_class_name", "UNet2DConditionModel");
  if (name != "UNet2DConditionModel") return "a model of the class " + quote(name);
  const auto size = [&](const char* key) {
    return config.has(key) ? config.integer_or_list(key, {0, kPositive.max}).front() : 0;
  };
  const int64_t channels = size("in_channels"), context = size("cross_attention_dim");
  const std::string inputs = channels == 9   ? " for inpainting (in_channels 9)"
                             : channels == 8 ? " for editing (in_channels 8)"
                             : channels == 7 ? " for upscaling (in_channels 7)"
                             : channels == 5 ? " guided by depth (in_channels 5)"
                                             : "";
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
  only(config, "use_linear_projection", true, false);
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

}  // namespace

UNetConfig UNetConfig::read(const Checkpoint& component) {
  const Config config = component.config();
  check_supported(config, std::filesystem::exists(component.path().parent_path() / "text_encoder"));
  UNetConfig c;
  c.in_channels = config.integer("in_channels", kPositive);
  c.out_channels = config.integer("out_channels", kPositive);
  c.channels = config.integers("block_out_channels", kPositive);
  const size_t levels = c.channels.size();
  check(levels > 0, "{}: block_out_channels is empty", config.source());
  c.down_has_attention = read_attention(config, "down_block_types", levels, "DownBlock2D", "CrossAttnDownBlock2D");
  c.up_has_attention = read_attention(config, "up_block_types", levels, "UpBlock2D", "CrossAttnUpBlock2D");
  c.heads = config.integers_or_repeated("attention_head_dim", levels, kPositive);
  c.transformer_layers = config.has("transformer_layers_per_block")
                             ? config.integers_or_repeated("transformer_layers_per_block", levels, kPositive)
                             : std::vector<int64_t>(levels, 1);
  c.layers_per_block = int(config.integer_or("layers_per_block", 2, kPositive));
  c.groups = int(config.integer_or("norm_num_groups", 32, kPositive));
  c.eps = float(config.number_or("norm_eps", 1e-5, kEpsilon));
  c.cross_attention_dim = config.integer("cross_attention_dim", kPositive);
  c.time_ids_dim = config.integer("addition_time_embed_dim", kPositive);
  c.added_dim = config.integer("projection_class_embeddings_input_dim", kPositive);
  for (size_t i = 0; i < levels; ++i) {
    check(c.channels[i] % c.groups == 0, "{}: norm_num_groups {} does not divide block_out_channels' {}",
          config.source(), c.groups, c.channels[i]);
    check(c.channels[i] % c.heads[i] == 0,
          "{}: attention_head_dim {} (the number of heads) does not divide {} channels", config.source(), c.heads[i],
          c.channels[i]);
  }
  return c;
}

SdxlConfig SdxlConfig::read(const Checkpoint& model) {
  const std::string name = model.name();
  // The parts that distinguish other models come first; such models may lack the rest.
  const auto unet = UNetConfig::read(model.component("unet"));
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
