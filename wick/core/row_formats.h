// Quantised rows: the codes of a row's elements, one after the other, and behind them the scales that they share.
//
// fp8:        8 bits, OCP's E4M3 (Micikevicius et al., 2022); one scale a row, its largest magnitude / 448.
// fp8_block:  the same with a scale for each 128 elements.
// int8:       8 bits, signed; one scale a row, its largest magnitude, of which a code counts 127ths (Dettmers et al.,
//             "LLM.int8()", 2022, with bitsandbytes' rounding).
// nf4:        4 bits, quantiles of a normal distribution (Dettmers et al., "QLoRA", 2023), and the largest magnitude of
//             each 64 elements. The even element of two lies in the high half of a byte, as in bitsandbytes' files.
// nf4_double: nf4 whose magnitudes, less their mean over the tensor, are codes of 8 bits of bitsandbytes' signed
//             dynamic map (core/dynamic_map.h), with one scale for each 256 of them along the tensor.
// fp8_product: the rows of fp8, of matrices whose products are made of codes: the other factor is rounded to E4M3 too,
//             with a scale for each of its rows (Fp8Scale), and f32 sums of products of codes are scaled at the end.
//
// A row has a whole number of 16 bytes, so that kernels read codes in words. Scales are f32.
#pragma once

#include <cstdint>
#include <vector>

#include "wick/core/dtype.h"

namespace wick {

inline constexpr int64_t kNf4Run = 64;      // elements that share a magnitude
inline constexpr int64_t kNestedRun = 256;  // magnitudes of nf4_double that share a scale
inline constexpr int64_t kFp8BlockRun = 128;

struct RowFormat {
  int bits;     // of a code
  int64_t run;  // elements that share a scale; rows are whole runs. 0: all of a row share one
  bool nested;  // scales are codes themselves
};
RowFormat row_format(DType dtype);

// Where the parts of a row lie, in bytes from its start.
struct RowLayout {
  int64_t scales;  // f32 each, or of one byte where they are nested
  int64_t count;   // of the scales
  int64_t nested;  // a NestedScales, where they are
  int64_t bytes;   // of the whole row
};
RowLayout row_layout(DType dtype, int64_t cols);

// What the magnitudes of a row in nf4_double share: magnitude i is map[code i] * scale[(first + i) / 256] + mean, of
// scales that follow.
struct NestedScales {
  float mean;
  uint32_t first;  // place of the row's first magnitude among the 256 that share its scale
};

// nf4's values, and the midpoints of neighbours as bitsandbytes' kernels have them: above one, a number takes the next
// code.
struct Nf4Map {
  float values[16], thresholds[15];
};
inline constexpr Nf4Map kNf4Map = {
    {-1, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
     -0.18477343022823334f, -0.09105003625154495f, 0, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,
     0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1},
    {-0.8480964004993439f, -0.6106329262256622f, -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
     -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f, 0.1202552504837513f, 0.2035212516784668f,
     0.2920137718319893f, 0.3893125355243683f, 0.5016634166240692f, 0.6427869200706482f, 0.8614784181118011f}};

// Four bits of exponent, biased by 7, and three of mantissa; all ones is NaN, and there is no infinity.
float e4m3_to_f32(uint8_t bits);
// To nearest, ties to even; what is larger than 448 becomes 448, and NaN stays NaN.
uint8_t f32_to_e4m3(float value);

// How a row of an activation or a gradient whose largest magnitude is given becomes codes beside fp8_product: E4M3 of
// x * inverse, each of which counts `scale`. A row with an element that is not finite has no finite product.
struct Fp8Scale {
  float scale, inverse;
};
inline constexpr float kFp8Largest = 448, kFp8Zero = 1e-30f;  // magnitudes up to kFp8Zero become 0
inline Fp8Scale fp8_scale(float largest) {
  return {largest / kFp8Largest, largest > kFp8Zero ? kFp8Largest / largest : 0};
}

// The elements of a row of `cols`. Each is a code's value times its scale, rounded once to f32; int8's product is
// (code * scale) * (1 / 127).
void decode_row(float* y, const void* row, DType dtype, int64_t cols);
// Quantises rows * cols dense elements, the whole tensor, to rows that lie row_layout(dtype, cols).bytes apart. Values
// that are not finite give elements that are not, in their run alone (in nf4_double in the tensor).
void quantize_rows(void* to, DType dtype, const float* x, int64_t rows, int64_t cols);

// What nf4_double has for the magnitudes of a tensor's runs.
struct NestedMagnitudes {
  float mean;
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // each of kNestedRun codes
};
NestedMagnitudes nested(const std::vector<float>& magnitudes);

}  // namespace wick
