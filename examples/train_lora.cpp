// Trains a LoRA on a folder of captioned pictures:   train_lora MODEL PICTURES LORA.safetensors STEPS
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "wick/wick.h"
using namespace wick;

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fputs("usage: train_lora MODEL PICTURES LORA.safetensors STEPS\n", stderr);
    return 2;
  }
  const std::unique_ptr<Diffusion> model = open_diffusion(argv[1]);
  Adapter lora({.rank = 16, .targets = model->lora().default_targets}, model->lora().names);
  model->load({.adapter = &lora});
  LatentCache data(*model, Dataset::scan(argv[2], bucket_options(model->latents())));
  Optimizer optimizer(lora.parameters(), {.lr = 1e-4f});
  TrainRng rng(42);

  for (int step = 1; step <= std::atoi(argv[4]); ++step) {
    Tape tape;
    const Tensor loss = denoising_loss(*model, data.next(rng), rng);
    optimizer.step(tape.backward(loss));
    if (step % 5 == 0) std::printf("%4d  loss %.4f\n", step, double(loss.item()));
  }
  lora.save(argv[3], {});
} catch (const std::exception& e) {
  std::fprintf(stderr, "train_lora: %s\n", e.what());
  return 1;
}
