// Files to the device: several threads read pieces into page-locked memory, from which the copy engine (DMA) takes them
// while the next ones are read.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "wick/backend/cuda/runtime/readback.h"
#include "wick/core/memory.h"

namespace wick {

class Upload {
 public:
  Upload(int device, cudaStream_t stream);
  ~Upload();
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // In the order of the stream. Returns once everything was read.
  void operator()(const std::vector<Memory::Filling>& fillings);

 private:
  struct Reader {
    // One is read into while the other is copied. Made when it is needed: locking pages takes as long as reading them.
    std::unique_ptr<Pinned> buffers[2];
    int next = 0;
  };
  struct Piece {
    const Memory::Filling* of;
    size_t begin;
  };

  void work(Reader& reader);
  std::exception_ptr read_pieces(Reader& reader) noexcept;

  int device_;
  cudaStream_t stream_;
  std::vector<Reader> readers_;  // the first is the caller's
  std::vector<std::thread> threads_;

  std::vector<Piece> pieces_;  // of the file being read
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  std::condition_variable begin_, end_;
  uint64_t jobs_ = 0;
  size_t busy_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
};

}  // namespace wick
