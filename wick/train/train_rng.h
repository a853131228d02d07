// The random numbers of a run: one stream a purpose, so that none depends on how many another has used.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "wick/core/rng.h"

namespace wick {

struct TrainRng {
  explicit TrainRng(uint64_t seed)
      : noise(seed, Stream::noise),
        timestep(seed, Stream::timestep),
        latent(seed, Stream::latent),
        caption(seed, Stream::caption) {}

  Rng noise, timestep, latent, caption;

  std::map<std::string, uint64_t> positions() const {
    return {{"noise", noise.position()},
            {"timestep", timestep.position()},
            {"latent", latent.position()},
            {"caption", caption.position()}};
  }
  void seek(const std::map<std::string, uint64_t>& positions) {
    const uint64_t seed = noise.seed();
    noise = Rng(seed, Stream::noise, positions.at("noise"));
    timestep = Rng(seed, Stream::timestep, positions.at("timestep"));
    latent = Rng(seed, Stream::latent, positions.at("latent"));
    caption = Rng(seed, Stream::caption, positions.at("caption"));
  }
};

}  // namespace wick
