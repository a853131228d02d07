// Collectives of several GPUs by NCCL, which is opened when the first is asked for.
#pragma once

#include <string>

namespace wick {

std::string describe_nccl();  // for `wick doctor`: "NCCL 2.28.9", or why there is none

}  // namespace wick
