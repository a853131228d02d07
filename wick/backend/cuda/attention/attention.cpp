// Which attention runs where: for 16-bit activations cuDNN's or our own on tensor cores, else tiles or rows
// (attention_own.h).
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "wick/backend/scratch.h"
#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/attention/ranges.h"
#include "wick/backend/cuda/runtime/cudnn.h"
#include "wick/backend/cuda/runtime/dense.h"

namespace wick {
namespace {

constexpr int64_t kShort = 16;  // fewer queries or keys than this are not worth a plan of cuDNN's

bool aligned(const View& v) {
  const int64_t bytes = int64_t(size_of(v.dtype));
  bool all = uintptr_t(v.data) % 16 == 0 && (v.stride[3] == 1 || v.shape[3] == 1);
  for (int d = 0; d < 3; ++d) all = all && (v.shape[d] == 1 || v.stride[d] * bytes % 16 == 0);
  return all;
}

// WICK_CUDA_ATTENTION = cudnn, wgmma or mma leaves only that one of the three, for tests and timings.
bool allowed(std::string_view way) {
  const char* const only = std::getenv("WICK_CUDA_ATTENTION");
  return !only || !*only || only == way;
}

// Empty views are outputs that nobody wants.
bool all_aligned(const View& q, std::initializer_list<View> views) {
  return std::all_of(views.begin(), views.end(),
                     [&](const View& v) { return !v || (v.dtype == q.dtype && aligned(v)); });
}

// What cuDNN's attention promises to take; whether it really does, its plan says.
bool suits_cudnn(const CudaBackend& cuda, const View& q, const View& k, std::initializer_list<View> views) {
  const int64_t features = q.shape[3], widest = cuda.capability() == 90 ? 256 : 128;
  if (cuda.capability() < 80 || q.dtype == DType::f32 || features % 8 != 0 || features > widest) return false;
  return std::min(q.shape[1], k.shape[1]) >= kShort && all_aligned(q, views) && allowed("cudnn");
}

bool suits_mma(const CudaBackend& cuda, const View& q, float scale, std::initializer_list<View> views) {
  const int64_t features = q.shape[3];
  return cuda.capability() >= 80 && q.dtype != DType::f32 && features % 8 == 0 && features <= kAttentionMmaFeatures &&
         scale > 0 && all_aligned(q, views);
}

// Where our own go before cuDNN's. Measured on 9.0 (docs/kernels/attention_and_convolution.md): backward at every shape
// there, by 1.02 to 3.5 times, and forward where keys are few; elsewhere cuDNN's forward is faster by up to 1.36 times.
bool prefers_own(const CudaBackend& cuda, const View& k, bool backward) {
  if (cuda.capability() != 90) return cuda.capability() < 90;
  return backward || k.shape[1] <= 128;
}

// Tiles win where a launch costs more than the arithmetic, and in f32 where there are enough of them: there is no
// tensor core to miss. Backward keeps five of them in shared memory, more than Turing has.
bool suits_tiles(const CudaBackend& cuda, const View& q, const View& k, bool backward) {
  const int64_t heads = q.shape[0] * q.shape[2], shorter = std::min(q.shape[1], k.shape[1]);
  if (q.shape[3] > kAttentionTileFeatures || (backward && cuda.capability() < 80)) return false;
  if (q.shape[1] * k.shape[1] <= 256 * 256) return true;
  return q.dtype == DType::f32 && heads * ((shorter + 63) / 64) >= cuda.multiprocessors();
}

// A view to write that is always there.
class Output {
 public:
  Output(CudaBackend& cuda, const View& wanted, DType dtype, const Shape& shape) : view_(wanted) {
    if (wanted) return;
    scratch_.emplace(cuda, size_t(shape.numel()) * size_of(dtype));
    view_ = contiguous_view(scratch_->as<void>(), dtype, shape);
  }
  const View& view() const { return view_; }

