// Stable Diffusion 3 and 3.5 (Esser et al., 2024).
#include <utility>

#include "wick/models/sd3/names.h"
#include "wick/models/sd3/transformer.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/component.h"

namespace wick {

Component sd3_transformer_component(std::vector<std::string> lora_prefixes) {
  const auto load = [](const ComponentSource& source) -> ComponentRun {
    const Checkpoint files = source.model.component("transformer");
    const Sd3Config config = Sd3Config::read(files);
    const Sd3Transformer model(source.scope("transformer", sd3_source(files.source())), config);
    return [=](ComponentInputs& in) -> ComponentOutputs {
      Sd3Input x;
      x.latents = to_channels_last(in.variable("hidden_states", {"B", config.channels, {"h", 2}, {"w", 2}}));
      x.text = in.variable("encoder_hidden_states", {"B", "L", config.text_dim});
      x.pooled = in.variable("pooled_projections", {"B", config.pooled_dim});
      x.timestep = in.number("timestep", in.extent("B"));
      x.positions = model.positions(in.extent("h"), in.extent("w"));
      if (in.has("skip_layers")) {
        const Tensor skipped = in.whole("skip_layers", {{"K", 0}});
        x.skipped = {skipped.data<int64_t>(), skipped.data<int64_t>() + skipped.numel()};
      }
      const Tensor sample = to_channels_first(model(x));
      return {{{"sample", sample}}, squared_error(sample)};
    };
  };
  return {"transformer", load, std::move(lora_prefixes)};
}

}  // namespace wick
