// Norms of rows, layer_norm and rms_norm, forward and backward, and that of a gated sum. A row stays in registers
// between its statistics and its use; the sums over rows behind the gradients of weights and modulations are taken
// apart (norm/tiles.cuh).
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/norm/tiles.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

struct Times {
  static __device__ __forceinline__ float of(float x, float by) { return x * by; }
};
struct Modulate {
  static __device__ __forceinline__ float of(float x, float scale) { return fmaf(x, scale, x); }
};

template <class Op, int N, class V>
__device__ __forceinline__ void combine(float (&x)[N], const V* with, int first) {
  float other[N];
  load_floats(other, with, first);
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = Op::of(x[j], other[j]);
}

// RowAffine for one row. Each step is skipped by all threads or by none.
template <class V>
class AffineOf {
 public:
  __device__ __forceinline__ AffineOf(const RowAffine<V>& a, int64_t row) : w_(a.w), b_(a.b) {
    const int64_t image = a.scale.data || a.shift.data ? row / a.image_rows : 0;
    scale_ = a.scale.data ? a.scale[image] : nullptr;
    shift_ = a.shift.data ? a.shift[image] : nullptr;
  }
  // From x_hat to y.
  template <int N>
  __device__ __forceinline__ void apply(float (&x)[N], int first) const {
    if (w_) combine<Times>(x, w_, first);
    if (b_) combine<Sum>(x, b_, first);
    if (scale_) combine<Modulate>(x, scale_, first);
    if (shift_) combine<Sum>(x, shift_, first);
  }
  // From dy to the gradient at x_hat.
  template <int N>
  __device__ __forceinline__ void apply_back(float (&dy)[N], int first) const {
    if (w_) combine<Times>(dy, w_, first);
    if (scale_) combine<Modulate>(dy, scale_, first);
  }

 private:
  const float *w_, *b_;
  const V *scale_, *shift_;
};

// Rows that the kernel before may still be writing: on their way by the time that they may be read. One may be null.
template <class T, int N, int Count>
__device__ __forceinline__ void wait_for_row(const T* const (&rows)[Count], int width) {
  if constexpr (N > 1)
    if (threadIdx.x == 0)
#pragma unroll
      for (int c = 0; c < Count; ++c)
        if (rows[c]) prefetch(rows[c], width);
  wait_for_previous();
}

// Without `centred` the mean counts as 0.
template <class T, class V, int N>
__device__ __forceinline__ void norm_row(T* to, float* mean, float* rstd, const HeldRows<T, N, 1>& held,
                                         const AffineOf<V>& affine, int64_t row, int width, float eps, bool centred) {
  const float inverse_width = 1 / float(width);
  float pivot = 0;  // the mean, but for rounding, which the distances from it show
  if (centred) {
    held.each([&](int, const Pack<T, N>(&pack)[1]) {
      float part = 0;
#pragma unroll
      for (int j = 0; j < N; ++j) part += element(pack[0], j);
      pivot += part;
    });
    pivot = row_reduce<Sum>(pivot) * inverse_width;
  }
  float sums[2] = {};
  held.each([&](int, const Pack<T, N>(&pack)[1]) {
    float distance = 0, square = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float d = element(pack[0], j) - pivot;
      distance += d;
      square = fmaf(d, d, square);
    }
    sums[0] += distance;
    sums[1] += square;
  });
  row_reduce<Sum>(sums);
  const float rest = centred ? sums[0] * inverse_width : 0;
  const float r = 1 / sqrtf(fmaf(-rest, rest, sums[1] * inverse_width) + eps);
  if (threadIdx.x == 0 && mean) mean[row] = pivot + rest;
  if (threadIdx.x == 0 && rstd) rstd[row] = r;
  held.each([&](int first, const Pack<T, N>(&pack)[1]) {
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = fmaf(element(pack[0], j) - pivot, r, -rest * r);
    affine.apply(values, first);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.value[j] = from_float<T>(values[j]);
    store_pack(to + first, out);
  });
}

template <class T, class V, int N>
__global__ void __launch_bounds__(kRowThreads)
    row_norm(const RowsOf<T> y, float* mean, float* rstd, const RowsOf<const T> x, const RowAffine<V> a, int64_t rows,
             int width, float eps, bool centred) {
  const int64_t row = this_row(rows);
  launch_dependents();
  wait_for_row<T, N, 1>({x[row]}, width);
  const HeldRows<T, N, 1> held({x[row]}, width);
  norm_row<T, V, N>(y[row], mean, rstd, held, AffineOf<V>(a, row), row, width, eps, centred);
}

