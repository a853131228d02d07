#include "wick/backend/cuda/runtime/peers.h"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "wick/backend/cuda/runtime/check.h"
#include "wick/backend/cuda/runtime/event.h"
#include "wick/backend/cuda/runtime/links.h"

namespace wick {
namespace {

constexpr int kMostPeers = 16;
// Of floats, which are summed at once: enough that a copy of one device's share takes longer than its start.
constexpr int64_t kPiece = int64_t{4} << 20;
constexpr int64_t kWide = 4;  // elements of a vector; shares are multiples of it

struct Terms {
  const float* of[kMostPeers];
  int count;
};

// y = ((x_0 + x_1) + x_2) + ..., so that all numbers of devices add as one device does that adds one after the
// other. y may be one of the terms.
template <class Vector, class Add>
__device__ void sum_terms(float* y, const Terms& terms, int64_t count, Add add) {
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    Vector sum = reinterpret_cast<const Vector*>(terms.of[0])[i];
    for (int term = 1; term < terms.count; ++term) add(sum, reinterpret_cast<const Vector*>(terms.of[term])[i]);
    reinterpret_cast<Vector*>(y)[i] = sum;
  }
}

__global__ void sum_wide(float* y, Terms terms, int64_t count) {
  sum_terms<float4>(y, terms, count, [](float4& sum, const float4& x) {
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
  });
}
__global__ void sum_single(float* y, Terms terms, int64_t count) {
  sum_terms<float>(y, terms, count, [](float& sum, float x) { sum += x; });
}

// EXPERIMENT
struct Flags {
  volatile uint32_t* told[kMostPeers];
  volatile uint32_t* awaited[kMostPeers];
};
__global__ void tell_and_spin(Flags flags) {
  __threadfence_system();
  *flags.told[threadIdx.x] = 1;
  while (*flags.awaited[threadIdx.x] == 0) __nanosleep(100);
  *flags.awaited[threadIdx.x] = 0;
  __threadfence_system();
}

// A kernel is loaded when it is first asked for, and that never ended while a stream of the device waited for a signal.
void load_kernels() {
  cudaFuncAttributes attributes;
  for (const auto kernel : {sum_wide, sum_single})
    cuda_check(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
  cuda_check(cudaFuncGetAttributes(&attributes, tell_and_spin), "loading a kernel");
}

// The driver's, by name: the library that holds it is not linked.
decltype(&cuStreamBatchMemOp) memory_operations() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
    cuda_check(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 12000, cudaEnableDefault, &status),
               "finding cuStreamBatchMemOp");
#else
    cuda_check(cudaGetDriverEntryPoint("cuStreamBatchMemOp", &function, cudaEnableDefault, &status),
               "finding cuStreamBatchMemOp");
#endif
    check(function != nullptr, "CUDA: the driver has no cuStreamBatchMemOp; a newer driver helps");
    return reinterpret_cast<decltype(&cuStreamBatchMemOp)>(function);
  }();
  return found;
}

bool reaches_all(int device, const std::vector<int>& devices) {
  return std::ranges::all_of(devices, [&](int other) { return other == device || reach_each_other(device, other); });
}

}  // namespace

// Lives until the last member has left, and with it the memory that others write to.
class PeerGroup {
 public:
  // What a device tells another one: its terms are there, or its share of the sum is.
  enum Signal { terms, sums, kSignals };

  explicit PeerGroup(int count) : count_(count), devices_(size_t(count), -1), rooms_(size_t(count)) {
    cuda_check(
        cudaHostAlloc(&flags_, size_t(kSignals * count * count) * kApart * sizeof(uint32_t), cudaHostAllocPortable),
        "cudaHostAlloc");
    std::fill_n(flags_, size_t(kSignals * count * count) * kApart, 0);
  }
  ~PeerGroup() {
    for (size_t rank = 0; rank < rooms_.size(); ++rank)
      if (rooms_[rank]) cudaFree(rooms_[rank]);
    cudaFreeHost(flags_);
  }
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  static std::shared_ptr<PeerGroup> of(const std::string& id, int count) {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<PeerGroup>> all;
    const std::lock_guard lock(mutex);
    std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
    std::shared_ptr<PeerGroup> group = all[id].lock();
    if (!group) all[id] = group = std::make_shared<PeerGroup>(count);
    return group;
  }

  // Whether all members may access all others' memory; then `rank` has a room on its device.
  bool join(int rank, int device) {
    devices_[size_t(rank)] = device;
    wait_for_all();
    if (count_ > kMostPeers || !reaches_all(device, devices_)) all_access_ = false;
    wait_for_all();
    if (!all_access_) return false;
    for (const int other : devices_) {
      if (other == device) continue;
      const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
      if (status != cudaErrorPeerAccessAlreadyEnabled) cuda_check(status, "cudaDeviceEnablePeerAccess");
      cudaGetLastError();
    }
    cuda_check(cudaMalloc(&rooms_[size_t(rank)], 2 * size_t(kPiece) * sizeof(float)), "cudaMalloc");
    wait_for_all();
    return true;
  }

