// Language models against transformers and peft: at once, step by step with a cache, ragged, packed, with a LoRA.
#include "wick/models/llama.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "device.h"
#include "io/files.h"
#include "source_dir.h"
#include "wick/io/safetensors.h"
#include "wick/pipelines/forward.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = test::source_dir() / "tests/golden/llama";
const std::vector<std::string> kFamilies = {"mistral", "llama2", "llama3", "llama_linear", "qwen2", "qwen3"};

// max |a - b| / max |b|
double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error = std::max(error, std::isnan(a[i]) ? INFINITY : std::abs(double(a[i]) - double(b[i])));
    largest = std::max(largest, std::abs(double(b[i])));
  }
  return error / largest;
}

Tensor golden(const std::string& family, const std::string& file, const std::string& tensor) {
  return SafetensorsFile::open(kGolden / family / (file + ".safetensors")).load(tensor);
}

Tensor rows_of(const Tensor& x, int64_t row, int64_t begin, int64_t end) {
  return contiguous(slice(slice(x, 0, row, row + 1), 1, begin, end));
}

class LlamaGolden : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { cpu_backend(); }
};

INSTANTIATE_TEST_SUITE_P(Families, LlamaGolden, testing::ValuesIn(kFamilies), [](const auto& i) { return i.param; });

// `wick forward` on a case; masked tokens are dropped.
void check_forward(const std::string& family, const std::string& name, bool grad) {
  const TemporaryDirectory folder;
  const fs::path in = kGolden / family / (name + ".in.safetensors");
  std::vector<LoraFile> loras;
  if (grad) loras.push_back({kGolden / family / "adapter"});
  run_forward(kGolden / family, "", in, folder / "out.safetensors",
              {.loras = loras, .grad = grad, .backend = &test::backend()});
  const SafetensorsFile inputs = SafetensorsFile::open(in), found = SafetensorsFile::open(folder / "out.safetensors");
  const SafetensorsFile want = SafetensorsFile::open(kGolden / family / (name + ".out.safetensors"));
  EXPECT_EQ(found.tensors().size(), want.tensors().size());
  double worst_output = 0, worst_gradient = 0;
  for (const auto& [key, info] : want.tensors()) {
    ASSERT_TRUE(found.has(key)) << key;
    std::vector<float> values = found.load(key).to_vector();
    if (key == "logits" && inputs.has("attention_mask")) {
      const std::vector<float> mask = inputs.load("attention_mask").to_vector();
      const size_t width = values.size() / mask.size();
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_TRUE(std::isfinite(values[i]));
        values[i] = mask[i / width] == 0 ? 0 : values[i];
      }
    }
    const double error = relative_error(values, want.load(key).to_vector());
    const bool gradient = key.starts_with("grad.");
    EXPECT_LE(error, gradient ? 1e-3 : 1e-4) << key;
    double& worst = gradient ? worst_gradient : worst_output;
    worst = std::max(worst, error);
  }
  std::printf("%-12s %-8s outputs %.1e  gradients %.1e\n", family.c_str(), name.c_str(), worst_output, worst_gradient);
}

TEST_P(LlamaGolden, Prefill) { check_forward(GetParam(), "prefill", false); }
TEST_P(LlamaGolden, RaggedBatch) { check_forward(GetParam(), "ragged", false); }
TEST_P(LlamaGolden, LoraGradients) { check_forward(GetParam(), "grad", true); }

// Two sequences whose prompts differ in length, then in pieces of several tokens, one, and none.
TEST_P(LlamaGolden, StepByStep) {
  const Llama model = Llama::load(kGolden / GetParam(), {.backend = &test::backend()});
  const Tensor ids = golden(GetParam(), "prefill.in", "input_ids"), want = golden(GetParam(), "prefill.out", "logits");
  KvCache cache(model.config(), 2, 40, model.place());
  for (const std::vector<int64_t>& counts :
       std::vector<std::vector<int64_t>>{{9, 4}, {1, 1}, {1, 0}, {3, 7}, {0, 1}, {1, 1}, {1, 1}, {13, 1}, {0, 13}}) {
    const int64_t tokens = std::max(counts[0], counts[1]);
    std::vector<int64_t> batch(size_t(2 * tokens), 0);
    int64_t begin[2];
    for (int64_t b : {0, 1}) {
      begin[b] = cache.length(b);
      for (int64_t t = 0; t < counts[size_t(b)]; ++t)
        batch[size_t(b * tokens + t)] = ids.data<int64_t>()[b * ids.dim(1) + begin[b] + t];
    }
    const TokenPlan plan = cache.extend(counts);
    const Tensor on_device = Tensor::of(batch, {2, tokens}, test::memory());
    const Tensor logits = model.logits(model(on_device, plan, &cache)).to(host_memory());
    for (int64_t b : {0, 1}) {
      const int64_t count = counts[size_t(b)];
      if (count == 0) continue;
      EXPECT_LE(relative_error(rows_of(logits, b, 0, count).to_vector(),
                               rows_of(want, b, begin[b], begin[b] + count).to_vector()),
                1e-4)
          << "sequence " << b << " from " << begin[b];
    }
  }
  EXPECT_EQ(cache.length(0), 29);
}

