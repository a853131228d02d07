#include "wick/ops/lora.h"

#include <algorithm>

#include "wick/backend/views.h"
#include "wick/ops/conv.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

const Op kLoraLinear("lora_linear"), kLoraConv2d("lora_conv2d");

void check_factors(const char* op, const Tensor& x, int64_t out, const Lora& lora) {
  check(x.rank() >= 1 && lora.down.rank() == 2 && lora.down.dim(1) == x.dim(-1),
        "{}: lora_down {} does not fit input {}", op, lora.down.shape(), x.shape());
  check(lora.dropout.p >= 0 && lora.dropout.p < 1, "{}: a dropout of {}", op, lora.dropout.p);
  for (const LoraPart& part : lora.parts) {
    const Shape &down = part.down.shape, &up = part.up.shape;
    check(up.rank() == 2 && down[0] == up[1], "{}: lora_down {} and lora_up {} differ in rank", op, down, up);
    const Shape& values = part.up_values.shape();
    check(values.rank() == 2 && values[0] == up[0] && values[1] >= up[1], "{}: values {} do not fit lora_up {}", op,
          values, up);
    check(part.row >= 0 && part.row + values[1] <= lora.down.dim(0) && part.column >= 0 && part.column + up[0] <= out,
          "{}: lora_down {} at {} and lora_up {} at {} do not fit {} rows and {} outputs", op, down, part.row, up,
          part.column, lora.down.dim(0), out);
  }
}

Tensor first_draw(const LoraDropout& dropout) { return dropout.draws->window({1}, {1}); }

// Rows of x [B, ...] belong to samples in equal shares, unless x is one that all samples share.
LoraFactors views(const Lora& lora, const Shape& x) {
  LoraFactors factors{lora.down, {}, {}};
  for (const LoraPart& part : lora.parts) factors.blocks.push_back({part.up_values, part.column, part.row, part.scale});
  const LoraDropout& dropout = lora.dropout;
  if (!dropout.drops_elements()) return factors;
  const bool by_sample = x.rank() > 1 && x[0] % dropout.draws->dim(0) == 0;
  factors.dropout = {dropout.p, dropout.seeds.front(), by_sample ? *dropout.draws : first_draw(dropout)};
  return factors;
}

Tensor dropped(const Tensor& x, const Lora& lora) {
  if (!lora.dropout.drops_elements()) return x.detached();
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  y.backend().dropout(y, x, views(lora, x.shape()).dropout, false);
  return y;
}

// `values`, of which a share of p becomes 0, by the numbers of a stream of a part's own.
void drop(const Tensor& values, float p, uint64_t seed, const LoraDropout& dropout) {
  if (p == 0) return;
  values.backend().fill(values, 1 - p);
  values.backend().dropout(values, values, {p, seed, first_draw(dropout)}, false);
}

// The LoRA of this batch: without the ranks and parts that it drops. Their rows of down are zero, and so is their s.
Lora of_batch(const Lora& lora) {
  const LoraDropout& dropout = lora.dropout;
  if (!dropout.drops_ranks()) return lora;
  Memory& memory = lora.down.memory();
  Lora kept = lora;
  Shape rows = lora.down.shape();
  std::fill(rows.begin() + 1, rows.end(), 1);
  kept.mask = full(rows, 1, DType::f32, memory);
  for (size_t g = 0; g < lora.parts.size(); ++g) {
    const LoraPart& part = lora.parts[g];
    const Tensor ranks = slice(kept.mask, 0, part.row, part.row + part.up.shape[1]),
                 whole = full({1}, 1, DType::f32, memory);
    drop(ranks, dropout.rank_p, dropout.seeds[g] + 1, dropout);
    drop(whole, dropout.part_p, dropout.seeds[g] + 2, dropout);
    ranks.backend().copy(ranks, ranks * whole);
    kept.parts[g].scale /= 1 - dropout.rank_p;
  }
  kept.down = lora.down.detached() * cast(kept.mask, lora.down.dtype());
  return kept;
}

