#include "wick/ops/lora.h"

#include "wick/ops/shape.h"

namespace wick {
namespace {

const Op kLoraLinear("lora_linear");

void check_factors(const char* op, const Tensor& x, int64_t out, const Tensor& down, const Tensor& up) {
  check(down.rank() == 2 && up.rank() == 2 && down.dim(0) == up.dim(1),
        "{}: lora_down {} and lora_up {} differ in rank", op, down.shape(), up.shape());
  check(x.rank() >= 1 && down.dim(1) == x.dim(-1) && up.dim(0) == out,
        "{}: lora_down {} and lora_up {} do not fit input {} and {} outputs", op, down.shape(), up.shape(), x.shape(),
        out);
}

Shape with_last(Shape shape, int64_t last) {
  shape[shape.rank() - 1] = last;
  return shape;
}

}  // namespace

Tensor lora_linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& down, const Tensor& up,
                   float scale) {
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1), "lora_linear: weight {} does not fit input {}",
        w.shape(), x.shape());
  check(!bias || (bias.rank() == 1 && bias.dim(0) == w.dim(0)), "lora_linear: bias does not fit weight {}", w.shape());
  check(!w.tracked() && !(bias && bias.tracked()), "lora_linear: the weight under a LoRA is frozen");
  check_factors("lora_linear", x, w.dim(0), down, up);

  Tensor y = Tensor::empty(with_last(x.shape(), w.dim(0)), x.dtype(), x.memory());
  Tensor s = Tensor::empty(with_last(x.shape(), down.dim(0)), x.dtype(), x.memory());
  x.backend().lora_linear(y, s, x, w, bias ? bias.view() : View{}, down, up, scale);

  const Tensor saved_x = down.tracked() ? x.detached() : Tensor(), saved_s = up.tracked() ? s : Tensor();
  return record(kLoraLinear, y, {x, down, up}, [=, x = Input(x)](const Tensor& dy, Grads& grads) {
    const Tensor dx = grads.wants(x) ? x.empty() : Tensor();
    const Tensor ddown = grads.wants(down) ? Input(down).empty() : Tensor();
    const Tensor dup = grads.wants(up) ? Input(up).empty() : Tensor();
    dy.backend().lora_linear_backward(dx, ddown, dup, dy, saved_x, saved_s, w, down, up, scale);
    grads.add(x, dx);
    grads.add(down, ddown);
    grads.add(up, dup);
  });
}

LoraGrads lora_backward(const Tensor& grad_output, const Tensor& input, const Tensor& lora_down, const Tensor& lora_up,
                        float scale) {
  check(grad_output.rank() >= 1 && grad_output.shape() == with_last(input.shape(), grad_output.dim(-1)),
        "lora_backward: grad_output {} and input {} differ in their batch", grad_output.shape(), input.shape());
  check_factors("lora_backward", input, grad_output.dim(-1), lora_down, lora_up);
  LoraGrads grads{Input(lora_down).empty(), Input(lora_up).empty()};
  input.backend().lora_backward(grads.grad_down, grads.grad_up, grad_output, input, lora_down, lora_up, scale);
  return grads;
}

}  // namespace wick
