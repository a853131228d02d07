// A block makes 16 columns of x w^T for up to eight tokens: its warps share the chunks of 16 rows of the weight, each
// with a ring of its own in shared memory that asynchronous copies fill, and multiply them on tensor cores, where eight
// tokens cost what one does. Their sums are added in a fixed order. SwiGLU's gate and value lie in one block.
#include "wick/backend/cuda/linear_few_rows.h"

#include <algorithm>

#include "wick/backend/cuda/device/any_float.cuh"
#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/device/weight_chunks.cuh"

namespace wick {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRows = 16, kTokens = 8;                // of a block
constexpr int64_t kMostTokens = 4 * kTokens;          // of blocks; beyond, they are decoded for all tokens at once
constexpr int64_t kFarthestValue = int64_t{1} << 30;  // elements from a gate to its value, in 32 bits of bytes

template <class T>
struct Arguments {
  const char *w, *w_end;
  int64_t w_row;  // bytes
  int64_t gated;  // SwiGLU: bytes from a column's gate in w to its value; 0: none
  const T* x;
  T* y;
  int64_t x_row, y_row;
  AnyFloats bias;  // no data: none
  int64_t bias_step;
  const T* residual;  // laid out like y, with a row's length of its own; null: none
  int64_t residual_row;
  int columns, chunks, tokens;
  bool constant;  // w, which is asked for before the kernel that makes x has ended
};

template <class Weights>
constexpr int kStageBytes = kRows* Weights::kPitch;

template <class T>
__host__ __device__ constexpr int columns_of_block(const Arguments<T>& a) {
  return a.gated ? kRows / 2 : kRows;
}

// What a lane loads of a chunk of 16 rows: pieces of 16 bytes, row by row, so that a warp asks for stretches as long as
// they are. Rows beyond the last one repeat it. With SwiGLU they are the gates of eight columns and their values.
template <class Weights>
class Rows {
 public:
  template <class T>
  __device__ __forceinline__ Rows(const Arguments<T>& a, int first, int lane)
      : lane_(lane),
        last_(min(columns_of_block(a), a.columns - first) - 1),
        row_(a.w_row),
        gated_(uint32_t(a.gated)),
        data_(a.w + first * a.w_row),
        end_(a.w_end) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) offset_[i] = row_at(piece(i) / kPieces) + uint32_t(kAligned ? column(i) : 0);
  }
  __device__ __forceinline__ void load(char* stage, int chunk) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((i + 1) * 32 > kRows * kPieces && piece(i) >= kRows * kPieces) continue;
      const char* from = data_ + offset_[i] + int64_t(chunk) * Weights::kBytes;
      if constexpr (!kAligned) from += column(i) - int(uintptr_t(from) % 16);  // whole pieces that hold the chunk
      char* const to = stage + (kDense ? piece(i) * 16 : piece(i) / kPieces * Weights::kPitch + column(i));
      if (kAligned || from + 16 <= end_)
        copy_async(to, from, true);
      else  // nothing lies behind the weight's end
        for (int at = 0; from + at < end_; at += 2)
          *reinterpret_cast<uint16_t*>(to + at) = *reinterpret_cast<const uint16_t*>(from + at);
    }
  }
  // Where this lane's row r of a fragment, lane / 4 and eight below, begins in a stage: as far beyond a multiple of 16
  // as in memory.
  __device__ __forceinline__ const char* fragment(const char* stage, int r, int chunk) const {
    const int row = lane_ / 4 + 8 * r;
    const char* const at = stage + row * Weights::kPitch;
    if (kAligned) return at;
    return at + (uint32_t(uintptr_t(data_)) + row_at(row) + uint32_t(chunk * Weights::kBytes)) % 16;
  }
  __device__ __forceinline__ int lane() const { return lane_; }

 private:
  static constexpr bool kAligned = Weights::kAligned;
  static constexpr int kPieces = (Weights::kBytes + 15) / 16, kCount = (kRows * kPieces + 31) / 32;
  static constexpr bool kDense = Weights::kPitch == 16 * kPieces;
  __device__ __forceinline__ uint32_t row_at(int i) const {
    const bool value = gated_ && i >= kRows / 2;
    return uint32_t(min(value ? i - kRows / 2 : i, last_)) * uint32_t(row_) + (value ? gated_ : 0);
  }
  __device__ __forceinline__ int piece(int i) const { return lane_ + 32 * i; }
  __device__ __forceinline__ int column(int i) const { return piece(i) % kPieces * 16; }

  int lane_, last_;
  int64_t row_;
  uint32_t gated_;
  const char *data_, *end_;
  uint32_t offset_[kCount];
};

// Activations of one chunk: fours of a token, in the order of the steps. Lanes beyond the last token have zeros.
template <int kSteps, class T>
struct Activations {
  uint2 four[kSteps];

