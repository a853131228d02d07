#include "wick/train/rank_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <vector>

#include "wick/backend/registry.h"
#include "wick/ranks/socket.h"

namespace wick {
namespace {

constexpr size_t kUnknown = std::numeric_limits<size_t>::max();

struct Told {
  std::string machine;
  size_t device, locked, all;
};

Told told_by(const std::string& message) {
  Told told;
  std::istringstream(message) >> told.device >> told.locked >> told.all >> told.machine;
  return told;
}

}  // namespace

RankMemory least_memory(Ranks& ranks, std::string_view device, const std::string& host_memory, bool of_one_process) {
  const HostLimit host = host_limit(host_memory).value_or(HostLimit{kUnknown, kUnknown});
  const std::vector<std::string> messages =
      ranks.exchange(fmt::format("{} {} {} {}", free_memory(device).value_or(kUnknown), host.locked, host.all,
                                 ranks.count() == 1 ? "alone" : host_name()));
  std::vector<Told> all;
  for (const std::string& message : messages) all.push_back(told_by(message));
  size_t on_device = kUnknown;
  HostLimit on_host{kUnknown, kUnknown, of_one_process ? size_t(ranks.count()) : 1};
  for (const Told& told : all) {
    const size_t sharing = size_t(std::ranges::count(all, told.machine, &Told::machine));
    if (told.device != kUnknown) on_device = std::min(on_device, told.device / (device == "cpu" ? sharing : 1));
    if (told.locked == kUnknown) continue;
    const HostLimit share = HostLimit{told.locked, told.all}.share_of(of_one_process ? 1 : sharing);
    on_host.locked = std::min(on_host.locked, share.locked);
    on_host.all = std::min(on_host.all, share.all);
  }
  return {.device = on_device == kUnknown ? std::nullopt : std::optional(on_device),
          .host = on_host.locked == kUnknown ? std::nullopt : std::optional(on_host)};
}

}  // namespace wick
