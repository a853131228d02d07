#include "wick/ops/gated.h"

#include "wick/backend/views.h"

namespace wick {
namespace {

const Op kGeglu("geglu"), kSwiglu("swiglu");

Tensor gated(const Op& op, void (Backend::*forward)(View, View), void (Backend::*backward)(View, View, View),
             const Tensor& x) {
  check(x.rank() > 0 && x.dim(-1) % 2 == 0, "{}: the last axis of {} does not split into value and gate", op.name(),
        x.shape());
  const Shape shape = with_last(x.shape(), x.dim(-1) / 2);
  const auto compute = [=](const Tensor& of) {
    Tensor y = Tensor::empty(shape, of.dtype(), of.memory());
    (of.backend().*forward)(y, of);
    return y;
  };
  const Saved saved(x);
  const auto gradient = [=, saved = saved, x = Input(x)](const Tensor& dy, Grads& grads) mutable {
    const Tensor values = saved.take();
    const Tensor dx = values.is_sole() && values.contiguous() ? values : x.empty();
    (dx.backend().*backward)(dx, dy, values);
    grads.add(x, dx);
  };
  return record(op, compute(x), {x}, gradient, [=] { return compute(saved()); });
}

}  // namespace

Tensor geglu(const Tensor& x) { return gated(kGeglu, &Backend::geglu, &Backend::geglu_backward, x); }
Tensor swiglu(const Tensor& x) { return gated(kSwiglu, &Backend::swiglu, &Backend::swiglu_backward, x); }

}  // namespace wick
