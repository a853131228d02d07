#include "wick/backend/cuda/runtime/nccl.h"

#include <dlfcn.h>

#include <cassert>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "wick/backend/cuda/runtime/check.h"
#include "wick/backend/cuda/runtime/event.h"

namespace wick {
namespace {

// The part of NCCL's C interface that is used, as nccl.h has it since 2.14: its header is not needed to build.
using Result = int;   // ncclResult_t
using Element = int;  // ncclDataType_t
using Comm = struct ncclComm*;
constexpr Result kSuccess = 0, kInProgress = 7;
constexpr Element kInt8 = 0, kFloat32 = 7;
constexpr int kSum = 0;  // ncclSum
struct UniqueId {
  char bytes[128];
};
struct Config {  // ncclConfig_v21400
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
  int unset = INT_MIN;  // a field that later versions have here
};

class Library {
  struct Symbol {
    void* address;
    template <class F>
    operator F() const {
      return reinterpret_cast<F>(address);
    }
  };

  static void* open() {
    const char* const given = std::getenv("WICK_NCCL");
    if (void* const handle = dlopen(given ? given : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) return handle;
    check(!given, "WICK_NCCL: {}", dlerror());
    fail(
        "NCCL: libnccl.so.2 was not found, which several GPUs need: install the system's package of it or PyPI's "
        "nvidia-nccl-cu13, and put its folder into LD_LIBRARY_PATH or the file's path into WICK_NCCL");
  }
  Symbol find(const char* name) const {
    void* const address = dlsym(handle_, name);
    check(address != nullptr, "NCCL: the library found has no {}; version 2.14 or newer is needed", name);
    return {address};
  }
  void* handle_ = open();  // stays open: its threads may outlive their communicators

 public:
  Result (*version)(int*) = find("ncclGetVersion");
  Result (*unique_id)(UniqueId*) = find("ncclGetUniqueId");
  Result (*init)(Comm*, int count, UniqueId, int rank, const Config*) = find("ncclCommInitRankConfig");
  Result (*finalize)(Comm) = find("ncclCommFinalize");
  Result (*destroy)(Comm) = find("ncclCommDestroy");
  Result (*abort)(Comm) = find("ncclCommAbort");
  Result (*state)(Comm, Result*) = find("ncclCommGetAsyncError");
  const char* (*error_string)(Result) = find("ncclGetErrorString");
  const char* (*last_error)(Comm) = find("ncclGetLastError");
  Result (*all_reduce)(const void*, void*, size_t, Element, int op, Comm, cudaStream_t) = find("ncclAllReduce");
  Result (*broadcast)(const void*, void*, size_t, Element, int root, Comm, cudaStream_t) = find("ncclBroadcast");
};

const Library& nccl() {
  static const Library library;
  return library;
}

void nccl_check(Result result, const char* what) {
  check(result == kSuccess, "NCCL: {} failed: {} ({})", what, nccl().error_string(result), nccl().last_error(nullptr));
}

class SideStream {
 public:
  SideStream() { cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"); }
  ~SideStream() { cudaStreamDestroy(stream_); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// The communicator is one that does not block: else a member's first sum of a size waits within NCCL for the others to
// connect, and abort() would free what that call uses. So each call returns at once, and its end is polled for.
class NcclCollective final : public Collective {
 public:
  NcclCollective(cudaStream_t compute, const UniqueId& id, int rank, int count,
                 const std::function<void()>& check_others)
      : compute_(compute) {
    std::unique_lock lock(mutex_);
    const Config config;
    try {
      settle(lock, nccl().init(&comm_, count, id, rank, &config), "joining", check_others);
    } catch (...) {
      if (comm_) nccl().abort(comm_);
      throw;
    }
  }

  ~NcclCollective() override {
    try {
      std::unique_lock lock(mutex_);
      if (!aborted_) {
        settle(lock, nccl().finalize(comm_), "leaving");
        nccl().destroy(comm_);
      }
    } catch (const Error&) {  // of another member; nothing is left to do here
    }
    if (aborting_.joinable()) aborting_.join();
    cudaStreamSynchronize(side_);
  }

  void sum(View x) override {
    assert(x.contiguous() && x.dtype == DType::f32);
    enqueue("a sum",
            [&] { return nccl().all_reduce(x.data, x.data, size_t(x.numel()), kFloat32, kSum, comm_, side_); });
  }
  void broadcast(View x, int from) override {
    assert(x.contiguous());
    enqueue("a broadcast", [&] {
      return nccl().broadcast(x.data, x.data, size_t(bytes_of(x.dtype, x.shape)), kInt8, from, comm_, side_);
    });
  }

  void join() override {
    {
      const std::lock_guard lock(mutex_);
      check_alive();
    }
    if (!std::exchange(forked_, false)) return;  // nothing of this capture, if there is one, is on the side stream
    ended_.order(side_, compute_);
  }

  // NCCL ends the kernels at once, but frees the communicator only when no graph holds calls of it any more: that is
  // awaited on a thread.
  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    const auto free = [comm = comm_] { nccl().abort(comm); };
    try {
      aborting_ = std::thread(free);
    } catch (const std::system_error&) {  // the system has no thread left
      free();
    }
  }

 private:
  void check_alive() const { check(!aborted_, "NCCL: the devices were told to stop, since one of them failed"); }

  template <class Call>
  void enqueue(const char* what, const Call& call) {
    std::unique_lock lock(mutex_);
    check_alive();
    begun_.order(compute_, side_);
    forked_ = true;
    settle(lock, call(), what);
  }

  // Waits until a call has enqueued its work, and opens the lock meanwhile.
  void settle(std::unique_lock<std::mutex>& lock, Result result, const char* what,
              const std::function<void()>& check_others = {}) {
    while (result == kInProgress) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(10));
      if (check_others) check_others();
      lock.lock();
      check_alive();
      nccl_check(nccl().state(comm_, &result), what);
    }
    nccl_check(result, what);
  }

  cudaStream_t compute_;
  SideStream side_;
  Event begun_, ended_;
  bool forked_ = false;  // since the last join()
  std::mutex mutex_;     // of the two below, and of calls that use the communicator
  Comm comm_ = nullptr;
  bool aborted_ = false;
  std::thread aborting_;
};

}  // namespace

std::string describe_nccl() {
  try {
    int v = 0;
    nccl_check(nccl().version(&v), "its version");
    return fmt::format("NCCL {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  } catch (const Error& e) {
    return e.what();
  }
}

std::string nccl_id() {
  UniqueId id;
  nccl_check(nccl().unique_id(&id), "making an id");
  return {id.bytes, sizeof id.bytes};
}

std::unique_ptr<Collective> join_nccl(const std::string& id, cudaStream_t compute, int rank, int count,
                                      const std::function<void()>& check_others) {
  UniqueId unique;
  check(id.size() == sizeof unique.bytes, "NCCL: an id of {} bytes; expected {}", id.size(), sizeof unique.bytes);
  std::memcpy(unique.bytes, id.data(), id.size());
  return std::make_unique<NcclCollective>(compute, unique, rank, count, check_others);
}

}  // namespace wick
