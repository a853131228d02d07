// A block makes tiles of 16 columns of x w^T for up to eight tokens. One warp copies 16 rows of the weight, of 16-bit
// floats, blocks (weight_chunks.cuh) or codes with their scales (row_chunks.cuh), into a ring in shared memory, from
// tile to tile without a break; the block's other warps take turns at their chunks and multiply them on tensor cores,
// where eight tokens cost as much as one. Their sums are added in a fixed order. SwiGLU's gate and value lie in one
// tile.
#include "wick/backend/cuda/linear/few_rows.h"

#include <algorithm>

#include "wick/backend/cuda/device/cluster.cuh"
#include "wick/backend/cuda/device/functions.cuh"
#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/ring.cuh"
#include "wick/backend/cuda/linear/row_chunks.cuh"
#include "wick/backend/cuda/linear/weight_chunks.cuh"
#include "wick/backend/cuda/runtime/any_float.cuh"
#include "wick/backend/cuda/runtime/dispatch.cuh"
#include "wick/backend/cuda/runtime/launch.h"

namespace wick {
namespace {

constexpr int kFewWarps = 8, kManyWarps = 12;  // multiplying warps; three or two such blocks share an SM
constexpr int kRows = 16, kTokens = 8;         // of a tile
constexpr int64_t kMostTokens = 4 * kTokens;   // over quantised weights; beyond, they are decoded for all at once
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
  int columns, inputs, chunks, tokens;
  int row_bytes;                    // of a row's chunks, to copy
  int scales, scale_bytes, nested;  // rows of codes: where their scales lie, how many of them to copy; NestedScales
  bool constant;                    // w, which is asked for before the kernel that makes x has ended
  bool bulk;                        // rows are copied as a whole, by TMA's bulk copy (9.0 on)
};

// The LoRAs beside a weight: each adds scale * s up^T to the columns from its `begin` up to its `end`, with `rank`
// columns of s.
template <class T>
struct LoraArguments {
  struct Block {
    const T* up;
    int64_t up_row;
    int begin, end, low_at, rank;
    float scale;
  };
  const T* s;
  int64_t s_row;
  int count;
  Block block[kMostFewRowsBlocks];
};
struct NoLora {};

// Bytes from row to row of a stage, which has a chunk for each warp, and their scales behind the last: rows that lanes
// read at once must lie in different banks, and rows that do not begin at multiples of 16 need room for that.
template <class Weights>
__host__ __device__ constexpr int pitch_of(int warps) {
  constexpr int kTaken = Weights::kTaken / 16;
  const int bytes = warps * (Weights::kBytes + Weights::kScaleBytes) + (Weights::kAligned ? 0 : 14);
  const int pieces = (bytes + 15) / 16, beyond = pieces % (2 * kTaken);
  return 16 * (pieces + (3 * kTaken - beyond) % (2 * kTaken));
}
template <class Weights>
__host__ __device__ constexpr int ring_bytes(int warps) {
  return Weights::kStages * kRows * pitch_of<Weights>(warps);
}

template <class T>
__host__ __device__ constexpr int columns_of_tile(const Arguments<T>& a) {
  return a.gated ? kRows / 2 : kRows;
}

// Bytes from a tile's first row to its row i; rows beyond the last one repeat it. With SwiGLU they are the gates of
// eight columns and their values.
template <class T>
__device__ __forceinline__ uint32_t row_at(const Arguments<T>& a, int first, int i) {
  const bool value = a.gated && i >= kRows / 2;
  const int last = min(columns_of_tile(a), a.columns - first) - 1;
  return uint32_t(min(value ? i - kRows / 2 : i, last)) * uint32_t(a.w_row) + (value ? uint32_t(a.gated) : 0);
}

// A ring whose stages hold 16 rows. It keeps pointers, and few of them: registers are scarce.
template <class Weights>
struct Stages {
  char* stages;
  uint64_t* barriers;  // full ones, then empty ones
  int pitch;
  RingPlace<Weights::kStages> at{};

  __device__ __forceinline__ uint64_t* full() const { return barriers + at.stage; }
  __device__ __forceinline__ uint64_t* empty() const { return barriers + Weights::kStages + at.stage; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(full(), at.phase); }
  __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), at.phase ^ 1); }
  __device__ __forceinline__ char* row(int i) const { return stages + (at.stage * kRows + i) * pitch; }
};

// A part of a row as it is copied: the 16s that hold it, as far as the weight goes, and two bytes after two behind
// them.
template <class Weights>
struct Stretch {
  const char* from;
  int bytes, rest = 0;

  __device__ __forceinline__ Stretch(const char* begin, int size, const char* end) : from(begin), bytes(size) {
    if constexpr (!Weights::kAligned) {
      const int before = int(uintptr_t(begin) % 16);
      from -= before;
      bytes = (before + size + 15) / 16 * 16;
      if (from + bytes > end) {
        bytes -= 16;
        rest = int(end - from) - bytes;
      }
    }
  }
  __device__ __forceinline__ void copy_rest(char* to) const {
    for (int i = bytes; i < bytes + rest; i += 2)
      *reinterpret_cast<uint16_t*>(to + i) = *reinterpret_cast<const uint16_t*>(from + i);
  }
};

