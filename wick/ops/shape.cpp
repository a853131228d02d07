#include "wick/ops/shape.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "wick/ops/elementwise.h"

namespace wick {
namespace {

const Op kReshape("reshape"), kPermute("permute"), kSlice("slice"), kCat("cat"), kContiguous("contiguous"),
    kSplit("split");
const Op kCast("cast"), kExpand("expand"), kStacked("stacked");

int axis_of(const char* op, int axis, int rank) {
  const int positive = axis < 0 ? axis + rank : axis;
  check(positive >= 0 && positive < rank, "{}: axis {} is not one of {} axes", op, axis, rank);
  return positive;
}

// The strides that `shape` would have on x's data, if the data need not move.
bool view_strides(const Tensor& x, const Shape& shape, Shape& strides) {
  strides = shape;
  int from = x.rank() - 1, to = shape.rank() - 1;
  while (to >= 0 || from >= 0) {
    int64_t have = 1, want = 1, step = from >= 0 ? x.stride()[from] : 1;
    if (to >= 0) want = shape[to];
    if (from >= 0) have = x.shape()[from];
    // Grow both groups of axes until they cover the same count; x's group must be dense in itself.
    int first_to = to, first_from = from;
    while (have != want) {
      if (have < want) {
        if (--first_from < 0) return false;
        if (x.shape()[first_from] != 1 && x.stride()[first_from] != step * have) return false;
        have *= x.shape()[first_from];
      } else {
        if (--first_to < 0) return false;
        want *= shape[first_to];
      }
    }
    int64_t inner = step;
    for (int i = to; i >= std::max(first_to, 0); --i) {
      strides[i] = inner;
      inner *= shape[i];
    }
    to = first_to - 1;
    from = first_from - 1;
  }
  return true;
}

Shape resolve(const Tensor& x, Shape shape) {
  int64_t known = 1;
  int open = -1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] != -1)
      known *= shape[i];
    else {
      check(open < 0, "reshape: {} leaves more than one extent open", shape);
      open = i;
    }
  }
  if (open >= 0 && known > 0) shape[open] = x.numel() / known;
  check(shape.numel() == x.numel(), "reshape: {} does not have the elements of {}", shape, x.shape());
  return shape;
}

Tensor permuted(const Tensor& x, const std::vector<int>& order) {
  Shape shape, stride;
  for (int axis : order) {
    shape.push_back(x.shape()[axis]);
    stride.push_back(x.stride()[axis]);
  }
  return x.window(shape, stride);
}

Tensor sliced(const Tensor& x, int axis, int64_t begin, int64_t end) {
  Shape shape = x.shape();
  shape[axis] = end - begin;
  return x.window(shape, x.stride(), begin * x.stride()[axis]);
}

// y, in which the parts lie one after the other along an axis: so do their gradients in y's.
Tensor record_joined(const Op& op, const Tensor& y, const std::vector<Tensor>& parts, int axis) {
  const bool is_tracked = std::any_of(parts.begin(), parts.end(), [](const Tensor& part) { return part.tracked(); });
  if (!is_tracked || !Tape::active()) return y;
  const std::vector<Input> inputs(parts.begin(), parts.end());
  return Tape::active()->push(op, y, [axis, inputs](const Tensor& dy, Grads& grads) {
    int64_t at = 0;
    for (const Input& x : inputs) {
      grads.add(x, sliced(dy, axis, at, at + x.shape[axis]));
      at += x.shape[axis];
    }
  });
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& wanted) {
  const Shape shape = resolve(x, wanted);
  Shape strides;
  Tensor y;
  if (x.contiguous())
    y = x.window(shape, contiguous_strides(shape));
  else if (x.numel() > 0 && view_strides(x, shape, strides))
    y = x.window(shape, strides);
  else
    y = clone(x).window(shape, contiguous_strides(shape));
  return record(kReshape, y, {x},
                [x = Input(x)](const Tensor& dy, Grads& grads) { grads.add(x, reshape(dy, x.shape)); });
}

