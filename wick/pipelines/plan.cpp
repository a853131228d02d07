#include "wick/pipelines/plan.h"

#include <algorithm>

#include "wick/models/llama.h"
#include "wick/pipelines/text_decoder.h"

namespace wick {

InferencePlan plan_image(const Checkpoint& checkpoint, const ImageRequest& request, const ImagePlanOptions& options,
                         const DeviceKind& device) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  const std::unique_ptr<Diffusion> model = open_diffusion(checkpoint, options.reading);
  Adapter adapter(model->lora().names, options.loras);
  const DiffusionOptions load{.dtype = options.dtype,
                              .quantization = options.quantization,
                              .adapter = &adapter,
                              .backend = &backend,
                              .outline = true};
  ImageRequest short_request = request;  // two steps, because shift_terminal stretches no single one
  short_request.sampling.steps = std::min<int64_t>(request.sampling.steps, 2);
  short_request.sampling.skipped = 0;
  if (options.of_picture) {
    model->load(load, {DiffusionPart::vae_encoder});
    short_request.picture =
        model->encode(Tensor::empty({1, request.height, request.width, 3}, DType::f32, memory)).mean;
    model->drop_encoders();
  }
  const TextToImage::Batch batch(size_t(options.batch), short_request);
  TextToImage::load(*model, load, batch).draw(batch);

  const size_t weights = memory.held(Purpose::weights), lora = memory.held(Purpose::adapter);
  return {.device = device,
          .weights = weights,
          .adapter = lora,
          .activations = memory.peak() - weights - lora,
          .taken = memory.most_taken()};
}

InferencePlan plan_text(const LlamaConfig& config, DType dtype, int64_t context, const DeviceKind& device) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  const Llama model(Scope(Weights::outline(llama_weights(dtype, backend)), "llama"), config);
  TextDecoder decoder(model, context);
  const size_t weights = memory.held(Purpose::weights), held = weights + memory.held(Purpose::data);
  decoder.read(std::vector<int64_t>(size_t(std::min(context, TextDecoder::kPiece)), 0));
  decoder.truncate(0);
  decoder.step();
  return {.device = device,
          .weights = weights,
          .cache = held - weights,
          .activations = memory.peak() - held,
          .taken = memory.most_taken()};
}

}  // namespace wick
