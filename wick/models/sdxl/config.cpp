#include "wick/models/sdxl/config.h"

#include "wick/core/error.h"

namespace wick {

namespace {

template <class PartConfig>
PartConfig read_part(const Checkpoint& model, const char* component) {
  check(model.component(component).has_config(),
        "{}: should be a diffusers folder of an SDXL model; it has no {}/config.json{}", model.name(), component,
        model.has("transformer") ? ", but a transformer, as SD3 and FLUX have" : "");
  return PartConfig::read(model.component(component));
}

}  // namespace

SdxlConfig SdxlConfig::read(const Checkpoint& model) {
  const std::string name = model.name();
  // The parts that distinguish other models come first; such models may lack the rest.
  const auto unet = read_part<UNetConfig>(model, "unet");
  const auto text_encoder_2 = read_part<ClipConfig>(model, "text_encoder_2");
  check(unet.added_dim != text_encoder_2.projection + 5 * unet.time_ids_dim,
        "{}: the UNet is that of {}; Wick supports SDXL's base model and its kin", name, kRefiner);
  const SdxlConfig c{read_part<ClipConfig>(model, "text_encoder"), text_encoder_2, unet,
                     read_part<VaeConfig>(model, "vae")};
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

}  // namespace wick
