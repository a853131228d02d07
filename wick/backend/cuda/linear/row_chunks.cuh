// Rows of codes (core/row_formats.h) for the products of weight_chunks.cuh: chunks of 256 codes, of whose 64s lane q of
// four takes elements 16q to 16q + 15. Codes become 16-bit floats exactly, but for nf4's values, which are rounded to
// them. Scales multiply products in f32.
#pragma once

#include "wick/backend/cuda/linear/weight_chunks.cuh"
#include "wick/core/dynamic_map.h"
#include "wick/core/row_formats.h"

namespace wick {

template <DType kFormat>
struct Codes : WholeChunks {
  static constexpr bool kNested = kFormat == DType::nf4_double;
  static constexpr int kBits = kFormat == DType::nf4 || kNested ? 4 : 8;
  static constexpr int kRun = kBits == 4 ? int(kNf4Run) : kFormat == DType::fp8_block ? int(kFp8BlockRun) : 0;
  static constexpr int kBytes = 32 * kBits, kStages = 2;
  static constexpr int kScaleBytes = kRun == 0 ? 0 : 256 / kRun * (kNested ? 1 : 4);
  static constexpr int kNeighbours = 16, kTaken = 8 * kBits;
  static constexpr int kTableBytes = kBits == 4 ? 256 * 32 * 4 : 0;
  static constexpr bool kRagged = true;
};

// Bytes that are codes of E4M3, in the upper halves of 16 bits, as 16-bit floats times kE4m3Unit: their exponent and
// mantissa in that of the wider type, whose exponent is biased by 127 - 7, or 15 - 7, more. The code of NaN becomes
// 480.
template <class T>
constexpr float kE4m3Unit = std::is_same_v<T, bf16> ? 1 : 0x1p-8f;
template <class T>
__device__ __forceinline__ uint32_t of_e4m3(uint32_t upper) {
  if constexpr (std::is_same_v<T, bf16>) {
    const uint32_t small = and_or(upper, 0x80008000, upper >> 4 & 0x07f007f0);
    const __nv_bfloat162 value =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(small), __float2bfloat162_rn(0x1p120f));
    return reinterpret_cast<const uint32_t&>(value);
  } else {
    return and_or(upper, 0x80008000, upper >> 1 & 0x3f803f80);
  }
}
// Bits that are set where one of eight codes is NaN.
__device__ __forceinline__ uint32_t e4m3_nans(uint32_t codes, uint32_t more) {
  constexpr uint32_t kMagnitudes = 0x7f7f7f7f, kOnes = 0x01010101;
  return (((codes & kMagnitudes) + kOnes) | ((more & kMagnitudes) + kOnes)) & 0x80808080;
}

static __constant__ Nf4Map kNf4Values = kNf4Map;
static __device__ const DynamicMap kNestedMap = kSignedMap;

// A table of the pairs of values that a byte stands for, in nf4: each lane has one of its own, in its bank.
template <class T>
__device__ __forceinline__ void fill_nf4_table(char* table, int thread, int threads) {
  constexpr int kFours = 256 * 32 / 4;
  for (int i = thread; i < kFours; i += threads) {
    const int byte = i / 8;
    const uint32_t both = pack<T>(kNf4Values.values[byte >> 4], kNf4Values.values[byte & 15]);
    reinterpret_cast<uint4*>(table)[i] = make_uint4(both, both, both, both);
  }
}

// A lane's 16 codes of 64.
template <DType kFormat>
struct LaneCodes {
  static constexpr int kWords = Codes<kFormat>::kBits / 2;
  uint32_t words[kWords];

