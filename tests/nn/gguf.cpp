// Language models in GGUF files: names, the order of rows, metadata, and Weights of every type.
#include "wick/nn/gguf_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "io/files.h"
#include "wick/backend/counting.h"
#include "wick/core/blocks.h"
#include "wick/core/rng.h"
#include "wick/io/config.h"
#include "wick/nn/checkpoint.h"
#include "wick/nn/layers.h"

namespace wick {
namespace {

using std::string;

constexpr int64_t kHeads = 4, kKeyHeads = 2, kHeadDim = 16, kHidden = 64;
const string kQ = "model.layers.0.self_attn.q_proj.weight", kK = "model.layers.0.self_attn.k_proj.weight",
             kV = "model.layers.0.self_attn.v_proj.weight";

Tensor noise(const Shape& shape, uint64_t seed = 1) {
  Rng rng(seed);
  return random_normal(shape, rng);
}

GgufEntry entry(const string& name, const Tensor& value) {
  return {name, value.dtype(), value.shape(), [value] { return value; }};
}

GgufMetadata::Entries facts(const string& architecture) {
  const string a = architecture + ".";
  return {{"general.architecture", architecture},
          {a + "block_count", uint32_t{1}},
          {a + "context_length", uint32_t{512}},
          {a + "embedding_length", uint32_t{kHidden}},
          {a + "feed_forward_length", uint32_t{96}},
          {a + "attention.head_count", uint32_t{kHeads}},
          {a + "attention.head_count_kv", uint32_t{kKeyHeads}},
          {a + "attention.layer_norm_rms_epsilon", 1e-5f},
          {a + "rope.freq_base", 500000.0f},
          {"tokenizer.ggml.bos_token_id", uint32_t{1}},
          {"tokenizer.ggml.eos_token_id", uint32_t{2}}};
}

// transformers' weights of one attention, in their order, and the same as the converter writes them.
struct Attention {
  Tensor q = noise({kHeads * kHeadDim, kHidden}, 1), k = noise({kKeyHeads * kHeadDim, kHidden}, 2),
         v = noise({kKeyHeads * kHeadDim, kHidden}, 3), bias = noise({kHeads * kHeadDim}, 4),
         table = noise({10, kHidden}, 5);