Tensor permute(const Tensor& x, const std::vector<int>& order) {
  check(int(order.size()) == x.rank(), "permute: {} axes are given for shape {}", order.size(), x.shape());
  std::vector<int> inverse(order.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) inverse[size_t(axis_of("permute", order[i], x.rank()))] = int(i);
  for (int i : inverse) check(i >= 0, "permute: an axis of {} is missing", x.shape());
  return record(kPermute, permuted(x, order), {x},
                [x = Input(x), inverse](const Tensor& dy, Grads& grads) { grads.add(x, permuted(dy, inverse)); });
}

Tensor transpose(const Tensor& x, int a, int b) {
  std::vector<int> order(static_cast<size_t>(x.rank()));
  for (int i = 0; i < x.rank(); ++i) order[size_t(i)] = i;
  std::swap(order[size_t(axis_of("transpose", a, x.rank()))], order[size_t(axis_of("transpose", b, x.rank()))]);
  return permute(x, order);
}

Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end) {
  axis = axis_of("slice", axis, x.rank());
  check(0 <= begin && begin <= end && end <= x.shape()[axis], "slice: [{}, {}) is not within axis {} of {}", begin, end,
        axis, x.shape());
  return record(kSlice, sliced(x, axis, begin, end), {x},
                [x = Input(x), axis, begin, end](const Tensor& dy, Grads& grads) {
                  Tensor dx = x.empty();
                  dx.backend().fill(dx, 0);
                  dx.backend().copy(sliced(dx, axis, begin, end), dy);
                  grads.add(x, dx);
                });
}

namespace {

// The gradient of a tensor that was split. Those of its parts are made there where operations ask for room, or copied.
class Gathered {
 public:
  Gathered(const Tensor& whole, int axis, const std::vector<int64_t>& widths) : whole_(whole), axis_(axis) {
    int64_t begin = 0;
    for (const int64_t width : widths) {
      parts_.push_back({begin, begin + width});
      begin += width;
    }
  }
  Tensor room(size_t i) { return window(parts_[i]); }
  void put(size_t i, const Tensor& dpart) {
    const Tensor to = window(parts_[i]);
    if (dpart.view().data != to.view().data) to.backend().copy(to, dpart);
    parts_[i].has_come = true;
  }
  const Tensor& so_far() const { return gradient_; }
  Tensor take() {
    for (const Part& part : parts_)
      if (!part.has_come) gradient_.backend().fill(window(part), 0);
    return std::exchange(gradient_, {});
  }

 private:
  struct Part {
    int64_t begin, end;
    bool has_come = false;
  };
  Tensor window(const Part& part) {
    if (!gradient_) gradient_ = whole_.empty();
    return sliced(gradient_, axis_, part.begin, part.end);
  }

  Input whole_;
  int axis_;
  std::vector<Part> parts_;
  Tensor gradient_;
};

}  // namespace

std::vector<Tensor> split(const Tensor& x, int axis, const std::vector<int64_t>& widths) {
  axis = axis_of("split", axis, x.rank());
  check(std::accumulate(widths.begin(), widths.end(), int64_t{0}) == x.dim(axis),
        "split: the widths do not add up to axis {} of {}", axis, x.shape());
  const auto gathered = std::make_shared<Gathered>(x, axis, widths);
  const Tensor whole =
      record(kSplit, x.window(x.shape(), x.stride()), {x},
             [gathered, x = Input(x)](const Tensor&, Grads& grads) { grads.add(x, gathered->take()); });
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (size_t i = 0; i < widths.size(); ++i) {
    parts.push_back(record(kSplit, sliced(whole, axis, begin, begin + widths[i]), {whole},
                           [gathered, i, whole = Input(whole)](const Tensor& dy, Grads& grads) {
                             gathered->put(i, dy);
                             if (!grads.at(whole.id)) grads.add(whole, gathered->so_far());
                           }));
    if (parts[i].tracked()) Tape::active()->set_room(parts[i], [gathered, i] { return gathered->room(i); });
    begin += widths[i];
  }
  return parts;
}

