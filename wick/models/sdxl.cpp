#include "wick/models/sdxl.h"

#include <utility>

namespace wick {

namespace {

namespace fs = std::filesystem;

template <class PartConfig>
PartConfig read_part(const fs::path& folder, const char* component) {
  check(fs::exists(folder / component / "config.json"),
        "{}: should be a diffusers folder of an SDXL model; it has no {}/config.json", folder.string(), component);
  return PartConfig::read(folder / component);
}

}  // namespace

SdxlConfig SdxlConfig::read(const fs::path& folder) {
  SdxlConfig c{read_part<ClipConfig>(folder, "text_encoder"), read_part<ClipConfig>(folder, "text_encoder_2"),
               read_part<UNetConfig>(folder, "unet"), read_part<VaeConfig>(folder, "vae")};
  const std::string name = folder.string();
  check(c.text_encoder_2.with_projection, "{}: text_encoder_2 should be a CLIPTextModelWithProjection", name);
  check(c.unet.cross_attention_dim == c.text_encoder.hidden + c.text_encoder_2.hidden,
        "{}: the unet's cross_attention_dim {} should be the sum of the text encoders' hidden_size {} and {}", name,
        c.unet.cross_attention_dim, c.text_encoder.hidden, c.text_encoder_2.hidden);
  check(
      c.unet.added_dim == c.text_encoder_2.projection + kTimeIds * c.unet.time_ids_dim,
      "{}: the unet's projection_class_embeddings_input_dim {} should be text_encoder_2's projection_dim {} + {} x {}",
      name, c.unet.added_dim, c.text_encoder_2.projection, kTimeIds, c.unet.time_ids_dim);
  check(c.unet.in_channels == c.vae.latent_channels && c.unet.out_channels == c.vae.latent_channels,
        "{}: the unet's in_channels {} and out_channels {} should be the vae's latent_channels {}", name,
        c.unet.in_channels, c.unet.out_channels, c.vae.latent_channels);
  return c;
}

Sdxl Sdxl::load(const fs::path& folder, const SdxlOptions& options) {
  const SdxlConfig config = SdxlConfig::read(folder);
  Backend& backend = options.backend ? *options.backend : cpu_backend();
  const auto weights = [&](const char* component, DType dtype, bool trainable = false) {
    const WeightsOptions w{.dtype = dtype, .trainable = trainable, .place = Residence::on(backend, dtype)};
    return options.outline ? Weights::outline(w) : Weights::open(folder / component, w);
  };
  const auto scope = [&](const char* component, DType dtype) {
    return Scope(weights(component, dtype), component, options.adapter);
  };
  // The VAE of SDXL overflows in f16.
  const DType vae_dtype = options.dtype == DType::f16 ? DType::f32 : options.dtype;
  const Weights unet = weights("unet", options.dtype, options.train_unet);
  Sdxl model{config,
             backend.memory(),
             unet,
             SdxlUNet(Scope(unet, "unet", options.adapter), config.unet, options.checkpointing),
             std::make_unique<ClipText>(scope("text_encoder", options.dtype), config.text_encoder),
             std::make_unique<ClipText>(scope("text_encoder_2", options.dtype), config.text_encoder_2),
             nullptr,
             nullptr};
  if (options.vae_encoder) model.vae_encoder = std::make_unique<VaeEncoder>(scope("vae", vae_dtype), config.vae);
  if (options.vae_decoder) model.vae_decoder = std::make_unique<VaeDecoder>(scope("vae", vae_dtype), config.vae);
  if (options.adapter) options.adapter->check_complete();
  return model;
}

TextConditioning Sdxl::encode_text(const Tensor& ids, const Tensor& ids_2) const {
  check(text_encoder && text_encoder_2, "encode_text: the model's text encoders were dropped");
  const ClipOutput first = (*text_encoder)(ids), second = (*text_encoder_2)(ids_2);
  return {cat({first.penultimate, second.penultimate}, 2), second.pooled};
}

}  // namespace wick
