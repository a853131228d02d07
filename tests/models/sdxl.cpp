#include "source_dir.h"
#include "wick/models/sdxl/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "wick/io/json.h"
#include "wick/io/safetensors.h"
#include "wick/models/sdxl/names.h"
#include "wick/ops/ops.h"

namespace wick {
namespace {

const std::filesystem::path kGolden = test::source_dir() / "tests/golden";
const std::filesystem::path kModel = kGolden / "sdxl";

UNetInput unet_input() {
  const SafetensorsFile in = SafetensorsFile::open(kGolden / "cases/unet_lora_grad.in.safetensors");
  return {to_channels_last(in.load("sample")), in.load("timestep"), in.load("encoder_hidden_states"),
          in.load("text_embeds"), in.load("time_ids")};
}

std::map<std::string, Tensor> unet_gradients(const std::string& lora, bool checkpointing) {
  const UNetConfig config = UNetConfig::read(kModel);
  Adapter adapter(sdxl_module_names(config));
  adapter.add_file(kGolden / lora, 1, /*trainable=*/true);
  const SdxlUNet unet(Scope(Weights::open(kModel / "unet"), "unet", &adapter), config,
                      BlockSchedule::recomputing_all(checkpointing));
  Tape tape;
  return adapter.gradients(tape.backward(mean(square(unet(unet_input())))));
}

TEST(SdxlUNet, CheckpointingGivesTheSameGradients) {
  for (const std::string lora : {"lora_unet.safetensors", "lora_locon.safetensors"}) {
    const auto plain = unet_gradients(lora, false), checkpointed = unet_gradients(lora, true);
    ASSERT_FALSE(plain.empty());
    ASSERT_EQ(plain.size(), checkpointed.size());
    for (const auto& [name, gradient] : plain)
      EXPECT_EQ(gradient.to_vector(), checkpointed.at(name).to_vector()) << name;
  }
}

TEST(SdxlUNet, CheckpointingSavesLess) {
  const auto peak = [](bool checkpointing) {
    host_memory().reset_peak();
    const size_t before = host_memory().in_use();
    unet_gradients("lora_unet.safetensors", checkpointing);
    return host_memory().peak() - before;
  };
  EXPECT_LT(peak(true), peak(false));
}

TEST(SdxlUNet, TrainsEveryWeight) {
  const UNetConfig config = UNetConfig::read(kModel);
  const Weights weights = Weights::open(kModel / "unet", {.trainable = true});
  const SdxlUNet unet(Scope(weights, "unet"), config);
  const SafetensorsFile file = SafetensorsFile::open(kModel / "unet/diffusion_pytorch_model.safetensors");
  EXPECT_EQ(weights.parameters().size(), file.tensors().size());
  Tape tape;
  const Grads grads = tape.backward(mean(square(unet(unet_input()))));
  for (const Parameter& p : weights.parameters()) EXPECT_TRUE(grads[p.value]) << p.name;

  const TemporaryDirectory folder;
  weights.save(folder / "unet.safetensors", DType::f32);
  const SafetensorsFile saved = SafetensorsFile::open(folder / "unet.safetensors");
  ASSERT_EQ(saved.tensors().size(), file.tensors().size());
  for (const auto& [name, info] : file.tensors()) {
    ASSERT_EQ(saved.tensors().at(name).shape, info.shape);
    EXPECT_EQ(saved.load(name).to_vector(), file.load(name).to_vector()) << name;
  }
}

TEST(SdxlUNet, StoresWeightsInSixteenBits) {
  const UNetConfig config = UNetConfig::read(kModel);
  const auto output = [&](DType dtype) {
    return SdxlUNet(Scope(Weights::open(kModel / "unet", {.dtype = dtype}), "unet"), config)(unet_input()).to_vector();
  };
  const std::vector<float> exact = output(DType::f32);
  for (const auto& [dtype, tolerance] : {std::pair{DType::bf16, 0.1}, std::pair{DType::f16, 0.01}}) {
    const std::vector<float> rounded = output(dtype);
    double error = 0, size = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      error += std::pow(rounded[i] - exact[i], 2);
      size += std::pow(exact[i], 2);
    }
    EXPECT_GT(error, 0);
    EXPECT_LT(std::sqrt(error / size), tolerance) << name_of(dtype);
  }
}

// The model's folder with one config changed; null removes a key.
void expect_config_error(const std::string& component, const nlohmann::json& changes,
                         std::initializer_list<std::string_view> parts) {
  const TemporaryDirectory folder;
  std::filesystem::copy(kModel, folder.path(), std::filesystem::copy_options::recursive);
  const std::filesystem::path file = folder / component / "config.json";
  nlohmann::json config = read_json(file);
  for (const auto& [key, value] : changes.items()) {
    if (value.is_null())
      config.erase(key);
    else
      config[key] = value;
  }
  write_plain(file, config.dump());
  expect_error([&] { SdxlConfig::read(folder.path()); }, parts);
}

TEST(SdxlConfig, SaysWhatIsNotSupported) {
  const auto expect_unet = [](const nlohmann::json& changes, std::initializer_list<std::string_view> parts) {
    expect_config_error("unet", changes, parts);
  };
  expect_unet({{"act_fn", "gelu"}}, {"unet/config.json", "act_fn", "gelu", "silu"});
  expect_unet({{"mid_block_type", "UNetMidBlock2D"}}, {"mid_block_type", "UNetMidBlock2D"});
  expect_unet({{"down_block_types", {"DownBlock2D", "AttnDownBlock2D", "CrossAttnDownBlock2D"}}},
              {"down_block_types", "AttnDownBlock2D"});
  expect_unet({{"up_block_types", {"UpBlock2D"}}}, {"up_block_types", "3 entries"});
  expect_unet({{"layers_per_block", {1, 2, 2}}}, {"layers_per_block", "1, 2, 2"});
  expect_unet({{"class_embed_type", "timestep"}}, {"class_embed_type"});
  expect_unet({{"addition_embed_type", nullptr}}, {"addition_embed_type", "text_time"});
  expect_unet({{"norm_num_groups", 3}}, {"norm_num_groups", "3"});
  expect_unet({{"norm_num_groups", 0}}, {"norm_num_groups", "0"});
  expect_unet({{"attention_head_dim", 5}}, {"attention_head_dim", "5"});
  expect_unet({{"block_out_channels", nlohmann::json::array()}}, {"block_out_channels"});
  expect_unet({{"in_channels", "four"}}, {"unet/config.json", "in_channels", "four"});
  expect_unet({{"in_channels", 6}}, {"in_channels 6", "latent_channels 4"});
  expect_unet({{"cross_attention_dim", 41}}, {"cross_attention_dim 41"});
  expect_unet({{"projection_class_embeddings_input_dim", 69}}, {"projection_class_embeddings_input_dim 69"});
  expect_config_error("vae", {{"act_fn", "relu"}}, {"vae/config.json", "act_fn", "relu"});
  expect_config_error("vae", {{"down_block_types", {"DownEncoderBlock2D"}}}, {"vae/config.json", "down_block_types"});
  expect_config_error("text_encoder", {{"hidden_act", "relu"}}, {"text_encoder/config.json", "hidden_act", "relu"});
  expect_config_error("text_encoder", {{"num_attention_heads", 5}}, {"num_attention_heads 5", "16"});
  expect_config_error("text_encoder", {{"architectures", {"T5EncoderModel"}}}, {"architectures", "T5EncoderModel"});
  expect_config_error("text_encoder_2", {{"architectures", {"CLIPTextModel"}}}, {"text_encoder_2", "WithProjection"});
  expect_error([] { SdxlConfig::read(kGolden); }, {"golden", "unet/config.json"});
}

}  // namespace
}  // namespace wick
