#include "wick/backend/cuda/runtime/peers.h"

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "wick/backend/cuda/runtime/check.h"
#include "wick/backend/cuda/runtime/driver.h"
#include "wick/backend/cuda/runtime/event.h"
#include "wick/backend/cuda/runtime/links.h"

namespace wick {
namespace {

constexpr int kMostPeers = 64;
// The most elements that are summed at once: a part of a LoRA's gradients.
constexpr int64_t kPiece = int64_t{6} << 20;
// The number of pieces by which additions lag behind the copies of their terms, so that these have come by then.
constexpr int kLag = 2;
// A member that begins piece i has seen all others begin piece i - kLag, and they had added piece i - 2 kLag by then.
constexpr int kSlots = 2 * kLag;
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

// A kernel is loaded when it is first asked for, and that never ended while a stream of the device waited for a signal.
void load_kernels() {
  cudaFuncAttributes attributes;
  for (const auto kernel : {sum_wide, sum_single})
    cuda_check(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
}

decltype(&cuStreamBatchMemOp) memory_operations() {
  static const auto found = driver_function<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  return found;
}

// The size of each of `parts` of `count` elements, but for the last ones.
int64_t share_of(int64_t count, int64_t parts) {
  const int64_t width = parts * kWide;
  return (count + width - 1) / width * kWide;
}

}  // namespace

// The memory that members write to. A group lives until its last member has left.
class PeerGroup {
 public:
  // A signal of one device to another: that it has begun a piece of an even or of an odd number, or ended all pieces.
  enum Signal { even, odd, ended, kSignals };

