// The number of threads worth having.
#pragma once

#include <filesystem>

namespace wick {

struct CpuLimits {
  int usable = 1;  // the CPUs of the affinity mask, but no more than the quota rounded up; at least 1
  bool quota_binds =
      false;  // a quota below the CPUs of the affinity mask: time that a thread spends waiting is lost to others
};

// What this process may use: its affinity mask, and the smallest CPU quota of its control group and all parents of
// that. `group` lists the control groups of the process (proc(5), /proc/PID/cgroup), `root` is where their file systems
// lie. Reads version 2 (cpu.max), version 1 (cpu.cfs_quota_us) and both side by side.
CpuLimits cpu_limits(const std::filesystem::path& root = "/sys/fs/cgroup",
                     const std::filesystem::path& group = "/proc/self/cgroup");
inline int usable_cpus() { return cpu_limits().usable; }

}  // namespace wick