// What a stage has of each of a tile's rows: chunks, or the scales of rows of codes behind them.
template <class Weights, bool kScales>
struct StagePart {
  static constexpr int kBytes = kScales ? Weights::kScaleBytes : Weights::kBytes;

  template <class T>
  __device__ __forceinline__ StagePart(const Arguments<T>& a, int first, int chunk, int warps)
      : end_(a.w_end),
        begin_(a.w + first * a.w_row + int64_t(chunk) * kBytes + (kScales ? a.scales : 0)),
        size_(min(warps * kBytes, (kScales ? a.scale_bytes : a.row_bytes) - chunk * kBytes)),
        at_(kScales ? warps * Weights::kBytes : 0) {}
  // The row that lies `row` bytes behind the first one.
  __device__ __forceinline__ Stretch<Weights> stretch(uint32_t row) const { return {begin_ + row, size_, end_}; }
  __device__ __forceinline__ int at() const { return at_; }

 private:
  const char *end_, *begin_;
  int size_, at_;
};

// By one lane, as a whole.
template <class Part, class Weights, class T>
__device__ __forceinline__ void copy_bulk_row(const Arguments<T>& a, const Stages<Weights>& ring, const Part& part,
                                              int first, int i) {
  const auto row = part.stretch(row_at(a, first, i));
  char* const to = ring.row(i) + part.at();
  row.copy_rest(to);
  copy_bulk(to, row.from, row.bytes, ring.full());
}
// By a warp.
template <class Part, class Weights, class T>
__device__ __forceinline__ void copy_rows(const Arguments<T>& a, const Stages<Weights>& ring, const Part& part,
                                          int first, int lane) {
  for (int i = 0; i < kRows; ++i) {
    const auto row = part.stretch(row_at(a, first, i));
    char* const to = ring.row(i) + part.at();
    for (int at = 16 * lane; at < row.bytes; at += 16 * 32) copy_async(to + at, row.from + at, true);
    if (lane == 0) row.copy_rest(to);
  }
}

// Lanes that fill a stage by bulk copies.
template <class Weights>
constexpr int kFillers = Weights::kScaleBytes > 0 ? 2 * kRows : kRows;

// A warp fills the ring: a stage has `warps` chunks of a tile's rows.
template <class Weights, class T>
__device__ __forceinline__ void fill(const Arguments<T>& a, Stages<Weights> ring, int warps, int lane) {
  const int tile_step = int(gridDim.x) * columns_of_tile(a);
  for (int first = int(blockIdx.x) * columns_of_tile(a); first < a.columns; first += tile_step)
    for (int chunk = 0; chunk < a.chunks; chunk += warps) {
      const StagePart<Weights, false> chunks(a, first, chunk, warps);
      const StagePart<Weights, true> scales(a, first, chunk, warps);
      constexpr bool kHasScales = Weights::kScaleBytes > 0;
      ring.wait_empty();
      if (a.bulk) {
        if (lane < kRows)
          copy_bulk_row(a, ring, chunks, first, lane);
        else if (kHasScales)
          copy_bulk_row(a, ring, scales, first, lane - kRows);
      } else {
        copy_rows(a, ring, chunks, first, lane);
        if (kHasScales) copy_rows(a, ring, scales, first, lane);
        __threadfence_block();
        barrier_arrive_after_copies(ring.full());
      }
      ring.at.advance();
    }
}

// A chunk in shared memory, as a lane multiplies it: its two rows of a fragment, lane / 4 and eight below. They begin
// as far beyond a multiple of 16 as in memory.
template <class Weights>
struct Fragment {
  const char* row[2];
  const char* table;
  int to_scales, rest;  // from a row to the chunk's scales; elements from the chunk's first to the row's end

  template <class T>
  __device__ __forceinline__ Fragment(const Arguments<T>& a, int first, int chunk, const Stages<Weights>& ring,
                                      const char* table, int warps, int warp, int lane)
      : table(table),
        to_scales((warps - warp) * Weights::kBytes + warp * Weights::kScaleBytes),
        rest(a.inputs - chunk * Weights::kElements) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = lane / 4 + 8 * r;
      row[r] = ring.row(i) + warp * Weights::kBytes;
      if constexpr (!Weights::kAligned) {
        const char* const begin = a.w + first * a.w_row + int64_t(chunk - warp) * Weights::kBytes;
        row[r] += uintptr_t(begin + row_at(a, first, i)) % 16;
      }
    }
  }
};

// Activations of a part of a chunk: fours of a token, in the order of the steps. Lanes beyond the last token repeat it;
// beyond a row's end there are zeros.
constexpr int kSteps = 8;  // of 16 elements
template <class Weights, class T>
struct Activations {
  uint2 four[kSteps];

  __device__ __forceinline__ Activations(const Arguments<T>& a, int part, int lane) {
    const int begin = part * kSteps * 16 + lane % 4 * Weights::kNeighbours;
    const T* const from = a.x + uint32_t(min(lane / 4, a.tokens - 1) * int(a.x_row) + begin);
    if (!Weights::kRagged || (part + 1) * kSteps * 16 <= a.inputs)
      load<true>(from, 0);
    else
      load<false>(from, a.inputs - begin);
  }