bool trains_down(const Lora& lora) {
  return std::any_of(lora.parts.begin(), lora.parts.end(), [](const LoraPart& p) { return p.down.tracked(); });
}
bool trains_up(const Lora& lora) {
  return std::any_of(lora.parts.begin(), lora.parts.end(), [](const LoraPart& p) { return p.up.tracked(); });
}

// Room for the gradients of both kinds of factors: those of the downs lie one after the other, and so do those of the
// ups, in the order in which they are added.
struct FactorGrads {
  Tensor down;
  std::vector<Tensor> ups;

  FactorGrads(const Lora& lora, const Grads& grads) {
    const auto room = [&](Input LoraPart::*factor, int64_t size) {
      std::vector<uint64_t> ids;
      int64_t used = 0;
      for (const LoraPart& part : lora.parts) ids.push_back((part.*factor).id), used += (part.*factor).shape.numel();
      const Tensor found = used == size ? grads.room(ids) : Tensor();  // ranks that are padded want more
      return found ? found : Tensor::empty({size}, DType::f32, lora.down.memory());
    };
    if (trains_down(lora)) down = reshape(room(&LoraPart::down, lora.down.numel()), lora.down.shape());
    if (!trains_up(lora)) return;
    int64_t size = 0, begin = 0;
    for (const LoraPart& part : lora.parts) size += part.up_values.numel();
    const Tensor all = room(&LoraPart::up, size);
    for (const LoraPart& part : lora.parts) {
      const Shape& shape = part.up_values.shape();
      ups.push_back(part.up.tracked() ? all.window(shape, contiguous_strides(shape), begin) : Tensor());
      begin += shape.numel();
    }
  }

  std::vector<View> up_views() const { return {ups.begin(), ups.end()}; }

  void add_to(Grads& grads, const Lora& lora) const {
    if (down && lora.mask) down.backend().copy(down, down * lora.mask);
    for (const LoraPart& part : lora.parts)
      if (part.down.tracked())
        grads.add(part.down, down.window(part.down.shape, contiguous_strides(part.down.shape),
                                         part.row * contiguous_strides(lora.down.shape())[0]));
    for (size_t g = 0; g < lora.parts.size(); ++g) {
      const Input& up = lora.parts[g].up;
      if (up.tracked()) grads.add(up, slice(ups[g], 1, 0, up.shape[1]));
    }
  }
};

}  // namespace

Lora Lora::of(const Tensor& down, const Tensor& up, float scale, DType dtype) {
  if (dtype == DType::f32) return of(down, up, scale);
  const int64_t rank = up.dim(1), unit = 16 / int64_t(size_of(dtype)), padded = (rank + unit - 1) / unit * unit;
  Shape shape = down.shape();
  shape[0] = padded;
  const Tensor downs = zeros(shape, dtype, down.memory()), ups = zeros({up.dim(0), padded}, dtype, up.memory());
  downs.backend().copy(downs.window(down.shape(), downs.stride()), down);
  ups.backend().copy(ups.window(up.shape(), ups.stride()), up);
  return {downs, {{down, up, ups, 0, 0, scale}}};
}

