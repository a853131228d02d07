// Convolutions, by oneDNN. Images are [B, H, W, C], weights [O, KH, KW, I]; oneDNN names the same data by dims
// [B, C, H, W] and [O, I, KH, KW] with strides. It wants weights in blocks of output channels, so they are reordered on
// every call: their owner may have changed them since, and that takes little of the time except for tiny images.
#include <cstring>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/onednn.h"

namespace wick {

namespace {

using dnnl::memory;
using Forward = dnnl::convolution_forward;
using BackwardInput = dnnl::convolution_backward_data;
using BackwardWeight = dnnl::convolution_backward_weights;

constexpr auto kF32 = memory::data_type::f32;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;

// One call's operands as oneDNN describes them. Weights are in the layout that oneDNN prefers.
struct Descriptions {
  memory::desc x, y, w, bias;
  memory::dims strides, before, after;

  Descriptions(const View& image, const View& output, const View& weight, const Conv2d& c)
      : x(describe(image)),
        y(describe(output)),
        w({weight.shape[0], weight.shape[3], weight.shape[1], weight.shape[2]}, kF32, memory::format_tag::any),
        bias({weight.shape[0]}, kF32, memory::format_tag::a),
        strides{c.stride, c.stride},
        before{c.top, c.left},
        after{c.bottom, c.right} {}

  static memory::desc describe(const View& v) {
    return {{v.shape[0], v.shape[3], v.shape[1], v.shape[2]}, kF32, memory::format_tag::nhwc};
  }

  Forward::primitive_desc forward(bool with_bias) const {
    const auto kind = dnnl::prop_kind::forward_training;
    const auto desc = with_bias ? Forward::desc(kind, kDirect, x, w, bias, y, strides, before, after)
                                : Forward::desc(kind, kDirect, x, w, y, strides, before, after);
    return {desc, scratchpad_attributes(), cpu_engine()};
  }
  BackwardInput::primitive_desc backward_input() const {
    const BackwardInput::desc desc(kDirect, x, w, y, strides, before, after);
    return {desc, scratchpad_attributes(), cpu_engine(), forward(false)};
  }
  BackwardWeight::primitive_desc backward_weight(bool with_bias) const {
    const auto desc = with_bias ? BackwardWeight::desc(kDirect, x, w, bias, y, strides, before, after)
                                : BackwardWeight::desc(kDirect, x, w, y, strides, before, after);
    return {desc, scratchpad_attributes(), cpu_engine(), forward(with_bias)};
  }
};

// Weights [O, KH, KW, I] on their way to or from a layout of oneDNN's.
class Weights {
 public:
  explicit Weights(const View& w) : view_(w) {
    if (w.dtype == DType::f32) return;
    converted_ = Scratch(w.numel());
    view_ = contiguous_view(converted_.data(), w.shape);
    cpu_backend().copy(view_, w);
  }

  memory in_layout(const memory::desc& layout) {
    const memory given = as_given();
    if (given.get_desc() == layout) return given;
    const memory blocked = empty_in_layout(layout);
    reorder(given, blocked);
    return blocked;
  }

  // The weights of the convolution that takes dy to dx where the stride is 1: the channels' roles swapped, and each
  // kernel turned by half a circle. One reorder a tap, because oneDNN knows no negative strides.
  memory turned_in_layout(const memory::desc& layout) {
    const Shape& s = view_.stride;
    const memory blocked = empty_in_layout(layout);
    const memory::dims all = layout.dims(), tap{all[0], all[1], 1, 1};  // [I, O, KH, KW]
    for (int64_t kh = 0; kh < all[2]; ++kh)
      for (int64_t kw = 0; kw < all[3]; ++kw) {
        const float* from = view_.as<float>() + (all[2] - 1 - kh) * s[1] + (all[3] - 1 - kw) * s[2];
        const memory::desc given(tap, kF32, {s[3], s[0], s[1], s[2]});
        const memory::desc to = layout.submemory_desc(tap, {0, 0, kh, kw});
        reorder(memory_over(given, from), memory_over(to, blocked.get_data_handle()));
      }
    return blocked;
  }

  memory as_given() const {
    const Shape &n = view_.shape, &s = view_.stride;
    return memory_over({{n[0], n[3], n[1], n[2]}, kF32, {s[0], s[3], s[1], s[2]}}, view_.data);
  }

  memory empty_in_layout(const memory::desc& layout) {
    blocked_ = Scratch(int64_t(layout.get_size() / sizeof(float)));
    if (layout.data.padded_dims[0] != layout.data.dims[0] || layout.data.padded_dims[1] != layout.data.dims[1])
      std::memset(blocked_.data(), 0, layout.get_size());  // channels that only fill up a block must be zero
    return memory_over(layout, blocked_.data());
  }

