// Tiles of a row-major matrix on their way into shared memory by cp.async, 16 bytes a copy (8.0 on).
#pragma once

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/mma.cuh"

namespace wick {

// How a tile lies in shared memory, so that the eight rows which ldmatrix reads at once lie in different banks: element
// (row, column) is at place(row, column), for columns that begin 16 bytes, and kLd is from row to row.
template <int kPitch>
struct PaddedRows {
  static constexpr int kLd = kPitch;
  static __device__ __forceinline__ int place(int row, int column) { return row * kLd + column; }
};
template <int kCols>
struct SwizzledRows {  // of 16-bit elements
  static constexpr int kLd = kCols;
  static __device__ __forceinline__ int place(int row, int column) {
    return row * kLd + (column / 8 ^ (kCols >= 64 ? row % 8 : row / 2 % 4)) * 8;
  }
};

// A thread's copies of tiles [kRows, kCols] along a matrix whose rows are 16-byte aligned: 16 bytes of some rows, zeros
// outside the matrix, on either side: tiles may begin before it.
template <class T, int kThreads, int kRows, int kCols, class Layout>
class TileCopy {
 public:
  TileCopy() = default;
  // From element (row, col) of a matrix of `rows` x `cols`.
  __device__ __forceinline__ TileCopy(const void* m, int64_t ld, int64_t row, int64_t col, int64_t rows, int64_t cols)
      : ld_(ld), rows_(unsigned(rows)), cols_(unsigned(cols)) {
    const int r = int(threadIdx.x) / kPerRow, c = int(threadIdx.x) % kPerRow * kChunk;
    at_ = static_cast<const T*>(m) + (row + r) * ld + col + c;
    row_ = int(row) + r;
    col_ = int(col) + c;
  }
  __device__ __forceinline__ void start(T* tile) const {
    if (idle()) return;
    const T* from = at_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_async(tile + place() + i * kRowStep * Layout::kLd, from,
                 unsigned(col_) < cols_ && unsigned(row_ + i * kRowStep) < rows_);
      from += kRowStep * ld_;
    }
  }
  __device__ __forceinline__ void next_cols() {
    at_ += kCols;
    col_ += kCols;
  }
  __device__ __forceinline__ void next_rows() {
    at_ += kRows * ld_;
    row_ += kRows;
  }
  // The thread's part of a tile, which it has copied itself, to a tile of other elements.
  template <class ToLayout, class To>
  __device__ __forceinline__ void convert(To* to, const T* tile) const {
    if (idle()) return;
    to += ToLayout::place(int(threadIdx.x) / kPerRow, int(threadIdx.x) % kPerRow * kChunk);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const Pack<T> x = *reinterpret_cast<const Pack<T>*>(tile + place() + i * kRowStep * Layout::kLd);
      Pack<To, kChunk> converted;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) converted.value[j] = from_float<To>(to_float(x.value[j]));
      *reinterpret_cast<Pack<To, kChunk>*>(to + i * kRowStep * ToLayout::kLd) = converted;
    }
  }

 private:
  static constexpr int kChunk = 16 / sizeof(T), kPerRow = kCols / kChunk, kRowStep = kThreads / kPerRow;
  static constexpr int kCopies = ceil_div(kRows, kRowStep);
  static_assert(kThreads % kPerRow == 0 && (kRowStep % 8 == 0 || std::is_same_v<Layout, PaddedRows<Layout::kLd>>));

  __device__ __forceinline__ static int place() {
    return Layout::place(int(threadIdx.x) / kPerRow, int(threadIdx.x) % kPerRow * kChunk);
  }
  // A small tile has less than one copy a thread.
  __device__ __forceinline__ static bool idle() { return kRowStep > kRows && int(threadIdx.x) / kPerRow >= kRows; }

  const T* at_;
  int64_t ld_;
  int row_, col_;  // of the thread's first element
  unsigned rows_, cols_;
};

}  // namespace wick
