#include "wick/backend/cpu/cpu.h"

#include <hwy/targets.h>

#include <cstdlib>
#include <string_view>

#include "wick/core/error.h"

namespace wick {
namespace {

// WICK_CPU=avx2 or portable, for tests and timings: our kernels are those of a processor with AVX2, or with less.
void limit_instructions() {
  const char* given = std::getenv("WICK_CPU");
  if (!given) return;
  const std::string_view cpu = given;
  check(cpu == "avx2" || cpu == "portable", "WICK_CPU: expected avx2 or portable, found {}", cpu);
#if HWY_ARCH_X86
  const int64_t best = cpu == "avx2" ? HWY_AVX2 : HWY_SSSE3;  // better ones have lower bits
  hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & -best);
#endif
}

}  // namespace

Backend& cpu_backend() {
  static CpuBackend* backend = [] {
    limit_instructions();
    return new CpuBackend;  // outlives every static tensor
  }();
  return *backend;
}

}  // namespace wick
