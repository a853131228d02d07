// The VAE of latent diffusion models: residual blocks with one single-head attention in the middle.
//
//   Encoder: conv_in -> down blocks (each but the last halves the size) -> middle -> mean and logvar
//   Decoder: conv_in -> middle -> up blocks (each but the last doubles the size) -> image
//
// Shapes: images and latents [B, H, W, C]. Reference: diffusers, AutoencoderKL. Parameter names match its checkpoints.
#include "wick/models/vae.h"

#include <utility>

#include "wick/models/network_facts.h"
#include "wick/models/supported.h"

namespace wick {

namespace {

constexpr float kEps = 1e-6f;
constexpr float kMinLogvar = -30, kMaxLogvar = 20;
const Conv2d kHalve{.stride = 2, .bottom = 1, .right = 1};  // padded below and on the right only

struct Resnet {
  Scope s;
  int64_t in, out;
  int groups;
  GroupNorm norm1{s / "norm1", in, groups, kEps};
  Conv conv1{s / "conv1", in, out, 3, same_padding(3)};
  GroupNorm norm2{s / "norm2", out, groups, kEps};
  Conv conv2{s / "conv2", out, out, 3, same_padding(3)};
  std::optional<Linear> conv_shortcut =
      in == out ? std::nullopt : std::optional(Linear::pointwise(s / "conv_shortcut", in, out));

  Tensor operator()(const Tensor& x) const {
    return conv2(norm2.silu(conv1(norm1.silu(x))), conv_shortcut ? (*conv_shortcut)(x) : x);
  }
};

struct Attention {  // one head over all positions
  Scope s;
  int64_t dim;
  int groups;
  bool old_names = !s.has("to_q.weight") && s.has("query.weight");  // from before diffusers 0.18
  GroupNorm norm{s / "group_norm", dim, groups, kEps};
  Linear to_qkv = Linear::side_by_side(
      s, dim,
      {{old_names ? "query" : "to_q", dim}, {old_names ? "key" : "to_k", dim}, {old_names ? "value" : "to_v", dim}});
  Linear to_out{s / (old_names ? "proj_attn" : "to_out.0"), dim, dim};

  Tensor operator()(const Tensor& x) const {
    const Tensor n = reshape(norm(x), {x.dim(0), x.dim(1) * x.dim(2), dim});
    return reshape(to_out(self_attention(to_qkv(n), 1), reshape(x, n.shape())), x.shape());
  }
};

struct MidBlock {
  Scope s;
  int64_t dim;
  int groups;
  Resnet resnet_0{s / "resnets.0", dim, dim, groups};
  Attention attention{s / "attentions.0", dim, groups};
  Resnet resnet_1{s / "resnets.1", dim, dim, groups};

  Tensor operator()(const Tensor& x) const { return resnet_1(attention(resnet_0(x))); }
};

// One resolution on the way down or up; all but the last lead to the next one through a
// convolution, which the caller applies: the way up enlarges first.
struct Block {
  std::vector<Resnet> resnets;
  std::optional<Conv> conv;

  Tensor operator()(Tensor x) const {
    for (const Resnet& resnet : resnets) x = resnet(x);
    return x;
  }
};

Block make_block(const Scope& s, int64_t in, int64_t out, int count, int groups, const char* conv,
                 const Conv2d& padding) {
  Block block;
  for (int i = 0; i < count; ++i) block.resnets.push_back(Resnet{s / "resnets" / i, i == 0 ? in : out, out, groups});
  if (conv) block.conv.emplace(s / conv, out, out, 3, padding);
  return block;
}

std::vector<Block> down_blocks(const Scope& s, const VaeConfig& c) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < c.channels.size(); ++i)
    blocks.push_back(make_block(s / int(i), c.channels[i == 0 ? 0 : i - 1], c.channels[i], c.layers_per_block, c.groups,
                                i + 1 == c.channels.size() ? nullptr : "downsamplers.0.conv", kHalve));
  return blocks;
}

std::vector<Block> up_blocks(const Scope& s, const VaeConfig& c) {
  std::vector<Block> blocks;
  int64_t in = c.channels.back();
  for (size_t i = 0; i < c.channels.size(); ++i) {
    const int64_t out = c.channels[c.channels.size() - 1 - i];
    blocks.push_back(make_block(s / int(i), in, out, c.layers_per_block + 1, c.groups,
                                i + 1 == c.channels.size() ? nullptr : "upsamplers.0.conv", same_padding(3)));
    in = out;
  }
  return blocks;
}

}  // namespace

struct VaeEncoder::Model {
  Scope s;
  VaeConfig c;
  Scope e = s / "encoder";
  Conv conv_in{e / "conv_in", c.in_channels, c.channels.front(), 3, same_padding(3)};
  std::vector<Block> down = down_blocks(e / "down_blocks", c);
  MidBlock mid{e / "mid_block", c.channels.back(), c.groups};
  GroupNorm conv_norm_out{e / "conv_norm_out", c.channels.back(), c.groups, kEps};
  Conv conv_out{e / "conv_out", c.channels.back(), 2 * c.latent_channels, 3, same_padding(3)};
  std::optional<Linear> quant_conv =
      c.use_quant_conv
          ? std::optional(Linear::pointwise(s / "quant_conv", 2 * c.latent_channels, 2 * c.latent_channels))
          : std::nullopt;

