// Trains a LoRA of a language model on JSON lines, and puts it into a GGUF file:
//   train_text_lora MODEL LINES.jsonl OUTPUT STEPS
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "wick/wick.h"
using namespace wick;

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fputs("usage: train_text_lora MODEL LINES.jsonl OUTPUT STEPS\n", stderr);
    return 2;
  }
  const std::filesystem::path model = argv[1], output = argv[3];
  Adapter lora({.rank = 8, .targets = llama_default_targets()}, llama_module_names());
  const Llama llama = Llama::load(model, {.adapter = &lora});
  const TextDataset data = TextDataset::read({argv[2]}, TextEncoder(model), /*sequence_length=*/64, LongDocuments::cut);
  PackedBatches batches(data.lengths(), /*row_length=*/64, /*batch_size=*/4, /*seed=*/42);
  Optimizer optimizer(lora.parameters(), {.lr = 1e-2f});

  for (int step = 1; step <= std::atoi(argv[4]); ++step) {
    const std::vector<PackedRow> rows = batches.next().items;
    const float weight = 1 / float(counted(data.documents, rows));
    Tape tape;
    const PackedBatch batch = pack(data.documents, rows, 64, weight, llama.config(), *llama.place().memory);
    const Tensor loss = llama.loss(llama(batch.ids, batch.plan), batch.targets);
    optimizer.step(tape.backward(loss));
    if (step % 5 == 0) std::printf("%4d  loss %.4f\n", step, double(loss.item()));
  }
  write_peft(output / "lora", lora.tensors(), {.layers = llama.config().layers});
  merge_loras(model, {{output / "lora"}}, output / "merged.gguf", DType::bf16);
} catch (const std::exception& e) {
  std::fprintf(stderr, "train_text_lora: %s\n", e.what());
  return 1;
}