Tensor cat(const std::vector<Tensor>& parts, int axis) {
  check(!parts.empty(), "cat: nothing to concatenate");
  axis = axis_of("cat", axis, parts[0].rank());
  Shape shape = parts[0].shape();
  shape[axis] = 0;
  for (const Tensor& part : parts) {
    Shape expected = shape;
    if (part.rank() == shape.rank()) expected[axis] = part.shape()[axis];
    check(part.shape() == expected && part.dtype() == parts[0].dtype(), "cat: {} {} does not fit {} {} on axis {}",
          name_of(part.dtype()), part.shape(), name_of(parts[0].dtype()), parts[0].shape(), axis);
  }
  for (const Tensor& part : parts) shape[axis] += part.shape()[axis];

  Tensor y = Tensor::empty(shape, parts[0].dtype(), parts[0].memory());
  int64_t begin = 0;
  for (const Tensor& part : parts) {
    y.backend().copy(sliced(y, axis, begin, begin + part.shape()[axis]), part);
    begin += part.shape()[axis];
  }
  return record_joined(kCat, y, parts, axis);
}

Tensor stacked(const Tensor& whole, const std::vector<Tensor>& parts) {
  int64_t rows = 0;
  for (const Tensor& part : parts) rows += part.dim(0);
  check(rows == whole.dim(0), "stacked: the parts have {} rows, the whole is {}", rows, whole.shape());
  return record_joined(kStacked, whole, parts, 0);
}

Tensor rows(const Tensor& x) { return reshape(x.detached(), {-1, x.dim(-1)}); }

Tensor contiguous(const Tensor& x) {
  if (x.contiguous()) return x;
  return record(kContiguous, clone(x), {x}, [x = Input(x)](const Tensor& dy, Grads& grads) { grads.add(x, dy); });
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), dtype, x.memory());
  x.backend().copy(y, x);
  return record(kCast, y, {x}, [x = Input(x)](const Tensor& dy, Grads& grads) { grads.add(x, cast(dy, x.dtype)); });
}

Tensor expand(const Tensor& x, const Shape& shape) {
  check(x.rank() <= shape.rank(), "expand: {} does not broadcast to {}", x.shape(), shape);
  Shape strides = shape;
  for (int i = 0; i < shape.rank(); ++i) {
    const int from = i - (shape.rank() - x.rank());
    check(from < 0 || x.shape()[from] == shape[i] || x.shape()[from] == 1, "expand: {} does not broadcast to {}",
          x.shape(), shape);
    strides[i] = from < 0 || x.shape()[from] != shape[i] ? 0 : x.stride()[from];
  }
  return record(kExpand, x.window(shape, strides), {x},
                [x = Input(x)](const Tensor& dy, Grads& grads) { grads.add(x, sum_to(dy, x.shape)); });
}

Tensor zeros(const Shape& shape, DType dtype, Memory& memory) { return full(shape, 0, dtype, memory); }

Tensor full(const Shape& shape, float value, DType dtype, Memory& memory) {
  Tensor y = Tensor::empty(shape, dtype, memory);
  y.backend().fill(y, value);
  return y;
}

Tensor clone(const Tensor& x) {
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  x.backend().copy(y, x);
  return y;
}

Tensor heads(const Tensor& x, int64_t count) {
  check(x.rank() == 3 && count > 0 && x.dim(2) % count == 0, "heads: the width of {} does not split into {} heads",
        x.shape(), count);
  return reshape(x, {x.dim(0), x.dim(1), count, x.dim(2) / count});
}

Tensor merge_heads(const Tensor& x) {
  check(x.rank() == 4, "merge_heads: expected [B, T, H, D], got {}", x.shape());
  return reshape(x, {x.dim(0), x.dim(1), x.dim(2) * x.dim(3)});
}

Tensor to_channels_last(const Tensor& x) { return contiguous(permute(x, {0, 2, 3, 1})); }
Tensor to_channels_first(const Tensor& x) { return contiguous(permute(x, {0, 3, 1, 2})); }

}  // namespace wick
