// Parts of low rank of a frozen matrix, for adapters whose training began with such a part taken out of their base.
#pragma once

#include <cstdint>
#include <string>

#include "wick/core/tensor.h"

namespace wick {

struct LowRank {
  Tensor up, down;  // f32 [out, rank] and [rank, in], on the host; the part is their product
};

// Both take w, f32 [out, in] on the host; rank is at most the smaller extent. `name` is w's in errors. Throws Error
// where the part is not a function of w.

// The nearest matrix of this rank: the part of the largest singular values (PiSSA: Meng et al., 2024). By subspace
// iteration (Halko et al., 2011) until an iteration's changes are f32's rounding.
LowRank largest_part(const Tensor& w, int64_t rank, const std::string& name);
// The first `rank` columns of Q times the first rows of R, where w = Q R: w projected on the span of its own first
// columns (OLoRA: Büyükakyüz, 2024).
LowRank first_columns_part(const Tensor& w, int64_t rank, const std::string& name);

}  // namespace wick
