// CLIP text encoders: a causal transformer with norms before each part.
//
// Shapes: B batch, T tokens, D = hidden. Reference: transformers, CLIPTextModel and CLIPTextModelWithProjection.
// Parameter names match their checkpoints.
#include "wick/models/clip.h"

#include <algorithm>
#include <utility>

#include "wick/models/network_facts.h"

namespace wick {

namespace {

struct SelfAttention {
  Scope s;
  int64_t dim;
  int head_count;
  Linear qkv_proj = Linear::side_by_side(s, dim, {{"q_proj", dim}, {"k_proj", dim}, {"v_proj", dim}});
  Linear out_proj{s / "out_proj", dim, dim};

  Tensor operator()(const Tensor& x, const Tensor& residual) const {
    return out_proj(self_attention(qkv_proj(x), head_count, /*causal=*/true), residual);
  }
};

struct Layer {
  Scope s;
  ClipConfig c;
  LayerNorm layer_norm1{s / "layer_norm1", c.hidden, c.eps};
  SelfAttention self_attn{s / "self_attn", c.hidden, c.heads};
  LayerNorm layer_norm2{s / "layer_norm2", c.hidden, c.eps};
  Linear fc1{s / "mlp.fc1", c.hidden, c.intermediate};
  Linear fc2{s / "mlp.fc2", c.intermediate, c.hidden};

  Tensor operator()(Tensor x) const {
    x = self_attn(layer_norm1(x), x);
    const Tensor h = fc1(layer_norm2(x));
    return fc2(c.quick_gelu ? quick_gelu(h) : gelu(h), x);
  }
};

// The position of each row's end-of-text token. CLIP configs from before transformers 4.31 give eos_token_id as 2,
// which is wrong: for them it is the highest id, as it is in CLIP's own vocabulary; adapters' words follow that.
std::vector<int64_t> end_positions(const Tensor& ids, int64_t eos_id, int64_t vocabulary) {
  const int64_t length = ids.dim(1);
  std::vector<int64_t> rows;
  for (int64_t b = 0; b < ids.dim(0); ++b) {
    const int64_t* row = ids.data<int64_t>() + b * length;
    const int64_t* end = row + length;
    const auto in_vocabulary = [vocabulary](int64_t id) { return id < vocabulary ? id : -1; };
    const int64_t* found =
        eos_id == 2 ? std::ranges::max_element(row, end, {}, in_vocabulary) : std::find(row, end, eos_id);
    rows.push_back(b * length + (found == end ? 0 : found - row));
  }
  return rows;
}

}  // namespace

struct ClipText::Model {
  Scope root;
  ClipConfig c;
  Scope s = root / "text_model";
  Embedding token_embedding{s / "embeddings.token_embedding", c.vocab, c.hidden};
  Tensor position_embedding = s.load("embeddings.position_embedding.weight", {c.positions, c.hidden});
  std::vector<Layer> encoder = layers<Layer>(s / "encoder.layers", c.layers, c);
  LayerNorm final_layer_norm{s / "final_layer_norm", c.hidden, c.eps};
  std::optional<Linear> text_projection =
      c.with_projection ? std::optional(Linear(root / "text_projection", c.hidden, c.projection, /*bias=*/false))
                        : std::nullopt;

