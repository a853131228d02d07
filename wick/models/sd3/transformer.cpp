// SD3: text and picture pass through blocks in which each has weights of its own, and attend to each other; in some
// blocks of SD3.5 medium the picture attends to itself beside that. The last block computes the picture alone.
//
//   time and pooled text make one vector; from it every block makes shifts, scales and gates (AdaLN-zero)
//
// Shapes: B batch, L text tokens, N = h/2 w/2 picture tokens, D = hidden. Text comes first. Names match
// Stability's files. Reference: Stability-AI/sd3.5, mmditx.py; diffusers, SD3Transformer2DModel.
#include "wick/models/sd3/transformer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

namespace wick {
namespace {

struct Sizes {
  int64_t dim, heads;
  bool qk_norm;
};

struct Attention {
  Scope s;
  Sizes c;
  Linear qkv{s / "qkv", c.dim, 3 * c.dim};
  Tensor ln_q = norm("ln_q.weight"), ln_k = norm("ln_k.weight");

  Tensor norm(const std::string& name) const { return c.qk_norm ? s.load_norm(name, {c.dim / c.heads}) : Tensor(); }
  AttentionStream operator()(const Tensor& x) const { return {qkv(x), ln_q, ln_k}; }
};

// A stream after the attention.
struct Update {
  Scope s;
  int64_t dim;
  Linear proj{s / "attn.proj", dim, dim};
  Linear fc1{s / "mlp.fc1", dim, 4 * dim};
  Linear fc2{s / "mlp.fc2", 4 * dim, dim};

  Tensor operator()(const Tensor& x, const Tensor& attended, const std::vector<Tensor>& m) const {
    return fed_forward(x, m[2], proj(attended), m);
  }
  Tensor fed_forward(const Tensor& x, const Tensor& gate, const Tensor& h, const std::vector<Tensor>& m) const {
    const NormedSum y = modulated_norm_of_sum(x, gate, h, m[3], m[4]);
    return gated_add(y.sum, m[5], gated_last(fc2, gelu_tanh(fc1(y.norm)), m[5]));
  }
};

// The picture's second attention, which reads what the first one reads.
struct SelfAttention {
  Scope s;
  Sizes c;
  Attention attention{s, c};
  Linear proj{s / "proj", c.dim, c.dim};

  Tensor operator()(const Tensor& x) const { return proj(joint_attention({attention(x)}, {.heads = c.heads})); }
};

struct PictureStream {
  Scope s;
  Sizes c;
  bool dual;
  Modulations& all;
  ModulationRows modulation{s / "adaLN_modulation.1", c.dim, dual ? 9 : 6, all};
  Attention attn{s / "attn", c};
  Update update{s, c.dim};
  std::optional<SelfAttention> attn2 = second_attention();

  std::optional<SelfAttention> second_attention() const {
    return dual ? std::optional(SelfAttention{s / "attn2", c}) : std::nullopt;
  }
  AttentionStream attention(const Tensor& x, const std::vector<Tensor>& m) const {
    return attn(modulated_norm(x, m[0], m[1]));
  }
  Tensor operator()(const Tensor& x, const Tensor& attended, const std::vector<Tensor>& m) const {
    if (!attn2) return update(x, attended, m);
    const Tensor y = gated_add(x, m[2], update.proj(attended));
    return update.fed_forward(y, m[8], (*attn2)(modulated_norm(x, m[6], m[7])), m);
  }
};

using Streams = std::array<Tensor, 2>;  // text, picture

// Both streams attend to each other and to themselves. After the last block nothing reads the text.
struct JointBlock {
  Scope s;
  Sizes c;
  bool dual, last;
  Modulations& all;
  PictureStream x_block{s / "x_block", c, dual, all};
  Scope t = s / "context_block";
  ModulationRows modulation{t / "adaLN_modulation.1", c.dim, last ? 2 : 6, all};
  Attention attn{t / "attn", c};
  std::optional<Update> update = text_update();

