#include "wick/backend/composed.h"

#include <algorithm>

#include "wick/backend/views.h"

namespace wick {
namespace {

// Temporaries are f32 unless a product wants the dtype of the activations.
Tensor temporary(Backend& b, const Shape& shape, DType dtype = DType::f32) {
  return Tensor::empty(shape, dtype, b.memory());
}

Tensor number(Backend& b, float value) {
  const Tensor one = temporary(b, {1});
  b.fill(one, value);
  return one;
}

Tensor difference(Backend& backend, const View& a, const View& b) {
  const Tensor d = temporary(backend, a.shape);
  backend.binary(Binary::sub, d, a, b);
  return d;
}

View reshaped(const Tensor& packed, const Shape& shape) {
  return contiguous_view(packed.view().data, packed.dtype(), shape);
}

// [..., D] as a matrix [rows, D], through a packed copy where its strides are not those of one. Empty views stay empty.
class Rows {
 public:
  Rows(Backend& b, const View& v) {
    if (!v) return;
    if (const auto flat = flatten_rows(v)) {
      view_ = *flat;
      return;
    }
    copy_ = temporary(b, v.shape, v.dtype);
    b.copy(copy_, v);
    view_ = *flatten_rows(copy_);
  }
  const View& operator*() const { return view_; }

 private:
  Tensor copy_;
  View view_;
};

// x, or dropout(x) in memory of its own.
class Dropped {
 public:
  Dropped(Backend& b, const View& x, const Dropout& dropout) : view_(x) {
    if (!x || dropout.p == 0) return;
    copy_ = temporary(b, x.shape, x.dtype);
    b.dropout(copy_, x, dropout, false);
    view_ = copy_;
  }
  const View& operator*() const { return view_; }

