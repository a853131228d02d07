#include "wick/pipelines/text_plan.h"

#include <algorithm>

#include "wick/models/llama.h"
#include "wick/pipelines/text_decoder.h"

namespace wick {

TextPlan plan_text(const LlamaConfig& config, DType dtype, int64_t context, const DeviceKind& device) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  const WeightsOptions options{.dtype = dtype, .place = Residence::on(backend, dtype)};
  const Llama model(Scope(Weights::outline(options), "llama"), config);
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
