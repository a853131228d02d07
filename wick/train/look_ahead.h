// The parts that a denoiser makes ahead of the steps (Diffusion::ahead), for the next few hundred pictures of a run at
// a time. Their times and conditioning are functions of the run's position, which a look ahead does not move.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wick/train/latent_cache.h"

namespace wick {

class LookAhead {
 public:
  LookAhead(const Diffusion& model, const LatentCache& data, const TimestepOptions& times)
      : model_(model), data_(data), times_(times), names_(model.parts_ahead()) {}

  // Parts [B, ...] on the host for the batch that data.next(rng) would give now; none where the model makes none.
  NamedTensors next(const TrainRng& rng);

 private:
  void look(const TrainRng& rng);

  const Diffusion& model_;
  const LatentCache& data_;
  TimestepOptions times_;
  std::vector<std::string> names_;
  NamedTensors rows_;                   // of the batches seen, one after the other
  std::vector<int64_t> begins_ = {0};   // a batch's first row, and the end of the last one's
  std::vector<Batches::Place> places_;  // of the batches seen: elsewhere a run was resumed
  size_t used_ = 0;                     // batches
};

}  // namespace wick