 private:
  // Elements that lie `rest` or more beyond `from` are zero, unless all of them are there.
  template <bool kAll>
  __device__ __forceinline__ void load(const T* from, int rest) {
    constexpr int kSide = Weights::kNeighbours / 4;  // fours side by side
#pragma unroll
    for (int i = 0; i < kSteps; i += min(kSide, 2)) {
      const int at = 16 * (i / kSide * kSide) + 4 * (i % kSide);
      if constexpr (kSide == 1) {
        four[i] = *reinterpret_cast<const uint2*>(from + at);
      } else {
        uint4 eight{};
        if (kAll || at < rest) eight = *reinterpret_cast<const uint4*>(from + at);
        four[i] = make_uint2(eight.x, eight.y);
        four[i + 1] = make_uint2(eight.z, eight.w);
      }
    }
  }
};

// What multiplies a tile's sums beside the scales that come with the chunks.
template <class Weights>
struct NoRowScales {
  __device__ __forceinline__ void begin_chunk(int) {}
  __device__ __forceinline__ void take_chunk(const Fragment<Weights>&, float (&)[4], int, int) {}
  __device__ __forceinline__ void finish(float (&)[4]) {}
};
template <class Weights, class T>
__device__ __forceinline__ NoRowScales<Weights> row_scales(const Weights&, const Arguments<T>&, const GroupSums*, int,
                                                           int) {
  return {};
}

template <DType kFormat, class T>
struct ScalesOfCodes : RowScales<kFormat, T> {
  using RowScales<kFormat, T>::RowScales;
  __device__ __forceinline__ void take_chunk(const Fragment<Codes<kFormat>>& w, float (&)[4], int, int lane) {
    const char* const at[2] = {w.row[0] + w.to_scales, w.row[1] + w.to_scales};
    RowScales<kFormat, T>::take_chunk(at, lane % 4);
  }
};
template <DType kFormat, class T>
__device__ __forceinline__ ScalesOfCodes<kFormat, T> row_scales(const Codes<kFormat>&, const Arguments<T>& a,
                                                                const GroupSums*, int first, int lane) {
  const char* const tile = a.w + first * a.w_row;
  return {tile + row_at(a, first, lane / 4), tile + row_at(a, first, lane / 4 + 8), a.scales, a.nested};
}

__device__ constexpr float kNothing[4] = {};

// What a block of groups adds for the sums of activations.
template <class Block, class T>
class ScalesOfGroups {
 public:
  using Weights = Chunk<Block>;

  // `sums` has those of `tokens` for each chunk.
  __device__ __forceinline__ ScalesOfGroups(const GroupSums* sums, int tokens, int lane)
      : sums_(sums + min(lane / 4, tokens - 1) * 4 + lane % 4), step_(tokens * 4) {}
  __device__ __forceinline__ void begin_chunk(int) {}
  __device__ __forceinline__ void take_chunk(const Fragment<Weights>& w, float (&sum)[4], int chunk, int lane) {
    uint32_t scales[2], minima[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const typename Weights::Scales all(w.row[r]);
      const bool last_four = lane % 4 >= 2, last_two = lane % 2 == 1;
      scales[r] = two_bytes(last_four ? all.scales[1] : all.scales[0], last_two);
      minima[r] = two_bytes(last_four ? all.minima[1] : all.minima[0], last_two);
    }
    const GroupSums sums = sums_[chunk * step_];
    float of_scales[4], of_minima[4];
    multiply(of_scales, scales, sums);
    multiply(of_minima, minima, sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t header = word_at(w.row[r]);
      const float d = scale_of(uint16_t(header)) * -Weights::template kBase<T>, dmin = scale_of(uint16_t(header >> 16));
#pragma unroll
      for (int n = 2 * r; n < 2 * r + 2; ++n) sum[n] = fmaf(d, of_scales[n], fmaf(-dmin, of_minima[n], sum[n]));
    }
  }
  __device__ __forceinline__ void finish(float (&)[4]) {}

 private:
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[2], const GroupSums& sums) {
    mma_of_eight(d, a, sums.high, kNothing);
    mma_of_eight(d, a, sums.middle, d);
    mma_of_eight(d, a, sums.low, d);
  }

  const GroupSums* sums_;
  int step_;
};
template <class T>
__device__ __forceinline__ ScalesOfGroups<Q4KBlock, T> row_scales(const Chunk<Q4KBlock>&, const Arguments<T>& a,
                                                                  const GroupSums* sums, int, int lane) {
  return {sums, a.tokens, lane};
}
template <class T>
__device__ __forceinline__ ScalesOfGroups<Q5KBlock, T> row_scales(const Chunk<Q5KBlock>&, const Arguments<T>& a,
                                                                  const GroupSums* sums, int, int lane) {
  return {sums, a.tokens, lane};
}

