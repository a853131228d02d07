#include "wick/ops/norm.h"

#include "wick/ops/gated.h"

namespace wick {
namespace {

const Op kGroupNorm("group_norm"), kLayerNorm("layer_norm"), kRmsNorm("rms_norm"), kSoftmax("softmax");

void check_vectors(const char* op, const Tensor& x, const Tensor& w, const Tensor& b) {
  for (const Tensor& v : {w, b})
    check(x.rank() >= 2 && (!v || (v.rank() == 1 && v.dim(0) == x.dim(-1))),
          "{}: weight {} and bias {} do not fit input {}", op, w.shape(), b.shape(), x.shape());
}

void check_modulation(const char* op, const Tensor& x, const Modulated& m) {
  for (const Tensor& v : {m.scale, m.shift})
    check(!v || v.shape() == Shape{x.dim(0), x.dim(-1)}, "{}: scale {} and shift {} do not fit input {}", op,
          m.scale.shape(), m.shift.shape(), x.shape());
}

Tensor gradient_of(const Tensor& x) { return x.tracked() ? Input(x).empty() : Tensor(); }
Tensor gradient_of(const Input& x) { return x.tracked() ? x.room() : Tensor(); }

// The identity of an optional input; a detached x stands in for an absent one.
Input identity(const Tensor& optional, const Tensor& x) { return optional ? optional : x.detached(); }

Modulation views(const Modulated& m) { return {m.scale, m.shift}; }

struct KindOfNorm {
  const Op& op;
  void (Backend::*forward)(const NormArgs&);
  void (Backend::*backward)(const NormArgs&, const NormGradients&);
  bool has_mean;
};
const KindOfNorm kLayer{kLayerNorm, &Backend::layer_norm, &Backend::layer_norm_backward, true},
    kRms{kRmsNorm, &Backend::rms_norm, &Backend::rms_norm_backward, false};

struct NormOfRows {
  const KindOfNorm& kind;
  Tensor w, b;  // may be empty
  float eps;
  Modulated m;

  struct Outputs {
    Tensor y, mean, rstd;
  };
  Outputs outputs(const Tensor& x) const {
    check_vectors(kind.op.name(), x, w, b);
    check_modulation(kind.op.name(), x, m);
    const Shape rows(x.shape().begin(), x.shape().end() - 1);
    const auto statistic = [&] { return Tensor::empty(rows, DType::f32, x.memory()); };
    return {Tensor::empty(x.shape(), x.dtype(), x.memory()), kind.has_mean ? statistic() : Tensor(), statistic()};
  }
  NormArgs args(const Tensor& x, const Outputs& o) const {
    return {.y = o.y, .mean = o.mean, .rstd = o.rstd, .x = x, .w = w, .b = b, .m = views(m), .eps = eps};
  }
  Tensor operator()(const Tensor& x) const {
    const Outputs o = outputs(x);
    (x.backend().*kind.forward)(args(x, o));
    return recorded(x, o);
  }
  Tensor recorded(const Tensor& x, const Outputs& o) const {
    const Input of_x = x, of_w = identity(w, x), of_b = identity(b, x), of_scale = identity(m.scale, x),
                of_shift = identity(m.shift, x);
    const auto gradient = [=, norm = *this, mean = o.mean, rstd = o.rstd](const Tensor& dy, Grads& grads) {
      const Tensor residual = grads.take(of_x.id), dx = gradient_of(of_x), dw = gradient_of(norm.w),
                   db = gradient_of(norm.b);
      const Modulated dm{gradient_of(norm.m.scale), gradient_of(norm.m.shift)};
      (dy.backend().*norm.kind.backward)(
          norm.args(x, {{}, mean, rstd}),
          {.dx = dx, .dw = dw, .db = db, .dm = views(dm), .dy = dy, .residual = residual});
      grads.add(of_x, dx);
      grads.add(of_w, dw);
      grads.add(of_b, db);
      grads.add(of_scale, dm.scale);
      grads.add(of_shift, dm.shift);
    };
    const auto again = [=, norm = *this] {
      const Outputs made{Tensor::empty(x.shape(), x.dtype(), x.memory()), {}, {}};
      (x.backend().*norm.kind.forward)(norm.args(x, made));
      return made.y;
    };
    return record(kind.op, o.y, {of_x, of_w, of_b, of_scale, of_shift}, gradient, again);
  }
};

}  // namespace

Tensor group_norm(const Tensor& x, const Tensor& w, const Tensor& b, int groups, float eps, bool silu) {
  check(w && b, "group_norm: weight or bias is missing");
  check_vectors("group_norm", x, w, b);
  check(groups > 0 && x.dim(-1) % groups == 0, "group_norm: {} channels do not split into {} groups", x.dim(-1),
        groups);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  Tensor mean = Tensor::empty({x.dim(0), groups}, DType::f32, x.memory());
  Tensor rstd = Tensor::empty({x.dim(0), groups}, DType::f32, x.memory());
  const auto args = [=](const Tensor& to, const View& means, const View& rstds) -> GroupNormArgs {
    return {.y = to, .mean = means, .rstd = rstds, .x = x, .w = w, .b = b, .groups = groups, .eps = eps, .silu = silu};
  };
  x.backend().group_norm(args(y, mean, rstd));
  const auto gradient = [=](const Tensor& dy, Grads& grads) {
    const Tensor dx = gradient_of(x), dw = gradient_of(w), db = gradient_of(b);
    dy.backend().group_norm_backward(args({}, mean, rstd), {.dx = dx, .dw = dw, .db = db, .dy = dy});
    grads.add(x, dx);
    grads.add(w, dw);
    grads.add(b, db);
  };
  const auto again = [=] {
    Tensor made = Tensor::empty(x.shape(), x.dtype(), x.memory());
    made.backend().group_norm(args(made, {}, {}));
    return made;
  };
  return record(kGroupNorm, y, {x, w, b}, gradient, again);
}

Tensor layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, float eps, const Modulated& m) {
  return NormOfRows{kLayer, w, b, eps, m}(x);
}

Tensor rms_norm(const Tensor& x, const Tensor& w, float eps, const Modulated& m) {
  return NormOfRows{kRms, w, {}, eps, m}(x);
}

NormedSum gated_add_norm(const Tensor& x, const Tensor& gate, const Tensor& h, float eps, const Modulated& m) {
  check_gated_add(x, gate, h);
  const NormOfRows norm{kLayer, {}, {}, eps, m};
  const Tensor made = Tensor::empty(x.shape(), x.dtype(), x.memory());
  const NormOfRows::Outputs o = norm.outputs(made);
  made.backend().gated_add_norm({x, gate, h}, norm.args(made, o));
  const Tensor sum = record_gated_add(made, x, gate, h);
  return {sum, norm.recorded(sum, o)};
}

Tensor softmax(const Tensor& x) {
  check(x.rank() >= 1 && x.dim(-1) > 0, "softmax: the last axis of {} is empty", x.shape());
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.memory());
  x.backend().softmax(y, x);
  return record(kSoftmax, y, {x}, [x = Input(x), y](const Tensor& dy, Grads& grads) {
    Tensor dx = x.empty();
    dx.backend().softmax_backward(dx, dy, y);
    grads.add(x, dx);
  });
}

}  // namespace wick
