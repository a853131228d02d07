// Norms, softmax, gated activations and rotary positions on a GPU: one line of JSON per row, microseconds (medians of
// graph replays), and the rate at which bytes move relative to a copy:
//   of_copy       each input once and each output once; a copy of 128 MiB
//   counted       inputs that two passes read count twice; the same copy
//   of_like_copy  each input once and each output once; a copy that moves as many bytes
// Several sets of tensors take turns, so that the L2 cache does not hold them from call to call. Arguments name the
// rows wanted, or parts of names.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device_clock.h"

namespace wick::bench {
namespace {

constexpr DType kHalf = DType::bf16, kFull = DType::f32;

// Bytes of a call: each tensor once, and the inputs that a second pass reads again.
struct Moved {
  Moved(double once_bytes, double again_bytes = 0) : once(once_bytes), again(again_bytes) {}
  double once, again;
};

// The shared memory of an H100; group norm reads larger inputs twice, or the part of them that does not fit.
constexpr double kHeldBytes = 27e6;

class Bench {
 public:
  explicit Bench(std::vector<std::string> names) : names_(std::move(names)) {
    constexpr double kBytes = 2 << 27;
    copy_rate_ = kBytes / copy_us(kBytes);
    print("copy 128 MiB", kBytes, copy_us(kBytes));
  }

  Tensor normal(const Shape& shape, DType dtype) { return clock_.normal(shape, dtype); }

  // 32 groups, with SiLU.
  void group_norm(const Shape& shape, DType t) {
    const Tensors x = several(shape, t, 3), y = several(shape, t, 3), dy = several(shape, t, 3);
    const Shape channels{shape.back()}, groups{shape[0], 32};
    const Tensor w = normal(channels, kFull), b = normal(channels, kFull), dw = normal(channels, kFull),
                 db = normal(channels, kFull), mean = normal(groups, kFull), rstd = normal(groups, kFull);
    const std::string name = fmt::format("group_norm {} {}", name_of(t), to_string(shape));
    row(name, grouped(x, 1), x.size(), [&](size_t i) {
      device_.group_norm(
          {.y = y[i], .mean = mean, .rstd = rstd, .x = x[i], .w = w, .b = b, .groups = 32, .eps = 1e-5f, .silu = true});
    });
    const auto backward = [&](size_t i, const View& to_w, const View& to_b) {
      device_.group_norm_backward({.mean = mean, .rstd = rstd, .x = x[i], .w = w, .b = b, .groups = 32, .silu = true},
                                  {.dx = y[i], .dw = to_w, .db = to_b, .dy = dy[i]});
    };
    row(name + " dx", grouped(x, 2), x.size(), [&](size_t i) { backward(i, {}, {}); });
    row(name + " dx dw db", grouped(x, 2), x.size(), [&](size_t i) { backward(i, dw, db); });
  }

  void layer_norm(const Shape& shape, DType t, bool modulated) {
    const Tensors x = several(shape, t, 3), y = several(shape, t, 3), dy = several(shape, t, 3);
    const Shape width{shape.back()}, rows{shape[0], shape[1]}, images{shape[0], shape.back()};
    const Tensor w = normal(width, kFull), b = normal(width, kFull), dw = normal(width, kFull),
                 db = normal(width, kFull), mean = normal(rows, kFull), rstd = normal(rows, kFull);
    const Tensor scale = normal(images, t), shift = normal(images, t), dscale = normal(images, t),
                 dshift = normal(images, t);
    const Modulation none, m = modulated ? Modulation{scale, shift} : none;
    const View of_w = modulated ? View{} : w.view(), of_b = modulated ? View{} : b.view();
    const std::string name =
        fmt::format("layer_norm{} {} {}", modulated ? " modulated" : "", name_of(t), to_string(shape));
    row(name, bytes(x, 2), x.size(), [&](size_t i) {
      device_.layer_norm(
          {.y = y[i], .mean = mean, .rstd = rstd, .x = x[i], .w = of_w, .b = of_b, .m = m, .eps = 1e-6f});
    });
    row(name + " dx", bytes(x, 3), x.size(), [&](size_t i) {
      device_.layer_norm_backward({.mean = mean, .rstd = rstd, .x = x[i], .w = of_w, .b = of_b, .m = m},
                                  {.dx = y[i], .dy = dy[i]});
    });
    row(name + " all gradients", {bytes(x, 3), bytes(x, 2)}, x.size(), [&](size_t i) {
      if (modulated)
        device_.layer_norm_backward({.mean = mean, .rstd = rstd, .x = x[i], .m = m},
                                    {.dx = y[i], .dm = {dscale, dshift}, .dy = dy[i]});
      else
        device_.layer_norm_backward({.mean = mean, .rstd = rstd, .x = x[i], .w = w, .b = b},
                                    {.dx = y[i], .dw = dw, .db = db, .dy = dy[i]});
    });
  }

