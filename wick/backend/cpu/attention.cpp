// Attention, a block of queries at a time: scores, softmax and the sum of values stay in one core's cache, and nothing
// of size T x S is kept (Dao et al., "FlashAttention", 2022). Backward computes the probabilities again from the saved
// log-sum-exp of each row.
// B batch, T queries, S keys, H heads of queries, G of keys and values, D features.
#include <cassert>
#include <cmath>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/gemm.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/attention.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace wick {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE float sum_of_floats(const float* x, int64_t n) {
  FloatVec even = set(0), odd = set(0);
  int64_t i = 0;
  for (; i + 2 * lanes() <= n; i += 2 * lanes()) {
    even = hn::Add(even, load(x + i));
    odd = hn::Add(odd, load(x + i + lanes()));
  }
  for (; i < n; i += lanes()) even = hn::Add(even, i + lanes() <= n ? load(x + i) : load_first(x + i, n - i));
  return hn::GetLane(hn::SumOfLanes(Floats(), hn::Add(even, odd)));
}

// x = exp(x - max(x)) for a row of scores; returns their sum.
float ExpRow(float* x, int64_t n, float* maximum) {
  *maximum = maximum_of(x, n);
  map(ExpShifted{set(*maximum)}, x, n, x);
  return sum_of_floats(x, n);
}

// From scores x and the gradients dp of the probabilities: x = the probabilities, dp = the gradients of the scores.
void ScoreGradientRow(float* x, float* dp, int64_t n, float lse, float mean) {
  for_columns(n, [&](auto at) HWY_ATTR {
    const FloatVec p = exp(hn::Sub(at.of(x), set(lse)));
    at.put(p, x);
    at.put(hn::Mul(p, hn::Sub(at.of(dp), set(mean))), dp);
  });
}

float DotRow(const float* a, const float* b, int64_t n) {
  FloatVec sum = set(0);
  for_columns(n, [&](auto at) HWY_ATTR { sum = hn::MulAdd(at.of(a), at.of(b), sum); });
  return hn::GetLane(hn::SumOfLanes(Floats(), sum));
}

