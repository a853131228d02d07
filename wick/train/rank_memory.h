// The memory that each rank of a run may take. All know the least of it, so that all choose alike: the size of batches,
// the precision of the base, the blocks that are computed twice or streamed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "wick/pipelines/weight_flags.h"
#include "wick/ranks/ranks.h"

namespace wick {

struct RankMemory {
  std::optional<size_t> device;   // the least that is free on a rank's device; none where it is not known
  std::optional<HostLimit> host;  // the least of the processes' shares of what --host-memory allows on their machines
};
// All ranks call it, each with its device ("cpu", "cuda:N"). Each is a process, or all are threads of one.
RankMemory least_memory(Ranks& ranks, std::string_view device, const std::string& host_memory,
                        bool of_one_process = false);

}  // namespace wick
