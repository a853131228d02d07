#include "wick/train/fault.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "wick/core/error.h"

namespace wick {

std::optional<Fault> Fault::from_environment() {
  const char* const text = std::getenv("WICK_FAULT");
  if (!text || !*text) return {};
  long long rank = -1, step = -1;
  int end = 0;
  const bool ok = std::sscanf(text, "device:%lld:%lld%n", &rank, &step, &end) == 2 && text[end] == 0;
  check_usage(ok && rank >= 0 && step > 0, "WICK_FAULT: expected device:RANK:STEP, found '{}'", text);
  return Fault{rank, step};
}

void Fault::strike(int64_t at_rank, int64_t at_step, std::string_view device) const {
  if (at_rank != rank || at_step != step) return;
  fail("{}: launching a step failed: the device is lost (WICK_FAULT)", device);
}

}  // namespace wick
