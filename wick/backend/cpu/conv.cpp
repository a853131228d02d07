// Convolutions, by oneDNN. Images are [B, H, W, C], weights [O, KH, KW, I]; oneDNN names the same data by dims
// [B, C, H, W] and [O, I, KH, KW] with strides. It wants weights in blocks of output channels, so they are reordered on
// every call: their owner may have changed them since, and that takes little of the time except for tiny images.
//
// Threads share the images of a batch, or bands of rows of each image; each is a convolution of oneDNN's on one thread.
// The bands depend on the shape alone, and so do all bits.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
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

// A convolution by the shapes of its tensors.
struct Problem {
  Shape x, y, w;
  Conv2d conv;
  bool bias = false;

  double flops() const { return 2.0 * double(y.numel()) * double(w.numel() / w[0]); }
  int64_t kernel() const { return w[1]; }
  using Key = std::array<int64_t, 18>;
  Key key() const {
    Key key{conv.stride, conv.top, conv.left, conv.bottom, conv.right, bias};
    auto to = key.begin() + 6;
    for (const Shape& shape : {x, y, w}) to = std::copy(shape.begin(), shape.end(), to);
    return key;
  }
};

// Some images, or some rows of one: a convolution in itself, with padding where the image ends.
struct Band {
  int64_t image, images;
  int64_t x_row, x_rows, y_row, y_rows;
  int top, bottom;

  Problem of(const Problem& whole) const {
    Problem own = whole;
    own.x[0] = own.y[0] = images;
    own.x[1] = x_rows;
    own.y[1] = y_rows;
    own.conv.top = top;
    own.conv.bottom = bottom;
    return own;
  }
};

// The band that makes rows [begin, end) of an image of y.
Band band_of_output(const Problem& p, int64_t image, int64_t begin, int64_t end) {
  const int64_t first = begin * p.conv.stride - p.conv.top, last = (end - 1) * p.conv.stride - p.conv.top + p.kernel();
  const int64_t x_row = std::max<int64_t>(0, first), x_end = std::min(last, p.x[1]);
  return {image, 1, x_row, x_end - x_row, begin, end - begin, int(x_row - first), int(last - x_end)};
}

// The band that rows [begin, end) of an image of x contribute to, for their gradient.
Band band_of_input(const Problem& p, int64_t image, int64_t begin, int64_t end) {
  const int64_t stride = p.conv.stride, padded = begin + p.conv.top;
  const int64_t first = std::max<int64_t>(0, (padded - p.kernel() + stride) / stride);
  const int64_t last = std::min(p.y[1], (end - 1 + p.conv.top) / stride + 1);
  const int64_t top = padded - first * stride, reach = (last - first - 1) * stride + p.kernel();
  return {image,    1,
          begin,    end - begin,
          first,    last - first,
          int(top), int(std::max<int64_t>(0, reach - top - (end - begin)))};
}

// Bands, about `wanted` in all: whole images where there are enough of them, else at least kFewestRows of an image's
// rows: of y, or of x for its gradient. A band must have rows of both, as it has where the convolution is as a model's.
std::vector<Band> bands_of(const Problem& p, bool of_input, int64_t wanted) {
  constexpr int64_t kFewestRows = 4;
  const bool cuts =
      p.conv.stride <= std::min<int64_t>(p.kernel(), 2) && std::max(p.conv.top, p.conv.bottom) < p.kernel();
  const int64_t images = p.x[0], rows = of_input ? p.x[1] : p.y[1], chunks = std::min(images, wanted);
  const int64_t most = cuts ? std::max<int64_t>(1, rows / kFewestRows) : 1,
                bands = std::clamp<int64_t>(wanted / images, 1, most);
  const int64_t each = (rows + bands - 1) / bands;
  std::vector<Band> all;
  for (int64_t i = 0; bands == 1 && i < chunks; ++i) {
    const int64_t first = images * i / chunks, count = images * (i + 1) / chunks - first;
    all.push_back({first, count, 0, p.x[1], 0, p.y[1], p.conv.top, p.conv.bottom});
  }
  for (int64_t image = 0; bands > 1 && image < images; ++image)
    for (int64_t row = 0; row < rows; row += each)
      all.push_back((of_input ? band_of_input : band_of_output)(p, image, row, std::min(row + each, rows)));
  return all;
}

