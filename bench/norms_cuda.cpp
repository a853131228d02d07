// Norms, softmax, gated activations, rotary positions and the other streams of tokens of diffusion transformers on a
// GPU: one line of JSON per row, microseconds (medians of
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
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
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

  // Modulated by parts of a wider row of some dtype, or with a weight and a bias.
  void layer_norm(const Shape& shape, DType t, std::optional<DType> modulation = {}) {
    const Tensors x = several(shape, t, 3), y = several(shape, t, 3), dy = several(shape, t, 3);
    const Shape width{shape.back()}, rows{shape[0], shape[1]};
    const Tensor w = normal(width, kFull), b = normal(width, kFull), dw = normal(width, kFull),
                 db = normal(width, kFull), mean = normal(rows, kFull), rstd = normal(rows, kFull);
    const DType of_m = modulation.value_or(t);
    const Tensor scale = part_of_a_row(shape, of_m), shift = part_of_a_row(shape, of_m),
                 dscale = normal(scale.shape(), of_m), dshift = normal(scale.shape(), of_m);
    const bool modulated = modulation.has_value();
    const Modulation none, m = modulated ? Modulation{scale, shift} : none;
    const View of_w = modulated ? View{} : w.view(), of_b = modulated ? View{} : b.view();
    const std::string how = !modulated ? "" : of_m == t ? " modulated" : fmt::format(" modulated in {}", name_of(of_m));
    const std::string name = fmt::format("layer_norm{} {} {}", how, name_of(t), to_string(shape));
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

  // Queries, keys and values of [1, T, H, D], the first of `columns` columns, to a tensor of their own, and back.
  void qk_norm_rope(const std::string& of, const Shape& shape, int64_t columns, bool turned) {
    const int64_t tokens = shape[1], heads = shape[2], width = shape[3], all = 3 * heads * width;
    const Tensors x = several({tokens, columns}, kHalf, 2), dx = several({tokens, columns}, kHalf, 2),
                  y = several({tokens, all}, kHalf, 1);
    const auto qkv = [&](const Tensor& rows) {
      const int64_t row = rows.dim(1), part = heads * width;
      return rows.window({1, tokens, 3, heads, width}, {tokens * row, row, part, width, 1});
    };
    const Tensor q = normal({width}, kFull), k = normal({width}, kFull), dq = normal({width}, kFull),
                 dk = normal({width}, kFull), cos = normal({tokens, width / 2}, kFull),
                 sin = normal({tokens, width / 2}, kFull);
    const View none, of_cos = turned ? cos.view() : none, of_sin = turned ? sin.view() : none;
    const double third = bytes(y, 1) / 3, angles = turned ? 8 * double(cos.numel()) : 0;
    const std::string name = fmt::format("qk_norm_rope {} {}", of, to_string(shape));
    const auto args = [&](size_t i) {
      return QkNormRopeArgs{.y = qkv(y[i % y.size()]),
                            .x = qkv(x[i]),
                            .q_norm = q,
                            .k_norm = k,
                            .cos = of_cos,
                            .sin = of_sin,
                            .eps = 1e-6f};
    };
    row(name, 6 * third + angles, x.size(), [&](size_t i) { device_.qk_norm_rope(args(i)); });
    const auto backward = [&](size_t i, const View& to_q, const View& to_k) {
      device_.qk_norm_rope_backward(args(i),
                                    {.dx = qkv(dx[i]), .dq_norm = to_q, .dk_norm = to_k, .dy = qkv(y[i % y.size()])});
    };
    row(name + " dx", 8 * third + angles, x.size(), [&](size_t i) { backward(i, {}, {}); });
    row(name + " all gradients", {8 * third + angles, 4 * third + angles}, x.size(),
        [&](size_t i) { backward(i, dq, dk); });
  }

  void gated_add(const Shape& shape, DType gates) {
    const Tensors x = several(shape, kHalf, 3), y = several(shape, kHalf, 3), h = several(shape, kHalf, 3);
    const Tensor gate = part_of_a_row(shape, gates), dgate = normal(gate.shape(), gates);
    const std::string name = fmt::format("gated_add by {} {}", name_of(gates), to_string(shape));
    row(name, bytes(x, 3), x.size(), [&](size_t i) { device_.gated_add(y[i], x[i], gate, h[i]); });
    row(name + " dh", bytes(x, 2), x.size(), [&](size_t i) { device_.gated_add_backward(y[i], {}, x[i], gate, {}); });
    row(name + " dh dgate", bytes(x, 3), x.size(),
        [&](size_t i) { device_.gated_add_backward(y[i], dgate, x[i], gate, h[i]); });
  }

  void gated_add_norm(const Shape& shape) {
    const Tensors x = several(shape, kHalf, 4), y = several(shape, kHalf, 4), h = several(shape, kHalf, 4),
                  sum = several(shape, kHalf, 4);
    const Tensor gate = part_of_a_row(shape, kHalf), scale = part_of_a_row(shape, kHalf),
                 shift = part_of_a_row(shape, kHalf);
    row(fmt::format("gated_add_norm {}", to_string(shape)), bytes(x, 4), x.size(), [&](size_t i) {
      device_.gated_add_norm({x[i], gate, h[i]}, {.y = y[i], .x = sum[i], .m = {scale, shift}, .eps = 1e-6f});
    });
  }

  // Columns of wider matrices: a feed-forward beside attention, whose input is the last of x's columns and whose output
  // the last of y's.
  void beside(int64_t tokens, int64_t width, int64_t x_columns, int64_t y_columns) {
    const auto last = [&](const Tensor& rows, int64_t count) {
      return rows.window({1, tokens, count}, {tokens * rows.dim(1), rows.dim(1), 1}, rows.dim(1) - count);
    };
    const Tensors x = several({tokens, x_columns}, kHalf, 1), dx = several({tokens, x_columns}, kHalf, 1),
                  y = several({tokens, y_columns}, kHalf, 1);
    const auto x_of = [&](size_t i) { return last(x[i], width); };
    const auto y_of = [&](size_t i) { return last(y[i % y.size()], width); };
    const double once = 2.0 * double(tokens * width);
    const std::string at = fmt::format("of columns [{}, {}]", tokens, width);
    row("gelu_tanh " + at, 2 * once, x.size(), [&](size_t i) { device_.unary(Unary::gelu_tanh, y_of(i), x_of(i)); });
    row("gelu_tanh " + at + " dx", 3 * once, x.size(),
        [&](size_t i) { device_.unary_backward(Unary::gelu_tanh, last(dx[i], width), y_of(i), x_of(i)); });
    row("copy " + at, 2 * once, x.size(), [&](size_t i) { device_.copy(y_of(i), x_of(i)); });
    row("add " + at, 3 * once, x.size(),
        [&](size_t i) { device_.binary(Binary::add, y_of(i), last(dx[i], width), x_of(i)); });
  }

  void end() const { names_.check_all_found(); }

 private:
  using Tensors = std::vector<Tensor>;

  // [B, D] of activations [B, ..., D], among six such rows.
  Tensor part_of_a_row(const Shape& shape, DType t) {
    const int64_t images = shape[0], width = shape.back();
    return normal({images, 6 * width}, t).window({images, width}, {6 * width, 1}, 2 * width);
  }

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

  bool wanted(const std::string& row) { return names_.wanted(row); }
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
  RowNames names_;
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
    bench.layer_norm(shape, kHalf);
  bench.layer_norm({1, 16384, 1280}, kFull);
  for (const Shape& shape : {Shape{4, 4608, 3072}, {1, 4608, 3072}, {1, 512, 3072}, {1, 4096, 2432}, {1, 4096, 1536}})
    bench.layer_norm(shape, kHalf, kHalf);
  bench.layer_norm({1, 4608, 3072}, kHalf, kFull);
  bench.rms_norm({1, 4096, 4096}, kHalf);
  bench.rms_norm({1, 8192, 4096}, kHalf);
  bench.softmax({16384, 4096}, kHalf);
  bench.softmax({8192, 4096}, kFull);
  bench.gated({4096, 2560}, kHalf);
  bench.gated({4096, 14336}, kHalf);
  bench.rope({1, 4608, 24, 128}, kHalf, RopePairs::neighbours);
  bench.rope({2, 4096, 32, 128}, kHalf, RopePairs::halves);
  bench.qk_norm_rope("FLUX single", {1, 4608, 24, 128}, 21504, true);
  bench.qk_norm_rope("FLUX double", {1, 4096, 24, 128}, 9216, true);
  bench.qk_norm_rope("FLUX text", {1, 512, 24, 128}, 9216, true);
  bench.qk_norm_rope("SD3.5 large", {1, 4096, 38, 64}, 7296, false);
  bench.qk_norm_rope("SD3.5 medium", {1, 4096, 24, 64}, 4608, false);
  for (const Shape& shape : {Shape{1, 4608, 3072}, {1, 512, 3072}, {1, 4096, 2432}, {4, 4608, 3072}})
    bench.gated_add(shape, kHalf);
  bench.gated_add({1, 4608, 3072}, kFull);
  for (const Shape& shape : {Shape{1, 4096, 3072}, {1, 512, 3072}, {1, 4096, 2432}, {1, 333, 2432}, {1, 4096, 1536}})
    bench.gated_add_norm(shape);
  bench.beside(4608, 12288, 21504, 15360);
  bench.end();
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
