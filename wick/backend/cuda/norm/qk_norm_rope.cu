// Queries and keys of [B, T, 3, H, D], normed and turned, and values, copied, in one pass; and the gradients of that.
// Lanes of a warp share a head: each has the same packs of its query, key and value, so that angles are read once for
// both.
#include <bit>
#include <cassert>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/map/walk.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;

// All heads of all tokens. A head is three rows: its query, key and value.
struct Heads {
  uint32_t count;
  Divisor heads, tokens;
  int width;
  float inverse_width;

  explicit Heads(const View& x)
      : count(uint32_t(x.dim(0) * x.dim(1) * x.dim(3))),
        heads(x.dim(3)),
        tokens(x.dim(1)),
        width(int(x.dim(4))),
        inverse_width(1 / float(width)) {
    assert(x.dim(0) * x.dim(1) * x.dim(3) < int64_t{1} << 31);
  }
};
struct Head {
  int64_t entry, token, head;

  __device__ __forceinline__ Head(const Heads& all, uint32_t number) {
    const uint32_t of_all = all.heads.divide(number), image = all.tokens.divide(of_all);
    entry = image;
    token = of_all - image * all.tokens.divisor;
    head = number - of_all * all.heads.divisor;
  }
};
// Threads left over in the last block do the last head once more, to the same bits.
__device__ __forceinline__ Head this_head(const Heads& all) {
  return {all, min(blockIdx.x * blockDim.y + threadIdx.y, all.count - 1)};
}

template <class T>
struct QkvOf {
  T* data;
  int64_t entry, token, part, head;  // strides

  explicit QkvOf(const View& v)
      : data(v.as<T>()), entry(v.stride[0]), token(v.stride[1]), part(v.stride[2]), head(v.stride[3]) {}
  __device__ __forceinline__ T* at(const Head& of, int which) const {
    return data + of.entry * entry + of.token * token + of.head * head + which * part;
  }
};

// Dense tables in f32; those that are absent are null.
struct Tables {
  const float* norm[2];  // of queries and keys
  const float *cos, *sin;
  float eps;
};

// The angles of a token's pairs in a pack. Packs of one element are for heads that do not turn.
template <int N>
class Turn {
 public:
  __device__ __forceinline__ Turn(const Tables& tables, int64_t token, int width, int first, bool back)
      : turns_(N > 1 && tables.cos) {
    if (!turns_) return;
    const int64_t at = token * (width / 2) + first / 2;
    load_floats(cos_, tables.cos, at);
    load_floats(sin_, tables.sin, at);
#pragma unroll
    for (float& s : sin_) s = back ? -s : s;
  }
  __device__ __forceinline__ void apply(float (&x)[N]) const {
    if (!turns_) return;
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
      const float a = x[i], b = x[i + 1], c = cos_[i / 2], s = sin_[i / 2];
      x[i] = fmaf(a, c, -b * s);
      x[i + 1] = fmaf(a, s, b * c);
    }
  }

 private:
  static constexpr int kPairs = N > 1 ? N / 2 : 1;
  bool turns_;
  float cos_[kPairs], sin_[kPairs];
};

template <class T, int N>
__device__ __forceinline__ void unpack(float (&to)[N], const Pack<T, N>& from) {
#pragma unroll
  for (int j = 0; j < N; ++j) to[j] = element(from, j);
}
template <class T, int N>
__device__ __forceinline__ void store_floats(T* to, const float (&x)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack.value[j] = from_float<T>(x[j]);
  store_pack(to, pack);
}
template <int N>
__device__ __forceinline__ void multiply(float (&x)[N], const float* by, int first) {
  float factor[N];
  load_floats(factor, by, first);
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] *= factor[j];
}

__device__ __forceinline__ float rstd_of(float squares, const Heads& heads, const Tables& tables) {
  return rsqrtf(fmaf(squares, heads.inverse_width, tables.eps));
}

