// Rotary positions: pairs of features turned by given angles. A block turns all heads of some tokens, and a thread the
// same pairs of several heads, so that it reads their angles once.
#include "wick/backend/cuda/attention/shape.cuh"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/map/rows.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 4;  // of a thread, all loaded before the first is used

struct Angles {
  const float *cos, *sin;
  int64_t image;  // elements from one image's to the next's; 0 if they share them
  float direction;
};

// A thread has N pairs in two packs, one in each half of the features, so that lanes read side by side: the halves of N
// pairs, or N / 2 pairs of neighbours each. The first elements of the packs, where `pair` counts N a thread:
template <int N, bool kHalves>
__device__ __forceinline__ int2 places(int pair, int half) {
  return kHalves || N > 1 ? int2{pair, half + pair} : int2{2 * pair, 2 * pair + 1};
}

// And its pairs' angles.
template <int N, bool kHalves>
__device__ __forceinline__ void load_angles(float (&to)[N], const float* table, int pair, int half) {
  if constexpr (kHalves || N == 1) {
    load_floats(to, table, pair);
  } else {
    float parts[2][N / 2];
    load_floats(parts[0], table, pair / 2);
    load_floats(parts[1], table, (half + pair) / 2);
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = parts[j / (N / 2)][j % (N / 2)];
  }
}

// An element of either half, or of the two packs as one.
template <int N, bool kHalves, class T>
__device__ __forceinline__ T& element(Pack<T, N> (&packs)[2], int pair, int second) {
  return kHalves ? packs[second].value[pair] : packs[(2 * pair + second) / N].value[(2 * pair + second) % N];
}

// Where a head of a token comes from and goes to (null: nowhere), and whether it turns.
template <class T>
struct Way {
  const T* from;
  T* to;
  bool turns;
};

// N pairs of each of this thread's heads of a token, from `pair` on.
template <class T, int N, bool kHalves, class WayOf>
__device__ __forceinline__ void turn_heads(const float (&cos)[N], const float (&sin)[N], int pair, int half, int heads,
                                           const WayOf& way_of) {
  const int2 at = places<N, kHalves>(pair, half);
  const int step = int(blockDim.y * gridDim.y);
  for (int first = int(blockIdx.y * blockDim.y + threadIdx.y); first < heads; first += kHeads * step) {
    PackWords<T, N> words[kHeads][2];
#pragma unroll
    for (int u = 0; u < kHeads; ++u) {
      const int head = first + u * step;
      if (head >= heads) break;
      const T* const from = way_of(head).from;
      words[u][0] = PackWords<T, N>::load(from + at.x);
      words[u][1] = PackWords<T, N>::load(from + at.y);
    }
#pragma unroll
    for (int u = 0; u < kHeads; ++u) {
      const int head = first + u * step;
      if (head >= heads) break;
      const Way<T> way = way_of(head);
      if (!way.to) continue;
      Pack<T, N> packs[2] = {words[u][0].unpack(), words[u][1].unpack()};
#pragma unroll
      for (int j = 0; j < N && way.turns; ++j) {
        T &a = element<N, kHalves>(packs, j, 0), &b = element<N, kHalves>(packs, j, 1);
        const float2 turned{fmaf(to_float(a), cos[j], -to_float(b) * sin[j]),
                            fmaf(to_float(a), sin[j], to_float(b) * cos[j])};
        a = from_float<T>(turned.x);
        b = from_float<T>(turned.y);
      }
      store_pack(way.to + at.x, packs[0]);
      store_pack(way.to + at.y, packs[1]);
    }
  }
}

template <class T, int N, bool kHalves>
__global__ void __launch_bounds__(kThreads) turn(const HeadsOf<T> y, const HeadsOf<const T> x, const Angles angles,
                                                 int64_t all_tokens, int tokens, int heads, int half) {
  const int64_t number = int64_t(blockIdx.x) * blockDim.z + threadIdx.z;
  launch_dependents();
  wait_for_previous();
  if (number >= all_tokens) return;
  const int64_t image = number / tokens, token = number - image * tokens, angle = image * angles.image + token * half;
  for (int pair = int(threadIdx.x) * N; pair < half; pair += int(blockDim.x) * N) {
    float cos[N], sin[N];
    load_angles<N, kHalves>(cos, angles.cos + angle, pair, half);
    load_angles<N, kHalves>(sin, angles.sin + angle, pair, half);
#pragma unroll
    for (int j = 0; j < N; ++j) sin[j] *= angles.direction;
    turn_heads<T, N, kHalves>(cos, sin, pair, half, heads, [&](int head) {
      return Way<T>{x.at(image, token, head), y.at(image, token, head), true};
    });
  }
}

