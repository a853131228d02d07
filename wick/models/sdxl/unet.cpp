// The UNet of SDXL: three resolutions of residual blocks, the lower two with transformers that attend to the text.
//
//   conv_in -> down blocks (each layer's output is kept as a skip) -> middle -> up blocks (each layer takes a skip) ->
//   out The time step, the pooled text and the sizes (each number a sinusoid) make one vector that enters every resnet.
//
// Shapes: B batch, H and W of the latent at this resolution, C channels, T text tokens. Latents are [B, H, W, C].
// Reference: diffusers, UNet2DConditionModel. Parameter names match its checkpoints.
#include "wick/models/sdxl/unet.h"

#include <functional>
#include <span>
#include <utility>

namespace wick {

namespace {

constexpr float kTransformerEps = 1e-6f;
const Conv2d kHalve{.stride = 2, .top = 1, .left = 1, .bottom = 1, .right = 1};

struct TimestepMlp {
  Scope s;
  int64_t in, out;
  Linear linear_1{s / "linear_1", in, out};
  Linear linear_2{s / "linear_2", out, out};

  Tensor operator()(const Tensor& x) const { return linear_2(silu(linear_1(x))); }
};

struct Resnet {
  Scope s;
  int64_t in, out, time_dim;
  int groups;
  float eps;
  GroupNorm norm1{s / "norm1", in, groups, eps};
  Conv conv1{s / "conv1", in, out, 3, same_padding(3)};
  Linear time_emb_proj{s / "time_emb_proj", time_dim, out};
  GroupNorm norm2{s / "norm2", out, groups, eps};
  Conv conv2{s / "conv2", out, out, 3, same_padding(3)};
  std::optional<Linear> conv_shortcut =
      in == out ? std::nullopt : std::optional(Linear::pointwise(s / "conv_shortcut", in, out));

  Tensor operator()(const Tensor& x, const Tensor& time) const {  // time [B, time_dim], after its silu
    const Tensor shift = reshape(time_emb_proj(time), {time.dim(0), 1, 1, out});
    const Tensor h = conv1(norm1.silu(x), shift);
    return conv2(norm2.silu(h), conv_shortcut ? (*conv_shortcut)(x) : x);
  }
};

struct SelfAttention {
  Scope s;
  int64_t dim, head_count;
  Linear to_qkv = Linear::side_by_side(s, dim, {{"to_q", dim}, {"to_k", dim}, {"to_v", dim}}, /*bias=*/false);
  Linear to_out{s / "to_out.0", dim, dim};

  Tensor operator()(const Tensor& x, const Tensor& residual) const {
    return to_out(self_attention(to_qkv(x), head_count), residual);
  }
};

struct CrossAttention {  // to the text
  Scope s;
  int64_t dim, context_dim, head_count;
  Linear to_q{s / "to_q", dim, dim, /*bias=*/false};
  Linear to_kv = Linear::side_by_side(s, context_dim, {{"to_k", dim}, {"to_v", dim}}, /*bias=*/false);
  Linear to_out{s / "to_out.0", dim, dim};

  Tensor operator()(const Tensor& x, const Tensor& keys_values, const Tensor& residual) const {
    return to_out(cross_attention(to_q(x), keys_values, head_count), residual);
  }
};

struct FeedForward {
  Scope s;
  int64_t dim;
  Linear proj{s / "net.0.proj", dim, 8 * dim};  // value and gate, each 4 dim wide
  Linear out{s / "net.2", 4 * dim, dim};

  Tensor operator()(const Tensor& x, const Tensor& residual) const { return out(geglu(proj(x)), residual); }
};

struct TransformerBlock {
  Scope s;
  int64_t dim, context_dim, head_count;
  LayerNorm norm1{s / "norm1", dim};
  SelfAttention attn1{s / "attn1", dim, head_count};
  LayerNorm norm2{s / "norm2", dim};
  CrossAttention attn2{s / "attn2", dim, context_dim, head_count};
  LayerNorm norm3{s / "norm3", dim};
  FeedForward ff{s / "ff", dim};