// [O, KH, KW, I] as they are given.
memory::desc given(const Shape& w) {
  return {{w[0], w[3], w[1], w[2]}, kF32, {w[1] * w[2] * w[3], 1, w[2] * w[3], w[3]}};
}

// A problem as oneDNN describes it, with weights in `layout`, or as oneDNN prefers them.
struct Descriptions {
  memory::desc x, y, w, bias;
  memory::dims strides, before, after;
  bool with_bias;

  Descriptions(const Problem& p, const std::optional<memory::desc>& layout)
      : x(describe(p.x)),
        y(describe(p.y)),
        w(layout ? *layout : memory::desc({p.w[0], p.w[3], p.w[1], p.w[2]}, kF32, memory::format_tag::any)),
        bias({p.w[0]}, kF32, memory::format_tag::a),
        strides{p.conv.stride, p.conv.stride},
        before{p.conv.top, p.conv.left},
        after{p.conv.bottom, p.conv.right},
        with_bias(p.bias) {}

  static memory::desc describe(const Shape& s) { return {{s[0], s[3], s[1], s[2]}, kF32, memory::format_tag::nhwc}; }

  template <class Primitive>
  typename Primitive::primitive_desc choose() const {
    if constexpr (std::is_same_v<Primitive, Forward>) {
      const auto kind = dnnl::prop_kind::forward_training;
      const auto desc = with_bias ? Forward::desc(kind, kDirect, x, w, bias, y, strides, before, after)
                                  : Forward::desc(kind, kDirect, x, w, y, strides, before, after);
      return {desc, scratchpad_attributes(), cpu_engine()};
    } else if constexpr (std::is_same_v<Primitive, BackwardInput>) {
      const BackwardInput::desc desc(kDirect, x, w, y, strides, before, after);
      return {desc, scratchpad_attributes(), cpu_engine(), choose<Forward>()};
    } else {
      const auto desc = with_bias ? BackwardWeight::desc(kDirect, x, w, bias, y, strides, before, after)
                                  : BackwardWeight::desc(kDirect, x, w, y, strides, before, after);
      return {desc, scratchpad_attributes(), cpu_engine(), choose<Forward>()};
    }
  }
};

// A primitive with its scratchpad.
struct Step {
  dnnl::primitive primitive;
  memory::desc scratchpad;

  void run(Arguments arguments) const { execute(primitive, scratchpad, std::move(arguments)); }
};

Step reorder_step(const memory::desc& from, const memory::desc& to) {
  const dnnl::reorder::primitive_desc chosen(cpu_engine(), from, cpu_engine(), to, scratchpad_attributes());
  return {dnnl::reorder(chosen), chosen.scratchpad_desc()};
}

// How a problem is computed: the primitives of its bands, of which all bands of one shape share one, and the layout of
// weights.
template <class Primitive>
class Plan {
 public:
  explicit Plan(const Problem& p) {
    constexpr double kLargeBand = 4e6;                     // flops: 100 us of a core, about
    constexpr int64_t kFewestPixels = 64, kMostSums = 16;  // so that a sum of gradients costs little beside its terms
    int64_t wanted = chunks_for_flops(p.flops(), kLargeBand);
    if (std::is_same_v<Primitive, BackwardWeight>)
      wanted = std::clamp<int64_t>(p.y.numel() / p.y[3] / kFewestPixels, 1, std::min(kMostSums, wanted));
    prepare_onednn();
    std::map<Problem::Key, size_t> met;
    std::optional<memory::desc> layout;
    for (const Band& band : bands_of(p, std::is_same_v<Primitive, BackwardInput>, wanted)) {
      const Problem own = band.of(p);
      const auto [at, is_new] = met.emplace(own.key(), kinds_.size());
      if (is_new) add_kind(own, layout);
      bands_.push_back({at->second, (band.image * p.x[1] + band.x_row) * p.x[2] * p.x[3],
                        (band.image * p.y[1] + band.y_row) * p.y[2] * p.y[3]});
    }
    layout_ = *layout;
    if (layout_ == given(p.w)) return;
    reorder_ = std::is_same_v<Primitive, BackwardWeight> ? reorder_step(layout_, given(p.w))
                                                         : reorder_step(given(p.w), layout_);
  }

