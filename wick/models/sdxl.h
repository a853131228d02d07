// Stable Diffusion XL as one model: two text encoders, UNet, VAE, from a diffusers folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "wick/models/clip.h"
#include "wick/models/sdxl_unet.h"
#include "wick/models/vae.h"

namespace wick {

struct SdxlConfig {
  ClipConfig text_encoder, text_encoder_2;
  UNetConfig unet;
  VaeConfig vae;
  static SdxlConfig read(const std::filesystem::path& folder);  // checks that the parts fit each other
};

// LoRA base names of a module: kohya's native spelling first (lora_unet_input_blocks_4_1_…, lora_te1_…), then the
// flattened diffusers spelling (lora_unet_down_blocks_1_…). Source: lora_formats.md sections 1 and 3.
ModuleNames sdxl_module_names(const UNetConfig& config);
// What the base names of a component's modules start with, in any spelling; empty for a component that files cannot
// name.
std::vector<std::string> sdxl_lora_prefixes(const std::string& component);
// kohya's default for SDXL: every Linear inside the UNet's Transformer2DModels.
std::vector<std::string> sdxl_default_targets();

struct SdxlOptions {
  DType dtype = DType::f32;    // storage of frozen weights
  Adapter* adapter = nullptr;  // outlives the model
  bool train_unet = false;     // full training instead of LoRA
  Backend* backend = nullptr;  // where the model runs: the CPU unless given
  bool checkpointing = false;
  bool unet = true, vae_encoder = true, vae_decoder = true;  // what is loaded at once, beside the text encoders
  bool outline = false;  // weights of the right shapes without values: nothing but configs is read
};

struct TextConditioning {  // f32
  Tensor context;          // [B, 77, hidden + hidden_2]: the penultimate states side by side
  Tensor pooled;           // [B, projection]
};

struct Sdxl {
  SdxlConfig config;
  Memory& memory;  // where its inputs belong, but for token ids
  // Parts that are not needed any more may be reset.
  std::unique_ptr<ClipText> text_encoder, text_encoder_2;
  std::unique_ptr<VaeEncoder> vae_encoder;
  std::unique_ptr<VaeDecoder> vae_decoder;
  std::optional<Weights> unet_weights;
  std::unique_ptr<SdxlUNet> unet;

  static Sdxl load(const std::filesystem::path& folder, const SdxlOptions& options = {});
  // Where options.unet was false: with the same arguments, once what stood in the UNet's place is not needed any more.
  void load_unet(const std::filesystem::path& folder, const SdxlOptions& options);
  TextConditioning encode_text(const Tensor& ids, const Tensor& ids_2) const;  // [B, 77] each
};

}  // namespace wick
