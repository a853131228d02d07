// Page-locked memory, and copies of device memory that arrive there while the device works on.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "wick/core/memory.h"

namespace wick {

// Page-locked memory, and the event that tells when the last copy from or to it has ended.
class Pinned {
 public:
  explicit Pinned(size_t bytes);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  size_t bytes() const { return bytes_; }
  void* wait();  // until that copy has ended; the memory
  void send(void* to, size_t bytes, cudaStream_t stream);
  void fetch(const void* from, size_t bytes, cudaStream_t stream);

 private:
  size_t bytes_;
  void* data_ = nullptr;
  cudaEvent_t copied_ = nullptr;
};

// Their memory is used again: making and freeing it waits for all that the device has to do.
class Readbacks {
 public:
  Readbacks();
  std::unique_ptr<Readback> start(const void* from, size_t bytes, cudaStream_t stream);

 private:
  class Pending;
  struct Idle;
  std::shared_ptr<Idle> idle_;  // outlived by pending reads
};

}  // namespace wick
