// The random numbers of a run: one stream per purpose, so that none depends on how many another has used. Each sample
// has a stretch of each stream, found by its number: what it draws depends neither on its batch nor on its device.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
  Rng dropout;  // its position is the number of the next mask: of older runs, since masks belong to samples

  // draw(1) for each sample of a batch whose first has this number. In older runs samples have none: then draw(count)
  // alone, from where the streams are.
  template <class F>
  void each_sample(std::optional<uint64_t> first, int64_t count, const F& draw) {
    if (!first) return draw(count);
    for (int64_t i = 0; i < count; ++i) {
      begin(*first + uint64_t(i));
      draw(1);
    }
  }
  void begin(uint64_t sample) {
    for (const auto& [name, stream] : streams()) {
      Rng& rng = this->*stream;
      rng = Rng(rng.seed(), Stream(rng.stream()), sample << 32);
    }
  }

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