// The sums of the groups of 32 activations in a warp's chunks: [chunks, tokens, 4]. Two lanes add up a group, 16 a
// chunk.
template <class T>
__device__ __forceinline__ void add_groups(const Arguments<T>& a, GroupSums* sums, int warp, int warps, int lane) {
  const int half = lane % 16;
  for (int first = warp; first < a.chunks; first += 2 * warps)
    for (int token = 0; token < a.tokens; ++token) {
      const int chunk = first + lane / 16 * warps;
      float part[4] = {};
      if (chunk < a.chunks) {
        const auto* const eights = reinterpret_cast<const Pack<T, 8>*>(a.x + token * a.x_row + chunk * 256 + half * 16);
        const Pack<T, 8> both[2] = {eights[0], eights[1]};
#pragma unroll
        for (int i = 0; i < 16; ++i) part[i % 4] += to_float(both[i / 8].value[i % 8]);
      }
      float sum = (part[0] + part[1]) + (part[2] + part[3]);
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      const float next = __shfl_down_sync(0xffffffff, sum, 2);
      if (chunk < a.chunks && half % 4 == 0)
        sums[(chunk * a.tokens + token) * 4 + half / 4] = sums_of_groups(sum, next);
    }
  __syncwarp();
}

// sum += one group's product times its scales.
template <int j, class Block, class T>
__device__ __forceinline__ void add_group(float (&sum)[4], const uint2 (&x)[2], const char* const (&row)[2], int q) {
  using Weights = Chunk<Block>;
  uint32_t numbers[2][2][2];  // rows, steps, pairs
#pragma unroll
  for (int r = 0; r < 2; ++r) Weights::template floats<j, T>(numbers[r], row[r], q);
  float part[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t a[4] = {numbers[0][i][0], numbers[1][i][0], numbers[0][i][1], numbers[1][i][1]};
    if (Weights::kScaleOfStep || i == 0)
      mma<T>(part, a, x[i].x, x[i].y, kNothing);
    else
      mma<T>(part, a, x[i].x, x[i].y);
    if (Weights::kScaleOfStep || i == 1) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float scale = Weights::template scale<j>(row[r], i);
#pragma unroll
        for (int n = 2 * r; n < 2 * r + 2; ++n) sum[n] = fmaf(scale, part[n], sum[n]);
      }
    }
  }
}

// A part of a warp's chunk. Weights is Chunk<Block>, Codes<format> or FloatChunk<T>.
template <class Weights>
struct Product;
template <class Block>
struct Product<Chunk<Block>> {
  static constexpr int kParts = 2;
  template <int kPart, class T>
  static __device__ __forceinline__ void add(float (&sum)[4], const Activations<Chunk<Block>, T>& x,
                                             const Fragment<Chunk<Block>>& w, NoRowScales<Chunk<Block>>&, int lane) {
    const auto group = [&]<int j>(std::integral_constant<int, j>) {
      const uint2 both[2] = {x.four[2 * j], x.four[2 * j + 1]};
      add_group<kPart * kSteps / 2 + j, Block, T>(sum, both, w.row, lane % 4);
    };
    [&]<int... j>(std::integer_sequence<int, j...>) { (group(std::integral_constant<int, j>()), ...); }
    (std::make_integer_sequence<int, kSteps / 2>());
  }
};

template <class Block>
struct ProductOfGroups {
  static constexpr int kParts = 2;
  template <int kPart, class T>
  static __device__ __forceinline__ void add(float (&sum)[4], const Activations<Chunk<Block>, T>& x,
                                             const Fragment<Chunk<Block>>& w, ScalesOfGroups<Block, T>&, int lane) {
    using Weights = Chunk<Block>;
    const typename Weights::Scales scales[2] = {Weights::Scales(w.row[0]), Weights::Scales(w.row[1])};
    const float below[2] = {-0x1p23f * scales[0].d, -0x1p23f * scales[1].d};
#pragma unroll
    for (int pair = 0; pair < kSteps / 4; ++pair) {
      const int of = kPart * kSteps / 4 + pair;
      const typename Weights::Numbers numbers[2] = {{w.row[0], of, lane % 4}, {w.row[1], of, lane % 4}};
#pragma unroll
      for (int j = 2 * pair; j < 2 * pair + 2; ++j) {
        float part[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t rows[2][2];
#pragma unroll
          for (int r = 0; r < 2; ++r) numbers[r].template floats<T>(rows[r], kPart * kSteps / 2 + j, i);
          const uint32_t a[4] = {rows[0][0], rows[1][0], rows[0][1], rows[1][1]};
          const uint2 four = x.four[2 * j + i];
          if (i == 0)
            mma<T>(part, a, four.x, four.y, kNothing);
          else
            mma<T>(part, a, four.x, four.y);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float scale = fmaf(above_ones(scales[r].scales[kPart], j), scales[r].d, below[r]);
#pragma unroll
          for (int n = 2 * r; n < 2 * r + 2; ++n) sum[n] = fmaf(scale, part[n], sum[n]);
        }
      }
    }
  }
};
template <>
struct Product<Chunk<Q4KBlock>> : ProductOfGroups<Q4KBlock> {};
template <>
struct Product<Chunk<Q5KBlock>> : ProductOfGroups<Q5KBlock> {};

