// A file of prompts of unknown origin: prompts with flags within their limits, or an Error of one line.
#include "wick/train/sample_prompts.h"

#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace wick;
  fuzz::attempt([&] {
    for (const SamplePrompt& p : parse_sample_prompts({reinterpret_cast<const char*>(data), size}, "prompts.txt")) {
      const bool is_right = prompt_of(p.line) == p.prompt && p.width.value_or(1) >= 1 &&
                            p.height.value_or(1) <= 16384 && p.steps.value_or(1) >= 1 && p.cfg.value_or(1) >= 1 &&
                            p.guidance.value_or(0) <= 100;
      if (!is_right || p.line.find('\n') != p.line.npos) std::abort();
    }
  });
  return 0;
}
