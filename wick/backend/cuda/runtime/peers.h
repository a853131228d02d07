// Collectives of devices in one process that reach each other's memory: copy engines move the data, so that no
// multiprocessor is held while a sum waits for its links. Kernels of NCCL hold some, and kernels of backward that fill
// all of them wait for those (docs/decisions/005-copy-engines-sum-gradients.md).
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "wick/backend/backend.h"

namespace wick {

// Returns once all `count` members, threads of this process, have called it with one id, each with a device of its own
// that is its thread's current one. Null for all where two of them have no peer access, or where NCCL_P2P_DISABLE=1
// says not to use it.
std::unique_ptr<Collective> join_peers(const std::string& id, int device, cudaStream_t compute, int rank, int count);

// Of the thread's own member, if there is one. A driver's call may hold a lock of the process while it waits for its
// device, which waits for another one, whose thread waits for the lock: an allocation is also mapped for all peers. So
// members meet before they launch what waits, and none makes any call until all have launched it.
bool has_captured_waits();  // since the last call
void meet_peers();          // all members; throws Error once they are told to stop

}  // namespace wick