template <DType kFormat>
struct Product<Codes<kFormat>> {
  static constexpr int kParts = 2;
  template <int kPart, class T>
  static __device__ __forceinline__ void add(float (&sum)[4], const Activations<Codes<kFormat>, T>& x,
                                             const Fragment<Codes<kFormat>>& w, ScalesOfCodes<kFormat, T>& scales,
                                             int lane) {
    using Weights = Codes<kFormat>;
    constexpr int kSides = kSteps / 4;  // 64s of a part
    float part[4];
#pragma unroll
    for (int side = 0; side < kSides; ++side) {
      constexpr int kRun = Weights::kRun;
      const int of = kPart * kSides + side, first = 64 * of;
      LaneCodes<kFormat> codes[2] = {{w.row[0] + of * 8 * Weights::kBits, lane % 4},
                                     {w.row[1] + of * 8 * Weights::kBits, lane % 4}};
#pragma unroll
      for (int r = 0; r < 2; ++r) scales.see(r, codes[r], w.rest - first, lane % 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t rows[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) codes[r].template floats<T>(rows[r], i, w.table, lane);
        const uint32_t a[4] = {rows[0][0], rows[1][0], rows[0][1], rows[1][1]};
        const uint2 four = x.four[4 * side + i];
        if constexpr (kRun == 0)
          mma<T>(sum, a, four.x, four.y);
        else if (i == 0 && first % kRun == 0)
          mma<T>(part, a, four.x, four.y, kNothing);
        else
          mma<T>(part, a, four.x, four.y);
      }
      if constexpr (kRun > 0)
        if ((first + 64) % kRun == 0)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float of_run = scales.of_run(r, first / kRun, w.row[r] + w.to_scales);
            const float scale = first < w.rest ? of_run : 0;
#pragma unroll
            for (int n = 2 * r; n < 2 * r + 2; ++n) sum[n] = fmaf(scale, part[n], sum[n]);
          }
    }
  }
};

template <class T>
struct Product<FloatChunk<T>> {
  static constexpr int kParts = 1;
  template <int kPart>
  static __device__ __forceinline__ void add(float (&sum)[4], const Activations<FloatChunk<T>, T>& x,
                                             const Fragment<FloatChunk<T>>& w, NoRowScales<FloatChunk<T>>&, int lane) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      // Lane q holds elements 4q to 4q + 3 of the 16, as it does of the activations.
      const uint2 upper = *reinterpret_cast<const uint2*>(w.row[0] + 32 * i + lane % 4 * 8);
      const uint2 lower = *reinterpret_cast<const uint2*>(w.row[1] + 32 * i + lane % 4 * 8);
      const uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
      mma<T>(sum, a, x.four[i].x, x.four[i].y);
    }
  }
};

// A tile's part of s up^T, as one more product: 16 ranks a step, and the warps take turns at the steps. Each half of
// the tile's rows lies in one block or in none; the other half of its operand is zero.
template <class T>
class LoraTile {
 public:
  // `first`: the tile's first column. The first step's rows of up are on their way from here.
  __device__ __forceinline__ LoraTile(const Arguments<T>& a, const LoraArguments<T>& lora, int first, int warp,
                                      int lane)
      : lora_(lora), token_(min(lane / 4, a.tokens - 1)), lane_(lane), warp_(warp) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_[half] = first + (half == 0 ? 0 : a.gated ? a.columns : kRows / 2);
      block_[half] = 0;
      while (block_[half] < lora.count && !holds(lora.block[block_[half]], row_[half])) ++block_[half];
      row_[half] += lane / 4;
      up_[half] = load_up(half, warp);
    }
  }
  __device__ __forceinline__ void add_to(float (&sum)[4], int warps) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (block_[half] == lora_.count) continue;
      const typename LoraArguments<T>::Block& block = lora_.block[block_[half]];
      float part[4] = {};
      for (int step = warp_; 16 * step < block.rank; step += warps) {
        const uint2 up = step == warp_ ? up_[half] : load_up(half, step);
        const uint2 s = load_four(lora_.s + token_ * lora_.s_row + block.low_at, step, block.rank);
        const uint32_t rows[4] = {half ? 0 : up.x, half ? up.x : 0, half ? 0 : up.y, half ? up.y : 0};
        mma<T>(part, rows, s.x, s.y);
      }
#pragma unroll
      for (int n = 2 * half; n < 2 * half + 2; ++n) sum[n] = fmaf(block.scale, part[n], sum[n]);
    }
  }

 private:
  static __device__ __forceinline__ bool holds(const typename LoraArguments<T>::Block& block, int row) {
    return block.begin <= row && row < block.end;
  }
  __device__ __forceinline__ uint2 load_up(int half, int step) const {
    if (block_[half] == lora_.count) return {};
    const typename LoraArguments<T>::Block& block = lora_.block[block_[half]];
    const bool inside = holds(block, row_[half]);
    return load_four(block.up + int64_t(row_[half] - block.begin) * block.up_row, step, inside ? block.rank : 0);
  }
  // The lane's four of 16 ranks; zeros beyond `rank`, where anything may lie.
  __device__ __forceinline__ uint2 load_four(const T* from, int step, int rank) const {
    const int at = 16 * step + lane_ % 4 * 4;
    if (at + 4 <= rank) return *reinterpret_cast<const uint2*>(from + at);
    Pack<T, 4> four{};
#pragma unroll
    for (int i = 0; i < 3; ++i)
      if (at + i < rank) four.value[i] = from[at + i];
    return *reinterpret_cast<const uint2*>(&four);
  }

  const LoraArguments<T>& lora_;
  int token_, lane_, warp_;
  int row_[2], block_[2];
  uint2 up_[2];
};
template <class T>
class NoLoraTile {
 public:
  __device__ __forceinline__ NoLoraTile(const Arguments<T>&, const NoLora&, int, int, int) {}
  __device__ __forceinline__ void add_to(float (&)[4], int) const {}
};

