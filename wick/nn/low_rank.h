// Parts of low rank of matrices: of frozen ones, for adapters whose training began with such a part taken out of their
// base, of the products that LoRAs are, and of differences between two models' weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// A singular value decomposition, or its first part.
class SingularParts {
 public:
  // Of the product up [out, r] down [r, in], of any float dtype and on the host, in double precision: by the QR
  // decompositions of both and the SVD of a core of at most r x r.
  static SingularParts of_product(const Tensor& up, const Tensor& down);
  // Of w, f32 [out, in] on the host: the `count` largest, by a random range with power iterations (Halko et al., 2011,
  // algorithms 4.4 and 5.1), exact to f32's rounding where w's rank is at most about twice that.
  static SingularParts of_largest(const Tensor& w, int64_t count);

  const std::vector<double>& values() const { return values_; }  // the largest first
  // The least rank, at least 1, whose squared values make up this share of the sum of all.
  int64_t rank_of_energy(double share) const;
  // The nearest matrix of this rank, at most values().size() (Eckart and Young, 1936). Each factor has the roots of the
  // values.
  LowRank nearest(int64_t rank) const;

 private:
  std::vector<double> values_;
  std::vector<std::vector<double>> left_, right_;  // a vector each
};

// The Frobenius norm of the product up [out, r] down [r, in].
double norm_of_product(const Tensor& up, const Tensor& down);

}  // namespace wick
