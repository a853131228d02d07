// A LoRA's gradients by hand, without a model and without a tape: lora_backward() for micro-batches of any shape,
// summed by a GradientAccumulator, applied by AdamW. It fits up·down to a matrix of rank 2.
#include <cstdio>
#include <exception>

#include "wick/wick.h"
using namespace wick;

int main() try {
  Rng rng(7);
  const int64_t in = 24, out = 16, rank = 2;
  const Tensor wanted = matmul(random_normal({in, rank}, rng), random_normal({rank, out}, rng));
  const Tensor down = (0.2f * random_normal({rank, in}, rng)).trainable(), up = zeros({out, rank}).trainable();
  Optimizer optimizer({{"down", down}, {"up", up}}, {.rule = {.weight_decay = 0}, .lr = 0.05f});

  GradientAccumulator gradients;
  for (int step = 1; step <= 300; ++step) {
    float loss = 0;
    for (int micro = 0; micro < 4; ++micro) {
      const Tensor x = random_normal({2, 8, in}, rng);  // any leading dimensions
      const Tensor error = matmul(matmul(x, transpose(down, 0, 1)), transpose(up, 0, 1)) - matmul(x, wanted);
      const LoraGrads g = lora_backward((2.0f / float(error.numel())) * error, x, down, up, 1.0f);
      gradients.add(down, g.grad_down);
      gradients.add(up, g.grad_up);
      loss += mean(square(error)).item() / 4;
    }
    optimizer.step(gradients.take(), 1.0f / 4);
    if (step == 1 || step % 100 == 0) std::printf("%4d  loss %.6f\n", step, double(loss));
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "lora_backward: %s\n", e.what());
  return 1;
}
