#include "wick/pipelines/plan.h"

#include <algorithm>
#include <map>
#include <string>

#include "wick/models/llama.h"
#include "wick/pipelines/text_decoder.h"

namespace wick {

namespace {

// Shortened, and without values that a counting backend does not have.
ImageRequest outlined(const ImageRequest& whole) {
  ImageRequest request = shortened(whole);
  request.start = {};
  request.draws.clear();
  return request;
}

// Texts may have unlike lengths, and the last batch may be smaller. Buffers of the shapes met so far stay, so a batch
// is left out where one of its shape was drawn beside the same ones.
void draw_unlike_batches(TextToImage& text_to_image, const TextToImage::Batch& requests, int64_t size) {
  std::map<std::string, size_t> met;  // shapes, with how many there were when they were last drawn
  for (auto first = requests.begin(); first != requests.end();) {
    const auto end = TextToImage::end_of_batch(first, requests.end(), size);
    const TextToImage::Batch batch(first, end);
    size_t& beside = met[text_to_image.shapes(batch)];
    if (beside != met.size()) text_to_image.draw(batch);
    beside = met.size();
    first = end;
  }
}

StepCost cost_of_step(const CountingBackend& backend, TextToImage& text_to_image, TextToImage::Batch batch) {
  const auto drawn = [&](int64_t steps) {
    batch.front().sampling.steps = steps;
    const StepCost before = backend.cost();
    text_to_image.draw(batch);
    return backend.cost() - before;
  };
  const StepCost two = drawn(2);
  return drawn(3) - two;
}

}  // namespace

InferencePlan plan_image(const Checkpoint& checkpoint, const TextToImage::Batch& requests,
                         const ImagePlanOptions& options, const DeviceKind& device) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  const std::unique_ptr<Diffusion> model = open_diffusion(checkpoint, options.reading);
  Adapter adapter(model->lora().names, options.lora_sets);
  const DiffusionOptions load{.dtype = options.dtype,
                              .quantization = options.quantization,
                              .adapter = &adapter,
                              .backend = &backend,
                              .block_schedule = options.block_schedule,
                              .stream_text_encoder = options.stream_text_encoder,
                              .outline = true};
  TextToImage::Batch counted;
  for (const ImageRequest& request : requests) counted.push_back(outlined(request));
  if (options.of_picture) {
    model->load(load, {DiffusionPart::vae_encoder});
    const ImageRequest& first = requests.front();
    const Tensor picture = model->encode(Tensor::empty({1, first.height, first.width, 3}, DType::f32, memory)).mean;
    for (ImageRequest& request : counted) request.picture = picture;
    model->drop_encoders();
  }
  TextToImage text_to_image = TextToImage::load(*model, load, counted);
  draw_unlike_batches(text_to_image, counted, options.batch);

  const size_t weights = memory.held(Purpose::weights), lora = memory.held(Purpose::adapter);
  return {.device = device,
          .weights = weights,
          .adapter = lora,
          .activations = memory.peak() - weights - lora,
          .taken = memory.most_taken(),
          .host = device.is_device ? memory.host_side().peak() : 0,
          .host_own = device.is_device ? memory.host_side().most_beside_weights() : 0,
          .staged = device.is_device ? memory.staging_side().peak() : 0,
          .blocks = model->denoiser_weights().blocks(),
          .cost = options.costs ? cost_of_step(backend, text_to_image, {counted.front()}) : StepCost{}};
}

InferencePlan plan_text(const LlamaConfig& config, DType dtype, int64_t context, const DeviceKind& device,
                        const BlockSchedule& asked) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  const Weights outline = Weights::outline(llama_weights(dtype, backend));
  BlockSchedule blocks = asked;  // whose stream is gone before the backend
  if (const size_t count = blocks.streamed())
    blocks.stream(outline.stream(
        count, [&](const Weights& shapes) { Llama(Scope(shapes, "llama"), config); }, blocks.masters("llama")));
  const Llama model(Scope(outline, "llama"), config, blocks);
  outline.read_deferred();  // the last block is whole
  TextDecoder decoder(model, context);
  const size_t weights = memory.held(Purpose::weights), held = weights + memory.held(Purpose::data);
  decoder.read(std::vector<int64_t>(size_t(std::min(context, TextDecoder::kPiece)), 0));
  decoder.truncate(0);
  decoder.step();
  return {.device = device,
          .weights = weights,
          .cache = held - weights,
          .activations = memory.peak() - held,
          .taken = memory.most_taken(),
          .host = device.is_device ? memory.host_side().peak() : 0,
          .host_own = device.is_device ? memory.host_side().most_beside_weights() : 0,
          .staged = device.is_device ? memory.staging_side().peak() : 0,
          .blocks = outline.blocks(),
          .cost = backend.cost()};
}

}  // namespace wick
