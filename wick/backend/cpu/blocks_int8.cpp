// Products of activations and quantised weights by dot products of bytes, for AVX-512 VNNI and AVX2. The activations
// are rounded to 8 bits with a scale for 32 of them.
#include <limits>

#include "wick/backend/cpu/blocks.h"
#include "wick/backend/cpu/parallel.h"
#include "wick/backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "wick/backend/cpu/blocks_int8.cpp"
#include "hwy/foreach_target.h"
#include "wick/backend/cpu/simd-inl.h"

#if HWY_COMPILER_GCC_ACTUAL  // warns of values that its own header leaves undefined on purpose (GCC bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

#include "wick/backend/cpu/blocks_int8-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
#else
HWY_BEFORE_NAMESPACE();
#endif
namespace wick {
namespace HWY_NAMESPACE {
namespace {

constexpr int kTile = kLanes / 2;  // rows of activations that share the loaded weights

// Activations in 8 bits: x[m][k] is about d[m][k / 32] * q[m][k].
struct Rounded {
  int64_t rows, width, starts;  // `starts` a block: one for each four elements, or for each group of the weight
  int8_t* q;
  float* d;
  float* sum;      // d times the sum of a block's q
  int32_t* start;  // initial values of sums of products with a weight that has an offset

  Rounded(int64_t m, int64_t k, int64_t starts_a_block, const Scratch& memory)
      : rows(m),
        width(k),
        starts(starts_a_block),
        q(reinterpret_cast<int8_t*>(memory.data())),
        d(memory.data() + m * k / 4),
        sum(d + m * k / 32),
        start(reinterpret_cast<int32_t*>(sum + m * k / 32)) {}
  static int64_t floats(int64_t m, int64_t k, int64_t starts) { return m * (k / 4 + k / 32 * (2 + starts)); }
  int64_t blocks() const { return width / 32; }
};

// An element that is not finite makes its block's scale NaN.
void round_row(const Rounded& to, int64_t row, const float* x, int64_t n, int offset) {
  const hn::Rebind<int8_t, Floats> bytes;
  for (int64_t at = row * to.blocks(), b = 0; b < n / 32; ++b, ++at) {
    FloatVec maximum = set(0), zeros = maximum;
    for (int i = 0; i < 32; i += kLanes) {
      const FloatVec v = load(x + b * 32 + i);
      maximum = hn::Max(maximum, hn::Abs(v));
      zeros = hn::MulAdd(v, set(0), zeros);
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(Floats(), maximum));
    const bool finite = hn::AllTrue(Floats(), hn::Eq(zeros, set(0)));
    const FloatVec inverse = set(largest > 1e-36f ? 127 / largest : 0);
    for (int i = 0; i < 32; i += kLanes) {
      const IntVec nearest = hn::NearestInt(hn::Mul(load(x + b * 32 + i), inverse));
      hn::StoreU(hn::DemoteTo(bytes, nearest), bytes, to.q + at * 32 + i);
    }
    to.d[at] = finite ? largest / 127 : std::numeric_limits<float>::quiet_NaN();
    const __m256i two = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load32(to.q + at * 32));
    alignas(32) int32_t sums[8];  // of four products each
    _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
    const int first = sums[0] + sums[1] + sums[2] + sums[3], second = sums[4] + sums[5] + sums[6] + sums[7];
    to.sum[at] = to.d[at] * float(first + second);
    int32_t* start = to.start + at * to.starts;
    if (to.starts == 8)
      for (int i = 0; i < 8; ++i) start[i] = -offset * sums[i];
    else if (to.starts == 2)
      start[0] = -offset * first, start[1] = -offset * second;
    else
      start[0] = -offset * (first + second);
  }
}

// ---- One row of activations: as many dot products as the weight has rows.

// Dot products of chunk c of the activations with a chunk of the weight's row.
template <class Block>
HWY_INLINE FloatVec dots(const Rounded& x, int64_t c, Bytes weight) {
  const IntVec start = kOffset<Block> == 0 ? hn::Zero(Ints()) : hn::LoadU(Ints(), x.start + c * kLanes);
  return hn::ConvertTo(Floats(), add_dots<Block>(start, weight, load_bytes(x.q + c * 4 * kLanes)));
}

HWY_INLINE float total(FloatVec a, FloatVec b) { return hn::GetLane(hn::SumOfLanes(Floats(), hn::Add(a, b))); }

// For blocks of 32, of which a chunk has one or two.
template <class Block>
HWY_INLINE float dot_product(const Rounded& x, const Block* row, int64_t blocks) {
  constexpr int kBlocks = kLanes / 8;
  FloatVec sums[2] = {set(0), set(0)};
  const auto add = [&](FloatVec & sum, const Block* from, int64_t at, int64_t c) __attribute__((always_inline)) {
    sum = hn::MulAdd(dots<Block>(x, c, chunk(from, at)), chunk_scales(from + at * kBlocks, x.d + c * kBlocks), sum);
  };
  const int64_t chunks = blocks / kBlocks;
  int64_t c = 0;
  for (; c + 2 <= chunks; c += 2) {
    add(sums[0], row, c, c);
    add(sums[1], row, c + 1, c + 1);
  }
  for (; c < chunks; ++c) add(sums[0], row, c, c);
  if (blocks % kBlocks != 0) {
    const Block last[2] = {row[blocks - 1], Block{}};
    add(sums[0], last, 0, c);
  }
  return total(sums[0], sums[1]);
}

// Blocks of 256.
template <class Block>
requires(Block::kElements == 256) HWY_INLINE float dot_product(const Rounded& x, const Block* row, int64_t blocks) {
  constexpr int kChunks = 64 / kLanes, kLanesLog = kGroup<Block> == 32 ? 3 : 2;  // lanes that share a scale
  FloatVec sums[2] = {set(0), set(0)}, minima = set(0);
  for (int64_t b = 0; b < blocks; ++b) {
    Factors factors;
    set_factors(factors, row[b]);
    multiply_factors<Block>(factors, x.d + b * 8, x.sum + b * 8);
    if constexpr (kHasMinimum<Block>) minima = hn::Add(minima, last_eight(factors));
    for (int c = 0; c < kChunks; ++c) {
      const int group = c * kLanes >> kLanesLog;
      const auto lane = hn::Add(hn::ShiftRight<kLanesLog>(hn::Iota(Ints(), 0)), hn::Set(Ints(), group % kLanes));
      const FloatVec scales = hn::TableLookupLanes(factors[group / kLanes], hn::IndicesFromVec(Floats(), lane));
      sums[c % 2] = hn::MulAdd(dots<Block>(x, b * kChunks + c, chunk(row + b, c)), scales, sums[c % 2]);
    }
  }
  return total(hn::Add(sums[0], sums[1]), minima);
}

// Columns [begin, end) of y.
template <class Block>
void dot_products(const Matrix& y, const Rounded& x, const View& w, const float* bias, int64_t begin, int64_t end) {
  const int64_t blocks = w.shape[1] / Block::kElements, row_blocks = w.stride[0] / Block::kElements;
  for (int64_t n = begin; n < end; ++n)
    y.at(0, n) = dot_product(x, w.as<const Block>() + n * row_blocks, blocks) + (bias ? bias[n] : 0);
}

// ---- Several rows: as many of the weight as a vector has lanes are turned so that each has one.

template <class Block>
constexpr int kScales = 32 / kGroup<Block>;  // of 32 elements

struct Panel {
  Bytes* numbers;             // 8 for 32 elements: bytes 4i to 4i + 3 of each row
  FloatVec *scales, *minima;  // kScales for 32 elements, and one

