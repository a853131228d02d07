#include "wick/models/flux/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "wick/models/flux/names.h"
#include "wick/models/network_facts.h"
#include "wick/models/supported.h"
#include "wick/nn/recognise.h"

namespace wick {

namespace {

// Models of the same shape that are told more than FLUX.1: their latents come with other ones.
void check_channels(const std::string& source, int64_t channels) {
  const char* const other = flux_variant(channels);
  check(!other, "{}: is {} ({} channels); Wick supports FLUX.1 dev, schnell, Krea-dev and their like", source,
        other ? other : "", channels);
  check(channels % 4 == 0, "{}: in_channels should be a multiple of 4, found {}", source, channels);
}

std::array<int64_t, 3> rope_axes(const Config& config, int64_t head_dim) {
  const std::vector<int64_t> axes = config.has("axes_dims_rope")
                                        ? config.integers("axes_dims_rope", kPositive)
                                        : std::vector{head_dim / 8, 7 * head_dim / 16, 7 * head_dim / 16};
  const bool even = std::ranges::all_of(axes, [](int64_t axis) { return axis % 2 == 0; });
  check(even && axes.size() == 3 && std::accumulate(axes.begin(), axes.end(), int64_t{0}) == head_dim,
        "{}: axes_dims_rope should be three even numbers that add up to attention_head_dim {}, found {}",
        config.source(), head_dim, fmt::join(axes, ", "));
  return {axes[0], axes[1], axes[2]};
}

}  // namespace

FluxConfig FluxConfig::read(const Checkpoint& component) {
  const NetworkFacts facts(component, flux_source);
  const Config& config = facts.config();
  check_quantization(config);
  only(config, "patch_size", 1.0, 1.0);
  FluxConfig c;
  const int64_t in = facts.extent("in_channels", "img_in.weight", 1, 64);
  check_channels(component.name(), in);
  check(config.integer_or("out_channels", in) == in, "{}: out_channels should be in_channels {}, found {}",
        config.source(), in, config.integer_or("out_channels", in));
  c.channels = in / 4;
  c.head_dim = facts.extent("attention_head_dim", "double_blocks.0.img_attn.norm.query_norm.scale", 0, 128);
  const std::optional<Shape> img_in = facts.shape("img_in.weight");
  c.heads = facts.settle("num_attention_heads", "img_in.weight",
                         img_in ? std::optional((*img_in)[0] / c.head_dim) : std::nullopt, 24);
  check(c.heads * c.head_dim <= kExtent.max, "{}: num_attention_heads {} x attention_head_dim {} is more than {}",
        config.source(), c.heads, c.head_dim, kExtent.max);
  c.text_dim = facts.extent("joint_attention_dim", "txt_in.weight", 1, 4096);
  c.pooled_dim = facts.extent("pooled_projection_dim", "vector_in.in_layer.weight", 1, 768);
  c.double_blocks = int(facts.count("num_layers", "double_blocks.{}.img_attn.qkv.weight", 19));
  c.single_blocks = int(facts.count("num_single_layers", "single_blocks.{}.linear1.weight", 38, kPartCountOrNone));
  c.guidance = facts.presence("guidance_embeds", "guidance_in.in_layer.weight", false);
  c.axes = rope_axes(config, c.head_dim);
  return c;
}

}  // namespace wick
