// Completes a text, a piece at a time:   generate_text MODEL PROMPT TOKENS [LORA]
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "wick/wick.h"
using namespace wick;

int main(int argc, char** argv) try {
  if (argc < 4) {
    std::fputs("usage: generate_text MODEL PROMPT TOKENS [LORA]\n", stderr);
    return 2;
  }
  Adapter lora(llama_module_names());
  if (argc > 4) lora.add_file(argv[4]);
  const LanguageModel language = LanguageModel::load(argv[1], {.adapter = &lora});
  Generator generator(language.model, /*context=*/128);

  TextRequest request;
  request.prompt = language.tokenizer.encode(argv[2]);
  request.max_tokens = std::atoi(argv[3]);
  request.sampling = {.temperature = 0.7f, .top_p = 0.9f, .seed = 42};
  request.stop_ids = language.stop_ids();
  const TextAnswer answer = generator(request, language.stream(), [](std::string_view text) {
    std::printf("%.*s", int(text.size()), text.data());
    return true;
  });
  std::printf("\n%zu tokens, %s\n", answer.ids.size(), name_of(answer.finish));
} catch (const std::exception& e) {
  std::fprintf(stderr, "generate_text: %s\n", e.what());
  return 1;
}
