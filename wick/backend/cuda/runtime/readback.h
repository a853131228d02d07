// Copies of device memory that arrive in page-locked memory while the device works on.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "wick/core/memory.h"

namespace wick {

// Their memory is used again: making and freeing it waits for all that the device has to do.
class Readbacks {
 public:
  Readbacks();
  std::unique_ptr<Readback> start(const void* from, size_t bytes, cudaStream_t stream);

 private:
  class Pinned;
  class Pending;
  struct Idle;
  std::shared_ptr<Idle> idle_;  // outlived by pending reads
};

}  // namespace wick
