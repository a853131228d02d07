// The engine of a collective: copy engines within a process where devices reach each other's memory, else NCCL.
#include <atomic>
#include <map>
#include <mutex>

#include "wick/backend/cuda/cuda.h"
#include "wick/backend/cuda/runtime/nccl.h"
#include "wick/backend/cuda/runtime/peers.h"

namespace wick {
namespace {

constexpr const char* kOfThreads = "threads ";  // begins an id, and no id of NCCL's

// That of the threads whose devices do not reach each other: the first to ask makes it.
std::string nccl_id_of(const std::string& threads) {
  static std::mutex mutex;
  static std::map<std::string, std::string> ids;
  const std::lock_guard lock(mutex);
  std::string& id = ids[threads];
  if (id.empty()) id = nccl_id();
  return id;
}

}  // namespace

std::string CudaBackend::collective_id(bool of_threads) {
  static std::atomic<int> count{0};
  return of_threads ? fmt::format("{}{}", kOfThreads, count++) : nccl_id();
}

std::unique_ptr<Collective> CudaBackend::join_collective(const std::string& id, int rank, int count) {
  cuda_check(cudaSetDevice(device_), "cudaSetDevice");
  if (!id.starts_with(kOfThreads)) return join_nccl(id, stream_, rank, count);
  if (auto peers = join_peers(id, device_, stream_, rank, count)) return peers;
  return join_nccl(nccl_id_of(id), stream_, rank, count);
}

}  // namespace wick