// A column and a token of a tile, one per thread: the initial value of its sum, and its epilogue.
template <class T>
class Output {
 public:
  __device__ __forceinline__ Output(const Arguments<T>& a, int first) : a_(a) {
    const int row = int(threadIdx.x) % kRows;
    token_ = int(threadIdx.x) / kRows;
    value_ = a.gated && row >= kRows / 2;
    column_ = first + (value_ ? row - kRows / 2 : row);
    inside_ = token_ < a.tokens && column_ < a.columns;
    if (inside_ && a.bias.data) total_ = a.bias.load((value_ ? a.columns + column_ : column_) * a.bias_step);
    if (inside_ && a.residual) total_ += to_float(a.residual[token_ * a.residual_row + column_]);
  }
  // sums [warps, 16, tokens]. By whole warps.
  __device__ __forceinline__ void finish(const float* sums, int warps) {
    if (inside_)
      for (int first = 0; first < warps; first += kAtOnce) {
        float part[kAtOnce];
#pragma unroll
        for (int w = 0; w < kAtOnce; ++w)
          part[w] = sums[((first + w) * kRows + int(threadIdx.x) % kRows) * a_.tokens + token_];
#pragma unroll
        for (int w = 0; w < kAtOnce; ++w) total_ += part[w];
      }
    if (a_.gated) {  // of gate and value, rounded as they would be stored
      total_ = to_float(from_float<T>(total_));
      total_ = total_ * sigmoid(total_) * __shfl_down_sync(0xffffffff, total_, kRows / 2);
    }
    if (inside_ && !value_) a_.y[token_ * a_.y_row + column_] = from_float<T>(total_);
  }

 private:
  static constexpr int kAtOnce = 4;  // sums on their way together
  static_assert(kFewWarps % kAtOnce == 0 && kManyWarps % kAtOnce == 0);

  const Arguments<T>& a_;
  int token_, column_;
  bool value_, inside_;  // a value of SwiGLU; one of the columns and tokens there are
  float total_ = 0;
};

template <class Weights, class T, class Lora>
__device__ __forceinline__ void multiply(const Arguments<T>& a, const Lora& lora, Stages<Weights> ring,
                                         const char* table, const GroupSums* group_sums, float* sums, int warps,
                                         int warp, int lane) {
  using Addend = std::conditional_t<std::is_same_v<Lora, NoLora>, NoLoraTile<T>, LoraTile<T>>;
  const int tile_step = int(gridDim.x) * columns_of_tile(a);
  float* other_sums = sums + warps * kRows * a.tokens;
  for (int first = int(blockIdx.x) * columns_of_tile(a); first < a.columns; first += tile_step) {
    Output<T> output(a, first);
    const Addend addend(a, lora, first, warp, lane);
    auto scales = row_scales(Weights(), a, group_sums, first, lane);
    float sum[4] = {};
    for (int chunk = warp; chunk - warp < a.chunks; chunk += warps) {
      if (chunk < a.chunks) {
        using Part = Activations<Weights, T>;
        constexpr int kParts = Product<Weights>::kParts;
        const Part x(a, chunk * kParts, lane);
        const Fragment<Weights> w(a, first, chunk, ring, table, warps, warp, lane);
        scales.begin_chunk(chunk);
        ring.wait_full();
        scales.take_chunk(w, sum, chunk, lane);
        Product<Weights>::template add<0>(sum, x, w, scales, lane);
        if constexpr (kParts == 2)
          Product<Weights>::template add<1>(sum, Part(a, chunk * kParts + 1, lane), w, scales, lane);
      } else {  // or it would arrive for warps that still read the stage's last contents
        ring.wait_full();
      }
      barrier_arrive(ring.empty());  // each lane: racecheck knows of no other way
      ring.at.advance();
    }
    scales.finish(sum);
    addend.add_to(sum, warps);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int token = lane % 4 * 2 + n % 2;
      if (token < a.tokens) sums[(warp * kRows + lane / 4 + n / 2 * 8) * a.tokens + token] = sum[n];
    }
    named_barrier(1, 32 * warps);  // and everybody has left the other sums
    if (threadIdx.x < kRows * kTokens) output.finish(sums, warps);
    float* const others = other_sums;
    other_sums = sums;
    sums = others;
  }
}

