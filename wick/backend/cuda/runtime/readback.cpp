#include "wick/backend/cuda/runtime/readback.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "wick/backend/cuda/runtime/check.h"

namespace wick {

Pinned::Pinned(size_t bytes) : bytes_(bytes) {
  cuda_check(cudaMallocHost(&data_, bytes), "cudaMallocHost");
  cuda_check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "cudaEventCreate");
}

Pinned::~Pinned() {
  cudaEventSynchronize(copied_);
  cudaEventDestroy(copied_);
  cudaFreeHost(data_);
}

void* Pinned::wait() {
  cuda_check(cudaEventSynchronize(copied_), "waiting for the device");
  return data_;
}

void Pinned::send(void* to, size_t bytes, cudaStream_t stream) {
  cuda_check(cudaMemcpyAsync(to, data_, bytes, cudaMemcpyHostToDevice, stream), "copying to the device");
  cuda_check(cudaEventRecord(copied_, stream), "cudaEventRecord");
}

void Pinned::fetch(const void* from, size_t bytes, cudaStream_t stream) {
  cuda_check(cudaMemcpyAsync(data_, from, bytes, cudaMemcpyDeviceToHost, stream), "copying from the device");
  cuda_check(cudaEventRecord(copied_, stream), "cudaEventRecord");
}

struct Readbacks::Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<Pinned>> all;

  std::unique_ptr<Pinned> take(size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& pinned) { return pinned->bytes() >= bytes; });
    if (found == all.end()) return nullptr;
    auto pinned = std::move(*found);
    all.erase(found);
    return pinned;
  }
};

class Readbacks::Pending final : public Readback {
 public:
  Pending(std::shared_ptr<Idle> idle, std::unique_ptr<Pinned> pinned)
      : idle_(std::move(idle)), pinned_(std::move(pinned)) {}
  ~Pending() override {
    const std::lock_guard lock(idle_->mutex);
    idle_->all.push_back(std::move(pinned_));
  }
  const void* data() override { return pinned_->wait(); }

 private:
  std::shared_ptr<Idle> idle_;
  std::unique_ptr<Pinned> pinned_;
};

Readbacks::Readbacks() : idle_(std::make_shared<Idle>()) {}

std::unique_ptr<Readback> Readbacks::start(const void* from, size_t bytes, cudaStream_t stream) {
  std::unique_ptr<Pinned> pinned = idle_->take(bytes);
  if (!pinned) pinned = std::make_unique<Pinned>(bytes);
  pinned->fetch(from, bytes, stream);
  return std::make_unique<Pending>(idle_, std::move(pinned));
}

}  // namespace wick