  const memory::desc& layout() const { return layout_; }
  const std::optional<Step>& reorder() const { return reorder_; }  // between weights as given and the layout
  int64_t bands() const { return int64_t(bands_.size()); }

  // Runs each band, shared among threads. arguments(x, y, bias, offset in x, offset in y, number of the band) gets
  // descriptors.
  template <class ArgumentsOf>
  void run(const ArgumentsOf& arguments) const {
    parallel_tasks(bands(), [&](int64_t i) {
      const Part& part = bands_[size_t(i)];
      const Kind& kind = kinds_[part.kind];
      kind.step.run(arguments(kind.descriptions, part.x, part.y, i));
    });
  }

 private:
  struct Kind {
    Descriptions descriptions;
    Step step;
  };
  struct Part {
    size_t kind;
    int64_t x, y;  // offsets in floats
  };

  void add_kind(const Problem& p, std::optional<memory::desc>& layout) {
    const Descriptions d(p, layout);
    const auto chosen = d.choose<Primitive>();
    if constexpr (std::is_same_v<Primitive, BackwardWeight>)
      layout = chosen.diff_weights_desc();
    else
      layout = chosen.weights_desc();
    kinds_.push_back({d, {Primitive(chosen), chosen.scratchpad_desc()}});
  }

  std::vector<Kind> kinds_;
  std::vector<Part> bands_;
  memory::desc layout_;
  std::optional<Step> reorder_;
};

// Plans are kept: to choose a primitive again takes longer than a small convolution.
template <class Primitive>
std::shared_ptr<const Plan<Primitive>> plan_for(const Problem& problem) {
  constexpr size_t kMostPlans = 512;
  static std::mutex mutex;
  static auto& plans = *new std::map<Problem::Key, std::shared_ptr<const Plan<Primitive>>>;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = plans.find(problem.key()); found != plans.end()) return found->second;
  }
  const auto made = std::make_shared<const Plan<Primitive>>(problem);
  const std::lock_guard lock(mutex);
  if (plans.size() >= kMostPlans) plans.clear();
  plans[problem.key()] = made;
  return made;
}

// Weights for a plan, in its layout.
class Weights {
 public:
  template <class Primitive>
  Weights(const View& w, const Plan<Primitive>& plan) : dense_(w), layout_(plan.layout()), data_(dense_.data()) {
    reorder(plan.reorder(), given(w.shape));
  }

  memory in_layout() const { return memory_over(layout_, data_); }

 private:
  void reorder(const std::optional<Step>& step, const memory::desc& from) {
    if (!step) return;
    blocked_ = Scratch(int64_t(layout_.get_size() / sizeof(float)));
    step->run({{DNNL_ARG_FROM, memory_over(from, data_)}, {DNNL_ARG_TO, memory_over(layout_, blocked_.data())}});
    data_ = blocked_.data();
  }

  DenseInput dense_;
  memory::desc layout_;
  const float* data_;
  Scratch blocked_;
};

// The weights of the convolution that takes dy to dx where the stride is 1: the channels' roles swapped, and each
// kernel turned by half a circle. [I, KH, KW, O].
class TurnedWeights {
 public:
  explicit TurnedWeights(const View& w)
      : memory_(w.numel()), view_(contiguous_view(memory_.data(), {w.shape[3], w.shape[1], w.shape[2], w.shape[0]})) {
    for (int64_t kh = 0; kh < w.shape[1]; ++kh)
      for (int64_t kw = 0; kw < w.shape[2]; ++kw)
        cpu_backend().copy(tap(view_, kh, kw), transposed(tap(w, w.shape[1] - 1 - kh, w.shape[2] - 1 - kw), 0, 3));
  }
  const View& view() const { return view_; }

