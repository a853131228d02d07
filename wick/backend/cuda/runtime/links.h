// The ways between devices, for `wick doctor`: what CUDA says of them, and NVML where it can be opened.
#pragma once

#include <vector>

#include "wick/backend/module.h"

namespace wick {

std::vector<LinkReport> describe_links(int devices);  // a row a pair

}  // namespace wick
