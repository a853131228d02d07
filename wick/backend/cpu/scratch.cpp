#include "wick/backend/cpu/scratch.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "wick/core/error.h"
#include "wick/core/memory.h"

namespace wick {

namespace {

constexpr size_t kKeepBytes = size_t{128} << 20;  // a thread
constexpr size_t kMaxWaste = 4;                   // a request takes no block more than this many times its size

struct Block {
  float* data;
  size_t bytes;
};

class Pool {
 public:
  Pool() { kept_.reserve(64); }
  ~Pool() {
    for (const Block& block : kept_) std::free(block.data);
  }

  Block take(size_t bytes) {
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it)
      if (it->bytes >= bytes && it->bytes / kMaxWaste <= bytes && (best == kept_.end() || it->bytes < best->bytes))
        best = it;
    if (best == kept_.end()) return allocate(bytes);
    const Block block = *best;
    kept_bytes_ -= block.bytes;
    kept_.erase(best);
    return block;
  }

  void give_back(Block block) noexcept {
    while (!kept_.empty() && kept_bytes_ + block.bytes > kKeepBytes) {  // the oldest go first
      kept_bytes_ -= kept_.front().bytes;
      std::free(kept_.front().data);
      kept_.erase(kept_.begin());
    }
    if (block.bytes > kKeepBytes || kept_.size() == kept_.capacity()) return std::free(block.data);
    kept_.push_back(block);
    kept_bytes_ += block.bytes;
  }

 private:
  static Block allocate(size_t bytes) {
    auto* data = static_cast<float*>(std::aligned_alloc(64, bytes));
    if (!data)
      throw OutOfMemory(fmt::format("out of memory: the CPU could not give {} to work in", readable_bytes(bytes)));
    return {data, bytes};
  }

  std::vector<Block> kept_;
  size_t kept_bytes_ = 0;
};

Pool& pool() {
  thread_local Pool of_this_thread;
  return of_this_thread;
}

}  // namespace

Scratch::Scratch(int64_t floats) {
  const size_t wanted = size_t(std::max<int64_t>(floats, 1)) * sizeof(float);
  const Block block = pool().take((wanted + 63) / 64 * 64);
  data_ = {block.data, {block.bytes}};
}

void Scratch::GiveBack::operator()(float* data) const noexcept { pool().give_back({data, bytes}); }

}  // namespace wick
