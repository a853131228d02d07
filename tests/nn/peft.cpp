#include "wick/nn/peft.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/files.h"
#include "source_dir.h"
#include "wick/io/json.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

PeftConfig parse(const std::string& text) {
  const TemporaryDirectory folder;
  write_plain(folder / "adapter_config.json", text);
  return PeftConfig::read(folder / "adapter_config.json");
}

TEST(PeftConfig, Alphas) {
  const PeftConfig c = parse(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 12, "bias": "none", "modules_to_save": null,
      "alpha_pattern": {"mlp.down_proj": 3, "layers.1.self_attn.q_proj": 5}, "use_dora": false})");
  EXPECT_EQ(c.alpha_of("model.layers.0.self_attn.q_proj", 8), 12);
  EXPECT_EQ(c.alpha_of("model.layers.1.self_attn.q_proj", 8), 5);
  EXPECT_EQ(c.alpha_of("model.layers.11.self_attn.q_proj", 8), 12);
  EXPECT_EQ(c.alpha_of("model.layers.0.mlp.down_proj", 4), 3);
  // alpha / sqrt(rank), expressed as alpha / rank
  const PeftConfig rs = parse(R"({"peft_type": "LORA", "lora_alpha": 12, "use_rslora": true})");
  EXPECT_EQ(rs.alpha_of("model.layers.0.mlp.down_proj", 16) / 16, 3);
}

TEST(PeftConfig, TellsWhatIsSavedOfTheModel) {
  const PeftConfig some = parse(
      R"({"peft_type": "LORA", "lora_alpha": 1, "modules_to_save": ["embed_tokens", "lm_head"], "bias": "lora_only"})");
  EXPECT_TRUE(some.saves("base_model.model.lm_head") && some.saves("base_model.model.model.embed_tokens"));
  EXPECT_FALSE(some.saves("base_model.model.model.norm"));
  EXPECT_TRUE(some.saves_biases);
  const auto tokens = [](const std::string& value, std::string_view module) {
    return parse(R"({"peft_type": "LORA", "lora_alpha": 1, "trainable_token_indices": )" + value + "}")
        .tokens_of(module);
  };
  const std::string table = "model.embed_tokens", head = "lm_head";
  EXPECT_EQ(tokens("[7, 3]", table), (std::vector<int64_t>{7, 3}));
  EXPECT_TRUE(tokens("[7, 3]", head).empty() && tokens("null", table).empty());
  EXPECT_EQ(tokens(R"({"lm_head": [1], "embed_tokens": [2]})", head), std::vector<int64_t>{1});
  const PeftConfig none = parse(R"({"peft_type": "LORA", "lora_alpha": 1, "modules_to_save": [], "bias": "none"})");
  EXPECT_FALSE(none.saves("base_model.model.lm_head") || none.saves_biases);
}

TEST(PeftConfig, NamesWhatIsNotSupported) {
  const auto refuse = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    expect_error([&] { parse(text); }, parts);
  };
  refuse(R"({"peft_type": "ADALORA", "lora_alpha": 1})", {"adapter_config.json", "peft_type", "ADALORA"});
  refuse(R"({"peft_type": "LORA"})", {"lora_alpha"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "use_qalora": true})", {"use_qalora"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "bias": "some"})", {"bias is \"some\"", "lora_only"});
  refuse(R"({"peft_type": "OFT", "bias": "all"})", {"bias is \"all\"; Wick reads plain LoRAs"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "modules_to_save": "lm_head"})", {"modules_to_save", "list"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "modules_to_save": [1]})", {"modules_to_save"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "trainable_token_indices": ["a"]})", {"trainable_token_indices"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "trainable_token_indices": 3})", {"trainable_token_indices"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "alpha_pattern": {"layers\\1": 2}})",
         {"alpha_pattern", "does not read"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "alpha_pattern": [1]})", {"alpha_pattern", "object"});
  refuse(R"(["LORA"])", {"adapter_config.json", "peft_type"});
}

// The first match in the file's order, not in that of letters.
TEST(PeftConfig, PatternsAreTakenInTheFilesOrder) {
  const auto alpha = [](const std::string& patterns, std::string_view module) {
    return parse(R"({"peft_type": "LORA", "lora_alpha": 12, "alpha_pattern": {)" + patterns + "}}").alpha_of(module, 8);
  };
  const std::string whole = R"("model.layers.1.self_attn.q_proj": 3)", regex = R"("layers\\.[1-3]\\..*": 5)",
                    name = R"("q_proj": 7)", first = "model.layers.1.self_attn.q_proj",
                    second = "model.layers.2.self_attn.q_proj";
  EXPECT_EQ(alpha(name + "," + whole, first), 7);
  EXPECT_EQ(alpha(whole + "," + name, first), 3);
  EXPECT_EQ(alpha(regex + "," + name + "," + whole, first), 5);
  EXPECT_EQ(alpha(name + "," + regex + "," + whole, second), 7);
  EXPECT_EQ(alpha(whole + "," + regex + "," + name, first), 3);
  EXPECT_EQ(alpha(whole + "," + regex + "," + name, second), 5);
  EXPECT_EQ(alpha(whole + "," + regex + "," + name, "model.layers.4.self_attn.q_proj"), 7);
  EXPECT_EQ(alpha(whole + "," + regex + "," + name, "model.layers.4.self_attn.v_proj"), 12);
  EXPECT_THROW(alpha(name + "," + whole + R"(,"q_proj": 9)", first), Error);
}

