// The number of threads worth having.
#pragma once

#include <filesystem>

namespace wick {

// CPUs usable by this process: its affinity mask, capped by the CPU quota of its cgroup (under `root`, v1 or v2), which
// in containers is usually the smaller one. At least 1.
int usable_cpus(const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace wick
