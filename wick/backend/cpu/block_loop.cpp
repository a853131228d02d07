#include "wick/backend/cpu/block_loop.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <utility>

#include "wick/backend/cpu/convert.h"

namespace wick {
namespace {

// The first operand decides, and where it repeats its elements, the next.
bool walks_before(const View* views, int count, int a, int b) {
  for (int k = 0; k < count; ++k) {
    const int64_t stride_a = std::abs(views[k].stride[a]), stride_b = std::abs(views[k].stride[b]);
    if (stride_a != stride_b && stride_a && stride_b) return stride_a > stride_b;
  }
  return a < b;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void gather_row(float* y, const char* x, DType dtype, int64_t stride, int64_t n) {
  if (stride == 1) return load_floats(y, x, dtype, n);
  const int64_t step = stride * int64_t(size_of(dtype));
  float value = 0;
  if (stride == 0) {
    load_floats(&value, x, dtype, 1);
    std::fill_n(y, n, value);
  } else if (dtype == DType::f32) {
    for (int64_t i = 0; i < n; ++i) y[i] = reinterpret_cast<const float*>(x)[i * stride];
  } else {
    for (int64_t i = 0; i < n; ++i) load_floats(y + i, x + i * step, dtype, 1);
  }
}

void scatter_row(char* y, DType dtype, int64_t stride, const float* x, int64_t n) {
  if (stride == 1) return store_floats(y, dtype, x, n);
  const int64_t step = stride * int64_t(size_of(dtype));
  if (dtype == DType::f32)
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<float*>(y)[i * stride] = x[i];
  else
    for (int64_t i = 0; i < n; ++i) store_floats(y + i * step, dtype, x + i, 1);
}

}  // namespace

MergedAxes::MergedAxes(const View* views, int count) : count_(count) {
  std::array<int, kMaxRank> order{};
  int used = 0;
  for (int axis = 0; axis < views[0].rank(); ++axis)
    if (views[0].shape[axis] != 1) order[size_t(used++)] = axis;
  // Insertion sort, because walks_before is no strict weak order when operands repeat elements.
  for (int i = 1; i < used; ++i)
    for (int j = i; j > 0 && walks_before(views, count, order[size_t(j)], order[size_t(j - 1)]); --j)
      std::swap(order[size_t(j)], order[size_t(j - 1)]);
  for (int i = 0; i < used; ++i) append(views, order[size_t(i)]);
  if (rank == 0) shape[size_t(rank++)] = 1;
  if (rank > 1) return;
  shape[1] = std::exchange(shape[0], 1);
  for (auto& s : stride) s[1] = std::exchange(s[0], 0);
  rank = 2;
}

void MergedAxes::append(const View* views, int axis) {
  const int64_t extent = views[0].shape[axis];
  bool merges = rank > 0;
  for (size_t k = 0; k < size_t(count_) && merges; ++k)
    merges = stride[k][size_t(rank - 1)] == views[k].stride[axis] * extent;
  if (!merges) shape[size_t(rank++)] = 1;
  shape[size_t(rank - 1)] *= extent;
  for (size_t k = 0; k < size_t(count_); ++k) stride[k][size_t(rank - 1)] = views[k].stride[axis];
}

BlockLoop::BlockLoop(std::initializer_list<View> outputs, std::initializer_list<View> inputs)
    : outputs_(int(outputs.size())), count_(int(outputs.size() + inputs.size())) {
  std::array<View, MergedAxes::kOperands> views;
  std::copy(inputs.begin(), inputs.end(), std::copy(outputs.begin(), outputs.end(), views.begin()));
  axes_ = MergedAxes(views.data(), count_);
  elements_ = views[0].numel();
  for (size_t k = 0; k < size_t(count_); ++k) {
    assert(views[k].shape == views[0].shape);
    operands_[k] = {views[k].as<char>(), views[k].dtype, int64_t(size_of(views[k].dtype)), false};
  }
  choose_blocks();
}

void BlockLoop::choose_blocks() {
  const size_t inner = size_t(axes_.rank - 1), outer = inner - 1;
  const int64_t columns = axes_.shape[inner], rows = axes_.shape[outer];
  const bool short_rows = columns < kShortRow && rows > 1;
  bool all_direct = true;
  for (int k = 0; k < count_; ++k) {
    Operand& operand = operands_[size_t(k)];
    const auto& stride = axes_.stride[size_t(k)];
    operand.direct = operand.dtype == DType::f32 && (columns == 1 || stride[inner] == 1) &&
                     (!short_rows || stride[outer] == columns);
    all_direct &= operand.direct;
  }
  columns_ = std::min(columns, all_direct ? kDirect : kStaged);
  if (short_rows) rows_ = std::min(rows, kStaged / std::max<int64_t>(columns, 1));
  column_blocks_ = columns ? ceil_div(columns, columns_) : 0;
  row_blocks_ = ceil_div(rows, rows_);
  blocks_ = column_blocks_ * row_blocks_;
  for (size_t axis = 0; axis < outer; ++axis) blocks_ *= axes_.shape[axis];
}

BlockLoop::Place BlockLoop::locate(int64_t block) const {
  const size_t inner = size_t(axes_.rank - 1), outer = inner - 1;
  std::array<int64_t, kMaxRank> index{};
  const auto next = [&block](int64_t extent) {
    if (extent == 1) return int64_t{0};
    const int64_t i = block % extent;
    block /= extent;
    return i;
  };
  index[inner] = next(column_blocks_) * columns_;
  index[outer] = next(row_blocks_) * rows_;
  for (size_t axis = outer; axis-- > 0;) index[axis] = next(axes_.shape[axis]);

  Place place{
      std::min(rows_, axes_.shape[outer] - index[outer]), std::min(columns_, axes_.shape[inner] - index[inner]), {}};
  for (size_t k = 0; k < size_t(count_); ++k) {
    int64_t offset = 0;
    for (size_t axis = 0; axis <= inner; ++axis) offset += index[axis] * axes_.stride[k][axis];
    place.data[k] = operands_[k].data + offset * operands_[k].size;
  }
  return place;
}

void BlockLoop::stage_inputs(const Place& place, Stage& stage, Pointers& pointers) const {
  const size_t inner = size_t(axes_.rank - 1), outer = inner - 1;
  for (size_t k = 0; k < size_t(count_); ++k) {
    const Operand& operand = operands_[k];
    pointers[k] = operand.direct ? reinterpret_cast<float*>(place.data[k]) : stage.buffer[k].data();
    if (operand.direct || k < size_t(outputs_)) continue;
    const int64_t row_bytes = axes_.stride[k][outer] * operand.size;
    for (int64_t row = 0; row < place.rows; ++row)
      gather_row(pointers[k] + row * place.columns, place.data[k] + row * row_bytes, operand.dtype,
                 axes_.stride[k][inner], place.columns);
  }
}

void BlockLoop::unstage_outputs(const Place& place, const Stage& stage) const {
  const size_t inner = size_t(axes_.rank - 1), outer = inner - 1;
  for (size_t k = 0; k < size_t(outputs_); ++k) {
    const Operand& operand = operands_[k];
    if (operand.direct) continue;
    const int64_t row_bytes = axes_.stride[k][outer] * operand.size;
    for (int64_t row = 0; row < place.rows; ++row)
      scatter_row(place.data[k] + row * row_bytes, operand.dtype, axes_.stride[k][inner],
                  stage.buffer[k].data() + row * place.columns, place.columns);
  }
}

}  // namespace wick
