#include "wick/models/llama_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "wick/core/error.h"
#include "wick/io/quote.h"
#include "wick/models/supported.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

// So that a cache of all positions has no size that overflows.
constexpr IntegerRange kPositions{1, 1 << 26}, kHeads{1, 1 << 16};
// Values that no model has are mistakes, and would become 0 or infinite in f32.
constexpr NumberRange kTheta{1e-6, 1e15}, kFactor{1e-6, 1e6}, kDeviation{0, 1e3};

constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";
constexpr const char *kTable = "model.embed_tokens.weight", *kHead = "lm_head.weight";

// The families' differences that their configs do not state.
struct Family {
  const char *model_type, *architecture;
  bool qkv_bias;    // always; else attention_bias tells, if the family has it
  bool has_biases;  // attention_bias
  bool qk_norm;
  int64_t head_dim;  // unless given; 0: hidden_size / num_attention_heads
};

constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", false, true, false, 0},
    {"mistral", "MistralForCausalLM", false, false, false, 0},
    {"qwen2", "Qwen2ForCausalLM", true, false, false, 0},
    {"qwen3", "Qwen3ForCausalLM", false, true, true, 128},
};

const Family& family_of(const Config& config) {
  const std::string type = config.text_or("model_type", "");
  const auto found =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return type == f.model_type; });
  check(found != std::end(kFamilies), "{}: model_type is {}; Wick supports llama, mistral, qwen2 and qwen3",
        config.source(), quote(type));
  if (config.has("architectures")) {
    const std::vector<std::string> names = config.texts("architectures");
    check(names.size() == 1 && names.front() == found->architecture, "{}: architectures holds {}; Wick supports {}",
          config.source(), names.empty() ? "nothing" : quote(names.front()), found->architecture);
  }
  return *found;
}

RopeScaling read_scaling(const Config& config, int64_t positions) {
  RopeScaling scaling;
  const std::string kind = config.has("rope_type") ? config.text("rope_type") : config.text_or("type", "default");
  if (kind == "default") return scaling;
  check(kind == "linear" || kind == "llama3",
        "{}: the rope scaling is {}; Wick supports \"linear\" and \"llama3\" (and none)", config.source(), quote(kind));
  scaling.factor = config.number("factor", kFactor);
  scaling.kind = RopeScaling::Kind::linear;
  if (kind == "linear") return scaling;
  scaling.kind = RopeScaling::Kind::llama3;
  scaling.low_frequency = config.number("low_freq_factor", kFactor);
  scaling.high_frequency = config.number("high_freq_factor", kFactor);
  check(scaling.high_frequency > scaling.low_frequency, "{}: high_freq_factor {} should be above low_freq_factor {}",
        config.source(), scaling.high_frequency, scaling.low_frequency);
  scaling.original_positions = double(config.integer_or("original_max_position_embeddings", positions, kPositive));
  return scaling;
}

// transformers 5 writes rope_parameters; older versions wrote rope_scaling beside rope_theta. It takes rope_scaling
// where there are both, and rope_theta from within, else from beside them, else 10000 (modeling_rope_utils.py,
// RotaryEmbeddingConfigMixin.convert_rope_params_to_dict).
void read_rope(LlamaConfig& c, const Config& config) {
  only(config, "partial_rotary_factor", 1.0);
  c.rope_theta = config.number_or("rope_theta", 10000, kTheta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.has(key) || config.section(key).empty()) continue;
    const Config rope = config.section(key);
    for (const char* kind : {kFull, kSliding}) only_absent(rope, kind);  // each kind of layers with its own
    only(rope, "partial_rotary_factor", 1.0);
    c.rope_theta = rope.number_or("rope_theta", c.rope_theta, kTheta);
    c.rope_scaling = read_scaling(rope, c.positions);
    break;
  }
}

// The layers that see a window: all or none in Mistral, those from one layer on in Qwen, unless all are listed. A
// Mistral whose layers are listed is a Ministral (transformers, AutoConfig.from_pretrained).
void read_windows(LlamaConfig& c, const Config& config) {
  const bool mistral = c.model_type == "mistral", qwen = c.model_type.starts_with("qwen");
  const IntegerRange range{0, kPositive.max};
  int64_t window = 0, first = 0;
  if (mistral) {  // a null is none
    window = config.mentions("sliding_window") ? config.integer_or("sliding_window", 0, range) : 4096;
  } else if (qwen && config.boolean_or("use_sliding_window", false)) {
    window = config.integer_or("sliding_window", 0, range);
    first = config.integer_or("max_window_layers", 28, range);
  }
  for (int i = 0; i < c.layers; ++i) c.windowed.push_back(window > 0 && i >= first);
  if ((mistral || qwen) && config.has("layer_types")) {
    const std::vector<std::string> types = config.texts("layer_types");
    check(types.size() == c.windowed.size(), "{}: layer_types should hold {} kinds of layers, found {}",
          config.source(), c.layers, types.size());
    for (size_t i = 0; i < types.size(); ++i) {
      c.windowed[i] = types[i] == kSliding;
      check(c.windowed[i] || types[i] == kFull, "{}: layer_types[{}] is {}; Wick supports {} and {}", config.source(),
            i, quote(types[i]), kFull, kSliding);
      check(window > 0 || !c.windowed[i], "{}: layer_types[{}] is {}, but there is no sliding_window", config.source(),
            i, kSliding);
    }
  }
  if (std::find(c.windowed.begin(), c.windowed.end(), true) != c.windowed.end()) c.window = window;
}