  __device__ __forceinline__ LaneCodes(const char* sixty_four, int q) {
    using Words = std::conditional_t<kWords == 2, uint2, uint4>;
    *reinterpret_cast<Words*>(words) = *reinterpret_cast<const Words*>(sixty_four + q * int(sizeof(Words)));
  }
  // Two pairs of neighbours: elements 4i to 4i + 3.
  template <class T>
  __device__ __forceinline__ void floats(uint32_t (&n)[2], int i, const char* table, int lane) const {
    if constexpr (kWords == 2) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int byte = i % 2 * 2 + p;
        const uint32_t scaled = byte == 0 ? words[i / 2] << 7 : words[i / 2] >> (8 * byte - 7);
        n[p] = word_at(table + and_or(scaled, 0x7f80, uint32_t(lane) * 4));
      }
    } else {
      const uint32_t word = paired(words[i]);
#pragma unroll
      for (int p = 0; p < 2; ++p)
        n[p] = kFormat == DType::int8 ? of_signed_bytes<T>(word >> 8 * p) : of_e4m3<T>(word << (8 - 8 * p));
    }
  }
  // Bits for codes of NaN of 8 bits, of the first `count`, a multiple of 8, or more.
  __device__ __forceinline__ uint32_t nans(int count) const {
    const uint32_t first = count >= 8 ? ~0u : 0, last = count >= 16 ? ~0u : 0;
    return (e4m3_nans(words[0], words[1]) & first) | (e4m3_nans(words[2], words[3]) & last);
  }
};

// What multiplies the sums of a lane's two rows of a tile, from scales that lie in global memory: one of a row; or what
// the magnitudes of nf4_double share. A run's own scales come with the codes.
template <DType kFormat, class T>
class RowScales {
 public:
  // `row` and `next` are the two rows in global memory; where their scales lie, and the shared ones.
  __device__ __forceinline__ RowScales(const char* row, const char* next, int scales, int nested)
      : outer_{row + nested, next + nested} {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (Weights::kNested)
        shared_[r] = *reinterpret_cast<const NestedScales*>(outer_[r]);
      else if constexpr (Weights::kRun == 0)
        factor_[r] = *reinterpret_cast<const float*>((r == 0 ? row : next) + scales) * kUnit;
    }
  }
  // Asks for what the runs of a chunk need, four runs of nf4_double.
  __device__ __forceinline__ void begin_chunk(int chunk) {
    if constexpr (Weights::kNested)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const auto* const outer = reinterpret_cast<const float*>(outer_[r] + sizeof(NestedScales));
        const uint32_t run = shared_[r].first + uint32_t(chunk) * 4;
        edge_[r] = int(kNestedRun - run % kNestedRun);
        low_[r] = outer[run / kNestedRun];
        high_[r] = edge_[r] < 4 ? outer[run / kNestedRun + 1] : 0;
      }
  }
  // Once the chunk is in shared memory, with its scales at `at`; lane q of four has run q of nf4_double for all.
  __device__ __forceinline__ void take_chunk(const char* const (&at)[2], int q) {
    if constexpr (Weights::kNested)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        own_[r] = fmaf(kNestedMap.values[uint8_t(at[r][q])], q < edge_[r] ? low_[r] : high_[r], shared_[r].mean);
  }
  // The scale of run `run` of the chunk.
  __device__ __forceinline__ float of_run(int r, int run, const char* at) const {
    if constexpr (Weights::kNested)
      return __shfl_sync(0xffffffff, own_[r], run, 4);
    else
      return reinterpret_cast<const float*>(at)[run] * kUnit;
  }
  // Codes of a 64 of which `rest` are in the row, or more.
  __device__ __forceinline__ void see(int r, const LaneCodes<kFormat>& codes, int rest, int q) {
    if constexpr (kHasNan) nans_[r] |= codes.nans(rest - 16 * q);
  }
  // By whole warps.
  __device__ __forceinline__ void finish(float (&sum)[4]) {
    if constexpr (Weights::kRun == 0)
#pragma unroll
      for (int n = 0; n < 4; ++n) sum[n] *= factor_[n / 2];
    if constexpr (kHasNan) {
      if (!__any_sync(0xffffffff, nans_[0] | nans_[1])) return;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        nans_[r] |= __shfl_xor_sync(0xffffffff, nans_[r], 1);
        nans_[r] |= __shfl_xor_sync(0xffffffff, nans_[r], 2);
        if (nans_[r]) sum[2 * r] = sum[2 * r + 1] = NAN;
      }
    }
  }

 private:
  using Weights = Codes<kFormat>;
  static constexpr bool kHasNan = kFormat == DType::fp8 || kFormat == DType::fp8_block;
  static constexpr float kUnit = kHasNan ? 1 / kE4m3Unit<T> : kFormat == DType::int8 ? 1 / 127.0f : 1;

  const char* outer_[2];
  NestedScales shared_[2];
  float factor_[2], low_[2], high_[2], own_[2];
  int edge_[2];
  uint32_t nans_[2] = {0, 0};
};

}  // namespace wick