// Lora: LoraArguments<T> or NoLora.
template <class Weights, class T, class Lora>
__global__ void __launch_bounds__(32 * (kManyWarps + 1), 2)
    few_rows(const __grid_constant__ Arguments<T> a, const __grid_constant__ Lora lora) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 memory[];
  const int warps = int(blockDim.x) / 32 - 1, warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  char* const table = reinterpret_cast<char*>(memory);
  char* const stages = table + Weights::kTableBytes;
  auto* const barriers = reinterpret_cast<uint64_t*>(stages + ring_bytes<Weights>(warps));
  const Stages<Weights> ring{stages, barriers, pitch_of<Weights>(warps)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < Weights::kStages; ++i) {
      barrier_init(barriers + i, a.bulk ? kFillers<Weights> : 32);
      barrier_init(barriers + Weights::kStages + i, 32 * warps);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (warp == warps) {
    if (!a.constant) wait_for_previous();
    launch_dependents();
    fill(a, ring, warps, lane);
  } else {
    if constexpr (Weights::kTableBytes > 0) {
      fill_nf4_table<T>(table, int(threadIdx.x), 32 * warps);
      named_barrier(1, 32 * warps);
    }
    wait_for_previous();
    launch_dependents();
    auto* const group_sums = reinterpret_cast<GroupSums*>(barriers + 2 * Weights::kStages);
    const int groups = Weights::kNeedsSums ? a.chunks * a.tokens * 4 : 0;
    if constexpr (Weights::kNeedsSums) add_groups(a, group_sums, warp, warps, lane);
    multiply(a, lora, ring, table, group_sums, reinterpret_cast<float*>(group_sums + groups), warps, warp, lane);
  }
#endif
}

template <class Weights, class T, class Kernel>
Launch shape_of(const CudaBackend& cuda, const Arguments<T>& a, Kernel kernel) {
  const int tiles = (a.columns + columns_of_tile(a) - 1) / columns_of_tile(a);
  const auto of = [&](int warps) {
    const int sums = 2 * warps * kRows * a.tokens, barriers = 2 * Weights::kStages;
    const int groups = Weights::kNeedsSums ? a.chunks * a.tokens * 4 : 0;
    const int bytes = Weights::kTableBytes + ring_bytes<Weights>(warps) + barriers * int(sizeof(uint64_t)) +
                      groups * int(sizeof(GroupSums)) + sums * int(sizeof(float));
    const Launch shape{dim3(unsigned(tiles)), dim3(unsigned(32 * (warps + 1))), size_t(bytes), 1,
                       cuda.capability() >= 90};
    return std::pair(shape, blocks_at_once(cuda, kernel, shape));
  };
  const auto rounds = [&](int warps) { return (a.chunks + warps - 1) / warps; };
  auto [shape, blocks] = of(kFewWarps);
  // Where there are few tiles, more warps share each, if that saves them a round.
  if (tiles <= 2 * cuda.multiprocessors() && rounds(kManyWarps) < rounds(kFewWarps)) {
    const auto [wide, wide_blocks] = of(kManyWarps);
    if (wide_blocks >= 2 * cuda.multiprocessors()) return wide;
  }
  shape.grid.x = unsigned(std::min(tiles, blocks));
  return shape;
}

// Where the codes and scales of rows lie, in bytes; parts that are copied are whole 16s.
struct RowParts {
  int64_t row_bytes, scales = 0, scale_bytes = 0, nested = 0;
};
template <class Weights>
RowParts parts_of(const Weights&, const LinearCall& l) {
  return {l.x.cols / Weights::kElements * Weights::kBytes};
}
template <DType kFormat>
RowParts parts_of(const Codes<kFormat>&, const LinearCall& l) {
  const RowLayout layout = row_layout(kFormat, l.x.cols);
  const int64_t scale_bytes = layout.count * (Codes<kFormat>::kNested ? 1 : 4);
  const auto whole = [](int64_t bytes) { return ceil_div(bytes, int64_t{16}) * 16; };
  return {whole(layout.scales), layout.scales, whole(scale_bytes), layout.nested};
}

// `token` is the first of those that one launch takes.
template <class Weights, class T>
Arguments<T> arguments_of(const CudaBackend& cuda, const LinearCall& l, int64_t token) {
  const int64_t w_row = row_bytes(l.w.dtype, l.w.stride[0]), chunks = ceil_div(l.x.cols, int64_t{Weights::kElements});
  const RowParts parts = parts_of(Weights(), l);
  return {l.w.as<const char>(),
          l.w.as<const char>() + (l.w.shape[0] - 1) * w_row + parts.row_bytes,
          w_row,
          l.gated ? l.y.cols * w_row : 0,
          static_cast<const T*>(l.x.data) + token * l.x.ld,
          static_cast<T*>(l.y.data) + token * l.y.ld,
          l.x.ld,
          l.y.ld,
          l.bias ? AnyFloats(l.bias) : AnyFloats(),
          l.bias ? l.bias.stride[0] : 0,
          l.residual.data ? static_cast<const T*>(l.residual.data) + token * l.residual.ld : nullptr,
          l.residual.ld,
          int(l.y.cols),
          int(l.x.cols),
          int(chunks),
          int(std::min<int64_t>(l.x.rows - token, kTokens)),
          int(parts.row_bytes),
          int(parts.scales),
          int(parts.scale_bytes),
          int(parts.nested),
          l.w.constant,
          cuda.capability() >= 90};
}

