#include "wick/nn/peft.h"

#include <gtest/gtest.h>

#include "io/files.h"

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
  // alpha / sqrt(rank), as alpha / rank
  const PeftConfig rs = parse(R"({"peft_type": "LORA", "lora_alpha": 12, "use_rslora": true})");
  EXPECT_EQ(rs.alpha_of("model.layers.0.mlp.down_proj", 16) / 16, 3);
}

TEST(PeftConfig, NamesWhatIsNotSupported) {
  const auto refuse = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    expect_error([&] { parse(text); }, parts);
  };
  refuse(R"({"peft_type": "LOHA", "lora_alpha": 1})", {"adapter_config.json", "peft_type", "LOHA"});
  refuse(R"({"peft_type": "LORA"})", {"lora_alpha"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "use_dora": true})", {"use_dora"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "bias": "all"})", {"bias", "all"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "modules_to_save": ["lm_head"]})", {"modules_to_save", "lm_head"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "alpha_pattern": {"layers\\..*": 2}})", {"alpha_pattern", "names"});
  refuse(R"({"peft_type": "LORA", "lora_alpha": 1, "alpha_pattern": [1]})", {"alpha_pattern", "object"});
  refuse(R"(["LORA"])", {"adapter_config.json", "peft_type"});
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