 private:
  static View tap(const View& w, int64_t kh, int64_t kw) { return part_of(part_of(w, 1, kh, 1), 2, kw, 1); }

  Scratch memory_;
  View view_;
};

void run_forward(const View& y, const View& x, const View& w, const Conv2d& conv, const View& bias) {
  const auto plan = plan_for<Forward>({x.shape, y.shape, w.shape, conv, bool(bias)});
  const DenseInput image(x), shift(bias);
  const DenseOutput result(y);
  const Weights weights(w, *plan);
  const memory blocked = weights.in_layout();
  plan->run([&](const Descriptions& d, int64_t at_x, int64_t at_y, int64_t) {
    Arguments arguments{{DNNL_ARG_SRC, memory_over(d.x, image.data() + at_x)},
                        {DNNL_ARG_WEIGHTS, blocked},
                        {DNNL_ARG_DST, memory_over(d.y, result.data() + at_y)}};
    if (bias) arguments.emplace(DNNL_ARG_BIAS, memory_over(d.bias, shift.data()));
    return arguments;
  });
  result.finish();
}

// dx as a forward convolution of dy, which oneDNN does faster than its own backward.
void backward_input_as_forward(const View& dx, const View& dy, const View& w, const Conv2d& c) {
  const int kh = int(w.shape[1]), kw = int(w.shape[2]);
  const Conv2d mirrored{1, kh - 1 - c.top, kw - 1 - c.left, kh - 1 - c.bottom, kw - 1 - c.right};
  run_forward(dx, dy, TurnedWeights(w).view(), mirrored, {});
}

void backward_input(const View& dx, const View& dy, const View& w, const Conv2d& conv) {
  const auto plan = plan_for<BackwardInput>({dx.shape, dy.shape, w.shape, conv});
  const DenseInput grad(dy);
  const DenseOutput result(dx);
  const Weights weights(w, *plan);
  const memory blocked = weights.in_layout();
  plan->run([&](const Descriptions& d, int64_t at_x, int64_t at_y, int64_t) {
    return Arguments{{DNNL_ARG_DIFF_DST, memory_over(d.y, grad.data() + at_y)},
                     {DNNL_ARG_WEIGHTS, blocked},
                     {DNNL_ARG_DIFF_SRC, memory_over(d.x, result.data() + at_x)}};
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

// Each band has a sum of its own, added up in order.
void backward_weight(const View& dw, const View& dbias, const View& dy, const View& x, const Conv2d& conv) {
  const auto plan = plan_for<BackwardWeight>({x.shape, dy.shape, dw.shape, conv, bool(dbias)});
  const memory::desc& layout = plan->layout();
  const DenseInput grad(dy), image(x);
  const DenseOutput result(dw);
  const int64_t count = plan->bands(), floats = int64_t(layout.get_size() / sizeof(float)), outputs = dw.shape[0];
  const Scratch sums(count * floats), bias_sums(count * outputs);
  plan->run([&](const Descriptions& d, int64_t at_x, int64_t at_y, int64_t i) {
    Arguments arguments{{DNNL_ARG_SRC, memory_over(d.x, image.data() + at_x)},
                        {DNNL_ARG_DIFF_DST, memory_over(d.y, grad.data() + at_y)},
                        {DNNL_ARG_DIFF_WEIGHTS, memory_over(layout, sums.data() + i * floats)}};
    if (dbias) arguments.emplace(DNNL_ARG_DIFF_BIAS, memory_over(d.bias, bias_sums.data() + i * outputs));
    return arguments;
  });
  add_up(sums, count, floats);
  if (plan->reorder())
    plan->reorder()->run({{DNNL_ARG_FROM, memory_over(layout, sums.data())},
                          {DNNL_ARG_TO, memory_over(given(dw.shape), result.data())}});
  else
    std::memcpy(result.data(), sums.data(), size_t(floats) * sizeof(float));
  result.finish();
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
    run_forward(y, x, w, conv, bias);
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
