// Device memory: blocks of segments (core/segments.h) that come from cudaMalloc.
//
// All work runs on one stream, so a block may be handed out again as soon as it is released: its next user is enqueued
// after its last one. Segments are kept; trim() gives back those without a block.
//
// Inside an Arena (core/memory.h) blocks come from segments of the arena's own. A captured CUDA graph holds addresses
// of blocks that are free between its replays; no lasting tensor may ever be placed there, and it is never trimmed.
//
// For compute-sanitizer, which knows only the driver's allocations, WICK_CUDA_POOL=off passes every request outside an
// arena on to the driver: then it sees where each tensor ends, and which of its bytes were written since it was
// allocated.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "wick/backend/cuda/runtime/readback.h"
#include "wick/backend/cuda/runtime/transfer.h"
#include "wick/backend/cuda/runtime/upload.h"
#include "wick/core/memory.h"
#include "wick/core/segments.h"

namespace wick {

class Pool final : public Memory {
 public:
  Pool(int device, cudaStream_t stream);
  ~Pool() override;

  void* allocate(size_t bytes) override;  // 512-byte aligned
  void release(void* data, size_t bytes) noexcept override;
  bool on_host() const override { return false; }
  void write(void* to, const void* host, size_t bytes) override;
  void read(void* host, const void* from, size_t bytes) override;
  void fill(const std::vector<Filling>& fillings) override;
  std::unique_ptr<Readback> read_later(const void* from, size_t bytes) override;
  MemoryStats stats() const override;
  void trim() override;
  void enter_arena() override { ++arenas_; }
  void leave_arena() override { --arenas_; }
  Memory& host_side() override { return host_side_; }
  std::unique_ptr<Transfer> make_transfer(Direction direction) override;
  std::unique_ptr<Transfer> make_staged_transfer(size_t most) override;

 private:
  TransferStream& transfers(Direction direction);
  void* from_segments(Segments& segments, size_t bytes);
  void* from_driver(size_t bytes);
  void* ask_driver(size_t bytes);  // null where there is no room
  void trim_general();
  size_t reserved() const;
  [[noreturn]] void out_of_memory(size_t bytes);

  int device_;
  cudaStream_t stream_;
  bool off_;
  mutable std::mutex mutex_;
  Segments general_, arena_segments_;
  std::unordered_map<void*, size_t> from_driver_;  // bytes, where there is no pool
  std::unique_ptr<Upload> upload_;                 // once something is filled
  int arenas_ = 0;                                 // that are open
  Readbacks readbacks_;
  PinnedMemory host_side_;
  std::map<Direction, std::shared_ptr<TransferStream>> transfers_;  // once something travels that way
  size_t most_reserved_ = 0;
  uint64_t requests_ = 0, hits_ = 0;
};

}  // namespace wick