// A token's queries to `turned`, and its keys and values to the rows of a cache.
template <class T>
struct IntoCache {
  HeadsOf<const T> q, k, v;
  HeadsOf<T> turned, keys, values;
  const int32_t* rows;
  int64_t row_image, row_token;
  int heads, key_heads;
  bool constant;  // rows and angles
};
template <class T, int N, bool kHalves>
__global__ void __launch_bounds__(kThreads) turn_into_cache(const __grid_constant__ IntoCache<T> a, const Angles angles,
                                                            int64_t all_tokens, int tokens, int half) {
  const int64_t number = int64_t(blockIdx.x) * blockDim.z + threadIdx.z;
  launch_dependents();
  if (!a.constant) wait_for_previous();
  const int64_t image = min(number, all_tokens - 1) / tokens, token = min(number, all_tokens - 1) - image * tokens;
  const int64_t angle = image * angles.image + token * half;
  const int32_t row = a.rows[image * a.row_image + token * a.row_token];
  for (int pair = int(threadIdx.x) * N; pair < half; pair += int(blockDim.x) * N) {
    float cos[N], sin[N];
    load_angles<N, kHalves>(cos, angles.cos + angle, pair, half);
    load_angles<N, kHalves>(sin, angles.sin + angle, pair, half);
    wait_for_previous();
    const auto way_of = [&](int head) {
      const int key = head - a.heads, value = key - a.key_heads;
      if (key < 0) return Way<T>{a.q.at(image, token, head), a.turned.at(image, token, head), true};
      const auto& cache = value < 0 ? a.keys : a.values;
      const int kept = value < 0 ? key : value;
      return Way<T>{(value < 0 ? a.k : a.v).at(image, token, kept), row < 0 ? nullptr : cache.at(image, row, kept),
                    value < 0};
    };
    if (number < all_tokens) turn_heads<T, N, kHalves>(cos, sin, pair, half, a.heads + 2 * a.key_heads, way_of);
  }
}

__global__ void __launch_bounds__(kThreads)
    angles_of(float* cos, float* sin, const int32_t* positions, const float* frequencies, int64_t count, int pairs) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) sincosf(float(positions[i / pairs]) * frequencies[i % pairs], sin + i, cos + i);
}

bool side_by_side(const View& v) { return v.stride[3] == 1 || v.dim(3) == 1; }
// May heads be read and written in packs of 16 bytes?
bool packs_heads(const View& v) {
  const int64_t width = int64_t(16 / size_of(v.dtype));
  bool fit = side_by_side(v) && aligned(v.data);
  for (int d = 0; d < 3; ++d) fit = fit && (v.shape[d] == 1 || v.stride[d] % width == 0);
  return fit && v.dim(3) / 2 % width == 0;
}

// A view [B, T, H, D] with features side by side, in place where it is one, else dense.
template <class Dense>
class HeadsView {
 public:
  HeadsView(CudaBackend& cuda, const View& v, DType dtype)
      : direct_(v.dtype == dtype && side_by_side(v)), dense_(cuda, direct_ ? View{} : v, dtype) {
    view_ = direct_ ? v : dense_.view();
  }
  template <class T>
  HeadsOf<T> of() const {
    return HeadsOf<T>(view_);
  }
  bool packs() const { return packs_heads(view_); }
  void finish() const { dense_.finish(); }

 private:
  bool direct_;
  Dense dense_;
  View view_;
};

