// Shapes: B batch, T tokens, D hidden, H heads of queries, G of keys and values, V vocabulary. Reference: transformers,
// LlamaForCausalLM and its kin. Parameter names match their checkpoints.
#include "wick/models/llama.h"

#include <tuple>
#include <utility>

#include "wick/backend/counting.h"

namespace wick {
namespace {

std::optional<RmsNorm> head_norm(const Scope& s, const LlamaConfig& c) {
  return c.qk_norm ? std::optional(RmsNorm(s, c.head_dim, c.eps)) : std::nullopt;
}

// Tokens [first, T) of x [B, T, ...].
Tensor from(const Tensor& x, int64_t first) { return first == 0 ? x : slice(x, 1, first, x.dim(1)); }

struct GroupedAttention {
  Scope s;
  LlamaConfig c;
  int layer;
  Linear qkv_proj = Linear::side_by_side(
      s, c.hidden, {{"q_proj", c.query_width()}, {"k_proj", c.kv_width()}, {"v_proj", c.kv_width()}}, c.qkv_bias);
  std::optional<RmsNorm> q_norm = head_norm(s / "q_norm", c), k_norm = head_norm(s / "k_norm", c);
  Linear o_proj{s / "o_proj", c.query_width(), c.hidden, c.output_bias};

  // Queries, keys and values, with their norms if they have any.
  std::vector<Tensor> parts_of(const Tensor& qkv) const {
    std::vector<Tensor> parts = split(qkv, 2, {c.heads, c.kv_heads, c.kv_heads});
    if (c.qk_norm) parts = {(*q_norm)(parts[0]), (*k_norm)(parts[1]), parts[2]};
    return parts;
  }
  // The same with queries and keys rotated (RoPE): as one tensor and in place, unless each has its norm.
  std::vector<Tensor> turned_parts_of(Tensor qkv, const TokenPlan& plan) const {
    const auto turn = [&](Tensor part, int64_t count) {
      return rope(std::move(part), plan.cos, plan.sin, RopePairs::halves, count);
    };
    if (!c.qk_norm) return parts_of(turn(std::move(qkv), c.heads + c.kv_heads));
    std::vector<Tensor> parts = parts_of(qkv);
    return {turn(std::move(parts[0]), c.heads), turn(std::move(parts[1]), c.kv_heads), parts[2]};
  }

  // For the tokens from `first` on; earlier ones leave only keys and values.
  Tensor operator()(const Tensor& x, const Tensor& residual, const TokenPlan& plan, KvCache* cache,
                    int64_t first) const {
    Tensor qkv = heads(qkv_proj(x), c.heads + 2 * c.kv_heads);
    const std::vector<Tensor> parts = cache ? parts_of(qkv) : turned_parts_of(std::move(qkv), plan);
    Tensor q = parts[0], k = parts[1], v = parts[2];
    if (cache) std::tie(q, k, v) = cache->append(layer, q, k, v, plan);
    const Tensor& ranges = c.windowed[size_t(layer)] ? plan.windowed_ranges : plan.ranges;
    return o_proj(merge_heads(attention(from(q, first), k, v, contiguous(from(ranges, first)))), residual);
  }
};

struct FeedForward {
  Scope s;
  LlamaConfig c;
  Linear gate_up_proj =
      Linear::side_by_side(s, c.hidden, {{"gate_proj", c.intermediate}, {"up_proj", c.intermediate}}, c.mlp_bias);
  Linear down_proj{s / "down_proj", c.intermediate, c.hidden, c.mlp_bias};

  Tensor operator()(const Tensor& x, const Tensor& residual) const {
    return down_proj.last(gate_up_proj.gated(x), residual);
  }
};

struct Layer {
  Scope s;
  LlamaConfig c;
  int number;
  RmsNorm input_layernorm{s / "input_layernorm", c.hidden, c.eps};
  GroupedAttention self_attn{s / "self_attn", c, number};
  RmsNorm post_attention_layernorm{s / "post_attention_layernorm", c.hidden, c.eps};
  FeedForward mlp{s / "mlp", c};

  // For the tokens from `first` on.
  Tensor operator()(Tensor x, const TokenPlan& plan, KvCache* cache, int64_t first) const {
    x = self_attn(input_layernorm(x), from(x, first), plan, cache, first);
    return mlp(post_attention_layernorm(x), x);
  }
};

std::vector<Layer> decoder_layers(const Scope& s, const LlamaConfig& c) {
  std::vector<Layer> all;
  all.reserve(size_t(c.layers));
  for (int i = 0; i < c.layers; ++i) all.push_back({(s / i).next_block(), c, i});
  return all;
}

}  // namespace

struct Llama::Model {
  Scope root;
  LlamaConfig c;
  BlockSchedule block_schedule;
  Scope s = root / "model";
  Embedding embed_tokens{s / "embed_tokens", c.vocab, c.hidden};
  std::vector<Layer> layers = decoder_layers(s / "layers", c);
  RmsNorm norm{s / "norm", c.hidden, c.eps};
  Tensor head = c.tied ? embed_tokens.table : (root / "lm_head").load("weight", {c.vocab, c.hidden});
  AdapterOfLayer head_adapter = root.adapt({head_site()}, head);

  LoraSite head_site() const {
    const LoraTarget target{c.hidden, c.vocab};
    LoraSite site = (root / "lm_head").site(target);
    if (c.tied) site.base = (s / "embed_tokens").site(target).base;
    site.tied = c.tied;
    return site;
  }