  std::vector<GgufEntry> entries(bool pairs, DType qk = DType::f32, DType of_v = DType::f32) const {
    const auto as = [](const Tensor& t, DType dtype) { return cast(t, dtype); };
    const auto order = [&](const Tensor& t, int64_t heads) { return pairs ? halves_to_pairs(t, heads) : t; };
    return {entry("token_embd.weight", as(table, qk)),
            entry("output_norm.weight", noise({kHidden}, 6)),
            entry("blk.0.attn_q.weight", as(order(q, kHeads), qk)),
            entry("blk.0.attn_q.bias", order(bias, kHeads)),
            entry("blk.0.attn_k.weight", as(order(k, kKeyHeads), qk)),
            entry("blk.0.attn_v.weight", as(v, of_v))};
  }
};

TEST(GgufModel, NamesAreThoseOfTheConverter) {
  const std::pair<string, string> pairs[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"},
      {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"blk.31.attn_q.weight", "model.layers.31.self_attn.q_proj.weight"},
      {"blk.7.attn_k.bias", "model.layers.7.self_attn.k_proj.bias"},
      {"blk.7.attn_v.weight", "model.layers.7.self_attn.v_proj.weight"},
      {"blk.7.attn_output.weight", "model.layers.7.self_attn.o_proj.weight"},
      {"blk.7.attn_q_norm.weight", "model.layers.7.self_attn.q_norm.weight"},
      {"blk.7.attn_k_norm.weight", "model.layers.7.self_attn.k_norm.weight"},
      {"blk.120.ffn_norm.weight", "model.layers.120.post_attention_layernorm.weight"},
      {"blk.7.ffn_gate.weight", "model.layers.7.mlp.gate_proj.weight"},
      {"blk.7.ffn_up.weight", "model.layers.7.mlp.up_proj.weight"},
      {"blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"}};
  for (const auto& [gguf, transformers] : pairs) EXPECT_EQ(gguf_name(transformers), gguf);
  for (const char* other :
       {"", ".weight", "blk.0.attn_q.weight", "model.layers.mlp.up_proj.weight", "model.layers.1mlp.up_proj.weight",
        "model.layers.1.", "model.layers.1", "model.layers.1.mlp.experts.weight", "model.layers.1.mlp.up_proj",
        "model.layers.1.mlp.up_proj.scale"})
    EXPECT_EQ(gguf_name(other), "") << other;
}

// convert_hf_to_gguf.py, LlamaModel.permute: [heads, 2, D/2] becomes [heads, D/2, 2].
TEST(GgufModel, RowsGoFromHalvesToPairs) {
  for (const DType dtype : {DType::f32, DType::q8_0}) {
    const Tensor w = cast(noise({kHeads * kHeadDim, kHidden}), dtype), pairs = halves_to_pairs(w, kHeads);
    const std::vector<float> from = w.to_vector(), to = pairs.to_vector();
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t half = 0; half < 2; ++half)
        for (int64_t i = 0; i < kHeadDim / 2; ++i)
          for (int64_t c = 0; c < kHidden; ++c)
            ASSERT_EQ(to[size_t((h * kHeadDim + 2 * i + half) * kHidden + c)],
                      from[size_t((h * kHeadDim + half * kHeadDim / 2 + i) * kHidden + c)]);
    EXPECT_EQ(pairs_to_halves(pairs, kHeads).to_vector(), from);
  }
  EXPECT_THROW(halves_to_pairs(noise({10, 4}), 4), Error);
  EXPECT_THROW(halves_to_pairs(noise({12, 4}), 4), Error);
}

TEST(GgufModel, WeightsHaveTransformersNamesAndOrder) {
  const TemporaryDirectory folder;
  const Attention attention;
  for (const string architecture : {"llama", "qwen2"}) {
    save_gguf(folder / "m.gguf", facts(architecture), attention.entries(architecture == "llama"));
    const Weights weights = Weights::open(folder / "m.gguf");
    EXPECT_EQ(weights.load(kQ, attention.q.shape()).to_vector(), attention.q.to_vector()) << architecture;
    EXPECT_EQ(weights.load(kK, attention.k.shape()).to_vector(), attention.k.to_vector()) << architecture;
    EXPECT_EQ(weights.load(kV, attention.v.shape()).to_vector(), attention.v.to_vector());
    EXPECT_EQ(weights.load("model.layers.0.self_attn.q_proj.bias", {kHeads * kHeadDim}).to_vector(),
              attention.bias.to_vector());
    EXPECT_TRUE(weights.has("model.embed_tokens.weight"));
    EXPECT_FALSE(weights.has("lm_head.weight"));
    expect_error([&] { weights.load("lm_head.weight", {1, 1}); }, {"m.gguf", "lm_head.weight"});
    expect_error([&] { weights.load("model.norm.weight", {3}); }, {"m.gguf", "model.norm.weight", "[3]", "[64]"});
  }
}

TEST(GgufModel, WeightsStayAsTheyAreStoredOrAreQuantised) {
  const TemporaryDirectory folder;
  const Attention attention;
  save_gguf(folder / "m.gguf", facts("llama"), attention.entries(true, DType::q8_0, DType::f16));
  const Weights stored = Weights::open(folder / "m.gguf", {.as_stored = true});
  const Tensor q = stored.load(kQ, attention.q.shape());
  EXPECT_EQ(q.dtype(), DType::q8_0);
  EXPECT_EQ(q.to_vector(), cast(attention.q, DType::q8_0).to_vector());
  EXPECT_EQ(stored.load(kV, attention.v.shape()).dtype(), DType::f16);
  EXPECT_EQ(stored.load("model.norm.weight", {kHidden}).dtype(), DType::f32);
  EXPECT_EQ(stored.load("model.embed_tokens.weight", {10, kHidden}).dtype(), DType::q8_0);

  const Weights four = Weights::open(folder / "m.gguf", {.dtype = DType::q4_0});
  EXPECT_EQ(four.load(kV, attention.v.shape()).dtype(), DType::q4_0);
  const Weights floats = Weights::open(folder / "m.gguf", {.dtype = DType::bf16});
  EXPECT_EQ(floats.load(kQ, attention.q.shape()).dtype(), DType::bf16);
  const Weights trainable = Weights::open(folder / "m.gguf", {.as_stored = true, .trainable = true});
  EXPECT_EQ(trainable.load(kQ, attention.q.shape()).dtype(), DType::f32);

  const Weights k = Weights::open(folder / "m.gguf", {.dtype = DType::q6_k});
  EXPECT_EQ(k.load(kV, attention.v.shape()).dtype(), DType::f32);  // rows that are not whole blocks
  const Weights narrow = Weights::of({{"w", noise({4, 40})}, {"c", noise({2, 3, 3, 3})}}, {.dtype = DType::q8_0});
  EXPECT_EQ(narrow.load("w", {4, 40}).dtype(), DType::f32);  // rows that are not whole blocks
  EXPECT_EQ(narrow.load_conv("c", {2, 3, 3, 3}).dtype(), DType::f32);
}

TEST(GgufModel, LinearsSideBySideOfOneTypeAndOfTwo) {
  const TemporaryDirectory folder;
  const Attention attention;
  const Tensor x = noise({3, kHidden}, 9);
  for (const DType of_v : {DType::q8_0, DType::q4_0}) {
    save_gguf(folder / "m.gguf", facts("llama"), attention.entries(true, DType::q8_0, of_v));
    const Scope s(Weights::open(folder / "m.gguf", {.as_stored = true}), "model");
    const Scope inner = s / "model" / "layers" / 0 / "self_attn";
    const Linear qkv = Linear::side_by_side(inner, kHidden, {{"q_proj", 64}, {"k_proj", 32}, {"v_proj", 32}}, false);
    const Tensor y = qkv(x);
    ASSERT_EQ(y.shape(), (Shape{3, 128}));
    const Tensor v = linear(x, cast(attention.v, of_v), {}), k = linear(x, cast(attention.k, DType::q8_0), {});
    EXPECT_EQ(slice(y, 1, 96, 128).to_vector(), v.to_vector());
    EXPECT_EQ(slice(y, 1, 64, 96).to_vector(), k.to_vector());
  }
}

TEST(GgufModel, OutlinesCountTheBytesOfBlocks) {
  CountingBackend backend(device_kind("cpu"));
  const Weights outline = Weights::outline({.dtype = DType::q4_0, .place = Residence::on(backend, DType::q4_0)});
  const Tensor w = outline.load("w", {1 << 14, 1 << 12});
  EXPECT_EQ(backend.memory().held(Purpose::weights), (size_t{1} << 26) / 32 * 18);
  const Tensor norm = outline.load("norm", {1 << 12});
  EXPECT_EQ(norm.dtype(), DType::f32);
}

TEST(GgufModel, TellsTheFactsOfAConfig) {
  const TemporaryDirectory folder;
  save_gguf(folder / "m.gguf", facts("llama"), Attention().entries(true));
  const Config c = Checkpoint(folder / "m.gguf").config();
  EXPECT_EQ(c.text("model_type"), "llama");
  EXPECT_EQ(c.integer("vocab_size"), 10);
  EXPECT_EQ(c.integer("hidden_size"), kHidden);
  EXPECT_EQ(c.integer("intermediate_size"), 96);
  EXPECT_EQ(c.integer("num_hidden_layers"), 1);
  EXPECT_EQ(c.integer("num_attention_heads"), kHeads);
  EXPECT_EQ(c.integer("num_key_value_heads"), kKeyHeads);
  EXPECT_EQ(c.integer("head_dim"), kHeadDim);
  EXPECT_EQ(c.integer("max_position_embeddings"), 512);
  EXPECT_FLOAT_EQ(float(c.number("rms_norm_eps")), 1e-5f);
  EXPECT_EQ(c.number("rope_theta"), 500000);
  EXPECT_TRUE(c.boolean("tie_word_embeddings"));
  EXPECT_TRUE(c.boolean("attention_bias"));
  EXPECT_FALSE(c.has("rope_scaling"));
  EXPECT_FALSE(c.has("sliding_window"));
  EXPECT_EQ(c.integer("bos_token_id"), 1);
  EXPECT_EQ(c.integer("eos_token_id"), 2);

  auto more = facts("llama");
  more.emplace_back("llama.attention.sliding_window", uint32_t{128});
  more.emplace_back("llama.rope.scaling.type", string("linear"));
  more.emplace_back("llama.rope.scaling.factor", 2.0f);
  more.emplace_back("tokenizer.ggml.eot_token_id", uint32_t{7});
  save_gguf(folder / "m.gguf", more, Attention().entries(true));
  const Config windowed = Checkpoint(folder / "m.gguf").config();
  EXPECT_EQ(windowed.text("model_type"), "mistral");
  EXPECT_EQ(windowed.integer("sliding_window"), 128);
  EXPECT_EQ(windowed.section("rope_scaling").text("rope_type"), "linear");
  EXPECT_EQ(windowed.section("rope_scaling").number("factor"), 2);
  EXPECT_EQ(windowed.integers("eos_token_id"), (std::vector<int64_t>{2, 7}));
}

// The factors that the converter writes for Llama 3.1 (8) and 3.2 (32).
Tensor llama3_factors(double factor, double theta, int64_t head_dim, double low = 1) {
  std::vector<float> factors;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double length = 2 * std::numbers::pi * std::pow(theta, 2.0 * double(i) / double(head_dim));
    const double smooth = (8192 / length - low) / (4 - low);
    factors.push_back(float(length < 8192 / 4.0   ? 1
                            : length > 8192 / low ? factor
                                                  : 1 / ((1 - smooth) / factor + smooth)));
  }
  return Tensor::of(factors, {head_dim / 2});
}

