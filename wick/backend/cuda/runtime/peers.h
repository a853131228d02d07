// Collectives of devices in one process. Copy engines move the data, so that no multiprocessor is held while a sum
// waits for its links; kernels of NCCL hold some. They go straight to the others' memory, or through the host's
// (docs/decisions/005-copy-engines-sum-gradients.md).
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>

#include "wick/backend/backend.h"

namespace wick {

struct PeerMember {
  int device, rank, count;
  bool by_host;  // through the host's memory, on any route that devices have to each other
};

// Returns once all members, threads of this process, have called it with one id, each with a device of its own that is
// its thread's current one. The sums go through the host's memory also where two of them have no peer access.
// Until then it calls `check_others`, whose throwing ends the wait.
std::unique_ptr<Collective> join_peers(const std::string& id, const PeerMember& own, cudaStream_t compute,
                                       const std::function<void()>& check_others);

// Both act on the calling thread's member, and do nothing in a thread without one. Members meet before and after they
// launch a graph that waits for other devices. Otherwise a thread could call the driver in between and hold its lock
// until its own device is idle, while that device waits for another one, whose thread waits for the lock.
bool has_captured_waits();  // whether the member has captured any since the last call
void meet_peers();          // returns once all members have called it; throws Error once they are told to stop

}  // namespace wick