// A block's threads: pairs of packs, heads, tokens; and its blocks. For few tokens every head has threads of its own, a
// warp per block, which finds room beside the blocks of the kernel before.
Launch shape_of(const CudaBackend& cuda, int64_t tokens, int64_t heads, int64_t packs) {
  const int64_t across = std::min<int64_t>(packs, kThreads);
  const bool few = tokens * heads * across < int64_t(cuda.multiprocessors()) * kThreads;
  const int64_t most = std::max<int64_t>((few ? 32 : kThreads) / across, 1);
  const int64_t down = std::min(few ? heads : ceil_div(heads, kHeads), most);
  const dim3 threads(unsigned(across), unsigned(down), unsigned(few ? 1 : std::min<int64_t>(most / down, 64)));
  const dim3 blocks(unsigned(ceil_div(tokens, threads.z)), unsigned(few ? ceil_div(heads, down) : 1));
  return overlapped(cuda, blocks, threads);
}

}  // namespace

void CudaBackend::rope(View y, View x, View cos, View sin, RopePairs pairs, bool inverse) {
  if (x.numel() == 0) return;
  const DType dtype = common_dtype({x, y});
  const HeadsView<DenseInput> input(*this, x, dtype);
  const HeadsView<DenseOutput> output(*this, y, dtype);
  const DenseInput cosines(*this, cos, DType::f32), sines(*this, sin, DType::f32);
  const int64_t tokens = x.dim(1), heads = x.dim(2), half = x.dim(3) / 2;
  const Angles angles{cosines.as<float>(), sines.as<float>(), cos.rank() == 3 ? tokens * half : 0,
                      inverse ? -1.f : 1.f};
  const bool packs = input.packs() && output.packs() && aligned(angles.cos) && aligned(angles.sin);
  dispatch_packs(dtype, packs, [&]<class T, int N>(Type<T>, std::integral_constant<int, N>) {
    const auto kernel = pairs == RopePairs::halves ? turn<T, N, true> : turn<T, N, false>;
    const int64_t all_tokens = x.dim(0) * tokens;
    launch("rope", stream_, shape_of(*this, all_tokens, heads, half / N), kernel, output.of<T>(), input.of<const T>(),
           angles, all_tokens, int(tokens), int(heads), int(half));
  });
  output.finish();
}

void CudaBackend::rope_angles(View cos, View sin, View positions, View frequencies) {
  const int64_t count = cos.numel();
  if (count == 0) return;
  launch("rope_angles", stream_, {unsigned(ceil_div(count, kThreads)), kThreads}, angles_of, cos.as<float>(),
         sin.as<float>(), positions.as<const int32_t>(), frequencies.as<const float>(), count,
         int(frequencies.numel()));
}

void CudaBackend::rope_into_cache(const RopeIntoCacheArgs& a) {
  if (a.q.numel() == 0) return;
  const std::initializer_list<View> all{a.turned, a.keys, a.values, a.q, a.k, a.v};
  const bool direct =
      std::all_of(all.begin(), all.end(), [&](const View& x) { return x.dtype == a.q.dtype && packs_heads(x); });
  if (!direct || !a.cos.contiguous() || !a.sin.contiguous() || !aligned(a.cos.data) || !aligned(a.sin.data))
    return ComposedBackend::rope_into_cache(a);
  const int64_t tokens = a.q.dim(1), all_tokens = a.q.dim(0) * tokens, half = a.q.dim(3) / 2;
  const Angles angles{a.cos.as<const float>(), a.sin.as<const float>(), a.cos.rank() == 3 ? tokens * half : 0, 1};
  dispatch_float(a.q.dtype, [&]<class T>(Type<T>) {
    constexpr int N = Pack<T>::kSize;
    const IntoCache<T> call{HeadsOf<const T>(a.q),
                            HeadsOf<const T>(a.k),
                            HeadsOf<const T>(a.v),
                            HeadsOf<T>(a.turned),
                            HeadsOf<T>(a.keys),
                            HeadsOf<T>(a.values),
                            a.rows.as<const int32_t>(),
                            a.rows.stride[0],
                            a.rows.stride[1],
                            int(a.q.dim(2)),
                            int(a.k.dim(2)),
                            a.cos.constant && a.sin.constant && a.rows.constant};
    const auto kernel = a.pairs == RopePairs::halves ? turn_into_cache<T, N, true> : turn_into_cache<T, N, false>;
    launch("rope_into_cache", stream_, shape_of(*this, all_tokens, call.heads + 2 * call.key_heads, half / N), kernel,
           call, angles, all_tokens, int(tokens), int(half));
  });
}

}  // namespace wick
