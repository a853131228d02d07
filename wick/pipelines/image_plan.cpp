#include "wick/pipelines/image_plan.h"

namespace wick {

ImagePlan plan_image(const Checkpoint& checkpoint, const ImageRequest& request, DType dtype,
                     const std::vector<LoraFile>& loras, const DeviceKind& device) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  const std::unique_ptr<Diffusion> model = open_diffusion(checkpoint);
  Adapter adapter(model->lora().names, loras);
  model->load({.dtype = dtype, .adapter = &adapter, .backend = &backend, .outline = true}, kDrawingParts);
  const TextToImage text_to_image(*model);

  ImageRequest one_step = request;
  one_step.steps = 1;
  const Shape latents = latent_shape(request, model->latents());
  text_to_image.decode(text_to_image.denoise(one_step, Tensor::empty(latents, DType::f32, memory)));

  const size_t weights = memory.held(Purpose::weights), lora = memory.held(Purpose::adapter);
  return {.device = device,
          .weights = weights,
          .adapter = lora,
          .activations = memory.peak() - weights - lora,
          .taken = memory.most_taken()};
}

}  // namespace wick