// patterns.json comes from peft's get_pattern_key.
TEST(NamePattern, FitsWhatPeftsDo) {
  const std::filesystem::path golden = test::source_dir() / "tests/golden/adapters/patterns.json";
  int rows = 0;
  for (const nlohmann::json& row : read_json(golden)) {
    std::vector<NamePattern> patterns;
    for (const std::string key : row.at("patterns")) patterns.emplace_back(key, "here");
    for (const auto& [module, want] : row.at("modules").items()) {
      int found = -1;
      for (size_t i = 0; i < patterns.size() && found < 0; ++i) found = patterns[i].fits(module) ? int(i) : -1;
      EXPECT_EQ(found, want.get<int>()) << row.at("name") << " " << module;
      ++rows;
    }
  }
  EXPECT_GT(rows, 100);
}

TEST(PeftConfig, DiffusersKeepsOneForEachComponent) {
  const auto configs = PeftConfig::read_diffusers(
      R"({"unet.lora_alpha": 8, "unet.r": 2, "unet.alpha_pattern": {"z": 3, "a.z": 4}, "text_encoder.lora_alpha": 5,
          "text_encoder.use_rslora": true, "text_encoder.init_lora_weights": "olora"})",
      "here");
  ASSERT_EQ(configs.size(), 2u);
  EXPECT_EQ(configs.at("unet").rank, 2);
  EXPECT_EQ(configs.at("unet").alpha_of("a.z", 2), 3);
  EXPECT_EQ(configs.at("unet").taken, TakenFromBase::nothing);
  EXPECT_EQ(configs.at("text_encoder").alpha_of("a.z", 4), 10);
  EXPECT_EQ(configs.at("text_encoder").taken, TakenFromBase::first_columns);
}

// The commonest rank and alpha are said once, the others by module, as PEFT's LoraConfig has them.
TEST(Peft, RanksThatDifferAreTold) {
  const TemporaryDirectory folder;
  std::map<std::string, Tensor> tensors;
  for (const auto& [module, rank, alpha] :
       {std::tuple{"layers.0.q_proj", 4, 8.0f}, {"layers.1.q_proj", 2, 3.5f}, {"layers.2.q_proj", 4, 8.0f}}) {
    const std::string name = std::string(kPeftPrefix) + module;
    tensors[name + ".lora_down.weight"] = zeros({rank, 6});
    tensors[name + ".lora_up.weight"] = zeros({5, rank});
    tensors[name + ".alpha"] = full({}, alpha);
  }
  write_peft(folder.path(), tensors, {.layers = 3});
  const nlohmann::json written = read_json(folder / kPeftLast);
  EXPECT_EQ(written.at("r"), 4);
  EXPECT_EQ(written.at("lora_alpha"), 8);
  EXPECT_EQ(written.at("rank_pattern"), nlohmann::json::parse(R"({"layers.1.q_proj": 2})"));
  const PeftConfig config = PeftConfig::read(folder / kPeftLast);
  EXPECT_EQ(config.alpha_of("layers.0.q_proj", 4), 8);
  EXPECT_EQ(config.alpha_of("layers.1.q_proj", 2), 3.5f);
  EXPECT_EQ(config.rank_of("layers.1.q_proj"), 2);
}

TEST(Peft, WhatItCannotHoldIsRefused) {
  const TemporaryDirectory folder;
  const std::string name = std::string(kPeftPrefix) + "layers.0.q_proj.hada_w1_a";
  expect_error([&] { write_peft(folder / "to", {{name, zeros({2, 3})}}, {}); }, {(folder / "to").string(), name});
  EXPECT_FALSE(std::filesystem::exists(folder / "to"));
}

TEST(Peft, AFolderThatIsWrittenOverIsNotWholeUntilItsEnd) {
  const TemporaryDirectory folder;
  write_plain(folder / kPeftLast, "{}");
  std::filesystem::create_directory(folder / "adapter_model.safetensors");  // so that writing fails
  expect_error([&] { write_peft(folder.path(), {}, {}); }, {"adapter_model.safetensors"});
  EXPECT_FALSE(std::filesystem::exists(folder / kPeftLast));
}

}  // namespace
}  // namespace wick
