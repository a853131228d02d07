#include "wick/ops/lora.h"

#include <algorithm>

#include "wick/ops/shape.h"

namespace wick {
namespace {

const Op kLoraLinear("lora_linear");

void check_factors(const char* op, const Tensor& x, int64_t out, const Lora& lora) {
  check(x.rank() >= 1 && lora.down.rank() == 2 && lora.down.dim(1) == x.dim(-1),
        "{}: lora_down {} does not fit input {}", op, lora.down.shape(), x.shape());
  check(lora.dropout.p >= 0 && lora.dropout.p < 1, "{}: a dropout of {}", op, lora.dropout.p);
  for (const LoraPart& part : lora.parts) {
    const Shape &down = part.down.shape, &up = part.up.shape;
    check(up.rank() == 2 && down[0] == up[1] && part.up_values.shape() == up,
          "{}: lora_down {} and lora_up {} differ in rank", op, down, up);
    check(part.row >= 0 && part.row + up[1] <= lora.down.dim(0) && part.column >= 0 && part.column + up[0] <= out,
          "{}: lora_down {} at {} and lora_up {} at {} do not fit {} rows and {} outputs", op, down, part.row, up,
          part.column, lora.down.dim(0), out);
  }
}

Shape with_last(Shape shape, int64_t last) {
  shape[shape.rank() - 1] = last;
  return shape;
}

LoraFactors views(const Lora& lora) {
  LoraFactors factors{lora.down, {}, {}};
  for (const LoraPart& part : lora.parts) factors.blocks.push_back({part.up_values, part.column, part.row, part.scale});
  if (lora.dropout.p > 0) factors.dropout = {lora.dropout.p, lora.dropout.seed, lora.dropout.draw};
  return factors;
}

bool trains_down(const Lora& lora) {
  return std::any_of(lora.parts.begin(), lora.parts.end(), [](const LoraPart& p) { return p.down.tracked(); });
}
bool trains_up(const Lora& lora) {
  return std::any_of(lora.parts.begin(), lora.parts.end(), [](const LoraPart& p) { return p.up.tracked(); });
}

// Room for the gradients of both kinds of factors; those of the ups lie one after the other.
struct FactorGrads {
  Tensor down;
  std::vector<Tensor> ups;

  explicit FactorGrads(const Lora& lora) {
    if (trains_down(lora)) down = Tensor::empty(lora.down.shape(), DType::f32, lora.down.memory());
    if (!trains_up(lora)) return;
    int64_t size = 0, begin = 0;
    for (const LoraPart& part : lora.parts) size += part.up.shape.numel();
    const Tensor all = Tensor::empty({size}, DType::f32, lora.down.memory());
    for (const LoraPart& part : lora.parts) {
      const Shape& shape = part.up.shape;
      ups.push_back(part.up.tracked() ? all.window(shape, contiguous_strides(shape), begin) : Tensor());
      begin += shape.numel();
    }
  }

  std::vector<View> up_views() const { return {ups.begin(), ups.end()}; }

  void add_to(Grads& grads, const Lora& lora) const {
    for (size_t g = 0; g < lora.parts.size(); ++g) {
      const LoraPart& part = lora.parts[g];
      if (part.down.tracked())
        grads.add(part.down, down.window(part.down.shape, contiguous_strides(part.down.shape),
                                         part.row * contiguous_strides(lora.down.shape())[0]));
      if (part.up.tracked()) grads.add(part.up, ups[g]);
    }
  }
};

}  // namespace

Tensor lora_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Lora& lora) {
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1), "lora_linear: weight {} does not fit input {}",
        w.shape(), x.shape());
  check(!bias || (bias.rank() == 1 && bias.dim(0) == w.dim(0)), "lora_linear: bias does not fit weight {}", w.shape());
  check(!w.tracked() && !(bias && bias.tracked()), "lora_linear: the weight under a LoRA is frozen");
  check_factors("lora_linear", x, w.dim(0), lora);

  Tensor y = Tensor::empty(with_last(x.shape(), w.dim(0)), x.dtype(), x.memory());
  Tensor s = Tensor::empty(with_last(x.shape(), lora.down.dim(0)), x.dtype(), x.memory());
  x.backend().lora_linear(y, s, x, w, bias ? bias.view() : View{}, views(lora));

  const bool trained = trains_down(lora) || trains_up(lora);
  if (!Tape::active() || !(x.tracked() || trained)) return y;
  const Tensor saved_x = trains_down(lora) ? x.detached() : Tensor(), saved_s = trains_up(lora) ? s : Tensor();
  return Tape::active()->push(kLoraLinear, y, [=, x = Input(x)](const Tensor& dy, Grads& grads) {
    const Tensor dx = grads.wants(x) ? x.empty() : Tensor();
    const FactorGrads factors(lora);
    dy.backend().lora_linear_backward(dx, factors.down, factors.up_views(), dy, saved_x, saved_s, w, views(lora));
    grads.add(x, dx);
    factors.add_to(grads, lora);
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
  input.backend().lora_backward(grads.grad_down, {grads.grad_up}, grad_output, input, views(lora));
  return grads;
}

}  // namespace wick