// The same for x + gate * h, which is written to `sum`.
template <class T, class V, int N>
__global__ void __launch_bounds__(kRowThreads)
    gated_add_norm(const RowsOf<T> y, float* mean, float* rstd, const RowsOf<T> sum, const RowsOf<const T> x,
                   const RowsOf<const V> gates, const RowsOf<const T> h, const RowAffine<V> a, int64_t rows, int width,
                   float eps) {
  const int64_t row = this_row(rows);
  launch_dependents();
  wait_for_row<T, N, 2>({x[row], h[row]}, width);
  const V* const gate = gates[row / a.image_rows];
  const HeldRows<T, N, 2> parts({x[row], h[row]}, width);
  const HeldRows<T, N, 1> held = parts.map(sum[row], [&](int first, const Pack<T, N>(&packs)[2]) {
    float factors[N];
    load_floats(factors, gate, first);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j)
      out.value[j] = from_float<T>(fmaf(factors[j], element(packs[1], j), element(packs[0], j)));
    return out;
  });
  norm_row<T, V, N>(y[row], mean, rstd, held, AffineOf<V>(a, row), row, width, eps, true);
}

// RMS norm of a few rows, between two products of a few tokens, is all latency: a thread has one pack, and where the
// weight is constant it loads its part before the row is there. w may be null.
constexpr int kFewRowsThreads = 1024;

template <class T, int N>
__global__ void __launch_bounds__(kFewRowsThreads)
    rms_norm_of_few_rows(const RowsOf<T> y, float* rstd, const RowsOf<const T> x, const float* w, bool constant,
                         int width, float eps) {
  launch_dependents();
  const int row = int(blockIdx.x), first = int(threadIdx.x) * N;
  const bool inside = first < width;
  float weight[N], values[N] = {}, sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) weight[j] = 1;
  if (!constant) wait_for_previous();
  if (inside && w) load_floats(weight, w, first);
  if (constant) wait_for_previous();
  if (inside) load_floats(values, x[row], first);
#pragma unroll
  for (int j = 0; j < N; ++j) sum = fmaf(values[j], values[j], sum);
  const float r = 1 / sqrtf(block_reduce<Sum>(sum) / float(width) + eps);
  if (threadIdx.x == 0 && rstd) rstd[row] = r;
  if (!inside) return;
  Pack<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) out.value[j] = from_float<T>(values[j] * r * weight[j]);
  store_pack(y[row] + first, out);
}

// Each thread of the gradient keeps fewer packs of its two rows: more rows at a time are worth more.
constexpr int kGradientPacks = 3;

// dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat)) + residual with g = dy * gain; without a mean of x the term
// mean(g) is absent. The residual may be null.
// Where the kernel before is one of this call whose results are not needed here (`beside`), it goes on meanwhile.
template <class T, class V, int N>
__global__ void __launch_bounds__(kRowThreads)
    row_norm_gradient(const RowsOf<T> dx, const RowsOf<const T> dy, const RowsOf<const T> x,
                      const RowsOf<const T> residual, const RowAffine<V> a, const float* mean, const float* rstd,
                      int64_t rows, int width, bool beside) {
  const int64_t row = this_row(rows);
  const T* const more = residual.data ? residual[row] : nullptr;
  launch_dependents();
  if (!beside) wait_for_row<T, N, 3>({dy[row], x[row], more}, width);
  const HeldRows<T, N, 2, kGradientPacks> held({dy[row], x[row]}, width);
  const AffineOf<V> affine(a, row);
  const float m = mean ? mean[row] : 0, r = rstd[row];
  const auto load_gradient = [&](float(&g)[N], const Pack<T, N>& dy_pack, int first) {
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = element(dy_pack, j);
    affine.apply_back(g, first);
  };
  float sums[2] = {};
  held.each([&](int first, const Pack<T, N>(&packs)[2]) {
    float g[N], plain = 0, scaled = 0;
    load_gradient(g, packs[0], first);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      plain += g[j];
      scaled = fmaf(g[j], element(packs[1], j) - m, scaled);
    }
    sums[0] += plain;
    sums[1] += scaled;
  });
  row_reduce<Sum>(sums);
  const float offset = mean ? r * sums[0] / float(width) : 0, slope = r * r * r * (sums[1] / float(width));
  T* const to = dx[row];
  held.each([&](int first, const Pack<T, N>(&packs)[2]) {
    float g[N];
    load_gradient(g, packs[0], first);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = fmaf(g[j], r, -fmaf(element(packs[1], j) - m, slope, offset));
    if (more) combine<Sum>(g, more, first);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.value[j] = from_float<T>(g[j]);
    store_pack(to + first, out);
  });
  if (beside) wait_for_previous();  // so that a wait for this kernel is a wait for both
}