// llama.cpp's reading: linear unless a type is named, an old name of the key, and 0 for none.
TEST(GgufModel, PositionsAreStretchedAsLlamaCppDoes) {
  const TemporaryDirectory folder;
  const auto scaling = [&](const std::vector<std::pair<string, GgufValue>>& more, bool with_factors = false) {
    auto metadata = facts("llama");
    for (const auto& [key, value] : more) metadata.emplace_back("llama.rope." + key, value);
    auto entries = Attention().entries(true);
    if (with_factors) entries.push_back(entry("rope_freqs.weight", llama3_factors(8, 500000, kHeadDim)));
    save_gguf(folder / "m.gguf", metadata, entries);
    const Config c = Checkpoint(folder / "m.gguf").config();
    if (!c.has("rope_scaling")) return string("none");
    return c.section("rope_scaling").text("rope_type") + fmt::format(" {}", c.section("rope_scaling").number("factor"));
  };
  EXPECT_EQ(scaling({{"scaling.factor", 4.0f}}), "linear 4");
  EXPECT_EQ(scaling({{"scale_linear", 4.0f}}), "linear 4");
  EXPECT_EQ(scaling({{"scale_linear", 4.0f}, {"scaling.factor", 2.0f}}), "linear 2");
  EXPECT_EQ(scaling({{"scale_linear", 4.0f}, {"scaling.factor", 0.0f}}), "none");
  EXPECT_EQ(scaling({{"scaling.type", string("none")}, {"scaling.factor", 4.0f}}), "none");
  EXPECT_EQ(scaling({{"scaling.type", string("linear")}}), "none");
  EXPECT_EQ(scaling({{"scaling.factor", 1.0f}}), "none");
  EXPECT_EQ(scaling({{"scaling.type", string("yarn")}, {"scaling.factor", 4.0f}}),
            "yarn 4");  // refused by the caller
  EXPECT_EQ(scaling({}, true), "llama3 8");
  expect_error([&] { scaling({{"scale_linear", 4.0f}}, true); }, {"m.gguf", "twice", "llama.rope.scale_linear"});
  expect_error([&] { scaling({{"scaling.attn_factor", 2.0f}}); }, {"m.gguf", "llama.rope.scaling.attn_factor"});
}

