#include "wick/models/sd3/config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <set>

#include "wick/core/error.h"
#include "wick/models/network_facts.h"
#include "wick/models/sd3/names.h"
#include "wick/models/supported.h"

namespace wick {
namespace {

constexpr const char *kPatches = "x_embedder.proj.weight", *kTable = "pos_embed",
                     *kQueryNorm = "joint_blocks.0.x_block.attn.ln_q.weight";

void check_supported(const NetworkFacts& facts) {
  const Config& config = facts.config();
  only(config, "_class_name", "SD3Transformer2DModel");
  check_quantization(config);
  only(config, "patch_size", 2.0);
  const Shape patches = facts.shape(kPatches).value_or(Shape{1, 1, 2, 2});
  check(patches.rank() == 4 && patches[2] == 2 && patches[3] == 2,
        "{}: \"{}\" should be a convolution of 2 x 2 pixels, found shape {}", facts.source(), kPatches, patches);
}

void read_width(Sd3Config& c, const NetworkFacts& facts) {
  const Config& config = facts.config();
  c.head_dim = facts.has(kQueryNorm) ? facts.extent("attention_head_dim", kQueryNorm, 0)
                                     : config.integer_or("attention_head_dim", 64, kExtent);
  const std::optional<Shape> patches = facts.shape(kPatches);
  check(!patches || (*patches)[0] % c.head_dim == 0,
        "{}: the width of \"{}\", {}, is not whole heads of {} (attention_head_dim)", facts.source(), kPatches,
        patches.value_or(Shape{0})[0], c.head_dim);
  c.heads = facts.settle("num_attention_heads", kPatches,
                         patches ? std::optional((*patches)[0] / c.head_dim) : std::nullopt, 18);
  const int64_t caption = facts.extent("caption_projection_dim", "context_embedder.weight", 0, 1152);
  check(caption == c.hidden(), "{}: caption_projection_dim {} should be num_attention_heads {} x attention_head_dim {}",
        config.source(), caption, c.heads, c.head_dim);
  check(c.hidden() % 4 == 0, "{}: a width of {} does not split into sines and cosines of rows and columns",
        config.source(), c.hidden());
}

void read_blocks(Sd3Config& c, const NetworkFacts& facts) {
  const Config& config = facts.config();
  const int64_t blocks = facts.count("num_layers", "joint_blocks.{}.x_block.attn.qkv.weight", 18);
  std::set<int64_t> told, stored;
  if (config.has("dual_attention_layers"))
    for (const int64_t block : config.integers("dual_attention_layers", {0, kPositive.max}))
      if (block < blocks) told.insert(block);
  for (int64_t i = 0; i < blocks; ++i)
    if (facts.has(fmt::format("joint_blocks.{}.x_block.attn2.qkv.weight", i))) stored.insert(i);
  check(!facts.has_tensors() || !config.has("dual_attention_layers") || told == stored,
        "{}: dual_attention_layers is [{}], but {} has the tensors \"joint_blocks.{{}}.x_block.attn2.qkv.weight\" of "
        "[{}]",
        config.source(), fmt::join(told, ", "), facts.source(), fmt::join(stored, ", "));
  c.dual.assign(size_t(blocks), false);
  for (const int64_t block : facts.has_tensors() ? stored : told) c.dual[size_t(block)] = true;

  only(config, "qk_norm", "rms_norm");
  c.qk_norm = facts.has_tensors() ? facts.has(kQueryNorm) : config.has("qk_norm");
  check(!c.qk_norm || !config.mentions("qk_norm") || config.has("qk_norm"),
        "{}: qk_norm is null, but {} has a tensor \"{}\"", config.source(), facts.source(), kQueryNorm);
  check(c.qk_norm || !config.has("qk_norm"), "{}: qk_norm is \"rms_norm\", but {} has no tensor \"{}\"",
        config.source(), facts.source(), kQueryNorm);
}

void read_positions(Sd3Config& c, const NetworkFacts& facts) {
  std::optional<int64_t> side;
  if (const std::optional<Shape> table = facts.shape(kTable)) {
    check(table->rank() == 3 && (*table)[2] == c.hidden(), "{}: \"{}\" should have shape [1, N, {}], found {}",
          facts.source(), kTable, c.hidden(), *table);
    side = int64_t(std::sqrt(double((*table)[1])));
    check(*side * *side == (*table)[1], "{}: \"{}\" should be a square table of positions, found shape {}",
          facts.source(), kTable, *table);
  }
  constexpr int64_t kMostSide = 4096;  // patches: pictures of 65536 pixels
  c.table_side = facts.settle("pos_embed_max_size", kTable, side, 96, {1, kMostSide});
  c.native_side = facts.config().integer_or("sample_size", 128, {2, 2 * kMostSide}) / 2;
}

}  // namespace

Sd3Config Sd3Config::read(const Checkpoint& component) {
  const NetworkFacts facts(component, sd3_source);
  check_supported(facts);
  Sd3Config c;
  read_width(c, facts);
  read_blocks(c, facts);
  read_positions(c, facts);
  c.channels = facts.extent("in_channels", kPatches, 1, 16);
  c.text_dim = facts.extent("joint_attention_dim", "context_embedder.weight", 1, 4096);
  c.pooled_dim = facts.extent("pooled_projection_dim", "y_embedder.mlp.0.weight", 1, 2048);
  const std::string source = facts.config().source();
  const int64_t out = facts.config().integer_or("out_channels", c.channels, kPositive);
  check(out == c.channels, "{}: out_channels {} should be in_channels {}", source, out, c.channels);
  return c;
}

}  // namespace wick