  std::optional<Update> text_update() const { return last ? std::nullopt : std::optional(Update{t, c.dim}); }
  Streams operator()(const Tensor& text, const Tensor& picture, const Conditioning& of_step,
                     const Tensor& ranges) const {
    const std::vector<Tensor> m = modulation(of_step), n = x_block.modulation(of_step);
    const Tensor attended = joint_attention({attn(modulated_norm(text, m[0], m[1])), x_block.attention(picture, n)},
                                            {.heads = c.heads, .ranges = ranges});
    const std::vector<Tensor> y = split(attended, 1, {text.dim(1), picture.dim(1)});
    return {update ? (*update)(text, y[0], m) : text, x_block(picture, y[1], n)};
  }
};

}  // namespace

struct Sd3Transformer::Model {
  Scope s;
  Sd3Config c;
  FlowTransformerOptions options;

  Sizes sizes{c.hidden(), c.heads, c.qk_norm};
  Tensor table = stored_table();
  Conv x_embedder{s / "x_embedder.proj", c.channels, c.hidden(), 2, {.stride = 2}};
  Linear context_embedder{s / "context_embedder", c.text_dim, c.hidden()};
  VectorMlp t_embedder{s / "t_embedder", "mlp.0", "mlp.2", kTimeFeatures, c.hidden()};
  VectorMlp y_embedder{s / "y_embedder", "mlp.0", "mlp.2", c.pooled_dim, c.hidden()};
  // Modulations made ahead have no gradient by the vector.
  bool trains_vector = t_embedder.is_adapted() || y_embedder.is_adapted();
  std::unique_ptr<Modulations> modulations = std::make_unique<Modulations>(options.modulations_ahead && !trains_vector);
  std::vector<JointBlock> joint_blocks = make_joint_blocks();
  ModulationRows final_modulation{s / "final_layer.adaLN_modulation.1", c.hidden(), 2, *modulations};
  Linear final_linear{s / "final_layer.linear", c.hidden(), 4 * c.channels};

  std::vector<JointBlock> make_joint_blocks() const {
    const size_t count = c.dual.size();
    std::vector<JointBlock> blocks;
    blocks.reserve(count);
    for (size_t i = 0; i < count; ++i)
      blocks.push_back(
          JointBlock{(s / "joint_blocks" / int(i)).next_block(), sizes, c.dual[i], i + 1 == count, *modulations});
    return blocks;
  }

  // On the host and as it is stored, [side, side, D]: a tenth of SD3.5 medium. Empty where it is computed.
  Tensor stored_table() const {
    if (s.weights().is_outline() || !s.has("pos_embed")) return {};
    const int64_t side = c.table_side;
    return reshape(s.weights().read("pos_embed", {1, side * side, c.hidden()}), {side, side, c.hidden()});
  }

  Tensor positions(int64_t height, int64_t width) const {
    const int64_t rows = height / 2, columns = width / 2, side = c.table_side;
    check(rows <= side && columns <= side,
          "{}: a latent of {} x {} pixels has {} x {} tokens, and the model's table of positions {} x {}", s.path(),
          height, width, rows, columns, side, side);
    if (s.weights().is_outline())
      return Tensor::empty({rows * columns, c.hidden()}, s.place().activations, *s.place().memory);
    const int64_t top = (side - rows) / 2, left = (side - columns) / 2;
    Tensor middle;
    if (table) {
      middle = cast(contiguous(slice(slice(table, 0, top, top + rows), 1, left, left + columns)), DType::f32);
    } else {
      std::vector<float> values;
      for (int64_t i = 0; i < rows * columns; ++i)
        for (const float value : sd3_position(top + i / columns, left + i % columns, c)) values.push_back(value);
      middle = Tensor::of(values, {rows, columns, c.hidden()});
    }
    return s.activation(reshape(middle, {rows * columns, c.hidden()}).to(*s.place().memory));
  }

  Tensor vector(const Sd3Input& in) const {
    const Tensor time = t_embedder(s.activation(timestep_embedding(in.timestep, int(kTimeFeatures))));
    return silu(time + y_embedder(s.activation(in.pooled)));
  }

