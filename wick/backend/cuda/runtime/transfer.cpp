#include "wick/backend/cuda/runtime/transfer.h"

#include <cstring>

#include "wick/backend/cuda/runtime/check.h"
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

class TransferStream::Event {
 public:
  Event() { cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Work enqueued on `later` from now on begins behind what is enqueued on `earlier`.
  void order(cudaStream_t earlier, cudaStream_t later) {
    record(earlier);
    await(later);
  }
  void record(cudaStream_t stream) { cuda_check(cudaEventRecord(event_, stream), "recording an event"); }
  void await(cudaStream_t stream) { cuda_check(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event"); }

 private:
  cudaEvent_t event_ = nullptr;
};

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

}  // namespace wick