  __device__ __forceinline__ Activations(const Arguments<T>& a, int chunk, int lane) {
    const int token = lane / 4;
    const T* const from = a.x + token * a.x_row + int64_t(chunk) * kSteps * 16 + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      four[i] = token < a.tokens ? *reinterpret_cast<const uint2*>(from + 16 * i) : uint2{0, 0};
  }
};

// sum += one group's product times its scales.
template <int j, class Block, class T>
__device__ __forceinline__ void add_group(float (&sum)[4], const uint2 (&x)[2], const char* const (&row)[2], int q) {
  using Weights = Chunk<Block>;
  uint32_t numbers[2][2][2];  // rows, steps, pairs
#pragma unroll
  for (int r = 0; r < 2; ++r) Weights::template floats<j, T>(numbers[r], row[r], q);
  float part[4] = {}, of_ones[4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t a[4] = {numbers[0][i][0], numbers[1][i][0], numbers[0][i][1], numbers[1][i][1]};
    const uint32_t b[2] = {__byte_perm(x[i].x, x[i].y, 0x5410), __byte_perm(x[i].x, x[i].y, 0x7632)};
    mma<T>(part, a, b[0], b[1]);
    if constexpr (Weights::kMinimum) {
      constexpr uint32_t kOnes = std::is_same_v<T, bf16> ? 0x3f803f80 : 0x3c003c00;
      const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
      mma<T>(of_ones, ones, b[0], b[1]);
    }
    if (Weights::kScaleOfStep || i == 1) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float scale = Weights::template scale<j>(row[r], i);
#pragma unroll
        for (int n = 2 * r; n < 2 * r + 2; ++n) {
          sum[n] = fmaf(scale, part[n], sum[n]);
          part[n] = 0;
        }
      }
    }
  }
  if constexpr (Weights::kMinimum)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float minimum = Weights::template minimum<j>(row[r]);
#pragma unroll
      for (int n = 2 * r; n < 2 * r + 2; ++n) sum[n] = fmaf(-minimum, of_ones[n], sum[n]);
    }
}

// A warp's chunk; Weights is Chunk<Block> or FloatChunk<T>.
template <class Weights>
struct Product;
template <class Block>
struct Product<Chunk<Block>> {
  static constexpr int kSteps = 16;
  template <class T>
  static __device__ __forceinline__ void add(float (&sum)[4], const Activations<kSteps, T>& x, const char* stage,
                                             const Rows<Chunk<Block>>& rows, int chunk) {
    const int lane = rows.lane();
    const char* const row[2] = {rows.fragment(stage, 0, chunk), rows.fragment(stage, 1, chunk)};
    const auto group = [&]<int j>(std::integral_constant<int, j>) {
      const uint2 both[2] = {x.four[2 * j], x.four[2 * j + 1]};
      add_group<j, Block, T>(sum, both, row, lane % 4);
    };
    [&]<int... j>(std::integer_sequence<int, j...>) { (group(std::integral_constant<int, j>()), ...); }
    (std::make_integer_sequence<int, 8>());
  }
};
template <class T>
struct Product<FloatChunk<T>> {
  static constexpr int kSteps = 8;
  static __device__ __forceinline__ void add(float (&sum)[4], const Activations<kSteps, T>& x, const char* stage,
                                             const Rows<FloatChunk<T>>& rows, int) {
    const int lane = rows.lane();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      // Lane q holds elements 4q to 4q + 3 of the 16, as it does of the activations.
      const char* const at = stage + lane / 4 * FloatChunk<T>::kPitch + 32 * i + lane % 4 * 8;
      const uint2 upper = *reinterpret_cast<const uint2*>(at);
      const uint2 lower = *reinterpret_cast<const uint2*>(at + 8 * FloatChunk<T>::kPitch);
      const uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
      mma<T>(sum, a, x.four[i].x, x.four[i].y);
    }
  }
};

template <class Weights, class T>
__global__ void __launch_bounds__(kThreads, 3) few_rows(const __grid_constant__ Arguments<T> a) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 memory[];
  constexpr int kStages = Weights::kStages, kSteps = Product<Weights>::kSteps;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int first = int(blockIdx.x) * columns_of_block(a);
  char* const ring = reinterpret_cast<char*>(memory) + warp * kStages * kStageBytes<Weights>;
  if (!a.constant) wait_for_previous();
  const Rows<Weights> rows(a, first, lane);
  const auto load = [&](int chunk, int stage) {
    if (chunk < a.chunks) rows.load(ring + stage * kStageBytes<Weights>, chunk);
    copy_async_commit();
  };
