// Scratch of kernels that weighs beside tensors: how much of a call a device computes at a time, by rules that it
// shares with the plan of a run (counting.h).
#pragma once

#include <algorithm>
#include <vector>

#include "wick/backend/backend.h"
#include "wick/core/tensor.h"

namespace wick {

// Heads of at most so many features go by our kernels for tensor cores, which keep a number for each query.
inline constexpr int kAttentionMmaFeatures = 128;

// Attention's backward pass by cuDNN. To have the same bits twice, it keeps the gradient of the queries once for each
// 128 keys, in f32, and adds up at the end. For long rows that would be most of a step's memory, so batch entries and
// then heads go one after the other where it is more than some share of a device.
struct AttentionParts {
  int64_t entries, heads;  // at a time
  size_t scratch;          // bytes

  AttentionParts(const Shape& q, int64_t keys) {  // q [B, T, H, D]
    constexpr int64_t kMost = int64_t{384} << 20;
    const int64_t head = 4 * q[1] * (q[3] * ((keys + 127) / 128) + 1), entry = head * q[2];
    entries = std::clamp<int64_t>(kMost / std::max<int64_t>(entry, 1), 1, q[0]);
    heads = entry <= kMost ? q[2] : std::clamp<int64_t>(kMost / std::max<int64_t>(head, 1), 1, q[2]);
    scratch = size_t(entries * heads * head);
  }
};

// Attention by rows of scores in memory, all heads of an entry together: the way of f32 with ranges or shared keys.
struct AttentionRows {
  int64_t rows;    // at a time
  size_t scratch;  // bytes of a forward pass; of a backward pass with `backward`

  AttentionRows(const Shape& q, const Shape& k, bool ranges, bool backward) {  // q [B, T, H, D], k [B, S, G, D]
    constexpr int64_t kScores = int64_t{32} << 20;                             // elements at a time
    const int64_t most = std::max<int64_t>(kScores / std::max<int64_t>(q[2] * k[1], 1), 1);
    rows = most >= q[1] ? q[1] : std::max<int64_t>(most / 128 * 128, 1);
    const int64_t scores = q[2] * rows * k[1], reached = ranges ? 2 * k.numel() : 0;
    const int64_t shared = q[2] == k[2] ? 0 : q[2] * rows * q[3];  // of one product at a time
    scratch = 4 * size_t(backward ? 2 * scores + reached + shared + q[0] * q[1] * q[2] : scores + reached);
  }
};

// The shapes with which cuDNN computes a convolution of images [B, H, W, C] and weights [O, KH, KW, I]: channels in
// multiples of 8 where they have 16 bits, and the same padding on opposite sides, else within the image. A tensor of
// another shape is copied.
struct ConvolutionPadding {
  Conv2d conv;
  Shape x, y, w, image;  // `image` is where the given x begins in the padded one
  Shape none{0, 0, 0, 0};

  ConvolutionPadding(const Shape& given_x, const Shape& given_y, const Shape& given_w, const Conv2d& given, DType dtype)
      : conv(given), x(given_x), y(given_y), w(given_w), image{0, 0, 0, 0} {
    const int64_t unit = dtype == DType::f32 ? 1 : 8;
    x[3] = w[3] = (x[3] + unit - 1) / unit * unit;
    y[3] = w[0] = (y[3] + unit - 1) / unit * unit;
    if (conv.top == conv.bottom && conv.left == conv.right) return;
    image = {0, conv.top, conv.left, 0};
    x[1] += conv.top + conv.bottom;
    x[2] += conv.left + conv.right;
    conv = {conv.stride, 0, 0, 0, 0};
  }
};

// Adafactor's sums over the rows and columns of a parameter [..., M, N], or of a vector, which is one row: each tile of
// a matrix leaves its own in scratch.
struct AdafactorTiles {
  static constexpr int64_t kSide = 128;
  int64_t matrices, rows, cols;
  int64_t row_tiles, col_tiles;  // of a matrix

  explicit AdafactorTiles(const Shape& shape) {
    const int64_t numel = shape.numel();
    cols = shape.rank() > 0 ? shape[shape.rank() - 1] : 1;
    rows = shape.rank() > 1 ? shape[shape.rank() - 2] : 1;
    matrices = numel > 0 ? numel / (rows * cols) : 0;
    row_tiles = (rows + kSide - 1) / kSide;
    col_tiles = (cols + kSide - 1) / kSide;
  }
  int64_t tiles() const { return matrices * row_tiles * col_tiles; }
  int64_t row_sums() const { return matrices * rows * col_tiles; }
  int64_t column_sums() const { return matrices * cols * row_tiles; }
  // f32 of scratch: those sums, of each matrix the mean of its row means, of each tile the squares of the update and of
  // the parameter, and the root mean squares of both.
  int64_t scratch() const { return row_sums() + column_sums() + matrices + 2 * tiles() + 2; }
};

// Calls f(first, last, f32 of scratch) for parameters that go together, so that the scratch is small beside them.
template <class F>
void for_adafactor_groups(const std::vector<AdafactorTiles>& all, const F& f) {
  constexpr int64_t kMost = int64_t{16} << 20;
  size_t first = 0;
  int64_t scratch = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > first && scratch + all[i].scratch() > kMost) {
      f(first, i, scratch);
      first = i;
      scratch = 0;
    }
    scratch += all[i].scratch();
  }
  if (first < all.size()) f(first, all.size(), scratch);
}

// A weight in blocks is decoded a slice of so many elements at a time where x has more rows than kernels take that read
// blocks: a slice stays in a large L2 cache until its product has read it.
inline constexpr int64_t kSliceElements = int64_t{1} << 24;
inline constexpr int64_t kRowsOverBlocks = 32;

// A product with a matrix in fp8_product (core/row_formats.h), y = x w^T or dx = dy w. The other factor [rows, depth]
// has its codes and scales there, and w [outputs, inputs] its scales side by side; a bias lies there in 16 bits. For
// dx, whose tensor cores want the reduction along rows, w's codes lie there transposed, and a one for each of their
// rows. Rows of codes are whole packs of 16.
struct Fp8Scratch {
  int64_t stride, w_stride;  // of rows of codes, in bytes
  size_t codes, scales, w_scales, bias, w_codes, ones;
  size_t bytes;

  static Fp8Scratch of_linear(int64_t rows, const Shape& w) { return {rows, w[1], w, false}; }
  static Fp8Scratch of_dx(int64_t rows, const Shape& w) { return {rows, w[0], w, true}; }

 private:
  Fp8Scratch(int64_t rows, int64_t depth, const Shape& w, bool transposes)
      : stride((depth + 15) / 16 * 16), w_stride(transposes ? stride : 0), codes(0), bytes(0) {
    const auto take = [this](int64_t count) {
      const size_t begin = bytes;
      bytes += (size_t(count) + 255) / 256 * 256;
      return begin;
    };
    codes = take(rows * stride);
    scales = take(4 * rows);
    w_scales = take(4 * w[0]);
    bias = take(transposes ? 0 : 2 * w[0]);
    w_codes = take(transposes ? w[1] * w_stride : 0);
    ones = take(transposes ? 4 * w[1] : 0);
  }
};

// The most that cuDNN gets for a weight gradient of f32, in bytes. Kernels that want more lose digits (seen: 1.5e-3 in
// sums of 16384 products); presumably they transform the images first.
inline constexpr int64_t kConvolutionScratch = int64_t{16} << 20;

}  // namespace wick
