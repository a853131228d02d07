// Rows with contiguous columns, read and written in packs: in place for views that are laid out so, through a dense
// copy otherwise; and rows that stay in registers between being read and being used.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/device/numbers.cuh"
#include "wick/backend/cuda/device/reduce.cuh"
#include "wick/backend/cuda/runtime/dense.h"
#include "wick/backend/cuda/runtime/dispatch.cuh"

namespace wick {

// A view as a kernel sees it.
template <class T>
struct RowsOf {
  T* data;
  int64_t stride;  // elements from one row to the next

  __device__ __forceinline__ T* operator[](int64_t i) const { return data + i * stride; }
};

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* x) {
  return *reinterpret_cast<const Pack<T, N>*>(x);
}
template <class T, int N>
__device__ __forceinline__ void store_pack(T* y, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(y) = pack;
}

// A pack as the words that it came in, for keeping: elements kept apart would take twice the registers.
template <class T, int N>
struct alignas(sizeof(T) * N) PackWords {
  using Word = std::conditional_t<(sizeof(T) * N >= 4), uint32_t, uint16_t>;
  Word words[sizeof(T) * N / sizeof(Word)];

  static __device__ __forceinline__ PackWords load(const T* x) { return *reinterpret_cast<const PackWords*>(x); }
  __device__ __forceinline__ void store(T* y) const { *reinterpret_cast<PackWords*>(y) = *this; }
  __device__ __forceinline__ Pack<T, N>& pack() { return *reinterpret_cast<Pack<T, N>*>(this); }
  __device__ __forceinline__ const Pack<T, N>& pack() const { return *reinterpret_cast<const Pack<T, N>*>(this); }
  // In the compiler's eyes another pack each time, so that it takes the words apart anew and keeps no elements either.
  __device__ __forceinline__ Pack<T, N> unpack() const {
    PackWords words = *this;
    if constexpr (sizeof(Word) == 4)
#pragma unroll
      for (Word& word : words.words) asm volatile("" : "+r"(word));
    return words.pack();
  }
};

// Element j, a constant. For bf16 a word's halves are one instruction each, where the compiler takes three for two.
template <class T, int N>
__device__ __forceinline__ float element(const Pack<T, N>& pack, int j) {
  if constexpr (std::is_same_v<T, bf16> && N > 1) {
    const uint32_t word = reinterpret_cast<const PackWords<T, N>&>(pack).words[j / 2];
    return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
  } else {
    return to_float(pack.value[j]);
  }
}

// N elements from `from + first`, in packs.
template <int N, class T>
__device__ __forceinline__ void load_floats(float (&to)[N], const T* from, int64_t first) {
  constexpr int kPack = N < Pack<T>::kSize ? N : Pack<T>::kSize;
#pragma unroll
  for (int j = 0; j < N; j += kPack) {
    const auto pack = load_pack<kPack>(from + first + j);
#pragma unroll
    for (int k = 0; k < kPack; ++k) to[j + k] = element(pack, k);
  }
}

// Part of a row, of whole packs, on its way into the L2 cache. It may be called for before the kernel before has
// written it: that arrives there too.
template <class T>
__device__ __forceinline__ void prefetch(const T* from, int count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(count * int(sizeof(T)))
               : "memory");
#endif
}

// The dtype in which a kernel reads and writes all of these.
inline DType common_dtype(std::initializer_list<View> views) {
  std::optional<DType> common;
  for (const View& v : views)
    if (v) common = common && *common != v.dtype ? DType::f32 : v.dtype;
  return common.value_or(DType::f32);
}

// Dense is DenseInput or DenseOutput; for the latter call finish() once the kernels that write it are launched.
template <class Dense>
class RowView {
 public:
  RowView(CudaBackend& cuda, const View& view, DType dtype)
      : rows_(view && view.dtype == dtype ? rows_of(view) : std::nullopt), dense_(cuda, rows_ ? View{} : view, dtype) {
    data_ = rows_ ? view.data : dense_.view().data;
    if (view && !rows_) rows_ = rows_of(dense_.view());
    const int64_t width = int64_t(16 / size_of(dtype));
    packs_ = !view || (aligned(data_) && rows_->cols % width == 0 && (rows_->rows == 1 || rows_->stride % width == 0));
  }
  template <class T>
  RowsOf<T> rows() const {
    return {static_cast<T*>(data_), rows_ ? rows_->stride : 0};
  }
  bool packs() const { return packs_; }  // may all rows be read and written in packs of 16 bytes?
  void finish() const { dense_.finish(); }

 private:
  std::optional<Rows> rows_;
  Dense dense_;
  void* data_;
  bool packs_;
};

using RowInput = RowView<DenseInput>;
using RowOutput = RowView<DenseOutput>;

// The dtype in which kernels read vectors beside activations: theirs, or f32.
inline DType dtype_beside(DType activations, std::initializer_list<View> vectors) {
  for (const View& v : vectors)
    if (v && v.dtype != activations) return DType::f32;
  return activations;
}

