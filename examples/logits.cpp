// A language model by hand: a prompt, then token by token with a cache.   logits MODEL
#include <algorithm>
#include <cstdio>
#include <exception>

#include "wick/wick.h"
using namespace wick;

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fputs("usage: logits MODEL\n", stderr);
    return 2;
  }
  const Llama model = Llama::load(argv[1]);
  KvCache cache(model.config(), /*batch=*/1, /*capacity=*/32, model.place());
  std::vector<int64_t> ids = {1, 5, 9};
  for (int step = 0; step < 8; ++step) {
    const int64_t tokens = int64_t(ids.size());
    const TokenPlan plan = cache.extend({tokens});
    const Tensor hidden = model(Tensor::of(ids, {1, tokens}), plan, &cache);
    const std::vector<float> logits = model.logits(slice(hidden, 1, tokens - 1, tokens)).to_vector();
    ids = {std::max_element(logits.begin(), logits.end()) - logits.begin()};
    std::printf("%lld%s", static_cast<long long>(ids.front()), step == 7 ? "\n" : " ");
  }
  std::printf("weights %zu bytes, cache %zu\n", estimate_model_memory(model.config(), DType::f32),
              estimate_kv_cache_memory(model.config(), 1, 32, DType::f32));
} catch (const std::exception& e) {
  std::fprintf(stderr, "logits: %s\n", e.what());
  return 1;
}