// The results do not depend on the tokens that the last layer leaves out of a prompt's first piece.
TEST_P(LlamaGolden, LastTokenOfPieces) {
  const Llama model = Llama::load(kGolden / GetParam(), {.backend = &test::backend()});
  const Tensor ids = golden(GetParam(), "prefill.in", "input_ids"), want = golden(GetParam(), "prefill.out", "logits");
  KvCache cache(model.config(), 2, 40, model.place());
  for (const auto& [begin, end] : {std::pair{0, 20}, {20, 28}, {28, 29}}) {
    const TokenPlan plan = cache.extend({end - begin, end - begin});
    const Tensor hidden = model.last(contiguous(slice(ids, 1, begin, end)), plan, &cache);
    EXPECT_LE(relative_error(model.logits(hidden).to(host_memory()).to_vector(),
                             contiguous(slice(want, 1, end - 1, end)).to_vector()),
              1e-4)
        << "token " << end - 1;
  }
}

// Each document of a packed row gives its result alone, and the row the gradients of their sum.
TEST_P(LlamaGolden, PackedDocumentsDoNotSeeEachOther) {
  Adapter lora(llama_module_names());
  lora.add_file(kGolden / GetParam() / "adapter", 1, /*trainable=*/true);
  const Llama model = Llama::load(kGolden / GetParam(), {.adapter = &lora});
  const LlamaConfig& c = model.config();
  const Tensor ids = golden(GetParam(), "prefill.in", "input_ids");  // [2, 29]
  const auto loss_of = [&](const Tensor& tokens, const TokenPlan& plan) {
    const Tensor targets = Tensor::of(std::vector<int64_t>(size_t(tokens.numel()), 3), {tokens.numel()});
    return model.loss(model(tokens, plan), {targets, full({tokens.numel()}, 0.125f)});
  };
  std::map<std::string, Tensor> apart, packed;
  double loss_apart = 0, loss_packed = 0;
  {
    Tape tape;
    const Tensor first = slice(ids, 1, 0, 18);
    const Tensor loss = loss_of(contiguous(slice(first, 0, 0, 1)), TokenPlan::dense(1, 18, c)) +
                        loss_of(contiguous(slice(slice(ids, 0, 1, 2), 1, 0, 11)), TokenPlan::dense(1, 11, c));
    loss_apart = loss.item();
    apart = lora.gradients(tape.backward(loss));
  }
  {
    Tape tape;
    const Tensor row = contiguous(cat({slice(slice(ids, 0, 0, 1), 1, 0, 18), slice(slice(ids, 0, 1, 2), 1, 0, 11)}, 1));
    const Tensor loss = loss_of(row, TokenPlan(1, 29, {{0, 0, 18}, {0, 18, 29}}, c, false, host_memory()));
    loss_packed = loss.item();
    packed = lora.gradients(tape.backward(loss));
  }
  EXPECT_NEAR(loss_packed, loss_apart, 1e-5 * std::abs(loss_apart));
  ASSERT_EQ(packed.size(), apart.size());
  for (const auto& [name, gradient] : apart)
    EXPECT_LE(relative_error(packed.at(name).to_vector(), gradient.to_vector()), 1e-4) << name;
}