 private:
  View view_;
  Scratch converted_, blocked_;
};

// `turned`: the weights of the convolution that takes dy to dx.
void run_forward(const Descriptions& d, const View& y, const View& x, const View& w, bool turned, const View& bias) {
  const auto chosen = d.forward(bool(bias));
  const DenseInput image(x), shift(bias);
  Weights weights(w);
  const DenseOutput result(y);
  const auto layout = chosen.weights_desc();
  Arguments arguments{{DNNL_ARG_SRC, memory_over(d.x, image.data())},
                      {DNNL_ARG_WEIGHTS, turned ? weights.turned_in_layout(layout) : weights.in_layout(layout)},
                      {DNNL_ARG_DST, memory_over(d.y, result.data())}};
  if (bias) arguments.emplace(DNNL_ARG_BIAS, memory_over(d.bias, shift.data()));
  execute<Forward>(chosen, arguments);
  result.finish();
}

// dx as a forward convolution of dy, which oneDNN does faster than its own backward.
void backward_input_as_forward(const View& dx, const View& dy, const View& w, const Conv2d& c) {
  const int kh = int(w.shape[1]), kw = int(w.shape[2]);
  const View swapped{nullptr, DType::f32, {w.shape[3], kh, kw, w.shape[0]}, {}};
  const Conv2d mirrored{1, kh - 1 - c.top, kw - 1 - c.left, kh - 1 - c.bottom, kw - 1 - c.right};
  run_forward({dy, dx, swapped, mirrored}, dx, dy, w, true, {});
}

}  // namespace

void CpuBackend::conv2d(View y, View x, View w, View bias, View added, Conv2d conv) {
  if (y.numel() == 0) return;
  if (is_linear(w, conv))
    linear(y, x, linear_weight(w), bias, {});
  else
    run_forward({x, y, w, conv}, y, x, w, false, bias);
  if (added) binary(Binary::add, y, y, added);
}

void CpuBackend::conv2d_backward_input(View dx, View dy, View w, Conv2d conv) {
  if (dx.numel() == 0) return;
  if (dy.numel() == 0) return fill(dx, 0);
  if (is_linear(w, conv)) {
    const Result product(dx);
    gemm_weight(*product, *Operand(dy), linear_weight(w));
    return product.store();
  }
  const int64_t reach = std::min(w.shape[1], w.shape[2]) - 1;
  if (conv.stride == 1 && std::max({conv.top, conv.left, conv.bottom, conv.right}) <= reach)
    return backward_input_as_forward(dx, dy, w, conv);
  const Descriptions d(dx, dy, w, conv);
  const auto chosen = d.backward_input();
  const DenseInput grad(dy);
  Weights weights(w);
  const DenseOutput result(dx);
  execute<BackwardInput>(chosen, {{DNNL_ARG_DIFF_DST, memory_over(d.y, grad.data())},
                                  {DNNL_ARG_WEIGHTS, weights.in_layout(chosen.weights_desc())},
                                  {DNNL_ARG_DIFF_SRC, memory_over(d.x, result.data())}});
  result.finish();
}

void CpuBackend::conv2d_backward_weight(View dw, View dbias, View dy, View x, Conv2d conv) {
  const bool empty = dy.numel() == 0 || x.numel() == 0;
  if (dbias && (empty || !dw || is_linear(dw, conv)))
    sum(View{dbias.data, dbias.dtype, {1, 1, 1, dbias.shape[0]}, {0, 0, 0, dbias.stride[0]}}, dy);
  if (!dw) return;
  if (empty) return fill(dw, 0);
  if (is_linear(dw, conv)) {
    const Result product(linear_weight(dw));
    gemm(*product, Operand(dy)->t(), *Operand(x));
    return product.store();
  }
  const DenseInput grad(dy), image(x);
  const Descriptions d(x, dy, dw, conv);
  const auto chosen = d.backward_weight(bool(dbias));
  const Scratch grad_bias(dw.shape[0]);
  Weights weights(dw);
  const dnnl::memory blocked = weights.empty_in_layout(chosen.diff_weights_desc());
  Arguments arguments{{DNNL_ARG_SRC, memory_over(d.x, image.data())},
                      {DNNL_ARG_DIFF_DST, memory_over(d.y, grad.data())},
                      {DNNL_ARG_DIFF_WEIGHTS, blocked}};
  if (dbias) arguments.emplace(DNNL_ARG_DIFF_BIAS, memory_over(d.bias, grad_bias.data()));
  execute<BackwardWeight>(chosen, arguments);
  reorder(blocked, weights.as_given());
  if (dbias) copy(dbias, contiguous_view(grad_bias.data(), dbias.shape));
}

}  // namespace wick
