// Rotations of channels in blocks, which adapters of the OFT family make (Qiu et al., 2023; Liu et al., 2024, "BOFT"):
// orthogonal matrices R [K, N, N], kept as R - I, made on the host in double precision.
#pragma once

#include <cstdint>
#include <optional>

#include "wick/core/tensor.h"

namespace wick {

// Cayley's transform (I + S) (I - S)^-1 of skew-symmetric matrices S [..., N, N], less I; f32 on the host. Of -S it is
// the transpose.
Tensor cayley(const Tensor& skew);
// PEFT's approximation of it, less I: I + 2 S + 2 S^2 + … + 2 S^(terms - 2) + S^(terms - 1) of at least 4 terms. 3
// count as 4, 2 are I + 2 S and fewer I (_cayley_batch of peft/tuners/oft/layer.py, 0.16 to 0.21).
Tensor cayley_neumann(const Tensor& skew, int64_t terms);

// B - B^T of blocks [..., N, N], and the matrices [K, N, N] of which `entries` [K, N (N - 1) / 2] are the rows above
// the diagonal.
Tensor skew_part(const Tensor& blocks);
Tensor skew_of_entries(const Tensor& entries);
// The N with that many entries; none if there is no such.
std::optional<int64_t> side_of_entries(int64_t entries);

// x times a factor that bounds the Frobenius norm of the whole, or of each matrix [N, N].
Tensor bounded_norm(const Tensor& x, double most);
Tensor bounded_norms(const Tensor& x, double most);

// x [..., K N], of which block k is multiplied by R_k from the right: y_k = x_k + x_k (R_k - I). `change` [K, N, N] is
// of x's dtype; one block, [1, N, N], serves for all.
Tensor rotated(const Tensor& x, const Tensor& change);

// The channels x [..., G · 2 · H] in the order [..., G, H, 2]: those that a butterfly of BOFT pairs become neighbours;
// and the way back.
Tensor paired(const Tensor& x, int64_t h);
Tensor unpaired(const Tensor& x, int64_t h);

}  // namespace wick
