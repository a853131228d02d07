// Collectives of devices in one process that reach each other's memory: copy engines move the data, so that no
// multiprocessor is held while a sum waits for its links. Kernels of NCCL hold some, and kernels of backward that fill
// all of them wait for those (docs/decisions/peer-copies.md).
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "wick/backend/backend.h"

namespace wick {

// What members need to find each other. The id of a group is a word that all are given.
class PeerGroup;

// Returns once all `count` members, threads of this process, have called it with the group's id, each with a device of
// its own. Null for all where two of them have no peer access, or where NCCL_P2P_DISABLE says not to use it.
std::unique_ptr<Collective> join_peers(const std::string& id, int device, cudaStream_t compute, int rank, int count);

}  // namespace wick