Tensor lora_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Lora& given, const Tensor& residual,
                   bool ends_block) {
  check(w || (residual && !bias), "lora_linear: without a weight there is a residual and no bias");
  const int64_t outputs = w ? w.dim(0) : residual.dim(-1);
  check(!w || (w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1)), "lora_linear: weight {} does not fit input {}",
        w.shape(), x.shape());
  check(!bias || (bias.rank() == 1 && bias.dim(0) == w.dim(0)), "lora_linear: bias does not fit weight {}", w.shape());
  check(!w.tracked() && !(bias && bias.tracked()), "lora_linear: the weight under a LoRA is frozen");
  check_factors("lora_linear", x, outputs, given);
  const Lora lora = of_batch(given);
  const Shape shape = with_last(x.shape(), outputs);
  check(!residual || residual.shape() == shape, "lora_linear: residual {} does not fit output {}", residual.shape(),
        shape);

  const auto compute = [=](const Tensor& of, const View& s) {
    Tensor y = Tensor::empty(shape, of.dtype(), of.memory());
    if (!w) y.backend().copy(y, residual);
    y.backend().lora_linear({.y = y,
                             .s = s,
                             .x = of,
                             .w = w,
                             .bias = bias,
                             .lora = views(lora, shape),
                             .residual = w ? residual.view() : View()});
    return y;
  };
  const bool is_unread = ends_block && Tape::runs_again();
  const Tensor s = Tensor::empty(with_last(x.shape(), lora.down.dim(0)), x.dtype(), x.memory());
  const Tensor y = is_unread ? unread(shape, x) : compute(x, s);
  // Where y is not computed, s is a product of its own; so it is where y is, for gradients of the same bits.
  if (ends_block && Tape::active()) s.backend().linear(s, dropped(x, lora), lora.down, {});

  const bool trained = trains_down(lora) || trains_up(lora);
  if (!Tape::active() || !(x.tracked() || trained || (residual && residual.tracked()))) return y;
  const Saved input(x), saved_x = trains_down(lora) ? input : Saved();
  const Tensor saved_s = trains_up(lora) ? s : Tensor();
  const auto gradient = [=, x = Input(x), r = Input(residual ? residual : w)](const Tensor& dy, Grads& grads) {
    grads.add(r, dy);
    const Tensor dx = grads.wants(x) ? x.empty() : Tensor();
    if (dx && !w) dx.backend().fill(dx, 0);
    const FactorGrads factors(lora, grads);
    const Tensor made_x = saved_x();
    dy.backend().lora_linear_backward({.s = saved_s, .x = made_x, .w = w, .lora = views(lora, dy.shape())},
                                      {.dx = dx, .ddown = factors.down, .dups = factors.up_views(), .dy = dy});
    grads.add(x, dx);
    factors.add_to(grads, lora);
  };
  if (residual || is_unread || (!saved_x && !input.is_made_again()) || x.dim(-1) > kWidestMadeAgain)
    return Tape::active()->push(kLoraLinear, y, gradient);
  return Tape::active()->push(kLoraLinear, y, gradient, [=] { return compute(input(), {}); });
}

Tensor lora_gated_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Lora& lora) {
  check(!Tape::active(), "lora_gated_linear keeps nothing for gradients");
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1), "lora_gated_linear: weight {} does not fit input {}",
        w.shape(), x.shape());
  check_factors("lora_gated_linear", x, w.dim(0), lora);
  Tensor y = Tensor::empty(with_last(x.shape(), w.dim(0) / 2), x.dtype(), x.memory());
  y.backend().gated_linear(y, x, w, bias, views(lora, x.shape()));
  return y;
}

namespace {

// The up of a convolution's LoRA: a linear of each pixel, of low [B, H, W, R] or its rows that do not only pad.
struct PixelUp {
  const Lora& lora;
  const LoraPart& part = lora.parts.front();

  int64_t rank() const { return part.up_values.dim(1); }
  Tensor used(const Tensor& low) const { return slice(rows(low), 1, part.row, part.row + rank()); }
  // y += scale * low up^T
  void forward(const Tensor& y, const Tensor& low) const {
    y.backend().matmul(rows(y), used(low), transpose(part.up_values.detached(), 0, 1), part.scale, 1);
  }
  // scale * dy up
  Tensor backward(const Tensor& dy, const Shape& shape) const {
    Tensor dlow = Tensor::empty(shape, dy.dtype(), dy.memory());
    if (rank() < shape.back()) dy.backend().fill(dlow, 0);
    dy.backend().matmul(used(dlow), rows(dy), part.up_values, part.scale, 0);
    return dlow;
  }
  // scale * dy^T low
  void gradient(const Tensor& dup, const Tensor& dy, const Tensor& low) const {
    dy.backend().matmul(dup, transpose(rows(dy), 0, 1), used(low), part.scale, 0);
  }
};

}  // namespace

