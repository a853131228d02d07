// llama.cpp's side of bench/llm_cpu: its CPU backend as it comes, weights repacked where it can, attention as it
// chooses. Arguments and protocol are those of bench/llm_cpu.cpp; and
//
//   llama_cpu --quantize FROM.gguf TO.gguf      to Q4_K_M, a mix of types that Wick only reads
#include <llama.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kContext = 1024;

int threads() {
  const char* given = std::getenv("OMP_NUM_THREADS");
  return given ? std::atoi(given) : 2;
}

// Milliseconds: of the clock, or a lone thread's CPU time, which other processes do not slow down.
double now() {
  timespec time{};
  clock_gettime(threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) * 1e3 + double(time.tv_nsec) * 1e-6;
}

void fail(const char* what) {
  std::fprintf(stderr, "llama_cpu: %s\n", what);
  std::exit(1);
}

int quantize(const char* from, const char* to) {
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_MOSTLY_Q4_K_M;
  return int(llama_model_quantize(from, to, &params));
}

// The likeliest token behind `ids`.
llama_token next(llama_context* context, std::vector<llama_token> ids, int vocab) {
  if (llama_decode(context, llama_batch_get_one(ids.data(), int(ids.size()))) != 0) fail("llama_decode failed");
  const float* logits = llama_get_logits_ith(context, -1);
  return llama_token(std::max_element(logits, logits + vocab) - logits);
}

}  // namespace

int main(int argc, char** argv) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  if (argc == 4 && std::string(argv[1]) == "--quantize") return quantize(argv[2], argv[3]);
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) fail("the model could not be loaded");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kContext;
  params.n_batch = kContext;
  params.n_threads = params.n_threads_batch = threads();
  llama_context* context = llama_init_from_model(model, params);
  if (!context) fail("no context");
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::printf("llama.cpp with ggml %s, g++ %s, %d threads\n", ggml_version(), __VERSION__, threads());
  std::fflush(stdout);
  std::mt19937 rng(2);
  for (int prompt, tokens; std::cin >> prompt >> tokens;) {
    std::vector<llama_token> ids(static_cast<size_t>(prompt));
    for (llama_token& id : ids) id = llama_token(rng() % unsigned(vocab));
    llama_memory_clear(llama_get_memory(context), false);
    double last = now();
    llama_token id = next(context, ids, vocab);
    for (int i = 1; i <= tokens; ++i) {
      const double time = now();
      std::printf("%s%.6f", i == 1 ? "[" : ", ", time - last);
      last = time;
      if (i < tokens) id = next(context, {id}, vocab);
    }
    std::printf("]\n");
    std::fflush(stdout);
  }
}
