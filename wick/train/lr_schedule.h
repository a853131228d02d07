// Learning rates over a run, as diffusers' get_scheduler() computes them.
#pragma once

#include <cstdint>

namespace wick {

enum class LrSchedule { constant, linear, cosine };

// The factor of the base learning rate at optimizer step `step`, counted from 0. It climbs from 0 to 1 over `warmup`
// steps, then stays (constant), or falls to 0 at step `total` along a line or half a cosine.
double lr_factor(LrSchedule schedule, int64_t step, int64_t warmup, int64_t total);

}  // namespace wick