// Calls f(Type<T>{}, N) with the device type of a float dtype and the number of elements to load at once, a constant:
// 16 bytes, or one where packs do not fit.
template <class F>
void dispatch_packs(DType dtype, bool packs, F&& f) {
  dispatch_float(dtype, [&](auto type) {
    constexpr int kPack = Pack<typename decltype(type)::type>::kSize;
    packs ? f(type, std::integral_constant<int, kPack>()) : f(type, std::integral_constant<int, 1>());
  });
}

// The same with vectors beside the activations: f(Type<T>{}, Type<V>{}, N).
template <class F>
void dispatch_packs(DType dtype, DType vectors, bool packs, F&& f) {
  dispatch_packs(dtype, packs, [&]<class T>(Type<T> type, auto pack) {
    if (vectors == DType::f32)
      f(type, Type<float>(), pack);
    else if constexpr (!std::is_same_v<T, float>)
      f(type, type, pack);
  });
}

// Rows that blockDim.x threads share, blockDim.y rows a block: a few lanes of a warp, so that each has several packs
// to make its share of the reductions worth while, or a whole block.
inline constexpr int kRowThreads = 512, kFewRowThreads = 64;
inline constexpr int kHeldPacks = 5;  // that a thread keeps of a row: 320, 640 and 1280 elements then come out even

inline dim3 row_threads(int64_t packs, int held = kHeldPacks) {
  unsigned lanes = 4;
  while (lanes < 32 && packs > lanes * held) lanes *= 2;
  if (packs <= lanes * held) return dim3(lanes, kFewRowThreads / lanes);
  const int64_t threads = ceil_div(packs, held);
  return dim3(unsigned(std::min<int64_t>((threads + 31) / 32 * 32, kRowThreads)));
}
inline unsigned row_blocks(int64_t rows, dim3 threads) { return unsigned(ceil_div(rows, threads.y)); }

// Threads left over in the last block do the last row once more, to the same bits.
__device__ __forceinline__ int64_t this_row(int64_t rows) {
  return min(int64_t(blockIdx.x) * blockDim.y + threadIdx.y, rows - 1);
}

// All threads of a row get the results.
template <class Op, int N>
__device__ __forceinline__ void row_reduce(float (&x)[N]) {
  if (blockDim.x > 32) return block_reduce<Op>(x);
  for (unsigned lane = blockDim.x / 2; lane > 0; lane /= 2)
#pragma unroll
    for (int n = 0; n < N; ++n) x[n] = Op::of(x[n], __shfl_xor_sync(0xffffffffu, x[n], int(lane)));
}
template <class Op>
__device__ __forceinline__ float row_reduce(float x) {
  float one[1] = {x};
  row_reduce<Op>(one);
  return one[0];
}

// This thread's packs of a row of each of `Count` matrices: read at once and kept; a long row's rest is read again.
template <class T, int N, int Count, int kHeld = kHeldPacks>
class HeldRows {
 public:
  __device__ __forceinline__ HeldRows(const T* const (&rows)[Count], int length) : packs_(length / N) {
#pragma unroll
    for (int c = 0; c < Count; ++c) rows_[c] = rows[c];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = int(threadIdx.x + k * blockDim.x);
#pragma unroll
      for (int c = 0; c < Count; ++c)
        if (i < packs_) held_[k][c] = PackWords<T, N>::load(rows_[c] + i * N);
    }
  }

  // One row of the packs that f(number of the first element, packs) returns, written to `to` as well.
  template <class F>
  __device__ __forceinline__ HeldRows<T, N, 1, kHeld> map(T* to, const F& f) const {
    HeldRows<T, N, 1, kHeld> mapped(packs_, to);
    visit_all([&](int k, int first, const Pack<T, N>(&packs)[Count]) {
      PackWords<T, N> words;
      words.pack() = f(first, packs);
      words.store(to + first);
      if (k < kHeld) mapped.held_[k][0] = words;
    });
    return mapped;
  }

  // Calls f(number of the first element, packs) for each of them.
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
    visit_all([&](int, int first, const Pack<T, N>(&packs)[Count]) { f(first, packs); });
  }

 private:
  template <class, int, int, int>
  friend class HeldRows;
  __device__ __forceinline__ HeldRows(int packs, const T* row) : packs_(packs), rows_{row} {}

  template <class F>
  __device__ __forceinline__ void visit_all(const F& f) const {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = int(threadIdx.x + k * blockDim.x);
      if (i < packs_) visit(k, i, held_[k], f);
    }
#pragma unroll 1
    for (int i = int(threadIdx.x + kHeld * blockDim.x); i < packs_; i += int(blockDim.x)) {
      PackWords<T, N> words[Count];
#pragma unroll
      for (int c = 0; c < Count; ++c) words[c] = PackWords<T, N>::load(rows_[c] + i * N);
      visit(kHeld, i, words, f);
    }
  }
  template <class F>
  __device__ __forceinline__ static void visit(int k, int i, const PackWords<T, N> (&words)[Count], const F& f) {
    Pack<T, N> packs[Count];
#pragma unroll
    for (int c = 0; c < Count; ++c) packs[c] = words[c].unpack();
    f(k, i * N, packs);
  }

  int packs_;
  const T* rows_[Count];
  PackWords<T, N> held_[kHeld][Count];
};

}  // namespace wick
