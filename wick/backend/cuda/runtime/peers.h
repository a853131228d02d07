// Collectives of devices in one process. Copy engines move the data, so that no multiprocessor is held while a sum
// waits for its links; kernels of NCCL hold some. They go straight to the others' memory, or through the host's
// (docs/decisions/005-copy-engines-sum-gradients.md).
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "wick/backend/backend.h"

namespace wick {

struct PeerMember {
  int device, rank, count;
  bool by_host;  // through the host's memory, on any route that devices have to each other
};

// Returns once all members, threads of this process, have called it with one id, each with a device of its own that is
// its thread's current one. Through the host's memory too where two of them have no access to each other's.
std::unique_ptr<Collective> join_peers(const std::string& id, const PeerMember& own, cudaStream_t compute);

// Of the thread's own member, if there is one. A driver's call may hold a lock of the process while it waits for its
// device, which waits for another one, whose thread waits for the lock: an allocation is also mapped for all peers. So
// members meet before they launch what waits, and none makes any call until all have launched it.
bool has_captured_waits();  // since the last call
void meet_peers();          // all members; throws Error once they are told to stop

}  // namespace wick
