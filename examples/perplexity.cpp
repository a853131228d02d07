// The perplexity of texts for a language model:   perplexity MODEL LINES.jsonl [LORA]
#include <cmath>
#include <cstdio>
#include <exception>

#include "wick/wick.h"
using namespace wick;

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fputs("usage: perplexity MODEL LINES.jsonl [LORA]\n", stderr);
    return 2;
  }
  Adapter lora(llama_module_names());
  if (argc > 3) lora.add_file(argv[3]);
  const Llama model = Llama::load(argv[1], {.adapter = &lora});
  const int64_t context = model.config().positions;
  const TextDataset data = TextDataset::read({argv[2]}, TextEncoder(argv[1]), context, LongDocuments::split);
  const double loss = total_loss(model, data.documents, data.longest, /*batch_size=*/4) / double(data.counted);
  std::printf("perplexity %.3f, of %lld tokens\n", std::exp(loss), static_cast<long long>(data.counted));
} catch (const std::exception& e) {
  std::fprintf(stderr, "perplexity: %s\n", e.what());
  return 1;
}
