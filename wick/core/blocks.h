// Blocks of quantised weights, as GGUF stores them (ggml: ggml-common.h, ggml-quants.c; MIT): consecutive elements of a
// row that share a scale. q8_0 and q4_0 have 32 elements and one scale; the k types have 256, whose groups of 32 (16 in
// q6_k) have a scale of their own, in units of the block's, and in q4_k and q5_k a minimum as well.
#pragma once

#include <cstdint>

#include "wick/core/dtype.h"
#include "wick/core/error.h"

namespace wick {

struct Q8Block {  // d * q[i]
  static constexpr int kElements = 32;
  uint16_t d;  // f16, as all scales of blocks
  int8_t q[32];
};

struct Q4Block {  // d * (n(i) - 8)
  static constexpr int kElements = 32;
  uint16_t d;
  uint8_t q[16];  // n(i) for i < 16 in the low halves, for i >= 16 in the high ones
};

// Eight scales and minima of 6 bits: those of groups 0 to 3 are the low bits of bytes 0 to 3 and 4 to 7. Bytes 8 to 11
// have the low four bits of groups 4 to 7, the minima's in their high halves, and the top two bits stand above the
// scales and minima of groups 0 to 3.
struct GroupScales {
  uint8_t bytes[12];

  int scale(int g) const { return g < 4 ? bytes[g] & 63 : (bytes[g + 4] & 15) | bytes[g - 4] >> 6 << 4; }
  int minimum(int g) const { return g < 4 ? bytes[g + 4] & 63 : bytes[g + 4] >> 4 | bytes[g] >> 6 << 4; }
};

struct Q4KBlock {  // d * scale(g) * n(i) - dmin * minimum(g), g = i / 32
  static constexpr int kElements = 256;
  uint16_t d, dmin;
  GroupScales groups;
  uint8_t q[128];  // 32 bytes for two groups: the first's n(i) in the low halves
};

struct Q5KBlock {  // as Q4KBlock, with a fifth bit in n(i)
  static constexpr int kElements = 256;
  uint16_t d, dmin;
  GroupScales groups;
  uint8_t high[32];  // bit g of byte i % 32
  uint8_t q[128];
};

struct Q6KBlock {  // d * scale[i / 16] * (n(i) - 32)
  static constexpr int kElements = 256;
  // 64 bytes of `low` and 32 of `high` for each half of the block. A half has four groups of 32: the low four bits of
  // groups 0 and 1 are the low halves of bytes 0 to 31 and 32 to 63, those of groups 2 and 3 the high ones; bits 2g and
  // 2g + 1 of byte i % 32 of `high` are the top two of group g.
  uint8_t low[128], high[64];
  int8_t scale[16];
  uint16_t d;
};

static_assert(sizeof(Q8Block) == 34 && sizeof(Q4Block) == 18 && sizeof(Q4KBlock) == 144 && sizeof(Q5KBlock) == 176 &&
              sizeof(Q6KBlock) == 210);

// Calls f(static_cast<Block*>(nullptr)) with the Block of a block type.
template <class F>
void for_block_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::q8_0:
      return f(static_cast<Q8Block*>(nullptr));
    case DType::q4_0:
      return f(static_cast<Q4Block*>(nullptr));
    case DType::q4_k:
      return f(static_cast<Q4KBlock*>(nullptr));
    case DType::q5_k:
      return f(static_cast<Q5KBlock*>(nullptr));
    case DType::q6_k:
      return f(static_cast<Q6KBlock*>(nullptr));
    default:
      fail("{} has no blocks", name_of(dtype));
  }
}

// Element i of a row of blocks. Products of scales and numbers are exact in f32, so there is one rounding at most,
// whether or not the product is fused with a following sum.
float block_element(const void* blocks, DType dtype, int64_t i);

// Quantises n elements, whole blocks: to q8_0 and q4_0 with the bits of the reference's encoder (quantize_row_q8_0_ref,
// quantize_row_q4_0_ref), to the k types by a search for each group's scale and minimum (k_blocks.h). Values that are
// not finite give finite numbers and a scale that is not.
void quantize_blocks(void* blocks, DType dtype, const float* x, int64_t n);

}  // namespace wick
