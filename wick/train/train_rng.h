// The random numbers of a run: one stream per purpose, so that none depends on how many another has used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "wick/core/error.h"
#include "wick/core/rng.h"

namespace wick {

struct TrainRng {
  explicit TrainRng(uint64_t seed)
      : noise(seed, Stream::noise),
        timestep(seed, Stream::timestep),
        latent(seed, Stream::latent),
        caption(seed, Stream::caption),
        dropout(seed, Stream::dropout) {}

  Rng noise, timestep, latent, caption;
  Rng dropout;  // its position is the number of the next mask

  std::map<std::string, uint64_t> positions() const {
    return {{"noise", noise.position()},
            {"timestep", timestep.position()},
            {"latent", latent.position()},
            {"caption", caption.position()},
            {"dropout", dropout.position()}};
  }
  void seek(const std::map<std::string, uint64_t>& positions) {
    for (auto& [name, stream] : {std::pair{"noise", &noise},
                                 {"timestep", &timestep},
                                 {"latent", &latent},
                                 {"caption", &caption},
                                 {"dropout", &dropout}}) {
      const auto found = positions.find(name);
      check(found != positions.end(), "training state: the position of the random stream '{}' is missing", name);
      *stream = Rng(stream->seed(), Stream(stream->stream()), found->second);
    }
  }
};

}  // namespace wick