  explicit PeerGroup(int count) : count_(count), members_(size_t(count)) {
    const size_t flags = size_t(kSignals * count * count) * kApart;
    flags_ = on_host<uint32_t>(flags);
    std::fill_n(flags_, flags, 0);
  }
  ~PeerGroup() {
    for (const Member& member : members_) {
      if (member.terms) cudaFree(member.terms);
      for (float* const host : {member.host_terms, member.host_sums})
        if (host) cudaFreeHost(host);
    }
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

  // The sums go through the host's memory if a member asks for it or has no access to another one's. Returns once all
  // have called it; until then `check_others` is called, whose throwing ends the wait.
  void join(const PeerMember& own, const std::function<void()>& check_others) {
    const auto wait_for_others = [&] {
      wait_for_all([&] {
        check_others();
        return false;
      });
    };
    Member& member = members_[size_t(own.rank)];
    member.device = own.device;
    wait_for_others();
    if (own.by_host || !reaches_all(own.device)) by_host_ = true;
    wait_for_others();
    std::exception_ptr error;
    try {
      take_rooms(member);
    } catch (...) {
      error = std::current_exception();
      one_failed_ = true;
    }
    wait_for_others();
    if (error) std::rethrow_exception(error);
    check(!one_failed_, "another device could not join the sums");
  }

  // Returns once all members have called it, or `is_over`.
  template <class IsOver>
  void wait_for_all(const IsOver& is_over) {
    std::unique_lock lock(mutex_);
    const int64_t round = came_++ / count_;
    changed_.notify_all();
    while (came_ / count_ == round && !is_over()) changed_.wait_for(lock, std::chrono::milliseconds(1));
  }

  // The addresses of all members, by rank, once all have called it with theirs.
  template <class IsOver>
  std::vector<char*> all_addresses(int rank, void* own, const IsOver& is_over) {
    members_[size_t(rank)].address = static_cast<char*>(own);
    wait_for_all(is_over);
    std::vector<char*> all;
    for (const Member& member : members_) all.push_back(member.address);
    wait_for_all(is_over);
    return all;
  }

  int count() const { return count_; }
  bool by_host() const { return by_host_; }
  // The term of another member for the share of `rank` in a piece.
  float* term(int rank, int other, int slot) const { return members_[size_t(rank)].terms + place(rank, other, slot); }
  float* host_term(int rank, int other, int slot) const {
    return members_[size_t(rank)].host_terms + place(rank, other, slot);
  }
  float* host_sum(int rank, int slot) const { return members_[size_t(rank)].host_sums + share() * slot; }
  size_t sums_size() const { return size_t(share() * kSlots); }

  uint32_t* flag(Signal signal, int to, int from) const {
    return flags_ + size_t((signal * count_ + to) * count_ + from) * kApart;
  }

 private:
  static constexpr size_t kApart = 16;  // a cache line a flag

  struct Member {
    int device = -1;
    float* terms = nullptr;  // on the device
    float *host_terms = nullptr, *host_sums = nullptr;
    char* address = nullptr;  // of what is summed
  };

  int64_t share() const { return share_of(kPiece, count_); }
  size_t terms_size() const { return size_t(share() * (count_ - 1) * kSlots); }
  int64_t place(int rank, int other, int slot) const {
    return share() * (slot * (count_ - 1) + (other - rank + count_) % count_ - 1);
  }

  template <class T>
  static T* on_host(size_t count) {
    T* data = nullptr;
    cuda_check(cudaHostAlloc(&data, count * sizeof(T), cudaHostAllocPortable), "cudaHostAlloc");
    return data;
  }

  void take_rooms(Member& member) {
    cuda_check(cudaMalloc(&member.terms, terms_size() * sizeof(float)), "cudaMalloc");
    if (!by_host_) return access_all(member.device);
    member.host_terms = on_host<float>(terms_size());
    member.host_sums = on_host<float>(sums_size());
  }

  bool reaches_all(int device) const {
    return std::ranges::all_of(members_, [&](const Member& other) {
      return other.device == device || reach_each_other(device, other.device);
    });
  }
  void access_all(int device) const {
    for (const Member& other : members_) {
      if (other.device == device) continue;
      const cudaError_t status = cudaDeviceEnablePeerAccess(other.device, 0);
      if (status != cudaErrorPeerAccessAlreadyEnabled) cuda_check(status, "cudaDeviceEnablePeerAccess");
      cudaGetLastError();
    }
  }

  const int count_;
  std::vector<Member> members_;  // by rank
  uint32_t* flags_ = nullptr;    // page-locked on the host, so that abort() can write them whatever devices do
  std::atomic<bool> by_host_{false}, one_failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t came_ = 0;
};

namespace {

class PeerCollective;
thread_local PeerCollective* own_member = nullptr;  // of this thread

// A piece of a sum is divided into a share for each member. Each member copies its terms of a share to that share's
// member, which adds them and copies the sum over all members' terms, so that each element travels twice. Copy
// engines make the copies. Additions run where backward does, between its kernels: beside them, they took the
// multiprocessors of kernels that count on all (docs/decisions/005). They come kLag pieces later, as the terms are
// there by then. One signal a piece says that its terms are there, and the sums of the piece that was added before
// them.
//
// A copy is made by the device that it comes from, and in a captured step that one may be waiting: so a device copies
// to others, and fetches from the host alone.
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
    check_alive();
    const std::vector<char*> all = addresses(x);
    const int64_t each = share_of(x.numel(), (x.numel() + kPiece - 1) / kPiece);
    for (int64_t begin = 0; begin < x.numel(); begin += each) {
      Piece piece{.number = begun_++, .count = std::min(each, x.numel() - begin), .of = {}};
      for (char* const one : all) piece.of.push_back(reinterpret_cast<float*>(one) + begin);
      begin_piece(std::move(piece));
    }
  }
  // The first signal says that `x` may be overwritten, the second that it has been.
  void broadcast(View x, int from) override {
    assert(x.contiguous());
    settle();
    const std::vector<char*> all = addresses(x);
    const int64_t size = int64_t(bytes_of(x.dtype, x.shape)),
                  most = group_->by_host() ? int64_t(group_->sums_size() * sizeof(float)) : size;
    forked_.order(compute_, side_);
    for (int64_t at = 0; at < size; at += most) {
      char* const part = static_cast<char*>(x.data) + at;
      const int64_t bytes = std::min(most, size - at);
      tell_and_wait(PeerGroup::even);
      if (group_->by_host()) {
        if (rank_ == from) copy(group_->host_sum(from, 0), part, bytes);
      } else {
        for (const int to : others())
          if (rank_ == from) copy(all[size_t(to)] + at, part, bytes);
      }
      tell_and_wait(PeerGroup::ended);
      if (group_->by_host() && rank_ != from) copy(part, group_->host_sum(from, 0), bytes);
    }
    is_behind_ = true;
  }
  void join() override {
    settle();
    if (std::exchange(is_behind_, false)) joined_.order(side_, compute_);
  }

  bool has_captured_waits() { return std::exchange(has_captured_waits_, false); }
  void meet() {
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
          for (const auto signal : {PeerGroup::even, PeerGroup::odd, PeerGroup::ended})
            std::atomic_ref(*group_->flag(signal, rank_, other)).store(1);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    };
    aborting_ = std::thread(raise);
  }

 private:
  struct Piece {
    int number;
    int64_t count;           // elements
    std::vector<float*> of;  // by rank

    // Elements [begin(i), begin(i + 1)) are member i's share.
    int64_t begin(int rank) const { return std::min(share_of(count, int64_t(of.size())) * rank, count); }
    int64_t share(int rank) const { return begin(rank + 1) - begin(rank); }
    int64_t share_bytes(int rank) const { return share(rank) * int64_t(sizeof(float)); }
    float* at(int rank, int share) const { return of[size_t(rank)] + begin(share); }
  };

