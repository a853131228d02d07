// FLUX.1: text and picture pass through double blocks, each with weights of its own, and attend to each other; then
// both are one sequence in single blocks, whose attention and feed-forward run side by side.
//
//   time, guidance and pooled text make one vector; from it every block makes shifts, scales and gates (AdaLN-zero)
//
// Shapes: B batch, L text tokens, N picture tokens, T = L + N, D = hidden. Text comes first. Names match Black Forest
// Labs' files. Reference: black-forest-labs/flux, src/flux/model.py and modules/layers.py.
#include "wick/models/flux/transformer.h"

#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace wick {
namespace {

constexpr double kTheta = 10000;

struct QkNorm {
  Scope s;
  int64_t head_dim;
  Tensor query = s.load_norm("query_norm.scale", {head_dim}), key = s.load_norm("key_norm.scale", {head_dim});
};

// One of the two streams of a double block.
struct Stream {
  Scope s;
  std::string name;  // "img"
  int64_t dim, head_dim;
  Modulations& all;
  ModulationRows mod{s / (name + "_mod.lin"), dim, 6, all};
  Linear qkv{s / (name + "_attn.qkv"), dim, 3 * dim};
  QkNorm norm{s / (name + "_attn.norm"), head_dim};
  Linear proj{s / (name + "_attn.proj"), dim, dim};
  Linear mlp_0{s / (name + "_mlp.0"), dim, 4 * dim};
  Linear mlp_2{s / (name + "_mlp.2"), 4 * dim, dim};

  AttentionStream attention(const Tensor& x, const std::vector<Tensor>& m) const {
    return {qkv(modulated_norm(x, m[0], m[1])), norm.query, norm.key};
  }
  Tensor rest(const Tensor& x, const Tensor& attended, const std::vector<Tensor>& m) const {
    const NormedSum y = modulated_norm_of_sum(x, m[2], proj(attended), m[3], m[4]);
    return gated_add(y.sum, m[5], gated_last(mlp_2, gelu_tanh(mlp_0(y.norm)), m[5]));
  }
};

using Streams = std::array<Tensor, 2>;  // text, picture

struct DoubleBlock {
  Scope s;
  int64_t dim, heads;
  bool clips;
  Modulations& all;
  Stream txt{s, "txt", dim, dim / heads, all}, img{s, "img", dim, dim / heads, all};

  Streams operator()(const Tensor& text, const Tensor& picture, const Conditioning& c,
                     const JointAttention& how) const {
    const std::vector<Tensor> of_txt = txt.mod(c), of_img = img.mod(c);
    const Tensor attended = joint_attention({txt.attention(text, of_txt), img.attention(picture, of_img)}, how);
    const std::vector<Tensor> parts = split(attended, 1, {text.dim(1), picture.dim(1)});
    const Tensor text_out = txt.rest(text, parts[0], of_txt);
    return {clips ? clipped(text_out) : text_out, img.rest(picture, parts[1], of_img)};
  }
};

struct SingleBlock {
  Scope s;
  int64_t dim, heads;
  bool clips;
  Modulations& all;
  ModulationRows modulation{s / "modulation.lin", dim, 3, all};
  Linear linear1{s / "linear1", dim, 7 * dim};  // queries, keys, values; the feed-forward's 4 D
  QkNorm norm{s / "norm", dim / heads};
  Linear linear2{s / "linear2", 5 * dim, dim};  // of the attention's output and the feed-forward's

  Tensor operator()(const Tensor& x, const Conditioning& c, const JointAttention& how) const {
    const std::vector<Tensor> m = modulation(c);
    const std::vector<Tensor> parts = split(linear1(modulated_norm(x, m[0], m[1])), 2, {3 * dim, 4 * dim});
    const Tensor attended = joint_attention({{parts[0], norm.query, norm.key}}, how);
    const Tensor y = gated_add(x, m[2], gated_last(linear2, beside_gelu_tanh(attended, parts[1]), m[2]));
    return clips ? clipped(y) : y;
  }
};

}  // namespace

struct FluxTransformer::Model {
  Scope s;
  FluxConfig c;
  FlowTransformerOptions options;

  int64_t dim = c.hidden();
  bool clips = s.place().activations == DType::f16;  // as diffusers does, which overflows there too
  Linear img_in{s / "img_in", c.token_dim(), dim};
  Linear txt_in{s / "txt_in", c.text_dim, dim};
  VectorMlp time_in{s, "time_in.in_layer", "time_in.out_layer", kTimeFeatures, dim};
  VectorMlp vector_in{s, "vector_in.in_layer", "vector_in.out_layer", c.pooled_dim, dim};
  std::optional<VectorMlp> guidance_in =
      c.guidance ? std::optional(VectorMlp{s, "guidance_in.in_layer", "guidance_in.out_layer", kTimeFeatures, dim})
                 : std::nullopt;
  // Modulations made ahead have no gradient by the vector.
  bool trains_vector = time_in.is_adapted() || vector_in.is_adapted() || (guidance_in && guidance_in->is_adapted());
  std::unique_ptr<Modulations> modulations = std::make_unique<Modulations>(options.modulations_ahead && !trains_vector);
  std::vector<DoubleBlock> double_blocks =
      layers<DoubleBlock>(s / "double_blocks", c.double_blocks, dim, c.heads, clips, std::ref(*modulations));
  std::vector<SingleBlock> single_blocks =
      layers<SingleBlock>(s / "single_blocks", c.single_blocks, dim, c.heads, clips, std::ref(*modulations));
  ModulationRows final_modulation{s / "final_layer.adaLN_modulation.1", dim, 2, *modulations};
  Linear final_linear{s / "final_layer.linear", dim, c.token_dim()};