 private:
  std::optional<Scratch> scratch_;
  View view_;
};

// Entries and heads of [B, T, H, D], or of statistics [B, H, T], from `entry` and `head` on.
View part_of(const View& v, int64_t entry, int64_t entries, int64_t head, int64_t heads) {
  return part_of(part_of(v, 0, entry, entries), v.rank() == 4 ? 2 : 1, head, heads);
}

// What only language models ask for.
bool of_language(const View& q, const View& k, const View& ranges) { return ranges || q.shape[2] != k.shape[2]; }

}  // namespace

void CudaBackend::attention(const AttentionArgs& a) {
  if (a.y.numel() == 0) return;
  if (a.k.shape[1] == 0) {
    fill(a.y, 0);
    if (a.lse) fill(a.lse, -INFINITY);
    return;
  }
  const Shape rows{a.q.shape[0], a.q.shape[2], a.q.shape[1]};
  const Output kept(*this, a.lse, DType::f32, rows);
  const DenseOutput statistics(*this, kept.view());
  const View s = statistics.view();
  const bool tensor_cores = suits_mma(*this, a.q, a.scale, {a.y, a.q, a.k, a.v});
  if (of_language(a.q, a.k, a.ranges)) {
    const DenseInput seen(*this, a.ranges);
    const auto way = !tensor_cores                            ? attention_by_rows
                     : a.q.shape[1] <= kFewQueries            ? attention_of_few_queries
                     : capability() == 90 && allowed("wgmma") ? attention_by_wgmma
                                                              : attention_of_ranges;
    way(*this, a.y, s, a.q, a.k, a.v, a.scale, a.causal, seen.view());
    return statistics.finish();
  }
  const auto by_cudnn = [&] {
    return suits_cudnn(*this, a.q, a.k, {a.y, a.q, a.k, a.v}) &&
           cudnn().attention(*this, a.y, s, a.q, a.k, a.v, a.scale, a.causal);
  };
  const bool wgmma = tensor_cores && capability() == 90 && allowed("wgmma"), mma = tensor_cores && allowed("mma");
  if (!((wgmma || mma) && prefers_own(*this, a.k, false)) && by_cudnn()) return statistics.finish();
  if (!wgmma && (mma || suits_tiles(*this, a.q, a.k, false)))
    (mma ? attention_by_mma : attention_by_tiles)(*this, a.y, s, a.q, a.k, a.v, a.scale, a.causal);
  else
    (wgmma ? attention_by_wgmma : attention_by_rows)(*this, a.y, s, a.q, a.k, a.v, a.scale, a.causal, {});
  statistics.finish();
}

void CudaBackend::attention_backward(const AttentionArgs& a, const AttentionGradients& g) {
  if (a.q.numel() == 0 || a.k.numel() == 0) {
    for (const View& unreached : {g.dq, g.dk, g.dv})
      if (unreached && unreached.numel() > 0) fill(unreached, 0);
    return;
  }
  const DenseInput statistics(*this, a.lse);
  const View s = statistics.view();
  const bool tensor_cores = suits_mma(*this, a.q, a.scale, {g.dq, g.dk, g.dv, g.dy, a.y, a.q, a.k, a.v});
  const bool wgmma = tensor_cores && capability() == 90 && allowed("wgmma"), mma = tensor_cores && allowed("mma");
  const auto by_cudnn = [&] {
    if (!suits_cudnn(*this, a.q, a.k, {g.dy, a.y, a.q, a.k, a.v})) return false;
    const Output grad_q(*this, g.dq, a.q.dtype, a.q.shape), grad_k(*this, g.dk, a.q.dtype, a.k.shape),
        grad_v(*this, g.dv, a.q.dtype, a.k.shape);
    const AttentionParts parts(a.q.shape, a.k.shape[1]);
    bool done = all_aligned(a.q, {grad_q.view(), grad_k.view(), grad_v.view()});
    for (int64_t b = 0; done && b < a.q.shape[0]; b += parts.entries)
      for (int64_t h = 0; done && h < a.q.shape[2]; h += parts.heads) {
        const auto part = [&](const View& view) {
          return part_of(view, b, std::min(parts.entries, a.q.shape[0] - b), h,
                         std::min(parts.heads, a.q.shape[2] - h));
        };
        done =
            cudnn().attention_backward(*this, part(grad_q.view()), part(grad_k.view()), part(grad_v.view()), part(g.dy),
                                       part(a.y), part(s), part(a.q), part(a.k), part(a.v), a.scale, a.causal);
      }
    return done;
  };
  const bool language = of_language(a.q, a.k, a.ranges);
  if (!language && !((wgmma || mma) && prefers_own(*this, a.k, true)) && by_cudnn()) return;
  const Scratch memory(*this, size_t(s.numel()) * sizeof(float));
  const View delta = contiguous_view(memory.as<void>(), DType::f32, s.shape);
  (tensor_cores ? attention_packed_delta : attention_delta)(*this, delta, g.dy, a.y);
  const DenseInput seen(*this, a.ranges);
  if (wgmma)
    attention_by_wgmma_backward(*this, g.dq, g.dk, g.dv, g.dy, s, delta, a.q, a.k, a.v, a.scale, a.causal, seen.view());
  else if (language && tensor_cores)
    attention_of_ranges_backward(*this, g.dq, g.dk, g.dv, g.dy, s, delta, a.q, a.k, a.v, a.scale, a.causal,
                                 seen.view());
  else if (!language && (mma || suits_tiles(*this, a.q, a.k, true)))
    (mma ? attention_by_mma_backward : attention_by_tiles_backward)(*this, g.dq, g.dk, g.dv, g.dy, s, delta, a.q, a.k,
                                                                    a.v, a.scale, a.causal);
  else
    attention_by_rows_backward(*this, g.dq, g.dk, g.dv, g.dy, s, delta, a.q, a.k, a.v, a.scale, a.causal, seen.view());
}

}  // namespace wick
