// Blocks of GGUF's types that Wick decodes as it reads them (ggml: ggml-common.h, ggml-quants.c; MIT). Types that it
// keeps as they are stored are dtypes: core/blocks.h.
#pragma once

#include <cstddef>
#include <string_view>

#include "wick/core/dtype.h"

namespace wick {

struct GgufBlocks {
  BlockSize block;
  void (*decode)(const std::byte* blocks, float* to, int64_t count);  // `count` blocks
};

// Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, TQ1_0, TQ2_0, F64, I8 and I16 by the file's name for them; null
// for any other type. Products of scales and numbers are exact in f32, so there is one rounding at most.
const GgufBlocks* gguf_blocks(std::string_view type);

}  // namespace wick