void ScaleRow(float* x, int64_t n, float scale) { map(Scaled{set(scale)}, x, n, x); }
void AddRow(float* y, const float* x, int64_t n) { map(Add(), y, n, y, x); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace wick {

HWY_EXPORT(ExpRow);
HWY_EXPORT(ScoreGradientRow);
HWY_EXPORT(DotRow);
HWY_EXPORT(ScaleRow);
HWY_EXPORT(AddRow);

namespace {

View by_head(const View& v) {  // [B, T, H, D] as [B, H, T, D]
  if (!v) return {};
  assert(v.rank() == 4 && (v.stride[3] == 1 || v.shape[3] == 1));
  return transposed(v, 1, 2);
}

float* row(const Matrix& m, int64_t i) { return m.data + i * m.ld; }

// The queries of one head, in blocks whose scores fit a core's cache, and small enough that there are kTasks of them.
constexpr int64_t kTasks = 16;

struct Blocks {
  int64_t rows, count;

  Blocks(int64_t heads, int64_t queries, int64_t keys) {
    constexpr int64_t kScores = 1 << 17, kFewest = 32;
    const int64_t for_cache = std::clamp<int64_t>(kScores / std::max<int64_t>(keys, 1), 128, 256);
    const int64_t for_tasks = heads * queries / kTasks;
    rows = std::max(kFewest, std::min(for_cache, for_tasks) / 16 * 16);
    count = (queries + rows - 1) / rows;
  }
};

// One number for each query of one head.
struct RowStatistic {
  float* data;
  int64_t stride;

  RowStatistic(const View& v, int64_t head) : data(v.as<float>()), stride(v ? v.stride[2] : 0) {
    if (v) data += head / v.shape[1] * v.stride[0] + head % v.shape[1] * v.stride[1];
  }
  float& operator[](int64_t i) const { return data[i * stride]; }
};

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Which keys the queries of one entry see.
struct Sight {
  int64_t keys;
  bool causal;
  const int32_t* ranges;  // of the entry, or null
  int64_t query_stride, bound_stride;

  Sight(const View& v, int64_t entry, int64_t key_count, bool is_causal)
      : keys(key_count),
        causal(is_causal),
        ranges(v ? v.as<int32_t>() + entry * v.stride[0] : nullptr),
        query_stride(v ? v.stride[1] : 0),
        bound_stride(v ? v.stride[2] : 0) {}

  Range of(int64_t query) const {
    if (!ranges) return {0, causal ? std::min(query + 1, keys) : keys};
    const int32_t* bounds = ranges + query * query_stride;
    assert(0 <= bounds[0] && bounds[0] <= bounds[bound_stride] && bounds[bound_stride] <= keys);
    return {bounds[0], bounds[bound_stride]};
  }
  // The range that queries [first, last) see together: neither bound falls, so the ends decide.
  Range of(int64_t first, int64_t last) const { return {of(first).begin, of(last - 1).end}; }
};

// Zeroes the part of a row of scores [seen.begin, seen.end) outside its own range.
void clear_outside(float* scores, const Range& own, const Range& seen) {
  std::fill(scores, scores + own.begin - seen.begin, 0.0f);
  std::fill(scores + own.end - seen.begin, scores + seen.size(), 0.0f);
}

void forward_block(const Matrix& y, const RowStatistic& lse, const Matrix& q, const Matrix& k, const Matrix& v,
                   const Sight& sight, float scale, int64_t first, int64_t last, float* work) {
  const Range seen = sight.of(first, last);
  const int64_t rows = last - first;
  const Matrix p = row_major(work, rows, seen.size()), out = y.row_range(first, last);
  float* sums = work + rows * seen.size();
  gemm_here(p, q.row_range(first, last), k.row_range(seen.begin, seen.end).t(), scale);
  for (int64_t i = 0; i < rows; ++i) {
    const Range own = sight.of(first + i);
    float maximum;
    sums[i] = HWY_DYNAMIC_DISPATCH(ExpRow)(row(p, i) + own.begin - seen.begin, own.size(), &maximum);
    clear_outside(row(p, i), own, seen);
    if (lse.data) lse[first + i] = maximum + std::log(sums[i]);
  }
  gemm_here(out, p, v.row_range(seen.begin, seen.end));
  for (int64_t i = 0; i < rows; ++i)
    HWY_DYNAMIC_DISPATCH(ScaleRow)(row(out, i), out.cols, sums[i] == 0 ? 0 : 1 / sums[i]);
}

struct HeadGradients {
  Matrix dq, dk, dv;  // no data: not wanted. dk and dv are added to.
  Matrix dy, y, q, k, v;
  RowStatistic lse;
  Sight sight;
  float scale;

  void add_block(int64_t first, int64_t last, float* work) const {
    const Range seen = sight.of(first, last);
    const int64_t rows = last - first, size = rows * seen.size();
    const Matrix p = row_major(work, rows, seen.size()), ds = row_major(work + size, rows, seen.size());
    const Matrix queries = q.row_range(first, last), grads = dy.row_range(first, last);
    const Matrix keys = k.row_range(seen.begin, seen.end);
    gemm_here(p, queries, keys.t(), scale);
    gemm_here(ds, grads, v.row_range(seen.begin, seen.end).t());
    for (int64_t i = 0; i < rows; ++i) {
      const Range own = sight.of(first + i);
      const int64_t skip = own.begin - seen.begin;
      const float mean = HWY_DYNAMIC_DISPATCH(DotRow)(row(grads, i), row(y, first + i), y.cols);
      HWY_DYNAMIC_DISPATCH(ScoreGradientRow)(row(p, i) + skip, row(ds, i) + skip, own.size(), lse[first + i], mean);
      clear_outside(row(p, i), own, seen);
      clear_outside(row(ds, i), own, seen);
    }
    if (dv.data) gemm_here(dv.row_range(seen.begin, seen.end), p.t(), grads, 1, 1);
    if (dk.data) gemm_here(dk.row_range(seen.begin, seen.end), ds.t(), queries, scale, 1);
    if (dq.data) gemm_here(dq.row_range(first, last), ds, keys, scale);
  }
};

void clear(const Matrix& m) {
  for (int64_t i = 0; i < m.rows; ++i) std::fill_n(row(m, i), m.cols, 0.0f);
}

// The gradients of keys and values: every block of queries adds to them, for all heads that read them. So that more
// threads than heads have work and the bits stay the same, the blocks are split into parts with a sum each (as
// split-K), added up in order.
class PartialSums {
 public:
  PartialSums(const View& total, int64_t heads, int64_t parts)
      : total_(by_head(total), MatrixBatch::write), heads_(heads), parts_(parts) {
    if (total && parts > 1) partial_ = Scratch(heads * (parts - 1) * total.shape[1] * total.shape[3]);
  }

  Matrix cleared(int64_t head, int64_t part) const {
    if (!total_) return {};
    const Matrix m = at(head, part);
    clear(m);
    return m;
  }

  void add_up() const {
    if (!total_) return;
    if (parts_ > 1) parallel_tasks(heads_, [&](int64_t head) { add_parts(head); });
    total_.store();
  }

 private:
  void add_parts(int64_t head) const {
    const Matrix sum = total_[head];
    for (int64_t part = 1; part < parts_; ++part) {
      const Matrix term = at(head, part);
      for (int64_t i = 0; i < sum.rows; ++i) HWY_DYNAMIC_DISPATCH(AddRow)(row(sum, i), row(term, i), sum.cols);
    }
  }

  Matrix at(int64_t head, int64_t part) const {
    const Matrix sum = total_[head];
    if (part == 0) return sum;
    return row_major(partial_.data() + (head * (parts_ - 1) + part - 1) * sum.rows * sum.cols, sum.rows, sum.cols);
  }

  MatrixBatch total_;
  int64_t heads_, parts_;
  Scratch partial_;
};

// Calls task(index, work) for every index below `count`, with `floats` of scratch. `flops` is the work in all of them.
template <class Task>
void scratch_tasks(int64_t count, int64_t floats, double flops, const Task& task) {
  constexpr double kElement = 16;  // flops that take as long as copying an element
  parallel_each(count, int64_t(flops / kElement), [&](int64_t i) { task(i, Scratch(floats).data()); });
}

// Of one product of queries and keys, or of probabilities and values, for all heads.
double product_flops(const AttentionArgs& a) { return 2.0 * double(a.q.numel()) * double(a.k.shape[1]); }

// Decoding: heads that read the same keys become the queries of one head.
void attention_of_one_query(CpuBackend& cpu, AttentionArgs a) {
  const int64_t groups = a.k.shape[2], shared = a.q.shape[2] / groups;
  const auto grouped = [&](const View& x) -> View {
    return {x.data,
            x.dtype,
            {x.shape[0], shared, groups, x.shape[3]},
            {x.stride[0], x.stride[2], shared * x.stride[2], x.stride[3]}};
  };
  a.y = grouped(a.y);
  a.q = grouped(a.q);
  if (a.lse) {
    a.lse.shape = {a.lse.shape[0], groups, shared};
    a.lse.stride = {a.lse.stride[0], shared * a.lse.stride[1], a.lse.stride[1]};
  }
  if (a.ranges) {
    a.ranges.shape[1] = shared;
    a.ranges.stride[1] = 0;
  }
  a.causal = false;
  cpu.attention(a);
}

}  // namespace

void CpuBackend::attention(const AttentionArgs& a) {
  if (a.q.shape[1] == 1 && a.k.shape[2] < a.q.shape[2]) return attention_of_one_query(*this, a);
  const int64_t heads = a.q.shape[0] * a.q.shape[2], queries = a.q.shape[1], keys = a.k.shape[1];
  const MatrixBatch out(by_head(a.y), MatrixBatch::write), query(by_head(a.q)), key(by_head(a.k)), value(by_head(a.v));
  const Blocks blocks(heads, queries, keys);
  const int64_t shared = a.q.shape[2] / a.k.shape[2];
  scratch_tasks(heads * blocks.count, blocks.rows * (keys + 1), 2 * product_flops(a), [&](int64_t task, float* work) {
    const int64_t head = task / blocks.count, first = task % blocks.count * blocks.rows;
    const Sight sight(a.ranges, head / a.q.shape[2], keys, a.causal);
    forward_block(out[head], RowStatistic(a.lse, head), query[head], key[head / shared], value[head / shared], sight,
                  a.scale, first, std::min(first + blocks.rows, queries), work);
  });
  out.store();
}

void CpuBackend::attention_backward(const AttentionArgs& a, const AttentionGradients& g) {
  const int64_t heads = a.k.shape[0] * a.k.shape[2], queries = a.q.shape[1], keys = a.k.shape[1];
  const int64_t shared = a.q.shape[2] / a.k.shape[2];
  const MatrixBatch grad_q(by_head(g.dq), MatrixBatch::write), grad(by_head(g.dy)), out(by_head(a.y)),
      query(by_head(a.q)), key(by_head(a.k)), value(by_head(a.v));
  const Blocks blocks(heads * shared, queries, keys);
  const int64_t all_blocks = shared * blocks.count;
  const int64_t parts = std::clamp<int64_t>(kTasks / std::max<int64_t>(heads, 1), 1, std::max<int64_t>(all_blocks, 1));
  const PartialSums grad_k(g.dk, heads, parts), grad_v(g.dv, heads, parts);
  scratch_tasks(heads * parts, 2 * blocks.rows * keys, 5 * product_flops(a), [&](int64_t task, float* work) {
    const int64_t group = task / parts, part = task % parts;
    const Matrix sum_k = grad_k.cleared(group, part), sum_v = grad_v.cleared(group, part);
    const int64_t begin = all_blocks * part / parts, end = all_blocks * (part + 1) / parts;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = group * shared + i / blocks.count, first = i % blocks.count * blocks.rows;
      const HeadGradients gradients{g.dq ? grad_q[head] : Matrix(),
                                    sum_k,
                                    sum_v,
                                    grad[head],
                                    out[head],
                                    query[head],
                                    key[group],
                                    value[group],
                                    RowStatistic(a.lse, head),
                                    Sight(a.ranges, head / a.q.shape[2], keys, a.causal),
                                    a.scale};
      gradients.add_block(first, std::min(first + blocks.rows, queries), work);
    }
  });
  grad_q.store();
  grad_k.add_up();
  grad_v.add_up();
}

}  // namespace wick
#endif  // HWY_ONCE
