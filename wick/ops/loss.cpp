#include "wick/ops/loss.h"

namespace wick {
namespace {
const Op kMseLoss("mse_loss");
}

Tensor mse_loss(const Tensor& prediction, const Tensor& target) {
  check(prediction.shape() == target.shape() && prediction.numel() > 0,
        "mse_loss: prediction {} and target {} do not fit", prediction.shape(), target.shape());
  Tensor loss = Tensor::empty({1}, DType::f32, prediction.memory());
  prediction.backend().mse(loss, prediction, target);
  return record(kMseLoss, loss, {prediction},
                [prediction, target = target.detached()](const Tensor& dloss, Grads& grads) {
                  Tensor dx = Input(prediction).empty();
                  dx.backend().mse_backward(dx, dloss, prediction, target);
                  grads.add(prediction, dx);
                });
}

}  // namespace wick