  ClipOutput operator()(const Tensor& ids) const {
    check(ids.rank() == 2 && ids.dim(1) >= 1 && ids.dim(1) <= c.positions,
          "{}: token ids should have shape [B, 1 to {}], found {}", root.path(), c.positions, ids.shape());
    const int64_t batch = ids.dim(0), length = ids.dim(1);
    Tensor x = token_embedding(ids) + s.activation(slice(position_embedding, 0, 0, length));
    Tensor penultimate;
    for (const Layer& layer : encoder) {
      penultimate = x;
      x = layer(x);
    }
    const Tensor last = final_layer_norm(x);
    const Tensor ends = Tensor::of(end_positions(contiguous(ids), c.eos_id, c.vocab), {batch});
    const Tensor pooled = embedding(reshape(last, {batch * length, c.hidden}), ends, last.dtype());
    const Tensor projected = text_projection ? (*text_projection)(pooled) : pooled;
    return {cast(last, DType::f32), cast(penultimate, DType::f32), cast(projected, DType::f32)};
  }
};

ClipText::ClipText(Scope s, const ClipConfig& config) {
  auto model = std::make_shared<Model>(Model{std::move(s), config});
  model->token_embedding.add_words(model->root, model->root.path() == "text_encoder_2" ? "clip_g" : "clip_l");
  model_ = std::move(model);
}
int64_t ClipText::ids() const { return model_->token_embedding.ids(); }
ClipOutput ClipText::operator()(const Tensor& ids) const { return (*model_)(ids); }

namespace {

void read_config(ClipConfig& c, const Config& config) {
  c.heads = int(config.integer_or("num_attention_heads", 8, kPositive));
  c.eps = float(config.number_or("layer_norm_eps", 1e-5, kEpsilon));
  c.eos_id = config.integer_or("eos_token_id", 49407);
  const std::string activation = config.text_or("hidden_act", "quick_gelu");
  check(activation == "quick_gelu" || activation == "gelu",
        "{}: hidden_act is \"{}\"; Wick supports \"quick_gelu\" and \"gelu\"", config.source(), activation);
  c.quick_gelu = activation == "quick_gelu";
  const std::vector<std::string> architectures = config.texts("architectures");
  const std::string architecture = architectures.empty() ? "" : architectures.front();
  c.with_projection = architecture == "CLIPTextModelWithProjection";
  check(c.with_projection || architecture == "CLIPTextModel",
        "{}: architectures holds \"{}\"; Wick supports CLIPTextModel and CLIPTextModelWithProjection", config.source(),
        architecture);
  check(c.hidden % c.heads == 0, "{}: num_attention_heads {} does not divide hidden_size {}", config.source(), c.heads,
        c.hidden);
}

// ComfyUI and Stability's code take CLIP-L's pooled state as it is, and diffusers projects that of a single file by the
// identity.
void assume(ClipConfig& c, ClipKind kind, const std::string& file) {
  constexpr int kHeadWidth = 64;
  check(c.hidden % kHeadWidth == 0, "{}: the CLIP encoder has a width of {}, which is not whole heads of {}", file,
        c.hidden, kHeadWidth);
  c.heads = int(c.hidden) / kHeadWidth;
  c.eps = 1e-5f;
  c.eos_id = 2;  // the highest id, see end_positions
  c.quick_gelu = kind == ClipKind::l;
  c.with_projection = kind == ClipKind::big_g;
}

}  // namespace

ClipConfig ClipConfig::read(const Checkpoint& component, ClipKind kind) {
  const NetworkFacts facts(component);
  const Config& config = facts.config();
  const std::string tokens = "text_model.embeddings.token_embedding.weight",
                    layer = "text_model.encoder.layers.{}.mlp.fc1.weight";
  ClipConfig c;
  c.vocab = facts.extent("vocab_size", tokens, 0, 49408);
  c.positions = facts.extent("max_position_embeddings", "text_model.embeddings.position_embedding.weight", 0, 77);
  c.hidden = facts.extent("hidden_size", tokens, 1, 512);
  c.layers = int(facts.count("num_hidden_layers", layer, 12));
  c.intermediate = facts.extent("intermediate_size", "text_model.encoder.layers.0.mlp.fc1.weight", 0, 2048);
  if (facts.has_config())
    read_config(c, config);
  else
    assume(c, kind, config.source());
  c.projection = c.with_projection ? facts.extent("projection_dim", "text_projection.weight", 0, 512) : c.hidden;
  return c;
}

bool projects_by_identity(const Checkpoint& component, const ClipConfig& c) {
  if (!c.with_projection || !component.has_weights()) return true;
  if (c.projection != c.hidden) return false;
  const std::vector<float> matrix =
      component.weights().read("text_projection.weight", {c.projection, c.hidden}).to_vector();
  for (size_t i = 0; i < matrix.size(); ++i)
    if (matrix[i] != (i % size_t(c.hidden + 1) == 0 ? 1 : 0)) return false;
  return true;
}

}  // namespace wick