  void rms_norm(const Shape& shape, DType t) {
    const Tensors x = several(shape, t, 3), y = several(shape, t, 3), dy = several(shape, t, 3);
    const Tensor w = normal({shape.back()}, kFull), rstd = normal({shape[0], shape[1]}, kFull);
    const std::string name = fmt::format("rms_norm {} {}", name_of(t), to_string(shape));
    row(name, bytes(x, 2), x.size(),
        [&](size_t i) { device_.rms_norm({.y = y[i], .rstd = rstd, .x = x[i], .w = w, .eps = 1e-6f}); });
    row(name + " dx", bytes(x, 3), x.size(),
        [&](size_t i) { device_.rms_norm_backward({.rstd = rstd, .x = x[i], .w = w}, {.dx = y[i], .dy = dy[i]}); });
  }

  void softmax(const Shape& shape, DType t) {
    const Tensors x = several(shape, t, 3), y = several(shape, t, 3), dy = several(shape, t, 3);
    const std::string name = fmt::format("softmax {} {}", name_of(t), to_string(shape));
    row(name, bytes(x, 2), x.size(), [&](size_t i) { device_.softmax(y[i], x[i]); });
    row(name + " dx", bytes(x, 3), x.size(), [&](size_t i) { device_.softmax_backward(y[i], dy[i], x[i]); });
  }

  // rows of x have 2 * shape.back() elements
  void gated(const Shape& shape, DType t) {
    Shape wide = shape;
    wide[wide.rank() - 1] *= 2;
    const Tensors x = several(wide, t, 2.5), y = several(shape, t, 5), dx = several(wide, t, 2.5);
    const std::string at = fmt::format("{} {}", name_of(t), to_string(shape));
    const size_t n = x.size();
    row("geglu " + at, bytes(y, 3), n, [&](size_t i) { device_.geglu(y[i], x[i]); });
    row("geglu " + at + " dx", bytes(y, 5), n, [&](size_t i) { device_.geglu_backward(dx[i], y[i], x[i]); });
    row("swiglu " + at, bytes(y, 3), n, [&](size_t i) { device_.swiglu(y[i], x[i]); });
    row("swiglu " + at + " dx", bytes(y, 5), n, [&](size_t i) { device_.swiglu_backward(dx[i], y[i], x[i]); });
  }

  void rope(const Shape& shape, DType t, RopePairs pairs) {
    const Tensors x = several(shape, t, 2), y = several(shape, t, 2);
    const Shape table{shape[1], shape[3] / 2};
    const Tensor cos = normal(table, kFull), sin = normal(table, kFull);
    row(fmt::format("rope {} {} {}", pairs == RopePairs::halves ? "halves" : "neighbours", name_of(t),
                    to_string(shape)),
        bytes(x, 2) + 8 * double(table.numel()), x.size(),
        [&](size_t i) { device_.rope(y[i], x[i], cos, sin, pairs, false); });
  }

 private:
  using Tensors = std::vector<Tensor>;

