#include "wick/core/cpus.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace wick {
namespace {

// quota / period, rounded up; 0 without a quota, which is "max" in version 2 and -1 in version 1.
int cpus_of(const std::string& quota, const std::string& period) {
  const double time = std::atof(quota.c_str()), every = std::atof(period.c_str());
  return time > 0 && every > 0 ? int(time / every + 0.999) : 0;
}

int quota(const std::filesystem::path& root) {
  std::string time, every;
  if (std::ifstream(root / "cpu.max") >> time >> every) return cpus_of(time, every);  // "200000 100000", microseconds
  std::ifstream(root / "cpu/cpu.cfs_quota_us") >> time;
  std::ifstream(root / "cpu/cpu.cfs_period_us") >> every;
  return cpus_of(time, every);
}

}  // namespace

int usable_cpus(const std::filesystem::path& root) {
  cpu_set_t allowed;
  const int count = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  const int paid = quota(root);
  return std::max(1, paid > 0 ? std::min(count, paid) : count);
}

}  // namespace wick