// `back` turns against the angles.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope(const QkvOf<T> y, const QkvOf<const T> x, const Tables tables, const Heads heads, bool back) {
  const Head head = this_head(heads);
  launch_dependents();
  wait_for_previous();
  const HeldRows<T, N, 3, 1> held({x.at(head, 0), x.at(head, 1), x.at(head, 2)}, heads.width);
  float sums[2] = {};
  if (tables.norm[0]) {
    held.each([&](int, const Pack<T, N>(&packs)[3]) {
#pragma unroll
      for (int which = 0; which < 2; ++which)
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float value = element(packs[which], j);
          sums[which] = fmaf(value, value, sums[which]);
        }
    });
    row_reduce<Sum>(sums);
  }
  held.each([&](int first, const Pack<T, N>(&packs)[3]) {
    const Turn<N> turn(tables, head.token, heads.width, first, back);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float values[N];
      unpack(values, packs[which]);
      if (tables.norm[0]) {
        const float r = rstd_of(sums[which], heads, tables);
#pragma unroll
        for (float& value : values) value *= r;
        multiply(values, tables.norm[which], first);
      }
      turn.apply(values);
      store_floats(y.at(head, which) + first, values);
    }
    store_pack(y.at(head, 2) + first, packs[2]);
  });
}

// dx = rstd * (g - x_hat * mean(g * x_hat)) with g = the norm's weight times dy, turned back; the values' is dy.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_gradient(const QkvOf<T> dx, const QkvOf<const T> dy, const QkvOf<const T> x, const Tables tables,
                          const Heads heads) {
  const Head head = this_head(heads);
  launch_dependents();
  wait_for_previous();
  const HeldRows<T, N, 5, 1> held({x.at(head, 0), x.at(head, 1), dy.at(head, 0), dy.at(head, 1), dy.at(head, 2)},
                                  heads.width);
  const auto load_gradient = [&](float(&g)[N], const Pack<T, N>& pack, const Turn<N>& turn, int which, int first) {
    unpack(g, pack);
    turn.apply(g);
    multiply(g, tables.norm[which], first);
  };
  float sums[4] = {};  // of x * x and of g * x, for queries and keys
  held.each([&](int first, const Pack<T, N>(&packs)[5]) {
    const Turn<N> turn(tables, head.token, heads.width, first, true);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float g[N], values[N];
      load_gradient(g, packs[2 + which], turn, which, first);
      unpack(values, packs[which]);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sums[which] = fmaf(values[j], values[j], sums[which]);
        sums[2 + which] = fmaf(g[j], values[j], sums[2 + which]);
      }
    }
  });
  row_reduce<Sum>(sums);
  held.each([&](int first, const Pack<T, N>(&packs)[5]) {
    const Turn<N> turn(tables, head.token, heads.width, first, true);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float r = rstd_of(sums[which], heads, tables), slope = r * r * r * (sums[2 + which] * heads.inverse_width);
      float g[N], values[N];
      load_gradient(g, packs[2 + which], turn, which, first);
      unpack(values, packs[which]);
#pragma unroll
      for (int j = 0; j < N; ++j) g[j] = fmaf(g[j], r, -values[j] * slope);
      store_floats(dx.at(head, which) + first, g);
    }
    store_pack(dx.at(head, 2) + first, packs[4]);
  });
}