Tensor lora_conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& conv, const Lora& given,
                   const Tensor& residual) {
  check(w || (residual && !bias), "lora_conv2d: without a weight there is a residual and no bias");
  check(!w.tracked() && !(bias && bias.tracked()), "lora_conv2d: the weight under a LoRA is frozen");
  const Tensor y = w ? conv2d(x.detached(), w, bias, conv, residual ? residual.detached() : residual) : clone(residual);
  check(given.parts.size() == 1 && given.down.rank() == 4 && given.parts[0].up.shape[0] == y.dim(-1),
        "lora_conv2d: lora_down {} does not fit {} outputs", given.down.shape(), y.dim(-1));
  const Lora lora = of_batch(given);
  const Tensor low = conv2d(dropped(x, lora), lora.down.detached(), {}, conv);
  PixelUp{lora}.forward(y, low);

  const bool trained = trains_down(lora) || trains_up(lora);
  if (!Tape::active() || !(x.tracked() || trained || (residual && residual.tracked()))) return y;
  const Saved saved_x = trains_down(lora) ? Saved(x) : Saved();
  const Tensor saved_low = trains_up(lora) ? low : Tensor();
  return Tape::active()->push(kLoraConv2d, y,
                              [=, x = Input(x), r = Input(residual ? residual : low.detached()),
                               low_shape = low.shape()](const Tensor& dy, Grads& grads) {
                                grads.add(r, dy);
                                const FactorGrads factors(lora, grads);
                                const PixelUp up{lora};
                                if (saved_low) up.gradient(factors.ups.front(), dy, saved_low);
                                const Tensor dlow = up.backward(dy, low_shape);
                                if (saved_x)
                                  dy.backend().conv2d_backward_weight(factors.down, {}, dlow, dropped(saved_x(), lora),
                                                                      conv);
                                factors.add_to(grads, lora);
                                if (!grads.wants(x)) return;
                                const Tensor dx = x.empty(), through_low = x.empty();
                                if (w)
                                  dy.backend().conv2d_backward_input(dx, dy, w, conv);
                                else
                                  dx.backend().fill(dx, 0);
                                dy.backend().conv2d_backward_input(through_low, dlow, lora.down, conv);
                                if (lora.dropout.drops_elements())
                                  dy.backend().dropout(dx, through_low, views(lora, x.shape).dropout, true);
                                else
                                  dy.backend().accumulate(dx, through_low, 1);
                                grads.add(x, dx);
                              });
}

LoraGrads lora_backward(const Tensor& grad_output, const Tensor& input, const Tensor& lora_down, const Tensor& lora_up,
                        float scale) {
  check(grad_output.rank() >= 1 && grad_output.shape() == with_last(input.shape(), grad_output.dim(-1)),
        "lora_backward: grad_output {} and input {} differ in their batch", grad_output.shape(), input.shape());
  const Lora lora = Lora::of(lora_down, lora_up, scale);
  check_factors("lora_backward", input, grad_output.dim(-1), lora);
  check(lora_up.dim(0) == grad_output.dim(-1), "lora_backward: lora_up {} does not fit grad_output {}", lora_up.shape(),
        grad_output.shape());
  LoraGrads grads{Tensor::empty(lora_down.shape(), DType::f32, lora_down.memory()),
                  Tensor::empty(lora_up.shape(), DType::f32, lora_up.memory())};
  input.backend().lora_backward({.x = input, .lora = views(lora, input.shape())},
                                {.ddown = grads.grad_down, .dups = {grads.grad_up}, .dy = grad_output});
  return grads;
}

}  // namespace wick
