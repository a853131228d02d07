// Page-locked host memory for what lasts, and copies from there on a stream of their own.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "wick/core/memory.h"

namespace wick {

class PinnedMemory final : public Memory {
 public:
  void* allocate(size_t bytes) override;
  void release(void* data, size_t bytes) noexcept override;
  bool on_host() const override { return true; }
  void write(void* to, const void* host, size_t bytes) override;
  void read(void* host, const void* from, size_t bytes) override;
  std::unique_ptr<Readback> read_later(const void* from, size_t bytes) override;
};

// A captured step forks to this stream at its first fetch and has joined it by its end, because movers rest there.
class FetchStream : public std::enable_shared_from_this<FetchStream> {
 public:
  FetchStream();
  ~FetchStream();
  FetchStream(const FetchStream&) = delete;
  FetchStream& operator=(const FetchStream&) = delete;

  std::unique_ptr<Fetch> make_fetch(cudaStream_t compute);

 private:
  class Event;
  class Copy;
  cudaStream_t stream_ = nullptr;
};

}  // namespace wick