  Tensor operator()(Tensor x, const Tensor& keys_values) const {
    x = attn1(norm1(x), x);
    x = attn2(norm2(x), keys_values, x);
    return ff(norm3(x), x);
  }
};

struct Transformer {  // every position of the latent is a token
  Scope s;
  int64_t dim, context_dim, head_count;
  int groups, depth;
  GroupNorm norm{s / "norm", dim, groups, kTransformerEps};
  Linear proj_in{s / "proj_in", dim, dim};
  std::vector<TransformerBlock> blocks =
      layers<TransformerBlock>(s / "transformer_blocks", depth, dim, context_dim, head_count);
  Linear proj_out{s / "proj_out", dim, dim};

  // x [B, H, W, C]. `made`: keys and values of the blocks, none where they are to be made of the context.
  Tensor operator()(const Tensor& x, const Tensor& context, std::span<const Tensor> made = {}) const {
    Tensor h = proj_in(reshape(norm(x), {x.dim(0), x.dim(1) * x.dim(2), dim}));
    for (size_t i = 0; i < blocks.size(); ++i)
      h = blocks[i](h, made.empty() ? blocks[i].attn2.to_kv(context) : made[i]);
    return reshape(proj_out(h, reshape(x, h.shape())), x.shape());
  }
};

struct Upsample {
  Scope s;
  int64_t channels;
  Conv conv{s / "conv", channels, channels, 3, same_padding(3)};

  // Twice the size; an odd size was rounded up on the way down, and loses its last row or column again.
  Tensor operator()(const Tensor& x, int64_t height, int64_t width) const {
    Tensor h = upsample_nearest(x, 2);
    if (h.dim(1) != height) h = slice(h, 1, 0, height);
    if (h.dim(2) != width) h = slice(h, 2, 0, width);
    return conv(h);
  }
};

// One resolution on the way down or up: resnets, each followed by a transformer if the block has them.
struct Block {
  std::vector<Resnet> resnets;
  std::vector<Transformer> attentions;  // one a resnet, or none
  std::optional<Conv> downsample;
  std::optional<Upsample> upsample;
};

}  // namespace

struct SdxlUNet::Model {
  Scope s;
  UNetConfig c;
  BlockSchedule block_schedule;

  int64_t time_dim = 4 * c.channels.front();
  Conv conv_in{s / "conv_in", c.in_channels, c.channels.front(), 3, same_padding(3)};
  TimestepMlp time_embedding{s / "time_embedding", c.channels.front(), time_dim};
  TimestepMlp add_embedding{s / "add_embedding", c.added_dim, time_dim};
  std::vector<Block> down_blocks = make_down_blocks();
  Block mid_block = make_mid_block();
  std::vector<Block> up_blocks = make_up_blocks();
  GroupNorm conv_norm_out{s / "conv_norm_out", c.channels.front(), c.groups, c.eps};
  Conv conv_out{s / "conv_out", c.channels.front(), c.out_channels, 3, same_padding(3)};

  Resnet resnet(const Scope& at, int64_t in, int64_t out) const {
    return {at.next_block(), in, out, time_dim, c.groups, c.eps};
  }
  Transformer transformer(const Scope& at, size_t level) const {
    return {at.next_block(), c.channels[level], c.cross_attention_dim,
            c.heads[level],  c.groups,          int(c.transformer_layers[level])};
  }

  std::vector<Block> make_down_blocks() const {
    std::vector<Block> blocks(c.channels.size());
    int64_t in = c.channels.front();
    for (size_t level = 0; level < blocks.size(); ++level) {
      const Scope at = s / "down_blocks" / int(level);
      const int64_t out = c.channels[level];
      for (int i = 0; i < c.layers_per_block; ++i, in = out) {
        blocks[level].resnets.push_back(resnet(at / "resnets" / i, in, out));
        if (c.down_has_attention[level]) blocks[level].attentions.push_back(transformer(at / "attentions" / i, level));
      }
      if (level + 1 < blocks.size()) blocks[level].downsample.emplace(at / "downsamplers.0.conv", out, out, 3, kHalve);
    }
    return blocks;
  }

  Block make_mid_block() const {
    const Scope at = s / "mid_block";
    const int64_t channels = c.channels.back();
    Block block;
    block.resnets.push_back(resnet(at / "resnets" / 0, channels, channels));
    block.attentions.push_back(transformer(at / "attentions" / 0, c.channels.size() - 1));
    block.resnets.push_back(resnet(at / "resnets" / 1, channels, channels));
    return block;
  }