  template <class Block>
  static int64_t vectors(int64_t blocks) {
    return blocks * (8 + kScales<Block> + kHasMinimum<Block>);
  }
  template <class Block>
  static Panel in(const Scratch& memory, int64_t blocks) {
    auto* numbers = reinterpret_cast<Bytes*>(memory.data());
    auto* scales = reinterpret_cast<FloatVec*>(numbers + blocks * 8);
    return {numbers, scales, scales + blocks * kScales<Block>};
  }
};

template <class Block>
HWY_INLINE void fill_scales(const Panel& panel, const Block* const* rows, int64_t block) {
  if constexpr (Block::kElements == 32) {
    alignas(32) uint16_t scales[kLanes];
    for (int r = 0; r < kLanes; ++r) scales[r] = rows[r][block].d;
    const hn::Rebind<uint16_t, Floats> bits;
    const auto halves = hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), hn::Load(bits, scales));
    panel.scales[block] = hn::PromoteTo(Floats(), halves);
  } else {
    auto* scales = reinterpret_cast<float*>(panel.scales + block * 8 * kScales<Block>);
    auto* minima = reinterpret_cast<float*>(panel.minima + block * 8);
    for (int r = 0; r < kLanes; ++r) {
      Factors factors;
      set_factors(factors, rows[r][block]);
      alignas(64) float of_row[kFactors];
      for (int i = 0; i < kFactors / kLanes; ++i) store(factors[i], of_row + i * kLanes);
      for (int g = 0; g < 8 * kScales<Block>; ++g) scales[g * kLanes + r] = of_row[g];
      if constexpr (kHasMinimum<Block>)
        for (int g = 0; g < 8; ++g) minima[g * kLanes + r] = of_row[8 + g];
    }
  }
}