TEST_P(LlamaGolden, CheckpointingChangesNoBit) {
  std::map<std::string, Tensor> gradients[2];
  for (const bool checkpointing : {false, true}) {
    Adapter lora(llama_module_names());
    lora.add_file(kGolden / GetParam() / "adapter", 1, /*trainable=*/true);
    const Llama model = Llama::load(
        kGolden / GetParam(), {.adapter = &lora, .block_schedule = BlockSchedule::recomputing_all(checkpointing)});
    const Tensor ids = golden(GetParam(), "prefill.in", "input_ids");
    Tape tape;
    const Tensor hidden = model(ids, TokenPlan::dense(2, 29, model.config()));
    const Tensor loss = model.loss(hidden, TokenTargets::mean(ids, model.config().vocab));
    gradients[checkpointing] = lora.gradients(tape.backward(loss));
  }
  for (const auto& [name, gradient] : gradients[0])
    EXPECT_EQ(gradient.to_vector(), gradients[1].at(name).to_vector()) << name;
}

TEST_P(LlamaGolden, MemoryIsWhatTheConfigSays) {
  const LlamaConfig config = LlamaConfig::read(kGolden / GetParam());
  const size_t before = host_memory().held(Purpose::weights);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Llama model = Llama::load(kGolden / GetParam(), {.dtype = dtype});
    EXPECT_EQ(host_memory().held(Purpose::weights) - before, estimate_model_memory(config, dtype));
  }
  const size_t data = host_memory().held(Purpose::data);
  const KvCache cache(config, 3, 50, {});
  EXPECT_EQ(host_memory().held(Purpose::data) - data, estimate_kv_cache_memory(config, 3, 50, DType::f32));
}

// A head with a LoRA takes another way to its loss.
TEST(Llama, AdaptedHead) {
  cpu_backend();
  Adapter lora({.rank = 2, .targets = {"*.lm_head"}}, llama_module_names());
  const Llama model = Llama::load(kGolden / "llama3", {.adapter = &lora});
  for (const Parameter& p : lora.parameters()) p.value.backend().fill(p.value, 0.1f);
  const Tensor ids = golden("llama3", "prefill.in", "input_ids");
  const TokenTargets targets = TokenTargets::mean(ids, model.config().vocab);
  const TokenPlan plan = TokenPlan::dense(2, 29, model.config());
  const auto differentiate = [&](auto loss_of) {
    Tape tape;
    const Tensor loss = loss_of(model(ids, plan));
    return std::pair(loss.item(), lora.gradients(tape.backward(loss)));
  };
  const auto [chunked, gradients] = differentiate([&](const Tensor& h) { return model.loss(h, targets); });
  const auto [plain, want] = differentiate([&](const Tensor& h) { return cross_entropy(model.logits(h), targets); });
  EXPECT_NEAR(chunked, plain, 1e-5);
  ASSERT_EQ(gradients.size(), 2u);
  for (const auto& [name, gradient] : want)
    EXPECT_LE(relative_error(gradients.at(name).to_vector(), gradient.to_vector()), 1e-5) << name;
}

TEST(KvCache, FullAndTruncated) {
  cpu_backend();
  const Llama model = Llama::load(kGolden / "mistral");
  KvCache cache(model.config(), 1, 12, model.place());
  const auto run = [&](int64_t id) {
    return model.logits(model(Tensor::of(std::vector<int64_t>{id}, {1, 1}), cache.extend({1}), &cache)).to_vector();
  };
  for (int64_t id = 0; id < 9; ++id) run(id);
  const std::vector<float> once = run(40);
  run(41);
  cache.truncate(0, 9);
  EXPECT_EQ(run(40), once);
  run(41);
  run(42);
  expect_error([&] { cache.extend({1}); }, {"context is full", "12"});
  EXPECT_EQ(cache.length(0), 12);
  expect_error([&] { cache.truncate(0, 13); }, {"12", "13"});
}

TEST(TokenPlan, MasksWithHolesAreRefused) {
  const LlamaConfig config = LlamaConfig::read(kGolden / "llama2");
  const auto mask = [](std::vector<int64_t> values) { return Tensor::of(values, {1, int64_t(values.size())}); };
  EXPECT_EQ(TokenPlan::masked(mask({0, 1, 1, 0}), config).ranges.to_vector(),
            (std::vector<float>{0, 0, 1, 2, 1, 3, 3, 3}));
  EXPECT_EQ(TokenPlan::masked(mask({0, 0}), config).ranges.to_vector(), (std::vector<float>{0, 0, 0, 0}));
  expect_error([&] { TokenPlan::masked(mask({1, 0, 1}), config); }, {"attention_mask", "row 0"});
}

