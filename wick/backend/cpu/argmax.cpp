// The largest of each row and where it is.
#include <cmath>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/parallel.h"

namespace wick {

void CpuBackend::argmax(View ids, View largest, View x) {
  const DenseInput input(x);
  const int64_t width = x.dim(1);
  parallel_each(x.dim(0), x.numel(), [&](int64_t i) {
    const float* const row = input.data() + i * width;
    int64_t best = 0;
    for (int64_t j = 1; j < width && !std::isnan(row[best]); ++j)
      if (row[j] > row[best] || std::isnan(row[j])) best = j;
    ids.as<int64_t>()[i * ids.stride[0]] = best;
    if (largest) largest.as<float>()[i * largest.stride[0]] = row[best];
  });
}

}  // namespace wick
