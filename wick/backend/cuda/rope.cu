// Rotary positions: pairs of features turned by given angles. A block turns all heads of some tokens, and a thread the
// same pairs of several heads, so that it reads their angles once.
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/rows.cuh"

namespace wick {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 4;  // of a thread, all loaded before the first is used

template <class T>
struct HeadsOf {
  T* data;
  int64_t image, token, head;  // strides

  __device__ __forceinline__ T* at(int64_t i, int64_t t, int64_t h) const {
    return data + i * image + t * token + h * head;
  }
};

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
    const int2 place = places<N, kHalves>(pair, half);
    for (int first = int(threadIdx.y); first < heads; first += kHeads * int(blockDim.y)) {
      PackWords<T, N> words[kHeads][2];
#pragma unroll
      for (int u = 0; u < kHeads; ++u) {
        const int head = first + u * int(blockDim.y);
        if (head >= heads) break;
        const T* const from = x.at(image, token, head);
        words[u][0] = PackWords<T, N>::load(from + place.x);
        words[u][1] = PackWords<T, N>::load(from + place.y);
      }
#pragma unroll
      for (int u = 0; u < kHeads; ++u) {
        const int head = first + u * int(blockDim.y);
        if (head >= heads) break;
        Pack<T, N> packs[2] = {words[u][0].unpack(), words[u][1].unpack()};
#pragma unroll
        for (int j = 0; j < N; ++j) {
          T &a = element<N, kHalves>(packs, j, 0), &b = element<N, kHalves>(packs, j, 1);
          const float2 turned{fmaf(to_float(a), cos[j], -to_float(b) * sin[j]),
                              fmaf(to_float(a), sin[j], to_float(b) * cos[j])};
          a = from_float<T>(turned.x);
          b = from_float<T>(turned.y);
        }
        T* const to = y.at(image, token, head);
        store_pack(to + place.x, packs[0]);
        store_pack(to + place.y, packs[1]);
      }
    }
  }
}

// A view [B, T, H, D] with features side by side, in place where it is one, else dense.
template <class Dense>
class HeadsView {
 public:
  HeadsView(CudaBackend& cuda, const View& v, DType dtype)
      : direct_(v.dtype == dtype && (v.stride[3] == 1 || v.dim(3) == 1)), dense_(cuda, direct_ ? View{} : v, dtype) {
    view_ = direct_ ? v : dense_.view();
  }
  template <class T>
  HeadsOf<T> of() const {
    return {view_.as<T>(), view_.stride[0], view_.stride[1], view_.stride[2]};
  }
  bool packs() const {
    const int64_t width = int64_t(16 / size_of(view_.dtype));
    bool fit = aligned(view_.data);
    for (int d = 0; d < 3; ++d) fit = fit && (view_.shape[d] == 1 || view_.stride[d] % width == 0);
    return fit && view_.dim(3) / 2 % width == 0;
  }
  void finish() const { dense_.finish(); }

 private:
  bool direct_;
  Dense dense_;
  View view_;
};

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
  dispatch_packs(dtype, packs, [&](auto type, auto pack) {
    using T = typename decltype(type)::type;
    constexpr int N = pack.value;
    const auto kernel = pairs == RopePairs::halves ? turn<T, N, true> : turn<T, N, false>;
    const int64_t all_tokens = x.dim(0) * tokens, across = std::min<int64_t>(half / N, kThreads);
    const int64_t down = std::min((heads + kHeads - 1) / kHeads, kThreads / across);
    const dim3 threads(unsigned(across), unsigned(down), unsigned(std::min<int64_t>(kThreads / (across * down), 64)));
    launch("rope", stream_,
           {dim3(unsigned((all_tokens + threads.z - 1) / threads.z)), threads, 0, 1, capability() >= 90}, kernel,
           output.of<T>(), input.of<const T>(), angles, all_tokens, int(tokens), int(heads), int(half));
  });
  output.finish();
}

}  // namespace wick
