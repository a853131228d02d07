#include "wick/backend/cuda/runtime/ways.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "wick/backend/cuda/attention/plan.h"
#include "wick/backend/cuda/linear/fp8.h"
#include "wick/backend/cuda/linear/plan.h"

namespace wick {
namespace {

struct Family {
  std::string_view name;
  std::span<const std::string_view> ways;  // none: numbers, which the family reads itself
};

const Family kFamilies[] = {{"attention", kAttentionWays}, {"fp8", kFp8Ways},       {"linear", kLinearWays},
                            {"lora", kLoraWays},           {"sm80", kMmaTileNames}, {"sm90", {}}};

void check_entry(std::string_view name, std::string_view way) {
  std::vector<std::string_view> names;
  for (const Family& family : kFamilies) names.push_back(family.name);
  const auto family =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& f) { return f.name == name; });
  check(family != std::end(kFamilies), "WICK_CUDA_WAY: there is no family {}; there are {}", name,
        fmt::join(names, ", "));
  check(family->ways.empty() || std::find(family->ways.begin(), family->ways.end(), way) != family->ways.end(),
        "WICK_CUDA_WAY: {} has no way {}; it has {}", name, way, fmt::join(family->ways, ", "));
}

}  // namespace

std::string forced_way(std::string_view family) {
  const char* const given = std::getenv("WICK_CUDA_WAY");
  std::string_view rest = given ? given : "", found;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const size_t colon = std::min(entry.find(':'), entry.size());
    const std::string_view name = entry.substr(0, colon), way = entry.substr(std::min(colon + 1, entry.size()));
    check_entry(name, way);
    if (name == family) found = way;
  }
  return std::string(found);
}

bool explains() {
  static const bool on = std::getenv("WICK_CUDA_EXPLAIN") != nullptr;
  return on;
}

void explain(const std::string& shape, const std::string& plan) {
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::string line = fmt::format("{}: {}\n", shape, plan);
  const std::lock_guard lock(mutex);
  if (told.insert(line).second) std::fputs(line.c_str(), stderr);
}

}  // namespace wick
