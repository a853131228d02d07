// Dropout by a mask that is recomputed where it is needed.
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/gemm.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/core/rng.h"

namespace wick {

void CpuBackend::dropout(View y, View x, const Dropout& dropout, bool add) {
  constexpr int64_t kWork = 8;  // elementwise operations that one element costs, about
  const Operand in(x), sum(add ? y : View());
  const Result out(y);
  const uint64_t first = uint64_t(*dropout.draw.as<int64_t>()) << 32;
  const uint32_t threshold = dropout_threshold(dropout.p);
  const float kept = 1 / (1 - dropout.p);
  parallel_for(in->rows, in->rows * in->cols * kWork, [&](int64_t begin, int64_t end) {
    std::array<uint32_t, 4> words{};
    for (int64_t element = begin * in->cols, i = begin; i < end; ++i)
      for (int64_t j = 0; j < in->cols; ++j, ++element) {
        if (j == 0 || element % 4 == 0)
          words = philox(dropout.seed, uint32_t(Stream::dropout), first + uint64_t(element) / 4);
        const float value = words[size_t(element % 4)] >= threshold ? in->at(i, j) * kept : 0;
        out->at(i, j) = add ? sum->at(i, j) + value : value;
      }
  });
  out.store();
}

}  // namespace wick
