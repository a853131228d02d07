#include "wick/train/lr_schedule.h"

#include <algorithm>
#include <cmath>

namespace wick {

double lr_factor(LrSchedule schedule, int64_t step, int64_t warmup, int64_t total) {
  if (step < warmup) return double(step) / double(warmup);
  const double progress = std::min(1.0, double(step - warmup) / double(std::max<int64_t>(1, total - warmup)));
  switch (schedule) {
    case LrSchedule::constant:
      return 1;
    case LrSchedule::linear:
      return 1 - progress;
    case LrSchedule::cosine:
      return 0.5 * (1 + std::cos(M_PI * progress));
  }
  return 1;
}

}  // namespace wick