  Tensor vector(const FluxInput& in) const {
    const auto sinusoids = [&](const Tensor& t) { return s.activation(timestep_embedding(t, int(kTimeFeatures))); };
    Tensor sum = time_in(sinusoids(in.timestep));
    if (guidance_in) sum = sum + (*guidance_in)(sinusoids(in.guidance * 1000.0f));
    return silu(sum + vector_in(s.activation(in.pooled)));
  }

  Tensor operator()(const FluxInput& in) const {
    check(bool(in.guidance) == c.guidance, "{}: {}", s.path(),
          c.guidance ? "the model is told its guidance, and none is given" : "the model is not told a guidance");
    const Conditioning of_step = modulations->of_step(vector(in), in.modulations);
    const JointAttention how{.heads = c.heads, .rotary = in.rotary, .ranges = in.ranges};
    Streams x{txt_in(s.activation(in.text)), img_in(s.activation(in.tokens))};
    BlockSchedule::Pass run = options.block_schedule.pass();
    for (const DoubleBlock& block : double_blocks) x = run(std::cref(block), x[0], x[1], of_step, how);
    const int64_t text = x[0].dim(1), all = text + x[1].dim(1);
    Tensor joint = cat({x[0], x[1]}, 1);
    for (const SingleBlock& block : single_blocks) joint = run(std::cref(block), joint, of_step, how);
    const std::vector<Tensor> m = final_modulation(of_step);
    const Tensor picture = split(joint, 1, {text, all - text})[1];
    return cast(final_linear(modulated_norm(picture, m[0], m[1])), DType::f32);
  }
};

FluxTransformer::FluxTransformer(Scope s, const FluxConfig& config, const FlowTransformerOptions& options)
    : model_(new Model{std::move(s), config, options}) {}
Tensor FluxTransformer::operator()(const FluxInput& in) const { return (*model_)(in); }
bool FluxTransformer::modulates_ahead() const { return model_->modulations->are_ahead(); }
Tensor FluxTransformer::modulations(const FluxInput& in) const { return (*model_->modulations)(model_->vector(in)); }

Rotary flux_rotary(const FluxPlaces& places, const FluxConfig& c, Memory& memory) {
  // Of a place on an axis, cosines before sines. Rows and columns are few, and each has its angles computed once.
  std::array<std::map<float, std::vector<float>>, 3> known;
  const auto angles_at = [&](size_t axis, float place) -> const std::vector<float>& {
    std::vector<float>& angles = known[axis][place];
    const auto count = size_t(c.axes[axis] / 2);
    if (!angles.empty()) return angles;
    angles.resize(2 * count);
    for (size_t i = 0; i < count; ++i) {
      const double angle = double(place) * std::pow(kTheta, -2 * double(i) / double(c.axes[axis]));
      angles[i] = float(std::cos(angle));
      angles[count + i] = float(std::sin(angle));
    }
    return angles;
  };
  std::vector<float> cos, sin;
  for (std::vector<float>* table : {&cos, &sin}) table->reserve(places.size() * size_t(c.head_dim) / 2);
  for (const std::array<float, 3>& place : places)
    for (size_t axis = 0; axis < 3; ++axis) {
      const std::vector<float>& angles = angles_at(axis, place[axis]);
      const auto middle = angles.begin() + std::ssize(angles) / 2;
      cos.insert(cos.end(), angles.begin(), middle);
      sin.insert(sin.end(), middle, angles.end());
    }
  const Shape table{int64_t(places.size()), c.head_dim / 2};
  return {Tensor::of(cos, table, memory), Tensor::of(sin, table, memory)};
}

Tensor flux_tokens(const Tensor& x) {
  const int64_t h = x.dim(1) / 2, w = x.dim(2) / 2, c = x.dim(3);
  const Tensor pixels = permute(reshape(x, {x.dim(0), h, 2, w, 2, c}), {0, 1, 3, 5, 2, 4});
  return reshape(contiguous(pixels), {x.dim(0), h * w, 4 * c});
}

Tensor flux_latents(const Tensor& tokens, int64_t height, int64_t width) {
  const int64_t c = tokens.dim(2) / 4;
  const Tensor pixels = permute(reshape(tokens, {tokens.dim(0), height / 2, width / 2, c, 2, 2}), {0, 1, 4, 2, 5, 3});
  return reshape(contiguous(pixels), {tokens.dim(0), height, width, c});
}

FluxPlaces flux_places(int64_t text, int64_t height, int64_t width) {
  FluxPlaces places(size_t(text), {0, 0, 0});
  for (int64_t row = 0; row < height / 2; ++row)
    for (int64_t column = 0; column < width / 2; ++column) places.push_back({0, float(row), float(column)});
  return places;
}

}  // namespace wick
