// How many threads are worth having.
#pragma once

#include <filesystem>

namespace wick {

// CPUs that this process may run on, and no more than its control group (of `root`, version 1 or 2) has time for: in a
// container the one often says all of a large machine and the other a few. At least 1.
int usable_cpus(const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace wick
