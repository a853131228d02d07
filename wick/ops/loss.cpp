#include "wick/ops/loss.h"

#include <algorithm>

#include "wick/ops/shape.h"

namespace wick {
namespace {

const Op kMseLoss("mse_loss"), kCrossEntropy("cross_entropy"), kLinearCrossEntropy("linear_cross_entropy");

void check_targets(const char* op, const Tensor& x, const TokenTargets& t) {
  const int64_t tokens = x.rank() >= 1 && x.dim(-1) > 0 ? x.numel() / x.dim(-1) : 0;
  check(t.ids.shape() == Shape{tokens} && t.ids.dtype() == DType::i64 && t.weights.shape() == t.ids.shape() &&
            t.weights.dtype() == DType::f32,
        "{}: targets {} {} and weights {} {} do not fit input {}", op, name_of(t.ids.dtype()), t.ids.shape(),
        name_of(t.weights.dtype()), t.weights.shape(), x.shape());
}

Tensor product(const Tensor& a, const Tensor& b, DType dtype) {
  Tensor y = Tensor::empty(a.shape(), dtype, a.memory());
  y.backend().binary(Binary::mul, y, a, expand(b, a.shape()));
  return y;
}

Tensor total(const Tensor& losses, const Tensor& weights) {
  Tensor loss = Tensor::empty({1}, DType::f32, losses.memory());
  loss.backend().sum(loss, product(losses, weights, DType::f32));
  return loss;
}

// Rows of gradients times the weights of their losses in the sum.
Tensor weighted(const Tensor& gradients, const Tensor& weights, const Tensor& dloss) {
  return product(gradients, reshape(product(weights, dloss, DType::f32), {-1, 1}), gradients.dtype());
}

// Loss and gradients of logits that exist a chunk at a time.
struct ChunkedEntropy {
  Tensor x, w, ids, weights;  // x [N, K], w [V, K]
  Tensor losses = Tensor::empty(ids.shape(), DType::f32, x.memory());
  Tensor dx = {};  // [N, K], of the single losses: their weights, which may be small, come in last
  Tensor dw = {};  // of the weighted sum

  void run(int64_t chunk, bool wants_x, bool wants_w) {
    Backend& backend = x.backend();
    if (wants_x) dx = Tensor::empty(x.shape(), x.dtype(), x.memory());
    if (wants_w) dw = zeros(w.shape(), w.dtype(), w.memory());
    for (int64_t begin = 0; begin < x.dim(0); begin += chunk) {
      const auto part = [&](const Tensor& t) { return slice(t, 0, begin, std::min(begin + chunk, x.dim(0))); };
      const Tensor inputs = part(x);
      const Tensor logits = Tensor::empty({inputs.dim(0), w.dim(0)}, x.dtype(), x.memory());
      backend.linear(logits, inputs, w, {});
      backend.cross_entropy(part(losses), wants_x || wants_w ? logits.view() : View(), logits, part(ids));
      if (wants_x) backend.matmul(part(dx), logits, w, 1, 0);
      if (!wants_w) continue;
      const Tensor scaled = product(inputs, reshape(part(weights), {-1, 1}), x.dtype());
      backend.matmul(dw, transpose(logits, 0, 1), scaled, 1, 1);
    }
  }
};

}  // namespace

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

TokenTargets TokenTargets::mean(const Tensor& host_ids, int64_t vocabulary, Memory& memory) {
  check(host_ids.dtype() == DType::i64, "targets: ids must be i64, got {}", name_of(host_ids.dtype()));
  const Tensor ids = contiguous(host_ids);
  const int64_t* begin = ids.data<int64_t>();
  const int64_t* end = begin + ids.numel();
  for (const int64_t* id = begin; id != end; ++id)
    check(*id < vocabulary, "targets: id {} is not within a vocabulary of {}", *id, vocabulary);
  const auto counted = std::count_if(begin, end, [](int64_t id) { return id >= 0; });
  std::vector<float> weights;
  for (const int64_t* id = begin; id != end; ++id) weights.push_back(*id < 0 ? 0 : 1 / float(counted));
  return {reshape(ids, {-1}).to(memory), Tensor::of(weights, {ids.numel()}, memory)};
}

Tensor cross_entropy(const Tensor& logits, const TokenTargets& targets) {
  check_targets("cross_entropy", logits, targets);
  const Tensor losses = Tensor::empty(targets.ids.shape(), DType::f32, logits.memory()), x = rows(logits);
  logits.backend().cross_entropy(losses, {}, x, targets.ids);
  return record(kCrossEntropy, total(losses, targets.weights), {logits},
                [x, losses, targets, logits = Input(logits)](const Tensor& dloss, Grads& grads) {
                  const Tensor slopes = Tensor::empty(x.shape(), x.dtype(), x.memory());
                  slopes.backend().cross_entropy(losses, slopes, x, targets.ids);
                  grads.add(logits, reshape(weighted(slopes, targets.weights, dloss), logits.shape));
                });
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& w, const TokenTargets& targets, int64_t chunk) {
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1) && w.dim(0) > 0,
        "linear_cross_entropy: weight {} does not fit input {}", w.shape(), x.shape());
  check_targets("linear_cross_entropy", x, targets);
  constexpr int64_t kLogits = int64_t{1} << 24;  // as many as keep products efficient
  if (chunk <= 0) chunk = std::max<int64_t>(kLogits / w.dim(0), 16);
  const bool taped = Tape::active() != nullptr;
  ChunkedEntropy entropy{rows(x), w.detached(), targets.ids, targets.weights};
  entropy.run(chunk, taped && x.tracked(), taped && w.tracked());
  return record(kLinearCrossEntropy, total(entropy.losses, targets.weights), {x, w},
                [dx = entropy.dx, dw = entropy.dw, weights = targets.weights, x = Input(x), w = Input(w)](
                    const Tensor& dloss, Grads& grads) {
                  if (dx) grads.add(x, reshape(weighted(dx, weights, dloss), x.shape));
                  if (dw) grads.add(w, product(dw, dloss, dw.dtype()));
                });
}

}  // namespace wick