// Sums of g * x_hat over every gridDim.x-th group of heads, to [2, gridDim.x, D]: queries' where blockIdx.y is 0, keys'
// where it is 1. All lanes of a warp turn as often.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    qk_norm_gradient_sums(float* sums, const QkvOf<const T> dy, const QkvOf<const T> x, const Tables tables,
                          const Heads heads) {
  __shared__ float partial[kThreads * N];  // [blockDim.y, blockDim.x * N]
  launch_dependents();
  wait_for_previous();
  const int which = int(blockIdx.y), columns = int(blockDim.x) * N, column = int(threadIdx.x) * N;
  float* const to = sums + (int64_t(which) * gridDim.x + blockIdx.x) * heads.width;
  for (int begin = 0; begin < heads.width; begin += columns) {  // once, but for heads that are wider than 32 packs
    const bool inside = begin + column < heads.width;
    float total[N] = {};
    for (uint32_t group = blockIdx.x * blockDim.y; group < heads.count; group += gridDim.x * blockDim.y) {
      const bool counts = inside && group + threadIdx.y < heads.count;
      const Head head(heads, min(group + threadIdx.y, heads.count - 1));
      const HeldRows<T, N, 1, 1> held({x.at(head, which)}, heads.width);
      float squares = 0;
      held.each([&](int, const Pack<T, N>(&packs)[1]) {
#pragma unroll
        for (int j = 0; j < N; ++j) squares = fmaf(element(packs[0], j), element(packs[0], j), squares);
      });
      const float r = rstd_of(row_reduce<Sum>(squares), heads, tables);
      if (!counts) continue;
      float g[N], values[N];
      load_floats(g, dy.at(head, which), begin + column);
      load_floats(values, x.at(head, which), begin + column);
      Turn<N>(tables, head.token, heads.width, begin + column, true).apply(g);
#pragma unroll
      for (int j = 0; j < N; ++j) total[j] = fmaf(g[j], values[j] * r, total[j]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) partial[int(threadIdx.y) * columns + column + j] = total[j];
    __syncthreads();
    for (int i = int(threadIdx.y * blockDim.x + threadIdx.x); i < columns && begin + i < heads.width; i += kThreads) {
      float sum = 0;
      for (unsigned row = 0; row < blockDim.y; ++row) sum += partial[int(row) * columns + i];
      to[begin + i] = sum;
    }
    __syncthreads();
  }
}

// The elements that a kernel reads at once: 16 bytes, in f32 also 8 or 4; 0 where it cannot.
int pack_of(std::initializer_list<View> views, bool turns) {
  const View& first = *views.begin();
  const int widest = int(16 / size_of(first.dtype));
  int pack = widest;
  for (const View& v : views) {
    if (v.dtype != first.dtype || (v.stride[4] != 1 && v.dim(4) != 1)) return 0;
    const auto fits = [&] {
      bool fit = v.dim(4) % pack == 0 && reinterpret_cast<uintptr_t>(v.data) % (size_t(pack) * size_of(v.dtype)) == 0;
      for (int d = 0; d < 4; ++d) fit = fit && (v.shape[d] == 1 || v.stride[d] % pack == 0);
      return fit;
    };
    while (pack > 1 && !fits()) pack /= 2;
  }
  const bool served = first.dtype == DType::f32 ? pack > 1 || !turns : pack == widest;
  return served ? pack : 0;
}

// Calls f(Type<T>{}, N) with a device type and a pack of it, a constant.
template <class F>
void dispatch_heads(DType dtype, int pack, F&& f) {
  if (dtype != DType::f32) return dispatch_16bit(dtype, [&](auto type) { f(type, std::integral_constant<int, 8>()); });
  if (pack == 4) return f(Type<float>(), std::integral_constant<int, 4>());
  if (pack == 2) return f(Type<float>(), std::integral_constant<int, 2>());
  f(Type<float>(), std::integral_constant<int, 1>());
}

dim3 threads_of(const View& x, int pack) {
  const auto lanes = unsigned(std::min<int64_t>(std::bit_ceil(uint64_t(x.dim(4) / pack)), 32));
  return dim3(lanes, kThreads / lanes);
}

// A table as kernels read it: dense f32 from a multiple of 16 bytes on.
class TableInput {
 public:
  TableInput(CudaBackend& cuda, const View& table) : held_(table) {
    if (!table || (table.dtype == DType::f32 && table.contiguous() && aligned(table.data))) return;
    held_ = Held(cuda, DType::f32, table.shape);
    cuda.copy(held_.view(), table);
  }
  const float* data() const { return held_.view().as<const float>(); }

 private:
  Held held_;
};
struct TableInputs {
  TableInput q_norm, k_norm, cos, sin;
  float eps;

  TableInputs(CudaBackend& cuda, const QkNormRopeArgs& a)
      : q_norm(cuda, a.q_norm), k_norm(cuda, a.k_norm), cos(cuda, a.cos), sin(cuda, a.sin), eps(a.eps) {}
  Tables of() const { return {{q_norm.data(), k_norm.data()}, cos.data(), sin.data(), eps}; }
};

// A copy in dense f32, for views that no kernel takes: their results are still rounded once.
Held in_f32(CudaBackend& cuda, const View& v) {
  Held held(cuda, DType::f32, v.shape);
  cuda.copy(held.view(), v);
  return held;
}

void prepare(CudaBackend& cuda, const View& y, const View& x, const QkNormRopeArgs& a, bool back) {
  const int pack = pack_of({x, y}, bool(a.cos));
  if (pack == 0) {
    const Held from = in_f32(cuda, x), to(cuda, DType::f32, y.shape);
    prepare(cuda, to.view(), from.view(), a, back);
    return cuda.copy(y, to.view());
  }
  const TableInputs tables(cuda, a);
  const dim3 threads = threads_of(x, pack);
  const Heads heads(x);
  dispatch_heads(x.dtype, pack, [&]<class T, int N>(Type<T>, std::integral_constant<int, N>) {
    launch("qk_norm_rope", cuda.stream(), overlapped(cuda, ceil_div(heads.count, threads.y), threads),
           qk_norm_rope<T, N>, QkvOf<T>(y), QkvOf<const T>(x), tables.of(), heads, back);
  });
}

// The norms' gradients, in a pass of their own: a LoRA's training does not want them.
void norm_gradients(CudaBackend& cuda, const QkNormRopeArgs& a, const QkNormRopeGradients& g, const Tables& tables,
                    int pack) {
  const dim3 threads = threads_of(a.x, pack);
  const Heads heads(a.x);
  const int64_t blocks = std::min<int64_t>(ceil_div(heads.count, threads.y), 2 * cuda.multiprocessors());
  const Held sums(cuda, DType::f32, {2, blocks, a.x.dim(4)});
  dispatch_heads(a.x.dtype, pack, [&]<class T, int N>(Type<T>, std::integral_constant<int, N>) {
    launch("qk_norm_gradient_sums", cuda.stream(), overlapped(cuda, dim3(unsigned(blocks), 2), threads),
           qk_norm_gradient_sums<T, N>, sums.view().as<float>(), QkvOf<const T>(g.dy), QkvOf<const T>(a.x), tables,
           heads);
  });
  const View gradients[] = {g.dq_norm, g.dk_norm};
  for (int which = 0; which < 2; ++which) {
    const View& to = gradients[which];
    if (!to) continue;
    const View parts = part_of(sums.view(), 0, which, 1);
    cuda.sum({to.data, to.dtype, {1, 1, to.shape[0]}, {to.shape[0], to.shape[0], to.stride[0]}}, parts);
  }
}

}  // namespace

