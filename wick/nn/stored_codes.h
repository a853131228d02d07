// Codes of a quantised matrix and their scales, as they lie apart in other programs' files, put together as rows of
// core/row_formats.h: a model in that format then has the file's own numbers.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "wick/core/memory.h"
#include "wick/core/tensor.h"

namespace wick {

// `count` scales from `first` on. Throws Error where one is not a finite number.
using ReadScales = std::function<std::vector<float>(int64_t first, int64_t count)>;

struct StoredCodes {
  DType dtype;           // of the format with such codes: fp8, int8, nf4, or nf4_double where there are nested scales
  Shape shape;           // of the tensor
  Memory::Source bytes;  // the codes, row-major
  int64_t run;           // elements that share a scale, row-major
  ReadScales scales;
  // What nf4_double keeps of the scales.
  struct Nested {
    Memory::Source codes;
    float mean;
    ReadScales scales;
  };
  std::optional<Nested> nested = {};
};

// The bytes of the matrix in `dtype`; empty where that format has other codes, or would need others for such runs.
Memory::Source as_rows(const StoredCodes& codes, DType dtype);

}  // namespace wick
