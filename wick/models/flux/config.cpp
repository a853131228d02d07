#include "wick/models/flux/config.h"

#include <numeric>

#include "wick/models/supported.h"

namespace wick {

FluxConfig FluxConfig::read(const Checkpoint& component) {
  const Config config = component.config();
  only(config, "patch_size", 1.0, 1.0);
  FluxConfig c;
  const int64_t in = config.integer_or("in_channels", 64, kPositive), out = config.integer_or("out_channels", in);
  check(in == out && in % 4 == 0, "{}: in_channels {} and out_channels {} should be the same multiple of 4",
        config.source(), in, out);
  c.channels = in / 4;
  c.heads = config.integer_or("num_attention_heads", 24, kPositive);
  c.head_dim = config.integer_or("attention_head_dim", 128, kPositive);
  c.text_dim = config.integer_or("joint_attention_dim", 4096, kPositive);
  c.pooled_dim = config.integer_or("pooled_projection_dim", 768, kPositive);
  c.double_blocks = int(config.integer_or("num_layers", 19, kPositive));
  c.single_blocks = int(config.integer_or("num_single_layers", 38, kPositive));
  c.guidance = config.boolean_or("guidance_embeds", false);
  const std::vector<int64_t> axes =
      config.has("axes_dims_rope") ? config.integers("axes_dims_rope", kPositive) : std::vector<int64_t>{16, 56, 56};
  check(axes.size() == 3 && std::accumulate(axes.begin(), axes.end(), int64_t{0}) == c.head_dim,
        "{}: axes_dims_rope should hold three numbers that add up to attention_head_dim {}", config.source(),
        c.head_dim);
  for (const int64_t axis : axes) check(axis % 2 == 0, "{}: axes_dims_rope should be even", config.source());
  std::copy(axes.begin(), axes.end(), c.axes.begin());
  return c;
}

}  // namespace wick
