// M rows, K inputs, N outputs: x [M, K], w [N, K], y [M, N].
#include "wick/backend/cuda/linear/fp8.h"

#include <fmt/format.h>

#include <cmath>

#include "wick/backend/cuda/device/integers.h"
#include "wick/backend/cuda/linear/fp8_codes.h"
#include "wick/backend/cuda/runtime/cublaslt.h"
#include "wick/backend/cuda/runtime/ways.h"
#include "wick/backend/scratch.h"

namespace wick {

namespace {

// y = (x's codes and scales) (w's)^T + low f + bias + residual, all of which lies by rows but f.
struct Fp8Product {
  DeviceMatrix y;
  Fp8Codes x, w;
  View bias = {};
  DeviceMatrix residual = {};
  const ExtendedGemm* adapter = nullptr;  // low and its groups, which have a part in each column
};

bool by_rows(const View& v, DType dtype) {
  const auto m = v.dtype == dtype ? as_rows(v) : std::nullopt;
  return m && !m->transposed;
}

// A view as a matrix that lies by rows: itself, or a dense copy.
class RowInput {
 public:
  RowInput(CudaBackend& cuda, const View& v, DType dtype) {
    if (!v) return;
    if (!by_rows(v, dtype)) copy_.emplace(cuda, v, dtype);
    matrix_ = copy_ ? dense_rows(copy_->view()) : *as_rows(v);
  }
  const DeviceMatrix& operator*() const { return matrix_; }

 private:
  std::optional<DenseInput> copy_;
  DeviceMatrix matrix_;
};

bool in_sixteens(const DeviceMatrix& m) { return m.ld * int64_t(size_of(m.dtype)) % 16 == 0 && aligned(m.data); }

// y = low f + beta * y
void add_adapter(CudaBackend& cuda, const Fp8Product& p, float beta) {
  for (int i = 0; p.adapter && i < p.adapter->group_count; ++i) {
    const auto& [f, column, low_at, unread] = p.adapter->groups[i];
    cuda.cublas().gemm(p.y.col_range(column, f.cols), p.adapter->low.col_range(low_at, f.rows), f, 1, beta);
  }
}

// An adapter's part is in y before, unless there is a residual: so y is written once more and read once. cuBLASLt has
// sums with a bias for some types alone: elsewhere it is added behind them.
bool multiply_scaled(CudaBackend& cuda, const Fp8Product& p) {
  const bool begins_with_adapter = p.adapter && p.adapter->group_count > 0 && !p.residual.data;
  if (begins_with_adapter) add_adapter(cuda, p, 0);
  const DenseInput bias(cuda, p.bias, p.y.dtype);
  const Cublas::CodeScales scales{p.x.scales, p.w.scales};
  const auto multiply = [&](const void* shift) {
    return cuda.cublas().multiply_codes(p.y, p.x.matrix(), p.w.matrix(), scales, shift,
                                        begins_with_adapter ? p.y : p.residual);
  };
  if (!multiply(bias.as<void>())) {
    if (!p.bias || !multiply(nullptr)) return false;
    const View every_row{bias.view().data, p.y.dtype, {p.y.rows, p.y.cols}, {0, 1}};
    cuda.binary(Binary::add, p.y.view(), p.y.view(), every_row);
  }
  if (!begins_with_adapter) add_adapter(cuda, p, 1);
  return true;
}

// y gets sums of products of codes, which a factor keeps from overflowing f16, and then all the rest.
void multiply_and_scale(CudaBackend& cuda, const Fp8Product& p, Fp8Way way) {
  const float factor = p.y.dtype == DType::f16 ? 0x1p-18f : 1;
  const bool multiplied =
      way != Fp8Way::decoded && cuda.cublas().multiply_codes(p.y, p.x.matrix(), p.w.matrix(), {}, nullptr, {}, factor);
  if (!multiplied) {
    const auto bytes = [&](const Fp8Codes& c) { return size_t(c.rows * c.cols) * size_of(p.y.dtype); };
    const Scratch left(cuda, bytes(p.x)), right(cuda, bytes(p.w));
    const DeviceMatrix x{left.as<void>(), p.y.dtype, p.x.rows, p.x.cols, p.x.cols};
    const DeviceMatrix w{right.as<void>(), p.y.dtype, p.w.rows, p.w.cols, p.w.cols};
    decode_codes(cuda, x, p.x);
    decode_codes(cuda, w, p.w);
    cuda.cublas().gemm(p.y, x, w.t(), factor);
  }
  const DenseInput bias(cuda, p.bias, p.y.dtype);
  scale_product(cuda, p.y, {1 / factor, p.x.scales, p.w.scales, bias.as<void>(), p.residual});
}

void multiply(CudaBackend& cuda, const Fp8Product& p) {
  const Fp8Way way = plan_fp8(cuda, p.y, p.x.cols);
  if (explains())
    explain(fmt::format("fp8 product {} x {} -> {}, {}", p.x.rows, p.x.cols, p.w.rows, name_of(p.y.dtype)),
            std::string(to_string(way)));
  if (way == Fp8Way::scaled && multiply_scaled(cuda, p)) return;
  multiply_and_scale(cuda, p, way);
  add_adapter(cuda, p, 1);
}

// Memory of a product's codes and scales.
class Work {
 public:
  Work(CudaBackend& cuda, const Fp8Scratch& layout) : layout_(layout), memory_(cuda, layout.bytes) {}
  Fp8Codes codes(int64_t rows, int64_t cols) const {
    return {at<uint8_t>(layout_.codes), rows, cols, layout_.stride, at<float>(layout_.scales)};
  }
  Fp8Codes transposed(const View& w) const {
    return {at<uint8_t>(layout_.w_codes), w.shape[1], w.shape[0], layout_.w_stride, at<float>(layout_.ones)};
  }
  float* w_scales() const { return at<float>(layout_.w_scales); }
  void* bias() const { return at<char>(layout_.bias); }