// The config of a family with one key replaced.
void expect_refused(const std::string& family, const std::string& key, const std::string& value,
                    std::initializer_list<std::string_view> parts) {
  std::string text = read_plain(kGolden / family / "config.json");
  text.insert(text.find('{') + 1, fmt::format("\"{}\": {},", key, value));  // the first of two counts
  const size_t own = text.find("\"" + key + "\"", text.find(value));
  if (own != text.npos) text.replace(own, key.size() + 2, "\"_\"");
  SCOPED_TRACE(key + " " + value);
  expect_error([&] { LlamaConfig::parse(Config::parse(text, "some/config.json")); }, parts);
}

TEST(LlamaConfig, NamesWhatIsNotSupported) {
  expect_refused("llama2", "model_type", "\"gemma2\"", {"some/config.json", "model_type", "gemma2", "qwen3"});
  expect_refused("llama2", "architectures", "[\"LlamaForSequenceClassification\"]",
                 {"architectures", "LlamaForSequenceClassification", "LlamaForCausalLM"});
  expect_refused("llama2", "hidden_act", "\"gelu\"", {"hidden_act", "gelu", "silu"});
  expect_refused("llama2", "quantization_config", "{\"bits\": 4}", {"quantization_config", "no quant_method"});
  expect_refused("llama2", "quantization_config", "{\"quant_method\": \"awq\", \"bits\": 4}", {"\"awq\"", "nf4"});
  expect_refused("llama2", "quantization_config", "{\"quant_method\": \"gptq\"}", {"\"gptq\""});
  expect_refused("llama2", "quantization_config",
                 "{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"int4\"}",
                 {"\"bitsandbytes\" with \"int4\""});
  expect_refused("llama2", "quantization_config",
                 "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}",
                 {"\"compressed-tensors\" with \"pack-quantized\"", "float-quantized"});
  expect_refused("llama2", "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}", {"yarn", "llama3"});
  expect_refused("llama2", "rope_scaling", "{\"type\": \"dynamic\", \"factor\": 4}", {"dynamic", "linear"});
  expect_refused("llama2", "rope_scaling", "{\"type\": \"linear\", \"factor\": 0}", {"rope_scaling.factor", "found 0"});
  expect_refused("llama2", "partial_rotary_factor", "0.5", {"partial_rotary_factor", "0.5"});
  expect_refused("llama2", "num_key_value_heads", "3", {"num_key_value_heads", "3", "4"});
  expect_refused("llama2", "head_dim", "7", {"head_dim", "7"});
  expect_refused("llama2", "eos_token_id", "97", {"eos_token_id", "96"});
  expect_refused("llama2", "vocab_size", "0", {"vocab_size"});
  expect_refused("llama2", "hidden_size", "1000000000000", {"hidden_size", "2097152"});
  expect_refused("llama2", "num_attention_heads", "100000", {"num_attention_heads", "65536"});
  expect_refused("qwen2", "layer_types", "[\"full_attention\"]", {"layer_types", "3", "1"});
  expect_refused("qwen2", "layer_types", "[\"full_attention\", \"linear_attention\", \"full_attention\"]",
                 {"layer_types[1]", "linear_attention"});
}

TEST(LlamaConfig, ReadsWhatFamiliesDifferIn) {
  const LlamaConfig mistral = LlamaConfig::read(kGolden / "mistral"), qwen2 = LlamaConfig::read(kGolden / "qwen2");
  EXPECT_EQ(mistral.window, 7);
  EXPECT_EQ(mistral.head_dim, 10);
  EXPECT_EQ(qwen2.windowed, (std::vector<bool>{false, true, true}));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.output_bias && qwen2.tied);
  EXPECT_TRUE(LlamaConfig::read(kGolden / "qwen3").qk_norm);
  EXPECT_EQ(LlamaConfig::read(kGolden / "llama3").eos_ids, (std::vector<int64_t>{2, 5}));
  // transformers 5 keeps the former rope_theta and rope_scaling in one place.
  const LlamaConfig five = LlamaConfig::parse(Config::parse(
      R"({"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 2, "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4}})",
      "config.json"));
  EXPECT_EQ(five.rope_theta, 5e5);
  EXPECT_EQ(five.rope_frequencies().front(), 0.25f);
}

LlamaConfig parse(const std::string& more) {
  return LlamaConfig::parse(Config::parse(
      R"({"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, )" +
          more + "}",
      "config.json"));
}