#pragma unroll
  for (int s = 0; s < kStages; ++s) load(warp + s * kWarps, s);
  if (a.constant) wait_for_previous();
  launch_dependents();
  float sum[4] = {};
  int stage = 0;
  for (int chunk = warp; chunk < a.chunks; chunk += kWarps) {
    const Activations<kSteps, T> x(a, chunk, lane);
    copy_async_wait<kStages - 1>();
    __syncwarp();
    Product<Weights>::add(sum, x, ring + stage * kStageBytes<Weights>, rows, chunk);
    __syncwarp();
    load(chunk + kStages * kWarps, stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }

  __syncthreads();  // the rings become room for the warps' sums [16, 8]
  float* const sums = reinterpret_cast<float*>(memory);
#pragma unroll
  for (int n = 0; n < 4; ++n) sums[(warp * kRows + lane / 4 + n / 2 * 8) * kTokens + lane % 4 * 2 + n % 2] = sum[n];
  __syncthreads();
  const int row = int(threadIdx.x) % kRows, token = int(threadIdx.x) / kRows;
  const bool value = a.gated && row >= kRows / 2;  // of SwiGLU
  const int column = first + (value ? row - kRows / 2 : row);
  const bool inside = token < a.tokens && column < a.columns;
  float total = 0;
  if (inside && a.bias.data) total = a.bias.load((value ? a.columns + column : column) * a.bias_step);
  if (inside && a.residual) total += to_float(a.residual[token * a.residual_row + column]);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[(w * kRows + row) * kTokens + token];
  if (a.gated) {  // of gate and value as they would be stored
    total = to_float(from_float<T>(total));
    total = total * sigmoid(total) * __shfl_down_sync(0xffffffff, total, kRows / 2);
  }
  if (inside && !value) a.y[token * a.y_row + column] = from_float<T>(total);
#endif
}

template <class Weights, class T>
bool run(CudaBackend& cuda, const DeviceMatrix& y, const DeviceMatrix& x, const View& w, const View& bias,
         const DeviceMatrix& residual, bool gated) {
  constexpr int64_t kElements = 16 * Product<Weights>::kSteps;
  const int64_t w_row = bytes_of(w.dtype, w.stride[0]);
  if (x.cols == 0 || x.cols % kElements != 0) return false;
  if (Weights::kAligned && (uintptr_t(w.data) % 16 != 0 || (w.shape[0] > 1 && w_row % 16 != 0))) return false;
  // As many blocks as two a multiprocessor have room for should not gather in threes where they have long to go.
  const int64_t columns_each = gated ? kRows / 2 : kRows, blocks = (y.cols + columns_each - 1) / columns_each;
  size_t shared_bytes = size_t(kWarps * Weights::kStages * kStageBytes<Weights>);
  if (cuda.capability() == 90 && blocks <= 2 * cuda.multiprocessors() && x.cols >= 4 * kWarps * kElements)
    shared_bytes = std::max(shared_bytes, size_t{80} << 10);
  for (int64_t token = 0; token < x.rows; token += kTokens) {
    const Arguments<T> a{w.as<const char>(),
                         w.as<const char>() + (w.shape[0] - 1) * w_row + x.cols / kElements * Weights::kBytes,
                         w_row,
                         gated ? y.cols * w_row : 0,
                         static_cast<const T*>(x.data) + token * x.ld,
                         static_cast<T*>(y.data) + token * y.ld,
                         x.ld,
                         y.ld,
                         bias ? AnyFloats(bias) : AnyFloats(),
                         bias ? bias.stride[0] : 0,
                         residual.data ? static_cast<const T*>(residual.data) + token * residual.ld : nullptr,
                         residual.ld,
                         int(y.cols),
                         int(x.cols / kElements),
                         int(std::min<int64_t>(x.rows - token, kTokens)),
                         w.constant};
    launch("linear_few_rows", cuda.stream(),
           {dim3(unsigned(blocks)), dim3(kThreads), shared_bytes, 1, cuda.capability() >= 90}, few_rows<Weights, T>, a);
  }
  return true;
}

}  // namespace

bool linear_few_rows(CudaBackend& cuda, const DeviceMatrix& y, const DeviceMatrix& x, const View& w, const View& bias,
                     const DeviceMatrix& residual, bool gated) {
  const bool floats = w.dtype == x.dtype;
  if (cuda.capability() < 80 || x.dtype == DType::f32 || y.dtype != x.dtype || !(floats || is_block(w.dtype)))
    return false;
  if (x.rows > (floats ? kTokens : kMostTokens) || x.transposed || y.transposed || residual.transposed ||
      w.stride[1] != 1)
    return false;
  if (uintptr_t(x.data) % 8 != 0 || (x.rows > 1 && x.ld % 4 != 0)) return false;
  if (gated && y.cols * w.stride[0] > kFarthestValue) return false;
  const auto of_type = [&]<class T>(Type<T>) {
    if (floats) return run<FloatChunk<T>, T>(cuda, y, x, w, bias, residual, gated);
    bool done = false;
    for_block_type(w.dtype,
                   [&]<class Block>(Block*) { done = run<Chunk<Block>, T>(cuda, y, x, w, bias, residual, gated); });
    return done;
  };
  return x.dtype == DType::bf16 ? of_type(Type<bf16>()) : of_type(Type<f16>());
}

}  // namespace wick
