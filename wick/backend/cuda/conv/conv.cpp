// Convolutions. Images are [B, H, W, C] and weights [O, KH, KW, I], the fastest layout for tensor cores.
//
// A 1x1 convolution is a linear layer over pixels. Larger ones are cuDNN's; it wants, and gets through zero-filled
// copies where needed, channels in multiples of 8 (16-bit dtypes) and the same padding on opposite sides. Cases that
// cuDNN does not take, or all without it, are a matrix product over gathered columns, some pixels at a time.
#include <algorithm>

#include "wick/backend/cuda/conv/columns.h"
#include "wick/backend/cuda/runtime/cudnn.h"
#include "wick/backend/cuda/runtime/matrix.h"
#include "wick/backend/scratch.h"

namespace wick {
namespace {

constexpr int64_t kColumnBytes = int64_t{64} << 20;  // of gathered columns at a time
constexpr int64_t kLargeWindow = 7;  // beyond it, columns: such windows cut images into patches, and cuDNN 9.14
                                     // and 9.19 were seen giving a wrong gradient of 14x14 weights

bool suits_cudnn(CudaBackend& cuda, const View& w) {
  return cuda.cudnn().available() && std::max(w.shape[1], w.shape[2]) <= kLargeWindow;
}

View matrix(const View& dense) {  // all dims but the last as rows
  const int64_t cols = dense.shape[dense.rank() - 1];
  return contiguous_view(dense.data, dense.dtype, {cols ? dense.numel() / cols : 0, cols});
}

// The window of `shape` that begins at `offset` in a larger view.
View window(const View& v, const Shape& offset, const Shape& shape) {
  int64_t begin = 0;
  for (int d = 0; d < v.rank(); ++d) begin += offset[d] * v.stride[d];
  return {v.as<char>() + begin * int64_t(size_of(v.dtype)), v.dtype, shape, v.stride};
}

bool usable_as(const View& v, DType dtype, const Shape& shape) {
  return v.contiguous() && v.dtype == dtype && v.shape == shape && uintptr_t(v.data) % 16 == 0;
}

// A contiguous aligned input with zeros around it, as many as make it `shape`.
Held padded_input(CudaBackend& cuda, const View& view, DType dtype, const Shape& shape, const Shape& offset) {
  if (usable_as(view, dtype, shape)) return Held(view);
  Held padded(cuda, dtype, shape);
  if (shape != view.shape) cuda.fill(padded.view(), 0);
  cuda.copy(window(padded.view(), offset, view.shape), view);
  return padded;
}

// A contiguous aligned output of which only a window is wanted; finish() once the kernels that write it are launched.
class PaddedOutput {
 public:
  PaddedOutput(CudaBackend& cuda, const View& view, DType dtype, const Shape& shape, const Shape& offset)
      : cuda_(cuda),
        target_(view),
        held_(usable_as(view, dtype, shape) ? Held(view) : Held(cuda, dtype, shape)),
        offset_(offset) {}
  const View& view() const { return held_.view(); }
  void finish() const {
    if (held_.is_own()) cuda_.copy(target_, window(view(), offset_, target_.shape));
  }

