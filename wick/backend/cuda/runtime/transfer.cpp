#include "wick/backend/cuda/runtime/transfer.h"

#include <array>
#include <cassert>
#include <cstring>
#include <map>
#include <system_error>
#include <thread>

#include "wick/backend/cuda/runtime/event.h"
#include "wick/core/error.h"

namespace wick {

void* PinnedMemory::allocate(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(fmt::format(
        "out of memory: the system locked no further {} in memory for what travels to the device, beside {}; fewer "
        "--stream-blocks, a smaller --quantize, or no --checkpoints-on-host need less",
        readable_bytes(bytes), readable_bytes(in_use())));
  }
  cuda_check(status, "cudaHostAlloc");
  count(bytes);
  return data;
}

void PinnedMemory::release(void* data, size_t bytes) noexcept {
  cudaFreeHost(data);
  uncount(bytes);
}

void PinnedMemory::write(void* to, const void* host, size_t bytes) { std::memcpy(to, host, bytes); }
void PinnedMemory::read(void* host, const void* from, size_t bytes) { std::memcpy(host, from, bytes); }
std::unique_ptr<Readback> PinnedMemory::read_later(const void* from, size_t bytes) {
  return host_memory().read_later(from, bytes);
}

class TransferStream::Copy final : public Transfer {
 public:
  Copy(std::shared_ptr<TransferStream> stream, cudaStream_t compute) : stream_(std::move(stream)), compute_(compute) {}

  void begin(void* to, const void* from, size_t bytes) override {
    const bool to_device = stream_->direction_ == Direction::to_device;
    free_.order(compute_, stream_->stream_);
    cuda_check(
        cudaMemcpyAsync(to, from, bytes, to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream_->stream_),
        to_device ? "copying from the host" : "copying to the host");
    arrived_.record(stream_->stream_);
  }
  void await() override { arrived_.await(compute_); }

 private:
  std::shared_ptr<TransferStream> stream_;
  cudaStream_t compute_;
  Event free_, arrived_;
};

namespace {

struct HostCopy {
  void* to;
  const void* from;
  size_t bytes;

  void share(size_t index, size_t of) const {
    const size_t begin = bytes / of * index, end = index + 1 == of ? bytes : begin + bytes / of;
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
  }
};

// In a stream's order, by several threads: one does not reach the bandwidth of the host's memory.
void CUDART_CB run_host_copy(void* data) {
  constexpr size_t kThreads = 4;
  const HostCopy& copy = *static_cast<const HostCopy*>(data);
  std::array<std::jthread, kThreads - 1> threads;
  size_t begun = 0;
  try {
    for (; begun < threads.size(); ++begun)
      threads[begun] = std::jthread([&copy, begun] { copy.share(begun, kThreads); });
  } catch (const std::system_error&) {  // the system has no thread left; this one does the rest
  }
  for (; begun < kThreads; ++begun) copy.share(begun, kThreads);
}

}  // namespace

// A host function, which a captured step records too, copies into page-locked memory; the copy engine goes on from
// there. Its arguments stay where they are while a record may be replayed.
class TransferStream::StagedCopy final : public Transfer {
 public:
  StagedCopy(std::shared_ptr<TransferStream> stream, cudaStream_t compute, Memory& locked, size_t most)
      : stream_(std::move(stream)), compute_(compute), locked_(locked), most_(most), stage_(locked.allocate(most)) {}
  ~StagedCopy() override {
    for (const cudaStream_t stream : {compute_, stream_->stream_}) cudaStreamSynchronize(stream);
    locked_.release(stage_, most_);
  }

  void begin(void* to, const void* from, size_t bytes) override {
    assert(bytes <= most_);
    free_.order(compute_, stream_->stream_);
    HostCopy& copy = copies_.try_emplace(from, HostCopy{stage_, from, bytes}).first->second;
    cuda_check(cudaLaunchHostFunc(stream_->stream_, run_host_copy, &copy), "copying on the host");
    cuda_check(cudaMemcpyAsync(to, stage_, bytes, cudaMemcpyHostToDevice, stream_->stream_), "copying from the host");
    arrived_.record(stream_->stream_);
  }
  void await() override { arrived_.await(compute_); }

 private:
  std::shared_ptr<TransferStream> stream_;
  cudaStream_t compute_;
  Memory& locked_;
  size_t most_;
  void* stage_;
  std::map<const void*, HostCopy> copies_;  // by where they copy from
  Event free_, arrived_;
};

TransferStream::TransferStream(Direction direction) : direction_(direction) {
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
}

TransferStream::~TransferStream() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

std::unique_ptr<Transfer> TransferStream::make_transfer(cudaStream_t compute) {
  return std::make_unique<Copy>(shared_from_this(), compute);
}

std::unique_ptr<Transfer> TransferStream::make_staged_transfer(cudaStream_t compute, Memory& locked, size_t most) {
  return std::make_unique<StagedCopy>(shared_from_this(), compute, locked, most);
}

}  // namespace wick
