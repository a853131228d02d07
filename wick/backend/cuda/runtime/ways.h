// Which kernel runs is a value: a pure function of a Gpu and a shape, in a plan.h for each family. Above them
// stand WICK_CUDA_WAY, which overrides them, and WICK_CUDA_EXPLAIN, which prints them (docs/environment.md).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace wick {

// The entry of WICK_CUDA_WAY=family:way,... for a family; empty where it has none. Throws, with a list, if
// WICK_CUDA_WAY names a family or a way that does not exist.
std::string forced_way(std::string_view family);

// The same as an index into the family's list of names.
template <class Way>
std::optional<Way> forced_way(std::string_view family, std::span<const std::string_view> names) {
  const std::string given = forced_way(family);
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == given) return Way(i);
  return {};
}

// Whether WICK_CUDA_EXPLAIN is set, and a line on stderr if the same was not printed before.
bool explains();
void explain(const std::string& shape, const std::string& plan);

}  // namespace wick
