// Convolutions, by oneDNN. Images are [B, H, W, C], weights [O, KH, KW, I]; oneDNN names the same data by dims
// [B, C, H, W] and [O, I, KH, KW] with strides. It wants weights in blocks of output channels, so they are reordered on
// every call: their owner may have changed them since, and that takes little of the time except for tiny images.
//
// Threads share the images of a batch, or bands of rows of each image; each is a convolution of oneDNN's on one thread.
// The bands depend on the shape alone, and so do all bits.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "wick/backend/cpu/cpu.h"
#include "wick/backend/cpu/dense.h"
#include "wick/backend/cpu/gemm.h"
#include "wick/backend/cpu/onednn.h"
#include "wick/backend/cpu/parallel.h"

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

// A chunk of a batched convolution: some images, or some rows of one. It is a convolution in itself, with padding where
// the image ends.
struct Band {
  View x, y;
  Conv2d conv;

  Descriptions describe(const View& w) const { return {x, y, w, conv}; }
  bool is_like(const Band& other) const {
    return x.shape == other.x.shape && y.shape == other.y.shape && conv.top == other.conv.top &&
           conv.bottom == other.conv.bottom;
  }
};

View rows_of(const View& v, int64_t image, int64_t begin, int64_t end) {
  return part_of(part_of(v, 0, image, 1), 1, begin, end - begin);
}

// The band that makes rows [begin, end) of an image of y.
Band band_of_output(const View& x, const View& y, int64_t kernel, const Conv2d& c, int64_t image, int64_t begin,
                    int64_t end) {
  const int64_t first = begin * c.stride - c.top, last = (end - 1) * c.stride - c.top + kernel, height = x.shape[1];
  Conv2d own = c;
  own.top = int(std::max<int64_t>(0, -first));
  own.bottom = int(std::max<int64_t>(0, last - height));
  return {rows_of(x, image, std::max<int64_t>(0, first), std::min(last, height)), rows_of(y, image, begin, end), own};
}

// The band that rows [begin, end) of an image of x contribute to, for their gradient.
Band band_of_input(const View& x, const View& y, int64_t kernel, const Conv2d& c, int64_t image, int64_t begin,
                   int64_t end) {
  const int64_t first = std::max<int64_t>(0, (begin + c.top - kernel + c.stride) / c.stride);
  const int64_t last = std::min<int64_t>(y.shape[1], (end - 1 + c.top) / c.stride + 1);
  Conv2d own = c;
  own.top = int(begin + c.top - first * c.stride);
  own.bottom = int(std::max<int64_t>(0, (last - first - 1) * c.stride + kernel - own.top - (end - begin)));
  return {rows_of(x, image, begin, end), rows_of(y, image, first, last), own};
}

// Chunks, about `wanted` in all: whole images where there are enough of them, else bands of at least kFewestRows of an
// image's `rows`. A band must have rows of both x and y, which it has where the convolution is as a model's.
template <class BandOf>
std::vector<Band> bands_of(const View& x, const View& y, int64_t kernel, const Conv2d& conv, int64_t rows,
                           int64_t wanted, const BandOf& band_of) {
  constexpr int64_t kFewestRows = 4;
  const bool cuts = conv.stride <= std::min<int64_t>(kernel, 2) && std::max(conv.top, conv.bottom) < kernel;
  const int64_t images = x.shape[0];
  const int64_t bands = std::clamp<int64_t>(wanted / images, 1, cuts ? std::max<int64_t>(1, rows / kFewestRows) : 1);
  const int64_t each = (rows + bands - 1) / bands, chunks = std::min(images, wanted);
  std::vector<Band> all;
  for (int64_t i = 0; bands == 1 && i < chunks; ++i) {
    const int64_t first = images * i / chunks, count = images * (i + 1) / chunks - first;
    all.push_back({part_of(x, 0, first, count), part_of(y, 0, first, count), conv});
  }
  for (int64_t image = 0; bands > 1 && image < images; ++image)
    for (int64_t row = 0; row < rows; row += each) all.push_back(band_of(image, row, std::min(row + each, rows)));
  return all;
}