// Sums of dy and of dy * x_hat over the rows of each chunk.
template <class T, int N>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    row_gradient_sums(ChannelSums* channel_sums, const RowsOf<const T> dy, const RowsOf<const T> x, const float* mean,
                      const float* rstd, const Tiling t) {
  constexpr int kBatch = 2;
  __shared__ TileSums<N> sums;
  const TilePlace at(t, N);
  if (N > 1) prefetch_tile(dy, at), prefetch_tile(x, at);
  wait_for_previous();
  launch_dependents();  // now: row_norm_gradient does not wait for earlier kernels
  float first[N] = {}, second[N] = {};
  const int64_t x_step = t.rows * x.stride, dy_step = t.rows * dy.stride;
  int64_t row = at.first + at.row;
  const T *x_from = x[row] + at.channel, *dy_from = dy[row] + at.channel;
  for (int left = at.turns; left > 0; left -= kBatch, x_from += kBatch * x_step, dy_from += kBatch * dy_step) {
    PackBatch<T, N, kBatch> xs, dys;
    xs.load(x_from, x_step, left);
    dys.load(dy_from, dy_step, left);
#pragma unroll
    for (int u = 0; u < kBatch; ++u, row += t.rows) {
      if (u >= left) break;
      const float m = mean ? mean[row] : 0, r = rstd[row];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float g = element(dys[u], j);
        first[j] += g;
        second[j] = fmaf(g, (element(xs[u], j) - m) * r, second[j]);
      }
    }
  }
  sums.add_up(t, at, first, second);
  for (int channel = int(threadIdx.x); channel < at.end - at.begin; channel += int(blockDim.x))
    channel_sums[(at.image * t.chunks + at.chunk) * t.channels + at.begin + channel] = {sums.totals[0][channel],
                                                                                        sums.totals[1][channel]};
}

// The inputs of the affine map, brought into the layout and dtype that kernels want. Without a modulation all rows are
// one image.
struct AffineInput {
  DType dtype;  // of scale and shift
  int64_t images, image_rows;
  DenseInput w, b;
  RowInput scale, shift;

  AffineInput(CudaBackend& cuda, const NormArgs& a, DType activations, const View& gate = {})
      : dtype(dtype_beside(activations, {a.m.scale, a.m.shift, gate})),
        images(a.m.scale || a.m.shift || gate ? a.x.dim(0) : 1),
        image_rows(a.x.numel() / a.x.dim(-1) / images),
        w(cuda, a.w, DType::f32),
        b(cuda, a.b, DType::f32),
        scale(cuda, a.m.scale, dtype),
        shift(cuda, a.m.shift, dtype) {}
  template <class V>
  RowAffine<V> of() const {
    return {w.as<float>(), b.as<float>(), scale.rows<const V>(), shift.rows<const V>(), image_rows};
  }
  bool packs() const { return aligned(w.view().data) && aligned(b.view().data) && scale.packs() && shift.packs(); }
};

void forward(CudaBackend& cuda, const NormArgs& a, bool centred) {
  if (a.x.numel() == 0) return;
  const DType dtype = common_dtype({a.x, a.y});
  const RowInput input(cuda, a.x, dtype);
  const RowOutput output(cuda, a.y, dtype);
  const AffineInput affine(cuda, a, dtype);
  const DenseOutput means(cuda, a.mean, DType::f32), rstds(cuda, a.rstd, DType::f32);
  const int64_t width = a.x.dim(-1), rows = a.x.numel() / width;
  const bool packs = input.packs() && output.packs() && affine.packs();
  dispatch_packs(dtype, affine.dtype, packs, [&]<class T, class V>(Type<T>, Type<V>, auto pack) {
    const dim3 threads = row_threads(width / pack.value);
    if constexpr (pack.value > 1) {
      const bool plain = !centred && !a.b && !a.m.scale && !a.m.shift, few = rows <= cuda.multiprocessors();
      if (plain && few && threads.y == 1 && width / pack.value <= kFewRowsThreads)
        return launch("rms_norm_of_few_rows", cuda.stream(),
                      overlapped(cuda, unsigned(rows), unsigned((width / pack.value + 31) / 32 * 32)),
                      rms_norm_of_few_rows<T, pack.value>, output.rows<T>(), rstds.as<float>(), input.rows<const T>(),
                      affine.w.as<float>(), !affine.w.view() || affine.w.view().constant, int(width), a.eps);
    }
    launch("row_norm", cuda.stream(), overlapped(cuda, row_blocks(rows, threads), threads), row_norm<T, V, pack.value>,
           output.rows<T>(), means.as<float>(), rstds.as<float>(), input.rows<const T>(), affine.of<V>(), rows,
           int(width), a.eps, centred);
  });
  output.finish();
  means.finish();
  rstds.finish();
}

