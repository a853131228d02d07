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
// that is its thread's current one. All get null where two of them have no peer access, or where NCCL_P2P_DISABLE=1
// says not to use it.
std::unique_ptr<Collective> join_peers(const std::string& id, int device, cudaStream_t compute, int rank, int count);

// Both act on the calling thread's member, and do nothing in a thread without one. Members meet before and after they
// launch a graph that waits for other devices. Otherwise a thread could call the driver in between and hold its lock
// until its own device is idle, while that device waits for another one, whose thread waits for the lock.
bool has_captured_waits();  // whether the member has captured any since the last call
void meet_peers();          // returns once all members have called it; throws Error once they are told to stop

}  // namespace wick