TEST(GgufModel, FindsWhatTheFactorsOfFrequenciesComeFrom) {
  const TemporaryDirectory folder;
  auto metadata = facts("llama");
  metadata.emplace_back("llama.attention.key_length", uint32_t{128});
  const auto scaling = [&](const Tensor& factors) {
    auto entries = Attention().entries(false);
    entries.push_back(entry("rope_freqs.weight", factors));
    save_gguf(folder / "m.gguf", metadata, entries);
    return Checkpoint(folder / "m.gguf").config();
  };
  for (const double factor : {8.0, 32.0}) {
    const Config rope = scaling(llama3_factors(factor, 500000, 128)).section("rope_scaling");
    EXPECT_EQ(rope.text("rope_type"), "llama3");
    EXPECT_EQ(rope.number("factor"), factor);
    EXPECT_EQ(rope.number("low_freq_factor"), 1);
    EXPECT_EQ(rope.number("high_freq_factor"), 4);
    EXPECT_EQ(rope.integer("original_max_position_embeddings"), 8192);
  }
  EXPECT_FALSE(scaling(llama3_factors(1, 500000, 128)).has("rope_scaling"));
  expect_error([&] { scaling(llama3_factors(8, 500000, 128, 2)); }, {"m.gguf", "rope_freqs.weight"});
  expect_error([&] { scaling(llama3_factors(8, 500000, 64)); }, {"m.gguf", "rope_freqs.weight", "64 factors"});
}