  // Each resnet takes the skip connection that the way down left at the same place: layers of this level, last first,
  // and then the level's input.
  std::vector<Block> make_up_blocks() const {
    std::vector<Block> blocks(c.channels.size());
    int64_t in = c.channels.back();
    for (size_t b = 0; b < blocks.size(); ++b) {
      const Scope at = s / "up_blocks" / int(b);
      const size_t level = blocks.size() - 1 - b;
      const int64_t out = c.channels[level], below = c.channels[level == 0 ? 0 : level - 1];
      for (int i = 0; i <= c.layers_per_block; ++i, in = out) {
        const int64_t skip = i < c.layers_per_block ? out : below;
        blocks[b].resnets.push_back(resnet(at / "resnets" / i, in + skip, out));
        if (c.up_has_attention[b]) blocks[b].attentions.push_back(transformer(at / "attentions" / i, level));
      }
      if (level > 0) blocks[b].upsample.emplace(Upsample{at / "upsamplers.0", out});
    }
    return blocks;
  }

  Tensor time_vector(const UNetInput& in) const {
    const int64_t batch = in.sample.dim(0);
    const Tensor time = time_embedding(s.activation(timestep_embedding(in.timestep, int(c.channels.front()))));
    const Tensor sizes = timestep_embedding(reshape(in.time_ids, {batch * in.time_ids.dim(1)}), int(c.time_ids_dim));
    const Tensor added = add_embedding(s.activation(cat({in.text_embeds, reshape(sizes, {batch, -1})}, 1)));
    return silu(time + added);  // each resnet begins with this silu
  }

  // Visits the transformers in the order in which they run.
  template <typename Visit>
  void each_transformer(const Visit& visit) const {
    const auto of = [&](const Block& block) {
      for (const Transformer& transformer : block.attentions) visit(transformer);
    };
    for (const Block& block : down_blocks) of(block);
    of(mid_block);
    for (const Block& block : up_blocks) of(block);
  }

  std::vector<Tensor> keys_values(const Tensor& context) const {
    std::vector<Tensor> all;
    each_transformer([&, states = s.activation(context)](const Transformer& transformer) {
      for (const TransformerBlock& block : transformer.blocks) all.push_back(block.attn2.to_kv(states));
    });
    return all;
  }

  // What all layers take, and keys and values of those that are still to run.
  struct Conditioning {
    Tensor time, context;
    std::span<const Tensor> keys_values;
    BlockSchedule::Pass run;
  };

  Tensor layer(const Block& block, size_t i, Tensor x, Conditioning& shared) const {
    x = shared.run(std::cref(block.resnets[i]), x, shared.time);
    if (i >= block.attentions.size()) return x;
    const Transformer& attention = block.attentions[i];
    if (shared.keys_values.empty()) return shared.run(std::cref(attention), x, shared.context);
    const std::span<const Tensor> made = shared.keys_values.first(attention.blocks.size());
    shared.keys_values = shared.keys_values.subspan(made.size());
    return attention(x, {}, made);
  }

  Tensor operator()(const UNetInput& in) const {
    Conditioning shared{time_vector(in), {}, in.keys_values, block_schedule.pass()};
    if (in.keys_values.empty()) shared.context = s.activation(in.context);
    Tensor x = conv_in(s.activation(in.sample));
    std::vector<Tensor> skips{x};

    for (const Block& block : down_blocks) {
      for (size_t i = 0; i < block.resnets.size(); ++i) skips.push_back(x = layer(block, i, x, shared));
      if (block.downsample) skips.push_back(x = (*block.downsample)(x));
    }
    for (size_t i = 0; i < mid_block.resnets.size(); ++i) x = layer(mid_block, i, x, shared);
    for (const Block& block : up_blocks) {
      for (size_t i = 0; i < block.resnets.size(); ++i) {
        x = layer(block, i, cat({x, skips.back()}, 3), shared);
        skips.pop_back();
      }
      if (block.upsample) x = (*block.upsample)(x, skips.back().dim(1), skips.back().dim(2));
    }
    return cast(conv_out(conv_norm_out.silu(x)), DType::f32);
  }
};

SdxlUNet::SdxlUNet(Scope s, const UNetConfig& config, BlockSchedule block_schedule)
    : model_(new Model{std::move(s), config, std::move(block_schedule)}) {}
Tensor SdxlUNet::operator()(const UNetInput& in) const { return (*model_)(in); }
std::vector<Tensor> SdxlUNet::keys_values(const Tensor& context) const { return model_->keys_values(context); }

}  // namespace wick
