// Device memory: a caching allocator in front of cudaMalloc.
//
// All work runs on one stream, so a block may be handed out again as soon as it is released: whoever gets it is
// enqueued after whoever had it. Memory comes from the driver in segments, which are split, merged and kept; trim()
// gives back the segments that are wholly free.
//
// Inside an Arena (below) blocks come from segments of the arena's own. A captured CUDA graph holds addresses of
// blocks that are free between its replays; nothing that lives on may ever be placed there.
//
// For compute-sanitizer, which knows only of what the driver handed out, WICK_CUDA_POOL=off passes every request
// outside an arena on to the driver: then it sees where each tensor ends, and what of it was written since it was
// allocated.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "wick/backend/cuda/readback.h"
#include "wick/core/memory.h"

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
  std::unique_ptr<Readback> read_later(const void* from, size_t bytes) override;
  MemoryStats stats() const override;
  void trim() override;
  void enter_arena() override { arena_ = true; }
  void leave_arena() override { arena_ = false; }

 private:
  struct Block {
    char* data;
    size_t bytes;
    bool free;
    bool first, last;  // of its segment: neighbours beyond belong to others
  };
  using Blocks = std::map<char*, Block>;
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->data < b->data;
    }
  };
  struct Heap {  // the general one, and the arena's
    Blocks blocks;
    std::set<Block*, BySize> free;
    size_t reserved = 0;
  };

  Block* find(Heap& heap, size_t bytes);
  Block* grow(Heap& heap, size_t bytes, size_t segment);
  void split(Heap& heap, Block& block, size_t bytes);
  void trim(Heap& heap);
  [[noreturn]] void out_of_memory(size_t bytes);

  int device_;
  cudaStream_t stream_;
  bool off_;
  mutable std::mutex mutex_;
  Heap general_, arena_heap_;
  bool arena_ = false;
  Readbacks readbacks_;
  uint64_t requests_ = 0, hits_ = 0;
};

}  // namespace wick
