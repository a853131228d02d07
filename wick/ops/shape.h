// Shapes, copies and conversions. Views share data where the strides allow it.
#pragma once

#include <vector>

#include "wick/autograd/tape.h"

namespace wick {

Tensor reshape(const Tensor& x, const Shape& shape);  // one extent may be -1; copies if x is not contiguous
Tensor rows(const Tensor& x);                         // [..., C] as [rows, C], untracked
Tensor permute(const Tensor& x, const std::vector<int>& order);
Tensor transpose(const Tensor& x, int a, int b);
Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end);  // a view of [begin, end)
// Parts of these widths, one after the other, as views. Their gradients meet in one tensor, in which each has its
// place.
std::vector<Tensor> split(const Tensor& x, int axis, const std::vector<int64_t>& widths);
Tensor cat(const std::vector<Tensor>& parts, int axis);
// `whole`, whose rows are those of the parts one after the other in the same memory; its gradient is theirs.
Tensor stacked(const Tensor& whole, const std::vector<Tensor>& parts);
Tensor contiguous(const Tensor& x);                  // x itself if it is
Tensor cast(const Tensor& x, DType dtype);           // x itself if it is
Tensor expand(const Tensor& x, const Shape& shape);  // broadcast as a view

Tensor zeros(const Shape& shape, DType dtype = DType::f32, Memory& memory = host_memory());
Tensor full(const Shape& shape, float value, DType dtype = DType::f32, Memory& memory = host_memory());
Tensor clone(const Tensor& x);  // a contiguous copy, untracked

// [B, T, H*D] <-> [B, T, H, D], as views.
Tensor heads(const Tensor& x, int64_t count);
Tensor merge_heads(const Tensor& x);
// [B, C, H, W] <-> [B, H, W, C], as contiguous copies.
Tensor to_channels_last(const Tensor& x);
Tensor to_channels_first(const Tensor& x);

}  // namespace wick
