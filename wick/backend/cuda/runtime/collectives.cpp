// The engine of a collective: copy engines within a process, NCCL between processes.
#include <atomic>

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/cuda/runtime/nccl.h"
#include "wick/backend/cuda/runtime/peers.h"

namespace wick {
namespace {

constexpr std::string_view kOfThreads = "threads ", kByHost = "by host ";  // begin an id, and none of NCCL's

}  // namespace

std::string CudaBackend::collective_id(CollectiveUse use) {
  static std::atomic<int> count{0};
  if (!use.are_threads) return nccl_id();
  return fmt::format("{}{}", use.are_light ? kByHost : kOfThreads, count++);
}

std::unique_ptr<Collective> CudaBackend::join_collective(const std::string& id, int rank, int count,
                                                         const std::function<void()>& check_others) {
  cuda_check(cudaSetDevice(device_), "cudaSetDevice");
  const bool by_host = id.starts_with(kByHost);
  if (!by_host && !id.starts_with(kOfThreads)) return join_nccl(id, stream_, rank, count, check_others);
  return join_peers(id, {device_, rank, count, by_host}, stream_, check_others);
}

}  // namespace wick