 private:
  CudaBackend& cuda_;
  View target_;
  Held held_;
  Shape offset_;
};

Columns forward_columns(const Shape& x, const Shape& y, const Shape& w, const Conv2d& c) {
  return {x[1], x[2], x[3], y[1], y[2], w[1], w[2], c.stride, 1, -c.top, -c.left, 1};
}
// The outputs to which each pixel of x contributed: (i + top - p) / stride where that is whole.
Columns backward_columns(const Shape& x, const Shape& y, const Shape& w, const Conv2d& c) {
  return {y[1], y[2], y[3], x[1], x[2], w[1], w[2], 1, -1, c.top, c.left, c.stride};
}

// Calls f(columns [rows, KH*KW*C], first row, rows) until all rows of the product have been made.
template <class F>
void for_column_blocks(CudaBackend& cuda, const View& image, const Columns& columns, int64_t total, const F& f) {
  const int64_t row_bytes = columns.row_length() * int64_t(size_of(image.dtype));
  const int64_t step =
      std::clamp<int64_t>(kColumnBytes / std::max<int64_t>(row_bytes, 1), 1, std::max<int64_t>(total, 1));
  const Scratch memory(cuda, size_t(step * row_bytes));
  for (int64_t first = 0; first < total; first += step) {
    const int64_t rows = std::min(step, total - first);
    gather_columns(cuda, memory.as<void>(), image, columns, first, rows);
    f(contiguous_view(memory.as<void>(), image.dtype, {rows, columns.row_length()}), first, rows);
  }
}

void forward_by_columns(CudaBackend& cuda, const View& y, const View& x, const View& w, const View& bias,
                        const Conv2d& conv) {
  const DenseInput image(cuda, x), weight(cuda, w, x.dtype);
  const DenseOutput result(cuda, y);
  const View weights = contiguous_view(weight.view().data, x.dtype, {w.shape[0], w.numel() / w.shape[0]});
  const View out = matrix(result.view());
  for_column_blocks(
      cuda, image.view(), forward_columns(x.shape, y.shape, w.shape, conv), out.shape[0],
      [&](const View& columns, int64_t first, int64_t rows) {
        const View y_rows = part_of(out, 0, first, rows);
        if (!bias) return cuda.matmul(y_rows, columns, transposed(weights), 1, 0);
        const Held product(cuda, DType::f32, y_rows.shape);
        cuda.matmul(product.view(), columns, transposed(weights), 1, 0);
        cuda.binary(Binary::add, y_rows, product.view(), {bias.data, bias.dtype, y_rows.shape, {0, bias.stride[0]}});
      });
  result.finish();
}

void backward_input_by_columns(CudaBackend& cuda, const View& dx, const View& dy, const View& w, const Conv2d& conv) {
  const Shape& n = w.shape;
  const View taps_first{
      w.data, w.dtype, {n[1], n[2], n[0], n[3]}, {w.stride[1], w.stride[2], w.stride[0], w.stride[3]}};
  const DenseInput grad(cuda, dy), weight(cuda, taps_first, dy.dtype);
  const DenseOutput result(cuda, dx);
  const View out = matrix(result.view());
  for_column_blocks(cuda, grad.view(), backward_columns(dx.shape, dy.shape, w.shape, conv), out.shape[0],
                    [&](const View& columns, int64_t first, int64_t rows) {
                      cuda.matmul(part_of(out, 0, first, rows), columns, matrix(weight.view()), 1, 0);
                    });
  result.finish();
}

void backward_weight_by_columns(CudaBackend& cuda, const View& dw, const View& dy, const View& x, const Conv2d& conv) {
  const DenseInput grad(cuda, dy), image(cuda, x);
  const DenseOutput result(cuda, dw, DType::f32);
  const View sum = contiguous_view(result.view().data, DType::f32, {dw.shape[0], dw.numel() / dw.shape[0]});
  const View grads = matrix(grad.view());
  for_column_blocks(cuda, image.view(), forward_columns(x.shape, dy.shape, dw.shape, conv), grads.shape[0],
                    [&](const View& columns, int64_t first, int64_t rows) {
                      cuda.matmul(sum, transposed(part_of(grads, 0, first, rows)), columns, 1, first ? 1 : 0);
                    });
  result.finish();
}

// In one pass over y.
void add_bias(CudaBackend& cuda, const View& y, const View& bias, const View& added) {
  if (!bias && !added) return;
  const View along = bias ? View{bias.data, bias.dtype, y.shape, {0, 0, 0, bias.stride[0]}} : added;
  if (bias && added)
    cuda.add(y, y, along, added);
  else
    cuda.binary(Binary::add, y, y, along);
}

}  // namespace

void CudaBackend::conv2d(View y, View x, View w, View bias, View added, Conv2d conv) {
  if (y.numel() == 0) return;
  if (is_linear(w, conv)) {
    linear(y, x, linear_weight(w), bias, {});
    if (added) binary(Binary::add, y, y, added);
    return;
  }
  if (suits_cudnn(*this, w)) {
    const ConvolutionPadding p(x.shape, y.shape, w.shape, conv, x.dtype);
    const Held image = padded_input(*this, x, x.dtype, p.x, p.image),
               weight = padded_input(*this, w, x.dtype, p.w, p.none);
    const PaddedOutput result(*this, y, x.dtype, p.y, p.none);
    if (cudnn().convolution(*this, result.view(), image.view(), weight.view(), p.conv)) {
      result.finish();
      return add_bias(*this, y, bias, added);
    }
  }
  forward_by_columns(*this, y, x, w, bias, conv);
  if (added) binary(Binary::add, y, y, added);
}

void CudaBackend::conv2d_backward_input(View dx, View dy, View w, Conv2d conv) {
  if (dx.numel() == 0) return;
  if (dy.numel() == 0) return fill(dx, 0);
  if (is_linear(w, conv)) {
    const MatrixInput grad(*this, dy, dy.dtype);
    const MatrixOutput result(*this, dx, dy.dtype);
    matmul(result->view(), grad->view(), linear_weight(w), 1, 0);
    return result.finish();
  }
  if (suits_cudnn(*this, w)) {
    const ConvolutionPadding p(dx.shape, dy.shape, w.shape, conv, dy.dtype);
    const Held grad = padded_input(*this, dy, dy.dtype, p.y, p.none),
               weight = padded_input(*this, w, dy.dtype, p.w, p.none);
    const PaddedOutput result(*this, dx, dy.dtype, p.x, p.image);
    if (cudnn().convolution_backward_input(*this, result.view(), grad.view(), weight.view(), p.conv))
      return result.finish();
  }
  backward_input_by_columns(*this, dx, dy, w, conv);
}

void CudaBackend::conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) {
  const bool empty = dy.numel() == 0 || x.numel() == 0;
  if (dbias) sum(View{dbias.data, dbias.dtype, {1, 1, 1, dbias.shape[0]}, {0, 0, 0, dbias.stride[0]}}, dy);
  if (!dw) return;
  if (empty) return fill(dw, 0);
  if (is_linear(dw, conv)) {
    const MatrixInput grad(*this, dy, dy.dtype), image(*this, x, dy.dtype);
    return matmul(linear_weight(dw), grad->t().view(), image->view(), 1, 0);
  }
  if (suits_cudnn(*this, dw)) {
    const ConvolutionPadding p(x.shape, dy.shape, dw.shape, conv, dy.dtype);
    const Held grad = padded_input(*this, dy, dy.dtype, p.y, p.none),
               image = padded_input(*this, x, dy.dtype, p.x, p.image);
    const PaddedOutput result(*this, dw, DType::f32, p.w, p.none);
    if (cudnn().convolution_backward_weight(*this, result.view(), grad.view(), image.view(), p.conv))
      return result.finish();
  }
  backward_weight_by_columns(*this, dw, dy, x, conv);
}

}  // namespace wick
