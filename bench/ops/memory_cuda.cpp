// Operations that only move bytes, on the first CUDA device: bytes/s, each byte read and written once, and their share
// of a copy's rate. Rows are 64 MB per tensor; three sets of tensors take turns, so that no cache holds them.
#include <chrono>

#include "ops/op.h"
#include "wick/backend/registry.h"

namespace wick::bench {
namespace {

constexpr int64_t kBytes = int64_t{64} << 20;
constexpr int kSets = 3, kCalls = 30;

Backend* device() {
  static Backend* const found = []() -> Backend* {
    try {
      return &open_backend("cuda");
    } catch (const Error&) {
      return nullptr;
    }
  }();
  return found;
}

Tensor on_device(const Shape& shape, DType dtype = DType::f32) {
  const Tensor drawn = Tensor::empty(shape, DType::f32, device()->memory());
  static uint64_t position = 0;
  device()->fill_normal(drawn, 0, 0, position++ << 32);
  if (dtype == DType::f32) return drawn;
  Tensor x = Tensor::empty(shape, dtype, device()->memory());
  device()->copy(x, drawn);
  return x;
}

// Seconds per call, over many calls call(0), call(1) ... between two waits for the device.
template <class F>
double seconds_of(const F& call) {
  static const Tensor flag = on_device({1});
  const auto wait = [] { benchmark::DoNotOptimize(flag.item()); };
  wait();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call(i % kSets);
  wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCalls;
}

struct Set {
  Tensor a, b, y;
};
std::vector<Set> sets_of(const Shape& shape, DType dtype) {
  std::vector<Set> sets;
  for (int i = 0; i < kSets; ++i)
    sets.push_back({on_device(shape, dtype), on_device(shape, dtype), on_device(shape, dtype)});
  return sets;
}

double copy_rate() {
  static const double rate = [] {
    const auto sets = sets_of({kBytes / 4}, DType::f32);
    const auto copy = [&](int i) { device()->copy(sets[size_t(i)].y, sets[size_t(i)].a); };
    seconds_of(copy);
    return 2 * double(kBytes) / seconds_of(copy);
  }();
  return rate;
}

template <class F>
void measure(benchmark::State& state, double bytes, const F& call) {
  seconds_of(call);
  double seconds = 0;
  for (auto _ : state) {
    seconds = seconds_of(call);
    state.SetIterationTime(seconds);
  }
  state.counters["bytes/s"] = bytes / seconds;
  state.counters["of_copy"] = bytes / seconds / copy_rate();
}

// op(set) reads and writes `tensors` whole tensors.
template <class F>
void rows(benchmark::State& state, DType dtype, double tensors, const F& op) {
  if (!device()) return state.SkipWithError("no CUDA device");
  const int64_t columns = 5120, height = kBytes / int64_t(size_of(dtype)) / columns;
  const auto sets = sets_of({height, columns}, dtype);
  measure(state, tensors * double(height * columns) * double(size_of(dtype)), [&](int i) { op(sets[size_t(i)]); });
}

void copy(benchmark::State& state, DType dtype) {
  rows(state, dtype, 2, [](const Set& s) { device()->copy(s.y, s.a); });
}
void transpose(benchmark::State& state, DType dtype) {
  rows(state, dtype, 2, [](const Set& s) {
    const int64_t height = s.a.dim(0), width = s.a.dim(1);
    device()->copy(s.y.window({width, height}, {height, 1}), s.a.window({width, height}, {1, width}));
  });
}
void add(benchmark::State& state, DType dtype) {
  rows(state, dtype, 3, [](const Set& s) { device()->binary(Binary::add, s.y, s.a, s.b); });
}
void add_row(benchmark::State& state, DType dtype) {  // the same to each
  rows(state, dtype, 2, [](const Set& s) { device()->binary(Binary::add, s.y, s.a, s.b.window(s.a.shape(), {0, 1})); });
}
void silu(benchmark::State& state, DType dtype) {
  rows(state, dtype, 2, [](const Set& s) { device()->unary(Unary::silu, s.y, s.a); });
}
void silu_backward(benchmark::State& state, DType dtype) {
  rows(state, dtype, 3, [](const Set& s) { device()->unary_backward(Unary::silu, s.y, s.a, s.b); });
}
void geglu(benchmark::State& state, DType dtype) {
  rows(state, dtype, 1.5, [](const Set& s) {
    const int64_t height = s.a.dim(0), width = s.a.dim(1) / 2;
    device()->geglu(s.y.window({height, width}, {width, 1}), s.a);
  });
}
void sum_to_row(benchmark::State& state, DType dtype) {
  rows(state, dtype, 1, [](const Set& s) { device()->sum(s.y.window({1, s.y.dim(1)}, s.y.stride()), s.a); });
}

// The factors of a LoRA on the 722 linears of SDXL's transformers.
std::vector<Shape> sdxl_factors(int64_t rank) {
  std::vector<Shape> shapes;
  const auto module = [&](int64_t in, int64_t out) { shapes.insert(shapes.end(), {{rank, in}, {out, rank}}); };
  const auto level = [&](int64_t width, int transformers, int layers) {
    for (int i = 0; i < 2 * transformers; ++i) module(width, width);  // into and out of a transformer
    for (int i = 0; i < layers; ++i) {
      for (int k = 0; k < 6; ++k) module(width, width);  // self attention; queries and output of cross attention
      for (int k = 0; k < 2; ++k) module(2048, width);   // its keys and values
      module(width, 8 * width);
      module(4 * width, width);
    }
  };
  level(640, 5, 10);
  level(1280, 6, 60);
  return shapes;
}

// The norm and the update. `copies` are the 16-bit parameters that kernels compute with.
void adamw_step(benchmark::State& state, bool copies) {
  if (!device()) return state.SkipWithError("no CUDA device");
  std::vector<Tensor> tensors;
  std::vector<OptimizerSlot> slots;
  std::vector<View> grads;
  double bytes = 0;
  const auto keep = [&](const Tensor& t) { return tensors.emplace_back(t).view(); };
  for (const Shape& shape : sdxl_factors(32)) {
    const View v = keep(on_device(shape));
    device()->unary(Unary::square, v, v);
    slots.push_back({keep(on_device(shape)), keep(on_device(shape)), {keep(on_device(shape)), v}});
    if (copies) slots.back().copy = keep(on_device(shape, DType::bf16));
    grads.push_back(slots.back().grad);
    bytes += double(shape.numel()) * (copies ? 34 : 32);  // the gradients count twice
  }
  const Tensor scalars = Tensor::of(std::vector<float>{1e-4f, 1, 1, 0, 0, 1, 0, 0}, {kStepScalars}, device()->memory());
  measure(state, bytes, [&](int) {
    device()->sum_of_squares(scalars.window({1}, {1}, kSumOfSquares), grads);
    device()->optimizer_step(slots, {.max_grad_norm = 1}, scalars);
  });
}

void medians(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Iterations(1)->Repetitions(11)->ReportAggregatesOnly()->Unit(benchmark::kMicrosecond);
}

#define WICK_BENCH_ROW(op)                                     \
  BENCHMARK_CAPTURE(op, cuda_f32, DType::f32)->Apply(medians); \
  BENCHMARK_CAPTURE(op, cuda_bf16, DType::bf16)->Apply(medians)
WICK_BENCH_ROW(copy);
WICK_BENCH_ROW(transpose);
WICK_BENCH_ROW(add);
WICK_BENCH_ROW(add_row);
WICK_BENCH_ROW(silu);
WICK_BENCH_ROW(silu_backward);
WICK_BENCH_ROW(geglu);
WICK_BENCH_ROW(sum_to_row);
BENCHMARK_CAPTURE(adamw_step, cuda_f32, false)->Apply(medians);
BENCHMARK_CAPTURE(adamw_step, cuda_bf16_copies, true)->Apply(medians);

}  // namespace
}  // namespace wick::bench