// The bands of a convolution of one kind, `Primitive`, each with its weights in `layout`. choose(descriptions) is a
// descriptor of oneDNN's. Bands of one kind, which have one shape, share a primitive, since making one takes as long as
// a small band.
template <class Primitive>
class Bands {
 public:
  template <class Choose>
  Bands(std::vector<Band> bands, const View& w, const Choose& choose) : bands_(std::move(bands)) {
    for (const Band& band : bands_) {
      const auto like = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& k) { return k.of.is_like(band); });
      kind_of_.push_back(size_t(like - kinds_.begin()));
      if (like != kinds_.end()) continue;
      Descriptions d = band.describe(w);
      if (layout_) d.w = layout_;
      prepare_onednn();
      const auto chosen = choose(d);
      if (!layout_) layout_ = layout_of(chosen);
      kinds_.push_back({band, d, Primitive(chosen), chosen.scratchpad_desc()});
    }
  }

  const memory::desc& layout() const { return layout_; }
  int64_t count() const { return int64_t(bands_.size()); }

  // Runs each band with arguments(band, descriptions, its number), shared among threads.
  template <class ArgumentsOf>
  void run(const ArgumentsOf& arguments) const {
    parallel_tasks(count(), [&](int64_t i) {
      const Kind& kind = kinds_[kind_of_[size_t(i)]];
      execute(kind.primitive, kind.scratchpad, arguments(bands_[size_t(i)], kind.descriptions, i));
    });
  }

 private:
  struct Kind {
    Band of;
    Descriptions descriptions;
    Primitive primitive;
    memory::desc scratchpad;
  };
  static memory::desc layout_of(const BackwardWeight::primitive_desc& chosen) { return chosen.diff_weights_desc(); }
  static memory::desc layout_of(const auto& chosen) { return chosen.weights_desc(); }

  std::vector<Band> bands_;
  memory::desc layout_;
  std::vector<Kind> kinds_;
  std::vector<size_t> kind_of_;  // of each band
};

View to_read(const DenseInput& input, const View& v) {
  return contiguous_view(const_cast<float*>(input.data()), v.shape);
}

double flops_of(const View& y, const View& w) { return 2.0 * double(y.numel()) * double(w.numel() / w.shape[0]); }

constexpr double kLargeBand = 4e6;  // flops: 100 us of a core, about

// `turned`: the weights of the convolution that takes dy to dx.
void run_forward(const View& y, const View& x, const View& w, const Conv2d& conv, bool turned, const View& bias) {
  const DenseInput image(x), shift(bias);
  const DenseOutput result(y);
  const View in = to_read(image, x), out = contiguous_view(result.data(), y.shape);
  const View sizes = turned ? View{nullptr, DType::f32, {w.shape[3], w.shape[1], w.shape[2], w.shape[0]}, {}} : w;
  const auto band_of = [&](auto... rows) { return band_of_output(in, out, sizes.shape[1], conv, rows...); };
  const Bands<Forward> bands(
      bands_of(in, out, sizes.shape[1], conv, y.shape[1], chunks_for_flops(flops_of(y, sizes), kLargeBand), band_of),
      sizes, [&](const Descriptions& d) { return d.forward(bool(bias)); });
  Weights weights(w);
  const memory blocked = turned ? weights.turned_in_layout(bands.layout()) : weights.in_layout(bands.layout());
  bands.run([&](const Band& band, const Descriptions& d, int64_t) {
    Arguments arguments{{DNNL_ARG_SRC, memory_over(d.x, band.x.data)},
                        {DNNL_ARG_WEIGHTS, blocked},
                        {DNNL_ARG_DST, memory_over(d.y, band.y.data)}};
    if (bias) arguments.emplace(DNNL_ARG_BIAS, memory_over(d.bias, shift.data()));
    return arguments;
  });
  result.finish();
}

// dx as a forward convolution of dy, which oneDNN does faster than its own backward.
void backward_input_as_forward(const View& dx, const View& dy, const View& w, const Conv2d& c) {
  const int kh = int(w.shape[1]), kw = int(w.shape[2]);
  const Conv2d mirrored{1, kh - 1 - c.top, kw - 1 - c.left, kh - 1 - c.bottom, kw - 1 - c.right};
  run_forward(dx, dy, w, mirrored, true, {});
}

