// 3x3 convolutions, one direction at a time. Arguments: batch, side, input channels, output channels, stride.
#include "ops/op.h"

namespace wick::bench {
namespace {

struct Layer {
  int64_t batch, side, in, out;
  Conv2d conv;
  Tensor x = activation({batch, side, side, in}), w = activation({out, 3, 3, in}), bias = normal({out});
  Tensor y = conv2d(x, w, bias, conv);
  Tensor dy = activation(y.shape()), dw = normal(w.shape()), dbias = normal({out});

  explicit Layer(const benchmark::State& s)
      : batch(s.range(0)), side(s.range(1)), in(s.range(2)), out(s.range(3)), conv{int(s.range(4)), 1, 1, 1, 1} {}
};

template <class F>
void time(benchmark::State& state, const F& f) {
  const Layer l(state);
  repeat(state, [&] { f(l); });
  const double flops = 18.0 * double(l.dy.numel()) * double(l.in);
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void conv_forward(benchmark::State& state) {
  time(state, [](const Layer& l) { l.y.backend().conv2d(l.y, l.x, l.w, l.bias, /*added=*/{}, l.conv); });
}

void conv_backward_input(benchmark::State& state) {
  time(state, [](const Layer& l) { l.y.backend().conv2d_backward_input(l.x, l.dy, l.w, l.conv); });
}

void conv_backward_weight(benchmark::State& state) {
  time(state, [](const Layer& l) { l.y.backend().conv2d_backward_weight(l.dw, l.dbias, l.dy, l.x, l.conv); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"batch", "side", "in", "out", "stride"});
  b->Args({1, 32, 160, 160, 1})->Args({1, 16, 320, 320, 1})->Args({1, 8, 640, 640, 1})->Args({1, 8, 1280, 640, 1});
  b->Args({1, 32, 160, 160, 2})->Args({1, 32, 4, 160, 1})->Args({1, 32, 160, 4, 1})->Args({1, 64, 320, 320, 1});
  b->Args({4, 16, 32, 32, 1})->Args({4, 8, 48, 48, 1})->Args({4, 4, 64, 64, 1});
  b->Args({1, 128, 320, 320, 1})->Args({1, 64, 640, 640, 1})->Args({1, 32, 1280, 1280, 1});  // SDXL at 1024 x 1024
  b->Args({1, 128, 4, 320, 1})->Args({1, 128, 320, 4, 1})->Args({1, 128, 320, 320, 2});
  b->Unit(benchmark::kMicrosecond)->UseRealTime()->MinWarmUpTime(0.05);
}

BENCHMARK(conv_forward)->Apply(shapes);
BENCHMARK(conv_backward_input)->Apply(shapes);
BENCHMARK(conv_backward_weight)->Apply(shapes);

}  // namespace
}  // namespace wick::bench
