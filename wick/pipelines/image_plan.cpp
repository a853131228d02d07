#include "wick/pipelines/image_plan.h"

namespace wick {

ImagePlan plan_image(const std::filesystem::path& folder, const ImageRequest& request, DType dtype,
                     const std::vector<LoraFile>& loras, const DeviceKind& device) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  Adapter adapter(sdxl_module_names(UNetConfig::read(folder / "unet")));
  for (const LoraFile& lora : loras) adapter.add_file(lora.path, lora.strength);
  const Sdxl sdxl = Sdxl::load(
      folder, {.dtype = dtype, .adapter = &adapter, .backend = &backend, .vae_encoder = false, .outline = true});
  const TextToImage text_to_image(sdxl, folder);

  ImageRequest one_step = request;
  one_step.steps = 1;
  const VaeConfig& vae = sdxl.config.vae;
  const Shape latents{1, request.height / vae.factor(), request.width / vae.factor(), vae.latent_channels};
  text_to_image.decode(text_to_image.denoise(one_step, Tensor::empty(latents, DType::f32, memory)));

  const size_t weights = memory.held(Purpose::weights), lora = memory.held(Purpose::adapter);
  return {.device = device,
          .weights = weights,
          .adapter = lora,
          .activations = memory.peak() - weights - lora,
          .taken = memory.most_taken()};
}

}  // namespace wick
