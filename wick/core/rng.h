// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
//
// A number depends only on (seed, stream, position), so resume, checkpointing and any number of workers see the same
// bits. Each purpose has a stream of its own.
#pragma once

#include <array>
#include <cstdint>

namespace wick {

enum class Stream : uint32_t { init, noise, timestep, shuffle, latent, sampler, crop, test, caption, dropout };

std::array<uint32_t, 4> philox(uint64_t seed, uint32_t stream, uint64_t position);

// The state is three plain numbers: copy it to remember, write it down to resume.
class Rng {
 public:
  explicit Rng(uint64_t seed, Stream stream = Stream::test, uint64_t position = 0)
      : seed_(seed), stream_(uint32_t(stream)), position_(position) {}

  uint64_t seed() const { return seed_; }
  uint32_t stream() const { return stream_; }
  uint64_t position() const { return position_; }
  // Reserves `blocks` Philox blocks of four numbers and returns the first, for kernels that fill tensors.
  uint64_t reserve(uint64_t blocks) {
    const uint64_t first = position_;
    position_ += blocks;
    return first;
  }

  float uniform();                 // [0, 1)
  float normal();                  // mean 0, variance 1
  uint64_t below(uint64_t bound);  // an integer in [0, bound), unbiased to 2^-64 · bound

 private:
  uint64_t seed_;
  uint32_t stream_;
  uint64_t position_;
};

// The numbers made of 32 random bits, shared by every backend. Both are exact functions of their arguments' bits.
inline float bits_to_uniform(uint32_t bits) { return float(bits >> 8) * 0x1p-24f; }
inline uint32_t dropout_threshold(float p) { return uint32_t(double(p) * 0x1p32); }  // p < 1; bits >= it: kept
std::array<float, 2> bits_to_normals(uint32_t a, uint32_t b);                        // Box-Muller

}  // namespace wick
