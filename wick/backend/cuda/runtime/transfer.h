// Page-locked host memory for what lasts, and copies from and to it on streams of their own.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
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

// Copies in one direction. A captured step forks to this stream at its first copy and has joined it by its end, because
// movers rest there.
class TransferStream : public std::enable_shared_from_this<TransferStream> {
 public:
  explicit TransferStream(Direction direction);
  ~TransferStream();
  TransferStream(const TransferStream&) = delete;
  TransferStream& operator=(const TransferStream&) = delete;

  std::unique_ptr<Transfer> make_transfer(cudaStream_t compute);
  // To the device from ordinary host memory, through `most` bytes of `locked`.
  std::unique_ptr<Transfer> make_staged_transfer(cudaStream_t compute, Memory& locked, size_t most);

 private:
  class Copy;
  class StagedCopy;
  Direction direction_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace wick
