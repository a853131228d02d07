// Random numbers that depend on a purpose's name, not on the time of construction.
#pragma once

#include <cstdint>
#include <string_view>

namespace wick {

// A seed of its own for every name: `seed` xor FNV-1a of the name, which is the same on every machine.
constexpr uint64_t named_seed(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
  return seed ^ hash;
}

}  // namespace wick