// No number that follows from nonsense is shown.
TEST(GgufModel, FactorsThatNoScalingHasAreToldAsTheyAre) {
  const TemporaryDirectory folder;
  const auto refuses = [&](float value, const std::vector<std::pair<string, GgufValue>>& more,
                           std::initializer_list<std::string_view> parts) {
    auto metadata = facts("llama");
    metadata.emplace_back("llama.attention.key_length", uint32_t{128});
    for (const auto& [key, number] : more) {
      std::erase_if(metadata, [&, &key = key](const auto& entry) { return entry.first == key; });
      metadata.emplace_back(key, number);
    }
    const Tensor factors = llama3_factors(8, 500000, 128);
    factors.data<float>()[0] = value;
    auto entries = Attention().entries(false);
    entries.push_back(entry("rope_freqs.weight", factors));
    save_gguf(folder / "m.gguf", metadata, entries);
    expect_error([&] { Checkpoint(folder / "m.gguf").config(); }, parts);
    try {
      Checkpoint(folder / "m.gguf").config();
    } catch (const Error& e) {
      EXPECT_EQ(string(e.what()).find("-nan"), string::npos) << e.what();
      EXPECT_EQ(string(e.what()).find("by -0"), string::npos) << e.what();
    }
  };
  const float inf = std::numeric_limits<float>::infinity();
  for (const float value : {inf, 1e30f, 1e6f}) refuses(value, {}, {"m.gguf", "rope_freqs.weight", "Llama 3's scaling"});
  for (const float base : {0.0f, -1.0f})
    refuses(8, {{"llama.rope.freq_base", base}}, {"m.gguf", "llama.rope.freq_base", "above 0"});
  refuses(8, {{"llama.rope.freq_base", ~uint64_t{0}}}, {"m.gguf"});
  refuses(8, {{"llama.attention.head_count", ~uint64_t{0}}},
          {"m.gguf", "from 1 to 2147483647", "18446744073709551615"});
}

TEST(GgufModel, SaysWhatItDoesNotSupport) {
  const TemporaryDirectory folder;
  const auto refused = [&](GgufMetadata::Entries metadata, std::vector<GgufEntry> entries,
                           std::initializer_list<std::string_view> parts) {
    save_gguf(folder / "m.gguf", metadata, entries);
    expect_error([&] { Checkpoint(folder / "m.gguf").config(); }, parts);
  };
  refused({{"general.architecture", string("mamba")}}, {}, {"m.gguf", "\"mamba\"", "llama, qwen2 and qwen3"});
  refused({}, {}, {"m.gguf", "general.architecture", "missing"});
  refused(facts("qwen3"), {}, {"m.gguf", "token_embd.weight"});
  auto experts = facts("llama");
  experts.emplace_back("llama.expert_count", uint32_t{8});
  refused(experts, Attention().entries(true), {"m.gguf", "experts"});
}

}  // namespace
}  // namespace wick