  // [B, N, 4 channels], in which channels are fastest, then the columns and the rows of two by two pixels.
  Tensor latents(const Tensor& tokens, int64_t height, int64_t width) const {
    const Tensor pixels =
        permute(reshape(tokens, {tokens.dim(0), height / 2, width / 2, 2, 2, c.channels}), {0, 1, 3, 2, 4, 5});
    return reshape(contiguous(pixels), {tokens.dim(0), height, width, c.channels});
  }

  Tensor operator()(const Sd3Input& in) const {
    const int64_t height = in.latents.dim(1), width = in.latents.dim(2), count = height / 2 * (width / 2);
    check(height % 2 == 0 && width % 2 == 0, "{}: a latent's sides should be even, found {} x {}", s.path(), height,
          width);
    check(in.positions.shape() == Shape{count, c.hidden()}, "{}: positions {} are not those of a latent of {} x {}",
          s.path(), in.positions.shape(), height, width);
    const Conditioning of_step = modulations->of_step(vector(in), in.modulations);
    const Tensor patches = x_embedder(s.activation(in.latents));
    Streams x{context_embedder(s.activation(in.text)),
              reshape(patches, {patches.dim(0), count, c.hidden()}) + in.positions};
    BlockSchedule::Pass run = options.block_schedule.pass();
    int64_t number = 0;
    for (const JointBlock& block : joint_blocks)
      if (in.skipped.contains(number++))
        run.skip();
      else
        x = run(std::cref(block), x[0], x[1], of_step, in.ranges);
    const std::vector<Tensor> m = final_modulation(of_step);
    return cast(latents(final_linear(modulated_norm(x[1], m[0], m[1])), height, width), DType::f32);
  }
};

Sd3Transformer::Sd3Transformer(Scope s, const Sd3Config& config, const FlowTransformerOptions& options)
    : model_(new Model{std::move(s), config, options}) {}
bool Sd3Transformer::modulates_ahead() const { return model_->modulations->are_ahead(); }
Tensor Sd3Transformer::modulations(const Sd3Input& in) const { return (*model_->modulations)(model_->vector(in)); }
Tensor Sd3Transformer::operator()(const Sd3Input& in) const { return (*model_)(in); }
Tensor Sd3Transformer::positions(int64_t height, int64_t width) const { return model_->positions(height, width); }

// The first half tells the column, the second the row, each in sines and cosines (diffusers, get_2d_sincos_pos_embed).
std::vector<float> sd3_position(int64_t row, int64_t column, const Sd3Config& c) {
  constexpr double kLongest = 10000;
  const int64_t count = c.hidden() / 4;
  std::vector<float> features;
  for (const int64_t index : {column, row}) {
    const auto place = float(double(index) / (double(c.table_side) / double(c.native_side)));
    const auto add = [&](double (*wave)(double)) {
      for (int64_t i = 0; i < count; ++i)
        features.push_back(float(wave(double(place) * std::pow(kLongest, -double(i) / double(count)))));
    };
    add(std::sin);
    add(std::cos);
  }
  return features;
}

bool sd3_positions_agree(const TensorSource& tensors, const Sd3Config& c) {
  constexpr float kRounding = 1.0f / 256;  // of numbers up to 1 in bf16
  const std::optional<StoredTensor> table = tensors.find("pos_embed", {});
  if (!table || !table->dtype || !table->bytes) return true;
  const int64_t step = std::max<int64_t>(1, c.table_side / 8), bytes = bytes_of(*table->dtype, c.hidden());
  for (int64_t row = 0, column = c.table_side - 1; row < c.table_side && column >= 0; row += step, column -= step) {
    const Tensor entry = Tensor::empty({c.hidden()}, *table->dtype);
    table->bytes(entry.view().data, size_t((row * c.table_side + column) * bytes), size_t(bytes));
    const std::vector<float> stored = entry.to_vector(), computed = sd3_position(row, column, c);
    for (size_t i = 0; i < stored.size(); ++i)
      if (!(std::abs(stored[i] - computed[i]) <= kRounding)) return false;
  }
  return true;
}

}  // namespace wick