void sum_and_norm(CudaBackend& cuda, const GatedSum& from, const NormArgs& a) {
  if (a.x.numel() == 0) return;
  const DType dtype = a.x.dtype;
  const RowInput x(cuda, from.x, dtype), h(cuda, from.h, dtype);
  const RowOutput sum(cuda, a.x, dtype), y(cuda, a.y, dtype);
  const AffineInput affine(cuda, a, dtype, from.gate);
  const RowInput gates(cuda, from.gate, affine.dtype);
  const DenseOutput means(cuda, a.mean, DType::f32), rstds(cuda, a.rstd, DType::f32);
  const int64_t width = a.x.dim(-1), rows = a.x.numel() / width;
  const bool packs = x.packs() && h.packs() && sum.packs() && y.packs() && affine.packs() && gates.packs();
  dispatch_packs(dtype, affine.dtype, packs, [&]<class T, class V>(Type<T>, Type<V>, auto pack) {
    const dim3 threads = row_threads(width / pack.value);
    launch("gated_add_norm", cuda.stream(), overlapped(cuda, row_blocks(rows, threads), threads),
           gated_add_norm<T, V, pack.value>, y.rows<T>(), means.as<float>(), rstds.as<float>(), sum.rows<T>(),
           x.rows<const T>(), gates.rows<const V>(), h.rows<const T>(), affine.of<V>(), rows, int(width), a.eps);
  });
  for (const RowOutput* out : {&sum, &y}) out->finish();
  for (const DenseOutput* out : {&means, &rstds}) out->finish();
}

// Without a mean x was not centred.
void backward(CudaBackend& cuda, const NormArgs& a, const NormGradients& g) {
  const bool sums_wanted = g.dw || g.db || g.dm.scale || g.dm.shift;
  if (a.x.numel() == 0) {
    for (const View& v : {g.dw, g.db, g.dm.scale, g.dm.shift})
      if (v) cuda.fill(v, 0);
    return;
  }
  const DType dtype = common_dtype({a.x, g.dy, g.dx, g.residual});
  const RowInput input(cuda, a.x, dtype), gradient(cuda, g.dy, dtype), more(cuda, g.residual, dtype);
  const RowOutput output(cuda, g.dx, dtype);
  const AffineInput affine(cuda, a, dtype);
  const DenseInput means(cuda, a.mean, DType::f32), rstds(cuda, a.rstd, DType::f32);
  const DenseOutput dweight(cuda, g.dw, DType::f32), dbias(cuda, g.db, DType::f32);
  const int64_t width = a.x.dim(-1), rows = a.x.numel() / width;
  const bool packs = input.packs() && gradient.packs() && more.packs() && output.packs() && affine.packs();
  dispatch_packs(dtype, affine.dtype, packs, [&]<class T, class V>(Type<T>, Type<V>, auto pack) {
    constexpr int N = pack.value;
    if (sums_wanted) {
      const Tiling t(cuda, affine.images, affine.image_rows, width, N);
      const Scratch sums(cuda, size_t(t.images * t.chunks * width) * sizeof(ChannelSums));
      launch("row_gradient_sums", cuda.stream(), overlapped(cuda, t.blocks(), t.threads()), row_gradient_sums<T, N>,
             sums.as<ChannelSums>(), gradient.rows<const T>(), input.rows<const T>(), means.as<float>(),
             rstds.as<float>(), t);
      const AffineGradients gradients{dweight.as<float>(), dbias.as<float>(), ImageVectors(g.dm.scale),
                                      ImageVectors(g.dm.shift)};
      finish_gradients(cuda, gradients, sums.as<ChannelSums>(), affine.of<V>(), t);
    }
    if (!g.dx) return;
    const dim3 threads = row_threads(width / N, kGradientPacks);
    launch("row_norm_gradient", cuda.stream(), overlapped(cuda, row_blocks(rows, threads), threads),
           row_norm_gradient<T, V, N>, output.rows<T>(), gradient.rows<const T>(), input.rows<const T>(),
           more.rows<const T>(), affine.of<V>(), means.as<float>(), rstds.as<float>(), rows, int(width), sums_wanted);
  });
  output.finish();
  dweight.finish();
  dbias.finish();
}

}  // namespace

void CudaBackend::layer_norm(const NormArgs& a) { forward(*this, a, true); }
void CudaBackend::gated_add_norm(const GatedSum& sum, const NormArgs& a) {
  const bool alike = sum.x.dtype == a.x.dtype && sum.h.dtype == a.x.dtype && a.y.dtype == a.x.dtype;
  alike ? sum_and_norm(*this, sum, a) : ComposedBackend::gated_add_norm(sum, a);
}
void CudaBackend::layer_norm_backward(const NormArgs& a, const NormGradients& g) { backward(*this, a, g); }
void CudaBackend::rms_norm(const NormArgs& a) { forward(*this, a, false); }
void CudaBackend::rms_norm_backward(const NormArgs& a, const NormGradients& g) { backward(*this, a, g); }

}  // namespace wick
