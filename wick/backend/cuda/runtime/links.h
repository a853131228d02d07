// The ways between devices: what CUDA says of them, and NVML where it can be opened.
#pragma once

#include <vector>

#include "wick/backend/module.h"

namespace wick {

std::vector<LinkReport> describe_links(int devices);  // a row a pair
// Whether each has access to the other's memory; never with NCCL_P2P_DISABLE=1.
bool reach_each_other(int a, int b);

}  // namespace wick
