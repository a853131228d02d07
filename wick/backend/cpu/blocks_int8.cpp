// Products of activations and q8_0 or q4_0 weights by dot products of bytes (AVX-512 VNNI: vpdpbusd, which multiplies
// unsigned with signed). The activations are rounded to 8 bits with a scale for 32 of them. The weights' numbers are
// made unsigned by an offset, 128 or 8, and what it adds to a sum is where the sum starts, with the other sign.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include <hwy/base.h>

#include "wick/backend/cpu/blocks.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/core/blocks.h"

#if HWY_ARCH_X86

#include <immintrin.h>

#if HWY_COMPILER_GCC_ACTUAL  // finds what its own header leaves undefined on purpose (GCC's bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// Highway 1.0.3 has no such product, nor a target that allows it: so these are intrinsics, and what a thread runs is
// called by lambdas that have none.
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace wick {
namespace {

constexpr int kPanel = 16;  // rows of the weight that are multiplied together, one a lane
constexpr int kTile = 8;    // rows of activations that share what is loaded of them

template <class Block>
constexpr int kOffset = std::is_same_v<Block, Q8Block> ? 128 : 8;

// Numbers of two blocks, as unsigned bytes in the order of their elements.
HWY_INLINE __m512i unsigned_numbers(const Q8Block& a, const Q8Block& b) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.q));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b.q));
  return _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1), _mm512_set1_epi8(-128));
}
HWY_INLINE __m512i unsigned_numbers(const Q4Block& a, const Q4Block& b) {
  const __m256i first = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a.q)));
  const __m256i second = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b.q)));
  const __m512i twice = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  const __m512i high = _mm512_mask_srli_epi16(twice, 0xff00ff00u, twice, 4);  // in every other 16 bytes
  return _mm512_and_si512(high, _mm512_set1_epi8(15));
}

// Activations in 8 bits: x[m][k] is about d[m][k / 32] * q[m][k].
struct Rounded {
  int64_t rows, width, starts;  // of `start` a block: one, or one for each four elements
  int8_t* q;
  float* d;
  int32_t* start;

  Rounded(int64_t m, int64_t k, int64_t starts_a_block, const Scratch& memory)
      : rows(m),
        width(k),
        starts(starts_a_block),
        q(reinterpret_cast<int8_t*>(memory.data())),
        d(memory.data() + m * k / 4),
        start(reinterpret_cast<int32_t*>(d + m * k / 32)) {}
  static int64_t floats(int64_t m, int64_t k, int64_t starts) { return m * (k / 4 + k / 32 + k / 32 * starts); }
  int64_t blocks() const { return width / 32; }
};

// What is not finite makes its block's scale NaN.
void round_row(const Rounded& to, int64_t row, const float* x, int64_t n, int offset) {
  for (int64_t b = 0; b < n / 32; ++b) {
    const __m512 first = _mm512_loadu_ps(x + b * 32), second = _mm512_loadu_ps(x + b * 32 + 16);
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
    const __m512 zero = _mm512_setzero_ps();
    const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_mul_ps(first, zero), zero, _CMP_EQ_OQ) &
                             _mm512_cmp_ps_mask(_mm512_mul_ps(second, zero), zero, _CMP_EQ_OQ);
    const __m512 inverse = _mm512_set1_ps(largest > 1e-36f ? 127 / largest : 0);
    const __m128i low = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(first, inverse)));
    const __m128i high = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(second, inverse)));
    const __m256i q = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    const int64_t at = row * to.blocks() + b;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.q + at * 32), q);
    to.d[at] = finite == 0xffff ? largest / 127 : std::numeric_limits<float>::quiet_NaN();
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(char(offset)), q);
    const __m256i start = _mm256_sub_epi32(_mm256_setzero_si256(), sums);
    if (to.starts == 8)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.start + at * 8), start);
    else
      to.start[at] = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(start));
  }
}

// ---- One row of activations: as many dot products as the weight has rows. Two blocks go together.

