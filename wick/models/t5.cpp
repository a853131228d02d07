// T5's encoder: norms without mean or bias before each part, no positions but a bias of the attention by distance, and
// scores that are not scaled.
//
// Shapes: B batch, T tokens, D hidden, H heads. Reference: transformers, T5EncoderModel. Parameter names match its
// checkpoints.
#include "wick/models/t5.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "wick/models/network_facts.h"
#include "wick/models/supported.h"

namespace wick {

namespace {

constexpr float kLargestF16 = 65504;

// In f16 the residual may overflow: transformers then bounds it by the largest number less 1000.
Tensor bounded(const Tensor& x) {
  constexpr float kBound = kLargestF16 - 1000;
  return x.dtype() == DType::f16 ? clamp(x, -kBound, kBound) : x;
}

// [B, T, H D] -> [B, H, T, D]
Tensor by_head(const Tensor& x, int64_t count) { return permute(heads(x, count), {0, 2, 1, 3}); }

struct SelfAttention {
  Scope s;
  T5Config c;
  int64_t width = c.heads * c.head_dim;
  Linear qkv = Linear::side_by_side(s, c.hidden, {{"q", width}, {"k", width}, {"v", width}}, /*bias=*/false);
  Linear o{s / "o", width, c.hidden, /*bias=*/false};

  Tensor operator()(const Tensor& x, const Tensor& bias, const Tensor& residual) const {
    const std::vector<Tensor> parts = split(qkv(x), 2, {width, width, width});
    const Tensor q = by_head(parts[0], c.heads), k = by_head(parts[1], c.heads), v = by_head(parts[2], c.heads);
    const Tensor weights = softmax(matmul(q, transpose(k, -1, -2)) + bias);
    return o(merge_heads(permute(matmul(weights, v), {0, 2, 1, 3})), residual);
  }
};

struct FeedForward {
  Scope s;
  T5Config c;
  Linear wi = Linear::side_by_side(s, c.hidden, {{"wi_0", c.intermediate}, {"wi_1", c.intermediate}}, /*bias=*/false);
  Linear wo{s / "wo", c.intermediate, c.hidden, /*bias=*/false};

  Tensor operator()(const Tensor& x, const Tensor& residual) const {
    const std::vector<Tensor> parts = split(wi(x), 2, {c.intermediate, c.intermediate});
    return wo(gelu_tanh(parts[0]) * parts[1], residual);
  }
};

struct Block {
  Scope s;
  T5Config c;
  RmsNorm attention_norm{s / "layer.0.layer_norm", c.hidden, c.eps};
  SelfAttention attention{s / "layer.0.SelfAttention", c};
  RmsNorm feed_forward_norm{s / "layer.1.layer_norm", c.hidden, c.eps};
  FeedForward feed_forward{s / "layer.1.DenseReluDense", c};

  Tensor operator()(Tensor x, const Tensor& bias) const {
    x = bounded(attention(attention_norm(x), bias, x));
    return bounded(feed_forward(feed_forward_norm(x), x));
  }
};

// Half of the buckets are for later keys. Half of each half are for one distance each, the rest for distances that grow
// by a constant factor up to the largest. In f32, as the reference computes it.
int64_t bucket_of(int64_t distance, const T5Config& c) {
  const int64_t half = c.buckets / 2, exact = half / 2, n = std::abs(distance), side = distance > 0 ? half : 0;
  if (n < exact) return side + n;
  const auto ratio = float(std::log(double(c.max_distance) / double(exact)));
  const float log = std::log(float(n) / float(exact)) / ratio * float(half - exact);
  return side + std::min(half - 1, exact + int64_t(log));
}

// [1, 1, 1, T] or [B, 1, 1, T]: what is added to the scores of a key.
Tensor bias_of(const Tensor& mask, DType dtype) {
  const float none = dtype == DType::f16 ? -kLargestF16 : std::numeric_limits<float>::lowest();
  std::vector<float> bias;
  for (int64_t i = 0; i < mask.numel(); ++i) bias.push_back(mask.data<int64_t>()[i] == 0 ? none : 0);
  return Tensor::of(bias, {mask.dim(0), 1, 1, mask.dim(1)});
}

}  // namespace

struct T5Encoder::Model {
  Scope s;
  T5Config c;
  BlockSchedule block_schedule;
  Scope e = s / "encoder";
  Embedding shared{s.has("shared.weight") ? s / "shared" : e / "embed_tokens", c.vocab, c.hidden};
  // In the first block alone, and for all of them.
  Embedding relative_attention_bias{e / "block.0.layer.0.SelfAttention.relative_attention_bias", c.buckets, c.heads};
  std::vector<Block> blocks = layers<Block>(e / "block", c.layers, c);
  RmsNorm final_layer_norm{e / "final_layer_norm", c.hidden, c.eps};

