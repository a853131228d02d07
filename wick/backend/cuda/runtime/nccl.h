// Collectives of several GPUs by NCCL, which is opened when the first is asked for.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>

#include "wick/backend/backend.h"

namespace wick {

std::string describe_nccl();  // for `wick doctor`: "NCCL 2.28.9", or why there is none

std::string nccl_id();  // a new one; throws Error where there is no NCCL
// Returns once all `count` members have called it, each for its thread's current device. Until then it calls
// `check_others`, whose throwing ends the wait.
std::unique_ptr<Collective> join_nccl(const std::string& id, cudaStream_t compute, int rank, int count,
                                      const std::function<void()>& check_others);

}  // namespace wick
