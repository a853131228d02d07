#include "wick/models/sdxl.h"

#include <utility>

namespace wick {

namespace {

namespace fs = std::filesystem;

template <class PartConfig>
PartConfig read_part(const fs::path& folder, const char* component) {
  check(fs::exists(folder / component / "config.json"),
        "{}: should be a diffusers folder of an SDXL model; it has no {}/config.json{}", folder.string(), component,
        fs::exists(folder / "transformer") ? ", but a transformer, as SD3 and FLUX have" : "");
  return PartConfig::read(folder / component);
}

Backend& backend_of(const SdxlOptions& options) { return options.backend ? *options.backend : cpu_backend(); }

Weights weights_of(const fs::path& folder, const char* component, const SdxlOptions& options, DType dtype,
                   bool trainable = false) {
  const WeightsOptions w{.dtype = dtype, .trainable = trainable, .place = Residence::on(backend_of(options), dtype)};
  return options.outline ? Weights::outline(w) : Weights::open(folder / component, w);
}

}  // namespace

SdxlConfig SdxlConfig::read(const fs::path& folder) {
  const std::string name = folder.string();
  // First what tells other models apart, which may lack the rest.
  const auto unet = read_part<UNetConfig>(folder, "unet");
  const auto text_encoder_2 = read_part<ClipConfig>(folder, "text_encoder_2");
  check(unet.added_dim != text_encoder_2.projection + 5 * unet.time_ids_dim,
        "{}: the UNet is that of {}; Wick supports SDXL's base model and its kin", name, kRefiner);
  const SdxlConfig c{read_part<ClipConfig>(folder, "text_encoder"), text_encoder_2, unet,
                     read_part<VaeConfig>(folder, "vae")};
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
  // The VAE of SDXL overflows in f16.
  const DType vae_dtype = options.dtype == DType::f16 ? DType::f32 : options.dtype;
  const auto scope = [&](const char* component, DType dtype) {
    return Scope(weights_of(folder, component, options, dtype), component, options.adapter);
  };
  Sdxl model{
      .config = config,
      .memory = backend_of(options).memory(),
      .text_encoder = std::make_unique<ClipText>(scope("text_encoder", options.dtype), config.text_encoder),
      .text_encoder_2 = std::make_unique<ClipText>(scope("text_encoder_2", options.dtype), config.text_encoder_2),
      .vae_encoder = nullptr,
      .vae_decoder = nullptr,
      .unet_weights = {},
      .unet = nullptr};
  if (options.vae_encoder) model.vae_encoder = std::make_unique<VaeEncoder>(scope("vae", vae_dtype), config.vae);
  if (options.vae_decoder) model.vae_decoder = std::make_unique<VaeDecoder>(scope("vae", vae_dtype), config.vae);
  if (options.unet) model.load_unet(folder, options);
  return model;
}

void Sdxl::load_unet(const fs::path& folder, const SdxlOptions& options) {
  unet_weights = weights_of(folder, "unet", options, options.dtype, options.train_unet);
  unet = std::make_unique<SdxlUNet>(Scope(*unet_weights, "unet", options.adapter), config.unet, options.checkpointing);
  if (options.adapter) options.adapter->check_complete();
  host_memory().trim();
}

TextConditioning Sdxl::encode_text(const Tensor& ids, const Tensor& ids_2) const {
  check(text_encoder && text_encoder_2, "encode_text: the model's text encoders were dropped");
  const ClipOutput first = (*text_encoder)(ids), second = (*text_encoder_2)(ids_2);
  return {cat({first.penultimate, second.penultimate}, 2), second.pooled};
}

}  // namespace wick