  // [1, H, T, T]
  Tensor position_bias(int64_t length) const {
    std::vector<int64_t> of_distances, buckets;
    for (int64_t distance = 1 - length; distance < length; ++distance) of_distances.push_back(bucket_of(distance, c));
    for (int64_t query = 0; query < length; ++query) {
      const auto first = of_distances.begin() + length - 1 - query;  // the first key's
      buckets.insert(buckets.end(), first, first + length);
    }
    const Tensor bias = relative_attention_bias(Tensor::of(buckets, {1, length, length}));
    return contiguous(permute(bias, {0, 3, 1, 2}));
  }

  Tensor operator()(const Tensor& ids, const Tensor& mask) const {
    check(ids.rank() == 2 && ids.dim(1) >= 1, "{}: token ids should have shape [B, T], found {}", s.path(),
          ids.shape());
    check(!mask || mask.shape() == ids.shape(), "{}: the mask {} should have the shape of the token ids {}", s.path(),
          mask.shape(), ids.shape());
    Tensor bias = position_bias(ids.dim(1));
    if (mask) bias = bias + s.activation(bias_of(contiguous(mask), bias.dtype()).to(bias.memory()));
    Tensor x = shared(contiguous(ids));
    BlockSchedule::Pass run = block_schedule.pass();
    for (const Block& block : blocks) x = run(std::cref(block), x, bias);
    return final_layer_norm(x);
  }
};

T5Encoder::T5Encoder(Scope s, const T5Config& config, BlockSchedule block_schedule) {
  auto model = std::make_shared<Model>(Model{std::move(s), config, std::move(block_schedule)});
  model->shared.add_words(model->s, "t5");
  model_ = std::move(model);
}
int64_t T5Encoder::ids() const { return model_->shared.ids(); }
Tensor T5Encoder::operator()(const Tensor& ids, const Tensor& mask) const { return (*model_)(ids, mask); }

namespace {

void check_supported(const NetworkFacts& facts) {
  if (facts.has_config()) {
    const Config& config = facts.config();
    check_quantization(config);
    only(config, "model_type", "t5");
    only(config, "feed_forward_proj", "gated-gelu", /*absent=*/"relu");
    only(config, "dense_act_fn", "gelu_new");  // that of "gated-gelu" (configuration_t5.py)
    only(config, "is_gated_act", true);
  }
  const std::string source = facts.config().source();
  check(!facts.has("encoder.block.0.layer.1.DenseReluDense.wi.weight"),
        "{}: has a \"wi\" in place of \"wi_0\" and \"wi_1\", as T5 1.0 has; Wick supports T5 v1.1", source);
  check(!facts.has("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"),
        "{}: has a relative_attention_bias in every block, as UMT5 has; Wick supports T5 v1.1", source);
}

}  // namespace

T5Config T5Config::read(const Checkpoint& component) {
  const NetworkFacts facts(component);
  check_supported(facts);
  const Config& config = facts.config();
  const std::string first = "encoder.block.0.layer.", attention = first + "0.SelfAttention.",
                    bias = attention + "relative_attention_bias.weight", q = attention + "q.weight",
                    table = facts.has("shared.weight") ? "shared.weight" : "encoder.embed_tokens.weight";
  T5Config c;
  c.vocab = facts.extent("vocab_size", table, 0, 32128);
  c.hidden = facts.extent("d_model", table, 1, 512);
  c.intermediate = facts.extent("d_ff", first + "1.DenseReluDense.wi_0.weight", 0, 2048);
  c.layers = int(facts.count("num_layers", "encoder.block.{}.layer.0.SelfAttention.q.weight", 6));
  c.buckets = facts.extent("relative_attention_num_buckets", bias, 0, 32);
  c.heads = int(facts.extent("num_heads", bias, 1, 8));
  const std::optional<Shape> queries = facts.shape(q);
  check(!queries || (queries->rank() == 2 && (*queries)[0] % c.heads == 0),
        "{}: \"{}\" should have rows for each of the {} heads of \"{}\", found shape {}", config.source(), q, c.heads,
        bias, queries.value_or(Shape{}));
  c.head_dim = facts.settle("d_kv", q, queries ? std::optional((*queries)[0] / c.heads) : std::nullopt, 64);
  c.max_distance = config.integer_or("relative_attention_max_distance", 128, kPositive);
  c.eps = float(config.number_or("layer_norm_epsilon", 1e-6, kEpsilon));
  check(c.buckets >= 4 && c.max_distance > c.buckets / 4,
        "{}: {} buckets of relative positions up to a distance of {} should be 4 or more, a quarter of them below the "
        "distance",
        config.source(), c.buckets, c.max_distance);
  return c;
}

}  // namespace wick
