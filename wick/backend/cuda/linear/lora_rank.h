// Ranks as the thin kernels of the LoRA linear know them: tiles of 16, 32 or 64 columns.
#pragma once

#include <cstdint>
#include <type_traits>

namespace wick {

inline constexpr int kWidestRankTile = 64;

// Calls f with the smallest tile that holds the rank, as a constant, or with the widest.
template <class F>
void with_rank_tile(int64_t rank, const F& f) {
  if (rank <= 16)
    f(std::integral_constant<int, 16>());
  else if (rank <= 32)
    f(std::integral_constant<int, 32>());
  else
    f(std::integral_constant<int, kWidestRankTile>());
}

}  // namespace wick
