// Which kernels run on a device, as `wick doctor` tells it: the plans of some shapes that models have.
#pragma once

#include <string>

#include "wick/backend/cuda/gpu.h"

namespace wick {

// "SHAPE: PLAN; SHAPE: PLAN; ..."; `cudnn`: it was found.
std::string describe_kernels(const Gpu& gpu, bool cudnn);

}  // namespace wick