void backward_input(const View& dx, const View& dy, const View& w, const Conv2d& conv) {
  const DenseInput grad(dy);
  const DenseOutput result(dx);
  const View in = contiguous_view(result.data(), dx.shape), out = to_read(grad, dy);
  const auto band_of = [&](auto... rows) { return band_of_input(in, out, w.shape[1], conv, rows...); };
  const Bands<BackwardInput> bands(
      bands_of(in, out, w.shape[1], conv, dx.shape[1], chunks_for_flops(flops_of(dy, w), kLargeBand), band_of), w,
      [](const Descriptions& d) { return d.backward_input(); });
  Weights weights(w);
  const memory blocked = weights.in_layout(bands.layout());
  bands.run([&](const Band& band, const Descriptions& d, int64_t) {
    return Arguments{{DNNL_ARG_DIFF_DST, memory_over(d.y, band.y.data)},
                     {DNNL_ARG_WEIGHTS, blocked},
                     {DNNL_ARG_DIFF_SRC, memory_over(d.x, band.x.data)}};
  });
  result.finish();
}

// x[0] += x[1] + x[2] + ..., each of n floats, in this order.
void add_up(const Scratch& x, int64_t count, int64_t n) {
  parallel_for(n, n * count, [&](int64_t begin, int64_t end) {
    for (int64_t k = 1; k < count; ++k)
      for (int64_t i = begin; i < end; ++i) x.data()[i] += x.data()[k * n + i];
  });
}

// Each chunk has a sum of its own, added up in order.
void backward_weight(const View& dw, const View& dbias, const View& dy, const View& x, const Conv2d& conv) {
  constexpr int64_t kFewestPixels = 64, kMostParts = 16;  // so that a sum costs little beside its terms
  const DenseInput grad(dy), image(x);
  const View in = to_read(image, x), out = to_read(grad, dy);
  const int64_t pixels = dy.numel() / dy.shape[3];
  const int64_t wanted = std::clamp<int64_t>(pixels / kFewestPixels, 1,
                                             std::min(kMostParts, chunks_for_flops(flops_of(dy, dw), kLargeBand)));
  const auto band_of = [&](auto... rows) { return band_of_output(in, out, dw.shape[1], conv, rows...); };
  const Bands<BackwardWeight> bands(bands_of(in, out, dw.shape[1], conv, dy.shape[1], wanted, band_of), dw,
                                    [&](const Descriptions& d) { return d.backward_weight(bool(dbias)); });
  const memory::desc& layout = bands.layout();
  const int64_t count = bands.count(), floats = int64_t(layout.get_size() / sizeof(float)), outputs = dw.shape[0];
  const Scratch sums(count * floats), bias_sums(count * outputs);
  bands.run([&](const Band& band, const Descriptions& d, int64_t i) {
    Arguments arguments{{DNNL_ARG_SRC, memory_over(d.x, band.x.data)},
                        {DNNL_ARG_DIFF_DST, memory_over(d.y, band.y.data)},
                        {DNNL_ARG_DIFF_WEIGHTS, memory_over(layout, sums.data() + i * floats)}};
    if (dbias) arguments.emplace(DNNL_ARG_DIFF_BIAS, memory_over(d.bias, bias_sums.data() + i * outputs));
    return arguments;
  });
  add_up(sums, count, floats);
  reorder(memory_over(layout, sums.data()), Weights(dw).as_given());
  if (!dbias) return;
  add_up(bias_sums, count, outputs);
  cpu_backend().copy(dbias, contiguous_view(bias_sums.data(), dbias.shape));
}

}  // namespace

void CpuBackend::conv2d(View y, View x, View w, View bias, View added, Conv2d conv) {
  if (y.numel() == 0) return;
  if (is_linear(w, conv))
    linear(y, x, linear_weight(w), bias, {});
  else
    run_forward(y, x, w, conv, false, bias);
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
  backward_input(dx, dy, w, conv);
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
  backward_weight(dw, dbias, dy, x, conv);
}

}  // namespace wick