template <class Block>
HWY_INLINE __m512 add_pair(__m512 sum, const Rounded& x, int64_t b, const Block& first, const Block& second) {
  const __m512i numbers = _mm512_loadu_si512(x.q + b * 32), start = _mm512_loadu_si512(x.start + b * 8);
  const __m512i dots = _mm512_dpbusd_epi32(start, unsigned_numbers(first, second), numbers);
  const __m128 scales = _mm_mul_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(int(first.d | uint32_t{second.d} << 16))),
                                   _mm_castpd_ps(_mm_load_sd(reinterpret_cast<const double*>(x.d + b))));
  const __m512i halves = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512 scale = _mm512_permutexvar_ps(halves, _mm512_castps128_ps512(scales));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sum);
}

// Columns [begin, end) of y.
template <class Block>
void dot_products(const Matrix& y, const Rounded& x, const View& w, const float* bias, int64_t begin, int64_t end) {
  const int64_t blocks = w.shape[1] / 32, row_blocks = w.stride[0] / 32;
  for (int64_t n = begin; n < end; ++n) {
    const Block* row = w.as<const Block>() + n * row_blocks;
    __m512 even = _mm512_setzero_ps(), odd = even;
    int64_t b = 0;
    for (; b + 4 <= blocks; b += 4) {
      even = add_pair(even, x, b, row[b], row[b + 1]);
      odd = add_pair(odd, x, b + 2, row[b + 2], row[b + 3]);
    }
    for (; b + 2 <= blocks; b += 2) even = add_pair(even, x, b, row[b], row[b + 1]);
    if (b < blocks) even = add_pair(even, x, b, row[b], Block{});
    y.at(0, n) = _mm512_reduce_add_ps(_mm512_add_ps(even, odd)) + (bias ? bias[n] : 0);
  }
}

// ---- Several rows: sixteen of the weight are turned so that each has a lane, four elements at a time.

struct Panel {
  __m512i* numbers;  // 8 a block: bytes 4g to 4g + 3 of each row
  __m512* scales;    // one a block
};

// The numbers of row r of a panel are dwords of numbers[0..7]: transposes 8 x 8 dwords in both halves at once.
HWY_INLINE void transpose(__m512i* to, const __m512i* rows) {
  __m512i pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + 2 + j]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + 2 + j]);
    }
  for (int i = 0; i < 4; ++i) {
    _mm512_store_si512(to + i, _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88));
    _mm512_store_si512(to + i + 4, _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd));
  }
}

template <class Block>
void fill_panel(const Panel& panel, const View& w, int64_t first, int64_t blocks) {
  const Block* rows[kPanel];
  for (int r = 0; r < kPanel; ++r)  // rows past the last stand for it, and are not stored
    rows[r] = w.as<const Block>() + std::min(first + r, w.shape[0] - 1) * (w.stride[0] / 32);
  for (int64_t b = 0; b < blocks; ++b) {
    __m512i numbers[8];
    alignas(32) uint16_t scales[kPanel];
    for (int i = 0; i < 8; ++i) {
      const int r = i < 4 ? i : i + 4;  // so that the rows come out in their order
      numbers[i] = unsigned_numbers(rows[r][b], rows[r + 4][b]);
    }
    for (int r = 0; r < kPanel; ++r) scales[r] = rows[r][b].d;
    transpose(panel.numbers + b * 8, numbers);
    panel.scales[b] = _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(scales)));
  }
}

