#include "wick/ops/gated.h"

#include "wick/backend/views.h"

namespace wick {
namespace {

const Op kGeglu("geglu"), kSwiglu("swiglu"), kGatedAdd("gated_add"), kBeside("beside_gelu_tanh");

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

void check_gated_add(const Tensor& x, const Tensor& gate, const Tensor& h) {
  check(x.shape() == h.shape() && h.rank() >= 2 && gate.shape() == Shape{h.dim(0), h.dim(-1)},
        "gated_add: {} + {} * {} do not fit [B, ..., D] + [B, D] * [B, ..., D]", x.shape(), gate.shape(), h.shape());
}

Tensor gated_add(const Tensor& x, const Tensor& gate, const Tensor& h) {
  check_gated_add(x, gate, h);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  y.backend().gated_add(y, x, gate, h);
  return record_gated_add(y, x, gate, h);
}

Tensor record_gated_add(const Tensor& y, const Tensor& x, const Tensor& gate, const Tensor& h) {
  const Tensor saved_gate = h.tracked() ? gate.detached() : Tensor();
  const Tensor saved_h = gate.tracked() ? h.detached() : Tensor();
  return record(kGatedAdd, y, {x, gate, h},
                [=, x = Input(x), gate = Input(gate), h = Input(h)](const Tensor& dy, Grads& grads) {
                  const Tensor dh = h.tracked() ? h.room() : Tensor(), dgate = gate.tracked() ? gate.empty() : Tensor();
                  if (dh || dgate) dy.backend().gated_add_backward(dh, dgate, dy, saved_gate, saved_h);
                  grads.add(h, dh);
                  grads.add(gate, dgate);
                  grads.add(x, dy);
                });
}

Tensor beside_gelu_tanh(const Tensor& a, const Tensor& b) {
  check(a.rank() == b.rank() && a.rank() > 0 && with_last(a.shape(), b.dim(-1)) == b.shape(),
        "beside_gelu_tanh: {} and {} do not fit", a.shape(), b.shape());
  const int64_t first = a.dim(-1), second = b.dim(-1);
  const auto make = [first, second, a = a.detached(), b = b.detached()] {
    Tensor y = Tensor::empty(with_last(a.shape(), first + second), a.dtype(), a.memory());
    y.backend().copy(part_of(y, -1, 0, first), a);
    y.backend().unary(Unary::gelu_tanh, part_of(y, -1, first, second), b);
    return y;
  };
  const auto gradient = [=, values = b.detached(), a = Input(a), b = Input(b)](const Tensor& dy, Grads& grads) {
    const auto part = [&](int64_t begin, int64_t width) {
      return dy.window(with_last(dy.shape(), width), dy.stride(), begin * dy.stride().back());
    };
    grads.add(a, part(0, first));
    if (!b.tracked()) return;
    const Tensor db = b.room();
    db.backend().unary_backward(Unary::gelu_tanh, db, part(first, second), values);
    grads.add(b, db);
  };
  return record(kBeside, make(), {a, b}, gradient, make);
}

}  // namespace wick
