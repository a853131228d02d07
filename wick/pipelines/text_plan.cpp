#include "wick/pipelines/text_plan.h"

#include <algorithm>

#include "wick/models/llama.h"
#include "wick/pipelines/text_generation.h"

namespace wick {

TextPlan plan_text(const LlamaConfig& config, DType dtype, int64_t context, const DeviceKind& device) {
  CountingBackend backend(device);
  CountingMemory& memory = backend.memory();
  const WeightsOptions options{.dtype = dtype, .place = Residence::on(backend, dtype)};
  const Llama model(Scope(Weights::outline(options), "llama"), config);
  KvCache cache(config, 1, context, model.place());
  const size_t weights = memory.held(Purpose::weights), held = weights + memory.held(Purpose::data);

  const int64_t tokens = std::min(context, Generator::kPiece);
  const Tensor hidden = model(zeros({1, tokens}, DType::i64), cache.extend({tokens}), &cache);
  model.logits(slice(hidden, 1, tokens - 1, tokens));
  return {.device = device,
          .weights = weights,
          .cache = held - weights,
          .activations = memory.peak() - held,
          .taken = memory.most_taken()};
}

}  // namespace wick