 private:
  template <class T>
  T* at(size_t bytes) const {
    return reinterpret_cast<T*>(memory_.as<char>() + bytes);
  }
  Fp8Scratch layout_;
  Scratch memory_;
};

// Calls f with y as a matrix that lies by rows, which a copy may stand for.
template <class F>
void with_rows(CudaBackend& cuda, const View& y, DType dtype, const F& f) {
  if (by_rows(y, dtype)) return f(*as_rows(y));
  const Scratch dense(cuda, size_t(y.numel()) * size_of(dtype));
  const View packed = contiguous_view(dense.as<void>(), dtype, y.shape);
  f(dense_rows(packed));
  cuda.copy(y, packed);
}

void linear_of_codes(CudaBackend& cuda, const View& y, const View& x, const View& w, const View& bias,
                     const View& residual, const ExtendedGemm* adapter) {
  const RowInput input(cuda, x, x.dtype), start(cuda, residual, x.dtype);
  const Work work(cuda, Fp8Scratch::of_linear((*input).rows, w.shape));
  const Fp8Codes codes = work.codes((*input).rows, (*input).cols);
  const bool narrows = bias && bias.dtype == DType::f32 && bias.contiguous() && x.dtype != DType::f32;
  encode_rows(cuda, codes, *input, w, work.w_scales(),
              narrows ? BiasCopy{bias.as<const float>(), work.bias()} : BiasCopy{});
  const View shift = narrows ? contiguous_view(work.bias(), x.dtype, bias.shape) : bias;
  const Fp8Codes weight{w.as<uint8_t>(), w.shape[0], w.shape[1], row_bytes(w.dtype, rows_of(w)->stride),
                        work.w_scales()};
  with_rows(cuda, y, x.dtype, [&](const DeviceMatrix& out) {
    multiply(cuda, {out, codes, weight, shift, *start, adapter});
  });
}

void dx_of_codes(CudaBackend& cuda, const View& dx, const View& dy, const View& w, const ExtendedGemm* adapter) {
  const RowInput grad(cuda, dy, dy.dtype);
  const Work work(cuda, Fp8Scratch::of_dx((*grad).rows, w.shape));
  const Fp8Codes codes = work.codes((*grad).rows, (*grad).cols), weight = work.transposed(w);
  transpose_codes(cuda, weight, w, work.w_scales());
  encode_scaled_rows(cuda, codes, *grad, work.w_scales());
  with_rows(cuda, dx, dy.dtype, [&](const DeviceMatrix& out) {
    multiply(cuda, {out, codes, weight, {}, {}, adapter});
  });
}

}  // namespace

Fp8Way plan_fp8(const Gpu& gpu, const DeviceMatrix& y, int64_t depth) {
  const auto can_go = [&](Fp8Way way) {
    if (way == Fp8Way::decoded) return true;
    if (!multiplies_fp8(gpu) || depth % 16 || y.cols % 16 || !in_sixteens(y)) return false;
    return way == Fp8Way::codes || gpu.capability() == 90;
  };
  if (const auto forced = forced_way<Fp8Way>("fp8", kFp8Ways); forced && can_go(*forced)) return *forced;
  for (const Fp8Way way : {Fp8Way::scaled, Fp8Way::codes})
    if (can_go(way)) return way;
  return Fp8Way::decoded;
}

void fp8_linear(CudaBackend& cuda, const View& y, const View& x, const View& w, const View& bias,
                const View& residual) {
  if (y.numel() > 0) linear_of_codes(cuda, y, x, w, bias, residual, nullptr);
}

void fp8_dx(CudaBackend& cuda, const View& dx, const View& dy, const View& w) {
  if (dx.numel() > 0) dx_of_codes(cuda, dx, dy, w, nullptr);
}

void fp8_extended(CudaBackend& cuda, const ExtendedGemm& g) {
  if (!g.w.transposed) return dx_of_codes(cuda, g.y.view(), g.x.view(), g.w.view(), &g);
  const View bias = g.bias ? View{const_cast<float*>(g.bias), DType::f32, {g.y.cols}, {1}} : View();
  linear_of_codes(cuda, g.y.view(), g.x.view(), g.w.t().view(), bias, g.residual.data ? g.residual.view() : View(), &g);
}

}  // namespace wick