// A mistral with layer_types is a ministral in transformers' AutoConfig.
TEST(LlamaConfig, LayersOfMistralAreListed) {
  const std::string mistral = R"("model_type": "mistral", "sliding_window": 4, )";
  const LlamaConfig mixed =
      parse(mistral + R"("layer_types": ["sliding_attention", "full_attention", "sliding_attention"])");
  EXPECT_EQ(mixed.windowed, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(mixed.window, 4);
  const LlamaConfig full = parse(mistral + R"("layer_types": ["full_attention", "full_attention", "full_attention"])");
  EXPECT_EQ(full.windowed, std::vector<bool>(3, false));
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(parse(mistral + R"("layer_types": null)").windowed, std::vector<bool>(3, true));
  EXPECT_EQ(parse(R"("model_type": "mistral")").window, 4096);
  EXPECT_EQ(parse(R"("model_type": "mistral", "sliding_window": null)").window, 0);
  expect_error(
      [&] {
        parse(R"("model_type": "mistral", "sliding_window": null,
                 "layer_types": ["full_attention", "sliding_attention", "full_attention"])");
      },
      {"config.json: layer_types[1]", "no sliding_window"});
}

// transformers 5.23, RotaryEmbeddingConfigMixin.convert_rope_params_to_dict.
TEST(LlamaConfig, PositionsAreThoseOfTransformers5) {
  const std::string llama = R"("model_type": "llama", )";
  EXPECT_EQ(parse(llama + R"("rope_parameters": {"rope_type": "default"})").rope_theta, 10000);
  EXPECT_EQ(parse(llama + R"("rope_theta": 7, "rope_parameters": {"rope_type": "default"})").rope_theta, 7);
  EXPECT_EQ(parse(llama + R"("rope_theta": 7, "rope_parameters": {"rope_theta": 5})").rope_theta, 5);
  const LlamaConfig both =
      parse(llama + R"("rope_theta": 7, "rope_parameters": {"rope_theta": 5, "rope_type": "default"},
                                           "rope_scaling": {"type": "linear", "factor": 4})");
  EXPECT_EQ(both.rope_theta, 7);
  EXPECT_EQ(both.rope_frequencies().front(), 0.25f);
  const LlamaConfig empty =
      parse(llama + R"("rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": {})");
  EXPECT_EQ(empty.rope_frequencies().front(), 0.5f);
  expect_error([&] { parse(llama + R"("rope_parameters": {"partial_rotary_factor": 0.5})"); },
               {"partial_rotary_factor"});
}

// transformers 5, PreTrainedModel.tie_weights: the file may have a head that differs from the table.
TEST(Llama, AHeadOfItsOwnIsTakenThoughTheConfigTiesIt) {
  const TemporaryDirectory folder;
  const fs::path model = folder / "model";
  fs::copy(kGolden / "mistral", model, fs::copy_options::recursive);
  const auto logits = [&] {
    run_forward(model, "llama", model / "prefill.in.safetensors", folder / "out", {});
    return SafetensorsFile::open(folder / "out").load("logits").to_vector();
  };
  const std::vector<float> untied = logits();
  nlohmann::json config = nlohmann::json::parse(read_plain(model / "config.json"));
  ASSERT_FALSE(config.at("tie_word_embeddings").get<bool>());
  config["tie_word_embeddings"] = true;
  write_plain(model / "config.json", config.dump());
  EXPECT_FALSE(LlamaConfig::read(model).tied);
  EXPECT_EQ(logits(), untied);

  const SafetensorsFile file = SafetensorsFile::open(model / "model.safetensors");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, info] : file.tensors()) tensors[name] = file.load(name);
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  save_safetensors(model / "model.safetensors", tensors);
  EXPECT_TRUE(LlamaConfig::read(model).tied) << "a copy of the table";
  EXPECT_NE(logits(), untied);
  fs::remove(model / "model.safetensors");
  EXPECT_TRUE(LlamaConfig::read(model).tied) << "for --from-scratch";
}

TEST(Llama, MissingShardIsNamed) {
  cpu_backend();
  const TemporaryDirectory folder;
  fs::copy(kGolden / "llama2", folder.path(), fs::copy_options::recursive);
  fs::remove(folder / "model-00002-of-00003.safetensors");
  expect_error([&] { Llama::load(folder.path()); }, {"model-00002-of-00003.safetensors"});
}

TEST(Llama, AnAdapterOfAnotherModelIsRefused) {
  cpu_backend();
  Adapter lora(llama_module_names());
  lora.add_file(kGolden / "mistral/adapter");
  expect_error([&] { Llama::load(kGolden / "llama3", {.adapter = &lora}); },
               {"adapter_model.safetensors", "q_proj", "shape"});
}

}  // namespace
}  // namespace wick
