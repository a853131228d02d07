// The random numbers of a run: one stream per purpose, so that none depends on how many another has used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "wick/core/error.h"
#include "wick/core/rng.h"

namespace wick {

struct TrainRng {
  explicit TrainRng(uint64_t seed)
      : noise(seed, Stream::noise),
        timestep(seed, Stream::timestep),
        latent(seed, Stream::latent),
        caption(seed, Stream::caption),
        crop(seed, Stream::crop),
        dropout(seed, Stream::dropout) {}

  Rng noise, timestep, latent, caption;
  Rng crop;     // and all else of how a sample shows its picture
  Rng dropout;  // its position is the number of the next mask

  std::map<std::string, uint64_t> positions() const {
    std::map<std::string, uint64_t> all;
    for (const auto& [name, stream] : streams()) all[name] = (this->*stream).position();
    return all;
  }
  void seek(const std::map<std::string, uint64_t>& positions) {
    for (const auto& [name, stream] : streams()) {
      const auto found = positions.find(name);
      check(found != positions.end(), "training state: the position of the random stream '{}' is missing", name);
      Rng& rng = this->*stream;
      rng = Rng(rng.seed(), Stream(rng.stream()), found->second);
    }
  }

 private:
  static std::vector<std::pair<const char*, Rng TrainRng::*>> streams() {
    using R = TrainRng;
    return {{"noise", &R::noise},     {"timestep", &R::timestep}, {"latent", &R::latent},
            {"caption", &R::caption}, {"crop", &R::crop},         {"dropout", &R::dropout}};
  }
};

}  // namespace wick
