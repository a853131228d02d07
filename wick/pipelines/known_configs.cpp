#include "wick/pipelines/known_configs.h"

namespace wick {
namespace {

std::string object(const std::string& common, const std::string& own) { return "{" + common + ", " + own + "}"; }

constexpr const char* kClip = R"(
  "eos_token_id": 2, "layer_norm_eps": 1e-5, "max_position_embeddings": 77, "vocab_size": 49408)";
constexpr const char* kClipL = R"(
  "hidden_act": "quick_gelu", "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
  "num_hidden_layers": 12, "projection_dim": 768)";
constexpr const char* kBigG = R"(
  "hidden_act": "gelu", "hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 20,
  "num_hidden_layers": 32, "projection_dim": 1280)";

constexpr const char* kT5Xxl = R"({
  "model_type": "t5", "d_ff": 10240, "d_kv": 64, "d_model": 4096, "feed_forward_proj": "gated-gelu",
  "layer_norm_epsilon": 1e-6, "num_heads": 64, "num_layers": 24, "relative_attention_max_distance": 128,
  "relative_attention_num_buckets": 32, "vocab_size": 32128})";

constexpr const char* kVae = R"(
  "block_out_channels": [128, 256, 512, 512],
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"],
  "in_channels": 3, "out_channels": 3, "layers_per_block": 2, "norm_num_groups": 32, "sample_size": 1024)";
constexpr const char* kSdxlVae = R"(
  "latent_channels": 4, "scaling_factor": 0.13025)";
constexpr const char* kSd3Vae = R"(
  "latent_channels": 16, "scaling_factor": 1.5305, "shift_factor": 0.0609, "use_quant_conv": false,
  "use_post_quant_conv": false)";
constexpr const char* kFluxVae = R"(
  "latent_channels": 16, "scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": false,
  "use_post_quant_conv": false)";

constexpr const char* kSdxlUnet = R"({
  "_class_name": "UNet2DConditionModel", "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
  "attention_head_dim": [5, 10, 20], "block_out_channels": [320, 640, 1280], "cross_attention_dim": 2048,
  "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
  "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
  "in_channels": 4, "out_channels": 4, "layers_per_block": 2, "norm_eps": 1e-5, "norm_num_groups": 32,
  "projection_class_embeddings_input_dim": 2816, "sample_size": 128, "transformer_layers_per_block": [1, 2, 10],
  "use_linear_projection": true})";
constexpr const char* kSdxlScheduler = R"({
  "_class_name": "EulerDiscreteScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
  "num_train_timesteps": 1000, "prediction_type": "epsilon", "steps_offset": 1, "timestep_spacing": "leading"})";

constexpr const char* kFlux = R"(
  "_class_name": "FluxTransformer2DModel", "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "in_channels": 64,
  "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "patch_size": 1,
  "pooled_projection_dim": 768)";

constexpr const char* kSd3 = R"(
  "_class_name": "SD3Transformer2DModel", "attention_head_dim": 64, "in_channels": 16, "joint_attention_dim": 4096,
  "out_channels": 16, "patch_size": 2, "pooled_projection_dim": 2048, "sample_size": 128)";
constexpr const char* kMedium = R"(
  "caption_projection_dim": 1536, "num_attention_heads": 24, "num_layers": 24, "pos_embed_max_size": 192)";
constexpr const char* kMedium35 = R"(
  "caption_projection_dim": 1536, "num_attention_heads": 24, "num_layers": 24, "pos_embed_max_size": 384,
  "dual_attention_layers": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], "qk_norm": "rms_norm")";
constexpr const char* kLarge35 = R"(
  "caption_projection_dim": 2432, "num_attention_heads": 38, "num_layers": 38, "pos_embed_max_size": 192,
  "qk_norm": "rms_norm")";

constexpr const char* kFlow = R"(
  "_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000)";
constexpr const char* kDynamicShift = R"(
  "use_dynamic_shifting": true, "shift": 3.0, "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 4096,
  "max_shift": 1.15)";

// With CLIPTextModelWithProjection as its class, or CLIPTextModel.
std::string clip(const std::string& sizes, bool projects) {
  const std::string suffix = projects ? "WithProjection" : "";
  return object(kClip, sizes + R"(, "architectures": ["CLIPTextModel)" + suffix + R"("])");
}

ComponentConfigs sd3_configs(const char* sizes) {
  return {{"transformer", object(kSd3, sizes)},
          {"text_encoder", clip(kClipL, /*projects=*/true)},
          {"text_encoder_2", clip(kBigG, /*projects=*/true)},
          {"text_encoder_3", kT5Xxl},
          {"vae", object(kVae, kSd3Vae)},
          {"scheduler", object(kFlow, R"("shift": 3.0)")}};
}

}  // namespace

ComponentConfigs sdxl_configs() {
  return {{"unet", kSdxlUnet},
          {"text_encoder", clip(kClipL, /*projects=*/false)},
          {"text_encoder_2", clip(kBigG, /*projects=*/true)},
          {"vae", object(kVae, kSdxlVae)},
          {"scheduler", kSdxlScheduler}};
}

ComponentConfigs flux_configs(bool guidance) {
  return {{"transformer", object(kFlux, guidance ? R"("guidance_embeds": true)" : R"("guidance_embeds": false)")},
          {"text_encoder", clip(kClipL, /*projects=*/false)},
          {"text_encoder_2", kT5Xxl},
          {"vae", object(kVae, kFluxVae)},
          {"scheduler", object(kFlow, guidance ? kDynamicShift : R"("shift": 1.0)")}};
}

ComponentConfigs sd3_medium_configs() { return sd3_configs(kMedium); }
ComponentConfigs sd35_medium_configs() { return sd3_configs(kMedium35); }
ComponentConfigs sd35_large_configs() { return sd3_configs(kLarge35); }

}  // namespace wick