template <class Block>
void fill_panel(const Panel& panel, const View& w, int64_t first, int64_t blocks) {
  constexpr int kParts = Block::kElements / 32;
  const Block* rows[kLanes];
  for (int r = 0; r < kLanes; ++r)  // rows past the last repeat it, and are not stored
    rows[r] = w.as<const Block>() + std::min(first + r, w.shape[0] - 1) * (w.stride[0] / Block::kElements);
  for (int64_t b = 0; b < blocks; ++b) {
    fill_scales(panel, rows, b);
    for (int part = 0; part < kParts; ++part) {
      Bytes numbers[8];
      for (int i = 0; i < 8; ++i) numbers[i] = panel_part(rows, b, part, i);
      transpose(panel.numbers + (b * kParts + part) * 8, numbers);
    }
  }
}

template <class Block, int kRows>
HWY_INLINE void tile_times_panel(float* y, int64_t ld, const Rounded& x, int64_t m, const Panel& panel, FloatVec bias,
                                 int64_t columns) {
  constexpr int kQuads = 8 / kScales<Block>;
  const int64_t blocks = x.blocks();
  const int8_t* q = x.q + m * x.width;
  const float *d = x.d + m * blocks, *sum = x.sum + m * blocks;
  const int32_t* start = x.start + m * blocks * kScales<Block>;
  FloatVec sums[kRows];
  for (FloatVec& v : sums) v = bias;
  for (int64_t b = 0; b < blocks; ++b) {
    for (int g = 0; g < kScales<Block>; ++g) {
      IntVec dots[kRows];
      for (int i = 0; i < kRows; ++i)
        dots[i] = hn::Set(Ints(), kOffset<Block> == 0 ? 0 : start[(i * blocks + b) * kScales<Block> + g]);
      add_quads<Block, kQuads>(dots, panel.numbers + b * 8 + g * kQuads, q + b * 32 + g * kQuads * 4, x.width);
      const FloatVec scale = panel.scales[b * kScales<Block> + g];
      for (int i = 0; i < kRows; ++i)
        sums[i] = hn::MulAdd(hn::ConvertTo(Floats(), dots[i]), hn::Mul(scale, set(d[i * blocks + b])), sums[i]);
    }
    if constexpr (kHasMinimum<Block>)
      for (int i = 0; i < kRows; ++i) sums[i] = hn::MulAdd(panel.minima[b], set(sum[i * blocks + b]), sums[i]);
  }
  for (int i = 0; i < kRows; ++i)
    columns == kLanes ? store(sums[i], y + i * ld) : store_first(sums[i], y + i * ld, columns);
}

