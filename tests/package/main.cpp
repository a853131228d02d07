// The library from another project: a LoRA's gradients, and a call into the room that needs all the rooms.
#include <cstdio>

#include "wick/wick.h"
using namespace wick;

int main() {
  Rng rng(1);
  const Tensor x = random_normal({3, 8}, rng), dy = random_normal({3, 5}, rng);
  const LoraGrads grads = lora_backward(dy, x, random_normal({2, 8}, rng), random_normal({5, 2}, rng), 1.0f);
  const TrainConfig config;
  std::printf("%lld x %lld, %lld steps\n", static_cast<long long>(grads.grad_down.dim(0)),
              static_cast<long long>(grads.grad_down.dim(1)), static_cast<long long>(config.kSteps));
  return grads.grad_down.shape() == Shape{2, 8} && train_options().size() > 10 ? 0 : 1;
}