 private:
  Tensor copy_;
  View view_;
};

// y = value * act(gate)
void gated(Backend& b, Unary act, const View& y, const View& value, const View& gate) {
  const Tensor factor = temporary(b, y.shape);
  b.unary(act, factor, gate);
  b.binary(Binary::mul, y, value, factor);
}

// The outputs are written last, since they may be the inputs.
void gated_backward(Backend& b, Unary act, const View& dvalue, const View& dgate, const View& dy, const View& value,
                    const View& gate) {
  const Tensor factor = temporary(b, dy.shape), product = temporary(b, dy.shape), slope = temporary(b, dy.shape);
  b.unary(act, factor, gate);
  b.binary(Binary::mul, product, dy, value);
  b.unary_backward(act, slope, product, gate);
  b.binary(Binary::mul, dvalue, dy, factor);
  b.copy(dgate, slope);
}

// A large image as [B, h, H/h, w, W/w, C] of a small one's sides: the pixels that are one of its pixels.
View in_pixels(const View& large, const View& small) {
  const auto times = [&](int side) { return large.shape[side] / std::max<int64_t>(small.shape[side], 1); };
  const Shape &n = small.shape, &step = large.stride;
  return {large.data,
          large.dtype,
          {n[0], n[1], times(1), n[2], times(2), n[3]},
          {step[0], step[1] * times(1), step[1], step[2] * times(2), step[2], step[3]}};
}

// Queries (0), keys (1) or values (2) of [B, T, 3, H, D], as [B, T, H, D].
View heads_of(const View& x, int which) {
  const View part = part_of(x, 2, which, 1);
  const Shape &n = part.shape, &step = part.stride;
  return {part.data, part.dtype, {n[0], n[1], n[3], n[4]}, {step[0], step[1], step[3], step[4]}, part.constant};
}

}  // namespace

void ComposedBackend::affine(View y, View x, float scale, float shift) {
  const Tensor product = temporary(*this, x.shape);
  binary(Binary::mul, product, x, expanded(number(*this, scale), x.shape));
  binary(Binary::add, y, product, expanded(number(*this, shift), x.shape));
}

void ComposedBackend::accumulate(View y, View x, float scale) {
  const Tensor term = temporary(*this, x.shape);
  affine(term, x, scale, 0);
  binary(Binary::add, y, y, term);
}

void ComposedBackend::gated_linear(View y, View x, View w, View bias, const LoraFactors& lora) {
  const Tensor both = temporary(*this, with_last(y.shape, w.shape[0]), y.dtype);
  if (lora.down)
    lora_linear({.y = both, .x = x, .w = w, .bias = bias, .lora = lora});
  else
    linear(both, x, w, bias);
  swiglu(y, both);
}

void ComposedBackend::lora_linear(const LoraArgs& a) {
  const Tensor own = a.s ? Tensor() : temporary(*this, with_last(a.x.shape, a.lora.down.shape[0]), a.x.dtype);
  const View s = a.s ? a.s : own.view();
  linear(s, *Dropped(*this, a.x, a.lora.dropout), a.lora.down, {});
  if (a.w) linear(a.y, a.x, a.w, a.bias, a.residual);
  for (const LoraBlock& block : a.lora.blocks) {
    const int64_t width = block.up.shape[0], rank = block.up.shape[1];
    const Tensor share = temporary(*this, with_last(a.y.shape, width), a.y.dtype);
    linear(share, part_of(s, -1, block.row, rank), block.up, {});
    accumulate(part_of(a.y, -1, block.column, width), share, block.scale);
  }
}

void ComposedBackend::lora_linear_backward(const LoraArgs& a, const LoraGradients& g) {
  const Rows dy(*this, g.dy), s(*this, g.dups.empty() ? View() : a.s);
  const int64_t rows = (*dy).shape[0], inputs = a.lora.down.shape[1];
  const Tensor ds = temporary(*this, {rows, a.lora.down.shape[0]}, g.dy.dtype);
  fill(ds, 0);  // rows of down that only pad
  for (size_t i = 0; i < a.lora.blocks.size(); ++i) {
    const LoraBlock& block = a.lora.blocks[i];
    const View grad = part_of(*dy, 1, block.column, block.up.shape[0]);
    matmul(part_of(ds, 1, block.row, block.up.shape[1]), grad, block.up, block.scale, 0);
    if (!g.dups.empty() && g.dups[i])
      matmul(g.dups[i], transposed(grad), part_of(*s, 1, block.row, block.up.shape[1]), block.scale, 0);
  }
  if (g.ddown) {
    const Dropped x(*this, a.x, a.lora.dropout);
    matmul(g.ddown, transposed(ds), *Rows(*this, *x), 1, 0);
  }
  if (!g.dx) return;
  const Tensor adapter = temporary(*this, {rows, inputs}, g.dy.dtype);
  matmul(adapter, ds, a.lora.down, 1, 0);
  if (a.lora.dropout.p > 0) dropout(adapter, adapter, a.lora.dropout, false);
  if (!a.w) return accumulate(g.dx, reshaped(adapter, g.dx.shape), 1);
  const Tensor frozen = temporary(*this, {rows, inputs}, g.dy.dtype);
  matmul(frozen, *dy, a.w, 1, 0);
  binary(Binary::add, g.dx, reshaped(frozen, g.dx.shape), reshaped(adapter, g.dx.shape));
}

void ComposedBackend::lora_backward(const LoraArgs& a, const LoraGradients& g) {
  const Tensor s = temporary(*this, with_last(a.x.shape, a.lora.down.shape[0]), a.x.dtype);
  linear(s, *Dropped(*this, a.x, a.lora.dropout), a.lora.down, {});
  lora_linear_backward({.s = s, .x = a.x, .lora = a.lora}, g);
}

void ComposedBackend::upsample_nearest(View y, View x) {
  const View pixels = in_pixels(y, x);
  copy(pixels, expanded(in_pixels(x, x), pixels.shape));
}

void ComposedBackend::upsample_nearest_backward(View dx, View dy) { sum(in_pixels(dx, dx), in_pixels(dy, dx)); }

// exp(x - max - log(sum(exp(x - max)))): attention of one query 1 over keys x - max returns the logarithm.
void ComposedBackend::softmax(View y, View x) {
  if (x.numel() == 0) return;
  const int64_t width = x.dim(-1), rows = x.numel() / width;
  const Shape matrix{rows, width}, keys{rows, width, 1, 1}, queries{rows, 1, 1, 1};
  const Tensor scores = temporary(*this, matrix), largest = temporary(*this, {rows, 1}),
               ids = temporary(*this, {rows}, DType::i64);
  copy(reshaped(scores, x.shape), x);
  argmax(ids, reshaped(largest, {rows}), scores);
  binary(Binary::sub, scores, scores, expanded(largest, matrix));
  const Tensor one = number(*this, 1), unread = temporary(*this, queries), lse = temporary(*this, {rows, 1, 1});
  const Tensor ones = temporary(*this, keys);
  fill(ones, 1);
  attention({.y = unread, .lse = lse, .q = expanded(one, queries), .k = reshaped(scores, keys), .v = ones});
  binary(Binary::sub, scores, scores, expanded(reshaped(lse, {rows, 1}), matrix));
  unary(Unary::exp, y, reshaped(scores, x.shape));
}

void ComposedBackend::softmax_backward(View dx, View dy, View y) {
  const Tensor product = temporary(*this, y.shape), total = temporary(*this, with_last(y.shape, 1));
  binary(Binary::mul, product, dy, y);
  sum(total, product);
  binary(Binary::sub, product, dy, expanded(total, y.shape));
  binary(Binary::mul, dx, y, product);
}

void ComposedBackend::geglu(View y, View x) { gated(*this, Unary::gelu, y, half_of(x, 0), half_of(x, 1)); }
void ComposedBackend::geglu_backward(View dx, View dy, View x) {
  gated_backward(*this, Unary::gelu, half_of(dx, 0), half_of(dx, 1), dy, half_of(x, 0), half_of(x, 1));
}
void ComposedBackend::swiglu(View y, View x) { gated(*this, Unary::silu, y, half_of(x, 1), half_of(x, 0)); }
void ComposedBackend::swiglu_backward(View dx, View dy, View x) {
  gated_backward(*this, Unary::silu, half_of(dx, 1), half_of(dx, 0), dy, half_of(x, 1), half_of(x, 0));
}

void ComposedBackend::gated_add(View y, View x, View gate, View h) {
  const Tensor share = temporary(*this, h.shape);
  binary(Binary::mul, share, h, beside_rows(gate, h.shape));
  binary(Binary::add, y, x, share);
}

void ComposedBackend::gated_add_norm(const GatedSum& sum, const NormArgs& norm) {
  gated_add(norm.x, sum.x, sum.gate, sum.h);
  layer_norm(norm);
}

void ComposedBackend::gated_add_backward(View dh, View dgate, View dy, View gate, View h) {
  if (dgate) {
    const Tensor product = temporary(*this, h.shape);
    binary(Binary::mul, product, h, dy);
    const int64_t batch = h.shape[0], width = h.dim(-1), rows = h.numel() / std::max<int64_t>(batch * width, 1);
    sum({dgate.data, dgate.dtype, {batch, 1, width}, {dgate.stride[0], 0, dgate.stride[1]}},
        reshaped(product, {batch, rows, width}));
  }
  if (dh) binary(Binary::mul, dh, dy, beside_rows(gate, dy.shape));
}

void ComposedBackend::qk_norm_rope(const QkNormRopeArgs& a) {
  for (const int which : {0, 1}) {
    const View y = heads_of(a.y, which), norm = which == 0 ? a.q_norm : a.k_norm;
    if (norm)
      rms_norm({.y = y, .x = heads_of(a.x, which), .w = norm, .eps = a.eps});
    else
      copy(y, heads_of(a.x, which));
    if (a.cos) rope(y, y, a.cos, a.sin, RopePairs::neighbours, false);
  }
  copy(heads_of(a.y, 2), heads_of(a.x, 2));
}

void ComposedBackend::qk_norm_rope_backward(const QkNormRopeArgs& a, const QkNormRopeGradients& g) {
  for (const int which : {0, 1}) {
    const View x = heads_of(a.x, which), dx = heads_of(g.dx, which), norm = which == 0 ? a.q_norm : a.k_norm;
    const Tensor turned = temporary(*this, x.shape, g.dy.dtype);
    if (a.cos)
      rope(turned, heads_of(g.dy, which), a.cos, a.sin, RopePairs::neighbours, true);
    else
      copy(turned, heads_of(g.dy, which));
    if (!norm) {
      copy(dx, turned);
      continue;
    }
    const Tensor y = temporary(*this, x.shape, x.dtype);
    const Tensor rstd = temporary(*this, {x.shape[0], x.shape[1], x.shape[2]});
    const NormArgs args{.y = y, .rstd = rstd, .x = x, .w = norm, .eps = a.eps};
    rms_norm(args);
    rms_norm_backward(args, {.dx = dx, .dw = which == 0 ? g.dq_norm : g.dk_norm, .dy = turned});
  }
  copy(heads_of(g.dx, 2), heads_of(g.dy, 2));
}

void ComposedBackend::rope_into_cache(const RopeIntoCacheArgs& a) {
  const Tensor turned_keys = temporary(*this, a.k.shape, a.k.dtype);
  rope(a.turned, a.q, a.cos, a.sin, a.pairs, false);
  rope(turned_keys, a.k, a.cos, a.sin, a.pairs, false);
  scatter_rows(a.keys, turned_keys, a.rows);
  scatter_rows(a.values, a.v, a.rows);
}

void ComposedBackend::copy_many(const std::vector<Copied>& all, bool add) {
  for (const auto& [y, x] : all) {
    if (add)
      accumulate(y, x, 1);
    else
      copy(y, x);
  }
}

void ComposedBackend::mse(View loss, View a, View b) {
  sum_of_squares(loss, {difference(*this, a, b)});
  affine(loss, loss, float(1.0 / double(a.numel())), 0);
}

void ComposedBackend::mse_backward(View da, View dloss, View a, View b) {
  const Tensor slope = temporary(*this, dloss.shape);
  affine(slope, dloss, float(2.0 / double(a.numel())), 0);
  binary(Binary::mul, da, difference(*this, a, b), expanded(slope, a.shape));
}

}  // namespace wick
