#include "wick/nn/stored_codes.h"

#include <algorithm>
#include <cstring>

#include "wick/core/row_formats.h"

namespace wick {
namespace {

bool has_such_codes(DType stored, DType wanted) {
  switch (wanted) {
    case DType::fp8:
    case DType::fp8_block:
    case DType::fp8_product:
      return stored == DType::fp8;
    case DType::nf4:
      return stored == DType::nf4 || stored == DType::nf4_double;
    default:
      return stored == wanted;
  }
}

class CodeRows {
 public:
  CodeRows(const StoredCodes& from, DType dtype)
      : from_(from), format_(row_format(dtype)), cols_(from.shape[1]), layout_(row_layout(dtype, cols_)) {}

  void read(void* host, size_t at, size_t bytes) const {
    auto* to = static_cast<char*>(host);
    const int64_t piece = std::max<int64_t>(kPiece / layout_.bytes, 1), end = int64_t(at + bytes);
    std::vector<char> rows;
    for (int64_t first = int64_t(at) / layout_.bytes; first * layout_.bytes < end; first += piece) {
      const int64_t count = std::min(piece, (end + layout_.bytes - 1) / layout_.bytes - first);
      rows.assign(size_t(count * layout_.bytes), 0);
      read_codes(rows.data(), first, count);
      format_.nested ? read_nested(rows.data(), first, count) : read_scales(rows.data(), first, count);
      const int64_t from = std::max(int64_t(at), first * layout_.bytes);
      const int64_t until = std::min(end, (first + count) * layout_.bytes);
      std::memcpy(to + (from - int64_t(at)), rows.data() + (from - first * layout_.bytes), size_t(until - from));
    }
  }

 private:
  static constexpr int64_t kPiece = 1 << 20;  // bytes that are put together at once

  void read_codes(char* rows, int64_t first, int64_t count) const {
    const auto width = size_t(cols_ * format_.bits / 8);
    std::vector<char> codes(size_t(count) * width);
    from_.bytes(codes.data(), size_t(first) * width, codes.size());
    for (size_t i = 0; i < size_t(count); ++i) std::memcpy(rows + i * size_t(layout_.bytes), &codes[i * width], width);
  }

  // A scale of the file may serve several of the format's.
  void read_scales(char* rows, int64_t first, int64_t count) const {
    const int64_t run = format_.run == 0 ? cols_ : format_.run, begin = first * cols_ / from_.run;
    const int64_t last = ((first + count) * cols_ - 1) / from_.run;
    const std::vector<float> scales = from_.scales(begin, last - begin + 1);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < layout_.count; ++k) {
        const float scale = scales[size_t(((first + i) * cols_ + k * run) / from_.run - begin)];
        std::memcpy(rows + i * layout_.bytes + layout_.scales + 4 * k, &scale, sizeof scale);
      }
  }

  void read_nested(char* rows, int64_t first, int64_t count) const {
    const StoredCodes::Nested& nested = *from_.nested;
    std::vector<char> codes(size_t(count * layout_.count));
    nested.codes(codes.data(), size_t(first * layout_.count), codes.size());
    const int64_t begin = first * layout_.count / kNestedRun;
    const int64_t last = ((first + count) * layout_.count - 1) / kNestedRun;
    const std::vector<float> scales = nested.scales(begin, last - begin + 1);
    for (int64_t i = 0; i < count; ++i, rows += layout_.bytes) {
      const int64_t magnitude = (first + i) * layout_.count, scale = magnitude / kNestedRun;
      const int64_t until = (magnitude + layout_.count - 1) / kNestedRun + 1;
      const NestedScales header{.mean = nested.mean, .first = uint32_t(magnitude % kNestedRun)};
      std::memcpy(rows + layout_.scales, &codes[size_t(i * layout_.count)], size_t(layout_.count));
      std::memcpy(rows + layout_.nested, &header, sizeof header);
      std::memcpy(rows + layout_.nested + sizeof header, &scales[size_t(scale - begin)], size_t(until - scale) * 4);
    }
  }

  const StoredCodes from_;
  const RowFormat format_;
  const int64_t cols_;
  const RowLayout layout_;
};

}  // namespace

Memory::Source as_rows(const StoredCodes& codes, DType dtype) {
  if (!has_such_codes(codes.dtype, dtype) || codes.shape.rank() != 2 || codes.shape.numel() == 0) return {};
  const int64_t cols = codes.shape[1], run = row_format(dtype).run == 0 ? cols : row_format(dtype).run;
  if (cols % run != 0 || codes.run % run != 0) return {};
  if (dtype == DType::nf4_double && codes.run != kNf4Run) return {};
  return [rows = CodeRows(codes, dtype)](void* host, size_t at, size_t bytes) { rows.read(host, at, bytes); };
}

}  // namespace wick