  // Returns once all members have called it, or `is_over`.
  template <class IsOver>
  void wait_for_all(const IsOver& is_over) {
    std::unique_lock lock(mutex_);
    const int64_t round = came_++ / count_;
    changed_.notify_all();
    while (came_ / count_ == round && !is_over()) changed_.wait_for(lock, std::chrono::milliseconds(1));
  }

  int count() const { return count_; }
  // On the device of `rank`, each of share() elements: the members' terms for its share, and the sums of their shares.
  float* term(int rank, int of) const { return rooms_[size_t(rank)] + share() * of; }
  float* sum(int rank, int of) const { return rooms_[size_t(rank)] + kPiece + share() * of; }
  int64_t share() const { return kPiece / count_ / kWide * kWide; }

  uint32_t* flag(Signal signal, int to, int from) const {
    return flags_ + size_t((signal * count_ + to) * count_ + from) * kApart;
  }

 private:
  static constexpr size_t kApart = 16;  // a cache line a flag

  void wait_for_all() {
    wait_for_all([] { return false; });
  }

  const int count_;
  std::vector<int> devices_;   // by rank
  std::vector<float*> rooms_;  // by rank
  uint32_t* flags_ = nullptr;  // page-locked on the host, so that abort() can write them whatever devices do
  std::atomic<bool> all_access_{true};
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t came_ = 0;
};

namespace {

class PeerCollective;
thread_local PeerCollective* own_member = nullptr;  // of this thread

// A piece of a sum is divided into a share for each member. Each member copies its terms of a share to that share's
// member, which adds them and copies the sum to all. So two signals order all: a member that has everyone's terms knows
// that all are done with its sum before, and one that is told of a sum knows that its terms were added. Nothing is
// fetched: a copy is made by the device that it comes from, and in a captured step that one may be waiting.
class PeerCollective final : public Collective {
 public:
  PeerCollective(std::shared_ptr<PeerGroup> group, cudaStream_t compute, int rank)
      : group_(std::move(group)), compute_(compute), rank_(rank) {
    int least = 0, greatest = 0;
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    cuda_check(cudaStreamCreateWithPriority(&side_, cudaStreamNonBlocking, greatest), "creating a stream");
    load_kernels();
    own_member = this;
  }

  ~PeerCollective() override {
    own_member = nullptr;
    cudaStreamSynchronize(compute_);
    cudaStreamSynchronize(side_);
    cudaStreamDestroy(side_);
    left_ = true;
    if (aborting_.joinable()) aborting_.join();
  }

  void sum(View x) override {
    assert(x.contiguous() && x.dtype == DType::f32);
    fork();
    const int64_t most = group_->share() * group_->count();
    for (int64_t at = 0; at < x.numel(); at += most)
      sum_piece(static_cast<float*>(x.data) + at, std::min(most, x.numel() - at));
  }
  void broadcast(View x, int from) override {
    assert(x.contiguous());
    fork();
    const int64_t bytes = int64_t(bytes_of(x.dtype, x.shape)), most = group_->share() * int64_t(sizeof(float));
    for (int64_t at = 0; at < bytes; at += most) {
      char* const part = static_cast<char*>(x.data) + at;
      const int64_t size = std::min(most, bytes - at);
      tell_and_wait(PeerGroup::terms);
      for (const int to : others())
        if (rank_ == from) copy(group_->sum(to, from), part, size);
      tell_and_wait(PeerGroup::sums);
      if (rank_ != from) copy(part, group_->sum(rank_, from), size);
    }
  }

  void join() override {
    check_alive();
    if (std::exchange(forked_, false)) ended_.order(side_, compute_);
  }

  bool has_captured_waits() { return std::exchange(has_captured_waits_, false); }
  void meet() {
    if (getenv("WICK_PEERS_NO_MEET")) return;
    group_->wait_for_all([this] { return aborted_.load(); });
    check_alive();
  }

  // Flags are raised until the streams have come to their ends: what waits resets them.
  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    if (aborted_.exchange(true)) return;
    const auto raise = [this] {
      while (!left_) {
        for (int other = 0; other < group_->count(); ++other)
          for (const auto signal : {PeerGroup::terms, PeerGroup::sums})
            std::atomic_ref(*group_->flag(signal, rank_, other)).store(1);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    };
    aborting_ = std::thread(raise);
  }

 private:
  void check_alive() const { check(!aborted_, "the devices were told to stop, since one of them failed"); }

  void fork() {
    check_alive();
    begun_.order(compute_, side_);
    forked_ = true;
  }