template <int kRows>
HWY_INLINE void tile_times_panel(float* y, int64_t ld, const Rounded& x, int64_t m, const Panel& panel, __m512 bias,
                                 __mmask16 columns) {
  const int64_t blocks = x.blocks();
  const int8_t* q = x.q + m * x.width;
  const float* d = x.d + m * blocks;
  const int32_t* start = x.start + m * blocks;
  __m512 sums[kRows];
  for (__m512& sum : sums) sum = bias;
  for (int64_t b = 0; b < blocks; ++b) {
    const __m512i* numbers = panel.numbers + b * 8;
    const __m512 scale = panel.scales[b];
    __m512i dots[kRows];
    for (int i = 0; i < kRows; ++i) dots[i] = _mm512_set1_epi32(start[i * blocks + b]);
    for (int g = 0; g < 8; ++g)
      for (int i = 0; i < kRows; ++i) {
        int32_t four;
        std::memcpy(&four, q + i * x.width + b * 32 + g * 4, sizeof four);
        dots[i] = _mm512_dpbusd_epi32(dots[i], numbers[g], _mm512_set1_epi32(four));
      }
    for (int i = 0; i < kRows; ++i)
      sums[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i]), _mm512_mul_ps(scale, _mm512_set1_ps(d[i * blocks + b])),
                                sums[i]);
  }
  for (int i = 0; i < kRows; ++i) _mm512_mask_storeu_ps(y + i * ld, columns, sums[i]);
}

template <int kRows = kTile>
void any_tile_times_panel(int64_t rows, float* y, int64_t ld, const Rounded& x, int64_t m, const Panel& panel,
                          __m512 bias, __mmask16 columns) {
  if constexpr (kRows > 1)
    if (rows < kRows) return any_tile_times_panel<kRows - 1>(rows, y, ld, x, m, panel, bias, columns);
  tile_times_panel<kRows>(y, ld, x, m, panel, bias, columns);
}

// The columns of y that panels [begin, end) make.
template <class Block>
void panel_products(const Matrix& y, const Rounded& x, const View& w, const float* bias, int64_t begin, int64_t end) {
  const int64_t blocks = x.blocks();
  const Scratch memory(blocks * 9 * kPanel);
  const Panel panel{reinterpret_cast<__m512i*>(memory.data()),
                    reinterpret_cast<__m512*>(memory.data() + blocks * 8 * kPanel)};
  for (int64_t n = begin * kPanel; n < std::min(end * kPanel, w.shape[0]); n += kPanel) {
    const auto columns = __mmask16((1u << std::min<int64_t>(kPanel, w.shape[0] - n)) - 1);
    const __m512 shift = bias ? _mm512_maskz_loadu_ps(columns, bias + n) : _mm512_setzero_ps();
    fill_panel<Block>(panel, w, n, blocks);
    for (int64_t m = 0; m < x.rows; m += kTile)
      any_tile_times_panel(x.rows - m, y.data + m * y.ld + n, y.ld, x, m, panel, shift, columns);
  }
}

template <class Block>
void linear(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  const bool one = x.rows == 1;  // whose blocks go in pairs
  const int64_t width = one ? (x.cols + 63) / 64 * 64 : x.cols, starts = one ? 8 : 1;
  const Scratch memory(Rounded::floats(x.rows, width, starts));
  if (width > x.cols) std::fill_n(memory.data(), Rounded::floats(x.rows, width, starts), 0.0f);
  const Rounded rounded(x.rows, width, starts, memory);
  parallel_for(x.rows, x.rows * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) round_row(rounded, m, x.data + m * x.ld, x.cols, kOffset<Block>);
  });
  if (one)
    parallel_for(w.shape[0], w.numel(),
                 [&](int64_t begin, int64_t end) { dot_products<Block>(y, rounded, w, bias, begin, end); });
  else
    parallel_for((w.shape[0] + kPanel - 1) / kPanel, w.numel() * x.rows,
                 [&](int64_t begin, int64_t end) { panel_products<Block>(y, rounded, w, bias, begin, end); });
}

}  // namespace
}  // namespace wick

HWY_POP_ATTRIBUTES

namespace wick {

bool linear_int8(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  static const bool has_unit = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!has_unit || (w.dtype != DType::q8_0 && w.dtype != DType::q4_0)) return false;
  if (x.transposed || y.transposed || w.stride[1] != 1 || x.rows == 0 || x.cols == 0) return false;
  w.dtype == DType::q8_0 ? linear<Q8Block>(y, x, w, bias) : linear<Q4Block>(y, x, w, bias);
  return true;
}

}  // namespace wick

#else

namespace wick {

bool linear_int8(const Matrix&, const Matrix&, const View&, const float*) { return false; }

}  // namespace wick

#endif
