// Which attention runs where: cuDNN's for 16-bit activations, else our own (attention_own.h).
#include <algorithm>

#include "wick/backend/attention_parts.h"
#include "wick/backend/cuda/attention_own.h"
#include "wick/backend/cuda/cudnn.h"
#include "wick/backend/cuda/dense.h"

namespace wick {
namespace {

constexpr int64_t kShort = 16;  // fewer queries or keys than this are not worth a plan of cuDNN's

bool aligned(const View& v) {
  const int64_t bytes = int64_t(size_of(v.dtype));
  bool all = uintptr_t(v.data) % 16 == 0 && (v.stride[3] == 1 || v.shape[3] == 1);
  for (int d = 0; d < 3; ++d) all = all && (v.shape[d] == 1 || v.stride[d] * bytes % 16 == 0);
  return all;
}

// What cuDNN's attention promises to take; whether it really does, its plan says.
bool suits_cudnn(const CudaBackend& cuda, const View& q, const View& k, std::initializer_list<View> views) {
  const int64_t features = q.shape[3], widest = cuda.capability() == 90 ? 256 : 128;
  if (cuda.capability() < 80 || q.dtype == DType::f32 || features % 8 != 0 || features > widest) return false;
  if (std::min(q.shape[1], k.shape[1]) < kShort) return false;
  return std::all_of(views.begin(), views.end(), [&](const View& v) { return v.dtype == q.dtype && aligned(v); });
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
  View part = v;
  const int axis = v.rank() == 4 ? 2 : 1;
  part.data = v.as<char>() + (entry * v.stride[0] + head * v.stride[axis]) * int64_t(size_of(v.dtype));
  part.shape[0] = entries;
  part.shape[axis] = heads;
  return part;
}

}  // namespace

void CudaBackend::attention(View y, View lse, View q, View k, View v, float scale, bool causal) {
  if (y.numel() == 0) return;
  if (k.shape[1] == 0) {
    fill(y, 0);
    if (lse) fill(lse, -INFINITY);
    return;
  }
  const Shape rows{q.shape[0], q.shape[2], q.shape[1]};
  const Output kept(*this, lse, DType::f32, rows);
  const DenseOutput statistics(*this, kept.view());
  const View s = statistics.view();
  const bool done = suits_cudnn(*this, q, k, {y, q, k, v}) && cudnn().attention(*this, y, s, q, k, v, scale, causal);
  if (!done)
    (suits_tiles(*this, q, k, false) ? attention_by_tiles : attention_by_rows)(*this, y, s, q, k, v, scale, causal);
  statistics.finish();
}

void CudaBackend::attention_backward(View dq, View dk, View dv, View dy, View y, View lse, View q, View k, View v,
                                     float scale, bool causal) {
  if (q.numel() == 0 || k.numel() == 0) {
    for (const View& unreached : {dq, dk, dv})
      if (unreached && unreached.numel() > 0) fill(unreached, 0);
    return;
  }
  const DenseInput statistics(*this, lse);
  const View s = statistics.view();
  if (suits_cudnn(*this, q, k, {dy, y, q, k, v})) {
    const Output grad_q(*this, dq, q.dtype, q.shape), grad_k(*this, dk, q.dtype, k.shape),
        grad_v(*this, dv, q.dtype, k.shape);
    const AttentionParts parts(q.shape, k.shape[1]);
    bool done = suits_cudnn(*this, q, k, {grad_q.view(), grad_k.view(), grad_v.view()});
    for (int64_t b = 0; done && b < q.shape[0]; b += parts.entries)
      for (int64_t h = 0; done && h < q.shape[2]; h += parts.heads) {
        const auto part = [&](const View& view) {
          return part_of(view, b, std::min(parts.entries, q.shape[0] - b), h, std::min(parts.heads, q.shape[2] - h));
        };
        done = cudnn().attention_backward(*this, part(grad_q.view()), part(grad_k.view()), part(grad_v.view()),
                                          part(dy), part(y), part(s), part(q), part(k), part(v), scale, causal);
      }
    if (done) return;
  }
  const Scratch memory(*this, size_t(s.numel()) * sizeof(float));
  const View delta = contiguous_view(memory.as<void>(), DType::f32, s.shape);
  attention_delta(*this, delta, dy, y);
  (suits_tiles(*this, q, k, true) ? attention_by_tiles_backward : attention_by_rows_backward)(
      *this, dq, dk, dv, dy, s, delta, q, k, v, scale, causal);
}

}  // namespace wick