  void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0)
      cuda_check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, side_), "copying between devices");
  }

  void sum_piece(float* x, int64_t count) {
    const int members = group_->count();
    const int64_t share = (count + members * kWide - 1) / (members * kWide) * kWide;
    const auto begin = [&](int of) { return std::min(share * of, count); };
    const auto bytes = [&](int of) { return (begin(of + 1) - begin(of)) * int64_t(sizeof(float)); };
    for (const int to : others()) copy(group_->term(to, rank_), x + begin(to), bytes(to));
    tell_and_wait(PeerGroup::terms);
    add_terms(x + begin(rank_), begin(rank_ + 1) - begin(rank_));
    for (const int to : others()) copy(group_->sum(to, rank_), x + begin(rank_), bytes(rank_));
    tell_and_wait(PeerGroup::sums);
    for (const int from : others()) copy(x + begin(from), group_->sum(rank_, from), bytes(from));
  }

  void add_terms(float* x, int64_t count) {
    if (count == 0) return;
    Terms terms = {};
    terms.count = group_->count();
    for (int of = 0; of < terms.count; ++of) terms.of[of] = of == rank_ ? x : group_->term(rank_, of);
    constexpr int kThreads = 256, kMostBlocks = 2048;
    const bool wide = reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0 && count % kWide == 0;
    const int64_t vectors = wide ? count / kWide : count;
    const int blocks = int(std::min<int64_t>((vectors + kThreads - 1) / kThreads, kMostBlocks));
    (wide ? sum_wide : sum_single)<<<blocks, kThreads, 0, side_>>>(x, terms, vectors);
    cuda_check(cudaGetLastError(), "adding gradients of devices");
  }

  // All others are told, and all have told, once what the stream did before is done. In a captured step the device
  // waits. Elsewhere the host does: a first call of something else would load its kernels, and loading waits for
  // devices.
  void tell_and_wait(PeerGroup::Signal signal) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(side_, &status), "cudaStreamIsCapturing");
    if (status == cudaStreamCaptureStatusNone)
      wait_on_host(signal);
    else
      wait_on_device(signal);
  }

  // Each member begins with another one.
  std::vector<int> others() const {
    std::vector<int> all;
    for (int i = 1; i < group_->count(); ++i) all.push_back((rank_ + i) % group_->count());
    return all;
  }

  void wait_on_host(PeerGroup::Signal signal) {
    cuda_check(cudaStreamSynchronize(side_), "waiting for the device");
    for (const int other : others()) std::atomic_ref(*group_->flag(signal, other, rank_)).store(1);
    for (const int other : others()) {
      const std::atomic_ref flag(*group_->flag(signal, rank_, other));
      while (flag.load() == 0) std::this_thread::sleep_for(std::chrono::microseconds(5));
      check_alive();
      flag.store(0);
    }
  }

  void wait_on_device(PeerGroup::Signal signal) {
    has_captured_waits_ = true;
    if (getenv("WICK_PEERS_KERNEL")) {
      Flags flags = {};
      int count = 0;
      for (const int other : others()) {
        flags.told[count] = group_->flag(signal, other, rank_);
        flags.awaited[count++] = group_->flag(signal, rank_, other);
      }
      tell_and_spin<<<1, count, 0, side_>>>(flags);
      cuda_check(cudaGetLastError(), "telling");
      return;
    }
    std::vector<CUstreamBatchMemOpParams> all;
    const auto add = [&](CUstreamBatchMemOpType what, int to, int from, uint32_t value) {
      auto& one = all.emplace_back().writeValue;
      one.operation = what;
      one.address = reinterpret_cast<CUdeviceptr>(group_->flag(signal, to, from));
      one.value = value;
    };
    for (const int other : others()) add(CU_STREAM_MEM_OP_WRITE_VALUE_32, other, rank_, 1);
    for (const int other : others()) {
      add(CU_STREAM_MEM_OP_WAIT_VALUE_32, rank_, other, 1);
      all.back().waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
      add(CU_STREAM_MEM_OP_WRITE_VALUE_32, rank_, other, 0);
    }
    const CUresult status = memory_operations()(side_, unsigned(all.size()), all.data(), 0);
    check(status == CUDA_SUCCESS, "CUDA: signals between devices failed (error {})", int(status));
  }

  std::shared_ptr<PeerGroup> group_;
  cudaStream_t compute_, side_ = nullptr;
  int rank_;
  Event begun_, ended_;
  bool forked_ = false;  // since the last join()
  bool has_captured_waits_ = false;
  std::mutex mutex_;
  std::atomic<bool> aborted_{false}, left_{false};
  std::thread aborting_;
};

}  // namespace

bool has_captured_waits() { return own_member && own_member->has_captured_waits(); }
void meet_peers() {
  if (own_member) own_member->meet();
}

std::unique_ptr<Collective> join_peers(const std::string& id, int device, cudaStream_t compute, int rank, int count) {
  std::shared_ptr<PeerGroup> group = PeerGroup::of(id, count);
  if (!group->join(rank, device)) return nullptr;
  return std::make_unique<PeerCollective>(std::move(group), compute, rank);
}

}  // namespace wick
