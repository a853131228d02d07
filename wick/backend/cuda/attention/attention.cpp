// Attention by the way that plan.h chooses.
#include <algorithm>

#include "wick/backend/cuda/attention/kernels.h"
#include "wick/backend/cuda/attention/plan.h"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/runtime/cudnn.h"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/ways.h"
#include "wick/backend/scratch.h"

namespace wick {
namespace {

bool lies_right(const View& v) {
  const int64_t bytes = int64_t(size_of(v.dtype));
  bool all = aligned(v.data) && (v.stride[3] == 1 || v.shape[3] == 1);
  for (int d = 0; d < 3; ++d) all = all && (v.shape[d] == 1 || v.stride[d] * bytes % 16 == 0);
  return all;
}

// Empty views are unwanted outputs.
bool all_aligned(const View& q, std::initializer_list<View> views) {
  return std::all_of(views.begin(), views.end(),
                     [&](const View& v) { return !v || (v.dtype == q.dtype && lies_right(v)); });
}

AttentionShape shape_of(const AttentionArgs& a, bool backward, std::initializer_list<View> views) {
  return {.entries = a.q.shape[0],
          .queries = a.q.shape[1],
          .keys = a.k.shape[1],
          .heads = a.q.shape[2],
          .key_heads = a.k.shape[2],
          .features = a.q.shape[3],
          .dtype = a.q.dtype,
          .ranges = bool(a.ranges),
          .backward = backward,
          .aligned = all_aligned(a.q, views),
          .positive_scale = a.scale > 0};
}

// Calls run(way) for the planned way, and for the one behind it where cuDNN's has no kernel and returns false.
template <class Run>
void run_planned(const Gpu& gpu, const AttentionShape& shape, const Run& run) {
  for (bool cudnn = true, done = false; !done; cudnn = false) {
    const AttentionWay way = plan_attention(gpu, shape, cudnn);
    done = run(way);
    if (done && explains()) explain(to_string(shape), std::string(to_string(way)));
  }
}

// Our kernels for each way; cuDNN's calls are methods.
auto forward_by(AttentionWay way) {
  return way == AttentionWay::few     ? attention_of_few_queries
         : way == AttentionWay::wgmma ? attention_by_wgmma
         : way == AttentionWay::mma   ? attention_by_mma
         : way == AttentionWay::tiles ? attention_by_tiles
                                      : attention_by_rows;
}
auto backward_by(AttentionWay way) {
  return way == AttentionWay::wgmma   ? attention_by_wgmma_backward
         : way == AttentionWay::mma   ? attention_by_mma_backward
         : way == AttentionWay::tiles ? attention_by_tiles_backward
                                      : attention_by_rows_backward;
}

// A view to write that is always there.
Held output(CudaBackend& cuda, const View& wanted, DType dtype, const Shape& shape) {
  return wanted ? Held(wanted) : Held(cuda, dtype, shape);
}

// Entries and heads of [B, T, H, D], or of statistics [B, H, T], from `entry` and `head` on.
View part_of(const View& v, int64_t entry, int64_t entries, int64_t head, int64_t heads) {
  return part_of(part_of(v, 0, entry, entries), v.rank() == 4 ? 2 : 1, head, heads);
}

// False, and nothing done, where cuDNN has no kernel.
bool backward_by_cudnn(CudaBackend& cuda, const AttentionArgs& a, const AttentionGradients& g, const View& statistics) {
  const Held grad_q = output(cuda, g.dq, a.q.dtype, a.q.shape), grad_k = output(cuda, g.dk, a.q.dtype, a.k.shape),
             grad_v = output(cuda, g.dv, a.q.dtype, a.k.shape);
  const AttentionParts parts(a.q.shape, a.k.shape[1]);
  bool done = true;
  for (int64_t b = 0; done && b < a.q.shape[0]; b += parts.entries)
    for (int64_t h = 0; done && h < a.q.shape[2]; h += parts.heads) {
      const auto part = [&](const View& view) {
        return part_of(view, b, std::min(parts.entries, a.q.shape[0] - b), h, std::min(parts.heads, a.q.shape[2] - h));
      };
      done = cuda.cudnn().attention_backward(
          cuda, {part(a.y), part(statistics), part(a.q), part(a.k), part(a.v), a.scale, a.causal},
          {part(grad_q.view()), part(grad_k.view()), part(grad_v.view()), part(g.dy)});
    }
  return done;
}

}  // namespace

void CudaBackend::attention(const AttentionArgs& a) {
  if (a.y.numel() == 0) return;
  if (a.k.shape[1] == 0) {
    fill(a.y, 0);
    if (a.lse) fill(a.lse, -INFINITY);
    return;
  }
  const Shape rows{a.q.shape[0], a.q.shape[2], a.q.shape[1]};
  const Held kept = output(*this, a.lse, DType::f32, rows);
  const DenseOutput statistics(*this, kept.view());
  const View s = statistics.view();
  const DenseInput seen(*this, a.ranges);
  const AttentionArgs dense{a.y, s, a.q, a.k, a.v, a.scale, a.causal, seen.view()};
  run_planned(*this, shape_of(a, false, {a.y, a.q, a.k, a.v}), [&](AttentionWay way) {
    if (way == AttentionWay::cudnn) return cudnn().attention(*this, dense);
    forward_by(way)(*this, dense);
    return true;
  });
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
  const AttentionShape shape = shape_of(a, true, {g.dq, g.dk, g.dv, g.dy, a.y, a.q, a.k, a.v});
  run_planned(*this, shape, [&](AttentionWay way) {
    if (way == AttentionWay::cudnn) return backward_by_cudnn(*this, a, g, s);
    const Held delta(*this, DType::f32, s.shape);
    const bool packed = way == AttentionWay::wgmma || way == AttentionWay::mma;
    (packed ? attention_packed_delta : attention_delta)(*this, delta.view(), g.dy, a.y);
    const DenseInput seen(*this, a.ranges);
    backward_by(way)(*this, {a.y, s, a.q, a.k, a.v, a.scale, a.causal, seen.view()}, g, delta.view());
    return true;
  });
}

}  // namespace wick