  // For the tokens from `first` on: earlier ones leave only keys and values in the last layer.
  Tensor operator()(const Tensor& ids, const TokenPlan& plan, KvCache* cache, int64_t first) const {
    check(ids.rank() == 2 && plan.ranges.shape() == Shape{ids.dim(0), ids.dim(1), 2},
          "{}: token ids {} are not those of a plan {}", root.path(), ids.shape(), plan.ranges.shape());
    Tensor x = embed_tokens(ids);
    BlockSchedule::Pass pass = block_schedule.pass();
    for (const Layer& layer : layers) {
      const int64_t begin = &layer == &layers.back() ? first : 0;
      const auto run = [&layer, plan, cache, begin](const Tensor& h) { return layer(h, plan, cache, begin); };
      x = pass(run, x);
    }
    return norm(x);
  }

  Tensor logits(const Tensor& x) const { return head_adapter ? head_adapter->linear(x, head, {}) : linear(x, head); }

  // A LoRA on the head is rare: its logits are recomputed in backward.
  Tensor adapted_loss(const Tensor& x, const TokenTargets& targets) const {
    constexpr int64_t kChunk = 256;
    const Tensor rows = reshape(x, {-1, c.hidden});
    Tensor loss;
    for (int64_t begin = 0; begin < rows.dim(0); begin += kChunk) {
      const int64_t end = std::min(begin + kChunk, rows.dim(0));
      const TokenTargets part{slice(targets.ids, 0, begin, end), slice(targets.weights, 0, begin, end)};
      const auto of = [this, part](const Tensor& h) { return cross_entropy(logits(h), part); };
      const Tensor term = checkpoint(of, slice(rows, 0, begin, end));
      loss = loss ? loss + term : term;
    }
    return loss;
  }
};

Llama::Llama(Scope s, const LlamaConfig& config, BlockSchedule block_schedule)
    : model_(new Model{std::move(s), config, std::move(block_schedule)}) {}

const LlamaConfig& Llama::config() const { return model_->c; }
const Weights& Llama::weights() const { return model_->s.weights(); }
const Residence& Llama::place() const { return model_->s.place(); }

Tensor Llama::operator()(const Tensor& ids, const TokenPlan& plan, KvCache* cache) const {
  return (*model_)(ids, plan, cache, 0);
}

Tensor Llama::last(const Tensor& ids, const TokenPlan& plan, KvCache* cache) const {
  return (*model_)(ids, plan, cache, ids.dim(1) - 1);
}

Tensor Llama::logits(const Tensor& hidden) const { return cast(model_->logits(hidden), DType::f32); }

Tensor Llama::loss(const Tensor& hidden, const TokenTargets& targets) const {
  return model_->head_adapter ? model_->adapted_loss(hidden, targets)
                              : linear_cross_entropy(hidden, model_->head, targets);
}

WeightsOptions llama_weights(DType dtype, Backend& backend) {
  const DType computes = is_quantized(dtype) ? DType::bf16 : dtype;
  WeightsOptions options{.dtype = dtype, .unquantized = computes, .place = Residence::on(backend, computes)};
  if (has_row_format(dtype))
    options.quantizes = [](const std::string& name) { return name.starts_with("model.layers."); };
  return options;
}

Llama Llama::load(const Checkpoint& files, const LlamaOptions& options) {
  const LlamaConfig config = LlamaConfig::read(files);
  Backend& backend = options.backend ? *options.backend : cpu_backend();
  const bool as_stored = !options.dtype && files.is_gguf();
  const DType dtype = options.dtype.value_or(DType::f32);
  WeightsOptions kept = llama_weights(dtype, backend);
  kept.as_stored = as_stored;
  if (as_stored) kept.place = Residence::on(backend, DType::bf16);  // files of mixed types
  kept.trainable = options.trainable;
  kept.deferred = !options.outline;
  const auto source = [&] {
    if (options.outline) return Weights::outline(kept);
    return options.draw ? Weights::drawn(*options.draw, config.initializer_range, kept) : files.weights(kept);
  };
  const Weights weights = source();
  BlockSchedule blocks = options.block_schedule;
  if (const size_t count = blocks.streamed())
    blocks.stream(weights.stream(
        count, [&](const Weights& shapes) { Llama(Scope(shapes, "llama"), config); }, blocks.masters("llama")));
  Llama model(Scope(weights, "llama", options.adapter), config, blocks);
  if (options.adapter) options.adapter->check_complete();  // before the long work
  const auto rehearse = [&] { options.rehearse(model); };
  weights.read_deferred(options.rehearse ? std::function<void()>(rehearse) : nullptr);
  host_memory().trim();
  return model;
}

ModuleNames llama_module_names() {
  static const std::string kPeft = "base_model.model.", kInner = "model.";
  return [](const std::string& path) -> std::vector<ModuleName> {
    const std::string name = path.substr(path.find('.') + 1);  // the name in LlamaForCausalLM
    std::vector<ModuleName> names = {{kPeft + name, Spelling::peft}};
    if (name.starts_with(kInner)) names.emplace_back(kPeft + name.substr(kInner.size()));  // and LlamaModel
    return names;
  };
}

std::vector<std::string> llama_default_targets() { return {"*.layers.*_proj"}; }

std::vector<std::pair<std::string, Shape>> llama_tensors(const LlamaConfig& config) {
  CountingBackend counting(device_kind("cpu"));
  const Weights outline =
      Weights::outline({.trainable = true, .place = Residence::on(counting, DType::f32)});  // lists its tensors
  const Llama model(Scope(outline, "llama"), config);
  std::vector<std::pair<std::string, Shape>> tensors;
  for (const Parameter& parameter : outline.parameters()) tensors.emplace_back(parameter.name, parameter.value.shape());
  return tensors;
}

size_t estimate_model_memory(const LlamaConfig& config, DType dtype, std::string_view device) {
  CountingBackend counting(device_kind(device));
  const Llama model(Scope(Weights::outline(llama_weights(dtype, counting)), "llama"), config);
  return counting.memory().in_use();
}

}  // namespace wick