void read_attention(LlamaConfig& c, const Config& config, const Family& family) {
  c.heads = int(config.integer("num_attention_heads", kHeads));
  c.kv_heads = int(config.integer_or("num_key_value_heads", c.heads, kHeads));
  check(c.heads % c.kv_heads == 0, "{}: num_key_value_heads {} does not divide num_attention_heads {}", config.source(),
        c.kv_heads, c.heads);
  if (!config.has("head_dim") && family.head_dim == 0)
    check(c.hidden % c.heads == 0, "{}: num_attention_heads {} does not divide hidden_size {}", config.source(),
          c.heads, c.hidden);
  c.head_dim =
      config.integer_or("head_dim", family.head_dim > 0 ? family.head_dim : c.hidden / c.heads, {2, kExtent.max});
  check(c.head_dim % 2 == 0, "{}: head_dim should be even, found {}", config.source(), c.head_dim);
  check(c.heads * c.head_dim <= kExtent.max, "{}: num_attention_heads {} x head_dim {} is more than {}",
        config.source(), c.heads, c.head_dim, kExtent.max);
  const bool biases = family.has_biases && config.boolean_or("attention_bias", false);
  c.qkv_bias = family.qkv_bias || biases;
  c.output_bias = biases;
  c.qk_norm = family.qk_norm;
}

void add_ids(std::vector<int64_t>& ids, const Config& config, const std::string& key, int64_t vocab) {
  if (!config.has(key)) return;
  for (const int64_t id : config.integer_or_list(key, {0, vocab - 1}))
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

std::vector<double> plain_frequencies(const LlamaConfig& c) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < c.head_dim; i += 2)
    frequencies.push_back(1 / std::pow(float(c.rope_theta), float(i) / float(c.head_dim)));
  return frequencies;
}

// A config may tie the head to the table though the files have a separate head: transformers 5 then takes the files'
// (PreTrainedModel.tie_weights).
bool has_other_head(const Checkpoint& model) {
  if (!model.has_weights()) return false;
  const Weights files = model.weights();
  return files.has(kHead) && files.has(kTable) && !files.is_copy(kHead, kTable);
}

// llama3: waves longer than the original context are stretched by the factor, short ones stay, and those between mix.
double scale_of(const RopeScaling& s, double frequency) {
  if (s.kind == RopeScaling::Kind::none) return 1;
  if (s.kind == RopeScaling::Kind::linear) return 1 / s.factor;
  const double waves = s.original_positions * frequency / (2 * std::numbers::pi);
  const double stretched = 1 - std::clamp((waves - s.low_frequency) / (s.high_frequency - s.low_frequency), 0.0, 1.0);
  return stretched / s.factor + (1 - stretched);
}

}  // namespace

LlamaConfig LlamaConfig::parse(const Config& config) {
  const Family& family = family_of(config);
  check_quantization(config);
  only(config, "hidden_act", "silu");
  LlamaConfig c{};
  c.model_type = family.model_type;
  c.vocab = config.integer("vocab_size", kExtent);
  c.hidden = config.integer("hidden_size", kExtent);
  c.intermediate = config.integer("intermediate_size", kExtent);
  c.layers = int(config.integer("num_hidden_layers", kPartCount));
  c.positions = config.integer_or("max_position_embeddings", 2048, kPositions);
  c.eps = float(config.number_or("rms_norm_eps", 1e-6, kEpsilon));
  c.initializer_range = float(config.number_or("initializer_range", 0.02, kDeviation));
  c.attention_dropout = config.number_or("attention_dropout", 0, {0, 1});
  c.mlp_bias = c.model_type == "llama" && config.boolean_or("mlp_bias", false);
  c.tied = config.boolean_or("tie_word_embeddings", false);
  read_attention(c, config, family);
  read_rope(c, config);
  read_windows(c, config);
  add_ids(c.bos_ids, config, "bos_token_id", c.vocab);
  add_ids(c.eos_ids, config, "eos_token_id", c.vocab);
  return c;
}

LlamaConfig LlamaConfig::read(const Checkpoint& model) {
  LlamaConfig c = parse(model.config());
  if (model.is_gguf()) return c;
  c.tied = c.tied && !has_other_head(model);
  const fs::path generation = model.path() / "generation_config.json";
  if (fs::exists(generation)) add_ids(c.eos_ids, Config::read(generation), "eos_token_id", c.vocab);
  return c;
}

bool LlamaConfig::is_here(const Checkpoint& model) {
  if (model.is_gguf() || model.is_pipeline()) return model.is_gguf();
  return model.has_config() && model.config().has("model_type");
}

std::vector<float> LlamaConfig::rope_frequencies() const {
  std::vector<float> frequencies;
  for (const double frequency : plain_frequencies(*this))
    frequencies.push_back(float(frequency * scale_of(rope_scaling, frequency)));
  return frequencies;
}

std::vector<float> LlamaConfig::rope_factors() const {
  std::vector<float> factors;
  if (rope_scaling.kind != RopeScaling::Kind::llama3) return factors;
  for (const double frequency : plain_frequencies(*this))
    factors.push_back(float(1 / scale_of(rope_scaling, frequency)));
  return factors;
}

}  // namespace wick
