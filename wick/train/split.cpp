#include "wick/train/split.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

namespace wick {
namespace {

// Python's generator, which is seeded by the words of a number.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed) {
    const std::array<uint32_t, 2> key{uint32_t(seed), uint32_t(seed >> 32)};
    const size_t words = key[1] != 0 ? 2 : 1;
    state_[0] = 19650218;
    for (uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253u * mixed(i - 1) + i;
    size_t i = 1, word = 0;
    const auto wrap = [&] {
      if (i == kSize) state_[0] = state_[kSize - 1], i = 1;
    };
    for (size_t k = kSize; k > 0; --k) {
      state_[i] = (state_[i] ^ mixed(i - 1) * 1664525u) + key[word] + uint32_t(word);
      ++i, word = (word + 1) % words;
      wrap();
    }
    for (size_t k = kSize - 1; k > 0; --k) {
      state_[i] = (state_[i] ^ mixed(i - 1) * 1566083941u) - uint32_t(i);
      ++i;
      wrap();
    }
    state_[0] = 0x80000000u;
  }

  // An integer below `bound`, which is above 0.
  uint32_t below(uint32_t bound) {
    const int bits = std::bit_width(bound);
    uint32_t value = next() >> (32 - bits);
    while (value >= bound) value = next() >> (32 - bits);
    return value;
  }

 private:
  static constexpr size_t kSize = 624, kMiddle = 397;

  uint32_t mixed(size_t i) const { return state_[i] ^ state_[i] >> 30; }

  uint32_t next() {
    if (at_ == kSize) renew();
    uint32_t y = state_[at_++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
  }

  void renew() {
    for (size_t i = 0; i < kSize; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kSize] & 0x7fffffffu);
      state_[i] = state_[(i + kMiddle) % kSize] ^ y >> 1 ^ (y % 2 != 0 ? 0x9908b0dfu : 0);
    }
    at_ = 0;
  }

  std::array<uint32_t, kSize> state_{};
  size_t at_ = kSize;
};

}  // namespace

std::vector<size_t> python_shuffle(size_t count, uint64_t seed) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  PythonRandom random(seed);
  for (size_t left = count; left > 1; --left) std::swap(order[left - 1], order[random.below(uint32_t(left))]);
  return order;
}

std::vector<size_t> chosen(size_t count, const Split& split) {
  std::vector<size_t> order = python_shuffle(count, split.seed);
  const auto trained = ptrdiff_t(std::ceil(double(count) * (1 - split.held_back)));
  const auto held_back =
      std::min(ptrdiff_t(std::nearbyint(double(count) * split.held_back)), std::ssize(order) - trained);
  if (split.validates)
    order.erase(order.begin(), order.end() - held_back);
  else
    order.erase(order.begin() + trained, order.end());
  std::ranges::sort(order);
  return order;
}

}  // namespace wick