template <class T>
LoraArguments<T> lora_arguments(const LinearCall& l, int64_t token) {
  LoraArguments<T> a{static_cast<const T*>(l.s.data) + token * l.s.ld, l.s.ld, 0, {}};
  for (const LoraBlock& b : l.lora->blocks)
    a.block[a.count++] = {b.up.as<const T>(), b.up.stride[0],     int(b.column), int(b.column + b.up.shape[0]),
                          int(b.row),         int(b.up.shape[1]), b.scale};
  return a;
}

template <class Weights, class T>
void run(CudaBackend& cuda, const LinearCall& l) {
  for (int64_t token = 0; token < l.x.rows; token += kTokens) {
    const auto a = arguments_of<Weights, T>(cuda, l, token);
    const auto launch_with = [&]<class Lora>(const char* name, const Lora& lora) {
      const auto kernel = few_rows<Weights, T, Lora>;
      launch(name, cuda.stream(), shape_of<Weights>(cuda, a, kernel), kernel, a, lora);
    };
    if (l.lora)
      launch_with("linear_few_rows with a LoRA", lora_arguments<T>(l, token));
    else
      launch_with("linear_few_rows", NoLora());
  }
}

// Calls f with a type of weights: FloatChunk<T>, Chunk<Block> or Codes<format>.
template <class T, class F>
void with_weights(DType dtype, const F& f) {
  switch (dtype) {
    case DType::fp8:
      return f(Codes<DType::fp8>());
    case DType::fp8_block:
      return f(Codes<DType::fp8_block>());
    case DType::int8:
      return f(Codes<DType::int8>());
    case DType::nf4:
      return f(Codes<DType::nf4>());
    case DType::nf4_double:
      return f(Codes<DType::nf4_double>());
    default:
      if (!is_block(dtype)) return f(FloatChunk<T>());
      for_block_type(dtype, [&]<class Block>(Block*) { f(Chunk<Block>()); });
  }
}

bool weight_fits(const LinearCall& l) {
  bool fits = false;
  with_weights<bf16>(l.w.dtype, [&]<class Weights>(Weights) {
    const int64_t unit = Weights::kRagged ? 8 : Weights::kElements, fours = Weights::kNeighbours > 4 ? 2 : 1;
    const bool w_lies_right = aligned(l.w.data) && (l.w.shape[0] <= 1 || row_bytes(l.w.dtype, l.w.stride[0]) % 16 == 0);
    const bool x_lies_right =
        uintptr_t(l.x.data) % uintptr_t(8 * fours) == 0 && (l.x.rows <= 1 || l.x.ld % (4 * fours) == 0);
    fits = l.x.cols > 0 && l.x.cols % unit == 0 && x_lies_right && (w_lies_right || !Weights::kAligned);
  });
  return fits;
}

// The kernels read up and s by fours, x and down by eights.
bool lora_fits(const LinearCall& l) {
  const LoraFactors& lora = *l.lora;
  const auto lies_right = [&](const View& v, int64_t elements) {
    return v.dtype == l.x.dtype && uintptr_t(v.data) % (2 * uintptr_t(elements)) == 0 &&
           (v.shape[1] <= 1 || v.stride[1] == 1) && (v.shape[0] <= 1 || v.stride[0] % elements == 0);
  };
  if (lora.dropout.p > 0 || lora.blocks.size() > kMostFewRowsBlocks || !lies_right(lora.down, 8)) return false;
  if (!aligned(l.x.data) || (l.x.rows > 1 && l.x.ld % 8 != 0)) return false;
  if (l.gated && l.y.cols % (kRows / 2) != 0) return false;
  return std::all_of(lora.blocks.begin(), lora.blocks.end(), [&](const LoraBlock& b) {
    return lies_right(b.up, 4) && b.row % 4 == 0 && b.column % (kRows / 2) == 0;
  });
}

}  // namespace

bool few_rows_fit(const Gpu& gpu, const LinearCall& l) {
  const bool floats = l.w.dtype == l.x.dtype, quantised = is_quantized(l.w.dtype) && l.w.dtype != DType::fp8_product;
  if (gpu.capability() < 80 || l.x.dtype == DType::f32 || l.y.dtype != l.x.dtype || !(floats || quantised))
    return false;
  if (l.x.rows > (floats ? kTokens : kMostTokens) || l.x.transposed || l.y.transposed || l.residual.transposed ||
      l.w.stride[1] != 1)
    return false;
  if (l.gated && l.y.cols * l.w.stride[0] > kFarthestValue) return false;
  return weight_fits(l) && (!l.lora || lora_fits(l));
}

void few_rows_linear(CudaBackend& cuda, const LinearCall& l) {
  if (l.lora) few_rows_down(cuda, l.s, l.x, l.lora->down);
  const auto of_type = [&]<class T>(Type<T>) {
    with_weights<T>(l.w.dtype, [&]<class Weights>(Weights) { run<Weights, T>(cuda, l); });
  };
  dispatch_16bit(l.x.dtype, of_type);
}

}  // namespace wick