  static int slot_of(const Piece& piece) { return piece.number % kSlots; }

  void check_alive() const { check(!aborted_, "the devices were told to stop, since one of them failed"); }

  std::vector<char*> addresses(View x) {
    std::vector<char*> all = group_->all_addresses(rank_, x.data, [this] { return aborted_.load(); });
    check_alive();
    return all;
  }

  void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0)
      cuda_check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, side_), "copying between devices");
  }

  void begin_piece(Piece piece) {
    const bool adds = pending_.size() == kLag;
    if (adds) add_oldest();
    forked_.order(compute_, side_);
    if (adds) send_oldest();
    send_terms(piece);
    tell_and_wait(piece.number % 2 == 0 ? PeerGroup::even : PeerGroup::odd);
    fetch(piece);
    arrived_[slot_of(piece)].record(side_);
    pending_.push_back(std::move(piece));
    is_behind_ = true;
  }

  // Adds and sends the pending pieces; the next piece has number 0 again.
  void settle() {
    check_alive();
    if (std::exchange(begun_, 0) == 0) return;
    while (!pending_.empty()) {
      add_oldest();
      forked_.order(compute_, side_);
      send_oldest();
    }
    tell_and_wait(PeerGroup::ended);
    fetch_sums();
  }

  // The compute stream adds the terms of its own share once all have come.
  void add_oldest() {
    const Piece& piece = pending_.front();
    arrived_[slot_of(piece)].await(compute_);
    add_terms(piece);
  }
  void send_oldest() {
    send_sums(pending_.front());
    sent_.push_back(std::move(pending_.front()));
    pending_.pop_front();
  }

  void send_terms(const Piece& piece) {
    const auto room = [&](int to) {
      return group_->by_host() ? group_->host_term(to, rank_, slot_of(piece)) : group_->term(to, rank_, slot_of(piece));
    };
    for (const int to : others()) copy(room(to), piece.at(rank_, to), piece.share_bytes(to));
  }
  // They replace the others' terms, which have been copied here.
  void send_sums(const Piece& piece) {
    const float* const sums = piece.at(rank_, rank_);
    const int64_t bytes = piece.share_bytes(rank_);
    if (group_->by_host()) return copy(group_->host_sum(rank_, slot_of(piece)), sums, bytes);
    for (const int to : others()) copy(piece.at(to, rank_), sums, bytes);
  }
  // Fetches what lies on the host for this member, as the others have told.
  void fetch(const Piece& piece) {
    if (group_->by_host())
      for (const int from : others())
        copy(group_->term(rank_, from, slot_of(piece)), group_->host_term(rank_, from, slot_of(piece)),
             piece.share_bytes(rank_));
    fetch_sums();
  }
  void fetch_sums() {
    for (const Piece& piece : std::exchange(sent_, {}))
      for (const int from : others())
        if (group_->by_host())
          copy(piece.at(rank_, from), group_->host_sum(from, slot_of(piece)), piece.share_bytes(from));
  }

  void add_terms(const Piece& piece) {
    float* const x = piece.at(rank_, rank_);
    const int64_t count = piece.share(rank_);
    if (count == 0) return;
    Terms terms = {};
    terms.count = group_->count();
    for (int of = 0; of < terms.count; ++of) terms.of[of] = of == rank_ ? x : group_->term(rank_, of, slot_of(piece));
    constexpr int kThreads = 256, kMostBlocks = 2048;
    const bool wide = reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0 && count % kWide == 0;
    const int64_t vectors = wide ? count / kWide : count;
    const int blocks = int(std::min<int64_t>((vectors + kThreads - 1) / kThreads, kMostBlocks));
    (wide ? sum_wide : sum_single)<<<blocks, kThreads, 0, compute_>>>(x, terms, vectors);
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
  std::deque<Piece> pending_;                // pieces whose terms have been sent and not yet added
  std::vector<Piece> sent_;                  // pieces whose sums have been sent since the last signal
  int begun_ = 0;                            // pieces, since all were settled
  bool is_behind_ = false;                   // the compute stream has yet to wait for the side stream
  Event forked_, joined_, arrived_[kSlots];  // of slots: the terms are there
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

std::unique_ptr<Collective> join_peers(const std::string& id, const PeerMember& own, cudaStream_t compute,
                                       const std::function<void()>& check_others) {
  check(own.count <= kMostPeers, "{} devices of one process; at most {} can sum", own.count, kMostPeers);
  std::shared_ptr<PeerGroup> group = PeerGroup::of(id, own.count);
  group->join(own, check_others);
  return std::make_unique<PeerCollective>(std::move(group), compute, own.rank);
}

}  // namespace wick
