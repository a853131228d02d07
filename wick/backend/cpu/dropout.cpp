// Dropout by a mask that is recomputed where it is needed.
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/gemm.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/core/rng.h"

namespace wick {

void CpuBackend::dropout(View y, View x, const Dropout& dropout, bool add) {
  constexpr int64_t kWork = 8;  // elementwise operations that one element costs, about
  if (x.numel() == 0) return;
  const Operand in(x), sum(add ? y : View());
  const Result out(y);
  const int64_t* const draw = dropout.draw.as<int64_t>();
  const int64_t stretch = dropout.stretch(in->rows * in->cols);
  const uint32_t threshold = dropout_threshold(dropout.p);
  const float kept = 1 / (1 - dropout.p);
  parallel_for(in->rows, in->rows * in->cols * kWork, [&](int64_t begin, int64_t end) {
    std::array<uint32_t, 4> words{};
    const auto make_words = [&](int64_t sample, int64_t at) {
      const uint64_t position = uint64_t(draw[sample]) << 32 | uint64_t(at / 4);
      words = philox(dropout.seed, uint32_t(Stream::dropout), position);
    };
    int64_t sample = begin * in->cols / stretch, at = begin * in->cols % stretch;
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < in->cols; ++j) {
        if (j == 0 || at % 4 == 0) make_words(sample, at);
        const float value = words[size_t(at % 4)] >= threshold ? in->at(i, j) * kept : 0;
        out->at(i, j) = add ? sum->at(i, j) + value : value;
        if (++at < stretch) continue;
        ++sample;
        at = 0;
      }
  });
  out.store();
}

}  // namespace wick
