// Wick's side of bench/llm_cpu.
//
//   bench_llm_cpu MODEL.gguf      for each line "PROMPT TOKENS" on stdin, reads a prompt of random ids and draws so
//   many
//                                 tokens: prints a list of milliseconds, the prompt's and each token's after the first
//   bench_llm_cpu --write FILE.gguf f32|q8_0|q4_0      a model of 349 M parameters with random weights, always the same
#include "timing.h"
#include "wick/io/gguf.h"
#include "wick/ops/ops.h"
#include "wick/pipelines/text_generation.h"

namespace {

using namespace wick;

constexpr int64_t kVocab = 32000, kHidden = 1024, kWide = 2816, kLayers = 24, kHeads = 16, kKvHeads = 8,
                  kContext = 1024;

GgufMetadata::Entries metadata() {
  return {{"general.architecture", std::string("llama")},
          {"llama.block_count", uint32_t(kLayers)},
          {"llama.context_length", uint32_t(kContext)},
          {"llama.embedding_length", uint32_t(kHidden)},
          {"llama.feed_forward_length", uint32_t(kWide)},
          {"llama.attention.head_count", uint32_t(kHeads)},
          {"llama.attention.head_count_kv", uint32_t(kKvHeads)},
          {"llama.attention.layer_norm_rms_epsilon", 1e-5f},
          {"llama.rope.dimension_count", uint32_t(kHidden / kHeads)},
          {"llama.vocab_size", uint32_t(kVocab)},
          {"tokenizer.ggml.model", std::string("none")}};
}

void write_model(const char* path, const std::string& type) {
  constexpr DType kTypes[] = {DType::f32, DType::q8_0, DType::q4_0};
  const DType* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](DType t) { return name_of(t) == type; });
  check(found != std::end(kTypes), "--write: expected f32, q8_0 or q4_0, found {}", type);
  const DType dtype = *found;
  Rng rng(1);
  std::vector<GgufEntry> tensors;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
    tensors.push_back({name + ".weight", dtype, {rows, columns}, [=, &rng] {
                         const Tensor w = Tensor::empty({rows, columns}, dtype);
                         w.backend().copy(w, random_normal({rows, columns}, rng) * 0.02f);
                         return w;
                       }});
  };
  const auto ones = [&](const std::string& name) {
    tensors.push_back({name + ".weight", DType::f32, {kHidden}, [] {
                         return Tensor::of(std::vector<float>(kHidden, 1), {kHidden});
                       }});
  };
  matrix("token_embd", kVocab, kHidden);
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string block = fmt::format("blk.{}.", i);
    const int64_t keys = kHidden / kHeads * kKvHeads;
    ones(block + "attn_norm");
    matrix(block + "attn_q", kHidden, kHidden);
    matrix(block + "attn_k", keys, kHidden);
    matrix(block + "attn_v", keys, kHidden);
    matrix(block + "attn_output", kHidden, kHidden);
    ones(block + "ffn_norm");
    matrix(block + "ffn_gate", kWide, kHidden);
    matrix(block + "ffn_up", kWide, kHidden);
    matrix(block + "ffn_down", kHidden, kWide);
  }
  ones("output_norm");
  matrix("output", kVocab, kHidden);
  save_gguf(path, metadata(), tensors);
}

// Milliseconds of a prompt until its first token is drawn, and of each token after that.
std::vector<double> answer(Generator& generator, int64_t prompt, int64_t tokens, Rng& rng) {
  TextRequest request{.max_tokens = tokens, .sampling = {.temperature = 0}};
  for (int64_t i = 0; i < prompt; ++i) request.prompt.push_back(int64_t(rng.below(kVocab)));
  std::vector<double> times;
  double last = bench::now();
  const TextStream stream{[](int64_t) { return std::string("."); }, [] { return std::string(); }};
  generator(request, stream, [&](std::string_view) {
    times.push_back(bench::now() - last);
    last += times.back();
    return true;
  });
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  cpu_backend();
  const bool writes = argc == 4 && std::string(argv[1]) == "--write";
  if (!writes && argc != 2) {
    fmt::print(stderr, "bench_llm_cpu: expected MODEL.gguf, or --write FILE.gguf and a type\n");
    return 2;
  }
  if (writes) try {
      write_model(argv[2], argv[3]);
      return 0;
    } catch (const Error& error) {
      fmt::print(stderr, "bench_llm_cpu: {}\n", error.what());
      return 1;
    }
  const Llama model = Llama::load(argv[1]);
  Generator generator(model, kContext);
  fmt::print("{}\n", bench::libraries());
  std::fflush(stdout);
  Rng rng(2);
  for (int64_t prompt, tokens; std::cin >> prompt >> tokens;) {
    fmt::print("[{:.6f}]\n", fmt::join(answer(generator, prompt, tokens, rng), ", "));
    std::fflush(stdout);
  }
}
