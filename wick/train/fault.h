// Faults on purpose, by which a run's ways of breaking are tried: WICK_FAULT=device:RANK:STEP loses that rank's device
// before that step.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace wick {

struct Fault {
  int64_t rank = 0, step = 0;

  // Of WICK_FAULT; none unless it is set. Throws UsageError where it makes no sense.
  static std::optional<Fault> from_environment();
  // Throws the error that the runtime of a lost device gives, if this is the rank and the step.
  void strike(int64_t at_rank, int64_t at_step, std::string_view device) const;
};

}  // namespace wick
