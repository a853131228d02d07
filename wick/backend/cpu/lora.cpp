// The LoRA linear (Hu et al., 2021): y = x w^T + bias, and each block of y's columns has its scale * s up^T added, with
// s = dropout(x) down^T.
// M rows, K inputs, N outputs, R rank: x [M, K], w [N, K], y [M, N], down [R, K], up [N, R], s and ds [M, R].
#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/gemm.h"
#include "wick/backend/cpu/products.h"

namespace wick {

namespace {

// A block, and its columns of y and of s.
struct Block {
  Operand up;
  int64_t column, row;
  float scale;

  explicit Block(const LoraBlock& b) : up(b.up), column(b.column), row(b.row), scale(b.scale) {}
  Matrix outputs(const Matrix& y) const { return y.col_range(column, column + up->rows); }
  Matrix low(const Matrix& s) const { return s.col_range(row, row + up->cols); }
};

std::vector<Block> blocks_of(const LoraFactors& lora) { return {lora.blocks.begin(), lora.blocks.end()}; }

// dropout(x) to read as a matrix.
class DroppedInput {
 public:
  DroppedInput(const View& x, const Dropout& dropout) : input_(x), matrix_(*input_) {
    if (!x || dropout.p == 0) return;
    copy_ = Scratch(x.numel());
    matrix_ = row_major(copy_.data(), matrix_.rows, matrix_.cols);
    cpu_backend().dropout(contiguous_view(copy_.data(), x.shape), x, dropout, false);
  }
  const Matrix& operator*() const { return matrix_; }

 private:
  Operand input_;
  Scratch copy_;
  Matrix matrix_;
};

View view_of(const Matrix& m) {
  return {m.data, DType::f32, {m.rows, m.cols}, m.transposed ? Shape{1, m.ld} : Shape{m.ld, 1}};
}

// The gradients of all factors by way of ds_g = scale * dy_g up_g, which stays in `ds`. Any view may be unwanted.
// The products are small: all of them are two jobs.
void factor_gradients(const View& ddown, const std::vector<View>& dups, const Matrix& ds, const Matrix& dy,
                      const Matrix& x, const Matrix& s, const std::vector<Block>& blocks) {
  const Result grad_down(ddown);
  std::vector<Result> grad_ups(dups.begin(), dups.end());
  int64_t rank = 0;
  for (const Block& block : blocks) rank += block.up->cols;
  if (rank < ds.cols) std::fill_n(ds.data, ds.rows * ds.cols, 0.0f);  // rows of down that only pad
  Products of_ups;
  for (size_t g = 0; g < blocks.size(); ++g) {
    const Block& block = blocks[g];
    const Matrix grad = block.outputs(dy);
    if (!dups.empty() && dups[g]) of_ups.add(*grad_ups[g], grad.t(), block.low(s), block.scale);
    of_ups.add(block.low(ds), grad, *block.up, block.scale);
  }
  of_ups.run();
  if (ddown) gemm(*grad_down, ds.t(), x);
  grad_down.store();
  for (const Result& grad : grad_ups) grad.store();
}

// The matrix that a call accumulates in: y itself, or, without a weight, zeros that are added to y at the end.
class Sum {
 public:
  Sum(const View& y, bool adds) : view_(y), result_(adds ? View() : y), matrix_(*result_) {
    if (!adds || !y) return;
    work_ = Scratch(y.numel());
    std::fill_n(work_.data(), y.numel(), 0.0f);
    matrix_ = row_major(work_.data(), y.numel() / std::max<int64_t>(y.shape.back(), 1), y.shape.back());
  }
  const Matrix& operator*() const { return matrix_; }
  void store() const {
    if (work_) return cpu_backend().accumulate(view_, contiguous_view(work_.data(), view_.shape), 1);
    result_.store();
  }

 private:
  View view_;
  Result result_;
  Scratch work_;
  Matrix matrix_;
};

}  // namespace

void CpuBackend::lora_linear(const LoraArgs& a) {
  const Operand input(a.x), down(a.lora.down);
  const Scratch own_s(a.s ? 0 : input->rows * down->rows);
  const Result saved(a.s ? a.s : contiguous_view(own_s.data(), {input->rows, down->rows}));
  const Sum product(a.y, !a.w);
  linear_into(*saved, *DroppedInput(a.x, a.lora.dropout), *down, nullptr);
  if (a.w) linear_into(*product, *input, a.w, a.bias);
  for (const Block& block : blocks_of(a.lora))
    gemm(block.outputs(*product), block.low(*saved), block.up->t(), block.scale, 1);
  saved.store();
  product.store();
  if (a.residual) accumulate(a.y, a.residual, 1);
}

void CpuBackend::lora_linear_backward(const LoraArgs& a, const LoraGradients& g) {
  const Operand grad(g.dy), down(a.lora.down), saved(g.dups.empty() ? View() : a.s);
  const Scratch work(grad->rows * down->rows);
  const Matrix ds = row_major(work.data(), grad->rows, down->rows);
  factor_gradients(g.ddown, g.dups, ds, *grad, *DroppedInput(g.ddown ? a.x : View(), a.lora.dropout), *saved,
                   blocks_of(a.lora));
  if (!g.dx) return;
  const Sum out(g.dx, !a.w);
  gemm(*out, ds, *down);
  if (a.lora.dropout.p > 0) dropout(view_of(*out), view_of(*out), a.lora.dropout, false);
  if (a.w) gemm_weight(*out, *grad, a.w, 1);
  out.store();
}

void CpuBackend::lora_backward(const LoraArgs& a, const LoraGradients& g) {
  const Operand grad(g.dy), down(a.lora.down);
  const DroppedInput input(a.x, a.lora.dropout);
  const Scratch work(2 * grad->rows * down->rows);
  const Matrix s = row_major(work.data(), grad->rows, down->rows),
               ds = {s.data + s.rows * s.cols, s.rows, s.cols, s.cols};
  if (!g.dups.empty()) linear_into(s, *input, *down, nullptr);
  factor_gradients(g.ddown, g.dups, ds, *grad, *input, s, blocks_of(a.lora));
}

}  // namespace wick
