#include "wick/ops/conv.h"

#include "wick/ops/elementwise.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {
const Op kConv2d("conv2d"), kUpsampleNearest("upsample_nearest");
}

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2d& conv, const Tensor& added) {
  check(x.rank() == 4 && w.rank() == 4 && x.dim(3) == w.dim(3),
        "conv2d: weight {} [O, KH, KW, I] does not fit input {} [B, H, W, C]", w.shape(), x.shape());
  check(!bias || (bias.rank() == 1 && bias.dim(0) == w.dim(0)), "conv2d: bias does not fit weight {}", w.shape());
  const int64_t h = x.dim(1) + conv.top + conv.bottom - w.dim(1), v = x.dim(2) + conv.left + conv.right - w.dim(2);
  check(h >= 0 && v >= 0, "conv2d: input {} is smaller than the kernel {}", x.shape(), w.shape());
  Tensor y = Tensor::empty({x.dim(0), h / conv.stride + 1, v / conv.stride + 1, w.dim(0)}, x.dtype(), x.memory());
  x.backend().conv2d(y, x, w, bias ? bias.view() : View{}, added ? expand(added.detached(), y.shape()).view() : View{},
                     conv);

  const Saved saved_x = w.tracked() ? Saved(x) : Saved();
  const Tensor b = bias ? bias : w.detached(), a = added ? added : w.detached();  // a constant stands in for none
  return record(kConv2d, y, {x, w, b, a},
                [=, x = Input(x), b = Input(b), a = Input(a)](const Tensor& dy, Grads& grads) {
                  if (grads.wants(a)) grads.add(a, sum_to(dy, a.shape));
                  if (grads.wants(x)) {
                    Tensor dx = x.empty();
                    dx.backend().conv2d_backward_input(dx, dy, w, conv);
                    grads.add(x, dx);
                  }
                  if (!w.tracked() && !b.tracked()) return;
                  const Tensor dw = w.tracked() ? Tensor::empty(w.shape(), DType::f32, w.memory()) : Tensor();
                  const Tensor db = b.tracked() ? b.empty() : Tensor();
                  dy.backend().conv2d_backward_weight(dw, db, dy, saved_x(), conv);
                  grads.add(w, dw);
                  grads.add(b, db);
                });
}

Tensor upsample_nearest(const Tensor& x, int factor) {
  check(x.rank() == 4 && factor >= 1,
        "upsample_nearest: expected [B, H, W, C] and a factor of 1 or more, got {} and {}", x.shape(), factor);
  Tensor y = Tensor::empty({x.dim(0), x.dim(1) * factor, x.dim(2) * factor, x.dim(3)}, x.dtype(), x.memory());
  x.backend().upsample_nearest(y, x);
  return record(kUpsampleNearest, y, {x}, [x = Input(x)](const Tensor& dy, Grads& grads) {
    Tensor dx = x.empty();
    dx.backend().upsample_nearest_backward(dx, dy);
    grads.add(x, dx);
  });
}

}  // namespace wick
