#include "wick/core/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace wick {
namespace {

namespace fs = std::filesystem;

constexpr double kNone = std::numeric_limits<double>::infinity();

// quota / period in CPUs. None is "max" in version 2 and -1 in version 1.
double cpus_of(const std::string& quota, const std::string& period) {
  const double time = std::atof(quota.c_str()), every = std::atof(period.c_str());
  return time > 0 && every > 0 ? time / every : kNone;
}

double quota_of_folder(const fs::path& folder) {
  std::string time, every;
  if (std::ifstream(folder / "cpu.max") >> time >> every) return cpus_of(time, every);  // "200000 100000", microseconds
  std::ifstream(folder / "cpu.cfs_quota_us") >> time;
  std::ifstream(folder / "cpu.cfs_period_us") >> every;
  return cpus_of(time, every);
}

// Of the group at `path` below `mount` and all its parents. In a container the path may be the host's: what is missing
// here has no quota, and the mount itself is the container's group.
double smallest_quota(const fs::path& mount, const fs::path& path) {
  double smallest = quota_of_folder(mount);
  fs::path folder = mount;
  for (const fs::path& part : path.relative_path()) smallest = std::min(smallest, quota_of_folder(folder /= part));
  return smallest;
}

bool names_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');)
    if (name == "cpu") return true;
  return false;
}

// Where the file system of a hierarchy may lie: that of version 2 lies at the root, or at root/unified beside
// version 1.
std::vector<fs::path> mounts_of(const fs::path& root, const std::string& controllers) {
  if (controllers.empty()) return {root, root / "unified"};
  return {root / controllers, root / "cpu"};
}

// A line is "number:controllers:path"; that of version 2 names no controllers.
double quota(const fs::path& root, const fs::path& group) {
  double smallest = std::min(quota_of_folder(root), quota_of_folder(root / "cpu"));
  std::ifstream lines(group);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !names_cpu(controllers)) continue;
    for (const fs::path& mount : mounts_of(root, controllers))
      smallest = std::min(smallest, smallest_quota(mount, line.substr(second + 1)));
  }
  return smallest;
}

}  // namespace

CpuLimits cpu_limits(const fs::path& root, const fs::path& group) {
  cpu_set_t allowed;
  const int count = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? std::max(1, CPU_COUNT(&allowed)) : 1;
  const double paid = quota(root, group);
  if (paid >= count) return {.usable = count};
  return {.usable = std::max(1, int(std::ceil(paid - 1e-3))), .quota_binds = true};
}

}  // namespace wick