void CudaBackend::qk_norm_rope(const QkNormRopeArgs& a) {
  if (a.x.numel() == 0) return;
  if (!a.q_norm && !a.cos) return copy(a.y, a.x);
  prepare(*this, a.y, a.x, a, false);
}

void CudaBackend::qk_norm_rope_backward(const QkNormRopeArgs& a, const QkNormRopeGradients& g) {
  if (a.x.numel() == 0) {
    for (const View& v : {g.dq_norm, g.dk_norm})
      if (v) fill(v, 0);
    return;
  }
  if (!a.q_norm && !a.cos) return copy(g.dx, g.dy);
  if (!a.q_norm) return prepare(*this, g.dx, g.dy, a, true);
  const int pack = pack_of({a.x, g.dy, g.dx}, bool(a.cos));
  if (pack == 0) {
    const Held x = in_f32(*this, a.x), dy = in_f32(*this, g.dy), dx(*this, DType::f32, g.dx.shape);
    QkNormRopeArgs args = a;
    QkNormRopeGradients gradients = g;
    args.x = x.view(), gradients.dy = dy.view(), gradients.dx = dx.view();
    qk_norm_rope_backward(args, gradients);
    return copy(g.dx, dx.view());
  }
  const TableInputs tables(*this, a);
  const dim3 threads = threads_of(a.x, pack);
  const Heads heads(a.x);
  dispatch_heads(a.x.dtype, pack, [&]<class T, int N>(Type<T>, std::integral_constant<int, N>) {
    launch("qk_norm_rope_backward", stream_, overlapped(*this, ceil_div(heads.count, threads.y), threads),
           qk_norm_rope_gradient<T, N>, QkvOf<T>(g.dx), QkvOf<const T>(g.dy), QkvOf<const T>(a.x), tables.of(), heads);
  });
  if (g.dq_norm || g.dk_norm) norm_gradients(*this, a, g, tables.of(), pack);
}

}  // namespace wick