  Gaussian operator()(const Tensor& image) const {
    Tensor x = conv_in(s.activation(image));
    for (const Block& block : down) {
      x = block(x);
      if (block.conv) x = (*block.conv)(x);
    }
    x = conv_out(conv_norm_out.silu(mid(x)));
    if (quant_conv) x = (*quant_conv)(x);
    x = cast(x, DType::f32);
    const int64_t n = c.latent_channels;
    return {slice(x, 3, 0, n), clamp(slice(x, 3, n, 2 * n), kMinLogvar, kMaxLogvar)};
  }
};

struct VaeDecoder::Model {
  Scope s;
  VaeConfig c;
  Scope d = s / "decoder";
  std::optional<Linear> post_quant_conv =
      c.use_post_quant_conv
          ? std::optional(Linear::pointwise(s / "post_quant_conv", c.latent_channels, c.latent_channels))
          : std::nullopt;
  Conv conv_in{d / "conv_in", c.latent_channels, c.channels.back(), 3, same_padding(3)};
  MidBlock mid{d / "mid_block", c.channels.back(), c.groups};
  std::vector<Block> up = up_blocks(d / "up_blocks", c);
  GroupNorm conv_norm_out{d / "conv_norm_out", c.channels.front(), c.groups, kEps};
  Conv conv_out{d / "conv_out", c.channels.front(), c.out_channels, 3, same_padding(3)};

  Tensor operator()(const Tensor& latent) const {
    const Tensor z = s.activation(latent);
    Tensor x = mid(conv_in(post_quant_conv ? (*post_quant_conv)(z) : z));
    for (const Block& block : up) {
      x = block(x);
      if (block.conv) x = (*block.conv)(upsample_nearest(x, 2));
    }
    return cast(conv_out(conv_norm_out.silu(x)), DType::f32);
  }
};

VaeEncoder::VaeEncoder(Scope s, const VaeConfig& config) : model_(new Model{std::move(s), config}) {}
Gaussian VaeEncoder::operator()(const Tensor& image) const { return (*model_)(image); }

VaeDecoder::VaeDecoder(Scope s, const VaeConfig& config) : model_(new Model{std::move(s), config}) {}
Tensor VaeDecoder::operator()(const Tensor& latent) const { return (*model_)(latent); }

namespace {

void check_supported(const Config& config, size_t levels) {
  only(config, "_class_name", "AutoencoderKL");
  only(config, "act_fn", "silu");
  only(config, "mid_block_add_attention", true);
  only_absent(config, "latents_mean");
  only_absent(config, "latents_std");
  for (const auto& [key, type] :
       {std::pair{"down_block_types", "DownEncoderBlock2D"}, std::pair{"up_block_types", "UpDecoderBlock2D"}})
    check(config.texts(key) == std::vector<std::string>(levels, type), "{}: {} should be {} times \"{}\"",
          config.source(), key, levels, type);
}

}  // namespace

VaeConfig VaeConfig::read(const Checkpoint& component, const LatentScale& of_family) {
  const NetworkFacts facts(component);
  const Config& config = facts.config();
  VaeConfig c;
  c.in_channels = facts.extent("in_channels", "encoder.conv_in.weight", 1, 3);
  c.out_channels = facts.extent("out_channels", "decoder.conv_out.weight", 0, 3);
  c.latent_channels = facts.extent("latent_channels", "decoder.conv_in.weight", 1, 4);
  c.channels = facts.extents("block_out_channels", "encoder.down_blocks.{}.resnets.0.conv1.weight", 0);
  c.layers_per_block = int(facts.count("layers_per_block", "encoder.down_blocks.0.resnets.{}.conv1.weight", 1));
  c.groups = int(config.integer_or("norm_num_groups", 32, kPositive));
  const LatentScale absent = facts.has_config() ? LatentScale{0.18215f, 0} : of_family;  // diffusers' AutoencoderKL
  c.scaling_factor = float(config.number_or("scaling_factor", absent.scaling, {1e-6, 1e6}));
  c.shift_factor = float(config.number_or("shift_factor", absent.shift, {-1e6, 1e6}));
  c.use_quant_conv = facts.presence("use_quant_conv", "quant_conv.weight", true);
  c.use_post_quant_conv = facts.presence("use_post_quant_conv", "post_quant_conv.weight", true);
  const size_t levels = c.channels.size();
  if (facts.has_config()) check_supported(config, levels);
  for (const int64_t channels : c.channels)
    check(channels % c.groups == 0, "{}: norm_num_groups {} does not divide block_out_channels' {}", config.source(),
          c.groups, channels);
  return c;
}

}  // namespace wick
