#include "wick/core/rng.h"

#include <cmath>

namespace wick {

std::array<uint32_t, 4> philox(uint64_t seed, uint32_t stream, uint64_t position) {
  std::array<uint32_t, 4> c{uint32_t(position), uint32_t(position >> 32), stream, 0};
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k0, uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k1, uint32_t(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

std::array<float, 2> bits_to_normals(uint32_t a, uint32_t b) {
  const double u = (double(a) + 1.0) * 0x1p-32;  // (0, 1]: the logarithm is finite
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = 2.0 * M_PI * double(b) * 0x1p-32;
  return {float(radius * std::cos(angle)), float(radius * std::sin(angle))};
}

float Rng::uniform() { return bits_to_uniform(philox(seed_, stream_, position_++)[0]); }

float Rng::normal() {
  const auto bits = philox(seed_, stream_, position_++);
  return bits_to_normals(bits[0], bits[1])[0];
}

uint64_t Rng::below(uint64_t bound) {
  const auto bits = philox(seed_, stream_, position_++);
  const uint64_t word = (uint64_t{bits[1]} << 32) | bits[0];
  return uint64_t((static_cast<unsigned __int128>(word) * bound) >> 64);
}

}  // namespace wick