  // As many as are needed for calls on `tensors` of them to move 150 MB before they return to the first.
  Tensors several(const Shape& shape, DType t, double tensors) {
    const double once = tensors * double(shape.numel()) * double(size_of(t));
    Tensors all(size_t(std::clamp(150e6 / once + 1, 2.0, 16.0)));
    for (Tensor& x : all) x = normal(shape, t);
    return all;
  }
  static double bytes(const Tensors& x, double tensors) {
    return tensors * double(x[0].numel()) * double(size_of(x[0].dtype()));
  }

  static Moved grouped(const Tensors& x, double inputs) {
    const double read = bytes(x, inputs);
    return {read + bytes(x, 1), read > kHeldBytes ? read : 0};
  }

  // Median microseconds of call(i) with i going round `sets`.
  double time(size_t sets, const std::function<void(size_t)>& call) {
    for (size_t i = 0; i < sets; ++i) call(i);  // first-use work
    return clock_.time([&](int i) { call(size_t(i) % sets); }, {.calls = 24, .replays = 8, .runs = 11, .warm_up = 2});
  }

  // Microseconds of a copy that reads half of these bytes and writes the other half.
  double copy_us(double bytes) {
    double& us = copy_us_[bytes];
    if (us > 0) return us;
    const Shape shape{int64_t(bytes / 2 / double(size_of(kHalf)))};
    const Tensors x = several(shape, kHalf, 2), y = several(shape, kHalf, 2);
    return us = time(x.size(), [&](size_t i) { device_.copy(y[i], x[i]); });
  }

  bool wanted(const std::string& row) const {
    return names_.empty() ||
           std::any_of(names_.begin(), names_.end(), [&](auto& name) { return row.find(name) != row.npos; });
  }
  void row(const std::string& name, const Moved& moved, size_t sets, const std::function<void(size_t)>& call) {
    if (wanted(name)) print(name, moved, time(sets, call));
  }
  void print(const std::string& row, const Moved& moved, double us) {
    fmt::print(
        "{{\"row\": \"{}\", \"MB\": {:.1f}, \"us\": {:.2f}, \"of_copy\": {:.3f}, \"counted\": {:.3f}, "
        "\"of_like_copy\": {:.3f}}}\n",
        row, moved.once * 1e-6, us, moved.once / us / copy_rate_, (moved.once + moved.again) / us / copy_rate_,
        copy_us(moved.once) / us);
  }

  DeviceClock clock_;
  Backend& device_ = clock_.device;
  std::vector<std::string> names_;
  double copy_rate_ = 0;              // bytes a microsecond, of 128 MiB
  std::map<double, double> copy_us_;  // by bytes
};

void run(std::vector<std::string> names) {
  Bench bench(std::move(names));
  for (const Shape& shape : {Shape{1, 16384, 320}, {1, 4096, 640}, {1, 1024, 1280}, {1, 16384, 960}, {4, 16384, 320}})
    bench.group_norm(shape, kHalf);
  bench.group_norm({1, 262144, 512}, kHalf);
  bench.group_norm({1, 1048576, 128}, kHalf);
  bench.group_norm({1, 16384, 320}, kFull);
  for (const Shape& shape : {Shape{1, 16384, 1280}, {1, 4096, 1280}, {4, 4096, 640}, {1, 16384, 320}, {1, 77, 768}})
    bench.layer_norm(shape, kHalf, false);
  bench.layer_norm({1, 16384, 1280}, kFull, false);
  bench.layer_norm({4, 4608, 3072}, kHalf, true);
  bench.rms_norm({1, 4096, 4096}, kHalf);
  bench.rms_norm({1, 8192, 4096}, kHalf);
  bench.softmax({16384, 4096}, kHalf);
  bench.softmax({8192, 4096}, kFull);
  bench.gated({4096, 2560}, kHalf);
  bench.gated({4096, 14336}, kHalf);
  bench.rope({1, 4608, 24, 128}, kHalf, RopePairs::neighbours);
  bench.rope({2, 4096, 32, 128}, kHalf, RopePairs::halves);
}

}  // namespace
}  // namespace wick::bench

int main(int count, char** arguments) {
  try {
    wick::bench::run({arguments + 1, arguments + count});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