template <class Block, int kRows = kTile>
void any_tile_times_panel(int64_t rows, float* y, int64_t ld, const Rounded& x, int64_t m, const Panel& panel,
                          FloatVec bias, int64_t columns) {
  if constexpr (kRows > 1)
    if (rows < kRows) return any_tile_times_panel<Block, kRows - 1>(rows, y, ld, x, m, panel, bias, columns);
  tile_times_panel<Block, kRows>(y, ld, x, m, panel, bias, columns);
}

// The columns of y that panels [begin, end) make.
template <class Block>
void panel_products(const Matrix& y, const Rounded& x, const View& w, const float* bias, int64_t begin, int64_t end) {
  const Scratch memory(Panel::vectors<Block>(x.blocks()) * kLanes);
  const Panel panel = Panel::in<Block>(memory, x.blocks());
  for (int64_t n = begin * kLanes; n < std::min(end * kLanes, w.shape[0]); n += kLanes) {
    const int64_t columns = std::min<int64_t>(kLanes, w.shape[0] - n);
    const FloatVec shift = !bias ? set(0) : columns == kLanes ? load(bias + n) : load_first(bias + n, columns);
    fill_panel<Block>(panel, w, n, w.shape[1] / Block::kElements);
    for (int64_t m = 0; m < x.rows; m += kTile)
      any_tile_times_panel<Block>(x.rows - m, y.data + m * y.ld + n, y.ld, x, m, panel, shift, columns);
  }
}

template <class Block>
void linear(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  const bool one = x.rows == 1;  // whose chunks are whole
  const int64_t chunk = 4 * kLanes, width = one ? (x.cols + chunk - 1) / chunk * chunk : x.cols;
  const int64_t starts = one ? 8 : kScales<Block>;
  const Scratch memory(Rounded::floats(x.rows, width, starts));
  if (width > x.cols) std::fill_n(memory.data(), Rounded::floats(x.rows, width, starts), 0.0f);
  const Rounded rounded(x.rows, width, starts, memory);
  parallel_each(x.rows, x.rows * x.cols,
                [&](int64_t m) { round_row(rounded, m, x.data + m * x.ld, x.cols, kOffset<Block>); });
  if (one)
    parallel_for(w.shape[0], w.numel(),
                 [&](int64_t begin, int64_t end) { dot_products<Block>(y, rounded, w, bias, begin, end); });
  else
    parallel_for((w.shape[0] + kLanes - 1) / kLanes, w.numel() * x.rows,
                 [&](int64_t begin, int64_t end) { panel_products<Block>(y, rounded, w, bias, begin, end); });
}

bool LinearInt8(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
#if HWY_TARGET == HWY_AVX3
  static const bool has_products = __builtin_cpu_supports("avx512vnni");
#if HWY_TARGETS & HWY_AVX2
  if (!has_products) return N_AVX2::LinearInt8(y, x, w, bias);
#else
  if (!has_products) return false;
#endif
#endif
  for_block_type(w.dtype, [&]<class Block>(Block*) { linear<Block>(y, x, w, bias); });
  return true;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick
HWY_AFTER_NAMESPACE();

#else

namespace wick {
namespace HWY_NAMESPACE {
namespace {
bool LinearInt8(const Matrix&, const Matrix&, const View&, const float*) { return false; }
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace wick

#endif

#if HWY_ONCE
namespace wick {

HWY_EXPORT(LinearInt8);

bool linear_int8(const Matrix& y, const Matrix& x, const View& w, const float* bias) {
  if (!is_block(w.dtype) || x.transposed || y.transposed || w.stride[1] != 1 || x.rows == 0 || x.cols == 0)
    return false;
  return HWY_DYNAMIC_DISPATCH(LinearInt8)(y, x, w, bias);
}

}  // namespace wick
#endif  // HWY_ONCE
